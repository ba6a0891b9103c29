/* executor_account.c: what an executor keeps account of: the executed hash, built from what the
 * streams really ran; spans of time; the last instructions, for a flight record.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/executor/executor_impl.h"
#include "sim/base/disk.h"

/* ---- the executed hash ----------------------------------------------------------------------- */

static struct tsr_operand operand_of(const struct tsr_view *view)
{
    return (struct tsr_operand){.buffer = view->buffer,
                                .access = view->access,
                                .space = view->space,
                                .dtype = view->dtype,
                                .slot = view->slot,
                                .offset = (uint64_t)((char *)view->data - (char *)view->base),
                                .bytes = view->bytes,
                                .width = view->width,
                                .pitch = view->pitch};
}

enum { FEW = 32 };

/* The hash of the operands as the kernel got them. */
static uint64_t hash_views(const struct tsr_view *views, uint32_t n)
{
    struct tsr_operand few[FEW] = {0}, *all = n > FEW ? malloc(n * sizeof *all) : few;
    if (!all)
        return 0; /* never equal to the program's */
    for (uint32_t i = 0; i < n; i++)
        all[i] = operand_of(&views[i]);
    uint64_t hash = tsr_operands_hash(all, n);
    if (all != few)
        free(all);
    return hash;
}

static void record_kernel(struct tsr_exec *x, uint16_t stream, const struct tsr_task *task)
{
    const struct tsr_work *work = task->call.work;
    const struct tsr_exec_record record = {.kind = task->instr->kind,
                                           .dtype = task->instr->dtype,
                                           .op = work ? work->op : 0,
                                           .stream = stream,
                                           .comm = UINT16_MAX,
                                           .bytes = task->instr->bytes,
                                           .flops = work ? work->flops : 0,
                                           .operands =
                                               hash_views(task->call.views, task->call.n_views)};
    tsr_exec_record_done(&x->hash, &record);
}

static void record_collective(struct tsr_exec *x, uint16_t stream, const struct tsr_task *task)
{
    struct tsr_exec_record record = {.stream = stream,
                                     .operands = hash_views(task->call.views, task->call.n_views)};
    for (size_t i = 0; i < task->n_collectives; i++) {
        const struct tsr_collective *c = &task->collectives[i];
        record.kind = c->kind;
        record.dtype = task->instr->dtype;
        record.reduce_op = c->reduce_op;
        record.comm = c->comm_id;
        record.bytes += c->bytes;
    }
    tsr_exec_record_done(&x->hash, &record);
}

static void record_bracket(struct tsr_exec *x, uint16_t stream, uint8_t kind)
{
    const struct tsr_exec_record record = {
        .kind = kind, .stream = stream, .comm = UINT16_MAX, .operands = tsr_operands_hash(NULL, 0)};
    tsr_exec_record_done(&x->hash, &record);
}

/* One launch of messages; alone without brackets (bracketed is told by the instruction). */
static void record_messages(struct tsr_exec *x, uint16_t stream, const struct tsr_task *task)
{
    bool bracketed = task->instr->kind == TSR_GROUP_END;
    if (bracketed)
        record_bracket(x, stream, TSR_GROUP_BEGIN);
    for (size_t i = 0; i < task->n_messages; i++) {
        const struct tsr_message *m = &task->messages[i];
        const struct tsr_exec_record record = {.kind = m->is_send ? TSR_SEND : TSR_RECV,
                                               .dtype = task->call.views[i].dtype,
                                               .stream = stream,
                                               .comm = task->comm_id,
                                               .bytes = m->bytes,
                                               .flops = m->peer,
                                               .operands = hash_views(&task->call.views[i], 1)};
        tsr_exec_record_done(&x->hash, &record);
    }
    if (bracketed)
        record_bracket(x, stream, TSR_GROUP_END);
}

static void record_event(struct tsr_exec *x, uint16_t stream, const struct tsr_task *task)
{
    const struct tsr_exec_record record = {.kind =
                                               task->kind == TSR_TASK_WAIT ? TSR_WAIT : TSR_RECORD,
                                           .stream = stream,
                                           .comm = UINT16_MAX,
                                           .bytes = task->event,
                                           .operands = tsr_operands_hash(NULL, 0)};
    tsr_exec_record_done(&x->hash, &record);
}

static void add_span(struct tsr_exec_lane *lane, uint64_t number, double begin, double end)
{
    const struct tsr_exec_span span = {number, begin, end};
    if (!TSR_PUSH(lane->spans, lane->n_spans, lane->cap_spans, span))
        lane->lost_spans = true;
}

