/* tape.c: compiles the programs of a rank class into tasks, one pass in issue order: what a task
 * waits for, and what it costs the host and the card. */
#include "sim/tape/tape.h"

#include <stdlib.h>
#include <string.h>

#include "sim/card/cost.h"
#include "sim/network/tuner.h"
#include "sim/tape/issue.h"

enum { MAX_EVENTS = 1 << 26 };

/* State of the compilation of one class: what has been issued so far. */
struct compiler {
    const struct tsr_gpu *gpu;
    const struct tsr_sim_options *options;
    uint32_t world;
    double turns; /* seconds that a core's second takes, shared */
    double pace;  /* time of a kernel on the slowest GPU over that on a usual one */
    struct tsr__comms *comms;
    struct tsr__tape *tape;
    uint16_t iteration;
    uint32_t n_events, n_stream_ids, n_comm_ids;
    uint32_t *record_of;    /* [event]: task of its last RECORD */
    uint32_t *stream_of;    /* [stream id]: dense number, or TSR_NO_ID */
    uint32_t *last;         /* [dense stream]: last task */
    uint16_t *comm_of;      /* [comm id of the tables]: job-wide id, UINT16_MAX: not seen */
    uint32_t *queue_issued; /* [job-wide comm]: tasks in the wire queue */
    uint32_t *queue_before; /* [job-wide comm]: the same, before the open group */
    uint32_t *sequence;     /* [job-wide comm]: collectives so far */
    size_t n_job_comms;     /* allocated entries of the three above */
    uint32_t launched[TSR__MAX_CONNECTIONS]; /* [hardware queue]: its last item that starts */
    uint32_t group_begin;                    /* open GROUP_BEGIN, or TSR_NO_ID */
    size_t send_cap;
};

static tsr_status no_memory(void)
{
    return tsr_no_memory("replay of a program");
}

/* ---- sizes ------------------------------------------------------------------------------- */

static bool names_event(uint8_t kind)
{
    return kind == TSR_RECORD || kind == TSR_WAIT || kind == TSR_HOST_WAIT;
}

static tsr_status measure(struct compiler *c, const struct tsr_program *const *programs,
                          uint32_t n_iterations)
{
    uint64_t n_tasks = 0;
    for (uint32_t i = 0; i < n_iterations; i++) {
        c->tape->first[i] = (uint32_t)n_tasks;
        n_tasks += programs[i]->n_instrs;
        for (size_t k = 0; k < programs[i]->n_instrs; k++) {
            const struct tsr_instr *instr = &programs[i]->instrs[k];
            if (names_event(instr->kind) && instr->event >= c->n_events)
                c->n_events = instr->event < MAX_EVENTS ? instr->event + 1 : UINT32_MAX;
            if (instr->stream >= c->n_stream_ids)
                c->n_stream_ids = instr->stream + 1u;
            if (instr->comm != UINT16_MAX && instr->comm >= c->n_comm_ids)
                c->n_comm_ids = instr->comm + 1u;
        }
    }
    if (n_tasks >= UINT32_MAX || c->n_events == UINT32_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "a program has more than %u instructions or events",
                        (unsigned)MAX_EVENTS);
    c->tape->n_tasks = c->tape->first[n_iterations] = (uint32_t)n_tasks;
    return TSR_OK;
}

static tsr_status make_room(struct compiler *c)
{
    struct tsr__tape *tape = c->tape;
    tape->tasks = calloc((size_t)tape->n_tasks + 1, sizeof *tape->tasks);
    tape->device = tsr__no_ids(tape->n_tasks);
    tape->head = tsr__no_ids(c->n_stream_ids);
    tape->stream_id = calloc(c->n_stream_ids + 1u, sizeof *tape->stream_id);
    c->record_of = tsr__no_ids(c->n_events);
    c->stream_of = tsr__no_ids(c->n_stream_ids);
    c->last = tsr__no_ids(c->n_stream_ids);
    c->comm_of = malloc((c->n_comm_ids + 1u) * sizeof *c->comm_of);
    if (!tape->tasks || !tape->device || !tape->head || !tape->stream_id || !c->record_of ||
        !c->stream_of || !c->last || !c->comm_of)
        return no_memory();
    memset(c->comm_of, 0xff, (c->n_comm_ids + 1u) * sizeof *c->comm_of);
    return TSR_OK;
}

