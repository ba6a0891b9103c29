/* module.c: the module tree: names, patterns, parameters, shared modules and tied parameters; and a
 * module's call with everything that hangs on it.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/wrapper.h"

void tsr__tree_fini(struct tsr_module_tree *tree)
{
    free(tree->modules);
    free(tree->params);
}

bool tsr__arena_grow(struct tsr_engine *e, void *items_ptr, size_t n_used, size_t *n_cap,
                     size_t item_bytes)
{
    if (n_used < *n_cap)
        return true;
    size_t cap = *n_cap ? 2 * *n_cap : 8;
    void *old, *bigger = tsr_arena_alloc(&e->arena, cap * item_bytes);
    if (!bigger) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return false;
    }
    memcpy(&old, items_ptr, sizeof old);
    if (n_used)
        memcpy(bigger, old, n_used * item_bytes);
    memcpy(items_ptr, &bigger, sizeof bigger);
    *n_cap = cap;
    return true;
}

static char *join_fqn(struct tsr_engine *e, const char *prefix, const char *name)
{
    return *prefix ? tsr_arena_printf(&e->arena, "%s.%s", prefix, name)
                   : tsr_arena_strdup(&e->arena, name);
}

static bool add_child(struct tsr_engine *e, struct tsr_module *parent, struct tsr_module *child,
                      const char *name)
{
    size_t n = parent->n_children, cap = parent->cap_children;
    char *copy = tsr_arena_strdup(&e->arena, name);
    if (!copy || !tsr__arena_grow(e, &parent->child_names, n, &cap, sizeof *parent->child_names))
        return false;
    parent->child_names[n] = copy;
    return TSR__ARENA_PUSH(e, parent->children, parent->n_children, parent->cap_children, child);
}

struct tsr_module *tsr__module_new(struct tsr_engine *e, struct tsr_module *parent,
                                   const char *name, const char *type_name, tsr_forward_fn forward,
                                   void *impl)
{
    struct tsr_module *m = tsr_arena_alloc(&e->arena, sizeof *m);
    if (m) {
        m->engine = e;
        m->parent = parent;
        m->name = tsr_arena_strdup(&e->arena, name);
        m->fqn = parent ? join_fqn(e, parent->fqn, name) : tsr_arena_strdup(&e->arena, "");
        m->type_name = type_name;
        m->forward = forward;
        m->impl = impl;
        m->no_forward = !forward;
        m->id = (uint32_t)e->tree.n_modules;
    }
    if (!m || !m->name || !m->fqn || (parent && !add_child(e, parent, m, name)) ||
        !TSR_PUSH(e->tree.modules, e->tree.n_modules, e->tree.cap_modules, m)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while building the model");
        return NULL;
    }
    size_t n = m->id;
    if (!tsr__arena_grow(e, &e->tree.module_names, n, &e->tree.cap_module_names,
                         sizeof *e->tree.module_names))
        return NULL;
    e->tree.module_names[n] = m->fqn;
    e->emit.tables.modules = e->tree.module_names;
    e->emit.tables.n_modules = (uint32_t)n + 1;
    if (!parent)
        e->tree.root = m;
    return m;
}

bool tsr__module_alias(struct tsr_engine *e, struct tsr_module *parent, const char *name,
                       struct tsr_module *same)
{
    return add_child(e, parent, same, name);
}

bool tsr__param_place(struct tsr_engine *e, struct tsr_module *m, const char *name,
                      struct tsr_param *param)
{
    struct tsr_place place = {param, tsr_arena_strdup(&e->arena, name)};
    param->n_places++;
    return place.name && TSR__ARENA_PUSH(e, m->params, m->n_params, m->cap_params, place);
}

/* Weights of norms are 1, biases 0, all else normal. */
static void set_init(const struct tsr_module *m, struct tsr_param *p)
{
    bool norm = m->type_name && strstr(m->type_name, "Norm"), bias = !strcmp(p->name, "bias");
    p->init = norm || bias ? TSR_INIT_CONSTANT : TSR_INIT_NORMAL;
    p->init_constant = norm && !bias ? 1 : 0;
}

