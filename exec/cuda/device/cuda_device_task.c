/* cuda_device_task.c: a task of the program becomes calls of CUDA on a stream. */
#include <stdio.h>
#include <string.h>

#include "exec/cuda/comms/comms_impl.h"
#include "exec/cuda/device/cuda_device_impl.h"

/* ---- kernels --------------------------------------------------------------------------------- */

/* Libraries take what there is; other kernels ask for it (grow()). */
static bool may_use_scratch(const struct tsr_task *task)
{
    const struct tsr_work *work = task->call.work;
    return work && (work->op == TSR_OP_GEMM || work->op == TSR_OP_ATTENTION ||
                    work->op == TSR_OP_ATTENTION_BWD);
}

static tsr_status run_kernel(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                             const struct tsr_task *task)
{
    struct tsr_kernel_call call = task->call;
    if (may_use_scratch(task))
        TSR_TRY(tsr__cuda_first_scratch(d, s));
    call.launch = tsr_cuda_launch_code;
    call.context = &s->context;
    return task->kernel(&call);
}

static tsr_status poison(const struct tsr_cuda_stream *s, const struct tsr_task *task)
{
    for (uint32_t i = 0; i < task->call.n_views; i++) {
        const struct tsr_view *v = &task->call.views[i];
        if (v->bytes > 0)
            TSR_CUDA("poison", cudaMemsetAsync(v->data, 0xff, v->bytes, s->handle));
    }
    return TSR_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

tsr_status tsr__cuda_leave_slot(struct tsr_cuda_device *d, const struct tsr_cuda_event *e,
                                uint32_t number)
{
    if (e->number == 0 || e->number == number || e->done)
        return TSR_OK;
    return tsr__cuda_wait(d, tsr_cuda_event_of(e));
}

static tsr_status record(struct tsr_cuda_device *d, struct tsr_cuda_stream *s, uint32_t number)
{
    struct tsr_cuda_event *e = tsr_cuda_event_slot(&d->events, number);
    TSR_TRY(tsr__cuda_leave_slot(d, e, number));
    if (!e->event)
        TSR_CUDA("an event", cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming));
    TSR_CUDA("an event", cudaEventRecord(e->event, s->handle));
    e->number = number;
    e->done = false;
    e->shared = NULL;
    e->launch = 0;
    return TSR_OK;
}

static tsr_status wait_for(struct tsr_cuda_device *d, struct tsr_cuda_stream *s, uint32_t number)
{
    struct tsr_cuda_event *e;
    TSR_TRY(tsr_cuda_event_find(&d->events, number, &e));
    if (e)
        TSR_CUDA("a wait for an event", cudaStreamWaitEvent(s->handle, tsr_cuda_event_of(e), 0));
    return TSR_OK;
}

/* ---- between ranks --------------------------------------------------------------------------- */

static tsr_status watch(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                        const struct tsr_task *task)
{
    char what[96];
    bool one = task->kind == TSR_TASK_COLLECTIVE && task->n_collectives > 0;
    const struct tsr_comm *comm = one ? task->collectives[0].comm : task->comm;
    uint64_t sequence = one ? task->collectives[0].sequence : task->sequence;
    snprintf(what, sizeof what, "%s #%llu of '%s'",
             one ? tsr_instr_kind_name(task->collectives[0].kind) : "messages",
             (unsigned long long)sequence, comm && comm->name ? comm->name : "?");
    return tsr_watchdog_note(d->watchdog, s->handle, what);
}

static tsr_status run_collectives(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                  const struct tsr_task *task)
{
    if (d->config.comms) {
        TSR_TRY(
            tsr_comms_run(d->config.comms, &s->context, task->collectives, task->n_collectives));
        return watch(d, s, task);
    }
    for (size_t i = 0; i < task->n_collectives; i++) {
        if (task->collectives[i].comm->size != 1)
            return tsr_fail(TSR_EDEFECT, "a collective of %u ranks, and the device is of no world",
                            task->collectives[i].comm->size);
        TSR_TRY(tsr__device_alone(&s->context, &task->collectives[i]));
    }
    return TSR_OK;
}

static tsr_status run_messages(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                               const struct tsr_task *task)
{
    if (task->n_messages == 0)
        return TSR_OK;
    if (!d->config.comms)
        return tsr_fail(TSR_EUNSUPPORTED, "messages, and the device is of no world");
    TSR_TRY(d->config.comms->ops->messages(d->config.comms, &s->context, task->comm, task->comm_id,
                                           task->sequence, task->messages, task->n_messages));
    return watch(d, s, task);
}

tsr_status tsr__cuda_run(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                         const struct tsr_task *task)
{
    switch (task->kind) {
    case TSR_TASK_KERNEL:
        return run_kernel(d, s, task);
    case TSR_TASK_SOURCE:
        return tsr__cuda_source(d, s, task);
    case TSR_TASK_COLLECTIVE:
        return run_collectives(d, s, task);
    case TSR_TASK_MESSAGES:
        return run_messages(d, s, task);
    case TSR_TASK_RECORD:
        return record(d, s, task->event);
    case TSR_TASK_WAIT:
        return wait_for(d, s, task->event);
    default:
        return poison(s, task);
    }
}
