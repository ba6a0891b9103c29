/* memory_fit.c: searches for what fits on the device of a memory scenario. Each answer is emitted.
 */
#include "experiments/cli/player/memory/memory_fit.h"

#include <inttypes.h>
#include <stdio.h>

#include "experiments/cli/player/memory/memory_run.h"
#include "experiments/study/simulate/oom.h"

enum { SEQ_STEP = 64, REPORT_BYTES = 768 };

/* Emits both variants. TSR_EOOM: one does not fit. *reserved: the most that either held. */
static tsr_status emit_both(const struct tsr_memory_scenario *s, uint64_t *reserved)
{
    *reserved = 0;
    for (int instrumented = 0; instrumented < 2; instrumented++) {
        struct tsr_memory_run run;
        tsr_status status = tsr_memory_run(s, instrumented, &run);
        if (status == TSR_OK)
            *reserved = tsr_max_u64(*reserved, tsr_engine_memory(run.engine).peak_reserved);
        tsr_memory_run_close(&run);
        TSR_TRY(status);
    }
    return TSR_OK;
}

struct search {
    const struct tsr_memory_scenario *s;
    bool is_batch; /* else sequences of batch 1 */
};

static tsr_status fits(const void *user, uint64_t value, bool *out)
{
    const struct search *search = user;
    struct tsr_memory_scenario smaller = *search->s;
    uint64_t reserved = 0;
    smaller.step.batch = search->is_batch ? value : 1;
    if (!search->is_batch)
        smaller.step.seq = value;
    tsr_status status = emit_both(&smaller, &reserved);
    *out = status == TSR_OK;
    return status == TSR_ENOMEM ? status : TSR_OK; /* what cannot be run does not fit either */
}

/* In steps of 64 while there is one that fits, else of 1. */
static tsr_status longest(const struct tsr_memory_scenario *s, uint64_t *out)
{
    struct search search = {.s = s};
    *out = 0;
    if (s->step.seq > SEQ_STEP)
        TSR_TRY(tsr_oom_largest(fits, &search, SEQ_STEP, s->step.seq, out));
    if (*out)
        return TSR_OK;
    return tsr_oom_largest(fits, &search, 1, tsr_min_u64(s->step.seq, SEQ_STEP), out);
}

static tsr_status say_device(const struct tsr_memory_scenario *s, char *out, size_t size)
{
    struct tsr_memory_scenario larger = *s;
    uint64_t reserved = 0;
    larger.engine.allocator.device_bytes = TSR_MEMORY_DEVICE_LIMIT;
    tsr_status status = emit_both(&larger, &reserved);
    if (status == TSR_OK)
        (void)snprintf(out, size,
                       "no batch or sequence would fit; a device of %.2f GiB "
                       "(%" PRIu64 " bytes) would do without retries",
                       (double)reserved / (double)(UINT64_C(1) << 30), reserved);
    else
        (void)snprintf(out, size, "no batch, no sequence and no device would fit");
    return status == TSR_ENOMEM ? status : TSR_OK;
}

tsr_status tsr_memory_say_what_fits(const struct tsr_memory_scenario *s)
{
    struct search search = {.s = s, .is_batch = true};
    char report[REPORT_BYTES], remedy[160];
    uint64_t batch = 0, seq = 0;
    (void)snprintf(report, sizeof report, "%s", tsr_error_text());
    TSR_TRY(tsr_oom_largest(fits, &search, 1, s->step.batch, &batch));
    if (!batch)
        TSR_TRY(longest(s, &seq));
    if (batch)
        (void)snprintf(remedy, sizeof remedy, "batch %" PRIu64 " would fit", batch);
    else if (seq)
        (void)snprintf(remedy, sizeof remedy, "batch 1 with seq %" PRIu64 " would fit", seq);
    else
        TSR_TRY(say_device(s, remedy, sizeof remedy));
    return tsr_fail(TSR_EOOM, "%s; %s", report, remedy);
}
