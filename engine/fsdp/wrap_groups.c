/* wrap_groups.c: the groups of a call: which parameters are gathered together (sections 2.1 and
 * 2.9), over which ranks (2.5-2.8), and how each is cut (2.2-2.4).
 */
#include "engine/fsdp/fsdp.h"
#include "engine/ops/ops_common.h"

#include <stdio.h>
#include <string.h>

/* ---- ties ------------------------------------------------------------------------------------ */

/* A parameter that modules share is untied when a call of fully_shard() holds only some of its
 * places (section 2.1, Q7). */
struct tie_walk {
    struct tsr_engine *e;
    struct tsr_param *param, *copy;
    struct tsr_module *const *targets;
    size_t n_targets;
    bool inside;             /* whether modules below the targets or the others are wanted */
    struct tsr_place *first; /* first wanted place */
    struct tsr_module *first_module;
};

static bool is_below_targets(const struct tie_walk *w, const struct tsr_module *m)
{
    for (size_t i = 0; i < w->n_targets; i++)
        if (tsr__module_contains(w->targets[i], m))
            return true;
    return false;
}

/* Finds the first place of the parameter on the wanted side; gives all of them the copy, if any. */
static bool visit_tied(void *user, struct tsr_module *m)
{
    struct tie_walk *w = user;
    for (size_t i = 0; i < m->n_params; i++) {
        if (m->params[i].param != w->param || is_below_targets(w, m) != w->inside)
            continue;
        if (!w->first) {
            w->first = &m->params[i];
            w->first_module = m;
        }
        if (w->copy)
            m->params[i].param = w->copy;
    }
    return true;
}

static const char *place_fqn(const struct tie_walk *w)
{
    return *w->first_module->fqn
               ? tsr_arena_printf(&w->e->arena, "%s.%s", w->first_module->fqn, w->first->name)
               : w->first->name;
}

/* Only the places inside the call's modules get the group's parameter. What is tied to it outside
 * stays a parameter of its own; whichever side does not hold the first name gets a copy. */
static tsr_status break_tie(struct tsr_engine *e, struct tsr_module *const *targets,
                            size_t n_targets, struct tsr_param **param)
{
    struct tsr_param *p = *param;
    if (p->n_places == 1) /* the walk would see the whole model, once for each parameter */
        return e->status;
    struct tie_walk in = {e, p, NULL, targets, n_targets, true, NULL, NULL};
    struct tie_walk out = in;
    out.inside = false;
    tsr__module_walk(e->tree.root, visit_tied, &out);
    if (!out.first)
        return e->status; /* not tied, or only inside */
    tsr__module_walk(e->tree.root, visit_tied, &in);
    const char *name = place_fqn(&in);
    bool keeps = name && strcmp(name, p->fqn) == 0;
    struct tie_walk *side = keeps ? &out : &in;
    struct tsr_param *copy = tsr_arena_alloc(&e->arena, sizeof *copy);
    if (!copy || !name)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    *copy = *p;
    copy->untied_from = p->untied_from ? p->untied_from : p;
    copy->value = NULL;
    copy->id = (uint32_t)e->tree.n_params;
    copy->fqn = tsr_arena_strdup(&e->arena, place_fqn(side));
    if (!copy->fqn || !TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, copy))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    side->copy = copy;
    tsr__module_walk(e->tree.root, visit_tied, side);
    if (!keeps)
        *param = copy;
    return e->status;
}

/* ---- reshard_after_forward --------------------------------------------------------------------
 */

