/* bound.c: a lower bound of the step's time, from the programs alone: what the compute stream has
 * to do. A search leaves out what cannot win without simulating it.
 *
 * A step lasts from the end of one iteration to the end of the next (metrics.h). If everything of
 * an iteration is done before the last kernel of its compute stream, the rank that ends last ends
 * with that kernel, and all kernels of its next iteration come after it: the step cannot be shorter
 * than their sum. Where an iteration's tail is on another stream, nothing is promised.
 */
#include <stdlib.h>

#include "sim/options.h"
#include "sim/tape/issue.h"
#include "sim/tape/tape.h"

/* Dense number of the compute stream; the number of streams if there is none. */
static uint32_t compute_stream(const struct tsr__tape *tape, const struct tsr_tables *tables)
{
    uint32_t s = 0;
    while (s < tape->n_streams && !tsr__is_compute_stream(tables, tape->stream_id[s]))
        s++;
    return s;
}

static bool takes_time(const struct tsr__task *task)
{
    return task->kind == TSR__KERNEL || task->kind == TSR__HOST_COPY || task->kind == TSR__WIRE;
}

static void cover(const struct tsr__tape *tape, uint32_t *limit, uint32_t dep)
{
    if (dep != TSR_NO_ID && tape->tasks[dep].stream < tape->n_streams) {
        uint32_t *of = &limit[tape->tasks[dep].stream];
        *of = *of < dep + 1 ? dep + 1 : *of;
    }
}

/* Is all work of the tape's first iteration done when the last kernel of `compute` is? limit[s]:
 * the tasks of stream s below it are; [n_streams], zero. */
static bool ends_with_kernel(const struct tsr__tape *tape, uint32_t compute, uint32_t *limit)
{
    uint32_t last = tape->first[1];
    while (last > 0 &&
           !(tape->tasks[last - 1].stream == compute && tape->tasks[last - 1].kind == TSR__KERNEL))
        last--;
    limit[compute] = last;
    for (uint32_t i = tape->first[1]; i-- > 0;) {
        const struct tsr__task *task = &tape->tasks[i];
        if (task->kind == TSR__HOST_SYNC) { /* what the host issues later comes after */
            if (i < last)
                cover(tape, limit, task->dep);
        } else if (task->kind != TSR__HOST_ONLY && i < limit[task->stream]) {
            if (task->kind == TSR__STREAM_WAIT)
                cover(tape, limit, task->dep);
        } else if (takes_time(task)) {
            return false;
        }
    }
    return last > 0;
}

/* Seconds of the kernels of the tape's second iteration on `compute`. */
static double kernels_of(const struct tsr__tape *tape, uint32_t compute,
                         const struct tsr_sim_options *o)
{
    double sum = 0;
    for (uint32_t i = tape->first[1]; i < tape->first[2]; i++) {
        const struct tsr__task *task = &tape->tasks[i];
        if (task->stream == compute && task->kind == TSR__KERNEL)
            sum += task->body_s + task->start_s * o->latency_scale;
    }
    double least = o->slow_factor > 0 && o->slow_factor < 1 ? o->slow_factor : 1;
    for (size_t i = 0; i < o->conditions.faults.n_slow; i++)
        least = o->conditions.faults.slow[i].factor < 1
                    ? least * o->conditions.faults.slow[i].factor
                    : least;
    /* Noise may make kernels shorter by as much as nobody knows. */
    return tsr_is_noisy(&o->conditions) ? 0 : sum * least;
}

static tsr_status bound_of(const struct tsr__tapes *tapes, const struct tsr_sim_job *job,
                           const struct tsr_sim_options *options, double *seconds)
{
    double least = -1;
    for (uint32_t i = 0; i < tapes->n; i++) {
        const struct tsr__tape *tape = &tapes->items[i];
        uint32_t compute = compute_stream(tape, job->programs[i][0]->tables);
        uint32_t *limit = calloc(tape->n_streams + 1u, sizeof *limit);
        if (!limit)
            return tsr_no_memory(NULL);
        bool known = compute < tape->n_streams && ends_with_kernel(tape, compute, limit);
        free(limit);
        double sum = known ? kernels_of(tape, compute, options) : 0;
        least = least < 0 || sum < least ? sum : least;
    }
    *seconds = least > 0 ? least : 0;
    return TSR_OK;
}

tsr_status tsr_sim_step_bound(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                              const struct tsr_sim_options *options, double *seconds)
{
    struct tsr_sim_options timed = tsr__options_timed(options, &cluster->gpu.host);
    struct tsr__tapes tapes;
    *seconds = 0;
    if (job->n_iterations < 2)
        return TSR_OK;
    const struct tsr_program *const **last = calloc(job->n_classes, sizeof *last);
    if (!last)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < job->n_classes; i++)
        last[i] = job->programs[i] + job->n_iterations - 2;
    struct tsr_sim_job pair = *job;
    pair.n_iterations = 2;
    pair.programs = last;
    tsr_status status;
    TSR_GOTO(done, tsr__tapes_build(cluster, &pair, &timed, &tapes));
    status = bound_of(&tapes, &pair, &timed, seconds);
    tsr__tapes_fini(&tapes);
done:
    free(last);
    return status;
}
