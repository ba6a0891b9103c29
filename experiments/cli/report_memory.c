/* report_memory.c: memory.csv, phases.csv and peak.csv of an iteration.
 *
 * The order of the changes is the host's issue order, in which PyTorch counts its peak; the time of
 * a change is the device's: when the compute stream starts the next kernel issued after it. So the
 * highest point of the curve is the peak that the table gives, at the moment when it is in use.
 */
#include "report_detail.h"
#include "report_text.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- the curve ---------------------------------------------------------------------------- */

static void keep_sample(void *user, const struct tsr_memory_sample *sample)
{
    struct tsr__curve *curve = user;
    if (!TSR_PUSH(curve->samples, curve->n, curve->cap, *sample))
        curve->failed = true;
}

static void keep_level(void *user, const struct tsr_memory_sample *sample)
{
    struct tsr_memory_sample *level = user;
    *level = *sample;
}

static tsr_status replay(struct tsr__curve *curve, struct tsr_memory *memory,
                         const struct tsr_detail *detail, uint32_t iteration)
{
    struct tsr_memory_sample level = {0};
    for (uint32_t i = 0; i < iteration; i++)
        TSR_TRY(tsr_memory_replay(memory, detail->programs[i], keep_level, &level, &curve->peak));
    level.instr = 0;
    keep_sample(curve, &level);
    TSR_TRY(
        tsr_memory_replay(memory, detail->programs[iteration], keep_sample, curve, &curve->peak));
    if (curve->failed)
        return tsr_fail(TSR_ENOMEM, "no memory left for a memory curve");
    return TSR_OK;
}

tsr_status tsr__curve_init(struct tsr__curve *curve, const struct tsr_detail *detail,
                           uint32_t iteration)
{
    *curve = (struct tsr__curve){0};
    struct tsr_memory *memory = NULL;
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = replay(curve, memory, detail, iteration);
    tsr_memory_destroy(memory);
    if (status != TSR_OK) {
        tsr__curve_fini(curve);
        return status;
    }
    for (size_t i = 0; i < curve->n; i++) {
        for (int c = 0; c < TSR_N_CATEGORIES; c++)
            curve->occurs[c] |= curve->samples[i].by_category[c] != 0;
    }
    return TSR_OK;
}

void tsr__curve_fini(struct tsr__curve *curve)
{
    free(curve->samples);
    *curve = (struct tsr__curve){0};
}

/* ---- files -------------------------------------------------------------------------------- */

static double seconds(const struct tsr__view *view, size_t instr)
{
    return view->clock[instr] - view->start;
}

static void put_sample(FILE *out, const struct tsr__curve *curve,
                       const struct tsr_memory_sample *sample, double time)
{
    fprintf(out, "%.9f", time);
    for (int i = 0; i < TSR_N_CATEGORIES; i++) {
        int c = tsr__stack_order[i];
        if (curve->occurs[c])
            fprintf(out, ",%" PRIu64, sample->by_category[c]);
    }
    fprintf(out, ",%" PRIu64 ",%" PRIu64 "\n", sample->total, sample->reserved);
}

tsr_status tsr__write_memory(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    const struct tsr__curve *curve = page->curve;
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "time_s: seconds of the steady step on the device's clock; then bytes by "
                        "owner; one row per change, in the host's issue order");
    fputs("time_s", out);
    for (int i = 0; i < TSR_N_CATEGORIES; i++) {
        int c = tsr__stack_order[i];
        char key[64];
        tsr__category_key(c, key, sizeof key);
        if (curve->occurs[c])
            fprintf(out, ",%s_bytes", key);
    }
    fputs(",total_bytes,reserved_bytes\n", out);
    for (size_t i = 0; i < curve->n; i++)
        put_sample(out, curve, &curve->samples[i],
                   i ? seconds(view, curve->samples[i].instr) : 0.0);
    /* The last level holds to the end of the step. */
    if (curve->n)
        put_sample(out, curve, &curve->samples[curve->n - 1], view->end - view->start);
    return TSR_OK;
}

tsr_status tsr__write_phases(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    struct tsr__phase *phases;
    size_t n;
    TSR_TRY(tsr__phases(view, &phases, &n));
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "phase; start and end in seconds of the step on the device's clock");
    fputs("phase,start_s,end_s\n", out);
    bool numbered = false;
    for (size_t i = 0; i < n; i++)
        numbered |= phases[i].micro > 0;
    for (size_t i = 0; i < n; i++) {
        char label[48];
        tsr__phase_label(&phases[i], numbered, label, sizeof label);
        fprintf(out, "%s,%.9f,%.9f\n", label, phases[i].start - view->start,
                phases[i].end - view->start);
    }
    free(phases);
    return TSR_OK;
}

tsr_status tsr__write_peak(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    const struct tsr_memory_peak *peak = &page->curve->peak;
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "the peak of memory.csv: time_s, bytes, module and phase of the "
                        "allocation that made it, the card's usable bytes (empty: unknown)");
    fputs("time_s,peak_bytes,module,phase,limit_bytes,reserved_bytes,step_s\n", out);
    fprintf(out, "%.9f,%" PRIu64 ",", seconds(view, peak->instr), peak->allocated);
    tsr__put_csv(out, tsr__module_of(view->tables, &peak->origin));
    fprintf(out, ",%s,", tsr_phase_name(peak->origin.phase));
    if (view->detail->row->usable_bytes)
        fprintf(out, "%" PRIu64, view->detail->row->usable_bytes);
    fprintf(out, ",%" PRIu64 ",%.9f\n", peak->reserved, view->end - view->start);
    return TSR_OK;
}
