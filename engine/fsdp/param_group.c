/* param_group.c: one group of parameters that travel together (PyTorch's FSDPParamGroup): unshard,
 * wait, reshard, and what the group does in forward (sections 3.3-3.6, 3.9). Its
 * backward: param_group_backward.c; its shards in the compute dtype: mirror.c.
 */
#include "engine/fsdp/fsdp.h"

/* ---- lazy initialisation --------------------------------------------------------------------- */
/* Effective dtypes (2.10): "none" where no cast happens. */
static void init_dtypes(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p)
{
    p->orig_dtype = p->param->dtype;
    p->param_dtype = g->mp.param;
    if (p->full_precision)
        p->param_dtype = TSR_DTYPE_NONE;
    else if (p->fp8)
        p->param_dtype = TSR_F8;
    p->reduce_dtype = g->mp.reduce;
    if (e->config.version >= TSR_TORCH_2_15) {
        if (!tsr_dtype_is_float(p->orig_dtype))
            p->param_dtype = TSR_DTYPE_NONE;
        if (p->reduce_dtype == TSR_DTYPE_NONE && p->param_dtype != TSR_DTYPE_NONE)
            p->reduce_dtype = p->orig_dtype; /* the gradient's dtype is the original one (R69) */
    }
    if (p->reduce_dtype == p->param_dtype)
        p->reduce_dtype = TSR_DTYPE_NONE;
    if (p->param_dtype == p->orig_dtype)
        p->param_dtype = TSR_DTYPE_NONE;
}

static void check_dtypes(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!p->param->requires_grad)
            continue;
        if (g->orig_dtype == TSR_DTYPE_NONE) {
            g->orig_dtype = p->orig_dtype;
            g->reduce_dtype = p->reduce_dtype;
        } else if (p->orig_dtype != g->orig_dtype) {
            TSR__RAISE(e, TSR_EASSERT,
                       "FSDP expects uniform original parameter dtype but got %s and %s (%s)",
                       tsr_dtype_name(g->orig_dtype), tsr_dtype_name(p->orig_dtype), p->param->fqn);
            return;
        }
    }
}

static void check_materialised(struct tsr_engine *e, struct tsr_group *g)
{
    const char *names = NULL;
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->param->meta) {
            const char *fqn = g->params[i]->param->fqn;
            names = names ? tsr_arena_printf(&e->arena, "%s, %s", names, fqn) : fqn;
        }
    if (names)
        TSR__RAISE(e, TSR_ERUNTIME,
                   "FSDP parameters should be materialized from meta device before training, but "
                   "the following were still on meta device: %s",
                   names);
}

void tsr__group_lazy_init(struct tsr_engine *e, struct tsr_group *g)
{
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "group_lazy_init", g);
        tsr__event_send(e, &ev);
    }
    check_materialised(e, g);
    if (g->lazy_done || !tsr__ok(e))
        return;
    g->lazy_done = true;
    g->orig_dtype = g->reduce_dtype = TSR_DTYPE_NONE;
    for (size_t i = 0; i < g->n_params; i++)
        init_dtypes(e, g, g->params[i]);
    check_dtypes(e, g);
}

/* ---- sharded states -------------------------------------------------------------------------- */
static void drop_post_forward(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->post_forward);
}

/* Registers sharded parameters; the full storage goes back (R234). */
void tsr__group_to_sharded(struct tsr_engine *e, struct tsr_group *g, enum tsr_cause cause)
{
    if (g->sharded == TSR_SHARDED)
        return;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        p->param->value = NULL;
        tsr__drop_raw(e, p);
        if (p->unsharded && !tsr__is_aliased(g) && !tsr__is_direct(g))
            tsr__storage_unback(e, p->unsharded->storage);
    }
    if (tsr__is_direct(g) && g->sharded == TSR_UNSHARDED)
        tsr__direct_retire(e, g);
    /* A slice that no backward gathered from (no output needed a gradient) stays until the next
     * one takes its place. */
    tsr__group_set_sharded(e, g, TSR_SHARDED, cause);
}

