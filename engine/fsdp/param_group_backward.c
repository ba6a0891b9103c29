/* param_group_backward.c: what a group does in backward (sections 3.7, 3.8, 3.10, 3.12): prefetch,
 * gradients kept or reduced, the waits at the end, and the way back after a failed step.
 */
#include "engine/fsdp/fsdp.h"

/* Implicit prefetch (3.7): the group recorded before this one in the forward that just happened. */
static void backward_prefetch(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    struct tsr_group *target = NULL;
    int64_t index = -1;
    if (g->n_order > 0) {
        index = g->order[--g->n_order];
        int64_t before = index - 1; /* past the other groups of this module (2.15) */
        while (before >= 0 && (size_t)before < comm->n_order && comm->order[before] != g &&
               comm->order[before]->state == g->state)
            before--;
        if (before >= 0 && (size_t)before < comm->n_order)
            target = comm->order[before];
    }
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "backward_prefetch", g);
        if (index < 0)
            tsr__event_str(&ev, "index", NULL);
        else
            tsr__event_int(&ev, "index", index);
        tsr__event_str(&ev, "target", target ? target->name : NULL);
        tsr__event_send(e, &ev);
    }
    if (!target)
        return;
    for (size_t i = 0; i < target->state->n_groups; i++)
        tsr__group_prefetch(e, target->state->groups[i], false);
}

static void pre_backward(struct tsr_engine *e, struct tsr_group *g, bool default_prefetch)
{
    if (g->training == TSR_PRE_BACKWARD)
        return;
    tsr__group_set_training(e, g, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD);
    tsr__group_unshard(e, g, g->unshard_async_op);
    tsr__group_wait_for_unshard(e, g);
    if (default_prefetch)
        backward_prefetch(e, g);
    else if (g->state->n_groups > 1 && g->n_order > 0)
        g->n_order--; /* the group that prefetches speaks for its module */
}

void tsr__group_pre_backward(struct tsr_engine *e, struct tsr_group *g, bool default_prefetch)
{
    uint32_t group = tsr__group_enter(e, g, TSR_HOOK_PRE_BACKWARD);
    pre_backward(e, g, default_prefetch);
    tsr__group_leave(e, TSR_HOOK_PRE_BACKWARD, group);
}

static void trace_param(struct tsr_engine *e, const char *name, const struct tsr_fsdp_param *p,
                        tsr_dtype dtype)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, name);
    tsr__event_str(&ev, "p", p->param->fqn);
    if (dtype != TSR_DTYPE_NONE)
        tsr__event_str(&ev, "dtype", tsr_dtype_name(dtype));
    tsr__event_send(e, &ev);
}

static struct tsr_tensor **unsharded_grad(struct tsr_fsdp_param *p)
{
    return &p->unsharded->grad;
}

/* acc_grad += new gradient, for gradients kept in the reduce dtype. */
static void accumulate_unsharded_grads(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!p->unsharded || !*unsharded_grad(p) || !p->acc_grad)
            continue;
        trace_param(e, "accumulate_unsharded_grad", p, TSR_DTYPE_NONE);
        uint64_t old = tsr__tensor_bytes(p->acc_grad), add = tsr__tensor_bytes(*unsharded_grad(p));
        tsr__operand_tensor(e, *unsharded_grad(p), TSR_READ);
        tsr__operand_tensor(e, p->acc_grad, TSR_READ_WRITE);
        struct tsr_work work = {.op = TSR_OP_POINTWISE,
                                .dtype = p->acc_grad->dtype,
                                .name = "accumulate_grad",
                                .bytes_read = old + add,
                                .bytes_written = old};
        tsr__emit_op(e, &work);
        tsr_release(e, *unsharded_grad(p));
        *unsharded_grad(p) = NULL;
    }
}