struct tsr_param *tsr__param_new(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                 int n_dims, const uint64_t *shape, tsr_dtype dtype)
{
    struct tsr_param *p = tsr_arena_alloc(&e->arena, sizeof *p);
    if (!p) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while building the model");
        return NULL;
    }
    p->name = tsr_arena_strdup(&e->arena, name);
    p->fqn = join_fqn(e, m->fqn, name);
    if (!p->name || !p->fqn) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while building the model");
        return NULL;
    }
    p->n_dims = n_dims;
    p->numel = 1;
    p->dtype = dtype;
    p->requires_grad = true;
    p->id = (uint32_t)e->tree.n_params;
    set_init(m, p);
    bool fits = n_dims >= 0 && n_dims <= TSR_MAX_DIMS;
    for (int i = 0; fits && i < n_dims; i++) {
        p->shape[i] = shape[i];
        fits = tsr_mul_u64(p->numel, shape[i], &p->numel);
    }
    uint64_t bytes;
    if (!fits || !tsr_mul_u64(p->numel, 64, &bytes)) { /* room for every dtype and for padding */
        TSR__RAISE(e, TSR_EVALUE, "parameter %s: its size does not fit into 64 bits", p->fqn);
        return NULL;
    }
    if (!TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, p) ||
        !tsr__param_place(e, m, name, p)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while building the model");
        return NULL;
    }
    return p;
}

bool tsr__buffer_add(struct tsr_engine *e, struct tsr_module *m, tsr_dtype dtype, uint64_t bytes)
{
    const struct tsr_module_buffer buffer = {.bytes = bytes, .dtype = dtype};
    return TSR__ARENA_PUSH(e, m->buffers, m->n_buffers, m->cap_buffers, buffer);
}

/* ---- visiting -------------------------------------------------------------------------------- */

static bool walk(struct tsr_module *m, tsr_module_fn fn, void *user)
{
    if (m->visited == m->engine->tree.walk_stamp)
        return true;
    m->visited = m->engine->tree.walk_stamp;
    if (!fn(user, m))
        return false;
    for (size_t i = 0; i < m->n_children; i++)
        if (!walk(m->children[i], fn, user))
            return false;
    return true;
}

/* Walks do not nest: each has one stamp. */
void tsr__module_walk(struct tsr_module *m, tsr_module_fn fn, void *user)
{
    TSR_CHECK(!m->engine->tree.walking);
    m->engine->tree.walking = true;
    m->engine->tree.walk_stamp++;
    walk(m, fn, user);
    m->engine->tree.walking = false;
}

struct match {
    const char *const *patterns;
    size_t n_patterns, n, room;
    struct tsr_module **out;
};

static bool match_one(void *user, struct tsr_module *m)
{
    struct match *match = user;
    for (size_t i = 0; i < match->n_patterns; i++)
        if (tsr_glob(match->patterns[i], m->fqn)) {
            if (match->n < match->room)
                match->out[match->n] = m;
            match->n++;
            break;
        }
    return true;
}

void tsr_module_match(struct tsr_engine *e, const char *const *patterns, size_t n_patterns,
                      struct tsr_module **out, size_t *n)
{
    struct match match = {patterns, n_patterns, 0, *n, out};
    if (e->tree.root)
        tsr__module_walk(e->tree.root, match_one, &match);
    *n = match.n;
}

