/* executor.c: one instruction becomes one task, or work of the host. Memory, accounts, values from
 * outside and graphs have files of their own.
 */
#include "exec/executor/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/executor/executor_impl.h"

static tsr_status tsr_exec_verified(struct tsr_exec *x, uint16_t stream, struct tsr_task *task,
                                    tsr_exec_run_fn run);

/* ---- kernels --------------------------------------------------------------------------------- */

/* device: NULL: the host. */
static tsr_kernel_fn find_kernel(const struct tsr_device_ops *device, const struct tsr_instr *instr,
                                 const struct tsr_user_kernel *kernels, size_t n_kernels)
{
    bool on_host = !device || instr->kind == TSR_HOST_OP;
    if (instr->kind == TSR_FILL)
        return on_host ? tsr_host_fill : device->fill;
    for (size_t i = 0; i < n_kernels; i++)
        if (!strcmp(kernels[i].name, instr->work->name))
            return kernels[i].fn;
    return on_host ? tsr_host_kernel(instr->work->name) : device->kernel(instr->work->name);
}

static bool needs_kernel(const struct tsr_instr *instr)
{
    return instr->kind == TSR_OP || instr->kind == TSR_COPY || instr->kind == TSR_HOST_OP;
}

tsr_status tsr_exec_supports(const struct tsr_device_ops *device, const struct tsr_instr *instr,
                             const struct tsr_user_kernel *kernels, size_t n_kernels)
{
    if (instr->kind == TSR_CUSTOM_COLLECTIVE || instr->kind == TSR_COMM_CREATE)
        return tsr_fail(TSR_EUNSUPPORTED, "%s is not executed", tsr_instr_kind_name(instr->kind));
    if (!needs_kernel(instr) || tsr_exec_source_kernel(instr->work->name) ||
        find_kernel(device, instr, kernels, n_kernels))
        return TSR_OK;
    bool on_host = !device || instr->kind == TSR_HOST_OP || !strcmp(device->name, "host");
    return tsr_fail(TSR_EUNSUPPORTED, "the %s has no kernel '%s'", on_host ? "host" : "GPU",
                    instr->work->name);
}

/* ---- streams --------------------------------------------------------------------------------- */

static tsr_status to_device(struct tsr_exec *x, uint16_t stream, const struct tsr_task *task)
{
    return x->device->ops->submit(x->device, stream, task);
}

static tsr_status push(struct tsr_exec *x, uint16_t stream, struct tsr_task *task)
{
    if (x->captures)
        return to_device(x, stream, task);
    tsr_exec_count_submitted(x, stream);
    return x->verify ? tsr_exec_verified(x, stream, task, to_device) : to_device(x, stream, task);
}

static struct tsr_task task_of(const struct tsr_exec *x, const struct tsr_instr *instr)
{
    return (struct tsr_task){.number = x->number,
                             .instr = instr,
                             .event = instr->event,
                             .call = {.work = instr->work,
                                      .n_views = instr->n_operands,
                                      .views = x->views,
                                      .scalars = instr->scalar ? x->scalars : NULL,
                                      .factor = instr->factor}};
}

static tsr_status run_kernel(struct tsr_exec *x, const struct tsr_instr *instr)
{
    TSR_TRY(tsr_exec_resolve(x, instr));
    struct tsr_task task = task_of(x, instr);
    task.kind = TSR_TASK_KERNEL;
    task.source_fn = instr->work ? tsr_exec_source_kernel(instr->work->name) : NULL;
    task.source = &x->source;
    if (task.source_fn) {
        task.kind = TSR_TASK_SOURCE;
        return push(x, instr->stream, &task);
    }
    task.kernel = find_kernel(x->device->ops, instr, x->config.kernels, x->config.n_kernels);
    if (!task.kernel)
        return tsr_exec_supports(x->device->ops, instr, x->config.kernels, x->config.n_kernels);
    return push(x, instr->stream, &task);
}