/* No-sync: gradients that stay unsharded are kept in the reduce dtype where that differs (R177). */
static void upcast_unsharded_grads(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!p->unsharded || !*unsharded_grad(p) || p->reduce_dtype == TSR_DTYPE_NONE ||
            (*unsharded_grad(p))->dtype == p->reduce_dtype)
            continue;
        trace_param(e, "upcast_unsharded_grad", p, p->reduce_dtype);
        struct tsr_tensor *grad = *unsharded_grad(p);
        p->acc_grad = tsr__tensor_like(e, grad, p->reduce_dtype, TSR_CAT_UNSHARDED_ACC_GRAD);
        if (!p->acc_grad)
            return;
        tsr__operand_tensor(e, grad, TSR_READ);
        tsr__operand_tensor(e, p->acc_grad, TSR_WRITE);
        tsr__emit_copy(e, p->reduce_dtype, tsr__tensor_bytes(grad), tsr__tensor_bytes(p->acc_grad),
                       "grad_upcast");
        tsr_release(e, grad);
        *unsharded_grad(p) = NULL;
    }
}

/* 2.15: an unused parameter enters the reduction with zeros, so that all ranks reduce the same. */
static struct tsr_tensor *zero_grad(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    struct tsr_tensor *zeros =
        tsr__tensor_like(e, p->unsharded, (tsr_dtype)p->unsharded->dtype, TSR_CAT_UNSHARDED_GRAD);
    if (!zeros)
        return NULL;
    tsr__emit_fill(e, zeros->storage, (tsr_dtype)zeros->dtype, 0);
    return zeros;
}

/* Moves the gradients to reduce out of their slots: they survive the reshard that follows. */
static size_t take_grads(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item **items)
{
    size_t n = 0;
    if (!g->items) {
        g->items = tsr_arena_alloc(&e->arena, (g->n_params + 1) * sizeof *g->items);
        g->names = tsr_arena_alloc(&e->arena, (g->n_params + 1) * sizeof *g->names);
        if (!g->items || !g->names) {
            TSR__RAISE(e, TSR_ENOMEM, "out of memory");
            return 0;
        }
    }
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!p->unsharded) /* never gathered: no gradient (Q15) */
            continue;
        /* what earlier micro-batches left in the reduce dtype has this one's added already (R177)
         */
        struct tsr_tensor **slot = p->acc_grad ? &p->acc_grad : unsharded_grad(p);
        if (!*slot && g->reduce_unused && p->param->requires_grad)
            *slot = zero_grad(e, p);
        if (!*slot)
            continue;
        g->items[n++] = (struct tsr_reduce_item){.p = p, .grad = *slot};
        *slot = NULL;
    }
    *items = g->items;
    return n;
}

static void wait_for_post_backward(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->post_reduce_event) { /* W10 */
        tsr__wait_event(e, e->stream, g->post_reduce_event);
        g->post_reduce_event = 0;
    }
    if (g->all_reduce.buffer) {
        if (g->all_reduce.event)
            tsr__wait_event(e, e->stream, g->all_reduce.event);
        tsr__storage_release(e, &g->all_reduce.buffer);
        g->all_reduce.event = 0;
    }
}

static void trace_post_backward(struct tsr_engine *e, struct tsr_group *g, const char *by)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "post_backward", g);
    tsr__event_str(&ev, "by", by);
    tsr__event_bool(&ev, "reduce", g->reduce_grads);
    tsr__event_bool(&ev, "reshard", g->reshard_after_backward);
    tsr__event_send(e, &ev);
}

void tsr__drop_reduce_inputs(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t keep)
{
    while (comm->n_reduce_inputs > keep) { /* W9, W14 */
        struct tsr_reduce_input *oldest = &comm->reduce_inputs[0];
        tsr__wait_event(e, e->stream, oldest->event);
        tsr__storage_release(e, &oldest->input);
        comm->n_reduce_inputs--;
        for (size_t i = 0; i < comm->n_reduce_inputs; i++)
            comm->reduce_inputs[i] = comm->reduce_inputs[i + 1];
    }
}

/* The effective cap is the largest of the state's groups (3.2). */
static size_t cap_of(const struct tsr_group *g)
{
    uint32_t cap = 1;
    for (size_t i = 0; i < g->state->n_groups; i++)
        if (g->state->groups[i]->max_reduce_inputs > cap)
            cap = g->state->groups[i]->max_reduce_inputs;
    return cap;
}

