/* fsdp1_wrap.c: FSDP1 around a module: which parameters form its flat parameter, how they lie in
 * it, and how it is cut (FSDP1.md, F1 to F7).
 *
 * The flat parameter is a parameter like any other: one group holds it, cut evenly along its only
 * dimension, and so initialisation, optimizer, clipping and state dicts work on it. The original
 * parameters only compute, as views.
 */
#include "engine/fsdp1/fsdp1.h"

#include <string.h>

enum { ALIGNMENT = 16 }; /* bytes, of each original parameter in the compute dtype */

struct collect {
    struct tsr_engine *e;
    struct tsr_flat *f;
    size_t cap;
};

static tsr_status add_param(struct collect *c, struct tsr_param *p)
{
    struct tsr_flat *f = c->f;
    if (p->flat == f)
        return TSR_OK; /* tied inside the module: once */
    if (p->flat || p->fsdp)
        return tsr_fail(TSR_ERUNTIME,
                        "%s is tied to a parameter of another wrapped module: wrap a module that "
                        "contains both, or leave both to the root",
                        p->fqn);
    if (!p->requires_grad)
        return tsr_fail(TSR_EUNSUPPORTED, "%s is frozen, which fsdp1 does not model", p->fqn);
    if (f->n > 0 && p->dtype != f->params[0]->dtype)
        return tsr_fail(TSR_EVALUE,
                        "Must flatten tensors with uniform dtype but got %s and %s (%s)",
                        tsr_dtype_name(f->params[0]->dtype), tsr_dtype_name(p->dtype), p->fqn);
    if (p->tp)
        return tsr_fail(TSR_EUNSUPPORTED, "fsdp1 beside tensor parallelism is not modelled");
    p->flat = f;
    p->wrapper = &f->all->base;
    if (!TSR__ARENA_PUSH(c->e, f->params, f->n, c->cap, p))
        return c->e->status;
    return TSR_OK;
}

/* Pre-order, own parameters first; wrapped modules keep theirs. */
static tsr_status collect(struct collect *c, struct tsr_module *m)
{
    if (m->state)
        return TSR_OK;
    for (size_t i = 0; i < m->n_params; i++)
        TSR_TRY(add_param(c, m->params[i].param));
    for (size_t i = 0; i < m->n_children; i++)
        TSR_TRY(collect(c, m->children[i]));
    return TSR_OK;
}

static tsr_status add_gap(struct tsr_flat *f, uint64_t numel, uint64_t *at)
{
    if (numel > 0)
        f->gaps[f->n_gaps++] = numel;
    return tsr_add_u64(*at, numel, at) ? TSR_OK
                                       : tsr_fail(TSR_EVALUE, "a flat parameter is too large");
}

/* Every parameter begins at a multiple of 16 bytes, and the whole divides evenly (F4). */
static tsr_status lay_out(struct tsr_engine *e, struct tsr_flat *f, uint64_t *numel)
{
    uint64_t align = ALIGNMENT / tsr_dtype_bytes(f->compute), at = 0, world = f->all->shard_size;
    f->begin = tsr_arena_alloc(&e->arena, f->n * sizeof *f->begin);
    f->gaps = tsr_arena_alloc(&e->arena, (f->n + 1) * sizeof *f->gaps);
    f->views = tsr_arena_alloc(&e->arena, f->n * sizeof(struct tsr_tensor *));
    f->grads = tsr_arena_alloc(&e->arena, f->n * sizeof(struct tsr_tensor *));
    f->grad_events = tsr_arena_alloc(&e->arena, f->n * sizeof *f->grad_events);
    if (!f->begin || !f->gaps || !f->views || !f->grads || !f->grad_events)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    for (size_t i = 0; i < f->n; i++) {
        TSR_TRY(add_gap(f, (align - at % align) % align, &at));
        f->begin[i] = at;
        if (!tsr_add_u64(at, f->params[i]->numel, &at))
            return tsr_fail(TSR_EVALUE, "a flat parameter is too large");
    }
    TSR_TRY(add_gap(f, (world - at % world) % world, &at));
    *numel = at;
    return TSR_OK;
}

