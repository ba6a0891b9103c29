/* fully_shard.c: fully_shard() and replicate(): which parameters form a group (section 2.1), how
 * each is cut (2.2-2.6), and what is refused (4.6).
 */
#include "engine/fsdp/fsdp.h"
#include "engine/ops/ops_common.h"

#include <stdio.h>
#include <string.h>

/* ---- the modules and parameters of a call ---------------------------------------------------- */

struct call {
    struct tsr_engine *e;
    const struct tsr_wrap_options *options;
    bool replicate;
    struct tsr_submesh mesh; /* dimensions of the engine's mesh that the call uses */
    size_t n_targets;
    struct tsr_module **targets; /* roots of the list */
    bool *seen;                  /* by module id */
    size_t n_managed, cap_managed;
    struct tsr_module **managed; /* post-order */
    size_t n_params, cap_params;
    struct tsr_param **params;
};

static bool is_target(const struct call *c, const struct tsr_module *m)
{
    for (size_t i = 0; i < c->n_targets; i++)
        if (c->targets[i] == m)
            return true;
    return false;
}

/* Drops modules that are listed below another listed one (R5). */
static bool keep_roots(struct call *c, struct tsr_module *const *modules, size_t n)
{
    c->targets = tsr_arena_alloc(&c->e->arena, (n + 1) * sizeof *c->targets);
    if (!c->targets)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool below = false;
        for (size_t j = 0; j < n; j++)
            below |=
                j != i && modules[j] != modules[i] && tsr__module_contains(modules[j], modules[i]);
        if (!below)
            c->targets[c->n_targets++] = modules[i];
    }
    return true;
}

static void walk_managed(struct call *c, struct tsr_module *m)
{
    if (c->seen[m->id])
        return;
    if (m->state && (m->state->is_replicate != c->replicate || !is_target(c, m)))
        return;
    c->seen[m->id] = true;
    for (size_t i = 0; i < m->n_children; i++)
        walk_managed(c, m->children[i]);
    TSR__ARENA_PUSH(c->e, c->managed, c->n_managed, c->cap_managed, m);
}

static bool is_ignored(const struct call *c, const char *fqn)
{
    for (size_t i = 0; i < c->options->n_ignored; i++)
        if (tsr_glob(c->options->ignored[i], fqn))
            return true;
    return false;
}

static tsr_status collect_params(struct call *c)
{
    for (size_t i = 0; i < c->n_managed; i++) {
        struct tsr_module *m = c->managed[i];
        for (size_t j = 0; j < m->n_params; j++) {
            struct tsr_param *p = m->params[j].param;
            bool known = false;
            for (size_t k = 0; k < c->n_params; k++)
                known |= c->params[k] == p;
            if (known)
                continue;
            if (is_ignored(c, p->fqn)) {
                p->ignored = true;
                continue;
            }
            if (p->fsdp) /* a module of another group, shared with this one */
                return tsr_fail(TSR_ERUNTIME,
                                "%s is sharded by '%s' already: Cannot concatenate overlapping "
                                "meshes",
                                p->fqn, p->fsdp->group->name);
            if (!TSR__ARENA_PUSH(c->e, c->params, c->n_params, c->cap_params, p))
                return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
        }
    }
    for (size_t i = 0; i < c->n_params; i++)
        if (c->params[i]->n_dims == 0)
            return tsr_fail(TSR_EVALUE,
                            "fully_shard doesn't support scalar parameters. Change %s to a 1D "
                            "tensor with numel equal to 1.",
                            c->params[i]->name);
    return TSR_OK;
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
    *size = v == 1 ? 0 : (uint32_t)v;
    return TSR_OK;
}

/* ---- one parameter -----------------------------------------------------------------------------
 */

static const char *shape_text(struct tsr_engine *e, int n, const uint64_t *shape)
{
    char text[128] = "[";
    size_t used = 1;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)shape[i]);
    snprintf(text + used, sizeof text - used, "]");
    const char *copy = tsr_arena_strdup(&e->arena, text);
    return copy ? copy : "";
}

static tsr_status choose_dim(struct call *c, struct tsr_param *p, uint32_t world, int *out)
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
    if (dim > 0 && p->shape[dim] % world != 0)
        return tsr_fail(TSR_ENOTIMPL,
                        "FSDP does not support uneven sharding on dim %d: %s (world size: %u)", dim,
                        shape, world);
    *out = dim;
    return TSR_OK;
}

