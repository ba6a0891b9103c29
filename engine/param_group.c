/* param_group.c: one group of parameters that travel together (PyTorch's FSDPParamGroup): unshard,
 * wait, reshard, and what the group does in each hook (sections 3.3-3.10).
 */
#include "engine.h"

static void begin(struct tsr_event *ev, const char *name, const struct tsr_group *g)
{
    tsr__event_begin(ev, name);
    tsr__event_str(ev, "g", g->name);
}

/* ---- lazy initialisation --------------------------------------------------------------------- */
/* Effective dtypes (2.10): "none" where no cast happens. */
static void init_dtypes(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p)
{
    p->orig_dtype = p->param->dtype;
    p->param_dtype = g->mp.param;
    if (p->full_precision)
        p->param_dtype = TSR_DTYPE_NONE;
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
    if (e->has_trace) {
        struct tsr_event ev;
        begin(&ev, "group_lazy_init", g);
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
void tsr__group_to_sharded(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->sharded == TSR_SHARDED)
        return;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        p->param->value = NULL;
        tsr__drop_raw(e, p);
        if (p->unsharded && !g->keep_storage)
            tsr__storage_unback(e, p->unsharded->storage);
    }
    drop_post_forward(e, g);
    tsr__group_set_sharded(e, g, TSR_SHARDED);
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
        p->post_forward = tsr__storage_new(e, bytes / size, TSR_CAT_POST_FORWARD_SHARD);
        if (!p->post_forward || !tsr__ok(e))
            return;
        tsr__operand(e, p->unsharded->storage,
                     bytes / size * (e->config.rank / g->shard_stride % size), bytes / size,
                     TSR_READ);
        tsr__operand_storage(e, p->post_forward, TSR_WRITE);
        tsr__emit_copy(e, (tsr_dtype)p->unsharded->dtype, bytes / size, bytes / size,
                       "post_forward_slice");
        p->param->value = NULL;
        tsr__storage_unback(e, p->unsharded->storage);
    }
    tsr__group_set_sharded(e, g, TSR_SHARDED_POST_FORWARD);
}

static void trace_reshard(struct tsr_engine *e, struct tsr_group *g, const char *res)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    begin(&ev, "reshard", g);
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
    tsr__group_to_sharded(e, g);
}

/* ---- unshard (3.4) --------------------------------------------------------------------------- */
static void trace_unshard(struct tsr_engine *e, struct tsr_group *g, bool async_op, const char *res)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    begin(&ev, "unshard", g);
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
        g->reshard_event = 0;
    }
    if (g->shard_size == 1) {
        g->result = (struct tsr_all_gather_result){.pending = true, .local = true};
        tsr__record_event(e, e->stream); /* 2.11 records it and keeps no reference */
        return;
    }
    bool apart = comm->has_streams && !async_op &&
                 (g->training == TSR_FORWARD || g->training == TSR_PRE_BACKWARD);
    tsr__all_gather_issue(e, g, async_op, apart ? comm->copy_in : e->stream,
                          apart ? comm->all_gather : e->stream);
    g->result.from_slices = g->sharded == TSR_SHARDED_POST_FORWARD;
}

/* ---- wait_for_unshard (3.5) ------------------------------------------------------------------ */
static void trace_wait(struct tsr_engine *e, struct tsr_group *g, const char *freed, bool defers)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    begin(&ev, "wait_unshard", g);
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
    drop_post_forward(e, g);
    tsr__group_set_sharded(e, g, TSR_UNSHARDED);
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
    bool defers = !g->result.async && forward && !g->result.local;
    struct tsr_storage *previous = NULL;
    bool late = e->config.version < TSR_TORCH_2_15;
    if (forward && comm->deferred.output) {
        trace_wait(e, g, comm->deferred.group->name, defers);
        tsr__wait_event(e, comm->copy_in, comm->deferred.event); /* W6 */
        tsr__wait_event(e, comm->all_gather, comm->deferred.event);
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
        if (comm->has_streams) { /* W7 */
            tsr__wait_event(e, comm->copy_in, event);
            tsr__wait_event(e, comm->all_gather, event);
        }
        tsr__storage_release(e, &g->result.output);
    }
    g->result = (struct tsr_all_gather_result){0};
    tsr__storage_release(e, &previous);
}

void tsr__group_prefetch(struct tsr_engine *e, struct tsr_group *g, bool forward)
{
    if (e->has_trace) {
        struct tsr_event ev;
        begin(&ev, "prefetch", g);
        tsr__event_str(&ev, "pass", forward ? "forward" : "backward");
        tsr__event_send(e, &ev);
    }
    enum tsr_training_state before = g->training;
    uint32_t group = e->origin.group;
    e->origin.group = g->id;
    tsr__group_set_training(e, g, forward ? TSR_FORWARD : TSR_PRE_BACKWARD);
    tsr__group_unshard(e, g, g->unshard_async_op);
    tsr__group_set_training(e, g, before);
    e->origin.group = group;
}

