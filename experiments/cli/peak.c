/* peak.c: replays the programs of every rank class and keeps the largest peaks. */
#include "peak.h"

#include <stdio.h>
#include <string.h>

#include "simulate.h"

static void copy_name(char *out, size_t size, const char *const *names, uint32_t n, uint32_t i)
{
    snprintf(out, size, "%s", i < n ? names[i] : "");
}

static void take_peak(struct tsr_row *row, const struct tsr_memory_peak *peak,
                      const struct tsr_program *program)
{
    const struct tsr_tables *tables = program->tables;
    row->peak_allocated = peak->allocated;
    memcpy(row->peak_by_category, peak->by_category, sizeof row->peak_by_category);
    copy_name(row->peak_module, sizeof row->peak_module, tables->modules, tables->n_modules,
              peak->origin.module);
    snprintf(row->peak_phase, sizeof row->peak_phase, "%s", tsr_phase_name(peak->origin.phase));
}

static tsr_status replay_class(const struct tsr_emission *emission,
                               const struct tsr_emitted_class *class, struct tsr_row *row)
{
    struct tsr_memory *memory = NULL;
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < emission->n_iterations && status == TSR_OK; i++) {
        struct tsr_memory_peak peak;
        status = tsr_memory_replay(memory, class->programs[i], NULL, NULL, &peak);
        if (status != TSR_OK)
            break;
        if (i == 1) {
            row->first_peak_allocated = tsr_max_u64(row->first_peak_allocated, peak.allocated);
            row->first_peak_reserved = tsr_max_u64(row->first_peak_reserved, peak.reserved);
        }
        if (i + 1 == emission->n_iterations) {
            row->peak_reserved = tsr_max_u64(row->peak_reserved, peak.reserved);
            if (peak.allocated > row->peak_allocated)
                take_peak(row, &peak, class->programs[i]);
        }
    }
    tsr_memory_destroy(memory);
    return status;
}

tsr_status tsr_peak_of(const struct tsr_emission *emission, struct tsr_row *row)
{
    for (uint32_t i = 0; i < emission->n_classes; i++)
        TSR_TRY(replay_class(emission, &emission->classes[i], row));
    /* The first iteration must fit as well: it may hold the larger peak. */
    uint64_t most = tsr_max_u64(row->peak_reserved, row->first_peak_reserved);
    row->fits = row->usable_bytes ? most <= row->usable_bytes : -1;
    return TSR_OK;
}

tsr_status tsr_peak_measure(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_emission emission;
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit(job, &emission);
    if (status == TSR_OK) {
        status = tsr_peak_of(&emission, row);
        tsr_emission_fini(&emission);
    }
    if (status != TSR_OK)
        tsr_row_fail(row, status);
    return status;
}