static tsr_status run_event(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_task task = task_of(x, instr);
    task.kind = instr->kind == TSR_RECORD ? TSR_TASK_RECORD : TSR_TASK_WAIT;
    return push(x, instr->stream, &task);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static tsr_status find_comm(const struct tsr_exec *x, uint16_t comm, const struct tsr_comm **out)
{
    if (!x->tables || comm >= x->tables->n_comms)
        return tsr_fail(TSR_EDEFECT, "communicator %u does not exist", comm);
    *out = &x->tables->comms[comm];
    return TSR_OK;
}

tsr_status tsr_exec_next_sequence(struct tsr_exec *x, uint16_t comm, uint64_t *out)
{
    if (comm >= x->n_sequences) {
        uint64_t *more = realloc(x->sequences, (comm + 1U) * sizeof *more);
        if (!more)
            return tsr_no_memory("communicators");
        memset(more + x->n_sequences, 0, (comm + 1U - x->n_sequences) * sizeof *more);
        x->sequences = more;
        x->n_sequences = comm + 1U;
    }
    *out = x->sequences[comm]++;
    return TSR_OK;
}

/* A list in slot 0 (broadcasts of many tensors), or pairs of slots 0 and 1 (gathers into place):
 * one collective after the other. */
static tsr_status add_collective(struct tsr_exec *x, const struct tsr_instr *instr,
                                 const struct tsr_view *send, const struct tsr_view *recv,
                                 size_t *n)
{
    struct tsr_collective c = {.kind = instr->kind,
                               .dtype = instr->dtype,
                               .reduce_op = instr->reduce_op,
                               .factor = instr->factor,
                               .comm_id = instr->comm,
                               .send = send->data,
                               .recv = recv->data,
                               .bytes = tsr_max_u64(send->bytes, recv->bytes)};
    if (send == recv && send->dtype != TSR_DTYPE_NONE)
        c.dtype = send->dtype;
    TSR_TRY(find_comm(x, instr->comm, &c.comm));
    TSR_TRY(tsr_exec_next_sequence(x, instr->comm, &c.sequence));
    if (!TSR_PUSH(x->collectives, *n, x->cap_collectives, c))
        return tsr_no_memory("a collective");
    return TSR_OK;
}

static tsr_status run_collective(struct tsr_exec *x, const struct tsr_instr *instr)
{
    TSR_TRY(tsr_exec_resolve(x, instr));
    struct tsr_task task = task_of(x, instr);
    size_t n = 0;
    bool in_place = instr->kind == TSR_ALL_REDUCE || instr->kind == TSR_BROADCAST;
    if (!in_place && (instr->n_operands == 0 || instr->n_operands % 2 != 0))
        return tsr_fail(TSR_EDEFECT, "%s with %u operands; it takes pairs",
                        tsr_instr_kind_name(instr->kind), instr->n_operands);
    for (uint32_t i = 0; !in_place && i < instr->n_operands; i += 2)
        TSR_TRY(add_collective(x, instr, &x->views[i], &x->views[i + 1], &n));
    for (uint32_t i = 0; in_place && i < instr->n_operands; i++)
        TSR_TRY(add_collective(x, instr, &x->views[i], &x->views[i], &n));
    task.kind = TSR_TASK_COLLECTIVE;
    task.collectives = x->collectives;
    task.n_collectives = n;
    return push(x, instr->stream, &task);
}

static tsr_status add_message(struct tsr_exec *x, const struct tsr_instr *instr)
{
    const struct tsr_message message = {.is_send = instr->kind == TSR_SEND,
                                        .peer = instr->peer,
                                        .data = x->views[0].data,
                                        .bytes = x->views[0].bytes};
    if (x->n_messages > 0 && x->group_comm_id != instr->comm)
        return tsr_fail(TSR_EUNSUPPORTED, "messages of two communicators in one launch");
    x->group_comm_id = instr->comm;
    TSR_TRY(find_comm(x, instr->comm, &x->group_comm));
    if (!TSR_PUSH(x->messages, x->n_messages, x->cap_messages, message) ||
        !TSR_PUSH(x->group_views, x->n_group_views, x->cap_group_views, x->views[0]))
        return tsr_no_memory("a message");
    return TSR_OK;
}

static tsr_status launch_messages(struct tsr_exec *x, const struct tsr_instr *instr)
{
    struct tsr_task task = task_of(x, instr);
    task.kind = TSR_TASK_MESSAGES;
    task.messages = x->messages;
    task.n_messages = x->n_messages;
    task.call.views = x->group_views;
    task.call.n_views = (uint32_t)x->n_group_views;
    task.comm = x->group_comm;
    task.comm_id = x->group_comm_id;
    if (x->n_messages)
        TSR_TRY(tsr_exec_next_sequence(x, x->group_comm_id, &task.sequence));
    x->n_messages = x->n_group_views = 0;
    return push(x, instr->stream, &task);
}

static tsr_status run_message(struct tsr_exec *x, const struct tsr_instr *instr)
{
    TSR_TRY(tsr_exec_resolve(x, instr));
    TSR_TRY(add_message(x, instr));
    return x->in_group ? TSR_OK : launch_messages(x, instr);
}

/* ---- the host -------------------------------------------------------------------------------- */

static tsr_status call_on_host(struct tsr_exec *x, uint16_t stream, const struct tsr_task *task)
{
    (void)x;
    (void)stream;
    if (task->source_fn)
        return task->source_fn(task->source, task->instr, &task->call);
    return task->kernel(&task->call);
}

/* Verification poisons memory between instructions, so that nothing can be lent. */
static const char *source_name(const struct tsr_exec *x, const struct tsr_instr *instr)
{
    bool lends = !strcmp(instr->work->name, "lend_checkpoint");
    return x->verify && lends ? "write_checkpoint" : instr->work->name;
}

static tsr_status run_host_op(struct tsr_exec *x, struct tsr_task *task)
{
    const struct tsr_instr *instr = task->instr;
    task->source_fn = tsr_exec_source_kernel(source_name(x, instr));
    task->source = &x->source;
    task->kind = task->source_fn ? TSR_TASK_SOURCE : TSR_TASK_KERNEL;
    if (!task->source_fn)
        task->kernel = find_kernel(NULL, instr, x->config.kernels, x->config.n_kernels);
    if (!task->source_fn && !task->kernel)
        return tsr_exec_supports(NULL, instr, x->config.kernels, x->config.n_kernels);
    return x->verify ? tsr_exec_verified(x, instr->stream, task, call_on_host)
                     : call_on_host(x, instr->stream, task);
}

static tsr_status wait_on_host(struct tsr_exec *x, const struct tsr_instr *instr)
{
    double begin = x->device->ops->now(x->device);
    tsr_status status = instr->kind == TSR_HOST_WAIT
                            ? x->device->ops->wait_event(x->device, instr->event)
                            : x->device->ops->wait_stream(x->device, instr->stream);
    x->waited += x->device->ops->now(x->device) - begin;
    return status;
}

static tsr_status run_on_host(struct tsr_exec *x, const struct tsr_instr *instr)
{
    double begin = x->config.profile ? x->device->ops->now(x->device) : 0;
    TSR_TRY(tsr_exec_resolve(x, instr));
    struct tsr_task task = task_of(x, instr);
    if (instr->kind == TSR_HOST_WAIT || instr->kind == TSR_HOST_READ)
        TSR_TRY(wait_on_host(x, instr));
    else
        TSR_TRY(run_host_op(x, &task));
    tsr_exec_account_host(x, instr, begin);
    return TSR_OK;
}

/* ---- the interface of executors -------------------------------------------------------------- */

tsr_status tsr_exec_execute(struct tsr_exec *x, const struct tsr_instr *instr)
{
    tsr_status status;
    if (tsr_exec_memory_instr(x, instr, &status))
        return status;
    switch (instr->kind) {
    case TSR_MARK:
        return TSR_OK;
    case TSR_OP:
    case TSR_COPY:
    case TSR_FILL:
        return run_kernel(x, instr);
    case TSR_RECORD:
    case TSR_WAIT:
        return run_event(x, instr);
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
    case TSR_BROADCAST:
    case TSR_ALL_TO_ALL:
        return run_collective(x, instr);
    case TSR_SEND:
    case TSR_RECV:
        return run_message(x, instr);
    case TSR_GROUP_BEGIN:
        x->in_group = true;
        return TSR_OK;
    case TSR_GROUP_END:
        x->in_group = false;
        return launch_messages(x, instr);
    case TSR_HOST_WAIT:
    case TSR_HOST_READ:
    case TSR_HOST_OP:
        return run_on_host(x, instr);
    default:
        return tsr_exec_supports(NULL, instr, NULL, 0);
    }
}

/* Who emits may clean up after a failure, which fails, too: the first one is the reason. */
tsr_status tsr_exec_keep_first(struct tsr_exec *x, tsr_status status)
{
    if (status != TSR_OK && x->failed == TSR_OK) {
        x->failed = status;
        snprintf(x->why, sizeof x->why, "%s", tsr_error_text());
    }
    return x->failed == TSR_OK ? TSR_OK : tsr_fail(x->failed, "%s", x->why);
}

tsr_status tsr_exec_announce(struct tsr_exec *x, const struct tsr_instr *instr)
{
    if (x->config.watcher)
        TSR_TRY(x->config.watcher->ops->submit(x->config.watcher, instr));
    tsr_exec_note(x, instr);
    TSR_TRY(tsr_exec_follow_profile(x));
    if (x->config.profile && x->n_issues == x->number) /* from the first instruction on */
        TSR_TRY(tsr_exec_note_issue(x));
    return TSR_OK;
}

/* The device has no memory: for a segment, or for what a kernel takes beside its operands. What
 * fails later, or on other ranks, fails with the words of the first. */
static tsr_status say_who_asked(const struct tsr_exec *x, const struct tsr_instr *instr)
{
    char report[512];
    if (strstr(tsr_error_text(), "; in phase "))
        return TSR_EOOM;
    const struct tsr_tables *t = x->tables;
    const char *module =
        t && instr->origin.module < t->n_modules ? t->modules[instr->origin.module] : "";
    snprintf(report, sizeof report, "%s", tsr_error_text());
    return tsr_fail(TSR_EOOM, "%s; in phase %s, module %s, for %s", report,
                    tsr_phase_name(instr->origin.phase), *module ? module : "(root)",
                    instr->work ? instr->work->name : "a segment");
}

static tsr_status submit(struct tsr_executor *executor, const struct tsr_instr *instr)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    if (x->config.verify && !x->verify)
        TSR_TRY(tsr_verify_create(&x->verify));
    TSR_TRY(tsr_exec_announce(x, instr));
    tsr_status status = tsr_exec_execute(x, instr);
    x->number++;
    if (status == TSR_EOOM)
        status = say_who_asked(x, instr);
    return tsr_exec_keep_first(x, status);
}