/* Section 2.5. Sets post_forward_size: 0 keep, W sharded, else the smaller group. */
static tsr_status resolve_reshard(const struct tsr_wrap_options *o, uint32_t world, uint32_t *size)
{
    *size = world;
    if (o->reshard_invalid)
        return tsr_fail(TSR_EVALUE,
                        "reshard_after_forward should be a bool or an int representing the group "
                        "size to reshard to, not %s",
                        o->reshard_invalid);
    if (o->reshard == TSR_RESHARD_FALSE)
        *size = 0;
    if (o->reshard != TSR_RESHARD_INT)
        return TSR_OK;
    int64_t v = o->reshard_int;
    if (v <= 0 || v > (int64_t)world || world % (uint32_t)v != 0)
        return tsr_fail(TSR_EVALUE,
                        "If passing reshard_after_forward as an int, it should be a factor of %u, "
                        "not %lld",
                        world, (long long)v);
    /* a smaller group of one rank would keep everything: as False (R50) */
    *size = v == 1 ? 0 : (uint32_t)v;
    return TSR_OK;
}

/* ---- one parameter -----------------------------------------------------------------------------
 */

static const char *shape_text(struct tsr_engine *e, int n, const uint64_t *shape)
{
    char text[192] = "["; /* six numbers of 20 digits */
    size_t used = 1;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)shape[i]);
    snprintf(text + used, sizeof text - used, "]");
    const char *copy = tsr_arena_strdup(&e->arena, text);
    return copy ? copy : "";
}

static tsr_status choose_dim(struct tsr__wrap_call *c, struct tsr_param *p, uint32_t world,
                             int *out)
{
    int dim = 0;
    for (size_t i = 0; i < c->options->n_shard_dims; i++) {
        const struct tsr_shard_dim *s = &c->options->shard_dims[i];
        if (!tsr_glob(s->pattern, p->fqn))
            continue;
        if (s->replicate)
            return tsr_fail(TSR_EATTRIBUTE, "'Replicate' object has no attribute 'dim'");
        dim = s->dim;
        break;
    }
    if (dim < 0)
        dim += p->n_dims;
    const char *shape = shape_text(c->e, p->n_dims, p->shape);
    if (dim < 0 || dim >= p->n_dims)
        return tsr_fail(TSR_EASSERT, "Shard dim %d is invalid for %dD tensor: %s", dim, p->n_dims,
                        shape);
    /* along dim 0 padding is the end of the flat buffer; elsewhere it would lie in every row (R32)
     */
    if (dim > 0 && p->shape[dim] % world != 0)
        return tsr_fail(TSR_ENOTIMPL,
                        "FSDP does not support uneven sharding on dim %d: %s (world size: %u)", dim,
                        shape, world);
    *out = dim;
    return TSR_OK;
}

static tsr_status check_contiguous(struct tsr__wrap_call *c, const struct tsr_param *p)
{
    if (!p->noncontiguous)
        return TSR_OK;
    uint64_t stride[TSR_MAX_DIMS] = {0};
    uint64_t step = 1;
    for (int i = 0; i < p->n_dims; i++) { /* stored transposed */
        stride[i] = step;
        step *= p->shape[i];
    }
    return tsr_fail(TSR_ENOTIMPL,
                    "FSDP does not support non-contiguous parameters yet: %s has shape %s, "
                    "stride %s",
                    p->fqn, shape_text(c->e, p->n_dims, p->shape),
                    shape_text(c->e, p->n_dims, stride));
}

static void cut(struct tsr_fsdp_param *f, uint32_t world, uint32_t rank)
{
    const struct tsr_param *p = f->param;
    memcpy(f->local, p->shape, sizeof f->local);
    memcpy(f->padded, p->shape, sizeof f->padded);
    if (f->shard_dim >= 0) {
        struct tsr_chunk chunk = tsr__chunk(p->shape[f->shard_dim], world, rank);
        f->local[f->shard_dim] = chunk.count;
        f->padded[f->shard_dim] = chunk.rows;
    }
    f->local_numel = f->shard_numel = 1;
    for (int i = 0; i < p->n_dims; i++) {
        f->local_numel *= f->local[i];
        f->shard_numel *= f->padded[i];
    }
}

