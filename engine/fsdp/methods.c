/* methods.c: the methods of wrapped modules (section 4.3): they only set what the hooks read.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/fsdp/fsdp.h"

/* Runs the next statement for every group g of state s. */
#define EACH_GROUP(s, g)                                   \
    for (size_t i_##g = 0; i_##g < (s)->n_groups; i_##g++) \
        for (struct tsr_group *g = (s)->groups[i_##g], *once_##g = g; once_##g; once_##g = NULL)

/* The state that `fn` works on; AttributeError on a module that was not wrapped itself. */
static tsr_status state_of(struct tsr_module *m, const char *fn, struct tsr_state **out)
{
    *out = m->state;
    if (!m->state || m->state->flat)
        return tsr_fail(TSR_EATTRIBUTE, "module '%s' of type '%s' has no attribute '%s'", m->fqn,
                        m->type_name, fn);
    return TSR_OK;
}

/* Calls fn for the wrapped modules: m itself, and all below it with recurse. */
struct visit {
    void (*fn)(struct tsr_engine *e, struct tsr_state *s, double value);
    double value;
    size_t flag; /* where it lies in a group; fn NULL */
};

static void visit_state(const struct visit *v, struct tsr_engine *e, struct tsr_state *s)
{
    if (v->fn) {
        v->fn(e, s, v->value);
        return;
    }
    EACH_GROUP(s, g)
    *(bool *)((char *)g + v->flag) = v->value != 0;
}

static bool visit_one(void *user, struct tsr_module *m)
{
    struct visit *v = user;
    if (m->state)
        visit_state(v, m->engine, m->state);
    return true;
}

static tsr_status visit_all(struct tsr_engine *e, struct tsr_module *m, const char *name,
                            bool recurse, struct visit v)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, name, &s));
    if (recurse)
        tsr__module_walk(m, visit_one, &v);
    else
        visit_state(&v, e, s);
    return e->status;
}

static tsr_status visit(struct tsr_engine *e, struct tsr_module *m, const char *name, bool recurse,
                        void (*fn)(struct tsr_engine *, struct tsr_state *, double), double value)
{
    return visit_all(e, m, name, recurse, (struct visit){.fn = fn, .value = value});
}

/* A bool of every group, by its offset. */
static tsr_status set_flag(struct tsr_engine *e, struct tsr_module *m, const char *name,
                           bool recurse, size_t flag, bool value)
{
    return visit_all(e, m, name, recurse, (struct visit){.value = value, .flag = flag});
}

static void set_sync(struct tsr_engine *e, struct tsr_state *s, double value)
{
    (void)e;
    EACH_GROUP(s, g)
    g->reduce_grads = g->all_reduce_grads = value != 0;
}

tsr_status tsr_set_requires_gradient_sync(struct tsr_engine *e, struct tsr_module *m, bool value,
                                          bool recurse)
{
    return visit(e, m, "set_requires_gradient_sync", recurse, set_sync, value);
}

tsr_status tsr_set_requires_all_reduce(struct tsr_engine *e, struct tsr_module *m, bool value,
                                       bool recurse)
{
    return set_flag(e, m, "set_requires_all_reduce", recurse,
                    offsetof(struct tsr_group, all_reduce_grads), value);
}

static void set_reshard_after_forward(struct tsr_engine *e, struct tsr_state *s, double value)
{
    if (s->n_groups > 0 && s->is_replicate) {
        TSR__RAISE(e, TSR_EASSERT, "set_reshard_after_forward: '%s' is replicated", s->name);
        return;
    }
    EACH_GROUP(s, g)
    {
        /* also cancels the root's automatic False (R76) */
        g->reshard_kind = value != 0 ? TSR_RESHARD_TRUE : TSR_RESHARD_FALSE;
        tsr__group_set_post_forward(e, g, value != 0 ? g->shard_size : 0);
    }
}

tsr_status tsr_set_reshard_after_forward(struct tsr_engine *e, struct tsr_module *m, bool value,
                                         bool recurse)
{
    return visit(e, m, "set_reshard_after_forward", recurse, set_reshard_after_forward, value);
}

tsr_status tsr_set_reshard_after_backward(struct tsr_engine *e, struct tsr_module *m, bool value,
                                          bool recurse)
{
    return set_flag(e, m, "set_reshard_after_backward", recurse,
                    offsetof(struct tsr_group, reshard_after_backward), value);
}

tsr_status tsr_set_is_last_backward(struct tsr_engine *e, struct tsr_module *m, bool value)
{
    struct tsr_state *s;
    (void)e;
    TSR_TRY(state_of(m, "set_is_last_backward", &s));
    s->ctx->is_last_backward = value;
    return TSR_OK;
}

