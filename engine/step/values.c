/* values.c: where the values of losses, parameters, gradients and optimizer states lie. */
#include "engine/step/step_impl.h"

static bool in_storage(const struct tsr_storage *s, uint64_t offset, tsr_dtype dtype,
                       uint64_t numel, struct tsr_values *out)
{
    if (!s || !s->live || numel == 0)
        return false;
    *out = (struct tsr_values){s->buffer, s->space, dtype, offset, numel};
    return true;
}

bool tsr_loss_values(const struct tsr_engine *e, uint32_t micro, struct tsr_values *out)
{
    const struct tsr_tensor *loss = micro < TSR_MAX_MICRO ? e->step->losses[micro] : NULL;
    return loss &&
           in_storage(loss->storage, loss->offset, (tsr_dtype)loss->dtype, loss->numel, out);
}

bool tsr_param_values(struct tsr_engine *e, size_t i, enum tsr_param_part part,
                      struct tsr_values *out)
{
    size_t n;
    struct tsr_param *const *params = tsr__params_in_order(e, &n);
    if (i >= n)
        return false;
    const struct tsr_param *p = params[i];
    uint64_t numel = tsr__param_local_numel(p);
    switch (part) {
    case TSR_PARAM_VALUE:
        return in_storage(tsr__param_storage(p), 0, p->dtype, numel, out);
    case TSR_PARAM_GRAD:
        return in_storage(tsr__param_grad(p), tsr__param_grad_offset(p), tsr__param_grad_dtype(p),
                          numel, out);
    case TSR_PARAM_STATE0:
    case TSR_PARAM_STATE1:
        break;
    }
    return in_storage(p->opt_state[part - TSR_PARAM_STATE0], 0, tsr__state_dtype(e, p), numel, out);
}