/* Places of the group's parameters inside the call's modules, walked without de-duplication. */
static void find_aliases(struct tsr_engine *e, const struct tsr_group *g, struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_fsdp_param *f = m->params[i].param->fsdp;
        if (!f || f->group != g)
            continue;
        char *fqn = *m->fqn ? tsr_arena_printf(&e->arena, "%s.%s", m->fqn, m->params[i].name)
                            : m->params[i].name;
        TSR__ARENA_PUSH(e, f->aliases, f->n_aliases, f->cap_aliases, fqn);
    }
    for (size_t i = 0; i < m->n_children; i++)
        find_aliases(e, g, m->children[i]);
}

/* The first place is the parameter's name. */
static void name_aliases(struct tsr__wrap_call *c, const struct tsr_group *g)
{
    for (size_t i = 0; i < c->n_targets; i++)
        find_aliases(c->e, g, c->targets[i]);
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *f = g->params[i];
        f->n_aliases -= f->n_aliases > 0;
        f->aliases += f->aliases ? 1 : 0;
    }
}

static tsr_status make_param(struct tsr__wrap_call *c, struct tsr_group *g, struct tsr_param *p,
                             struct tsr_fsdp_param **out)
{
    struct tsr_engine *e = c->e;
    int dim = -1;
    TSR_TRY(check_contiguous(c, p));
    if (tsr__is_spmd(c) && !p->tp)
        return tsr_fail(TSR_EVALUE,
                        "with dp_mesh_dims every parameter must be a DTensor on the mesh, but %s "
                        "is a plain tensor",
                        p->fqn);
    TSR_TRY(tsr__check_dtensor_param(p, g->is_hsdp));
    if (!c->replicate)
        TSR_TRY(choose_dim(c, p, g->shard_size, &dim));
    TSR_TRY(tsr__check_dtensor_dim(e, p, g->shard_size, dim));
    TSR_TRY(break_tie(e, c->targets, c->n_targets, &p));
    struct tsr_fsdp_param *f = tsr_arena_alloc(&e->arena, sizeof *f);
    if (!f)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    f->param = p;
    f->group = g;
    f->shard_dim = dim;
    cut(f, g->shard_size, g->shard_rank);
    p->fsdp = f;
    p->wrapper = &e->fsdp->base;
    *out = f;
    return TSR_OK;
}

/* ---- the group ---------------------------------------------------------------------------------
 */

/* The ranks that a group spans. */
struct span {
    const void *identity; /* of the user's mesh info; NULL: the engine's mesh */
    uint32_t size, stride, replicas, replica_stride;
    bool replicate, hsdp;
};

static struct span default_span(const struct tsr__wrap_call *c)
{
    const struct tsr_submesh *m = &c->mesh;
    int last = m->n_dims - 1;
    if (c->replicate)
        return (struct span){NULL, 1, 1, m->size[last], m->stride[last], true, false};
    bool hsdp = m->n_dims == 2;
    return (struct span){NULL,  m->size[last], m->stride[last], hsdp ? m->size[0] : 1, m->stride[0],
                         false, hsdp};
}

static bool same_ranks(const struct span *a, const struct span *b)
{
    return a->size == b->size && a->stride == b->stride && a->replicas == b->replicas &&
           (a->replicas == 1 || a->replica_stride == b->replica_stride);
}

/* Dimensions of the engine's mesh keep their names; other meshes are called by their shape. */
static uint16_t comm_of(struct tsr__wrap_call *c, const char *role, const struct span *s,
                        uint32_t size, uint32_t stride)
{
    const struct tsr_mesh *mesh = &c->e->config.mesh;
    char name[64];
    if (s->identity)
        snprintf(name, sizeof name, "%s_%ux%u", role, size, stride);
    else
        snprintf(name, sizeof name, "%s", role);
    /* a 1-D mesh has one process group, whatever uses it; so has a dimension that was named */
    bool is_named = mesh->n_dims == 1 || c->options->n_mesh_dims > 0 || tsr__is_spmd(c);
    for (int i = 0; is_named && !s->identity && i < c->mesh.n_dims; i++)
        if (c->mesh.dim[i] >= 0 && c->mesh.stride[i] == stride && c->mesh.size[i] == size &&
            mesh->name[c->mesh.dim[i]][0])
            snprintf(name, sizeof name, "%s", mesh->name[c->mesh.dim[i]]);
    return tsr__comm_add(c->e, name, size, stride, UINT16_MAX);
}

