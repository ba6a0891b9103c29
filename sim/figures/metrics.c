/* metrics.c: the figures of an iteration by interval arithmetic over the spans of a rank.
 *
 * Iterations overlap at their borders (the host runs ahead), so an iteration is a window of time,
 * from the end of the one before to its own end, and work of any iteration is clipped to it. Then
 * step = compute busy + exposed communication + waiting for the host, exactly.
 */
#include "sim/figures/metrics.h"

#include <stdlib.h>

#include "engine/program/base.h"
#include "sim/figures/overlap_parts.h"
#include "sim/tape/issue.h"

/* ---- intervals ------------------------------------------------------------------------------- */

/* Lists of intervals, sorted and disjoint once united, and searched by bisection. */

bool tsr__set_add(struct tsr__set *set, double start, double end)
{
    struct tsr__interval_of_time made = {start, end};
    return end <= start || TSR_PUSH(set->items, set->n, set->cap, made);
}

static int by_start(const void *a, const void *b)
{
    const struct tsr__interval_of_time *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

void tsr__set_unite(struct tsr__set *set)
{
    size_t n = 0;
    if (set->n > 1)
        qsort(set->items, set->n, sizeof *set->items, by_start);
    for (size_t i = 0; i < set->n; i++) {
        struct tsr__interval_of_time next = set->items[i];
        if (n && next.start <= set->items[n - 1].end) {
            if (next.end > set->items[n - 1].end)
                set->items[n - 1].end = next.end;
        } else {
            set->items[n++] = next;
        }
    }
    set->n = n;
}

void tsr__set_fini(struct tsr__set *set)
{
    free(set->items);
    *set = (struct tsr__set){0};
}

double tsr__set_length(const struct tsr__set *set)
{
    double sum = 0.0;
    for (size_t i = 0; i < set->n; i++)
        sum += set->items[i].end - set->items[i].start;
    return sum;
}

/* Index of the first interval that ends after `time`. */
static size_t first_after(const struct tsr__set *set, double time)
{
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->items[middle].end <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double tsr__set_covered(const struct tsr__set *set, double start, double end)
{
    double sum = 0.0;
    for (size_t i = first_after(set, start); i < set->n && set->items[i].start < end; i++) {
        double low = set->items[i].start > start ? set->items[i].start : start;
        double high = set->items[i].end < end ? set->items[i].end : end;
        sum += high > low ? high - low : 0.0;
    }
    return sum;
}

bool tsr__set_add_common(struct tsr__set *out, const struct tsr__set *set, double start, double end)
{
    bool ok = true;
    for (size_t i = first_after(set, start); ok && i < set->n && set->items[i].start < end; i++) {
        double low = set->items[i].start > start ? set->items[i].start : start;
        double high = set->items[i].end < end ? set->items[i].end : end;
        ok = tsr__set_add(out, low, high);
    }
    return ok;
}

double tsr__set_outside(const struct tsr__set *a, const struct tsr__set *b)
{
    double sum = 0.0;
    for (size_t i = 0; i < a->n; i++)
        sum += a->items[i].end - a->items[i].start -
               tsr__set_covered(b, a->items[i].start, a->items[i].end);
    return sum;
}

/* ---- the figures ----------------------------------------------------------------------------- */

static tsr_status no_memory(void)
{
    return tsr_no_memory("metrics");
}

struct sets {
    struct tsr__set compute, gather, reduce, wire; /* wire: all collectives */
    struct tsr__set gather_or_compute;
};

static void sets_fini(struct sets *s)
{
    tsr__set_fini(&s->compute);
    tsr__set_fini(&s->gather);
    tsr__set_fini(&s->reduce);
    tsr__set_fini(&s->wire);
    tsr__set_fini(&s->gather_or_compute);
}

/* Work of one iteration inside the window. */
static bool collect(struct sets *s, const struct tsr_program *program,
                    const struct tsr_sim_span *spans, double low, double high)
{
    bool ok = true;
    for (size_t i = 0; i < program->n_instrs && ok; i++) {
        enum tsr__work_role role = tsr__role_of(program, &program->instrs[i]);
        double start = spans[i].start > low ? spans[i].start : low;
        double end = spans[i].end < high ? spans[i].end : high;
        if (role == TSR__ROLE_NOTHING || end <= start)
            continue;
        if (role == TSR__ROLE_COMPUTE) {
            ok = tsr__set_add(&s->compute, start, end) &&
                 tsr__set_add(&s->gather_or_compute, start, end);
            continue;
        }
        ok = tsr__set_add(&s->wire, start, end);
        if (ok && role == TSR__ROLE_GATHER)
            ok = tsr__set_add(&s->gather, start, end) &&
                 tsr__set_add(&s->gather_or_compute, start, end);
        else if (ok && role == TSR__ROLE_REDUCE)
            ok = tsr__set_add(&s->reduce, start, end);
    }
    return ok;
}

/* ---- one iteration --------------------------------------------------------------------------- */

static double end_of(const struct tsr_sim_result *result, const struct tsr_program *program,
                     uint32_t rank, uint32_t iteration)
{
    const struct tsr_sim_span *spans = result->ranks[rank].spans[iteration];
    double end = 0.0;
    for (size_t i = 0; i < program->n_instrs; i++)
        end = spans[i].end > end ? spans[i].end : end;
    return end;
}

static tsr_status measure(const struct tsr_sim_job *job, const struct tsr_sim_result *result,
                          uint32_t iteration, uint32_t rank, struct tsr_metrics *out)
{
    const struct tsr_sim_rank *info = &result->ranks[rank];
    const struct tsr_program *const *programs = job->programs[info->layout];
    double low = iteration ? result->iteration_end[iteration - 1] : 0.0;
    double high = result->iteration_end[iteration];
    struct sets s = {0};
    for (uint32_t i = 0; i < result->n_iterations; i++)
        if (!collect(&s, programs[i], info->spans[i], low, high)) {
            sets_fini(&s);
            return no_memory();
        }
    tsr__set_unite(&s.compute);
    tsr__set_unite(&s.gather);
    tsr__set_unite(&s.reduce);
    tsr__set_unite(&s.wire);
    tsr__set_unite(&s.gather_or_compute);
    out->step_s = high - low;
    out->compute_s = tsr__set_length(&s.compute);
    out->comm_s = tsr__set_length(&s.wire);
    out->exposed_s = tsr__set_outside(&s.wire, &s.compute);
    out->exposed_gather_s = tsr__set_outside(&s.gather, &s.compute);
    out->exposed_reduce_s = tsr__set_outside(&s.reduce, &s.gather_or_compute);
    double host = out->step_s - out->compute_s - out->exposed_s;
    out->host_bound_s = host > 0.0 ? host : 0.0;
    out->sent_intra = info->sent_intra[iteration];
    out->sent_inter = info->sent_inter[iteration];
    sets_fini(&s);
    return TSR_OK;
}

static void count(const struct tsr_program *program, struct tsr_metrics *out)
{
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->work && instr->kind != TSR_HOST_OP) {
            out->flops += instr->work->flops;
            out->model_flops += instr->work->model_flops;
        }
        out->n_collectives += tsr__role_of(program, instr) >= TSR__ROLE_GATHER;
    }
}