/* ---- forward --------------------------------------------------------------------------------- */
static void post_backward_node(struct tsr_engine *e, struct tsr_node *node,
                               struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    tsr__group_post_backward(e, node->ptr, "autograd");
    grad_in[0] = tsr_retain(grad_out[0]);
}

/* Wraps the input in an identity node whose backward is the group's post-backward (R115, R140). */
static struct tsr_tensor *register_post_backward(struct tsr_engine *e, struct tsr_group *g,
                                                 struct tsr_tensor *in)
{
    bool wrap = e->grad_enabled && in && in->requires_grad;
    if (e->has_trace) {
        struct tsr_event ev;
        begin(&ev, "register_post_backward", g);
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

struct tsr_tensor *tsr__group_pre_forward(struct tsr_engine *e, struct tsr_group *g,
                                          struct tsr_tensor *in)
{
    tsr__group_set_training(e, g, TSR_FORWARD);
    tsr__group_unshard(e, g, g->unshard_async_op);
    tsr__group_wait_for_unshard(e, g);
    return register_post_backward(e, g, in);
}

static void record_post_forward(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    uint32_t index = (uint32_t)comm->n_order;
    if (!TSR__ARENA_PUSH(e, comm->order, comm->n_order, comm->cap_order, g) ||
        !TSR__ARENA_PUSH(e, g->order, g->n_order, g->cap_order, index))
        return;
    if (e->has_trace) {
        struct tsr_event ev;
        begin(&ev, "record_post_forward", g);
        tsr__event_int(&ev, "index", index);
        tsr__event_send(e, &ev);
    }
}

void tsr__group_post_forward(struct tsr_engine *e, struct tsr_group *g)
{
    if (!e->in_backward) { /* a recomputation keeps the parameters and the order (R186) */
        tsr__group_reshard(e, g);
        record_post_forward(e, g);
    }
    tsr__group_set_training(e, g, TSR_IDLE);
}

/* ---- backward -------------------------------------------------------------------------------- */
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
    if (e->has_trace) {
        struct tsr_event ev;
        begin(&ev, "backward_prefetch", g);
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

void tsr__group_pre_backward(struct tsr_engine *e, struct tsr_group *g, bool default_prefetch)
{
    if (g->training == TSR_PRE_BACKWARD)
        return;
    tsr__group_set_training(e, g, TSR_PRE_BACKWARD);
    tsr__group_unshard(e, g, g->unshard_async_op);
    tsr__group_wait_for_unshard(e, g);
    if (default_prefetch)
        backward_prefetch(e, g);
    else if (g->state->n_groups > 1 && g->n_order > 0)
        g->n_order--; /* the group that prefetches speaks for its module */
}

static void trace_param(struct tsr_engine *e, const char *name, const struct tsr_fsdp_param *p,
                        tsr_dtype dtype)
{
    if (!e->has_trace)
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
    struct tsr_instr fill = {.kind = TSR_FILL,
                             .stream = e->stream,
                             .comm = UINT16_MAX,
                             .dtype = zeros->dtype,
                             .bytes = tsr__tensor_bytes(zeros)};
    tsr__operand_tensor(e, zeros, TSR_WRITE);
    tsr__emit(e, &fill);
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
        struct tsr_tensor **slot = p->acc_grad ? &p->acc_grad : unsharded_grad(p);
        if (!*slot && g->reduce_unused && p->param->requires_grad)
            *slot = zero_grad(e, p);
        if (!*slot)
            continue;
        g->items[n++] = (struct tsr_reduce_item){p, *slot};
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
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    begin(&ev, "post_backward", g);
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
    tsr__reduce(e, g, items, n);
}

void tsr__group_post_backward(struct tsr_engine *e, struct tsr_group *g, const char *by)
{
    if (!tsr__ok(e))
        return;
    uint8_t hook = e->origin.hook;
    tsr__group_set_training(e, g, TSR_POST_BACKWARD);
    e->origin.hook = TSR_HOOK_POST_BACKWARD;
    e->origin.group = g->id;
    e->origin.module = g->state->modules[0]->id;
    tsr__emit_mark(e, TSR_MARK_POST_BACKWARD, 0);
    trace_post_backward(e, g, by);
    accumulate_unsharded_grads(e, g);
    if (g->reduce_grads) {
        reduce_grads(e, g);
    } else {
        if (g->reshard_after_backward)
            tsr__group_reshard(e, g);
        upcast_unsharded_grads(e, g);
    }
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
        tsr__storage_release(e, &g->result.output);
        g->result = (struct tsr_all_gather_result){0};
    }
    g->n_order = 0;
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
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
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
    g->training = TSR_IDLE;
    g->n_order = 0;
    tsr__group_to_sharded(e, g);
}