static void group_mesh(struct tsr__wrap_call *c, struct tsr_group *g, const struct span *s)
{
    g->shard_comm = g->replicate_comm = g->post_forward_comm = UINT16_MAX;
    g->is_replicate = s->replicate;
    g->is_hsdp = s->hsdp || (!s->replicate && s->replicas > 1);
    g->shard_size = s->size;
    g->shard_stride = s->stride;
    g->shard_rank = c->e->config.rank / s->stride % s->size;
    g->replicate_size = s->replicas;
    g->replicate_stride = s->replica_stride;
    for (int i = 0; !s->identity && i < c->mesh.n_dims; i++)
        g->mesh_dim[g->n_mesh_dims++] = c->mesh.dim[i];
    if (!s->replicate)
        g->shard_comm = comm_of(c, "shard", s, s->size, s->stride);
    if (s->replicate || g->is_hsdp)
        g->replicate_comm = comm_of(c, "replicate", s, s->replicas, s->replica_stride);
    g->reduce_comm = g->shard_comm;
}

tsr_status tsr__group_set_post_forward(struct tsr_engine *e, struct tsr_group *g, uint32_t size)
{
    g->post_forward_size = size;
    if (size > 0 && size < g->shard_size) {
        char name[48];
        snprintf(name, sizeof name, "post_forward_%u", size);
        g->post_forward_comm = tsr__comm_add(e, name, size, g->shard_stride, UINT16_MAX);
    }
    return e->status;
}

static void group_defaults(struct tsr__wrap_call *c, struct tsr_group *g)
{
    g->reshard_kind = c->replicate ? TSR_RESHARD_FALSE : c->options->reshard;
    g->mp = c->options->mp;
    g->offload = c->options->offload;
    g->mirrors = c->options->mirror;
    g->direct = c->options->direct;
    g->folds = c->options->folds;
    g->reduce_grads = g->all_reduce_grads = true;
    g->reshard_after_backward = g->unshard_in_backward = true;
    g->hook_stream = UINT16_MAX;
    g->max_reduce_inputs = 1;
}

static bool keeps_precision(const struct tsr__wrap_call *c, const char *fqn)
{
    for (size_t i = 0; i < c->options->n_full_precision; i++)
        if (tsr_glob(c->options->full_precision[i], fqn))
            return true;
    return false;
}

/* One group: the call's parameters whose span is `span`. */
static tsr_status make_group(struct tsr__wrap_call *c, struct tsr_state *s, const struct span *span,
                             const uint32_t *span_of, uint32_t which)
{
    struct tsr_engine *e = c->e;
    struct tsr_group *g = tsr_arena_alloc(&e->arena, sizeof *g);
    if (!g)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    group_mesh(c, g, span);
    uint32_t size = 0;
    if (!span->replicate)
        TSR_TRY(resolve_reshard(c->options, g->shard_size, &size));
    TSR_TRY(tsr__group_set_post_forward(e, g, size));
    if (c->n_params == 0)
        return TSR_OK; /* the state has no group; its hooks still run */
    g->state = s;
    group_defaults(c, g);
    g->params = tsr_arena_alloc(&e->arena, c->n_params * sizeof *g->params);
    if (!g->params)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    for (size_t i = 0; i < c->n_params; i++) {
        if (span_of[i] != which)
            continue;
        struct tsr_fsdp_param **p = &g->params[g->n_params];
        TSR_TRY(make_param(c, g, c->params[i], p));
        (*p)->full_precision = keeps_precision(c, c->params[i]->fqn);
        (*p)->fp8 = !g->is_replicate && tsr__fp8_gathers(e, c->params[i]);
        g->shard_numel += (*p)->shard_numel;
        g->n_params++;
    }
    name_aliases(c, g);
    g->index = (uint32_t)s->n_groups;
    s->groups[s->n_groups++] = g;
    return TSR_OK;
}