static void compiler_fini(struct compiler *c)
{
    free(c->record_of);
    free(c->stream_of);
    free(c->last);
    free(c->comm_of);
    free(c->queue_issued);
    free(c->queue_before);
    free(c->sequence);
}

/* ---- communicators ----------------------------------------------------------------------- */

/* The per-communicator counters grow with the job-wide list. */
static tsr_status grow_counters(struct compiler *c)
{
    uint32_t **arrays[] = {&c->queue_issued, &c->queue_before, &c->sequence};
    size_t n = c->comms->n + 16;
    if (c->comms->n <= c->n_job_comms)
        return TSR_OK;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        uint32_t *bigger = realloc(*arrays[i], n * sizeof *bigger);
        if (!bigger)
            return no_memory();
        memset(bigger + c->n_job_comms, 0, (n - c->n_job_comms) * sizeof *bigger);
        *arrays[i] = bigger;
    }
    c->n_job_comms = n;
    return TSR_OK;
}

static tsr_status find_comm(struct compiler *c, const struct tsr_tables *tables, uint16_t index,
                            uint16_t *id)
{
    if (!tables || index >= tables->n_comms)
        return tsr_fail(TSR_EVALUE, "an instruction names communicator %u of %u", index,
                        tables ? tables->n_comms : 0u);
    if (c->comm_of[index] == UINT16_MAX)
        TSR_TRY(tsr__comms_intern(c->comms, tables, c->world, index, &c->comm_of[index]));
    *id = c->comm_of[index];
    return grow_counters(c);
}

static tsr_status find_queue(struct compiler *c, const struct tsr_tables *tables, uint16_t index,
                             uint16_t *queue)
{
    index = tsr__wire_queue(tables, index);
    if (index >= tables->n_comms)
        return tsr_fail(TSR_EVALUE, "a communicator shares the queue of communicator %u of %u",
                        index, tables->n_comms);
    if (c->n_comm_ids <= index) { /* only ever named as a queue */
        uint16_t *bigger = realloc(c->comm_of, (index + 1u) * sizeof *bigger);
        if (!bigger)
            return no_memory();
        memset(bigger + c->n_comm_ids, 0xff, (index + 1u - c->n_comm_ids) * sizeof *bigger);
        c->comm_of = bigger;
        c->n_comm_ids = index + 1u;
    }
    return find_comm(c, tables, index, queue);
}

static tsr_status note_send(struct compiler *c, uint32_t geometry, uint16_t peer)
{
    struct tsr__tape *tape = c->tape;
    for (size_t i = 0; i < tape->n_sends; i++)
        if (tape->sends[i].geometry == geometry && tape->sends[i].peer == peer)
            return TSR_OK;
    struct tsr__send send = {geometry, peer};
    return TSR_PUSH(tape->sends, tape->n_sends, c->send_cap, send) ? TSR_OK : no_memory();
}

/* SEND and RECV are numbered per peer and direction. */
static uint32_t pair_sequence(const struct compiler *c, const struct tsr__task *task, uint32_t at)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < at; i++) {
        const struct tsr__task *other = &c->tape->tasks[i];
        n += other->kind == TSR__WIRE && other->record.kind == task->record.kind &&
             other->comm == task->comm && other->peer == task->peer;
    }
    return n;
}

