/* lazy_init.c: what the first forward of a root settles (section 3.2): which states are below it,
 * the streams that they share, and that the root itself stays gathered after forward.
 */
#include "engine/fsdp/fsdp.h"

struct lazy {
    struct tsr_engine *e;
    struct tsr_state *root;
};

static bool adopt_state(void *user, struct tsr_module *m)
{
    struct lazy *lazy = user;
    struct tsr_engine *e = lazy->e;
    struct tsr_state *s = m->state, *root = lazy->root;
    /* a replicate root sees replicate states only (5.1) */
    if (!s || (root->is_replicate && !s->is_replicate))
        return true;
    if (s != root && s->lazy_done) {
        TSR__RAISE(e, TSR_ERUNTIME,
                   "FSDP state has already been lazily initialized for %s: FSDP requires running "
                   "forward through the root module first",
                   m->fqn);
        return false;
    }
    if (s->has_root && e->config.version >= TSR_TORCH_2_15)
        return true; /* once per state; 2.11: once per module (R82) */
    if (s != root)
        s->is_root = false;
    s->has_root = true;
    return TSR__ARENA_PUSH(e, root->ctx->states, root->ctx->n_states, root->ctx->cap_states, s);
}

static void create_streams(struct tsr_engine *e, struct tsr_comm_ctx *comm)
{
    comm->copy_in = tsr__stream_add(e, "copy_in", TSR_ROLE_COPY_IN, -1);
    comm->all_gather = tsr__stream_add(e, "all_gather", TSR_ROLE_ALL_GATHER, -1);
    comm->reduce_scatter = tsr__stream_add(e, "reduce_scatter", TSR_ROLE_REDUCE_SCATTER, -1);
    comm->all_reduce = tsr__stream_add(e, "all_reduce", TSR_ROLE_ALL_REDUCE, 0);
    comm->has_streams = true;
    comm->n_order = 0;
}

static void trace_lazy_init(struct tsr_engine *e, const struct tsr_state *s, bool keeps)
{
    if (!e->emit.has_trace)
        return;
    size_t n = s->ctx->n_states;
    const char **names = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *names);
    if (!names)
        return;
    for (size_t i = 0; i < n; i++)
        names[i] = s->ctx->states[i]->name;
    struct tsr_event ev;
    tsr__event_begin(&ev, "lazy_init");
    tsr__event_str(&ev, "g", s->name);
    tsr__event_strs(&ev, "states", names, n);
    tsr__event_bool(&ev, "root_keeps", keeps);
    tsr__event_send(e, &ev);
}

/* Another managed parameter that was the same before a call broke the tie. */
static const struct tsr_param *managed_twin(const struct tsr_engine *e, const struct tsr_param *p)
{
    for (size_t i = 0; p->untied_from && i < e->tree.n_params; i++) {
        const struct tsr_param *other = e->tree.params[i];
        if (other != p && other->fsdp &&
            (other == p->untied_from || other->untied_from == p->untied_from))
            return other;
    }
    return NULL;
}

/* 2.15 refuses a parameter that two groups have torn apart (R83); 2.11 leaves it untied (Q7). */
static void check_ties(struct tsr_engine *e, const struct tsr_state_ctx *ctx)
{
    if (e->config.version < TSR_TORCH_2_15)
        return;
    for (size_t i = 0; i < ctx->n_states; i++)
        for (size_t k = 0; k < ctx->states[i]->n_groups; k++) {
            const struct tsr_group *g = ctx->states[i]->groups[k];
            for (size_t p = 0; p < g->n_params; p++) {
                const struct tsr_param *other = managed_twin(e, g->params[p]->param);
                if (other)
                    TSR__RAISE(e, TSR_EVALUE,
                               "%s and %s are one parameter in two groups; wrap the tied modules "
                               "in one list call",
                               g->params[p]->param->fqn, other->fqn);
            }
        }
}

void tsr__lazy_init(struct tsr_engine *e, struct tsr_state *s)
{
    s->is_root = true;
    if (s->n_modules > 1) {
        TSR__RAISE(e, TSR_ERUNTIME, "FSDP requires a single root module but got %s", s->name);
        return;
    }
    struct lazy lazy = {e, s};
    tsr__module_walk(s->modules[0], adopt_state, &lazy);
    if (!tsr__ok(e))
        return;
    /* backward begins with the root: what it frees after forward it would gather at once (R74) */
    bool keeps =
        s->n_groups && !s->is_replicate && s->groups[0]->reshard_kind == TSR_RESHARD_DEFAULT;
    for (size_t i = 0; keeps && i < s->n_groups; i++)
        s->groups[i]->post_forward_size = 0;
    create_streams(e, s->comm);
    for (size_t i = 0; i < s->ctx->n_states; i++) {
        struct tsr_state *t = s->ctx->states[i];
        t->ctx = s->ctx;
        t->comm = s->comm;
        t->lazy_done = true;
        for (size_t k = 0; k < t->n_groups; k++)
            t->groups[k]->comm = s->comm;
    }
    check_ties(e, s->ctx);
    trace_lazy_init(e, s, keeps);
    for (size_t i = 0; i < s->ctx->n_states; i++)
        for (size_t k = 0; k < s->ctx->states[i]->n_groups; k++)
            tsr__group_lazy_init(e, s->ctx->states[i]->groups[k]);
}