static tsr_status span_of_param(const struct tsr__wrap_call *c, const char *fqn, struct span *out)
{
    const struct tsr_wrap_options *o = c->options;
    *out = default_span(c);
    for (size_t i = 0; i < o->n_param_meshes; i++) {
        const struct tsr_param_mesh *m = &o->param_meshes[i];
        if (!tsr_glob(m->pattern, fqn))
            continue;
        if (c->replicate)
            return tsr_fail(TSR_EVALUE, "%s: a mesh per parameter needs fully_shard", fqn);
        uint64_t ranks = (uint64_t)m->size * m->stride;
        if (m->size == 0 || m->stride == 0 || m->replicas == 0 || ranks > c->e->world ||
            c->e->world % ranks != 0)
            return tsr_fail(TSR_EVALUE,
                            "%s: groups of %u ranks with stride %u do not tile %u ranks", fqn,
                            m->size, m->stride, c->e->world);
        *out = (struct span){m->identity ? m->identity : m,
                             m->size,
                             m->stride,
                             m->replicas,
                             m->replica_stride,
                             false,
                             m->replicas > 1};
        return TSR_OK;
    }
    return TSR_OK;
}

/* Buckets the parameters by (shard group, replicate group), in first-seen order (R54). */
tsr_status tsr__make_groups(struct tsr__wrap_call *c, struct tsr_state *s)
{
    size_t n = c->n_params ? c->n_params : 1;
    struct span *spans = tsr_arena_alloc(&c->e->arena, n * sizeof *spans);
    uint32_t *span_of = tsr_arena_alloc(&c->e->arena, n * sizeof *span_of);
    uint32_t n_spans = c->n_params ? 0 : 1;
    s->groups = tsr_arena_alloc(&c->e->arena, n * sizeof(struct tsr_group *));
    if (!spans || !span_of || !s->groups)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    spans[0] = default_span(c);
    for (size_t i = 0; i < c->n_params; i++) {
        struct span span;
        TSR_TRY(span_of_param(c, c->params[i]->fqn, &span));
        uint32_t k = 0;
        while (k < n_spans && !same_ranks(&spans[k], &span))
            k++;
        if (k < n_spans && spans[k].identity != span.identity)
            return tsr_fail(TSR_EVALUE, "%s: its mesh has the process group of another mesh object",
                            c->params[i]->fqn);
        if (k == n_spans)
            spans[n_spans++] = span;
        span_of[i] = k;
    }
    if (n_spans > 1 && c->e->config.version < TSR_TORCH_2_15)
        return tsr_fail(TSR_EVALUE, "a mesh per parameter needs version 2.15");
    for (uint32_t k = 0; k < n_spans; k++)
        TSR_TRY(make_group(c, s, &spans[k], span_of, k));
    return TSR_OK;
}

void tsr__set_cut(struct tsr_fsdp_param *f)
{
    const struct tsr_group *g = f->group;
    struct tsr_param_cut *cut = &f->cut;
    bool named = g->n_mesh_dims > 0, hsdp = g->is_hsdp && !g->is_replicate;
    *cut = (struct tsr_param_cut){
        .group = g->name, .on_host = g->offload != TSR_OFFLOAD_NONE, .shard_dim = f->shard_dim};
    if (hsdp || g->is_replicate)
        cut->dims[cut->n++] = (struct tsr_cut_dim){
            named ? g->mesh_dim[0] : -1, {g->replicate_size, g->replicate_stride}, false};
    if (!g->is_replicate)
        cut->dims[cut->n++] = (struct tsr_cut_dim){
            named ? g->mesh_dim[hsdp] : -1, {g->shard_size, g->shard_stride}, true};
    f->param->cut = cut;
}