static tsr_status prefetch_list(struct tsr_engine *e, struct tsr_module *const *list, size_t n,
                                struct tsr_state ***out, size_t *n_out)
{
    struct tsr_state **states = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *states);
    if (!states)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        if (!list[i]->state)
            return tsr_fail(TSR_EVALUE, "Expects FSDPModule but got '%s' of type %s", list[i]->fqn,
                            list[i]->type_name);
        states[i] = list[i]->state;
    }
    *out = states;
    *n_out = n;
    return TSR_OK;
}

tsr_status tsr_set_forward_prefetch(struct tsr_engine *e, struct tsr_module *m,
                                    struct tsr_module *const *list, size_t n)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "set_modules_to_forward_prefetch", &s));
    return prefetch_list(e, list, n, &s->fwd_prefetch, &s->n_fwd_prefetch);
}

tsr_status tsr_set_backward_prefetch(struct tsr_engine *e, struct tsr_module *m,
                                     struct tsr_module *const *list, size_t n)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "set_modules_to_backward_prefetch", &s));
    return prefetch_list(e, list, n, &s->bwd_prefetch, &s->n_bwd_prefetch);
}

tsr_status tsr_unshard(struct tsr_engine *e, struct tsr_module *m, bool async_op)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "unshard", &s));
    EACH_GROUP(s, g)
    {
        tsr__group_lazy_init(e, g);
        e->origin.group = g->id;
        tsr__group_unshard(e, g, async_op);
        if (!async_op)
            tsr__group_wait_for_unshard(e, g);
        e->origin.group = TSR_NO_ID;
    }
    s->handle_pending = async_op;
    return e->status;
}

/* A second wait on a handle does nothing (R108). */
tsr_status tsr_wait_unshard_handle(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "wait", &s));
    EACH_GROUP(s, g)
    {
        e->origin.group = g->id;
        if (s->handle_pending)
            tsr__group_wait_for_unshard(e, g);
        e->origin.group = TSR_NO_ID;
    }
    s->handle_pending = false;
    return e->status;
}

tsr_status tsr_reshard(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "reshard", &s));
    EACH_GROUP(s, g)
    tsr__group_reshard(e, g);
    return e->status;
}

static void set_factor(struct tsr_engine *e, struct tsr_state *s, double value)
{
    EACH_GROUP(s, g)
    {
        for (size_t i = 0; g->folds && i < g->n_params; i++)
            if (g->params[i]->grad && value != g->divide_factor)
                TSR__RAISE(e, TSR_EVALUE,
                           "gradients that stay sums wait for the optimizer: their divide factor "
                           "cannot change before zero_grad");
        g->divide_factor = value;
    }
}

tsr_status tsr_set_gradient_divide_factor(struct tsr_engine *e, struct tsr_module *m, double factor)
{
    return visit(e, m, "set_gradient_divide_factor", false, set_factor, factor);
}

tsr_status tsr_set_force_sum(struct tsr_engine *e, struct tsr_module *m, bool value)
{
    return set_flag(e, m, "set_force_sum_reduction_for_comms", false,
                    offsetof(struct tsr_group, force_sum), value);
}

tsr_status tsr_set_unshard_in_backward(struct tsr_engine *e, struct tsr_module *m, bool value)
{
    return set_flag(e, m, "set_unshard_in_backward", false,
                    offsetof(struct tsr_group, unshard_in_backward), value);
}

tsr_status tsr_set_unshard_async_op(struct tsr_engine *e, struct tsr_module *m, bool value)
{
    return set_flag(e, m, "_set_unshard_async_op", true,
                    offsetof(struct tsr_group, unshard_async_op), value);
}

static void set_max_inputs(struct tsr_engine *e, struct tsr_state *s, double value)
{
    (void)e;
    EACH_GROUP(s, g)
    g->max_reduce_inputs = (uint32_t)value;
}

tsr_status tsr_set_reduce_scatter_max_input_buffers(struct tsr_engine *e, struct tsr_module *m,
                                                    int64_t k, bool recurse)
{
    if (k < 1 || k > TSR_MAX_REDUCE_INPUTS)
        return tsr_fail(TSR_EVALUE,
                        "set_reduce_scatter_max_input_buffers: found %lld; allowed: 1 to %d",
                        (long long)k, TSR_MAX_REDUCE_INPUTS);
    return visit(e, m, "set_reduce_scatter_max_input_buffers", recurse, set_max_inputs, (double)k);
}

