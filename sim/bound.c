/* bound.c: how long a step takes at least, from the programs alone. A search leaves out what cannot
 * win without simulating it. README.md says why each bound is one.
 *
 * A step lasts from the end of one iteration to the end of the next (metrics.h). An iteration ends
 * when the last rank's host and streams are done. Where all that takes time is over when the last
 * kernel of the compute stream is (or when the host, which waits for it, is through), the rank that
 * ends last ends with that kernel or with its host. Whatever comes after the one and after the
 * other is a part of the next step: its longest chain is a bound. Where an iteration's tail is on
 * another stream, nothing is promised.
 */
#include <math.h>
#include <stdlib.h>

#include "sim/fold/fold.h"
#include "sim/options.h"
#include "sim/sim.h"
#include "sim/tape/issue.h"

/* ---- how an iteration ends --------------------------------------------------------------- */

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

/* Is all work of the tape's first iteration done when its last kernel of `compute` and its host
 * are? Then *last is that kernel. limit[s]: the tasks of stream s below it are; [n_streams], zero.
 */
static bool ends_with_kernel(const struct tsr__tape *tape, uint32_t compute, uint32_t *limit,
                             uint32_t *last)
{
    uint32_t end = tape->first[1];
    while (end > 0 &&
           !(tape->tasks[end - 1].stream == compute && tape->tasks[end - 1].kind == TSR__KERNEL))
        end--;
    limit[compute] = end;
    *last = end - 1;
    for (uint32_t i = tape->first[1]; i-- > 0;) {
        const struct tsr__task *task = &tape->tasks[i];
        bool waits = task->kind == TSR__STREAM_WAIT && i < limit[task->stream];
        if (task->kind == TSR__HOST_SYNC || waits)
            cover(tape, limit, task->dep);
        else if (takes_time(task) && i >= limit[task->stream])
            return false;
    }
    return end > 0;
}

/* ---- what a task takes at least -------------------------------------------------------------- */

/* Of which tasks the time counts. */
enum share { ALL, MODEL, MODEL_AND_OPTIMIZER, N_SHARES };

struct view {
    const struct tsr_sim_job *job;
    const struct tsr__tapes *tapes;
    const struct tsr__quotient *q;
    const struct tsr_sim_options *options;
    double fastest; /* factor on the kernels of the fastest GPU */
    uint32_t rank;  /* simulated */
    const struct tsr__tape *tape;
    uint32_t compute, last;
};

static const struct tsr_instr *instr_of(const struct view *v, uint32_t at)
{
    uint16_t k = v->tape->tasks[at].iteration;
    const struct tsr_program *const *programs = v->job->programs[v->q->ranks[v->rank].layout];
    return &programs[k]->instrs[at - v->tape->first[k]];
}

/* Issued by a module's own code, not by a hook of what shards it. */
static bool is_of_model(const struct tsr_instr *instr)
{
    uint8_t phase = instr->origin.phase;
    bool step =
        phase == TSR_PHASE_FORWARD || phase == TSR_PHASE_LOSS || phase == TSR_PHASE_BACKWARD;
    if (!step || instr->origin.hook != TSR_HOOK_NONE)
        return false;
    if (instr->kind != TSR_OP)
        return instr->kind >= TSR_ALL_GATHER && instr->kind <= TSR_ALL_TO_ALL;
    uint8_t op = instr->work->op;
    return op != TSR_OP_CHUNK_CAT && op != TSR_OP_SPLIT_COPY && op != TSR_OP_USER;
}

static bool is_of_optimizer(const struct tsr_instr *instr)
{
    return instr->origin.phase == TSR_PHASE_OPTIMIZER &&
           (instr->kind == TSR_OP || instr->kind == TSR_HOST_OP);
}

/* Alone on the fabric: latency, then the most loaded link. What is shared with others, or comes
 * later, takes longer. Flows are cut to 1/1024 byte: few bytes count as none. */
static double wire_seconds(const struct view *v, const struct tsr__task *task, bool *on_gpu)
{
    enum { FEW = 65536 };
    uint8_t kind = task->record.kind;
    uint32_t geometry = v->tapes->comms.items[task->comm].geometry;
    enum tsr__pattern pattern = tsr__coll_pattern(kind);
    double flow = 0;
    if (geometry == TSR_NO_ID || pattern == TSR__P2P)
        return 0;
    const struct tsr__qgroup *group = &v->q->groups[tsr__quotient_group(v->q, v->rank, geometry)];
    struct tsr__coll_choice choice = tsr__coll_choose(&v->q->model, &group->coll, kind,
                                                      task->record.bytes, task->tuned_bytes, false);
    *on_gpu = choice.takes_sms;
    for (int medium = 0; medium < 2 && !v->options->infinite_bandwidth; medium++)
        if (choice.bytes[medium] >= FEW)
            flow = fmax(flow, choice.bytes[medium] * group->coll.s_per_byte[pattern][medium]);
    return choice.latency_s + flow * (1 - 1e-6);
}

