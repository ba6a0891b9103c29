/* wrapper.c: fully_shard and replicate as the engine sees them: a table of functions
 * (graph/wrapper.h), with what they do before the first step.
 */
#include <stdlib.h>

#include "engine/fsdp/fsdp.h"
#include "engine/ops/transfer.h"

/* ---- parameters on the meta device ----------------------------------------------------------- */

void tsr__init_shard(struct tsr_engine *e, struct tsr_fsdp_param *f, struct tsr_storage **replaced)
{
    uint64_t item = tsr_dtype_bytes(f->param->dtype);
    enum tsr_offload offload = f->group->offload;
    if (offload != TSR_OFFLOAD_NONE) {
        if (f->sharded)
            return;
        f->sharded = tsr__storage_empty(e, f->shard_numel * item, TSR_CAT_SHARDED_PARAM,
                                        offload == TSR_OFFLOAD_CPU_PINNED ? TSR_SPACE_PINNED
                                                                          : TSR_SPACE_HOST);
        tsr__init_values(e, f->param, f->sharded, f->local_numel * item);
        return;
    }
    bool stays = f->local_numel == f->shard_numel && f->n_made + 1 == f->param->n_applied;
    struct tsr_storage *before = f->sharded;
    f->n_made++;
    f->sharded =
        tsr__storage_new(e, f->local_numel * item, stays ? TSR_CAT_SHARDED_PARAM : TSR_CAT_INIT);
    tsr__storage_release(e, replaced);
    if (f->is_registered)
        f->registered = before;
    else
        *replaced = before;
    if (f->local_numel == f->shard_numel)
        tsr__init_values(e, f->param, f->sharded, f->local_numel * item);
}

void tsr__pad_shards(struct tsr_engine *e, const struct tsr_state *s)
{
    for (size_t k = 0; k < s->n_groups; k++)
        for (size_t i = 0; i < s->groups[k]->n_params && tsr__ok(e); i++) {
            struct tsr_fsdp_param *f = s->groups[k]->params[i];
            uint64_t item = tsr_dtype_bytes(f->param->dtype), bytes = f->shard_numel * item;
            struct tsr_storage *before = f->sharded;
            f->is_registered = true;
            tsr__storage_release(e, &f->registered);
            if (!before || before->space != TSR_SPACE_DEVICE || before->bytes == bytes)
                continue;
            f->sharded = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_PARAM);
            tsr__storage_release(e, &before);
            tsr__init_values(e, f->param, f->sharded, f->local_numel * item);
        }
}

/* Two scalars that come and go while the module is built. */
static void init_scalars(struct tsr_engine *e)
{
    for (int i = 0; i < 2; i++) {
        struct tsr_storage *scalar = tsr__storage_new(e, 4, TSR_CAT_INIT);
        tsr__storage_release(e, &scalar);
    }
}

static bool is_all_meta(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (!e->tree.params[i]->meta)
            return false;
    return true;
}

static bool offloads(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            if (e->fsdp->states[i]->groups[k]->offload != TSR_OFFLOAD_NONE)
                return true;
    return false;
}

static void init_begin(struct tsr_engine *e, struct tsr_wrapper *w)
{
    (void)w;
    if (!offloads(e) && !is_all_meta(e))
        init_scalars(e);
}

static void init_param(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p,
                       struct tsr_storage **replaced)
{
    (void)w;
    tsr__init_shard(e, p->fsdp, replaced);
}

static void init_module(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_module *m)
{
    (void)w;
    tsr__pad_shards(e, m->state);
}

/* ---- a model that was built whole ------------------------------------------------------------ */

/* The padded shard of a full parameter, where the group keeps shards. */
static void cut_shard(struct tsr_engine *e, struct tsr_fsdp_param *f)
{
    struct tsr_param *p = f->param;
    uint64_t bytes = f->shard_numel * tsr_dtype_bytes(p->dtype);
    struct tsr_storage *shard = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_PARAM);
    tsr__fill(e, shard); /* new_zeros() */
    tsr__transfer(e, p->master, 0, shard, f->local_numel * tsr_dtype_bytes(p->dtype), p->dtype,
                  "cut_shard");
    if (f->group->offload != TSR_OFFLOAD_NONE) {
        struct tsr_storage *host =
            tsr__storage_empty(e, bytes, TSR_CAT_SHARDED_PARAM, TSR_SPACE_HOST);
        tsr__transfer(e, shard, 0, host, bytes, p->dtype, "d2h_shard");
        tsr__storage_release(e, &shard);
        shard = host;
    }
    if (f->group->offload == TSR_OFFLOAD_CPU_PINNED) {
        struct tsr_storage *pinned =
            tsr__storage_empty(e, bytes, TSR_CAT_SHARDED_PARAM, TSR_SPACE_PINNED);
        tsr__transfer(e, shard, 0, pinned, bytes, p->dtype, "pin_shard");
        tsr__storage_release(e, &shard);
        shard = pinned;
    }
    f->sharded = shard;
}

/* One fully_shard() call: its full parameters live until it returns. */
static void shard_group(struct tsr_engine *e, struct tsr_group *g)
{
    e->origin.group = g->id;
    for (size_t i = 0; i < g->n_params; i++)
        tsr__param_to_device(e, g->params[i]->param, TSR_CAT_INIT);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (g->params[i]->param->master)
            cut_shard(e, g->params[i]);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->param->master);
    e->origin.group = TSR_NO_ID;
}