static tsr_status check_contiguous(struct call *c, const struct tsr_param *p)
{
    if (!p->noncontiguous)
        return TSR_OK;
    uint64_t stride[4] = {0};
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

struct alias_walk {
    struct tsr_engine *e;
    struct tsr_fsdp_param *f;
    size_t n, cap;
};

/* Places of the parameter inside the call's modules, walked without de-duplication. */
static void find_aliases(struct alias_walk *w, struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_params; i++) {
        if (m->params[i].param != w->f->param)
            continue;
        char *fqn = *m->fqn ? tsr_arena_printf(&w->e->arena, "%s.%s", m->fqn, m->params[i].name)
                            : m->params[i].name;
        TSR__ARENA_PUSH(w->e, w->f->aliases, w->n, w->cap, fqn);
    }
    for (size_t i = 0; i < m->n_children; i++)
        find_aliases(w, m->children[i]);
}

static bool is_spmd(const struct call *c)
{
    return c->options->n_spmd_shard > 0 || c->options->n_spmd_replicate > 0;
}

static tsr_status make_param(struct call *c, struct tsr_group *g, struct tsr_param *p,
                             struct tsr_fsdp_param **out)
{
    struct tsr_engine *e = c->e;
    int dim = -1;
    TSR_TRY(check_contiguous(c, p));
    if (is_spmd(c) && !p->tp)
        return tsr_fail(TSR_EVALUE,
                        "with dp_mesh_dims every parameter must be a DTensor on the mesh, but %s "
                        "is a plain tensor",
                        p->fqn);
    TSR_TRY(tsr__check_dtensor_param(p, g->is_hsdp));
    if (!c->replicate)
        TSR_TRY(choose_dim(c, p, g->shard_size, &dim));
    TSR_TRY(tsr__check_dtensor_dim(e, p, g->shard_size, dim));
    TSR_TRY(tsr__break_tie(e, c->targets, c->n_targets, &p));
    struct tsr_fsdp_param *f = tsr_arena_alloc(&e->arena, sizeof *f);
    if (!f)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    f->param = p;
    f->group = g;
    f->shard_dim = dim;
    cut(f, g->shard_size, g->shard_rank);
    struct alias_walk w = {e, f, 0, 0};
    for (size_t i = 0; i < c->n_targets; i++)
        find_aliases(&w, c->targets[i]);
    f->n_aliases = w.n > 0 ? w.n - 1 : 0;
    if (f->aliases)
        f->aliases++; /* the first place is the parameter's name */
    p->fsdp = f;
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

static struct span default_span(const struct call *c)
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
static uint16_t comm_of(struct call *c, const char *role, const struct span *s, uint32_t size,
                        uint32_t stride)
{
    const struct tsr_mesh *mesh = &c->e->config.mesh;
    char name[64];
    if (s->identity)
        snprintf(name, sizeof name, "%s_%ux%u", role, size, stride);
    else
        snprintf(name, sizeof name, "%s", role);
    /* a 1-D mesh has one process group, whatever uses it; so has a dimension that was named */
    bool is_named = mesh->n_dims == 1 || c->options->n_mesh_dims > 0 || is_spmd(c);
    for (int i = 0; is_named && !s->identity && i < c->mesh.n_dims; i++)
        if (c->mesh.dim[i] >= 0 && c->mesh.stride[i] == stride && c->mesh.size[i] == size &&
            mesh->name[c->mesh.dim[i]][0])
            snprintf(name, sizeof name, "%s", mesh->name[c->mesh.dim[i]]);
    return tsr__comm_add(c->e, name, size, stride, UINT16_MAX);
}

static void group_mesh(struct call *c, struct tsr_group *g, const struct span *s)
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

static void group_defaults(struct call *c, struct tsr_group *g)
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

static bool keeps_precision(const struct call *c, const char *fqn)
{
    for (size_t i = 0; i < c->options->n_full_precision; i++)
        if (tsr_glob(c->options->full_precision[i], fqn))
            return true;
    return false;
}

/* One group: the call's parameters whose span is `span`. */
static tsr_status make_group(struct call *c, struct tsr_state *s, const struct span *span,
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
    g->index = (uint32_t)s->n_groups;
    s->groups[s->n_groups++] = g;
    return TSR_OK;
}

static tsr_status span_of_param(const struct call *c, const char *fqn, struct span *out)
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
static tsr_status make_groups(struct call *c, struct tsr_state *s)
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

/* ---- checks of the call ---------------------------------------------------------------------- */
static tsr_status check_modules(struct call *c, struct tsr_module *const *modules, size_t n,
                                const char *api)
{
    if (n == 0)
        return tsr_fail(TSR_EINDEX, "%s of an empty list of modules: list index out of range", api);
    for (size_t i = 0; i < n; i++) {
        struct tsr_state *s = modules[i]->state;
        if (s && s->is_replicate == c->replicate)
            return tsr_fail(TSR_EASSERT,
                            "Each distinct composable distributed API can only be applied to a "
                            "module once. The %s API has already been applied to module '%s'",
                            api, modules[i]->fqn);
    }
    for (size_t i = 0; i < n; i++)
        if (c->replicate && modules[i]->state)
            return tsr_fail(TSR_ERUNTIME,
                            "Cannot apply `replicate()` on a Module already managed by "
                            "`fully_shard`: '%s'",
                            modules[i]->fqn);
    for (size_t i = 0; i < n; i++)
        if (modules[i]->no_forward)
            return tsr_fail(TSR_EVALUE,
                            "%s does not support containers that do not implement forward: '%s'",
                            api, modules[i]->fqn);
    return TSR_OK;
}

/* dp_mesh_dims: at most one dimension to replicate on and one to shard on; no names to shard on say
 * that the call replicates (section 2.8). */
static tsr_status spmd_submesh(const struct tsr_engine *e, const struct tsr_wrap_options *o,
                               struct tsr_submesh *out, bool *replicate)
{
    for (int i = 0; i < o->n_spmd_shard; i++)
        for (int k = 0; k < o->n_spmd_replicate; k++)
            if (!strcmp(o->spmd_shard[i], o->spmd_replicate[k]))
                return tsr_fail(TSR_EVALUE, "mesh dimension '%s' is named twice", o->spmd_shard[i]);
    if (o->n_mesh_dims > 0)
        return tsr_fail(TSR_EVALUE, "mesh_dims and dp_mesh_dims exclude each other");
    if (o->reshard == TSR_RESHARD_INT)
        return tsr_fail(TSR_ENOTIMPL,
                        "reshard_after_forward as an int (%lld) is not supported with dp_mesh_dims",
                        (long long)o->reshard_int);
    *out = (struct tsr_submesh){0};
    TSR_TRY(tsr__submesh_add_flattened(e, o->spmd_replicate, o->n_spmd_replicate, out));
    TSR_TRY(tsr__submesh_add_flattened(e, o->spmd_shard, o->n_spmd_shard, out));
    *replicate |= o->n_spmd_shard == 0;
    return TSR_OK;
}

static tsr_status check_mesh(struct call *c)
{
    const struct tsr_mesh *mesh = &c->e->config.mesh;
    if (is_spmd(c) && c->e->config.version < TSR_TORCH_2_15)
        return tsr_fail(TSR_EVALUE, "dp_mesh_dims needs version 2.15");
    if (is_spmd(c))
        return spmd_submesh(c->e, c->options, &c->mesh, &c->replicate);
    TSR_TRY(tsr__submesh(c->e, c->options->mesh_dims, c->options->n_mesh_dims, &c->mesh));
    int n = c->mesh.n_dims;
    if (c->replicate && n != 1)
        return tsr_fail(TSR_EVALUE, "replicate expects a 1D DeviceMesh but got %dD", n);
    if (n != 1 && n != 2)
        return tsr_fail(TSR_EVALUE, "fully_shard expects a 1D or 2D DeviceMesh but got %dD", n);
    if (n == 2 && (!mesh->name[c->mesh.dim[0]][0] || !mesh->name[c->mesh.dim[1]][0]))
        return tsr_fail(TSR_EASSERT,
                        "Please init the 2D mesh for HSDP with mesh_dim_names specified");
    return TSR_OK;
}

static tsr_status join_names(struct tsr_engine *e, struct tsr_state *s)
{
    s->name = s->modules[0]->fqn;
    for (size_t i = 1; i < s->n_modules; i++)
        s->name = tsr_arena_printf(&e->arena, "%s, %s", s->name, s->modules[i]->fqn);
    if (!s->name)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    for (size_t i = 0; i < s->n_groups; i++)
        s->groups[i]->name = s->name;
    return TSR_OK;
}

static tsr_status register_group(struct tsr_engine *e, struct tsr_state *s, struct tsr_group *g)
{
    size_t n = e->emit.tables.n_groups;
    g->comm = s->comm;
    g->id = (uint32_t)n;
    if (!tsr__arena_grow(e, &e->fsdp->group_names, n, &e->fsdp->cap_group_names,
                         sizeof *e->fsdp->group_names))
        return e->status;
    e->fsdp->group_names[n] = s->name;
    e->emit.tables.groups = e->fsdp->group_names;
    e->emit.tables.n_groups = (uint32_t)n + 1;
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

static tsr_status make_state(struct call *c, struct tsr_state **out)
{
    struct tsr_engine *e = c->e;
    struct tsr_state *s = tsr_arena_alloc(&e->arena, sizeof *s);
    if (!s)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    s->ctx = tsr_arena_alloc(&e->arena, sizeof *s->ctx);
    s->comm = tsr_arena_alloc(&e->arena, sizeof *s->comm);
    s->ran = tsr_arena_alloc(&e->arena, c->n_targets + 1);
    if (!s->ctx || !s->comm || !s->ran)
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    s->ctx->is_last_backward = true;
    s->n_modules = c->n_targets;
    s->modules = c->targets;
    s->is_replicate = c->replicate;
    s->mp = c->options->mp;
    *out = s;
    return TSR_OK;
}

static tsr_status wrap(struct tsr_engine *e, struct tsr_module *const *modules, size_t n,
                       const struct tsr_wrap_options *options, bool replicate)
{
    static const struct tsr_wrap_options defaults;
    struct call c = {.e = e, .options = options ? options : &defaults, .replicate = replicate};
    struct tsr_state *s = NULL;
    TSR_TRY(check_modules(&c, modules, n, replicate ? "replicate" : "fully_shard"));
    if ((c.options->mirror || c.options->direct || c.options->folds) &&
        c.options->offload != TSR_OFFLOAD_NONE)
        return tsr_fail(TSR_EVALUE,
                        "%s: shards in host memory have no mirror, are not gathered directly, and "
                        "their gradients are not scaled by the optimizer",
                        modules[0]->fqn);
    TSR_TRY(check_mesh(&c));
    c.seen = tsr_arena_alloc(&e->arena, e->tree.n_modules + 1);
    if (!c.seen || !keep_roots(&c, modules, n))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    for (size_t i = 0; i < c.n_targets; i++)
        if (!replicate && c.targets[i]->state)
            return tsr_fail(TSR_EASSERT, "Inserting the state of '%s' more than once",
                            c.targets[i]->fqn);
    for (size_t i = 0; i < c.n_targets; i++)
        walk_managed(&c, c.targets[i]);
    TSR_TRY(collect_params(&c));
    TSR_TRY(make_state(&c, &s));
    TSR_TRY(make_groups(&c, s));
    TSR_TRY(join_names(e, s));
    for (size_t i = 0; i < s->n_groups; i++)
        TSR_TRY(register_group(e, s, s->groups[i]));
    for (size_t i = 0; i < c.n_targets; i++) {
        c.targets[i]->state = s;
        c.targets[i]->hooks = &tsr__state_hooks;
    }
    for (size_t i = 0; i < s->n_groups; i++)
        for (size_t k = 0; k < s->groups[i]->n_params; k++)
            tsr__set_cut(s->groups[i]->params[k]);
    e->tree.n_wrapped++;
    if (!TSR_PUSH(e->fsdp->states, e->fsdp->n_states, e->fsdp->cap_states, s))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    return e->status;
}

tsr_status tsr_fully_shard(struct tsr_engine *e, struct tsr_module *const *modules, size_t n,
                           const struct tsr_wrap_options *options)
{
    return wrap(e, modules, n, options, false);
}

tsr_status tsr_replicate(struct tsr_engine *e, struct tsr_module *const *modules, size_t n,
                         const struct tsr_wrap_options *options)
{
    return wrap(e, modules, n, options, true);
}