static tsr_status compile_wire(struct compiler *c, const struct tsr_tables *tables,
                               const struct tsr_instr *instr, uint32_t at)
{
    struct tsr__task *task = &c->tape->tasks[at];
    task->kind = TSR__WIRE;
    task->number = c->tape->n_wires++;
    TSR_TRY(find_comm(c, tables, instr->comm, &task->comm));
    TSR_TRY(find_queue(c, tables, instr->comm, &task->queue));
    task->peer = instr->peer;
    task->tuned_bytes = instr->bytes;
    bool in_group = c->group_begin != TSR_NO_ID;
    task->need = in_group ? c->queue_before[task->queue] : c->queue_issued[task->queue];
    c->queue_issued[task->queue]++;
    if (task->queue >= c->tape->n_queues)
        c->tape->n_queues = task->queue + 1u;
    const struct tsr__tape_comm *comm = &c->comms->items[task->comm];
    enum tsr__pattern pattern = tsr__coll_pattern(instr->kind);
    if (pattern == TSR__P2P && instr->peer >= comm->size)
        return tsr_fail(TSR_EVALUE, "%s names peer %u of communicator %s of size %u",
                        tsr_instr_kind_name(instr->kind), instr->peer, comm->name, comm->size);
    task->sequence = pattern == TSR__P2P ? pair_sequence(c, task, at) : c->sequence[task->comm]++;
    if (comm->geometry == TSR_NO_ID)
        return TSR_OK;
    c->comms->geometries[comm->geometry].used[pattern] = true;
    return instr->kind == TSR_SEND ? note_send(c, comm->geometry, instr->peer) : TSR_OK;
}

/* ---- costs ------------------------------------------------------------------------------- */

static double call_seconds(const struct tsr_sim_options *o, const struct tsr_instr *instr,
                           bool in_group)
{
    switch (instr->kind) {
    case TSR_MARK:
    case TSR_GROUP_BEGIN:
        return 0.0;
    case TSR_ALLOC:
    case TSR_FREE:
    case TSR_HOST_ALLOC:
    case TSR_HOST_FREE:
        return o->host_alloc_s;
    case TSR_PIN: /* a call of the driver, as a device allocation is */
        return o->host_segment_s;
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
        return o->host_segment_s +
               tsr__cost_segment(instr->kind == TSR_SEGMENT_FREE, (double)instr->bytes);
    case TSR_RECORD:
    case TSR_WAIT:
    case TSR_HOST_WAIT:
    case TSR_HOST_READ:
        return o->host_event_s;
    case TSR_OP:
        if (instr->work && instr->work->compiled)
            return o->host_compiled_s +
                   (instr->work->compiled == TSR_COMPILED_FIRST ? o->host_region_s : 0.0);
        return o->host_launch_s;
    case TSR_COPY:
    case TSR_FILL:
        return o->host_launch_s;
    case TSR_HOST_OP:
        return o->host_launch_s + (instr->work ? tsr__cost_host((double)instr->work->bytes_read +
                                                                (double)instr->work->bytes_written)
                                               : 0.0);
    default: /* a launch of NCCL; the calls of a group are collected and launched at its end */
        return in_group && instr->kind != TSR_GROUP_END ? o->host_event_s : o->host_collective_s;
    }
}

/* `first`: of its iteration; it pays for what the host does between steps. */
static double host_seconds(const struct compiler *c, const struct tsr_instr *instr, bool first)
{
    const double *value = c->gpu->calibration.value;
    double seconds = call_seconds(c->options, instr, c->group_begin != TSR_NO_ID);
    return seconds * value[TSR_CAL_HOST_SCALE] * c->turns +
           (first ? value[TSR_CAL_STEP_OVERHEAD] : 0.0);
}

/* Bytes of the operands that are (not) in host memory, by access. */
static double operand_bytes(const struct tsr_instr *instr, uint8_t access, bool host)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        if ((o->access & access) && (o->space != TSR_SPACE_DEVICE) == host)
            bytes += (double)o->bytes;
    }
    return bytes;
}

static bool touches(const struct tsr_instr *instr, uint8_t access, bool host)
{
    for (uint32_t i = 0; i < instr->n_operands; i++)
        if ((instr->operands[i].access & access) &&
            (instr->operands[i].space != TSR_SPACE_DEVICE) == host)
            return true;
    return false;
}

