/* fsdp1_backward.c: FSDP1's backward: hooks, the reduction of a flat gradient, the end of a
 * backward (FSDP1.md, F26 to F38).
 */
#include "engine/fsdp1/fsdp1.h"

/* ---- gradients of the flat parameter --------------------------------------------------------- */

void tsr__fsdp1_reset_grads(struct tsr_engine *e, struct tsr_fsdp1 *all)
{
    for (size_t i = 0; i < all->n_flats; i++) {
        struct tsr_flat *f = all->flats[i];
        if (!f->grads_are_none || !f->group)
            continue;
        f->grads_are_none = false;
        tsr__storage_release_after(e, &f->shard->grad,
                                   all->hybrid ? all->all_reduce : all->post_backward);
        if (f->leaf) {
            tsr_release(e, f->leaf->grad);
            f->leaf->grad = NULL;
        }
    }
}

/* ---- the reduction --------------------------------------------------------------------------- */

struct reduction {
    struct tsr_flat *f;
    struct tsr_storage *in, *out;
    struct tsr_storage *grad; /* what autograd computed: the hook holds it to its end */
    uint64_t numel;           /* of the result */
};

static void scale(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype, double divisor)
{
    uint64_t numel = s->bytes / tsr_dtype_bytes(dtype);
    if (divisor <= 1)
        return;
    tsr__operand_storage(e, s, TSR_READ_WRITE, dtype);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "div",
                            .flops = (double)numel,
                            .bytes_read = s->bytes,
                            .bytes_written = s->bytes,
                            .dims = {1, numel},
                            .constants = {divisor}};
    tsr__emit_op(e, &work);
}

static void cast(struct tsr_engine *e, struct tsr_storage *from, tsr_dtype from_dtype,
                 struct tsr_storage *to, tsr_dtype to_dtype)
{
    if (!to || !tsr__ok(e))
        return;
    tsr__operand_storage(e, from, TSR_READ, from_dtype);
    tsr__operand_storage(e, to, TSR_WRITE, to_dtype);
    tsr__emit_copy(e, to_dtype, from->bytes, to->bytes, "grad_cast");
}

/* The flat gradient in the reduce dtype; takes it out of the leaf. */
static void take_grad(struct tsr_engine *e, struct reduction *r)
{
    struct tsr_flat *f = r->f;
    struct tsr_tensor *grad = f->leaf->grad;
    f->leaf->grad = NULL;
    r->in = r->grad = grad->storage;
    tsr__storage_retain(r->in);
    grad->storage = NULL; /* r->grad has its reference: others hold the tensor for longer */
    if (f->reduce != (tsr_dtype)grad->dtype) {
        struct tsr_storage *to = tsr__storage_new(e, f->param->numel * tsr_dtype_bytes(f->reduce),
                                                  TSR_CAT_REDUCE_SCATTER);
        cast(e, r->in, (tsr_dtype)grad->dtype, to, f->reduce);
        tsr__storage_release(e, &r->in);
        r->in = to;
    } else {
        tsr__storage_set_category(r->in, TSR_CAT_UNSHARDED_GRAD);
    }
    tsr_release(e, grad);
}

static void reduce_scatter(struct tsr_engine *e, struct reduction *r)
{
    const struct tsr_flat *f = r->f;
    bool becomes_grad = f->reduce == f->param->dtype && !f->shard->grad;
    r->out = tsr__storage_new(e, r->numel * tsr_dtype_bytes(f->reduce),
                              becomes_grad ? TSR_CAT_SHARDED_GRAD : TSR_CAT_REDUCE_SCATTER_OUTPUT);
    if (!r->out || !tsr__ok(e))
        return;
    scale(e, r->in, f->reduce, f->all->pre_divide);
    struct tsr_instr instr = {.kind = TSR_REDUCE_SCATTER,
                              .dtype = (uint8_t)f->reduce,
                              .reduce_op = TSR_REDUCE_SUM,
                              .comm = f->all->shard_comm,
                              .bytes = r->in->bytes};
    tsr__fsdp1_collective(e, f->all->shard_wire, &instr, r->in, r->out);
}

static void all_reduce(struct tsr_engine *e, const struct tsr_flat *f, struct tsr_storage *s)
{
    struct tsr_instr instr = {.kind = TSR_ALL_REDUCE,
                              .dtype = (uint8_t)f->reduce,
                              .reduce_op = TSR_REDUCE_SUM,
                              .comm = f->all->replicate_comm,
                              .bytes = s->bytes};
    if (f->all->replicate_comm != UINT16_MAX)
        tsr__fsdp1_collective(e, f->all->replicate_wire, &instr, NULL, s);
}