static tsr_status drain(struct tsr_executor *executor)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    return x->device->ops->drain(x->device);
}

/* All ranks of the world give; the members of the communicator are picked out. */
static tsr_status exchange(struct tsr_executor *executor, const struct tsr_comm *comm,
                           const void *in, void *out, size_t bytes)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    struct tsr_world *world = x->config.world;
    uint32_t rank = world ? world->rank : 0, size = world ? world->size : 1;
    char *all = malloc(size * bytes + 1);
    if (!all)
        return tsr_no_memory("an exchange");
    tsr_status status = TSR_OK;
    if (world)
        status = world->ops->exchange(world, in, all, bytes);
    else
        memcpy(all, in, bytes);
    for (uint32_t i = 0; status == TSR_OK && i < comm->size; i++)
        memcpy((char *)out + i * bytes, all + tsr_comm_member(comm, rank, i) * bytes, bytes);
    free(all);
    return status;
}

static void destroy(struct tsr_executor *executor)
{
    struct tsr_exec *x = (struct tsr_exec *)executor;
    if (x->device) {
        (void)!x->device->ops->drain(x->device); /* nobody reads pinned memory any more */
        for (size_t i = 0; i < x->n_pinned; i++)
            x->device->ops->unpin(x->device, x->pinned[i]);
        x->device->ops->destroy(x->device);
    }
    tsr_buffers_fini(&x->buffers);
    tsr_verify_destroy(x->verify);
    for (int i = 0; i <= TSR_EXEC_STREAMS; i++)
        free(x->lanes[i].spans);
    free(x->pinned);
    free(x->sequences);
    free(x->messages);
    free(x->group_views);
    free(x->views);
    free(x->collectives);
    free(x->issues);
    free(x);
}

