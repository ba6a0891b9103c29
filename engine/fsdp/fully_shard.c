/* fully_shard.c: fully_shard() and replicate(): what is refused (section 4.6), which modules and
 * parameters a call manages (2.1), and the state that it leaves on its modules.
 */
#include "engine/fsdp/fsdp.h"

#include <string.h>

/* ---- the modules and parameters of a call ---------------------------------------------------- */

static bool is_target(const struct tsr__wrap_call *c, const struct tsr_module *m)
{
    for (size_t i = 0; i < c->n_targets; i++)
        if (c->targets[i] == m)
            return true;
    return false;
}

/* Drops modules that are listed below another listed one (R5). */
static bool keep_roots(struct tsr__wrap_call *c, struct tsr_module *const *modules, size_t n)
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

static void walk_managed(struct tsr__wrap_call *c, struct tsr_module *m)
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

static bool is_ignored(const struct tsr__wrap_call *c, const char *fqn)
{
    for (size_t i = 0; i < c->options->n_ignored; i++)
        if (tsr_glob(c->options->ignored[i], fqn))
            return true;
    return false;
}

static tsr_status collect_params(struct tsr__wrap_call *c)
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

/* ---- checks of the call ---------------------------------------------------------------------- */
static tsr_status check_modules(struct tsr__wrap_call *c, struct tsr_module *const *modules,
                                size_t n, const char *api)
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

static tsr_status check_mesh(struct tsr__wrap_call *c)
{
    const struct tsr_mesh *mesh = &c->e->config.mesh;
    if (tsr__is_spmd(c) && c->e->config.version < TSR_TORCH_2_15)
        return tsr_fail(TSR_EVALUE, "dp_mesh_dims needs version 2.15");
    if (tsr__is_spmd(c))
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

static tsr_status make_state(struct tsr__wrap_call *c, struct tsr_state **out)
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

/* Refuses options that no module can have, whatever the modules are. */
static tsr_status check_options(struct tsr__wrap_call *c, const char *fqn)
{
    if (c->e->fsdp1)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "%s beside fsdp1 is not modelled (PyTorch would shard flat parameters that "
                        "it finds below '%s' a second time)",
                        c->replicate ? "replicate" : "fully_shard", fqn);
    if ((c->options->mirror || c->options->direct || c->options->folds) &&
        c->options->offload != TSR_OFFLOAD_NONE)
        return tsr_fail(TSR_EVALUE,
                        "%s: shards in host memory have no mirror, are not gathered directly, and "
                        "their gradients are not scaled by the optimizer",
                        fqn);
    return check_mesh(c);
}

/* Gives the modules of the call their state, and the engine its groups. */
static tsr_status install(struct tsr__wrap_call *c, struct tsr_state *s)
{
    struct tsr_engine *e = c->e;
    for (size_t i = 0; i < s->n_groups; i++)
        TSR_TRY(register_group(e, s, s->groups[i]));
    for (size_t i = 0; i < c->n_targets; i++) {
        c->targets[i]->state = s;
        c->targets[i]->wrapper = &e->fsdp->base;
        c->targets[i]->hooks = &tsr__state_hooks;
    }
    for (size_t i = 0; i < s->n_groups; i++)
        for (size_t k = 0; k < s->groups[i]->n_params; k++)
            tsr__set_cut(s->groups[i]->params[k]);
    e->tree.n_wrapped++;
    tsr__wrapper_add(e, &e->fsdp->base, &tsr__fsdp_wrapper);
    if (!TSR_PUSH(e->fsdp->states, e->fsdp->n_states, e->fsdp->cap_states, s))
        return tsr_fail(TSR_ENOMEM, "out of memory while wrapping");
    return e->status;
}

static tsr_status wrap(struct tsr_engine *e, struct tsr_module *const *modules, size_t n,
                       const struct tsr_wrap_options *options, bool replicate)
{
    static const struct tsr_wrap_options defaults;
    struct tsr__wrap_call c = {
        .e = e, .options = options ? options : &defaults, .replicate = replicate};
    struct tsr_state *s = NULL;
    TSR_TRY(check_modules(&c, modules, n, replicate ? "replicate" : "fully_shard"));
    TSR_TRY(check_options(&c, modules[0]->fqn));
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
    TSR_TRY(tsr__make_groups(&c, s));
    TSR_TRY(join_names(e, s));
    return install(&c, s);
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
