/* executor_verify.c: how a verified instruction runs. Every rank of a job verifies, so collectives
 * can run twice as well: all members come a second time, under the next numbers.
 */
#include "exec/executor/executor_impl.h"

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

tsr_status tsr_exec_verified(struct tsr_exec *x, uint16_t stream, struct tsr_task *task,
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
