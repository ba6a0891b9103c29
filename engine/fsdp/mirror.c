/* mirror.c: shards that are kept in the compute dtype as well (OPTIONS.md, `mirror`).
 *
 * Gathers read that copy, so nothing is cast before them; the fused optimizer writes it beside the
 * shard, other writers make it stale. Where one rank holds all of a parameter, modules compute with
 * the copy, or with the shard itself if nothing is cast: nothing is copied at all.
 *
 * The same holds for gradients there: the optimizer reads what backward wrote.
 *
 * A group has one buffer, its cast shards one behind the other in the order of the group, as the
 * cast before an all-gather lays them out.
 */
#include "engine/fsdp/fsdp.h"

bool tsr__is_mirrored(const struct tsr_fsdp_param *p)
{
    return p->group->mirrors && p->param_dtype != TSR_DTYPE_NONE && !p->extension;
}

bool tsr__is_aliased(const struct tsr_group *g)
{
    return g->mirrors && g->shard_size == 1;
}

static uint64_t mirror_bytes(const struct tsr_fsdp_param *p)
{
    return p->shard_numel * tsr_dtype_bytes(p->param_dtype);
}

/* The buffer, without values. */
static void make_mirror(struct tsr_engine *e, struct tsr_group *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        if (!tsr__is_mirrored(g->params[i]))
            continue;
        g->params[i]->mirror_offset = bytes;
        bytes += mirror_bytes(g->params[i]);
    }
    if (bytes > 0)
        g->mirror = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_PARAM);
}

static void cast_shards(struct tsr_engine *e, struct tsr_group *g)
{
    uint64_t read = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!tsr__is_mirrored(p))
            continue;
        tsr__slot(e, 0);
        tsr__operand_storage(e, p->sharded, TSR_READ, p->orig_dtype);
        read += p->shard_numel * tsr_dtype_bytes(p->orig_dtype);
    }
    tsr__slot(e, 1);
    tsr__operand_storage(e, g->mirror, TSR_WRITE, g->mp.param);
    tsr__emit_copy(e, g->mp.param, read, g->mirror->bytes, "all_gather_cast");
}

struct tsr_storage *tsr__mirror(struct tsr_engine *e, struct tsr_group *g)
{
    if (!g->mirror)
        make_mirror(e, g);
    if (g->mirror && !g->mirror_is_fresh && tsr__ok(e))
        cast_shards(e, g);
    g->mirror_is_fresh = tsr__ok(e);
    return g->mirror;
}

static struct tsr_tensor *alias_of(struct tsr_engine *e, const struct tsr_fsdp_param *p)
{
    bool mirrored = tsr__is_mirrored(p);
    struct tsr_tensor *t = tsr__tensor_view(e, mirrored ? p->group->mirror : p->sharded,
                                            mirrored ? p->param_dtype : p->orig_dtype,
                                            p->param->n_dims, p->param->shape);
    if (!t)
        return NULL;
    t->offset = mirrored ? p->mirror_offset : 0;
    t->param = p->param;
    return t;
}

void tsr__alias_unsharded(struct tsr_engine *e, struct tsr_group *g)
{
    (void)tsr__mirror(e, g);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (!g->params[i]->unsharded)
            g->params[i]->unsharded = alias_of(e, g->params[i]);
}

/* The optimizer and the norm read gradients of any dtype, once; whoever writes them needs the dtype
 * of the parameter. */
static bool reads_any_gradient(const struct tsr_engine *e)
{
    return e->fsdp->optimizer_reads_any && (!e->fsdp->clips || tsr__folds(e->fsdp)) &&
           e->shape.n_micro == 1;
}

/* Reducing alone adds nothing; to leave it out, neither of its casts may round. */
static bool is_kept(const struct tsr_group *g, const struct tsr_reduce_item *item)
{
    const struct tsr_fsdp_param *p = item->p;
    tsr_dtype dtype = (tsr_dtype)item->grad->dtype;
    tsr_dtype compute = p->param_dtype != TSR_DTYPE_NONE ? p->param_dtype : p->orig_dtype;
    tsr_dtype reduce = g->reduce_dtype != TSR_DTYPE_NONE ? g->reduce_dtype : dtype;
    return dtype == compute && (reduce == dtype || reduce == TSR_F32) && p->orig_dtype == TSR_F32 &&
           item->grad->pitch == 0 && !p->grad && !p->grad_hook;
}

bool tsr__keep_gradients(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item *items,
                         size_t n)
{
    bool alone = tsr__is_aliased(g) && !g->is_replicate && !g->is_hsdp && !g->has_hook &&
                 !g->custom_reduce_scatter && (g->divide_factor == 0 || tsr__is_folded(g));
    if (!alone || !reads_any_gradient(e))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_kept(g, &items[i]))
            return false;
    for (size_t i = 0; i < n; i++) {
        struct tsr_fsdp_param *p = items[i].p;
        p->grad = items[i].grad->storage;
        p->grad_offset = items[i].grad->offset;
        p->kept_grad = true;
        tsr__storage_retain(p->grad);
        tsr_release(e, items[i].grad);
        items[i].grad = NULL;
    }
    return true;
}

void tsr__mirrors_are_stale(struct tsr_engine *e, struct tsr_wrapper *w)
{
    (void)w;
    for (size_t i = 0; i < e->fsdp->n_states; i++)
        for (size_t k = 0; k < e->fsdp->states[i]->n_groups; k++)
            e->fsdp->states[i]->groups[k]->mirror_is_fresh = false;
}