void tsr_exec_done(void *exec, uint16_t stream, const struct tsr_task *task, double begin,
                   double end)
{
    struct tsr_exec *x = exec;
    struct tsr_exec_lane *lane = &x->lanes[stream % TSR_EXEC_STREAMS];
    if (x->repeats) /* set in serial runs only */
        return;
    switch (task->kind) {
    case TSR_TASK_KERNEL:
    case TSR_TASK_SOURCE:
        record_kernel(x, stream, task);
        break;
    case TSR_TASK_COLLECTIVE:
        record_collective(x, stream, task);
        break;
    case TSR_TASK_MESSAGES:
        record_messages(x, stream, task);
        break;
    case TSR_TASK_RECORD:
    case TSR_TASK_WAIT:
        record_event(x, stream, task);
        break;
    default: /* no instruction of the program */
        return;
    }
    if (x->config.profile && !isnan(begin))
        add_span(lane, task->number, begin, end);
    atomic_fetch_add_explicit(&lane->done, 1, memory_order_relaxed);
}

void tsr_exec_times(void *exec, uint16_t stream, uint64_t number, double begin, double end)
{
    struct tsr_exec *x = exec;
    add_span(&x->lanes[stream % TSR_EXEC_STREAMS], number, begin, end);
}

void tsr_exec_account_host(struct tsr_exec *x, const struct tsr_instr *instr, double begin)
{
    struct tsr_exec_record record = tsr_exec_record_of(instr);
    if (instr->n_operands)
        record.operands = hash_views(x->views, instr->n_operands);
    tsr_exec_record_done(&x->hash, &record);
    if (x->config.profile)
        add_span(&x->lanes[TSR_EXEC_STREAMS], x->number, begin, x->device->ops->now(x->device));
}

uint64_t tsr_exec_hash(struct tsr_executor *executor)
{
    return tsr_exec_hash_value(&((struct tsr_exec *)executor)->hash);
}

/* ---- progress -------------------------------------------------------------------------------- */

uint64_t tsr_exec_done_of(const struct tsr_exec *x, uint16_t stream)
{
    if (x->device && x->device->ops->count_done)
        return x->device->ops->count_done(x->device, stream);
    return atomic_load_explicit(&x->lanes[stream].done, memory_order_relaxed);
}

static uint64_t count_done(const struct tsr_exec *x)
{
    uint64_t done = 0;
    for (uint16_t i = 0; i < TSR_EXEC_STREAMS; i++)
        done += x->submitted[i] ? tsr_exec_done_of(x, i) : 0;
    return done;
}

static uint64_t count_submitted(const struct tsr_exec *x)
{
    uint64_t n = 0;
    for (int i = 0; i < TSR_EXEC_STREAMS; i++)
        n += x->submitted[i];
    return n;
}

void tsr_exec_count_submitted(struct tsr_exec *x, uint16_t stream)
{
    x->submitted[stream % TSR_EXEC_STREAMS]++;
    /* A look now and then. Asking a GPU orders the host after its streams, which no program relies
     * on: a missing wait would not show. */
    bool asks = x->device->ops->count_done != NULL;
    if (x->number % 16 == 0 && (!asks || x->config.profile))
        x->run_ahead = tsr_max_u64(x->run_ahead, count_submitted(x) - count_done(x));
}

double tsr_exec_waited(struct tsr_executor *executor)
{
    return ((struct tsr_exec *)executor)->waited;
}

/* ---- spans ----------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const struct tsr_exec_span *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

tsr_status tsr_exec_take_spans(struct tsr_executor *executor, struct tsr_exec_span **out, size_t *n)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    bool lost = false;
    *n = 0;
    for (int i = 0; i <= TSR_EXEC_STREAMS; i++) {
        *n += x->lanes[i].n_spans;
        lost |= x->lanes[i].lost_spans;
    }
    *out = malloc((*n + 1) * sizeof **out);
    if (!*out || lost) {
        free(*out);
        *out = NULL;
        return tsr_no_memory("the profile");
    }
    size_t k = 0;
    for (int i = 0; i <= TSR_EXEC_STREAMS; i++) {
        struct tsr_exec_lane *lane = &x->lanes[i];
        if (lane->n_spans)
            memcpy(*out + k, lane->spans, lane->n_spans * sizeof **out);
        k += lane->n_spans;
        lane->n_spans = 0;
    }
    qsort(*out, *n, sizeof **out, by_number);
    return TSR_OK;
}

tsr_status tsr_exec_set_profile(struct tsr_executor *executor, bool on)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    x->config.profile = on;
    return tsr_exec_follow_profile(x);
}

tsr_status tsr_exec_follow_profile(struct tsr_exec *x)
{
    if (x->times_tasks == x->config.profile)
        return TSR_OK;
    if (x->device->ops->set_timing)
        TSR_TRY(x->device->ops->set_timing(x->device, x->config.profile));
    x->times_tasks = x->config.profile;
    return TSR_OK;
}

const double *tsr_exec_issue_times(struct tsr_executor *executor, size_t *n)
{
    const struct tsr_exec *x = (struct tsr_exec *)executor;
    *n = x->n_issues;
    return x->issues;
}

tsr_status tsr_exec_note_issue(struct tsr_exec *x)
{
    double now = x->device->ops->now(x->device);
    if (!TSR_PUSH(x->issues, x->n_issues, x->cap_issues, now))
        return tsr_no_memory("the profile");
    return TSR_OK;
}

/* ---- the flight record ----------------------------------------------------------------------- */

