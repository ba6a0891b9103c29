/* oom_gpu.c: see oom_gpu.h. */
#include "experiments/cli/run/oom_gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/simulate.h"

/* The same job on a card of which nothing but the allocator takes a part. */
static void put_on_card(const struct tsr_job *job, uint64_t bytes, struct tsr_settings *settings,
                        struct tsr_job *out)
{
    *settings = *job->settings;
    settings->alloc_limit = TSR_LIMIT_CARD;
    *out = *job;
    out->settings = settings;
    out->is_trial = true;
    out->cluster.gpu.visible_bytes = bytes;
    out->cluster.gpu.context_bytes = out->cluster.gpu.library_bytes = 0;
}

/* The request that fails, and what would fit; nothing where giving back what is cached is enough.
 */
static tsr_status find_request(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_emission emission;
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit_or_keep(job, &emission);
    if (status != TSR_OK && status != TSR_EOOM)
        return status;
    bool is_full = status == TSR_EOOM;
    status = is_full ? tsr_oom_report(job, &emission, NULL, row) : TSR_OK;
    tsr_emission_fini(&emission);
    if (status == TSR_OK && is_full)
        status = tsr_oom_remedy(job, row);
    return status;
}

tsr_status tsr_oom_on_gpu(const struct tsr_job *job, const char *card, uint64_t bytes,
                          uint64_t predicted)
{
    struct tsr_settings settings;
    struct tsr_job there;
    struct tsr_row row;
    put_on_card(job, bytes, &settings, &there);
    TSR_TRY(find_request(&there, &row));
    if (!row.failure[0])
        return tsr_fail(TSR_EOOM,
                        "out of memory: %s has %.2f GiB free for a rank, predicted are %.2f GiB "
                        "reserved; allocator.limit: card would give back what is cached",
                        card, (double)bytes / TSR__GIB, (double)predicted / TSR__GIB);
    return tsr_fail(TSR_EOOM, "%s; %s has %.2f GiB free for a rank, predicted are %.2f GiB; %s",
                    row.failure, card, (double)bytes / TSR__GIB, (double)predicted / TSR__GIB,
                    row.remedy);
}

tsr_status tsr_oom_while_running(uint32_t rank, const char *text, uint64_t predicted)
{
    char who[32] = "";
    if (strncmp(text, "rank ", 5) != 0)
        snprintf(who, sizeof who, "rank %" PRIu32 ": ", rank);
    return tsr_fail(TSR_EOOM,
                    "%s%s; predicted were %.2f GiB of segments for a rank (tessera explain says "
                    "for what, tessera plan what fits)",
                    who, text, (double)predicted / TSR__GIB);
}
