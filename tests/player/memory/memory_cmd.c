/* memory_cmd.c: `tessera memory SCENARIO.json`: what a recorded memory scenario takes, predicted.
 *
 * A recording is made of two runs: PyTorch as it is gives the allocator's figures, and PyTorch
 * while every operation is recorded gives categories, snapshots and the time line; they differ by a
 * few allocations. So the scenario is emitted twice.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/open.h"
#include "tests/player/memory/memory_record.h"
#include "tests/player/player.h"

enum { SEQ_STEP = 64, REPORT_BYTES = 768 };

/* ---- one emission ---------------------------------------------------------------------------- */

struct emitted {
    struct tsr_memory_record record;
    struct tsr_engine *engine;
};

/* Emits all iterations of one variant: PyTorch as it is, or while it is recorded (`instrumented`).
 * Close *run in any case. Errors: TSR_EOOM when the scenario's device is too small, with the
 * allocator's report as text; TSR_ENOMEM; what the engine says of a scenario that it refuses. */
static tsr_status emit(const struct tsr_memory_scenario *s, bool instrumented, struct emitted *run)
{
    run->engine = NULL;
    tsr_memory_record_init(&run->record);
    TSR_TRY(tsr_memory_scenario_build(s, &run->record.figures.base, instrumented, &run->engine));
    run->record.figures.engine = run->engine;
    TSR_TRY(tsr_engine_init_params(run->engine));
    for (uint32_t i = 0; i < s->iterations; i++)
        TSR_TRY(tsr_step_run(run->engine, i));
    return tsr_memory_record_end(&run->record);
}

static void close_emitted(struct emitted *run)
{
    tsr_engine_destroy(run->engine);
    run->engine = NULL;
    tsr_memory_record_fini(&run->record);
}

/* ---- what would fit -------------------------------------------------------------------------- */