static tsr_status compile_copy(struct compiler *c, const struct tsr_instr *instr,
                               struct tsr__task *task)
{
    struct tsr__cost cost = {0};
    bool from_host = touches(instr, TSR_READ, true), into_host = touches(instr, TSR_WRITE, true);
    bool device = touches(instr, TSR_READ_WRITE, false);
    if ((from_host || into_host) && device) {
        TSR_TRY(tsr__cost_memory(c->gpu, 0.0, &cost)); /* the flow comes on top */
        task->kind = TSR__HOST_COPY;
        task->to_device = from_host;
        task->start_s = cost.start_s;
        c->tape->host_copies = true;
        return TSR_OK;
    }
    task->kind = TSR__KERNEL;
    if (from_host || into_host) {
        task->body_s = tsr__cost_host(2.0 * (double)instr->bytes);
        return TSR_OK;
    }
    double bytes = operand_bytes(instr, TSR_READ, false) + operand_bytes(instr, TSR_WRITE, false);
    if (bytes <= 0.0)
        bytes = (instr->kind == TSR_COPY ? 2.0 : 1.0) * (double)instr->bytes;
    TSR_TRY(tsr__cost_memory(c->gpu, bytes, &cost));
    task->body_s = cost.body_s * c->turns;
    task->start_s = cost.start_s;
    return TSR_OK;
}

/* Products of backward have other layouts and add into their result: their rate over forward's,
 * which recomputation has, too. */
static double backward_rate(const struct tsr_gpu *gpu, const struct tsr_instr *instr)
{
    const struct tsr_work *work = instr->work;
    bool product = work->op == TSR_OP_GEMM || work->op == TSR_OP_ATTENTION_BWD;
    bool backward = instr->origin.phase == TSR_PHASE_BACKWARD && !work->recompute;
    return product && backward ? gpu->calibration.value[TSR_CAL_BACKWARD_SUSTAINED] : 1.0;
}

static tsr_status compile_kernel(struct compiler *c, const struct tsr_instr *instr,
                                 struct tsr__task *task)
{
    struct tsr__cost cost = {0};
    task->kind = TSR__KERNEL;
    if (!instr->work || instr->work->op >= TSR_N_OP_KINDS)
        return tsr_fail(TSR_EVALUE, "an op without a description of its work");
    TSR_TRY(tsr__cost_kernel(c->gpu, &c->options->kernels, instr->work, &cost));
    task->body_s = cost.body_s / backward_rate(c->gpu, instr) * c->pace;
    task->start_s = cost.start_s;
    return TSR_OK;
}

/* ---- one instruction --------------------------------------------------------------------- */

static tsr_status compile_kind(struct compiler *c, const struct tsr_tables *tables,
                               const struct tsr_instr *instr, uint32_t at)
{
    struct tsr__task *task = &c->tape->tasks[at];
    if (!tsr__on_stream(instr)) {
        bool waits = instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ;
        task->kind = waits ? TSR__HOST_SYNC : TSR__HOST_ONLY;
        if (instr->kind == TSR_HOST_WAIT)
            task->dep = c->record_of[instr->event];
        return TSR_OK;
    }
    switch (instr->kind) {
    case TSR_OP:
        return compile_kernel(c, instr, task);
    case TSR_COPY:
    case TSR_FILL:
        return compile_copy(c, instr, task);
    case TSR_RECORD:
    case TSR_GROUP_BEGIN:
    case TSR_GROUP_END:
    case TSR_COMM_CREATE:
        task->kind = TSR__INSTANT;
        return TSR_OK;
    case TSR_WAIT:
        task->kind = TSR__STREAM_WAIT;
        task->dep = c->record_of[instr->event];
        return TSR_OK;
    default:
        return compile_wire(c, tables, instr, at);
    }
}

static uint32_t dense_stream(struct compiler *c, uint16_t id)
{
    if (c->stream_of[id] == TSR_NO_ID) {
        c->tape->stream_id[c->tape->n_streams] = id;
        c->stream_of[id] = c->tape->n_streams++;
    }
    return c->stream_of[id];
}