/* ---- the mesh -------------------------------------------------------------------------------- */

static uint16_t comm(struct tsr_engine *e, const char *role, uint32_t size, uint32_t stride)
{
    return size > 1 ? tsr__comm_add(e, role, size, stride, UINT16_MAX) : UINT16_MAX;
}

static double pre_divide(double world)
{
    double factor = 1, n = world;
    while ((uint64_t)n % (uint64_t)factor == 0 && n / factor > factor)
        factor *= 2;
    return factor;
}

static tsr_status set_mesh(struct tsr_engine *e, struct tsr_fsdp1 *all)
{
    struct tsr_submesh mesh;
    TSR_TRY(tsr__submesh(e, NULL, 0, &mesh));
    if (mesh.n_dims != 1 && mesh.n_dims != 2)
        return tsr_fail(TSR_EVALUE, "fsdp1 expects a 1D or 2D mesh but got %dD", mesh.n_dims);
    int last = mesh.n_dims - 1;
    all->shard_size = mesh.size[last];
    all->shard_stride = mesh.stride[last];
    all->replicate_size = mesh.n_dims == 2 ? mesh.size[0] : 1;
    all->replicate_stride = mesh.n_dims == 2 ? mesh.stride[0] : 1;
    all->hybrid = all->replicate_size > 1 && all->shard_size > 1;
    all->shard_comm = comm(e, "shard", all->shard_size, all->shard_stride);
    all->replicate_comm = comm(e, "replicate", all->replicate_size, all->replicate_stride);
    double world = (double)all->shard_size * all->replicate_size;
    all->pre_divide = pre_divide(world);
    all->post_divide = world / all->pre_divide;
    return e->status;
}

static bool same_options(const struct tsr_fsdp1_options *a, const struct tsr_fsdp1_options *b)
{
    return a->mp.param == b->mp.param && a->mp.reduce == b->mp.reduce &&
           a->backward_prefetch == b->backward_prefetch &&
           a->forward_prefetch == b->forward_prefetch && a->no_limit == b->no_limit;
}

static tsr_status shared(struct tsr_engine *e, const struct tsr_fsdp1_options *options,
                         struct tsr_fsdp1 **out)
{
    *out = e->fsdp1;
    if (e->fsdp1 && !same_options(&e->fsdp1->options, options))
        return tsr_fail(TSR_EVALUE, "fsdp1: all modules of a model have the same options");
    if (e->fsdp1)
        return TSR_OK;
    struct tsr_fsdp1 *all = *out = tsr_arena_alloc(&e->arena, sizeof *all);
    if (!all)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    all->options = *options;
    all->sync = all->first_iteration = true;
    TSR_TRY(set_mesh(e, all));
    e->fsdp1 = all;
    return TSR_OK;
}

/* ---- the flat parameter ---------------------------------------------------------------------- */

static tsr_status make_param(struct tsr_engine *e, struct tsr_flat *f, const struct tsr_module *m,
                             uint64_t numel)
{
    struct tsr_param *p = f->param = tsr_arena_alloc(&e->arena, sizeof *p);
    struct tsr_fsdp_param *s = f->shard = tsr_arena_alloc(&e->arena, sizeof *s);
    uint64_t bytes;
    if (!p || !s)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    if (!tsr_mul_u64(numel, 64, &bytes))
        return tsr_fail(TSR_EVALUE, "the flat parameter of %s is too large", m->fqn);
    *p = *f->params[0];
    p->fqn = *m->fqn ? tsr_arena_printf(&e->arena, "%s._flat_param", m->fqn)
                     : tsr_arena_strdup(&e->arena, "_flat_param");
    p->name = tsr_arena_strdup(&e->arena, "_flat_param");
    p->n_dims = 1;
    p->shape[0] = p->numel = numel;
    p->id = (uint32_t)e->tree.n_params;
    p->fsdp = s;
    if (!p->fqn || !p->name || !TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, p))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    s->param = p;
    s->group = f->group;
    s->shard_dim = 0;
    s->orig_dtype = p->dtype;
    s->local[0] = s->padded[0] = s->local_numel = s->shard_numel = numel / f->all->shard_size;
    for (int i = 1; i < 4; i++)
        p->shape[i] = s->local[i] = s->padded[i] = 1;
    return TSR_OK;
}

