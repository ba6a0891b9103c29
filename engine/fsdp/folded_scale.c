/* folded_scale.c: gradients that stay sums (OPTIONS.md, `folded_scale`): collectives only add, and
 * the fused optimizer multiplies by what is left to do, 1 / ranks and the factor of clipping, as it
 * reads them. Norms are those of the scaled gradients.
 */
#include "engine/fsdp/fsdp.h"

/* As for the divide factors (3.14), f16 might overflow if it were divided after the sum. */
bool tsr__is_folded(const struct tsr_group *g)
{
    tsr_dtype reduced = g->reduce_dtype != TSR_DTYPE_NONE ? g->reduce_dtype
                        : g->mp.param != TSR_DTYPE_NONE   ? g->mp.param
                                                          : g->orig_dtype;
    return g->folds && reduced != TSR_F16;
}

double tsr__folded_scale(const struct tsr_param *p)
{
    if (!p->fsdp || !tsr__is_folded(p->fsdp->group))
        return 1;
    const struct tsr_group *g = p->fsdp->group;
    double ranks = (double)g->shard_size * g->replicate_size;
    return 1 / (g->divide_factor != 0 ? g->divide_factor : ranks);
}

bool tsr__folds(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            if (e->fsdp->states[i]->groups[k]->folds)
                return true;
    return false;
}
