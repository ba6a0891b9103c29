/* reducer_mixed.c: DDP's own mixed precision (mixed_precision of DistributedDataParallel). Forward
 * and backward compute with copies of parameters in another dtype than that of the optimizer. Here
 * are the three hooks that see to it, and their two streams: _root_copy_hook makes the copies,
 * _module_wait_for_copy_hook waits for those of a module, _reducer_allreduce_and_upcast_hook frees
 * them bucket by bucket and brings gradients back to the optimizer's dtype.
 *
 * The program has two orders that PyTorch lacks: copies wait for the optimizer's step before them,
 * and gradients in the optimizer's dtype are not cast from what autograd made, which may be
 * overwritten by then: they get their values with the end of backward, as in PyTorch, too.
 */
#include "engine/ddp/reducer.h"

static bool is_mixed_param(const struct tsr_param *p)
{
    return p->value && p->value->storage != p->master;
}

/* ---- construction ---------------------------------------------------------------------------- */

void tsr__reducer_reads(struct tsr_engine *e, const struct tsr_module *m)
{
    uint32_t *copied = e->reducer->copied;
    if (!copied || copied[m->id] == 0)
        return;
    tsr__reducer_wait(e, copied[m->id]);
    copied[m->id] = 0;
}

static struct tsr_tensor *wait_for_copies(struct tsr_engine *e, struct tsr_module *m,
                                          struct tsr_tensor *in)
{
    tsr__reducer_reads(e, m);
    return in;
}

static const struct tsr_module_hooks hooks = {wait_for_copies, NULL};

/* A compiled block has no hooks inside. */
static bool root_waits_for_all(const struct tsr_engine *e)
{
    return e->config.dialect == TSR_DIALECT_COMPILE;
}

static bool hook_module(void *user, struct tsr_module *m)
{
    (void)user;
    if (m->n_params > 0 && !m->hooks)
        m->hooks = &hooks;
    return true;
}

void tsr__reducer_mix(struct tsr_engine *e, struct tsr_reducer *r)
{
    size_t n = e->tree.n_modules;
    r->mp_stream = tsr__stream_add(e, "mp", TSR_ROLE_COPY_IN, 0);
    r->upcast_stream = tsr__stream_add(e, "upcast", TSR_ROLE_COPY_OUT, 0);
    r->copied = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *r->copied);
    if (!r->copied) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return;
    }
    if (!root_waits_for_all(e) && !e->traced) /* whose kernels say what they read */
        tsr__module_walk(e->tree.root, hook_module, NULL);
}

/* The handle has no memory between a backward and the next forward. PyTorch makes it with memory,
 * and takes it away: what it leaves in the pool is the same. */
static void make_handle(struct tsr_engine *e, struct tsr_param *p, tsr_dtype dtype)
{
    struct tsr_storage *s =
        tsr__storage_new(e, p->numel * tsr_dtype_bytes(dtype), TSR_CAT_UNSHARDED_PARAM);
    struct tsr_tensor *leaf = s ? tsr__tensor_view(e, s, dtype, p->n_dims, p->shape) : NULL;
    if (!leaf)
        return;
    s->refs--;
    leaf->param = p;
    leaf->requires_grad = p->requires_grad;
    tsr_release(e, p->value);
    p->value = leaf;
    tsr__storage_unback(e, s);
}

void tsr__reducer_make_handles(struct tsr_engine *e, struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_mixed; i++)
        make_handle(e, r->mixed[i], r->options.mp.param);
    for (size_t i = 0; i < r->n_buckets; i++)
        if (!r->buckets[i].buffer)
            r->buckets[i].buffer = tsr__storage_new(e, r->buckets[i].bytes, TSR_CAT_REDUCE_SCATTER);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* What a backward before has reduced goes on in the dtype of the computation, where the next one
 * adds to it. */
static void downcast_grad(struct tsr_engine *e, struct tsr_param *p)
{
    struct tsr_tensor *grad = p->full_grad;
    p->full_grad = NULL;
    p->value->grad = grad;
    if (grad->dtype == p->value->dtype)
        return;
    p->value->grad = tsr__tensor_like(e, grad, (tsr_dtype)p->value->dtype, TSR_CAT_UNSHARDED_GRAD);
    if (p->value->grad && tsr__ok(e)) {
        tsr__operand_tensor(e, grad, TSR_READ);
        tsr__operand_tensor(e, p->value->grad, TSR_WRITE);
        tsr__emit_copy(e, (tsr_dtype)p->value->dtype, tsr__tensor_bytes(grad),
                       tsr__tensor_bytes(p->value->grad), "grad_cast");
    }
    tsr_release(e, grad);
}