static tsr_status make_group(struct tsr_engine *e, struct tsr_flat *f)
{
    const struct tsr_fsdp1 *all = f->all;
    struct tsr_group *g = f->group = tsr_arena_alloc(&e->arena, sizeof *g);
    if (!g)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    g->state = f->state;
    g->params = &f->shard;
    g->n_params = 1;
    g->is_hsdp = all->replicate_size > 1;
    g->shard_size = all->shard_size;
    g->shard_stride = all->shard_stride;
    g->shard_rank = e->config.rank / all->shard_stride % all->shard_size;
    g->replicate_size = all->replicate_size;
    g->replicate_stride = all->replicate_stride;
    g->shard_comm = g->reduce_comm = all->shard_comm;
    g->replicate_comm = all->replicate_comm;
    g->post_forward_comm = UINT16_MAX;
    g->post_forward_size = f->reshards_after_forward ? all->shard_size : 0;
    g->mesh_dim[1] = 1;
    g->n_mesh_dims = all->replicate_size > 1 ? 2 : 1;
    g->mesh_dim[0] = 0;
    if (g->n_mesh_dims == 1 && e->config.mesh.n_dims == 2)
        g->mesh_dim[0] = 1; /* one replica: the shard dimension is the second one */
    g->mp = all->options.mp;
    g->lazy_done = g->reduce_grads = g->all_reduce_grads = true;
    g->hook_stream = UINT16_MAX;
    return TSR_OK;
}

