/* reducer_mixed.c: mixed precision of the bucketed replicate: parameters compute in another dtype
 * than that of the optimizer (_root_copy_hook of DistributedDataParallel). Gradients come back to
 * the optimizer's dtype with the end of a backward that reduces (reducer_backward.c).
 */
#include "engine/ddp/reducer.h"

static bool is_cast(const struct tsr_param *p)
{
    return p->value && p->value->storage != p->master;
}

static void make_handle(struct tsr_engine *e, struct tsr_param *p, tsr_dtype dtype)
{
    if (p->dtype == dtype)
        return;
    struct tsr_storage *s = tsr__storage_empty(e, p->numel * tsr_dtype_bytes(dtype),
                                               TSR_CAT_UNSHARDED_PARAM, TSR_SPACE_DEVICE);
    struct tsr_tensor *leaf = tsr__tensor_view(e, s, dtype, p->n_dims, p->shape);
    if (!leaf)
        return;
    s->refs--;
    leaf->param = p;
    leaf->requires_grad = p->requires_grad;
    tsr_release(e, p->value);
    p->value = leaf;
}

void tsr__reducer_make_handles(struct tsr_engine *e, struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_params; i++)
        make_handle(e, r->params[i], r->options.mp.param);
    for (size_t i = 0; i < r->n_frozen; i++)
        make_handle(e, r->frozen[i], r->options.mp.param);
}

static void cast_param(struct tsr_engine *e, struct tsr_param *p)
{
    tsr__storage_back(e, p->value->storage);
    if (!tsr__ok(e))
        return;
    tsr__operand_storage(e, p->master, TSR_READ, p->dtype);
    tsr__operand_storage(e, p->value->storage, TSR_WRITE, (tsr_dtype)p->value->dtype);
    tsr__emit_copy(e, (tsr_dtype)p->value->dtype, p->master->bytes, p->value->storage->bytes,
                   "param_cast");
}

/* What a backward before has reduced goes on in the dtype of the computation, where the next one
 * adds to it. */
static void cast_grad(struct tsr_engine *e, struct tsr_param *p)
{
    struct tsr_tensor *grad =
        tsr__tensor_like(e, p->full_grad, (tsr_dtype)p->value->dtype, TSR_CAT_UNSHARDED_GRAD);
    if (!grad || !tsr__ok(e)) {
        tsr_release(e, grad);
        return;
    }
    tsr__operand_tensor(e, p->full_grad, TSR_READ);
    tsr__operand_tensor(e, grad, TSR_WRITE);
    tsr__emit_copy(e, (tsr_dtype)grad->dtype, tsr__tensor_bytes(p->full_grad),
                   tsr__tensor_bytes(grad), "grad_cast");
    tsr_release(e, p->full_grad);
    p->full_grad = NULL;
    p->value->grad = grad;
}

/* Copies of frozen parameters stay, and are written anew each time. */
void tsr__reducer_cast(struct tsr_engine *e, struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = r->params[i];
        if (is_cast(p) && !p->value->storage->live)
            cast_param(e, p);
        if (is_cast(p) && p->full_grad && e->grad_enabled)
            cast_grad(e, p);
    }
    for (size_t i = 0; i < r->n_frozen && tsr__ok(e); i++)
        if (is_cast(r->frozen[i]))
            cast_param(e, r->frozen[i]);
}