static double copy_seconds(const struct view *v, const struct tsr__task *task)
{
    const struct tsr__quotient *q = v->q;
    const struct tsr__qgroup *group = &q->groups[tsr__quotient_group(q, v->rank, q->host_geometry)];
    double seconds = task->start_s * v->options->latency_scale * v->fastest;
    for (uint32_t i = 0; i < group->n_flows && !v->options->infinite_bandwidth; i++) {
        const struct tsr__qflow *flow = &q->flows[group->first_flow + i];
        if (flow->to_device == task->to_device)
            return seconds + (double)task->record.bytes * flow->s_per_byte * (1 - 1e-6);
    }
    return seconds;
}

static double seconds_of(const struct view *v, uint32_t at, bool *on_gpu)
{
    const struct tsr__task *task = &v->tape->tasks[at];
    *on_gpu = false;
    if (task->kind == TSR__WIRE)
        return wire_seconds(v, task, on_gpu);
    if (task->kind == TSR__HOST_COPY)
        return copy_seconds(v, task);
    if (task->kind == TSR__KERNEL)
        return (task->body_s + task->start_s * v->options->latency_scale) * v->fastest;
    return 0;
}

/* ---- the longest chain ----------------------------------------------------------------------- */

/* Of a task of the second iteration, found once for all walks. */
struct cost {
    double seconds;
    bool on_gpu, model, optimizer;
};

static bool counts(const struct cost *cost, enum share share)
{
    return share == ALL || cost->model || (share == MODEL_AND_OPTIMIZER && cost->optimizer);
}

/* Times since the end of the first iteration; -INFINITY: no promise that it comes after that. */
struct walk {
    struct cost *costs;        /* [n_tasks] */
    double *end;               /* [n_tasks] */
    double *tail, *group_tail; /* [n_streams] */
    double *queue_tail;        /* [n_queues] */
    double *beside, *busy;     /* [n_streams] seconds of collectives: on the GPU, all */
    uint32_t *queued;          /* [n_queues] tasks of the wire queue so far */
    double host, latest, kernels, of_model, of_optimizer, of_hooks;
};

static void walk_fini(struct walk *w)
{
    free(w->costs);
    free(w->end);
    free(w->tail);
    free(w->queue_tail);
    free(w->queued);
}

static void find_costs(struct walk *w, const struct view *v)
{
    for (uint32_t i = v->tape->first[1]; i < v->tape->first[2]; i++) {
        struct cost *cost = &w->costs[i];
        const struct tsr_instr *instr = instr_of(v, i);
        cost->model = is_of_model(instr);
        cost->optimizer = is_of_optimizer(instr);
        cost->seconds = seconds_of(v, i, &cost->on_gpu);
    }
}

static tsr_status walk_init(struct walk *w, const struct view *v, uint32_t n_queues)
{
    const struct tsr__tape *tape = v->tape;
    *w = (struct walk){0};
    w->costs = calloc(tape->n_tasks + 1ul, sizeof *w->costs);
    w->end = malloc((tape->n_tasks + 1ul) * sizeof *w->end);
    w->tail = malloc((tape->n_streams + 1ul) * 4 * sizeof *w->tail);
    w->queue_tail = malloc((n_queues + 1ul) * sizeof *w->queue_tail);
    w->queued = calloc(n_queues + 1ul, sizeof *w->queued);
    if (!w->costs || !w->end || !w->tail || !w->queue_tail || !w->queued) {
        walk_fini(w);
        return tsr_no_memory("bound");
    }
    w->group_tail = w->tail + tape->n_streams + 1;
    w->beside = w->group_tail + tape->n_streams + 1;
    w->busy = w->beside + tape->n_streams + 1;
    find_costs(w, v);
    return TSR_OK;
}

static double ready_of(struct walk *w, const struct tsr__task *task)
{
    double tail = w->tail[task->stream], group = w->group_tail[task->stream];
    double ready = fmax(w->host, task->in_group ? tail : fmax(tail, group));
    if (task->kind == TSR__STREAM_WAIT && task->dep != TSR_NO_ID)
        ready = fmax(ready, w->end[task->dep]);
    if (task->kind == TSR__WIRE && task->need == w->queued[task->queue])
        ready = fmax(ready, w->queue_tail[task->queue]);
    return ready;
}

static void add_kernel(struct walk *w, const struct tsr_instr *instr, double seconds)
{
    w->kernels += seconds;
    if (is_of_model(instr))
        w->of_model += seconds;
    else if (instr->origin.phase == TSR_PHASE_OPTIMIZER)
        w->of_optimizer += seconds;
    else if (instr->origin.hook != TSR_HOOK_NONE && instr->origin.hook != TSR_HOOK_USER)
        w->of_hooks += seconds;
}