static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                            .version = TSR_EXECUTOR_VERSION,
                                            .name = "host",
                                            .submit = submit,
                                            .drain = drain,
                                            .exchange = exchange,
                                            .destroy = destroy,
                                            .replay = tsr_exec_replay};

struct tsr_exec *tsr_exec_new(void)
{
    struct tsr_exec *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->base.ops = &ops;
    tsr_buffers_init(&x->buffers);
    tsr_exec_hash_init(&x->hash);
    return x;
}

struct tsr_executor *tsr_exec_start(struct tsr_exec *x, const struct tsr_exec_config *config)
{
    x->config = *config;
    x->device = config->device;
    if (config->source)
        x->source = *config->source;
    return &x->base;
}

void tsr_exec_set_tables(struct tsr_executor *executor, const struct tsr_tables *tables)
{
    ((struct tsr_exec *)executor)->tables = tables;
}

const struct tsr_tables *tsr_exec_tables(void *exec)
{
    return ((struct tsr_exec *)exec)->tables;
}

void tsr_exec_set_scalar(struct tsr_executor *executor, enum tsr_scalar which, double value)
{
    ((struct tsr_exec *)executor)->scalars[which] = value;
}

struct tsr_exec_memory tsr_exec_memory(struct tsr_executor *executor)
{
    return ((struct tsr_exec *)executor)->memory;
}

