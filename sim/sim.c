/* sim.c: the entries of the simulator: the options that a caller may give, one simulation from the
 * recorded programs to the result (checks, compiles, lists the flows, hands them to simulate.c),
 * and the time of one collective (predict.h) and the bound of a step made of it. */
#include <stdlib.h>

#include "sim/network/fabric.h"
#include "sim/predict.h"
#include "sim/replay/replay.h"
#include "sim/sim.h"
#include "sim/tape/issue.h"
#include "sim/tape/net.h"
#include "sim/tape/tape.h"

/* ---- options --------------------------------------------------------------------------------- */

/* Default host costs and links of a simulation, every figure with its source; what the
 * machine's own times replace of them; and what an option may be. */

struct tsr_sim_options tsr_sim_options_default(void)
{
    return (struct tsr_sim_options){
        /* Eager PyTorch: dispatcher, autograd node and cudaLaunchKernel of one kernel. The launch
         * alone is 2 to 3 us on current hosts; 5 us with the dispatcher (assumption, the middle of
         * what traces of eager training show). */
        .host_launch_s = 5e-6,
        /* Inductor's wrapper calls the launcher without dispatcher or autograd node: the launch
         * alone and a Python call (assumption, below the eager figure). */
        .host_compiled_s = 3e-6,
        /* Guards, AOTAutograd's wrapper and the autograd function around a compiled block
         * (assumption: tens of microseconds a call). */
        .host_region_s = 40e-6,
        /* pytorch#133369: 0.37 to 0.46 ms of CPU per all-gather of a Llama-3-8B block. The copies,
         * allocations and events of that hook are instructions of their own here (0.05 to 0.1 ms);
         * the rest is put on the collective. */
        .host_collective_s = 300e-6,
        /* cudaEventRecord and cudaStreamWaitEvent with their Python calls (assumption). */
        .host_event_s = 1e-6,
        /* A hit in the caching allocator (assumption). */
        .host_alloc_s = 1e-6,
        /* cudaMalloc and cudaFree (assumption: tens to hundreds of microseconds). */
        .host_segment_s = 100e-6,
        .host_scale = 1.0,
        /* CUDA lets about 1,024 launches wait for the device before a launch blocks. */
        .queue_depth = 1024,
        /* The default of CUDA is 8 (CUDA programming guide, environment variables), which is more
         * than a step has streams. */
        .max_connections = 0,
        .latency_scale = 1.0,
        .link_efficiency = 0.0, /* the device file's */
        .infinite_bandwidth = false,
        .algorithm = TSR_ALGO_AUTO,
        .protocol = TSR_PROTO_AUTO,
        .fold = true,
    };
}

/* Host costs that the caller has left at their defaults may have been timed on the machine (0: they
 * were not): those take the default's place. */