/* The result in the parameter's dtype becomes the gradient, or is added to it. */
static void accumulate(struct tsr_engine *e, struct reduction *r)
{
    struct tsr_fsdp_param *p = r->f->shard;
    tsr_dtype dtype = p->orig_dtype;
    if (r->f->reduce != dtype) {
        struct tsr_storage *to =
            tsr__storage_new(e, r->numel * tsr_dtype_bytes(dtype), TSR_CAT_SHARDED_GRAD);
        cast(e, r->out, r->f->reduce, to, dtype);
        tsr__storage_release_after(e, &r->out, e->stream);
        r->out = to;
    }
    if (!r->out || !tsr__ok(e))
        return;
    if (!p->grad) {
        p->grad = r->out;
        p->grad_offset = 0;
        r->out = NULL;
        return;
    }
    tsr__operand_storage(e, r->out, TSR_READ, dtype);
    tsr__operand_storage(e, p->grad, TSR_READ_WRITE, dtype);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "accumulate_sharded_grad",
                            .bytes_read = 2 * p->grad->bytes,
                            .bytes_written = p->grad->bytes};
    tsr__emit_op(e, &work);
}

static void reduce_sharded(struct tsr_engine *e, struct reduction *r)
{
    const struct tsr_fsdp1 *all = r->f->all;
    reduce_scatter(e, r);
    if (!tsr__ok(e))
        return;
    if (all->hybrid) {
        tsr__wait_stream(e, all->all_reduce, all->post_backward);
        e->stream = all->all_reduce;
        all_reduce(e, r->f, r->out);
    }
    scale(e, r->out, r->f->reduce, all->post_divide);
    accumulate(e, r);
    tsr__storage_release_after(e, &r->out, e->stream);
    e->stream = all->post_backward;
}

/* NO_SHARD: the gradient itself is reduced. */
static void reduce_whole(struct tsr_engine *e, struct reduction *r)
{
    const struct tsr_fsdp1 *all = r->f->all;
    r->out = r->in;
    tsr__storage_retain(r->out);
    scale(e, r->out, r->f->reduce, all->pre_divide);
    all_reduce(e, r->f, r->out);
    scale(e, r->out, r->f->reduce, all->post_divide);
    accumulate(e, r);
    tsr__storage_release(e, &r->out);
}

static void reduce(struct tsr_engine *e, struct tsr_flat *f)
{
    struct reduction r = {.f = f, .numel = f->shard->shard_numel};
    uint16_t current = e->stream;
    tsr__wait_stream(e, f->all->post_backward, current);
    e->stream = f->all->post_backward;
    take_grad(e, &r);
    if (tsr__ok(e) && f->sharded)
        reduce_sharded(e, &r);
    else if (tsr__ok(e))
        reduce_whole(e, &r);
    tsr__storage_release_after(e, &r.in, f->all->post_backward);
    tsr__storage_release(e, &r.out);
    /* made on the stream of the views, used on this one */
    tsr__storage_release_after(e, &r.grad, f->all->post_backward);
    e->stream = current;
}

/* ---- backward hooks -------------------------------------------------------------------------- */

/* no_sync() keeps what was not freed after forward, too. */
static bool frees_in_backward(const struct tsr_flat *f)
{
    return f->sharded && (f->all->sync || f->reshards_after_forward);
}

/* NO_SHARD: autograd adds to the gradient of the micro-batches before, which was reduced and is
 * reduced again. */
static void add_to_reduced(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_fsdp_param *p = f->shard;
    struct tsr_tensor *more = f->leaf->grad;
    if (f->sharded || !p->grad)
        return;
    tsr__operand_tensor(e, more, TSR_READ);
    tsr__operand_storage(e, p->grad, TSR_READ_WRITE, p->orig_dtype);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)p->orig_dtype,
                            .name = "add",
                            .flops = (double)more->numel,
                            .bytes_read = p->grad->bytes + tsr__tensor_bytes(more),
                            .bytes_written = p->grad->bytes,
                            .dims = {1, more->numel}};
    tsr__emit_op(e, &work);
    f->leaf->grad = tsr__tensor_view(e, p->grad, p->orig_dtype, 1, &f->param->numel);
    tsr__storage_release(e, &p->grad);
    tsr_release(e, more);
}

/* The gradient of the flat parameter is complete. */
static void post_backward(struct tsr_engine *e, struct tsr_flat *f)
{
    if (!tsr__ok(e) || !f->leaf || !f->leaf->grad)
        return;
    add_to_reduced(e, f);
    f->all->ran_views = true;
    uint8_t hook = e->origin.hook;
    uint32_t module = e->origin.module;
    e->origin.hook = TSR_HOOK_POST_BACKWARD;
    e->origin.module = f->state->modules[0]->id;
    e->origin.group = f->group->id;
    tsr__emit_mark(e, TSR_MARK_POST_BACKWARD, 0);
    tsr__emit_mark(e, TSR_MARK_GROUP_BEGIN, TSR_HOOK_POST_BACKWARD);
    f->training = TSR_POST_BACKWARD;
    tsr__fsdp1_reshard(e, f, frees_in_backward(f));
    tsr__fsdp1_prefetch(e, f);
    if (f->all->sync)
        reduce(e, f);
    tsr__emit_mark(e, TSR_MARK_GROUP_END, TSR_HOOK_POST_BACKWARD);
    e->origin.hook = hook;
    e->origin.module = module;
    e->origin.group = TSR_NO_ID;
}

