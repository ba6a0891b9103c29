/* peak.c: replays the programs of every rank class and keeps the largest peaks, section by section;
 * and sets them against the card, together with what lies outside the allocator.
 */
#include "experiments/study/simulate/peak.h"

#include <stdio.h>
#include <string.h>

#include "engine/graph/host_memory.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/simulate/simulate.h"
#include "sim/network/nccl_memory.h"

/* What a CUDA context with the device code of PyTorch's libraries takes at most: vLLM measured
 * 1.79 GiB outside PyTorch's allocator on one 79.2 GiB card (vllm-project/vllm#10511). */
static const uint64_t CONTEXT_AND_LIBRARIES_AT_MOST = UINT64_C(2) << 30;

static void put_owner(char *out, size_t size, const struct tsr_tables *tables,
                      const struct tsr_origin *origin)
{
    char buffer[32];
    snprintf(out, size, "%s", tsr_owner_of(tables, origin, buffer));
}

static void take_peak(struct tsr_row *row, const struct tsr_memory_peak *peak,
                      const struct tsr_program *program)
{
    row->peak_allocated = peak->allocated;
    memcpy(row->peak_by_category, peak->by_category, sizeof row->peak_by_category);
    put_owner(row->peak_module, sizeof row->peak_module, program->tables, &peak->origin);
    snprintf(row->peak_phase, sizeof row->peak_phase, "%s", tsr_phase_name(peak->origin.phase));
}

static void take_section(struct tsr_section_peak *s, const struct tsr_memory_peak *peak,
                         const struct tsr_host_peak *host, const struct tsr_program *program)
{
    if (!s->there || peak->allocated > s->allocated) {
        s->allocated = peak->allocated;
        put_owner(s->module, sizeof s->module, program->tables, &peak->origin);
        snprintf(s->phase, sizeof s->phase, "%s", tsr_phase_name(peak->origin.phase));
    }
    s->there = true;
    s->reserved = tsr_max_u64(s->reserved, peak->reserved);
    s->host = tsr_max_u64(s->host, host->most.host);
    s->pinned = tsr_max_u64(s->pinned, host->most.held);
}

/* One program of a class, after the ones before it. */
static void take_program(const struct tsr_emission *emission, uint32_t i,
                         const struct tsr_memory_peak *peak, const struct tsr_host_peak *host,
                         const struct tsr_program *program, struct tsr_row *row)
{
    enum tsr_section section = tsr_section_of(emission, i);
    row->most_reserved = tsr_max_u64(row->most_reserved, peak->reserved);
    row->most_requested = tsr_max_u64(row->most_requested, peak->requested);
    row->host_bytes = tsr_max_u64(row->host_bytes, host->most.host);
    row->pinned_bytes = tsr_max_u64(row->pinned_bytes, host->most.held);
    if (section < TSR_N_SECTIONS)
        take_section(&row->sections[section], peak, host, program);
    if (i == emission->first) {
        row->first_peak_allocated = tsr_max_u64(row->first_peak_allocated, peak->allocated);
        row->first_peak_reserved = tsr_max_u64(row->first_peak_reserved, peak->reserved);
    }
    if (i != emission->steady)
        return;
    row->peak_reserved = tsr_max_u64(row->peak_reserved, peak->reserved);
    if (peak->allocated > row->peak_allocated)
        take_peak(row, peak, program);
}

static tsr_status replay_class(const struct tsr_emission *emission,
                               const struct tsr_emitted_class *class, struct tsr_row *row)
{
    struct tsr_memory *memory = NULL;
    struct tsr_host_level level = {0};
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < emission->n_iterations && status == TSR_OK; i++) {
        struct tsr_memory_peak peak;
        struct tsr_host_peak host;
        status = tsr_memory_replay(memory, class->programs[i], NULL, NULL, &peak);
        if (status == TSR_OK)
            status = tsr_host_replay(&level, class->programs[i], &host);
        if (status == TSR_OK)
            take_program(emission, i, &peak, &host, class->programs[i], row);
    }
    tsr_memory_destroy(memory);
    return status;
}

/* ---- against the card -------------------------------------------------------------------- */

static tsr_status take_outside(const struct tsr_job *job, const struct tsr_emission *emission,
                               struct tsr_row *row)
{
    const struct tsr_gpu *gpu = &job->cluster.gpu;
    row->context_bytes = gpu->context_bytes ? (int64_t)gpu->context_bytes : -1;
    row->library_bytes = gpu->library_bytes ? (int64_t)gpu->library_bytes : -1;
    row->nccl_bytes = -1;
    if (!*job->cluster.name)
        return TSR_OK;
    row->nccl_bytes = 0;
    for (uint32_t i = 0; i < emission->n_classes; i++) {
        struct tsr_nccl_memory nccl;
        TSR_TRY(tsr_nccl_memory_of(&job->cluster,
                                   (const struct tsr_program *const *)emission->classes[i].programs,
                                   emission->n_iterations, &nccl));
        if (!nccl.known)
            row->nccl_bytes = -1;
        if (row->nccl_bytes >= 0 && (int64_t)nccl.bytes > row->nccl_bytes)
            row->nccl_bytes = (int64_t)nccl.bytes;
    }
    return TSR_OK;
}

static uint64_t known(int64_t bytes)
{
    return bytes > 0 ? (uint64_t)bytes : 0;
}

uint64_t tsr_card_budget(const struct tsr_gpu *gpu)
{
    uint64_t inner = gpu->context_bytes + gpu->library_bytes;
    bool is_known = gpu->context_bytes && gpu->library_bytes;
    uint64_t unknown = is_known || inner >= CONTEXT_AND_LIBRARIES_AT_MOST
                           ? 0
                           : CONTEXT_AND_LIBRARIES_AT_MOST - inner;
    return gpu->visible_bytes > unknown ? gpu->visible_bytes - unknown : 0;
}

/* No: the known parts alone are more than the card has. Yes: also with the unknown ones at their
 * largest. What NCCL takes for SEND and RECV has no such bound. */
static int verdict(const struct tsr_gpu *gpu, const struct tsr_row *row)
{
    if (!row->usable_bytes)
        return -1;
    if (row->needed > row->usable_bytes)
        return 0;
    return row->nccl_bytes >= 0 && row->needed <= tsr_card_budget(gpu) ? 1 : -1;
}

tsr_status tsr_peak_of(const struct tsr_job *job, const struct tsr_emission *emission,
                       struct tsr_row *row)
{
    for (uint32_t i = 0; i < emission->n_classes; i++)
        TSR_TRY(replay_class(emission, &emission->classes[i], row));
    TSR_TRY(take_outside(job, emission, row));
    row->needed = row->most_reserved + known(row->nccl_bytes) + known(row->context_bytes) +
                  known(row->library_bytes);
    row->show_sections = job->settings->phases;
    row->fits = verdict(&job->cluster.gpu, row);
    return TSR_OK;
}

tsr_status tsr_peak_measure(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_emission emission;
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit(job, &emission);
    if (status == TSR_OK) {
        status = tsr_peak_of(job, &emission, row);
        tsr_emission_fini(&emission);
    }
    if (status != TSR_OK)
        tsr_row_fail(row, status);
    return status;
}