static void set_separate(struct tsr_engine *e, struct tsr_state *s, double value)
{
    EACH_GROUP(s, g)
    {
        if (g->is_replicate) {
            TSR__RAISE(e, TSR_EASSERT, "set_separate_reduce_scatter_group: '%s' has no shard group",
                       s->name);
            return;
        }
        const struct tsr_comm *shard = &e->emit.comms[g->shard_comm];
        char name[96];
        snprintf(name, sizeof name, "%s_reduce_scatter", shard->name);
        g->reduce_comm = value != 0 ? tsr__comm_add(e, name, shard->size, shard->stride, UINT16_MAX)
                                    : g->shard_comm;
    }
}

tsr_status tsr_set_separate_reduce_scatter_group(struct tsr_engine *e, struct tsr_module *m,
                                                 bool value, bool recurse)
{
    return visit(e, m, "set_separate_reduce_scatter_group", recurse, set_separate, value);
}

tsr_status tsr_set_reduce_scatter_unused_params(struct tsr_engine *e, struct tsr_module *m,
                                                bool value, bool recurse)
{
    return set_flag(e, m, "set_reduce_scatter_unused_params", recurse,
                    offsetof(struct tsr_group, reduce_unused), value);
}

/* Calls fn for the sharded parameters of that name. */
static tsr_status each_param(struct tsr_engine *e, const char *pattern,
                             void (*fn)(struct tsr_fsdp_param *f, const void *user),
                             const void *user)
{
    size_t n = 0;
    for (size_t i = 0; i < e->tree.n_params; i++) {
        struct tsr_param *p = e->tree.params[i];
        if (!p || !p->fsdp || !tsr_glob(pattern, p->fqn))
            continue;
        fn(p->fsdp, user);
        n++;
    }
    if (n == 0)
        return tsr_fail(TSR_EVALUE, "no sharded parameter is called %s", pattern);
    return TSR_OK;
}

static void set_extension(struct tsr_fsdp_param *f, const void *extension)
{
    f->extension = extension;
}

tsr_status tsr_set_gather_extension(struct tsr_engine *e, const char *pattern,
                                    const struct tsr_gather_extension *extension)
{
    if (extension && !extension->pre != !extension->post)
        return tsr_fail(TSR_EASSERT,
                        "%s: both fsdp_pre_all_gather and fsdp_post_all_gather must be given",
                        pattern);
    return each_param(e, pattern, set_extension, extension);
}

struct grad_hook {
    tsr_grad_hook fn;
    void *user;
};

static void set_grad_hook(struct tsr_fsdp_param *f, const void *user)
{
    const struct grad_hook *hook = user;
    f->grad_hook = hook->fn;
    f->grad_hook_user = hook->user;
}

tsr_status tsr_register_post_accumulate_grad_hook(struct tsr_engine *e, const char *pattern,
                                                  tsr_grad_hook hook, void *user)
{
    return each_param(e, pattern, set_grad_hook, &(struct grad_hook){hook, user});
}

tsr_status tsr_set_all_reduce_hook(struct tsr_engine *e, struct tsr_module *m,
                                   tsr_all_reduce_hook hook, void *user, bool own_stream)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "set_all_reduce_hook", &s));
    EACH_GROUP(s, g)
    {
        g->has_hook = true;
        g->hook = hook;
        g->hook_user = user;
    }
    if (!own_stream || s->n_groups == 0)
        return TSR_OK;
    if (s->groups[0]->is_hsdp)
        return tsr_fail(TSR_EVALUE,
                        "set_all_reduce_hook: stream cannot be set when using native HSDP");
    if (e->fsdp->user_stream == 0)
        e->fsdp->user_stream = tsr__stream_add(e, "user", TSR_ROLE_USER, 0);
    EACH_GROUP(s, g)
    g->hook_stream = e->fsdp->user_stream;
    return e->status;
}

/* A comm object serves one group (4.3). */
static tsr_status one_group(struct tsr_engine *e, const struct tsr_state *s, const char *fn)
{
    (void)e;
    if (s->n_groups > 1)
        return tsr_fail(TSR_EVALUE, "%s: '%s' has %zu parameter groups; allowed: one", fn, s->name,
                        s->n_groups);
    return TSR_OK;
}

tsr_status tsr_set_custom_all_gather(struct tsr_engine *e, struct tsr_module *m,
                                     const struct tsr_custom_comm *comm)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "set_custom_all_gather", &s));
    TSR_TRY(one_group(e, s, "set_custom_all_gather"));
    EACH_GROUP(s, g)
    g->custom_all_gather = comm;
    return TSR_OK;
}

tsr_status tsr_set_custom_reduce_scatter(struct tsr_engine *e, struct tsr_module *m,
                                         const struct tsr_custom_comm *comm)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "set_custom_reduce_scatter", &s));
    TSR_TRY(one_group(e, s, "set_custom_reduce_scatter"));
    EACH_GROUP(s, g)
    g->custom_reduce_scatter = comm;
    return TSR_OK;
}