static tsr_status make_flat(struct tsr_engine *e, struct tsr_flat *f, struct tsr_module *m,
                            bool keeps)
{
    struct collect c = {.e = e, .f = f};
    const struct tsr_mp_policy *mp = &f->all->options.mp;
    uint64_t numel = 0;
    for (size_t i = 0; i < m->n_params; i++)
        TSR_TRY(add_param(&c, m->params[i].param));
    for (size_t i = 0; i < m->n_children; i++)
        TSR_TRY(collect(&c, m->children[i]));
    if (f->n == 0)
        return TSR_OK; /* hooks without a handle */
    tsr_dtype orig = f->params[0]->dtype;
    f->compute = mp->param != TSR_DTYPE_NONE ? mp->param : orig;
    f->reduce = mp->reduce != TSR_DTYPE_NONE ? mp->reduce : f->compute; /* F9 */
    f->sharded = f->all->shard_size > 1;
    f->reshards_after_forward = f->sharded && !keeps;
    TSR_TRY(lay_out(e, f, &numel));
    TSR_TRY(make_group(e, f));
    TSR_TRY(make_param(e, f, m, numel));
    struct tsr_fsdp_param *s = f->shard;
    s->param_dtype = f->compute == orig ? TSR_DTYPE_NONE : f->compute;
    s->reduce_dtype = f->reduce == f->compute ? TSR_DTYPE_NONE : f->reduce;
    f->group->shard_numel = s->shard_numel;
    f->group->orig_dtype = orig;
    for (size_t i = 0; i < f->n; i++)
        f->params[i]->whole = f->param;
    f->param->whole = f->param;
    return TSR_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static tsr_status register_group(struct tsr_engine *e, struct tsr_state *s, struct tsr_group *g)
{
    size_t n = e->emit.tables.n_groups;
    g->id = (uint32_t)n;
    g->name = s->name;
    if (!tsr__arena_grow(e, &e->fsdp->group_names, n, &e->fsdp->cap_group_names,
                         sizeof *e->fsdp->group_names))
        return e->status;
    e->fsdp->group_names[n] = s->name;
    e->emit.tables.groups = e->fsdp->group_names;
    e->emit.tables.n_groups = (uint32_t)n + 1;
    return TSR_OK;
}

/* PyTorch cannot flatten DTensors. Modules that are not inside of each other may be wrapped by both
 * APIs there, in either order, which is not modelled. */
static tsr_status check_others(const struct tsr_engine *e, const struct tsr_module *m)
{
    for (size_t i = 0; i < e->fsdp->n_states; i++) {
        const struct tsr_state *s = e->fsdp->states[i];
        for (size_t k = 0; k < s->n_modules && !s->flat; k++)
            if (tsr__module_contains(m, s->modules[k]))
                return tsr_fail(TSR_ERUNTIME,
                                "aten.cat.default: got mixed torch.Tensor and DTensor: '%s' has "
                                "parameters that fully_shard or replicate manages",
                                s->modules[k]->fqn);
        if (!s->flat)
            return tsr_fail(TSR_EUNSUPPORTED,
                            "fsdp1 beside fully_shard or replicate is not modelled");
    }
    if (e->reducer)
        return tsr_fail(TSR_EUNSUPPORTED, "fsdp1 beside ddp is not modelled");
    return TSR_OK;
}

static tsr_status check_call(const struct tsr_engine *e, const struct tsr_module *m)
{
    if (m->no_forward)
        return tsr_fail(TSR_EVALUE, "fsdp1 does not support containers without forward: '%s'",
                        m->fqn);
    if (m->state)
        return tsr_fail(TSR_EASSERT, "module '%s' is wrapped already", m->fqn);
    TSR_TRY(check_others(e, m));
    if (e->config.init != TSR_INIT_META)
        return tsr_fail(TSR_EUNSUPPORTED, "a model that is built whole is not modelled with fsdp1");
    return TSR_OK;
}

tsr_status tsr_fsdp1(struct tsr_engine *e, struct tsr_module *m,
                     const struct tsr_fsdp1_options *options)
{
    static const struct tsr_fsdp1_options defaults;
    TSR_TRY(check_call(e, m));
    struct tsr_flat *f = tsr_arena_alloc(&e->arena, sizeof *f);
    struct tsr_state *s = tsr_arena_alloc(&e->arena, sizeof *s);
    if (!f || !s)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    TSR_TRY(shared(e, options ? options : &defaults, &f->all));
    s->modules = tsr_arena_alloc(&e->arena, sizeof(struct tsr_module *));
    s->ctx = tsr_arena_alloc(&e->arena, sizeof *s->ctx);
    s->comm = tsr_arena_alloc(&e->arena, sizeof *s->comm);
    if (!s->modules || !s->ctx || !s->comm)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    s->modules[0] = m;
    s->n_modules = 1;
    s->name = m->fqn;
    s->flat = f;
    f->state = s;
    f->pre_index = f->post_index = -1;
    TSR_TRY(make_flat(e, f, m, options && options->keep_after_forward));
    if (f->group) {
        s->groups = &f->group;
        s->n_groups = 1;
        TSR_TRY(register_group(e, s, f->group));
        tsr__set_cut(f->shard);
    }
    m->state = s;
    m->wrapper = &f->all->base;
    m->hooks = &tsr__fsdp1_hooks;
    e->tree.n_wrapped++;
    tsr__wrapper_add(e, &e->fsdp->base, &tsr__fsdp_wrapper); /* it has the states */
    tsr__wrapper_add(e, &f->all->base, &tsr__fsdp1_wrapper);
    if (!TSR_PUSH(e->fsdp->states, e->fsdp->n_states, e->fsdp->cap_states, s))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    return e->status;
}

tsr_status tsr_fsdp1_set_sync(struct tsr_engine *e, bool sync)
{
    if (!e->fsdp1)
        return tsr_fail(TSR_EATTRIBUTE, "the model has no attribute 'no_sync'");
    e->fsdp1->sync = sync;
    return TSR_OK;
}

void tsr_fsdp1_as_checked(struct tsr_engine *e)
{
    if (e->fsdp1)
        e->fsdp1->as_checked = true;
}