/* Keeps slice (rank in the smaller group) of the padded flat parameter (2.5). */
static void to_post_forward(struct tsr_engine *e, struct tsr_group *g)
{
    uint32_t size = g->post_forward_size;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (p->extension) {
            TSR__RAISE(e, TSR_EASSERT,
                       "%s: an all-gather extension cannot be resharded to a smaller group",
                       p->param->fqn);
            return;
        }
        uint64_t bytes =
            p->shard_numel * g->shard_size * tsr_dtype_bytes((tsr_dtype)p->unsharded->dtype);
        if (p->shard_numel * g->shard_size % size != 0) {
            TSR__RAISE(e, TSR_EASSERT,
                       "%s: padded size %llu is not divisible by the post-forward group size %u",
                       p->param->fqn, (unsigned long long)(p->shard_numel * g->shard_size), size);
            return;
        }
        struct tsr_storage *previous = p->post_forward;
        p->post_forward = tsr__storage_new(e, bytes / size, TSR_CAT_POST_FORWARD_SHARD);
        if (!p->post_forward || !tsr__ok(e)) {
            tsr__storage_release(e, &previous);
            return;
        }
        tsr__operand(e, p->unsharded->storage,
                     bytes / size * (e->config.rank / g->shard_stride % size), bytes / size,
                     TSR_READ, (tsr_dtype)p->unsharded->dtype);
        tsr__operand_storage(e, p->post_forward, TSR_WRITE, (tsr_dtype)p->unsharded->dtype);
        tsr__emit_copy(e, (tsr_dtype)p->unsharded->dtype, bytes / size, bytes / size,
                       "post_forward_slice");
        tsr__storage_release(e, &previous);
        p->param->value = NULL;
        if (!tsr__is_direct(g))
            tsr__storage_unback(e, p->unsharded->storage);
    }
    if (tsr__is_direct(g))
        tsr__direct_retire(e, g);
    tsr__group_set_sharded(e, g, TSR_SHARDED_POST_FORWARD, TSR_BY_RESHARD);
}

static void trace_reshard(struct tsr_engine *e, struct tsr_group *g, const char *res)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "reshard", g);
    tsr__event_str(&ev, "state", tsr__training_name(g->training));
    tsr__event_str(&ev, "res", res);
    tsr__event_send(e, &ev);
}

void tsr__group_reshard(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->training == TSR_FORWARD) {
        if (g->post_forward_size == 0) {
            trace_reshard(e, g, "keep");
            return;
        }
        if (g->post_forward_size < g->shard_size) {
            trace_reshard(e, g, "post_forward");
            to_post_forward(e, g);
            g->reshard_event = tsr__record_event(e, e->stream);
            return;
        }
    }
    trace_reshard(e, g, g->sharded == TSR_SHARDED ? "already" : "sharded");
    tsr__group_to_sharded(e, g, TSR_BY_RESHARD);
}

/* ---- unshard (3.4) --------------------------------------------------------------------------- */
static void trace_unshard(struct tsr_engine *e, struct tsr_group *g, bool async_op, const char *res)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "unshard", g);
    tsr__event_str(&ev, "state", tsr__training_name(g->training));
    tsr__event_bool(&ev, "async", async_op);
    tsr__event_str(&ev, "res", res);
    tsr__event_send(e, &ev);
}

void tsr__group_unshard(struct tsr_engine *e, struct tsr_group *g, bool async_op)
{
    if (!tsr__ok(e))
        return;
    if (g->result.pending) {
        trace_unshard(e, g, async_op, "pending");
        return;
    }
    if (g->sharded == TSR_UNSHARDED) {
        trace_unshard(e, g, async_op, "already");
        return;
    }
    if (!g->unshard_in_backward && g->training == TSR_PRE_BACKWARD) {
        trace_unshard(e, g, async_op, "skipped");
        return;
    }
    trace_unshard(e, g, async_op, g->shard_size == 1 ? "local" : "issue");
    if (g->sharded == TSR_SHARDED_POST_FORWARD && g->post_forward_size == 0) {
        TSR__RAISE(e, TSR_EASSERT,
                   "%s: Expected mesh_info to be FSDPMeshInfo, got none: reshard_after_forward "
                   "changed while the group was resharded to a smaller one",
                   g->name);
        return;
    }
    struct tsr_comm_ctx *comm = g->comm;
    if (g->reshard_event) { /* W2 */
        tsr__wait_event(e, comm->copy_in, g->reshard_event);
        tsr__wait_event(e, comm->all_gather, g->reshard_event);
        tsr__gathers_follow(comm, g->reshard_event);
        g->reshard_event = 0;
    }
    if (g->shard_size == 1) {
        g->result = (struct tsr_all_gather_result){.pending = true, .local = true};
        tsr__record_event(e, e->stream); /* 2.11 records it and keeps no reference */
        return;
    }
    if (!g->lazy_done) { /* prefetched by a module of another root */
        TSR__RAISE(e, TSR_EATTRIBUTE,
                   "%s: prefetched before its own first forward, by a module that has another "
                   "root: 'FSDPCommContext' object has no attribute 'all_gather_copy_in_stream'; "
                   "wrap a module that contains both",
                   g->name);
        return;
    }
    bool apart = comm->has_streams && !async_op &&
                 (g->training == TSR_FORWARD || g->training == TSR_PRE_BACKWARD);
    e->fsdp->raced[TSR_RACE_STRAY_GATHER] |= apart && comm->stray_event;
    e->fsdp->raced[TSR_RACE_OTHER_ROOT] |= apart && comm->stepped_event;
    tsr__all_gather_issue(e, g, async_op, apart ? comm->copy_in : e->stream,
                          apart ? comm->all_gather : e->stream);
    g->result.from_slices = g->sharded == TSR_SHARDED_POST_FORWARD;
}

