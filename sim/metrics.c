/* metrics.c: interval arithmetic over the spans of a rank (metrics.h).
 *
 * Iterations overlap at their borders (the host runs ahead), so an iteration is a window of time,
 * from the end of the one before to its own end, and work of any iteration is clipped to it. Then
 * step = compute busy + exposed communication + waiting for the host, exactly.
 */
#include "metrics.h"

#include <stdlib.h>

struct interval {
    double start, end;
};

/* A set of disjoint ascending intervals, once united. */
struct set {
    struct interval *items;
    size_t n, cap;
};

static tsr_status no_memory(void)
{
    return tsr_fail(TSR_ENOMEM, "out of memory: metrics");
}

static bool add(struct set *set, double start, double end)
{
    struct interval made = {start, end};
    return end <= start || TSR_PUSH(set->items, set->n, set->cap, made);
}

static int by_start(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static void unite(struct set *set)
{
    size_t n = 0;
    if (set->n > 1)
        qsort(set->items, set->n, sizeof *set->items, by_start);
    for (size_t i = 0; i < set->n; i++) {
        struct interval next = set->items[i];
        if (n && next.start <= set->items[n - 1].end) {
            if (next.end > set->items[n - 1].end)
                set->items[n - 1].end = next.end;
        } else {
            set->items[n++] = next;
        }
    }
    set->n = n;
}

static double length(const struct set *set)
{
    double sum = 0.0;
    for (size_t i = 0; i < set->n; i++)
        sum += set->items[i].end - set->items[i].start;
    return sum;
}

/* Seconds of [start, end) that the set covers, beginning the search at *from. */
static double covered(const struct set *set, double start, double end, size_t *from)
{
    double sum = 0.0;
    size_t i = *from;
    while (i < set->n && set->items[i].end <= start)
        i++;
    *from = i;
    for (; i < set->n && set->items[i].start < end; i++) {
        double low = set->items[i].start > start ? set->items[i].start : start;
        double high = set->items[i].end < end ? set->items[i].end : end;
        sum += high - low;
    }
    return sum;
}

/* Seconds of `a` that `b` does not cover. */
static double outside(const struct set *a, const struct set *b)
{
    double sum = 0.0;
    size_t from = 0;
    for (size_t i = 0; i < a->n; i++)
        sum += a->items[i].end - a->items[i].start -
               covered(b, a->items[i].start, a->items[i].end, &from);
    return sum;
}

/* ---- roles ---------------------------------------------------------------------- */

enum role { NOTHING, COMPUTE, GATHER, REDUCE, OTHER_WIRE };

static enum role role_of(const struct tsr_program *program, const struct tsr_instr *instr)
{
    const struct tsr_tables *tables = program->tables;
    switch (instr->kind) {
    case TSR_OP:
    case TSR_COPY:
    case TSR_FILL:
        return instr->stream < tables->n_streams &&
                       tables->streams[instr->stream].role == TSR_ROLE_COMPUTE
                   ? COMPUTE
                   : NOTHING;
    case TSR_ALL_GATHER:
        return GATHER;
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
        return REDUCE;
    case TSR_BROADCAST:
    case TSR_ALL_TO_ALL:
    case TSR_SEND:
    case TSR_RECV:
    case TSR_CUSTOM_COLLECTIVE:
        return OTHER_WIRE;
    default:
        return NOTHING;
    }
}

struct sets {
    struct set compute, gather, reduce, wire; /* wire: all collectives */
    struct set gather_or_compute;
};

static void sets_fini(struct sets *s)
{
    free(s->compute.items);
    free(s->gather.items);
    free(s->reduce.items);
    free(s->wire.items);
    free(s->gather_or_compute.items);
}

/* Work of one iteration inside the window. */
static bool collect(struct sets *s, const struct tsr_program *program,
                    const struct tsr_sim_span *spans, double low, double high)
{
    bool ok = true;
    for (size_t i = 0; i < program->n_instrs && ok; i++) {
        enum role role = role_of(program, &program->instrs[i]);
        double start = spans[i].start > low ? spans[i].start : low;
        double end = spans[i].end < high ? spans[i].end : high;
        if (role == NOTHING || end <= start)
            continue;
        if (role == COMPUTE) {
            ok = add(&s->compute, start, end) && add(&s->gather_or_compute, start, end);
            continue;
        }
        ok = add(&s->wire, start, end);
        if (ok && role == GATHER)
            ok = add(&s->gather, start, end) && add(&s->gather_or_compute, start, end);
        else if (ok && role == REDUCE)
            ok = add(&s->reduce, start, end);
    }
    return ok;
}

/* ---- one iteration ----------------------------------------------------------------------- */

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
    unite(&s.compute);
    unite(&s.gather);
    unite(&s.reduce);
    unite(&s.wire);
    unite(&s.gather_or_compute);
    out->step_s = high - low;
    out->compute_s = length(&s.compute);
    out->comm_s = length(&s.wire);
    out->exposed_s = outside(&s.wire, &s.compute);
    out->exposed_gather_s = outside(&s.gather, &s.compute);
    out->exposed_reduce_s = outside(&s.reduce, &s.gather_or_compute);
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
        out->n_collectives += role_of(program, instr) >= GATHER;
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
        *rank = slowest;
    return TSR_OK;
}

tsr_status tsr_exposed_per_instr(const struct tsr_program *program,
                                 const struct tsr_sim_span *spans, double *out)
{
    struct set compute = {0};
    bool ok = true;
    for (size_t i = 0; i < program->n_instrs && ok; i++)
        if (role_of(program, &program->instrs[i]) == COMPUTE)
            ok = add(&compute, spans[i].start, spans[i].end);
    unite(&compute);
    for (size_t i = 0; i < program->n_instrs; i++) {
        out[i] = 0.0;
        if (role_of(program, &program->instrs[i]) < GATHER)
            continue;
        /* Collectives of several streams are not in order of time: find the place by bisection. */
        size_t low = 0, high = compute.n;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (compute.items[middle].end <= spans[i].start)
                low = middle + 1;
            else
                high = middle;
        }
        if (spans[i].end > spans[i].start)
            out[i] = spans[i].end - spans[i].start -
                     covered(&compute, spans[i].start, spans[i].end, &low);
    }
    free(compute.items);
    return ok ? TSR_OK : no_memory();
}