/* Emits both variants. TSR_EOOM: one does not fit. *reserved: the most that either held. */
static tsr_status emit_both(const struct tsr_memory_scenario *s, uint64_t *reserved)
{
    *reserved = 0;
    for (int instrumented = 0; instrumented < 2; instrumented++) {
        struct emitted run;
        tsr_status status = emit(s, instrumented, &run);
        if (status == TSR_OK)
            *reserved = tsr_max_u64(*reserved, tsr_engine_memory(run.engine).peak_reserved);
        close_emitted(&run);
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
        TSR_TRY(tsr_oom_largest(fits, &search, SEQ_STEP, 0, s->step.seq, out));
    if (*out)
        return TSR_OK;
    return tsr_oom_largest(fits, &search, 1, 0, tsr_min_u64(s->step.seq, SEQ_STEP), out);
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

/* After TSR_EOOM, whose text stays and gets one more clause: the largest batch that fits; else the
 * longest sequence of batch 1; else the device that serves the scenario without retries. Emits the
 * scenario anew for each of them. Returns TSR_EOOM; other errors: TSR_ENOMEM. */
static tsr_status say_what_fits(const struct tsr_memory_scenario *s)
{
    struct search search = {.s = s, .is_batch = true};
    char report[REPORT_BYTES], remedy[160];
    uint64_t batch = 0, seq = 0;
    (void)snprintf(report, sizeof report, "%s", tsr_error_text());
    if (!s->is_traced) /* a trace has one batch and one length */
        TSR_TRY(tsr_oom_largest(fits, &search, 1, 0, s->step.batch, &batch));
    if (!batch && !s->is_traced)
        TSR_TRY(longest(s, &seq));
    if (batch)
        (void)snprintf(remedy, sizeof remedy, "batch %" PRIu64 " would fit", batch);
    else if (seq)
        (void)snprintf(remedy, sizeof remedy, "batch 1 with seq %" PRIu64 " would fit", seq);
    else
        TSR_TRY(say_device(s, remedy, sizeof remedy));
    return tsr_fail(TSR_EOOM, "%s; %s", report, remedy);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A file under its temporary name, complete but for tsr_outfile_commit(); or standard output. */
static tsr_status write_part(const char *path, const json_t *value, struct tsr_outfile *file)
{
    struct tsr_json_output output = {path ? path : "standard output", value, JSON_COMPACT};
    TSR_TRY(tsr_json_write(path ? file->stream : stdout, &output));
    return tsr_flush(path ? file->stream : stdout, output.name);
}

/* The result, then the time line; both or neither of the files. */
static tsr_status write_both(const struct tsr_args *args, const json_t *result,
                             const json_t *timeline)
{
    struct tsr_outfile out = {.path = NULL}, line = {.path = NULL};
    tsr_status status;
    if (args->out)
        TSR_GOTO(done, tsr_outfile_open(args->out, &out));
    if (timeline)
        TSR_GOTO(done, tsr_outfile_open(args->timeline, &line));
    TSR_GOTO(done, write_part(args->out, result, &out));
    if (timeline)
        TSR_GOTO(done, write_part(args->timeline, timeline, &line));
    if (args->out)
        TSR_GOTO(done, tsr_outfile_commit(&out));
    if (timeline)
        TSR_GOTO(done, tsr_outfile_commit(&line));

done:
    tsr_outfile_abort(&out);
    tsr_outfile_abort(&line);
    return status;
}

static tsr_status report(const struct tsr_memory_scenario *s, const struct tsr_args *args,
                         const struct emitted *plain, const struct emitted *recorded)
{
    json_t *result = json_object();
    bool ok = result && json_object_set_new(result, "name", json_string(s->name)) == 0 &&
              json_object_set(result, "scenario", s->object) == 0 &&
              json_object_set_new(result, "groups", tsr_memory_groups(s, plain->engine)) == 0 &&
              json_object_set_new(result, "allocator",
                                  tsr_memory_figures_json(&plain->record.figures, s->step.n_micro,
                                                          s->iterations)) == 0 &&
              tsr_memory_categories(result, s, &recorded->record);
    tsr_status status = ok ? TSR_OK : tsr_no_memory(NULL);
    json_t *timeline = NULL;
    if (ok && args->timeline && !(timeline = tsr_memory_timeline(s, &recorded->record)))
        status = tsr_no_memory(NULL);
    if (status == TSR_OK)
        status = write_both(args, result, timeline);
    json_decref(timeline);
    json_decref(result);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static tsr_status check_outputs(const struct tsr_args *args)
{
    if (!args->out || !args->timeline || strcmp(args->out, args->timeline) != 0)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "memory: found %s for --out and for --timeline; allowed: two different files",
                    args->out);
}

/* Scenarios are JSON. */
static bool is_yaml(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".yaml");
}

/* An experiment is played by the program's own command. */
static tsr_status play_strategy(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    if (args->timeline || args->trace)
        return tsr_fail(TSR_ECONFIG, "memory: found %s beside --strategy; allowed: one of them",
                        args->timeline ? "--timeline" : "--trace");
    return tsr_cmd_memory(usage, args, success);
}

tsr_status tsr_player_memory(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_memory_scenario s;
    struct emitted plain = {0}, recorded = {0};
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(check_outputs(args));
    TSR_TRY(tsr_prepare_file("--out", args->out));
    TSR_TRY(tsr_prepare_file("--timeline", args->timeline));
    if (args->strategy || is_yaml(args->file))
        return play_strategy(usage, args, success);
    if (args->n_sets || args->has_rank)
        return tsr_fail(TSR_ECONFIG,
                        "memory: found %s without --strategy; allowed: beside an experiment and "
                        "its --strategy, a scenario says all itself",
                        args->n_sets ? "--set" : "--rank");
    TSR_TRY(tsr_memory_scenario_load(args->file, args->trace, &s));
    tsr_status status = emit(&s, false, &plain);
    if (status == TSR_OK)
        status = emit(&s, true, &recorded);
    if (status == TSR_OK)
        status = report(&s, args, &plain, &recorded);
    else if (status == TSR_EOOM)
        status = say_what_fits(&s);
    else if (status != TSR_ENOMEM)
        status = tsr_fail(TSR_ECONFIG, "%s: %s", args->file, tsr_error_text());
    close_emitted(&plain);
    close_emitted(&recorded);
    tsr_memory_scenario_fini(&s);
    return status;
}