/* ---- wait_for_unshard (3.5) ------------------------------------------------------------------ */
static void trace_wait(struct tsr_engine *e, struct tsr_group *g, const char *freed, bool defers)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "wait_unshard", g);
    if (!g->result.pending) {
        tsr__event_str(&ev, "res", "none");
    } else {
        tsr__event_str(&ev, "state", tsr__training_name(g->training));
        tsr__event_str(&ev, "res", g->result.local ? "local" : "copy_out");
        tsr__event_str(&ev, "frees", freed);
        tsr__event_bool(&ev, "defers", defers);
    }
    tsr__event_send(e, &ev);
}

static void set_unsharded(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!p->unsharded || !tsr__ok(e))
            return;
        p->unsharded->requires_grad = p->param->requires_grad; /* R107 */
        p->param->value = p->unsharded;
    }
    if (g->sharded == TSR_SHARDED_POST_FORWARD)
        drop_post_forward(e, g);
    tsr__group_set_sharded(e, g, TSR_UNSHARDED, TSR_BY_COPY_OUT);
}

void tsr__group_wait_for_unshard(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    if (!tsr__ok(e))
        return;
    if (!g->result.pending) {
        trace_wait(e, g, NULL, false);
        return;
    }
    if (g->result.from_slices && g->sharded != TSR_SHARDED_POST_FORWARD) {
        TSR__RAISE(e, TSR_ERUNTIME,
                   "%s: split_with_sizes expects split_sizes to sum exactly to the output: an "
                   "all-gather over the smaller group was not used before the group was resharded",
                   g->name);
        return;
    }
    bool forward = g->training == TSR_FORWARD;
    bool defers = !g->result.async && forward && !g->result.local && !g->result.direct;
    struct tsr_storage *previous = NULL;
    bool late = e->config.version < TSR_TORCH_2_15;
    if (forward && comm->deferred.output) {
        trace_wait(e, g, comm->deferred.group->name, defers);
        tsr__wait_event(e, comm->copy_in, comm->deferred.event); /* W6 */
        tsr__wait_event(e, comm->all_gather, comm->deferred.event);
        tsr__gathers_follow(comm, comm->deferred.event);
        previous = comm->deferred.output; /* alive until this function returns (R255) */
        comm->deferred.output = NULL;
        if (!late)
            tsr__storage_release(e, &previous); /* before the copy-out (R98) */
    } else {
        trace_wait(e, g, NULL, defers);
    }
    tsr__all_gather_copy_out(e, g);
    set_unsharded(e, g);
    uint32_t event = tsr__record_event(e, e->stream);
    if (defers) {
        comm->deferred.output = g->result.output;
        comm->deferred.event = event;
        comm->deferred.group = g;
    } else {
        if (comm->has_streams && !g->result.direct) { /* W7 */
            tsr__wait_event(e, comm->copy_in, event);
            tsr__wait_event(e, comm->all_gather, event);
            tsr__gathers_follow(comm, event);
        }
        tsr__storage_release(e, &g->result.output);
    }
    g->result = (struct tsr_all_gather_result){0};
    tsr__storage_release(e, &previous);
}