/* The rank that ends last; among equals the one whose compute stream is busiest. */
tsr_status tsr_metrics_of(const struct tsr_sim_job *job, const struct tsr_sim_result *result,
                          uint32_t iteration, struct tsr_metrics *out, uint32_t *rank)
{
    uint32_t slowest = 0;
    double latest = -1.0;
    *out = (struct tsr_metrics){0};
    if (iteration >= result->n_iterations)
        return tsr_fail(TSR_EINDEX, "iteration %u of %u", iteration, result->n_iterations);
    for (uint32_t i = 0; i < result->n_ranks; i++) {
        const struct tsr_program *program = job->programs[result->ranks[i].layout][iteration];
        struct tsr_metrics mine = {0};
        double end = end_of(result, program, i, iteration);
        if (end < latest)
            continue;
        TSR_TRY(measure(job, result, iteration, i, &mine));
        if (end > latest || mine.compute_s > out->compute_s) {
            *out = mine;
            slowest = i;
        }
        latest = end;
    }
    count(job->programs[result->ranks[slowest].layout][iteration], out);
    if (rank)
        *rank = result->ranks[slowest].rank;
    return TSR_OK;
}

tsr_status tsr_exposed_per_instr(const struct tsr_program *program,
                                 const struct tsr_sim_span *spans, double *out)
{
    struct tsr__set compute = {0};
    bool ok = true;
    for (size_t i = 0; i < program->n_instrs && ok; i++)
        if (tsr__role_of(program, &program->instrs[i]) == TSR__ROLE_COMPUTE)
            ok = tsr__set_add(&compute, spans[i].start, spans[i].end);
    tsr__set_unite(&compute);
    for (size_t i = 0; i < program->n_instrs; i++) {
        bool wire = tsr__role_of(program, &program->instrs[i]) >= TSR__ROLE_GATHER;
        out[i] = wire && spans[i].end > spans[i].start
                     ? spans[i].end - spans[i].start -
                           tsr__set_covered(&compute, spans[i].start, spans[i].end)
                     : 0.0;
    }
    tsr__set_fini(&compute);
    return ok ? TSR_OK : no_memory();
}