static void shard_built_model(struct tsr_engine *e, struct tsr_wrapper *w)
{
    (void)w;
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            shard_group(e, e->fsdp->states[i]->groups[k]);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void configured(struct tsr_engine *e, struct tsr_wrapper *w,
                       const struct tsr_step_config *config)
{
    (void)w;
    e->fsdp->optimizer_reads_any = config->optimizer == TSR_OPT_ADAMW_FUSED;
    e->fsdp->clips = config->clip;
}

static tsr_status check_tensor_parallel(const struct tsr_engine *e, const struct tsr_wrapper *w)
{
    (void)w;
    for (size_t i = 0; i < e->tree.n_params; i++) {
        const struct tsr_param *p = e->tree.params[i];
        const struct tsr_group *g = p && p->tp && p->fsdp ? p->fsdp->group : NULL;
        if (g && g->post_forward_size > 0 && g->post_forward_size < g->shard_size)
            return tsr_fail(TSR_ENOTIMPL,
                            "resharding after forward to %u ranks does not support tensor "
                            "parallelism: %s",
                            g->post_forward_size, p->fqn);
    }
    return TSR_OK;
}

static void zero_grad(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p)
{
    (void)w;
    tsr__storage_release(e, &p->fsdp->grad);
}

/* Flags of the root and of all below it. A root that is not wrapped, or by FSDP1, has none. */
static tsr_status begin_micro_batch(struct tsr_engine *e, struct tsr_wrapper *w,
                                    enum tsr_accumulate rule, bool is_last)
{
    struct tsr_module *root = e->tree.root;
    (void)w;
    if (!root->state || root->state->flat)
        return TSR_OK;
    if (rule == TSR_ACCUM_NO_ALL_REDUCE)
        TSR_TRY(tsr_set_requires_all_reduce(e, root, is_last, true));
    else
        TSR_TRY(tsr_set_requires_gradient_sync(e, root, is_last, true));
    if (rule == TSR_ACCUM_NO_REDUCE_NO_RESHARD)
        TSR_TRY(tsr_set_reshard_after_backward(e, root, is_last, true));
    return tsr_set_is_last_backward(e, root, is_last);
}

static bool shards_over(const struct tsr_wrapper *w, uint16_t comm)
{
    const struct tsr_wrapped *wrapped = (const struct tsr_wrapped *)w;
    for (size_t i = 0; i < wrapped->n_states; i++)
        for (size_t k = 0; k < wrapped->states[i]->n_groups; k++)
            if (wrapped->states[i]->groups[k]->shard_comm == comm)
                return true;
    return false;
}

static bool leaves_grads_unscaled(const struct tsr_wrapper *w)
{
    return tsr__folds((const struct tsr_wrapped *)w);
}

/* ---- between steps --------------------------------------------------------------------------- */

static tsr_status state_dict(struct tsr_engine *e, struct tsr_wrapper *w)
{
    (void)w;
    return tsr_state_dict(e, e->tree.root);
}

static bool has_custom_collective(const struct tsr_engine *e)
{
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            if (e->fsdp->states[i]->groups[k]->custom_all_gather ||
                e->fsdp->states[i]->groups[k]->custom_reduce_scatter)
                return true;
    return false;
}

static uint64_t hash_rank(const struct tsr_engine *e, const struct tsr_wrapper *w, uint32_t rank,
                          uint64_t hash)
{
    (void)w;
    if (has_custom_collective(e))
        hash = tsr_hash_u64(hash, rank); /* SEND and RECV name peers: every rank does its own */
    for (size_t i = 0; i < e->tree.n_params; i++) {
        const struct tsr_param *p = e->tree.params[i];
        if (!p || !p->fsdp || p->fsdp->shard_dim < 0)
            continue;
        struct tsr_chunk c =
            tsr__chunk(p->shape[p->fsdp->shard_dim], p->fsdp->group->shard_size,
                       rank / p->fsdp->group->shard_stride % p->fsdp->group->shard_size);
        hash = tsr_hash_u64(hash, c.count);
    }
    return hash;
}

static void fini(struct tsr_wrapper *w)
{
    struct tsr_wrapped *wrapped = (struct tsr_wrapped *)w;
    free(wrapped->states);
}

const struct tsr_wrapper_ops tsr__fsdp_wrapper = {.check_tensor_parallel = check_tensor_parallel,
                                                  .shard_built_model = shard_built_model,
                                                  .configured = configured,
                                                  .init_begin = init_begin,
                                                  .init_param = init_param,
                                                  .init_module = init_module,
                                                  .zero_grad = zero_grad,
                                                  .begin_micro_batch = begin_micro_batch,
                                                  .shards_over = shards_over,
                                                  .leaves_grads_unscaled = leaves_grads_unscaled,
                                                  .after_optimizer = tsr__optimizer_stepped,
                                                  .values_changed = tsr__mirrors_are_stale,
                                                  .state_dict = state_dict,
                                                  .walk = tsr__walk_states,
                                                  .hash_rank = hash_rank,
                                                  .fini = fini};