static void put_on_stream(struct walk *w, const struct view *v, uint32_t at, enum share share,
                          bool in_second)
{
    const struct tsr__task *task = &v->tape->tasks[at];
    const struct cost *cost = &w->costs[at];
    double ready = ready_of(w, task);
    double seconds = counts(cost, share) ? cost->seconds : 0;
    double end = ready + seconds;
    w->end[at] = end;
    if (task->in_group)
        w->group_tail[task->stream] = fmax(w->group_tail[task->stream], end);
    else
        w->tail[task->stream] = end;
    if (task->kind == TSR__WIRE) {
        w->queued[task->queue]++;
        w->queue_tail[task->queue] = fmax(w->queue_tail[task->queue], end);
        if (ready >= 0) {
            w->busy[task->stream] += seconds;
            w->beside[task->stream] += cost->on_gpu ? seconds : 0;
        }
    }
    if (in_second && task->kind == TSR__KERNEL && task->stream == v->compute)
        add_kernel(w, instr_of(v, at), seconds);
    if (in_second && takes_time(task))
        w->latest = fmax(w->latest, end);
}

static void on_host(struct walk *w, const struct view *v, uint32_t at, enum share share)
{
    const struct tsr__task *task = &v->tape->tasks[at];
    bool op = task->record.kind == TSR_HOST_OP;
    if (share == ALL || (op && counts(&w->costs[at], share)))
        w->host += task->host_s * v->options->host_scale;
    if (task->kind == TSR__HOST_SYNC && task->dep != TSR_NO_ID)
        w->host = fmax(w->host, w->end[task->dep]);
    w->end[at] = w->host;
    w->latest = fmax(w->latest, w->host);
}

/* The chain from the last kernel, or (by_host) from the end of the host's first iteration. */
static void follow(struct walk *w, const struct view *v, enum share share, bool by_host,
                   uint32_t n_queues)
{
    const struct tsr__tape *tape = v->tape;
    w->host = w->latest = -INFINITY;
    w->kernels = w->of_model = w->of_optimizer = w->of_hooks = 0;
    for (uint32_t s = 0; s < tape->n_streams; s++) {
        w->tail[s] = w->group_tail[s] = -INFINITY;
        w->beside[s] = w->busy[s] = 0;
    }
    for (uint32_t i = 0; i < n_queues; i++) {
        w->queue_tail[i] = -INFINITY;
        w->queued[i] = 0;
    }
    for (uint32_t i = 0; i < tape->first[2]; i++) {
        const struct tsr__task *task = &tape->tasks[i];
        bool in_second = i >= tape->first[1];
        if (by_host && i == tape->first[1])
            w->host = 0;
        if (task->kind == TSR__HOST_ONLY || task->kind == TSR__HOST_SYNC) {
            on_host(w, v, i, share);
            continue;
        }
        if (share == ALL)
            w->host += task->host_s * v->options->host_scale;
        put_on_stream(w, v, i, share, in_second);
        if (!by_host && i == v->last)
            w->end[i] = w->tail[v->compute] = 0;
    }
}

/* Beside a collective's kernel the others lose a share of their speed: in a step of S seconds, P of
 * them beside one, at most S - share * P seconds of kernels are done. */
static double slowing(const struct walk *w, const struct view *v)
{
    double beside = 0;
    for (uint32_t s = 0; s < v->tape->n_streams; s++)
        beside = fmax(beside, w->beside[s]);
    return fmin(v->q->slowdown, 1.0) * beside;
}

/* Keeps the least of each. */
static void take_least(struct tsr_step_bound *least, const struct tsr_step_bound *mine)
{
    least->step_s = fmin(least->step_s, mine->step_s);
    least->model_s = fmin(least->model_s, mine->model_s);
    least->optimizer_s = fmin(least->optimizer_s, mine->optimizer_s);
    least->model_kernels_s = fmin(least->model_kernels_s, mine->model_kernels_s);
    least->optimizer_kernels_s = fmin(least->optimizer_kernels_s, mine->optimizer_kernels_s);
    least->hooks_s = fmin(least->hooks_s, mine->hooks_s);
    least->wires_s = fmin(least->wires_s, mine->wires_s);
}

static void take_parts(const struct walk *w, const struct view *v, struct tsr_step_bound *out)
{
    double slow = slowing(w, v);
    for (uint32_t s = 0; s < v->tape->n_streams; s++)
        out->wires_s = fmax(out->wires_s, w->busy[s]);
    out->model_kernels_s = w->of_model;
    out->optimizer_kernels_s = w->of_optimizer;
    out->hooks_s = w->of_hooks + slow;
    out->step_s = fmax(out->wires_s, w->kernels + slow);
}