struct tsr_module *tsr_module_find(struct tsr_engine *e, const char *fqn)
{
    for (size_t i = 0; i < e->tree.n_modules; i++)
        if (strcmp(e->tree.modules[i]->fqn, fqn) == 0)
            return e->tree.modules[i];
    /* a shared module under its second name */
    struct tsr_module *m = e->tree.root;
    while (m && *fqn) {
        size_t len = strcspn(fqn, ".");
        struct tsr_module *next = NULL;
        for (size_t i = 0; i < m->n_children && !next; i++)
            if (strlen(m->child_names[i]) == len && memcmp(m->child_names[i], fqn, len) == 0)
                next = m->children[i];
        m = next;
        fqn += len + (fqn[len] == '.');
    }
    return m;
}

struct tsr_module *tsr_module_root(struct tsr_engine *e)
{
    return e->tree.root;
}

const char *tsr_module_fqn(const struct tsr_module *m)
{
    return m->fqn;
}

const char *tsr_module_type_name(const struct tsr_module *m)
{
    return m->type_name;
}

size_t tsr_module_n_children(const struct tsr_module *m)
{
    return m->n_children;
}

struct tsr_module *tsr_module_child(const struct tsr_module *m, size_t i)
{
    return m->children[i];
}

size_t tsr_module_n_params(const struct tsr_module *m)
{
    return m->n_params;
}

struct tsr_param *tsr_module_param(const struct tsr_module *m, size_t i)
{
    return m->params[i].param;
}

const char *tsr_module_param_name(const struct tsr_module *module, size_t i)
{
    return module->params[i].name;
}

struct tsr_param_info tsr_param_info(const struct tsr_param *p, const struct tsr_module *owner)
{
    struct tsr_param_info info = {.fqn = p->fqn,
                                  .n_dims = p->n_dims,
                                  .numel = p->numel,
                                  .dtype = p->dtype,
                                  .requires_grad = p->requires_grad};
    memcpy(info.shape, p->shape, sizeof info.shape);
    size_t len = strlen(owner->fqn);
    info.is_alias =
        strncmp(p->fqn, owner->fqn, len) != 0 || strcmp(p->fqn + len + (len > 0), p->name) != 0;
    return info;
}

uint64_t tsr_model_n_params(struct tsr_engine *e)
{
    uint64_t n = 0;
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i] &&
            !(e->tree.params[i]->flat && e->tree.params[i]->fsdp)) /* views count, not both */
            n += e->tree.params[i]->numel;
    return n;
}

/* ---- changes before wrapping ----------------------------------------------------------------- */

static struct tsr_place *find_place(struct tsr_engine *e, const char *fqn)
{
    const char *dot = strrchr(fqn, '.');
    char module[256];
    size_t len = dot ? (size_t)(dot - fqn) : 0;
    if (len >= sizeof module)
        return NULL;
    memcpy(module, fqn, len);
    module[len] = 0;
    struct tsr_module *m = tsr_module_find(e, module);
    for (size_t i = 0; m && i < m->n_params; i++)
        if (strcmp(m->params[i].name, dot ? dot + 1 : fqn) == 0)
            return &m->params[i];
    return NULL;
}

struct first_place {
    struct tsr_param *param;
    struct tsr_module *module;
    const char *name;
};

static bool find_first(void *user, struct tsr_module *m)
{
    struct first_place *first = user;
    for (size_t i = 0; i < m->n_params; i++)
        if (m->params[i].param == first->param) {
            first->module = m;
            first->name = m->params[i].name;
            return false;
        }
    return true;
}

tsr_status tsr_param_tie(struct tsr_engine *e, const char *fqn, const char *source)
{
    struct tsr_place *to = find_place(e, fqn), *from = find_place(e, source);
    if (!to || !from)
        return tsr_fail(TSR_EVALUE, "tie: there is no parameter %s", to ? source : fqn);
    struct tsr_param *old = to->param;
    if (old == from->param)
        return TSR_OK;
    if (old->numel != from->param->numel)
        return tsr_fail(TSR_EVALUE, "tie: %s and %s have different sizes", fqn, source);
    to->param = from->param;
    to->param->n_places++;
    e->tree.params[old->id] = NULL; /* nobody owns it any more */
    struct first_place first = {from->param, NULL, NULL};
    tsr__module_walk(e->tree.root, find_first, &first);
    if (first.module) /* named after its first place in module order */
        first.param->fqn = join_fqn(e, first.module->fqn, first.name);
    return e->status;
}