/* ---- a verified instruction ------------------------------------------------------------------ */

/* How a verified instruction runs. Every rank of a job verifies, so collectives
 * can run twice as well: all members come a second time, under the next numbers. */

/* MESSAGES and COLLECTIVE are matched by number. */
static tsr_status renumber(struct tsr_exec *x, struct tsr_task *task)
{
    for (size_t i = 0; i < task->n_collectives; i++) {
        struct tsr_collective *c = &task->collectives[i];
        TSR_TRY(tsr_exec_next_sequence(x, c->comm_id, &c->sequence));
    }
    if (task->kind == TSR_TASK_MESSAGES && task->n_messages)
        TSR_TRY(tsr_exec_next_sequence(x, task->comm_id, &task->sequence));
    return TSR_OK;
}

static tsr_status run_again(struct tsr_exec *x, uint16_t stream, struct tsr_task *task,
                            tsr_exec_run_fn run)
{
    TSR_TRY(tsr_verify_again(x->verify));
    TSR_TRY(renumber(x, task));
    x->repeats = true;
    tsr_status status = run(x, stream, task);
    x->repeats = false;
    return status;
}

/* A launch of messages is the work of some rank even where this one only sends: if one runs twice
 * all must. */
static bool meets_others(const struct tsr_task *task)
{
    return task->kind == TSR_TASK_COLLECTIVE || task->kind == TSR_TASK_MESSAGES;
}

static tsr_status tsr_exec_verified(struct tsr_exec *x, uint16_t stream, struct tsr_task *task,
                                    tsr_exec_run_fn run)
{
    const struct tsr_verify_who who = {x->number, task->instr, x->tables};
    bool twice;
    if (task->kind == TSR_TASK_RECORD || task->kind == TSR_TASK_WAIT)
        return run(x, stream, task);
    TSR_TRY(tsr_verify_enter(x->verify, &who, task->call.views, task->call.n_views, &twice));
    TSR_TRY(run(x, stream, task));
    if (twice || meets_others(task))
        TSR_TRY(run_again(x, stream, task, run));
    return tsr_verify_leave(x->verify);
}