/* Streams take the hardware queues in turn. Records and group marks pass: they only signal. */
static void join_connection(struct compiler *c, struct tsr__task *task, uint32_t at)
{
    uint32_t n = c->options->max_connections;
    if (!n || task->kind == TSR__INSTANT)
        return;
    uint32_t *last = &c->launched[task->stream % n];
    task->launch_after = *last;
    *last = at;
}

static void enqueue(struct compiler *c, const struct tsr_instr *instr, uint32_t at)
{
    struct tsr__tape *tape = c->tape;
    struct tsr__task *task = &tape->tasks[at];
    uint32_t stream = dense_stream(c, instr->stream);
    task->stream = (uint16_t)stream;
    if (c->last[stream] == TSR_NO_ID)
        tape->head[stream] = at;
    else
        tape->tasks[c->last[stream]].next = at;
    c->last[stream] = at;
    join_connection(c, task, at);
    task->device_index = tape->n_device;
    tape->device[tape->n_device++] = at;
    if (instr->kind == TSR_RECORD)
        c->record_of[instr->event] = at;
}

static tsr_status open_group(struct compiler *c, uint32_t at)
{
    if (c->group_begin != TSR_NO_ID)
        return tsr_fail(TSR_EVALUE, "a group begins inside a group");
    c->group_begin = at;
    if (c->n_job_comms)
        memcpy(c->queue_before, c->queue_issued, c->n_job_comms * sizeof *c->queue_before);
    return TSR_OK;
}

static bool same_call(const struct tsr__task *a, const struct tsr__task *b)
{
    return b->kind == TSR__WIRE && a->comm == b->comm && a->record.kind == b->record.kind &&
           tsr__coll_pattern(b->record.kind) != TSR__P2P;
}

/* Calls of one kind in a group are one launch: runs of them share their bytes. */
static void coalesce(struct tsr__task *tasks, uint32_t first, uint32_t end)
{
    for (uint32_t at = first; at < end;) {
        uint32_t next = at + 1;
        uint64_t bytes = tasks[at].tuned_bytes;
        while (next < end && same_call(&tasks[at], &tasks[next]))
            bytes += tasks[next++].tuned_bytes;
        for (uint32_t i = at; i < next && next > at + 1; i++)
            tasks[i].tuned_bytes = bytes;
        at = next;
    }
}

static tsr_status close_group(struct compiler *c, uint32_t at)
{
    if (c->group_begin == TSR_NO_ID)
        return tsr_fail(TSR_EVALUE, "a group ends that did not begin");
    for (uint32_t i = c->group_begin; i < at; i++)
        if (c->tape->tasks[i].kind == TSR__WIRE) {
            c->tape->tasks[i].group_end = at;
            c->tape->tasks[i].in_group = true;
        }
    coalesce(c->tape->tasks, c->group_begin + 1, at);
    c->group_begin = TSR_NO_ID;
    return TSR_OK;
}

static tsr_status compile_instr(struct compiler *c, const struct tsr_tables *tables,
                                const struct tsr_instr *instr, uint32_t at)
{
    struct tsr__task *task = &c->tape->tasks[at];
    *task = (struct tsr__task){
        .record = tsr_exec_record_of(instr),
        .host_s = host_seconds(c, instr, at == c->tape->first[c->iteration]),
        .next = TSR_NO_ID,
        .dep = TSR_NO_ID,
        .launch_after = TSR_NO_ID,
        .group_end = TSR_NO_ID,
        .iteration = c->iteration,
        .is_work = tsr_instr_is_work(instr),
    };
    if (instr->kind >= TSR_N_INSTR_KINDS)
        return tsr_fail(TSR_EUNSUPPORTED, "instruction kind %u is unknown", instr->kind);
    TSR_TRY(compile_kind(c, tables, instr, at));
    if (instr->kind == TSR_HOST_READ)
        task->dep = c->last[dense_stream(c, instr->stream)];
    if (task->dep != TSR_NO_ID)
        c->tape->tasks[task->dep].awaited = true;
    if (instr->kind == TSR_GROUP_BEGIN)
        TSR_TRY(open_group(c, at));
    if (instr->kind == TSR_GROUP_END)
        TSR_TRY(close_group(c, at));
    if (tsr__on_stream(instr))
        enqueue(c, instr, at);
    return TSR_OK;
}