tsr_status tsr_param_freeze(struct tsr_engine *e, const char *pattern)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i] && tsr_glob(pattern, e->tree.params[i]->fqn))
            e->tree.params[i]->requires_grad = false;
    return TSR_OK;
}

tsr_status tsr_param_set_dtype(struct tsr_engine *e, const char *pattern, tsr_dtype dtype)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i] && tsr_glob(pattern, e->tree.params[i]->fqn))
            e->tree.params[i]->dtype = dtype;
    return TSR_OK;
}

void tsr_model_set_meta(struct tsr_engine *e, bool meta)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i])
            e->tree.params[i]->meta = meta;
}

tsr_status tsr_param_set_noncontiguous(struct tsr_engine *e, const char *pattern)
{
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i] && tsr_glob(pattern, e->tree.params[i]->fqn))
            e->tree.params[i]->noncontiguous = true;
    return TSR_OK;
}

/* ---- own models ------------------------------------------------------------------------------ */

struct tsr_module *tsr_module_add(struct tsr_engine *e, struct tsr_module *parent, const char *name,
                                  tsr_forward_fn forward, void *impl)
{
    if (!parent && e->tree.root)
        return NULL;
    return tsr__module_new(e, parent, name, "Module", forward, impl);
}

struct tsr_param *tsr_param_add(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                int n_dims, const uint64_t *shape, tsr_dtype dtype)
{
    return tsr__param_new(e, m, name, n_dims, shape, dtype);
}

struct tsr_tensor *tsr__param_value(struct tsr_engine *e, struct tsr_param *p)
{
    if (!tsr__ok(e))
        return NULL;
    if (!p->value) {
        TSR__RAISE(e, TSR_ERUNTIME,
                   "%s is sharded where its module computes: got mixed torch.Tensor and DTensor",
                   p->fqn);
        return NULL;
    }
    return p->value;
}

/* ---- parameters in order --------------------------------------------------------------------- */

struct param_list {
    size_t n, cap;
    struct tsr_param **params;
    struct tsr_engine *e;
};

static bool list_params(void *user, struct tsr_module *m)
{
    struct param_list *list = user;
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_param *p = m->params[i].param;
        if (p->whole)
            p = p->whole;
        if (p->visited == list->e->tree.walk_stamp)
            continue;
        p->visited = list->e->tree.walk_stamp;
        if (!TSR__ARENA_PUSH(list->e, list->params, list->n, list->cap, p))
            return false;
    }
    return true;
}

/* Built once after wrapping: a wrapper may put flat parameters in the place of a module's. */
struct tsr_param *const *tsr__params_in_order(struct tsr_engine *e, size_t *n)
{
    struct tsr_module_tree *tree = &e->tree;
    if (!tree->order || tree->order_wrapped != tree->n_wrapped) {
        struct param_list list = {.e = e};
        if (tree->root)
            tsr__module_walk(tree->root, list_params, &list);
        tree->order = list.params;
        tree->n_order = list.n;
        tree->order_wrapped = tree->n_wrapped;
    }
    *n = tree->n_order;
    return tree->order;
}

bool tsr__module_contains(const struct tsr_module *outer, const struct tsr_module *inner)
{
    if (outer == inner)
        return true;
    for (size_t i = 0; i < outer->n_children; i++)
        if (tsr__module_contains(outer->children[i], inner))
            return true;
    return false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* A module call with everything that hangs on it, in PyTorch's order: activation
 * checkpoint around the whole call, the wrapper's pre-forward, the forward (checkpointed by itself
 * if so asked), the wrapper's post-forward. */