void tsr__group_prefetch(struct tsr_engine *e, struct tsr_group *g, bool forward)
{
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "prefetch", g);
        tsr__event_str(&ev, "pass", forward ? "forward" : "backward");
        tsr__event_send(e, &ev);
    }
    enum tsr_training_state before = g->training;
    uint32_t group = e->origin.group;
    e->origin.group = g->id;
    if (forward)
        tsr__group_set_training(e, g, TSR_FORWARD, TSR_BY_FORWARD_PREFETCH);
    else
        tsr__group_set_training(e, g, TSR_PRE_BACKWARD, TSR_BY_BACKWARD_PREFETCH);
    tsr__group_unshard(e, g, g->unshard_async_op);
    tsr__group_set_training(e, g, before, TSR_BY_PREFETCH_END);
    e->origin.group = group;
}

/* ---- forward --------------------------------------------------------------------------------- */
static void post_backward_node(struct tsr_engine *e, struct tsr_node *node,
                               struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    tsr__group_post_backward(e, node->ptr, TSR_BY_POST_BACKWARD);
    grad_in[0] = tsr_retain(grad_out[0]);
}

/* Wraps the input in an identity node whose backward is the group's post-backward (R115, R140). */
static struct tsr_tensor *register_post_backward(struct tsr_engine *e, struct tsr_group *g,
                                                 struct tsr_tensor *in)
{
    bool wrap = e->grad_enabled && in && in->requires_grad;
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "register_post_backward", g);
        tsr__event_int(&ev, "n", wrap);
        tsr__event_send(e, &ev);
    }
    if (!wrap || !tsr__ok(e))
        return in;
    struct tsr_node *node = tsr__node_new(e, "RegisterPostBackward", post_backward_node, &in, 1);
    struct tsr_tensor *view =
        tsr__tensor_view(e, in->storage, (tsr_dtype)in->dtype, in->n_dims, in->dims);
    if (!node || !view)
        return in;
    view->offset = in->offset;
    node->ptr = g;
    tsr__node_output(node, view, 0);
    tsr_release(e, in);
    return view;
}

uint32_t tsr__group_enter(struct tsr_engine *e, const struct tsr_group *g, enum tsr_hook hook)
{
    uint32_t group = e->origin.group;
    e->origin.group = g->id;
    tsr__emit_mark(e, TSR_MARK_GROUP_BEGIN, hook);
    return group;
}

void tsr__group_leave(struct tsr_engine *e, enum tsr_hook hook, uint32_t group)
{
    tsr__emit_mark(e, TSR_MARK_GROUP_END, hook);
    e->origin.group = group;
}

struct tsr_tensor *tsr__group_pre_forward(struct tsr_engine *e, struct tsr_group *g,
                                          struct tsr_tensor *in)
{
    uint32_t group = tsr__group_enter(e, g, TSR_HOOK_PRE_FORWARD);
    tsr__group_set_training(e, g, TSR_FORWARD, TSR_BY_PRE_FORWARD);
    tsr__group_unshard(e, g, g->unshard_async_op);
    tsr__group_wait_for_unshard(e, g);
    in = register_post_backward(e, g, in);
    tsr__group_leave(e, TSR_HOOK_PRE_FORWARD, group);
    return in;
}

static void record_post_forward(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    uint32_t index = (uint32_t)comm->n_order;
    if (!TSR__ARENA_PUSH(e, comm->order, comm->n_order, comm->cap_order, g) ||
        !TSR__ARENA_PUSH(e, g->order, g->n_order, g->cap_order, index))
        return;
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "record_post_forward", g);
        tsr__event_int(&ev, "index", index);
        tsr__event_send(e, &ev);
    }
}

void tsr__group_post_forward(struct tsr_engine *e, struct tsr_group *g)
{
    uint32_t group = tsr__group_enter(e, g, TSR_HOOK_POST_FORWARD);
    if (!e->autograd.in_backward) { /* a recomputation keeps the parameters and the order (R186) */
        tsr__group_reshard(e, g);
        record_post_forward(e, g);
    }
    tsr__group_set_training(e, g, TSR_IDLE, TSR_BY_POST_FORWARD);
    tsr__group_leave(e, TSR_HOOK_POST_FORWARD, group);
}