/* ---- classes ----------------------------------------------------------------------------- */

static tsr_status compile_class(struct compiler *c, const struct tsr_program *const *programs,
                                uint32_t n_iterations)
{
    uint32_t at = 0;
    c->tape->first = calloc((size_t)n_iterations + 1, sizeof *c->tape->first);
    if (!c->tape->first)
        return no_memory();
    TSR_TRY(measure(c, programs, n_iterations));
    TSR_TRY(make_room(c));
    for (uint32_t i = 0; i < n_iterations; i++) {
        c->iteration = (uint16_t)i;
        for (size_t k = 0; k < programs[i]->n_instrs; k++, at++)
            TSR_TRY(compile_instr(c, programs[i]->tables, &programs[i]->instrs[k], at));
    }
    return c->group_begin == TSR_NO_ID ? TSR_OK
                                       : tsr_fail(TSR_EVALUE, "a group begins and does not end");
}

/* Ranks that share cores do the same at the same time: each gets its share of them. */
static double turns(const struct tsr_cluster *cluster, uint32_t world)
{
    uint32_t local = world < cluster->gpus_per_node ? world : cluster->gpus_per_node;
    return cluster->cores > 0.0 && local > cluster->cores ? local / cluster->cores : 1.0;
}

/* Synchronous ranks wait for the slowest of them: all run as that one does. The more nodes, the
 * slower it is. */
static double pace_of(const struct tsr_cluster *cluster, uint32_t world)
{
    return (1.0 + tsr_cluster_straggling(cluster, world)) * turns(cluster, world);
}

/* Of several jobs that share a cluster, that of the class: its ranks wait for each other only. */
static uint32_t world_of(const struct tsr_sim_job *job, uint32_t class)
{
    const struct tsr_tables *tables = job->programs[class][0]->tables;
    return tables && tables->world ? tables->world : job->world;
}

tsr_status tsr__tapes_build(const struct tsr_cluster *cluster, const struct tsr_sim_job *job,
                            const struct tsr_sim_options *options, struct tsr__tapes *tapes)
{
    tsr_status status;
    *tapes = (struct tsr__tapes){.n = job->n_classes};
    tapes->items = calloc((size_t)job->n_classes + 1, sizeof *tapes->items);
    if (!tapes->items)
        return no_memory();
    for (uint32_t i = 0; i < job->n_classes; i++) {
        struct compiler c = {.gpu = &cluster->gpu,
                             .options = options,
                             .world = job->world,
                             .turns = turns(cluster, world_of(job, i)),
                             .pace = pace_of(cluster, world_of(job, i)),
                             .comms = &tapes->comms,
                             .tape = &tapes->items[i],
                             .group_begin = TSR_NO_ID};
        memset(c.launched, 0xff, sizeof c.launched);
        status = compile_class(&c, job->programs[i], job->n_iterations);
        compiler_fini(&c);
        TSR_GOTO(failed, status);
    }
    return TSR_OK;
failed:
    tsr__tapes_fini(tapes);
    return status;
}

void tsr__tapes_fini(struct tsr__tapes *tapes)
{
    for (uint32_t i = 0; i < tapes->n && tapes->items; i++) {
        struct tsr__tape *tape = &tapes->items[i];
        free(tape->tasks);
        free(tape->device);
        free(tape->first);
        free(tape->head);
        free(tape->stream_id);
        free(tape->sends);
    }
    free(tapes->items);
    free(tapes->comms.items);
    free(tapes->comms.geometries);
    *tapes = (struct tsr__tapes){0};
}