static void trace_fwd(struct tsr_engine *e, struct tsr_module *m)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "fwd");
    tsr__event_str(&ev, "m", m->fqn);
    tsr__event_bool(&ev, "recompute", e->autograd.recompute_depth > 0);
    tsr__event_send(e, &ev);
}

static void trace_bwd(struct tsr_engine *e, void *module, uint32_t arg)
{
    (void)arg;
    struct tsr_event ev;
    tsr__event_begin(&ev, "bwd");
    tsr__event_str(&ev, "m", ((struct tsr_module *)module)->fqn);
    tsr__event_send(e, &ev);
}

struct tsr_tensor *tsr__call_body(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *in)
{
    struct tsr_tensor *out = NULL;
    if (tsr__ok(e))
        m->forward(e, m, m->impl, in, &out);
    return out;
}

static bool is_block(const struct tsr_module *m)
{
    return m->forward && m->parent && m->parent->no_forward;
}

/* The pre-forward hook may replace the further arguments of a call: those of the caller are set
 * aside, and are restored when the call returns. */
static void begin_args(struct tsr_engine *e, struct tsr_tensor *outer[TSR_N_ARGS])
{
    for (int i = 0; i < TSR_N_ARGS; i++)
        outer[i] = tsr_retain(e->autograd.args[i]);
}

static void end_args(struct tsr_engine *e, struct tsr_tensor *const outer[TSR_N_ARGS])
{
    for (int i = 0; i < TSR_N_ARGS; i++) {
        tsr_release(e, e->autograd.args[i]);
        e->autograd.args[i] = outer[i];
    }
}

struct tsr_tensor *tsr__call_hooks(struct tsr_engine *e, struct tsr_module *m,
                                   struct tsr_tensor *in)
{
    struct tsr_tensor *x = tsr_retain(in), *out, *outer[TSR_N_ARGS];
    uint32_t module = e->origin.module;
    bool has_args = m->has_args && m->hooks;
    e->origin.module = m->id;
    if (has_args)
        begin_args(e, outer);
    if (m->hooks)
        x = m->hooks->pre_forward(e, m, x);
    if (m->n_params > 0 && tsr__ok(e))
        trace_fwd(e, m);
    if (e->tree.block_call && is_block(m))
        out = e->tree.block_call(e, m, x);
    else if (m->checkpoint.inside)
        out = tsr__checkpoint_call(e, m, x, false);
    else
        out = tsr__call_body(e, m, x);
    e->origin.module = m->id;
    if (m->hooks && m->hooks->post_forward)
        out = m->hooks->post_forward(e, m, out);
    tsr_release(e, x); /* Module.__call__ holds its arguments until its hooks have run */
    if (has_args)
        end_args(e, outer);
    tsr_release(e, m->aux_output);
    m->aux_output = NULL;
    if (e->emit.has_trace && m->n_params > 0 && out && out->grad_fn &&
        e->autograd.recompute_depth == 0 && tsr__ok(e))
        tsr__node_hook(e, out->grad_fn, trace_bwd, m, 0);
    e->origin.module = module;
    return out;
}

struct tsr_tensor *tsr_call(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *in)
{
    if (!tsr__ok(e))
        return NULL;
    bool again = e->autograd.unpacking && e->autograd.unpacking->module == m &&
                 e->autograd.unpacking->outside;
    if (m->checkpoint.outside && !again)
        return tsr__checkpoint_call(e, m, in, true);
    return tsr__call_hooks(e, m, in);
}

/* ---- wrappers -------------------------------------------------------------------------------- */

void tsr__wrapper_add(struct tsr_engine *e, struct tsr_wrapper *w,
                      const struct tsr_wrapper_ops *ops)
{
    if (w->ops)
        return;
    TSR_CHECK(e->n_wrappers < TSR__MAX_WRAPPERS);
    w->ops = ops;
    e->wrappers[e->n_wrappers++] = w;
}