tsr_status tsr_set_allocate_from_process_group(struct tsr_engine *e, struct tsr_module *m,
                                               bool value)
{
    struct tsr_state *s;
    (void)e;
    TSR_TRY(state_of(m, "set_allocate_memory_from_process_group_for_comm", &s));
    EACH_GROUP(s, g)
    {
        if (g->custom_all_gather || g->custom_reduce_scatter)
            return tsr_fail(TSR_EASSERT,
                            "'%s': cannot allocate from the process group: %s comm is custom",
                            s->name, g->custom_all_gather ? "all gather" : "reduce scatter");
        g->from_process_group = value;
    }
    return TSR_OK;
}

tsr_status tsr_set_post_optim_event(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_state *s;
    TSR_TRY(state_of(m, "set_post_optim_event", &s));
    s->ctx->post_optim_event = tsr__record_event(e, e->stream);
    s->ctx->event_is_stale = false;
    return e->status;
}

tsr_status tsr_share_comm_ctx(struct tsr_engine *e, struct tsr_module *const *list, size_t n)
{
    (void)e;
    for (size_t i = 0; i < n; i++)
        if (!list[i]->state)
            return tsr_fail(TSR_EVALUE, "Expects list of FSDPModules but got '%s' of type %s",
                            list[i]->fqn, list[i]->type_name);
    for (size_t i = 1; i < n; i++) {
        list[i]->state->comm = list[0]->state->comm;
        EACH_GROUP(list[i]->state, g)
        g->comm = list[0]->state->comm;
    }
    return TSR_OK;
}

/* Whether the parameter is known under this place's name: other places are aliases. */
static bool is_first_place(const struct tsr_module *m, const struct tsr_place *place)
{
    const char *fqn = place->param->fqn;
    size_t n = strlen(m->fqn);
    if (n == 0)
        return strcmp(fqn, place->name) == 0;
    return strncmp(fqn, m->fqn, n) == 0 && fqn[n] == '.' && strcmp(fqn + n + 1, place->name) == 0;
}

/* Hooks sit on the modules that own a group's parameters (under their first names), wrapped or not,
 * from lazy init on. */
static bool save(void *user, struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_fsdp_param *f = m->params[i].param->fsdp;
        if (f && f->group->lazy_done && is_first_place(m, &m->params[i]))
            tsr__group_to_sharded(user, f->group, TSR_BY_STATE_DICT);
    }
    return true;
}

tsr_status tsr_state_dict(struct tsr_engine *e, struct tsr_module *m)
{
    tsr__module_walk(m, save, e);
    return e->status;
}

bool tsr_module_is_wrapped(const struct tsr_module *m)
{
    return m->state != NULL;
}

tsr_status tsr_deepcopy(struct tsr_engine *e, struct tsr_module *m)
{
    (void)e;
    if (!m->state)
        return TSR_OK;
    return tsr_fail(TSR_EASSERT,
                    "FSDP does not support deepcopy. Please use state dict for serialization "
                    "('%s')",
                    m->fqn);
}

static struct tsr_method *find_method(struct tsr_module *m, const char *name)
{
    for (size_t i = 0; i < m->n_methods; i++)
        if (strcmp(m->methods[i].name, name) == 0)
            return &m->methods[i];
    return NULL;
}

tsr_status tsr_module_add_method(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                 tsr_forward_fn fn)
{
    struct tsr_method method = {tsr_arena_strdup(&e->arena, name), fn, false};
    if (!method.name || !TSR__ARENA_PUSH(e, m->methods, m->n_methods, m->cap_methods, method))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

tsr_status tsr_register_forward_method(struct tsr_engine *e, struct tsr_module *m, const char *name)
{
    struct tsr_method *method = find_method(m, name);
    (void)e;
    if (!m->state || strcmp(name, "forward") == 0)
        return TSR_OK;
    if (!method)
        return tsr_fail(TSR_EVALUE, "'%s' of type '%s' does not have a method %s", m->fqn,
                        m->type_name, name);
    method->registered = true;
    return TSR_OK;
}

struct tsr_tensor *tsr_call_method(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                   struct tsr_tensor *in)
{
    struct tsr_method *method = find_method(m, name);
    if (!method) {
        TSR__RAISE(e, TSR_EATTRIBUTE, "'%s' of type '%s' has no attribute '%s'", m->fqn,
                   m->type_name, name);
        return NULL;
    }
    tsr_forward_fn forward = m->forward;
    m->forward = method->fn; /* the hooks around it are those of forward */
    struct tsr_tensor *out = method->registered ? tsr_call(e, m, in) : tsr__call_body(e, m, in);
    m->forward = forward;
    return out;
}