void tsr__fsdp1_grad_ready(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p)
{
    (void)w;
    if (p->flat)
        post_backward(e, p->flat);
}

/* Parameters whose post-backward did not run, because their output was not used. */
static void catch_all_reshard(struct tsr_engine *e, struct tsr_flat *f)
{
    bool has_views = f->n > 0 && f->params[0]->value;
    if (has_views)
        tsr__fsdp1_reshard(e, f, frees_in_backward(f));
}

/* Autograd ends with the caller's stream behind those of the leaves. */
static void join_views(struct tsr_engine *e, struct tsr_fsdp1 *all)
{
    uint32_t event = all->ran_views ? tsr__new_event(e) : 0;
    struct tsr_instr record = {
        .kind = TSR_RECORD, .stream = all->unshard, .comm = UINT16_MAX, .event = event};
    struct tsr_instr wait = {
        .kind = TSR_WAIT, .stream = e->stream, .comm = UINT16_MAX, .event = event};
    if (event) {
        tsr__emit(e, &record);
        tsr__emit(e, &wait);
    }
    all->ran_views = false;
}

static void final_callback(struct tsr_engine *e, void *user)
{
    struct tsr_fsdp1 *all = user;
    join_views(e, all);
    e->origin.hook = TSR_HOOK_FINAL_CALLBACK;
    if (all->sync) {
        tsr__wait_stream(e, e->stream, all->post_backward);
        if (all->hybrid)
            tsr__wait_stream(e, e->stream, all->all_reduce);
    }
    all->n_post_order = 0;
    all->first_iteration = false;
    for (size_t i = 0; i < all->n_flats; i++) {
        struct tsr_flat *f = all->flats[i];
        if (f->group)
            catch_all_reshard(e, f);
        f->ran_pre_backward = f->needs_pre_backward = f->prefetched = false;
        f->post_index = -1;
        f->training = TSR_IDLE;
    }
    all->callback_queued = false;
    e->origin.hook = TSR_HOOK_NONE;
}

static void queue_callback(struct tsr_engine *e, struct tsr_fsdp1 *all)
{
    all->callback_queued = true;
    (void)tsr__at_backward_end(e, final_callback, all);
    tsr__fsdp1_reset_grads(e, all);
}

static void unshard_for_backward(struct tsr_engine *e, struct tsr_flat *f)
{
    f->training = TSR_PRE_BACKWARD;
    if (f->needs_pre_backward) {
        if (!f->prefetched)
            tsr__fsdp1_unshard(e, f);
        tsr__wait_stream(e, e->stream, f->all->unshard);
    }
    f->needs_pre_backward = false;
    tsr__fsdp1_prefetch(e, f);
    f->ran_pre_backward = true;
}

void tsr__fsdp1_pre_backward(struct tsr_engine *e, struct tsr_flat *f)
{
    if (!tsr__ok(e) || f->ran_pre_backward)
        return;
    e->origin.module = f->state->modules[0]->id;
    e->origin.hook = TSR_HOOK_PRE_BACKWARD;
    e->origin.group = f->group ? f->group->id : TSR_NO_ID;
    tsr__emit_mark(e, TSR_MARK_PRE_BACKWARD, 0);
    if (f == f->all->root && !f->all->callback_queued)
        queue_callback(e, f->all);
    if (f->group) {
        tsr__emit_mark(e, TSR_MARK_GROUP_BEGIN, TSR_HOOK_PRE_BACKWARD);
        unshard_for_backward(e, f);
        tsr__emit_mark(e, TSR_MARK_GROUP_END, TSR_HOOK_PRE_BACKWARD);
    }
    e->origin.hook = TSR_HOOK_NONE;
    e->origin.group = TSR_NO_ID;
}

static void pre_backward(struct tsr_engine *e, void *user, uint32_t arg)
{
    (void)arg;
    tsr__fsdp1_pre_backward(e, user);
}

void tsr__fsdp1_expect_backward(struct tsr_flat *f)
{
    f->needs_pre_backward = f->group != NULL;
}

void tsr__fsdp1_register_pre_backward(struct tsr_engine *e, struct tsr_flat *f,
                                      struct tsr_tensor *out, struct tsr_tensor *aux)
{
    struct tsr_tensor *outs[2] = {out, aux};
    if (!e->grad_enabled)
        return;
    if (f == f->all->root)
        f->all->callback_queued = false;
    f->needs_pre_backward = f->ran_pre_backward = false;
    for (int i = 0; i < 2; i++)
        if (outs[i] && outs[i]->requires_grad) {
            tsr__tensor_hook(e, outs[i], pre_backward, f, 0);
            tsr__fsdp1_expect_backward(f);
        }
}