static void copy_param(struct tsr_engine *e, struct tsr_param *p)
{
    tsr__storage_back(e, p->value->storage);
    if (!tsr__ok(e))
        return;
    tsr__operand_storage(e, p->master, TSR_READ, p->dtype);
    tsr__operand_storage(e, p->value->storage, TSR_WRITE, (tsr_dtype)p->value->dtype);
    tsr__emit_copy(e, (tsr_dtype)p->value->dtype, p->master->bytes, p->value->storage->bytes,
                   "param_cast");
    if (p->full_grad && tsr__ok(e))
        downcast_grad(e, p);
}

/* PyTorch copies a tied parameter once more for each further module, while those before may read
 * it: the values are the same, and the program has the first copy only. */
static bool copy_module(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    bool copies = false;
    for (size_t i = 0; i < m->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = m->params[i].param;
        if (!is_mixed_param(p) || p->visited == e->tree.walk_stamp)
            continue;
        p->visited = e->tree.walk_stamp;
        copy_param(e, p);
        copies = true;
    }
    if (copies && tsr__ok(e)) {
        uint32_t *event = &e->reducer->copied[m->id];
        *event = tsr__new_event(e);
        tsr__reducer_order(e, e->stream, e->stream, *event);
    }
    return tsr__ok(e);
}

/* After a backward that did not reduce, parameters still are their copies. */
void tsr__reducer_copy_params(struct tsr_engine *e, struct tsr_reducer *r)
{
    uint16_t compute = e->stream;
    if (r->holds_copies)
        return;
    tsr__reducer_order(e, compute, r->mp_stream, tsr__new_event(e));
    e->stream = r->mp_stream;
    tsr__module_walk(e->tree.root, copy_module, e);
    e->stream = compute;
    r->holds_copies = tsr__ok(e);
    if (root_waits_for_all(e))
        tsr__reducer_order(e, r->mp_stream, compute, tsr__new_event(e));
    else
        tsr__reducer_reads(e, e->tree.root);
}

/* ---- backward -------------------------------------------------------------------------------- */

void tsr__reducer_cast_bucket(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b)
{
    tsr_dtype from = tsr__bucket_dtype(r, b->params[0]), to = tsr__reduce_dtype(r, b->params[0]);
    if (from == to)
        return;
    b->cast = tsr__storage_new(e, b->numel * tsr_dtype_bytes(to), TSR_CAT_REDUCE_SCATTER);
    if (!b->cast || !tsr__ok(e))
        return;
    tsr__operand_storage(e, b->buffer, TSR_READ, from);
    tsr__operand_storage(e, b->cast, TSR_WRITE, to);
    tsr__emit_copy(e, to, b->bytes, b->cast->bytes, "bucket_cast");
}

/* The gradient that the optimizer sees. Its values come with the end of backward, from the reduced
 * bucket; until then they are those of this rank, which the bucket has, too. */
static void upcast_grad(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b, size_t i)
{
    struct tsr_param *p = b->params[i];
    struct tsr_tensor *grad = p->value->grad;
    p->value->grad = NULL;
    p->full_grad = grad;
    if (!grad || grad->dtype == p->dtype)
        return;
    tsr_dtype dtype = tsr__bucket_dtype(r, p);
    uint64_t bytes = p->numel * tsr_dtype_bytes(dtype);
    p->full_grad = tsr__tensor_new(e, p->dtype, p->n_dims, p->shape, TSR_CAT_SHARDED_GRAD);
    if (p->full_grad && tsr__ok(e)) {
        tsr__operand(e, b->buffer, b->offsets[i], bytes, TSR_READ, dtype);
        tsr__operand_tensor(e, p->full_grad, TSR_WRITE);
        tsr__emit_copy(e, p->dtype, bytes, tsr__tensor_bytes(p->full_grad), "grad_upcast");
    }
    tsr_release(e, grad);
}

void tsr__reducer_upcast(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b)
{
    uint16_t compute = e->stream;
    if (!tsr__ok(e))
        return;
    r->holds_copies = false;
    e->stream = r->upcast_stream;
    tsr__reducer_wait(e, b->event);
    tsr__reducer_divide(e, b->cast ? b->cast : b->buffer, tsr__reduce_dtype(r, b->params[0]));
    for (size_t i = 0; i < b->n && tsr__ok(e); i++) {
        tsr__storage_unback(e, b->params[i]->value->storage);
        upcast_grad(e, r, b, i);
    }
    e->stream = compute;
}

void tsr__reducer_end_upcast(struct tsr_engine *e, struct tsr_reducer *r)
{
    tsr__reducer_order(e, r->upcast_stream, e->stream, tsr__new_event(e));
}