static tsr_status bound_of_rank(const struct view *v, uint32_t n_queues, struct tsr_step_bound *out)
{
    struct walk w;
    double chain[N_SHARES];
    *out = (struct tsr_step_bound){.known = true};
    TSR_TRY(walk_init(&w, v, n_queues));
    for (int share = 0; share < N_SHARES; share++) {
        follow(&w, v, (enum share)share, true, n_queues);
        double by_host = w.latest;
        follow(&w, v, (enum share)share, false, n_queues);
        chain[share] = fmax(0, fmin(by_host, w.latest));
        if (share == ALL)
            take_parts(&w, v, out);
    }
    out->step_s = fmax(out->step_s, chain[ALL]);
    out->model_s = chain[MODEL];
    out->optimizer_s = chain[MODEL_AND_OPTIMIZER] - chain[MODEL];
    walk_fini(&w);
    return TSR_OK;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static double fastest(const struct tsr_sim_options *o)
{
    double least = o->slow_factor > 0 && o->slow_factor < 1 ? o->slow_factor : 1;
    for (size_t i = 0; i < o->conditions.faults.n_slow; i++)
        least *= fmin(1, o->conditions.faults.slow[i].factor);
    return least;
}

/* Any rank may be the one that ends last: the least of them holds. */
static tsr_status bound_of(const struct tsr_sim_job *job, const struct tsr__tapes *tapes,
                           const struct tsr__quotient *q, const struct tsr_sim_options *options,
                           struct tsr_step_bound *out)
{
    struct tsr_step_bound least = {true,     INFINITY, INFINITY, INFINITY,
                                   INFINITY, INFINITY, INFINITY, INFINITY};
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        struct view v = {job, tapes, q, options, fastest(options), r, NULL, 0, 0};
        struct tsr_step_bound mine;
        v.tape = &tapes->items[q->ranks[r].layout];
        v.compute = compute_stream(v.tape, job->programs[q->ranks[r].layout][0]->tables);
        uint32_t *limit = calloc(v.tape->n_streams + 1u, sizeof *limit);
        if (!limit)
            return tsr_no_memory("bound");
        bool known =
            v.compute < v.tape->n_streams && ends_with_kernel(v.tape, v.compute, limit, &v.last);
        free(limit);
        if (!known)
            return TSR_OK;
        TSR_TRY(bound_of_rank(&v, v.tape->n_queues, &mine));
        take_least(&least, &mine);
    }
    *out = least;
    return TSR_OK;
}

static tsr_status fold(const struct tsr__net *net, struct tsr__quotient *q)
{
    struct tsr__partition partition;
    TSR_TRY(tsr__fold_refine(net, false, &partition));
    tsr_status status = tsr__quotient_build(net, &partition, q);
    tsr__partition_fini(&partition);
    return status;
}

static tsr_status bound_of_pair(const struct tsr_cluster *cluster, const struct tsr_sim_job *pair,
                                const struct tsr_sim_options *options, struct tsr_step_bound *out)
{
    struct tsr__fabric fabric;
    struct tsr__tapes tapes = {0};
    struct tsr__net net = {0};
    struct tsr__quotient q;
    tsr_status status;
    TSR_TRY(tsr__fabric_init(&fabric, cluster, options, pair->world));
    TSR_GOTO(done, tsr__tapes_build(cluster, pair, options, &tapes));
    TSR_GOTO(done, tsr__net_build(&fabric, &tapes, pair, options, &net));
    status = fold(&net, &q);
    if (status == TSR_EUNSUPPORTED) { /* cannot be folded: nothing is promised */
        status = TSR_OK;
        goto done;
    }
    TSR_GOTO(done, status);
    status = bound_of(pair, &tapes, &q, options, out);
    tsr__quotient_fini(&q);
done:
    tsr__net_fini(&net);
    tsr__tapes_fini(&tapes);
    tsr__fabric_fini(&fabric);
    return status;
}

tsr_status tsr_sim_step_bound(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                              const struct tsr_sim_options *options, struct tsr_step_bound *out)
{
    struct tsr_sim_options timed = tsr__options_timed(options, &cluster->gpu.host);
    *out = (struct tsr_step_bound){0};
    /* Noise may make kernels shorter by as much as nobody knows. */
    if (job->n_iterations < 2 || tsr_is_noisy(&timed.conditions))
        return TSR_OK;
    const struct tsr_program *const **last = calloc(job->n_classes, sizeof *last);
    if (!last)
        return tsr_no_memory("bound");
    for (uint32_t i = 0; i < job->n_classes; i++)
        last[i] = job->programs[i] + job->n_iterations - 2;
    struct tsr_sim_job pair = *job;
    pair.n_iterations = 2;
    pair.programs = last;
    tsr_status status = bound_of_pair(cluster, &pair, &timed, out);
    free(last);
    return status;
}
