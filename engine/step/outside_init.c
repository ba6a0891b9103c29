/* outside_init.c: a model that is built whole, on the device or in host memory, and then sharded
 * call by call: full tensors and shards are there at once.
 */
#include "engine/step/outside_step.h"

/* A parameter that no group cuts is built for good. */
static struct tsr_storage *build_param(struct tsr_engine *e, const struct tsr_param *p)
{
    uint64_t bytes = tsr__full_bytes(p);
    if (e->config.init != TSR_INIT_DEVICE)
        return tsr__storage_empty(e, bytes, TSR_CAT_INIT, TSR_SPACE_HOST);
    return tsr__storage_new(e, bytes, p->fsdp ? TSR_CAT_INIT : TSR_CAT_SHARDED_PARAM);
}

static bool build_module(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->master)
            continue;
        e->origin.module = m->id;
        p->master = build_param(e, p);
        tsr__fill(e, p->master);
    }
    return tsr__ok(e);
}

/* module.to(device) of what was built on the host. */
static void move_to_device(struct tsr_engine *e, struct tsr_param *p, enum tsr_category category)
{
    if (!p->master || p->master->space == TSR_SPACE_DEVICE)
        return;
    struct tsr_storage *device = tsr__storage_new(e, tsr__full_bytes(p), category);
    tsr__transfer(e, p->master, 0, device, tsr__full_bytes(p), p->dtype, "h2d_param");
    tsr__storage_release(e, &p->master);
    p->master = device;
}

/* The padded shard of a full parameter, where the group keeps shards. */
static void cut_shard(struct tsr_engine *e, struct tsr_fsdp_param *f)
{
    struct tsr_param *p = f->param;
    uint64_t bytes = f->shard_numel * tsr_dtype_bytes(p->dtype);
    struct tsr_storage *shard = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_PARAM);
    tsr__fill(e, shard); /* new_zeros() */
    tsr__transfer(e, p->master, 0, shard, tsr__local_bytes(p), p->dtype, "cut_shard");
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
        move_to_device(e, g->params[i]->param, TSR_CAT_INIT);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (g->params[i]->param->master)
            cut_shard(e, g->params[i]);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->param->master);
    e->origin.group = TSR_NO_ID;
}

/* Outside every group: the module computes with the parameter itself. */
static bool keep_full(void *user, struct tsr_module *m)
{
    struct tsr_engine *e = user;
    for (size_t i = 0; i < m->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->meta || p->fsdp || p->value || !p->master)
            continue;
        e->origin.module = m->id;
        move_to_device(e, p, TSR_CAT_SHARDED_PARAM);
        p->value = tsr__tensor_view(e, p->master, p->dtype, p->n_dims, p->shape);
        if (!p->value)
            continue;
        p->value->param = p;
        p->value->requires_grad = p->requires_grad;
    }
    return tsr__ok(e);
}

void tsr__init_unsharded(struct tsr_engine *e)
{
    if (e->config.init == TSR_INIT_META)
        return;
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i]->tp)
            TSR__RAISE(e, TSR_EUNSUPPORTED,
                       "a tensor-parallel model that is built unsharded is not modelled");
    tsr__module_walk(e->tree.root, build_module, e);
    e->origin.module = TSR_NO_ID;
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            shard_group(e, e->fsdp->states[i]->groups[k]);
    tsr__module_walk(e->tree.root, keep_full, e);
    e->origin.module = TSR_NO_ID;
}