static void reduce_grads(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    struct tsr_reduce_item *items;
    size_t n = take_grads(e, g, &items);
    if (g->reshard_after_backward)
        tsr__group_reshard(e, g);
    if (e->config.version >= TSR_TORCH_2_15 && g->index + 1 == g->state->n_groups)
        tsr__drop_reduce_inputs(e, comm, cap_of(g) - 1); /* before the test, by the last group */
    if (n == 0)
        return;
    if (e->config.version < TSR_TORCH_2_15)
        tsr__drop_reduce_inputs(e, comm, 0);
    wait_for_post_backward(e, g);
    tsr__reduce_grads(e, g, items, n);
}

void tsr__group_post_backward(struct tsr_engine *e, struct tsr_group *g, enum tsr_cause cause)
{
    if (!tsr__ok(e))
        return;
    uint8_t hook = e->origin.hook;
    tsr__group_set_training(e, g, TSR_POST_BACKWARD, cause);
    e->origin.hook = TSR_HOOK_POST_BACKWARD;
    e->origin.group = g->id;
    e->origin.module = g->state->modules[0]->id;
    tsr__emit_mark(e, TSR_MARK_POST_BACKWARD, 0);
    tsr__emit_mark(e, TSR_MARK_GROUP_BEGIN, TSR_HOOK_POST_BACKWARD);
    trace_post_backward(e, g, cause == TSR_BY_POST_BACKWARD ? "autograd" : "final_callback");
    accumulate_unsharded_grads(e, g);
    if (g->reduce_grads) {
        reduce_grads(e, g);
    } else {
        if (g->reshard_after_backward)
            tsr__group_reshard(e, g);
        upcast_unsharded_grads(e, g);
    }
    tsr__emit_mark(e, TSR_MARK_GROUP_END, TSR_HOOK_POST_BACKWARD);
    e->origin.hook = hook;
    e->origin.group = TSR_NO_ID;
}

void tsr__group_finalize(struct tsr_engine *e, struct tsr_group *g)
{
    wait_for_post_backward(e, g);
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->d2h_event) { /* W13 */
            tsr__host_wait_event(e, g->params[i]->d2h_event);
            g->params[i]->d2h_event = 0;
        }
    if (g->result.pending) { /* W15: prefetched and not used (R149) */
        if (!g->result.local)
            tsr__wait_event(e, e->stream, g->result.event);
        if (g->result.async)
            tsr__wait_work(e, e->stream, g->result.event);
        /* Its copies read what the optimizer writes on the host (Q21). */
        if (g->offload != TSR_OFFLOAD_NONE && !g->result.local)
            tsr__host_wait_event(e, g->result.event);
        if (g->comm->has_streams && g->result.output && !g->result.async &&
            g->offload == TSR_OFFLOAD_NONE)
            g->comm->stray_event = e->emit.next_event;
        tsr__storage_release(e, &g->result.output);
        if (g->result.direct)
            tsr__direct_discard(e, g);
        g->result = (struct tsr_all_gather_result){0};
    }
    tsr__direct_settle(e, g->comm, 0);
    g->n_order = 0;
}

/* Room that a gather has made without becoming unsharded parameters. What is retired is read still:
 * it goes later. */
static void drop_room(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->sharded == TSR_UNSHARDED || g->retire_event)
        return;
    for (size_t i = 0; i < g->n_params; i++) {
        tsr__drop_raw(e, g->params[i]);
        if (g->params[i]->unsharded && !tsr__is_aliased(g))
            tsr__storage_unback(e, g->params[i]->unsharded->storage);
    }
}

void tsr__group_reset(struct tsr_engine *e, struct tsr_group *g)
{
    wait_for_post_backward(e, g);
    if (g->result.pending) {
        if (!g->result.local)
            tsr__wait_event(e, e->stream, g->result.event);
        tsr__storage_release(e, &g->result.output);
        g->result = (struct tsr_all_gather_result){0};
    }
    drop_room(e, g);
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__storage_release(e, &p->post_forward);
        tsr__storage_release(e, &p->grad);
        tsr_release(e, p->acc_grad);
        p->acc_grad = NULL;
        p->d2h_event = 0;
        if (p->unsharded) {
            tsr_release(e, p->unsharded->grad);
            p->unsharded->grad = NULL;
        }
    }
    tsr__storage_release(e, &g->partial);
    g->reshard_event = 0;
    g->training = TSR_IDLE; /* no move of the table: an error may come in any state */
    g->n_order = 0;
    tsr__group_to_sharded(e, g, TSR_BY_RESET);
}