/* The flight recorder: the last instructions of a rank and how far each stream
 * is, written when a run fails. Streams may hang meanwhile: only counters of theirs are read. */

void tsr_exec_note(struct tsr_exec *x, const struct tsr_instr *instr)
{
    bool on_stream = tsr_instr_is_work(instr) && instr->kind != TSR_HOST_WAIT &&
                     instr->kind != TSR_HOST_READ && instr->kind != TSR_HOST_OP;
    uint64_t place = on_stream ? x->submitted[instr->stream % TSR_EXEC_STREAMS] : 0;
    x->flight[x->number % TSR_FLIGHT_INSTRS] =
        (struct tsr_flight_entry){.number = x->number,
                                  .bytes = instr->bytes,
                                  .sequence = place,
                                  .kind = instr->kind,
                                  .dtype = instr->dtype,
                                  .phase = instr->origin.phase,
                                  .stream = on_stream ? instr->stream : UINT16_MAX,
                                  .comm = instr->comm,
                                  .iteration = instr->origin.iteration,
                                  .micro = instr->origin.micro,
                                  .module = instr->origin.module,
                                  .group = instr->origin.group,
                                  .event = instr->event,
                                  .name = instr->work ? instr->work->name : NULL};
}

/* ---- writing the flight record --------------------------------------------------------------- */

static const char *state_of(const struct tsr_exec *x, const struct tsr_flight_entry *f)
{
    if (f->stream == UINT16_MAX)
        return "done"; /* by the host, in order */
    uint64_t done = tsr_exec_done_of(x, f->stream % TSR_EXEC_STREAMS);
    return f->sequence < done ? "done" : f->sequence == done ? "running" : "waiting";
}

static void set_name(json_t *o, const char *key, const char *const *names, uint32_t n, uint32_t i)
{
    if (i < n)
        json_object_set_new(o, key, json_string(names[i]));
}

static json_t *entry_json(const struct tsr_exec *x, const struct tsr_tables *t,
                          const struct tsr_flight_entry *f)
{
    json_t *o =
        json_pack("{s:I, s:s, s:s, s:s, s:i, s:i}", "number", (json_int_t)f->number, "kind",
                  tsr_instr_kind_name(f->kind), "state", state_of(x, f), "phase",
                  tsr_phase_name(f->phase), "iteration", (int)f->iteration, "micro", (int)f->micro);
    if (!o)
        return NULL;
    if (f->name)
        json_object_set_new(o, "kernel", json_string(f->name));
    if (f->stream < t->n_streams)
        json_object_set_new(o, "stream", json_string(t->streams[f->stream].name));
    if (f->comm < t->n_comms)
        json_object_set_new(o, "communicator", json_string(t->comms[f->comm].name));
    if (f->kind == TSR_RECORD || f->kind == TSR_WAIT || f->kind == TSR_HOST_WAIT)
        json_object_set_new(o, "event", json_integer(f->event));
    if (f->bytes)
        json_object_set_new(o, "bytes", json_integer((json_int_t)f->bytes));
    set_name(o, "module", t->modules, t->n_modules, f->module);
    set_name(o, "group", t->groups, t->n_groups, f->group);
    return o;
}

static json_t *record_json(struct tsr_exec *x, const struct tsr_tables *t, const char *why)
{
    json_t *list = json_array();
    uint64_t first = x->number > TSR_FLIGHT_INSTRS ? x->number - TSR_FLIGHT_INSTRS : 0;
    for (uint64_t i = first; list && i < x->number; i++)
        json_array_append_new(list, entry_json(x, t, &x->flight[i % TSR_FLIGHT_INSTRS]));
    return json_pack("{s:s, s:i, s:i, s:I, s:o}", "why", why, "rank", (int)t->rank, "world",
                     (int)t->world, "instructions", (json_int_t)x->number, "last", list);
}

tsr_status tsr_exec_write_flight_record(struct tsr_executor *executor,
                                        const struct tsr_tables *tables, const char *path,
                                        const char *why)
{
    json_t *record = record_json((struct tsr_exec *)executor, tables, why);
    char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
    json_decref(record);
    if (!text)
        return tsr_no_memory("the flight record");
    tsr_status status = tsr_disk_replace_path(&tsr_disk_posix, path, text, strlen(text));
    free(text);
    return status;
}
