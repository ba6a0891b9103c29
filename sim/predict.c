/* predict.c: what is known of a job without simulating it. The time of one collective: each size is
 * a program of its own, and they are simulated as the iterations of one job. And a lower bound of a
 * step's time, from the programs alone. */
#include "sim/predict.h"

#include <stdlib.h>

#include "sim/options.h"
#include "sim/replay/replay.h"
#include "sim/tape/issue.h"
#include "sim/tape/net.h"
#include "sim/tape/tape.h"

double tsr_bus_factor(uint8_t kind, uint32_t ranks)
{
    double others = (ranks - 1.0) / ranks;
    if (kind == TSR_ALL_REDUCE)
        return 2.0 * others;
    return kind == TSR_BROADCAST ? 1.0 : others;
}

/* World and stride of the group. */
static tsr_status place(const struct tsr_cluster *c, const struct tsr_collective_query *what,
                        uint32_t *world, uint32_t *stride)
{
    uint32_t local = what->nodes ? what->ranks / what->nodes : 0;
    bool whole = local == c->gpus_per_node, single = what->nodes == 1;
    *stride = local == 1 && what->nodes > 1 ? c->gpus_per_node : 1;
    *world = *stride * what->ranks;
    if (what->ranks >= 2 && what->nodes <= c->nodes && local * what->nodes == what->ranks &&
        local <= c->gpus_per_node && (whole || single || local == 1))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: found a collective of %u GPUs on %u nodes, allowed 2 to %u GPUs of one "
                    "node, or one or all %u of each of up to %u nodes",
                    c->path, what->ranks, what->nodes, c->gpus_per_node, c->gpus_per_node,
                    c->nodes);
}

/* One program per size; a call ends when the next one begins. */
struct batch {
    struct tsr_tables tables;
    struct tsr_comm comm;
    struct tsr_program *programs;    /* [n] */
    const struct tsr_program **list; /* [n] */
    const struct tsr_program *const *class;
    uint32_t *class_of;
};

static tsr_status build(struct batch *b, const struct tsr_collective_query *what, uint32_t stride,
                        const uint64_t *bytes, uint32_t n)
{
    static const struct tsr_stream_info stream = {"default", TSR_ROLE_COMPUTE, 0};
    b->comm = (struct tsr_comm){.name = "group", .size = what->ranks, .stride = stride};
    b->comm.separate = true;
    b->tables.n_streams = b->tables.n_comms = 1;
    b->tables.streams = &stream;
    b->tables.comms = &b->comm;
    b->class_of = calloc(b->tables.world, sizeof *b->class_of);
    b->programs = calloc(n, sizeof *b->programs);
    b->list = calloc(n, sizeof *b->list);
    if (!b->class_of || !b->programs || !b->list)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_instr instr = {.kind = what->kind, .dtype = TSR_BF16, .bytes = bytes[i]};
        tsr_program_init(&b->programs[i], &b->tables);
        b->list[i] = &b->programs[i];
        TSR_TRY(tsr_program_append(&b->programs[i], &instr));
    }
    b->class = b->list;
    return TSR_OK;
}

static void release(struct batch *b, uint32_t n)
{
    for (uint32_t i = 0; i < n && b->programs; i++)
        tsr_program_fini(&b->programs[i]);
    free(b->programs);
    free(b->list);
    free(b->class_of);
}

tsr_status tsr_predict_collective(const struct tsr_cluster *cluster,
                                  const struct tsr_sim_options *options,
                                  const struct tsr_collective_query *what, const uint64_t *bytes,
                                  uint32_t n, double *seconds)
{
    struct batch b = {0};
    struct tsr_sim_options o = *options;
    struct tsr_sim_result *result = NULL;
    uint32_t stride;
    o.host_scale = 0.0;
    TSR_TRY(place(cluster, what, &b.tables.world, &stride));
    tsr_status status;
    TSR_GOTO(done, build(&b, what, stride, bytes, n));
    struct tsr_sim_job job = {.world = b.tables.world,
                              .n_classes = 1,
                              .n_iterations = n,
                              .class_of = b.class_of,
                              .programs = &b.class};
    TSR_GOTO(done, tsr_sim_run(cluster, &job, &o, &result));
    for (uint32_t i = 0; i < n; i++)
        seconds[i] = result->iteration_end[i] - (i ? result->iteration_end[i - 1] : 0.0);
done:
    tsr_sim_result_destroy(result);
    release(&b, n);
    return status;
}

/* ---- bound ----------------------------------------------------------------------------------- */

/* A lower bound of the step's time, from the programs alone: what the compute stream has
 * to do. A search leaves out what cannot win without simulating it.
 *
 * A step lasts from the end of one iteration to the end of the next (metrics.h). If everything of
 * an iteration is done before the last kernel of its compute stream, the rank that ends last ends
 * with that kernel, and all kernels of its next iteration come after it: the step cannot be shorter
 * than their sum. Where an iteration's tail is on another stream, nothing is promised. */

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