static struct tsr_sim_options tsr__options_timed(const struct tsr_sim_options *options,
                                                 const struct tsr_host_times *timed)
{
    const struct tsr_sim_options plain = tsr_sim_options_default();
    struct tsr_sim_options o = *options;
    const struct {
        double *value, plain, timed;
    } rows[] = {{&o.host_launch_s, plain.host_launch_s, timed->launch_s},
                {&o.host_collective_s, plain.host_collective_s, timed->collective_s},
                {&o.host_event_s, plain.host_event_s, timed->event_s},
                {&o.host_alloc_s, plain.host_alloc_s, timed->alloc_s},
                {&o.host_segment_s, plain.host_segment_s, timed->segment_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (*rows[i].value == rows[i].plain && rows[i].timed > 0.0)
            *rows[i].value = rows[i].timed;
    return o;
}

#ifdef TSR_HAVE_SIMGRID
static tsr_status check_factor(const char *name, double value)
{
    if (value >= 0.0 && value < 1e12) /* false for NaN too */
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %g, allowed 0 or more", name, value);
}

/* An overriding rate in bytes per second; 0: no override. */
static tsr_status check_rate(const char *name, double value)
{
    if (value == 0.0 || (value >= 1e3 && value <= 1e18))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: found %g, allowed 0 or 1e3 to 1e18 bytes per second", name,
                    value);
}

/* Errors: TSR_ECONFIG with the name of the option, the value and what is allowed. */
static tsr_status tsr__options_check(const struct tsr_sim_options *o)
{
    const struct {
        const char *name;
        double value;
    } factors[] = {
        {"host_launch_s", o->host_launch_s},   {"host_compiled_s", o->host_compiled_s},
        {"host_region_s", o->host_region_s},   {"host_collective_s", o->host_collective_s},
        {"host_event_s", o->host_event_s},     {"host_alloc_s", o->host_alloc_s},
        {"host_segment_s", o->host_segment_s}, {"host_scale", o->host_scale},
        {"latency_scale", o->latency_scale},   {"slow_factor", o->slow_factor},
    };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        TSR_TRY(check_factor(factors[i].name, factors[i].value));
    TSR_TRY(check_rate("nic_bw", o->nic_bw));
    TSR_TRY(check_rate("intra_bw", o->intra_bw));
    if (o->max_connections > TSR__MAX_CONNECTIONS)
        return tsr_fail(TSR_ECONFIG, "cuda_device_max_connections: found %u, allowed 0 to %d",
                        o->max_connections, TSR__MAX_CONNECTIONS);
    return TSR_OK;
}
#endif

/* ---- one simulation -------------------------------------------------------------------------- */

#ifdef TSR_HAVE_SIMGRID
static tsr_status check_job(const struct tsr_sim_job *job, const struct tsr_sim_options *o)
{
    if (!job->world || !job->n_classes || !job->n_iterations)
        return tsr_fail(TSR_EVALUE, "a job without ranks or iterations");
    if (job->n_iterations >= UINT16_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "a job of %u iterations", job->n_iterations);
    for (uint32_t i = 0; i < job->world; i++)
        if (job->class_of[i] >= job->n_classes)
            return tsr_fail(TSR_EVALUE, "rank %u is of class %u of %u", i, job->class_of[i],
                            job->n_classes);
    TSR_TRY(tsr__options_check(o));
    if (o->slow_factor != 0.0 && o->slow_factor != 1.0 && o->slow_rank >= job->world)
        return tsr_fail(TSR_ECONFIG, "slow_rank: found %u, allowed 0 to %u", o->slow_rank,
                        job->world - 1);
    return tsr_conditions_check(&o->conditions, job->world);
}

static tsr_status run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                      const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    struct tsr__fabric fabric;
    struct tsr__tapes tapes = {0};
    struct tsr__net net = {0};
    tsr_status status;
    TSR_TRY(check_job(job, options));
    TSR_TRY(tsr__fabric_init(&fabric, cluster, options, job->world));
    TSR_GOTO(done, tsr__tapes_build(cluster, job, options, &tapes));
    TSR_GOTO(done, tsr__net_build(&fabric, &tapes, job, options, &net));
    TSR_GOTO(done, tsr__simulate(&net, out));
done:
    tsr__net_fini(&net);
    tsr__tapes_fini(&tapes);
    tsr__fabric_fini(&fabric);
    return status;
}
#else
static tsr_status run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                      const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    (void)cluster, (void)job, (void)options, (void)out;
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no simulator: SimGrid was not found");
}
#endif

tsr_status tsr_sim_run(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                       const struct tsr_sim_options *options, struct tsr_sim_result **out)
{
    struct tsr_sim_options timed = tsr__options_timed(options, &cluster->gpu.host);
    *out = NULL;
    return run(cluster, job, &timed, out);
}

/* ---- predict --------------------------------------------------------------------------------- */

/* Puts a collective of each size into a program of its own, and simulates them as the
 * iterations of one job. */

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
