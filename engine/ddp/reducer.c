/* reducer.c: the bucketed replicate, DDP's reducer (sections 5.2 and 5.3): its buckets and its
 * forward.
 *
 * Trainable parameters are assigned to buckets; a bucket is all-reduced when all its gradients are
 * there, strictly in index order, on a stream of its own. After the first synced backward the
 * buckets are rebuilt in the order in which gradients became ready.
 *
 * DDP's own mixed precision has its own file, reducer_mixed.c.
 */
#include "engine/ddp/reducer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ddp/bucket.h"

/* ---- bucket assignment ----------------------------------------------------------------------- */
bool tsr__reducer_is_mixed(const struct tsr_reducer *r)
{
    return r->options.mp.param != TSR_DTYPE_NONE;
}

tsr_dtype tsr__bucket_dtype(const struct tsr_reducer *r, const struct tsr_param *p)
{
    return tsr__reducer_is_mixed(r) ? r->options.mp.param : tsr__reduce_dtype(r, p);
}

tsr_dtype tsr__reduce_dtype(const struct tsr_reducer *r, const struct tsr_param *p)
{
    if (r->options.mp.reduce != TSR_DTYPE_NONE)
        return r->options.mp.reduce;
    return tsr__reducer_is_mixed(r) ? r->options.mp.param : p->dtype;
}

struct assignment {
    struct tsr_engine *e;
    struct tsr_reducer *r;
    size_t n, cap;
    struct bucket *buckets;
};

static void add_bucket(struct assignment *a, struct tsr_param *const *params, const size_t *which,
                       size_t n)
{
    struct bucket b = {.n = n};
    struct tsr_reducer *r = a->r;
    b.params = tsr_arena_alloc(&a->e->arena, n * sizeof *b.params);
    b.offsets = tsr_arena_alloc(&a->e->arena, n * sizeof *b.offsets);
    if (!b.params || !b.offsets) {
        TSR__RAISE(a->e, TSR_ENOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct tsr_param *p = params[which[i]];
        b.params[i] = p;
        b.offsets[i] = b.bytes;
        b.numel += p->numel;
        b.bytes += p->numel * tsr_dtype_bytes(tsr__bucket_dtype(r, p));
    }
    TSR__ARENA_PUSH(a->e, a->buckets, a->n, a->cap, b);
}

/* The rule of bucket.c over parameters, whose own dtypes count, not that of the computation.
 * initial: sorted by smallest parameter, then reversed, so that those defined last are reduced
 * first. */
static void assign(struct assignment *a, struct tsr_param *const *params, size_t n,
                   const uint64_t *limits, size_t n_limits, bool initial)
{
    struct tsr_bucket_plan plan;
    struct tsr_bucket_item *items = tsr_arena_alloc(&a->e->arena, (n + 1) * sizeof *items);
    if (!items) {
        TSR__RAISE(a->e, TSR_ENOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        items[i].dtype =
            tsr__reducer_is_mixed(a->r) ? params[i]->dtype : tsr__bucket_dtype(a->r, params[i]);
        items[i].bytes = params[i]->numel * tsr_dtype_bytes(items[i].dtype);
    }
    tsr_status status = tsr_bucket_assign(items, n, limits, n_limits, &plan);
    if (status == TSR_OK && initial)
        status = tsr_bucket_sort(&plan);
    for (size_t i = 0; status == TSR_OK && i < plan.n_buckets; i++) {
        size_t b = initial ? plan.n_buckets - 1 - i : i;
        add_bucket(a, params, plan.items + plan.first[b], plan.first[b + 1] - plan.first[b]);
    }
    tsr_bucket_plan_fini(&plan);
    tsr__set_error(a->e, status);
}

static void release_buffers(struct tsr_engine *e, struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_buckets; i++) {
        tsr__storage_release(e, &r->buckets[i].stale);
        tsr__storage_release(e, &r->buckets[i].buffer);
        tsr__storage_release(e, &r->buckets[i].reduced);
    }
}

static void install(struct tsr_engine *e, struct tsr_reducer *r, const struct assignment *a)
{
    release_buffers(e, r);
    r->buckets = a->buckets;
    r->n_buckets = a->n;
    for (size_t i = 0; i < a->n; i++) {
        struct bucket *b = &r->buckets[i];
        for (size_t k = 0; k < b->n; k++) {
            struct slot *s = &r->slots[b->params[k]->id];
            s->bucket = (uint32_t)i;
            s->index = (uint32_t)k;
        }
        if (e->tree.params_ready) /* else tsr__reducer_init_end() makes them */
            b->buffer = tsr__storage_new(e, b->bytes, TSR_CAT_REDUCE_SCATTER);
    }
}

static void initial_buckets(struct tsr_engine *e, struct tsr_reducer *r)
{
    static const uint64_t unlimited = UINT64_MAX;
    struct assignment a = {.e = e, .r = r};
    if (r->options.bucket_cap_mb_list || (r->options.find_unused && !r->options.static_graph))
        assign(&a, r->params, r->n_params, r->caps, r->n_caps, true);
    else
        assign(&a, r->params, r->n_params, &unlimited, 1, true);
    install(e, r, &a);
}

/* ---- construction ---------------------------------------------------------------------------- */
struct collect {
    struct tsr_engine *e;
    struct tsr_reducer *r;
    size_t cap, cap_delayed, cap_mixed;
    bool *seen;
};

static bool matches(const char *const *patterns, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (tsr_glob(patterns[i], name))
            return true;
    return false;
}

/* A module that is ignored, with all below it: their gradients stay this rank's own (R215). */
static bool ignore_module(void *user, struct tsr_module *m)
{
    (void)user;
    for (size_t i = 0; i < m->n_params; i++)
        m->params[i].param->ignored = true;
    for (size_t i = 0; i < m->n_children; i++)
        ignore_module(user, m->children[i]);
    return true;
}

static bool find_ignored(void *user, struct tsr_module *m)
{
    const struct tsr_ddp_options *o = user;
    if (matches(o->ignored, o->n_ignored, m->fqn))
        ignore_module(user, m);
    return true;
}

static bool add_delayed(struct collect *c, struct tsr_param *p)
{
    struct tsr_reducer *r = c->r;
    struct slot *s = &r->slots[p->id];
    s->delayed = true;
    s->delayed_offset = r->delayed_bytes;
    r->delayed_bytes += p->numel * tsr_dtype_bytes(p->dtype);
    return TSR__ARENA_PUSH(c->e, r->delayed, r->n_delayed, c->cap_delayed, p);
}

/* Pre-order, own parameters first, a shared one under its first name (5.2). */
static bool collect(void *user, struct tsr_module *m)
{
    struct collect *c = user;
    const struct tsr_ddp_options *o = &c->r->options;
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_param *p = m->params[i].param;
        if (c->seen[p->id] || p->fsdp || p->ignored)
            continue;
        c->seen[p->id] = true;
        if (!TSR__ARENA_PUSH(c->e, c->r->mixed, c->r->n_mixed, c->cap_mixed, p))
            return false;
        if (!p->requires_grad)
            continue;
        if (o->delayed_after && !strcmp(o->delayed_after, p->fqn))
            c->r->delayed_after = p;
        if (matches(o->delayed, o->n_delayed, p->fqn)) {
            if (!add_delayed(c, p))
                return false;
            continue;
        }
        c->r->slots[p->id].member = true;
        if (!TSR__ARENA_PUSH(c->e, c->r->params, c->r->n_params, c->cap, p))
            return false;
    }
    return true;
}

/* An integer or a device (R217); a CPU device means no device list. */
static tsr_status read_device(struct tsr_reducer *r)
{
    const char *id = r->options.device_id;
    if (!id || !strcmp(id, "cpu"))
        return TSR_OK;
    const char *number = !strncmp(id, "cuda:", 5) ? id + 5 : id;
    if (strcmp(id, "cuda") != 0 && (!*number || strspn(number, "0123456789") != strlen(number)))
        return tsr_fail(TSR_ERUNTIME, "Expected device_id to be int or torch.device, but got %s",
                        id);
    r->n_device_ids = 1;
    return TSR_OK;
}

/* One cap: with a first bucket of 1 MiB for the default only. A list: as given. MiB, whole bytes.
 */
static tsr_status read_caps(struct tsr_engine *e, struct tsr_reducer *r)
{
    const struct tsr_ddp_options *o = &r->options;
    r->n_caps = o->bucket_cap_mb_list ? o->n_caps : 2;
    r->caps = tsr_arena_alloc(&e->arena, (r->n_caps + 1) * sizeof *r->caps);
    if (!r->caps)
        return tsr_no_memory(NULL);
    if (o->bucket_cap_mb_list && o->n_caps == 0)
        return tsr_fail(TSR_EVALUE, "bucket_cap_mb_list is empty; allowed: one cap or more");
    for (size_t i = 0; o->bucket_cap_mb_list && i < o->n_caps; i++) {
        if (!(o->bucket_cap_mb_list[i] > 0))
            return tsr_fail(TSR_EVALUE, "bucket_cap_mb_list: found %g; allowed: above 0",
                            o->bucket_cap_mb_list[i]);
        r->caps[i] = (uint64_t)(o->bucket_cap_mb_list[i] * 1048576);
    }
    if (o->bucket_cap_mb_list)
        return TSR_OK;
    bool given = o->bucket_cap_mb > 0;
    r->caps[1] = given ? (uint64_t)(o->bucket_cap_mb * 1048576) : UINT64_C(25) << 20;
    r->caps[0] = given ? r->caps[1] : UINT64_C(1) << 20;
    return TSR_OK;
}

static tsr_status check_ddp(const struct tsr_engine *e, const struct tsr_ddp_options *o)
{
    if (!e->tree.root || e->reducer)
        return tsr_fail(TSR_EASSERT, e->tree.root ? "replicate has already been applied to the root"
                                                  : "the engine has no model");
    if (e->fsdp1)
        return tsr_fail(TSR_EUNSUPPORTED, "ddp beside fsdp1 is not modelled");
    if (e->tree.root->state)
        return tsr_fail(TSR_ERUNTIME, "Cannot apply `replicate()` on a Module already managed by "
                                      "`fully_shard`");
    if (o && (o->n_delayed > 0) != (o->delayed_after != NULL))
        return tsr_fail(TSR_EVALUE, "delay_all_reduce_named_params and param_to_hook_all_reduce "
                                    "need to be set at the same time");
    if (o && o->n_delayed > 0 && o->mp.param != TSR_DTYPE_NONE)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "a delayed all-reduce beside DDP's mixed precision is not modelled");
    return TSR_OK;
}

static tsr_status find_params(struct tsr_engine *e, struct tsr_reducer *r)
{
    struct collect c = {.e = e, .r = r};
    c.seen = tsr_arena_alloc(&e->arena, e->tree.n_params + 1);
    r->slots = tsr_arena_alloc(&e->arena, (e->tree.n_params + 1) * sizeof *r->slots);
    if (!c.seen || !r->slots)
        return tsr_no_memory(NULL);
    tsr__module_walk(e->tree.root, find_ignored, &r->options);
    tsr__module_walk(e->tree.root, collect, &c);
    if (r->options.delayed_after && !r->delayed_after)
        return tsr_fail(TSR_EVALUE, "param_to_hook_all_reduce: there is no trainable parameter %s",
                        r->options.delayed_after);
    if (r->n_params == 0 && r->n_delayed == 0)
        return tsr_fail(TSR_ERUNTIME, "DistributedDataParallel is not needed when a module doesn't "
                                      "have any parameters that require a gradient");
    r->ready_order = tsr_arena_alloc(&e->arena, (r->n_params + 1) * sizeof *r->ready_order);
    return r->ready_order ? TSR_OK : tsr_no_memory(NULL);
}

tsr_status tsr_ddp_register_comm_hook(struct tsr_engine *e, enum tsr_ddp_hook hook,
                                      tsr_all_reduce_hook fn, void *user)
{
    struct tsr_reducer *r = e->reducer;
    if (!r)
        return tsr_fail(TSR_EATTRIBUTE, "the model has no attribute 'register_comm_hook'");
    if (r->has_hook || tsr__reducer_is_mixed(r))
        return tsr_fail(TSR_ERUNTIME, "register_comm_hook can only be called once");
    if ((hook == TSR_DDP_HOOK_USER) != (fn != NULL))
        return tsr_fail(TSR_EVALUE, "register_comm_hook: a function goes with TSR_DDP_HOOK_USER");
    r->has_hook = true;
    r->hook = hook;
    r->user_hook = fn;
    r->user = user;
    return TSR_OK;
}

tsr_status tsr_ddp_set_sync(struct tsr_engine *e, bool sync)
{
    if (!e->reducer)
        return tsr_fail(TSR_EATTRIBUTE, "the model has no attribute 'set_requires_gradient_sync'");
    e->reducer->sync = sync;
    return TSR_OK;
}

/* The reducer makes its buckets before mixed precision tells it the dtype of gradients, and makes
 * them again then: the first ones stay, as views into them do. */
static void make_buffer(struct tsr_engine *e, const struct tsr_reducer *r, struct bucket *b)
{
    tsr_dtype dtype = b->params[0]->dtype;
    uint64_t bytes = b->numel * tsr_dtype_bytes(dtype);
    if (tsr__reducer_is_mixed(r) && dtype != r->options.mp.param)
        b->stale = tsr__storage_new(e, bytes, TSR_CAT_REDUCE_SCATTER);
    else
        b->buffer = tsr__storage_new(e, b->bytes, TSR_CAT_REDUCE_SCATTER);
}

void tsr__reducer_init_end(struct tsr_engine *e, struct tsr_wrapper *w)
{
    struct tsr_reducer *r = (struct tsr_reducer *)w;
    tsr__reducer_sync_state(e, r);
    for (size_t i = 0; i < r->n_buckets; i++)
        make_buffer(e, r, &r->buckets[i]);
    if (r->n_delayed > 0)
        r->delayed_buffer = tsr__storage_new(e, r->delayed_bytes, TSR_CAT_REDUCE_SCATTER);
    if (r->options.find_unused || r->options.static_graph)
        r->used_map = tsr__storage_new(e, 4 * r->n_params, TSR_CAT_REDUCE_SCATTER);
    if (tsr__reducer_is_mixed(r))
        tsr__reducer_make_handles(e, r);
}

/* ---- forward --------------------------------------------------------------------------------- */
/* All ranks take the order of the first one (sync_bucket_indices): for a moment its indices, and
 * how many a bucket has, lie on the device. What is broadcast is not in the program. */
static void share_order(struct tsr_engine *e, const struct tsr_reducer *r, size_t n_buckets)
{
    struct tsr_storage *indices = tsr__storage_new(e, 4 * (r->n_params + 1), TSR_CAT_TEMP);
    struct tsr_storage *sizes = tsr__storage_new(e, 4 * n_buckets, TSR_CAT_TEMP);
    tsr__storage_release(e, &sizes);
    tsr__storage_release(e, &indices);
}

/* Rebuilds the buckets once, in the order in which gradients became ready; in a static graph one
 * backward later, and parameters that it does not use come last (R208). */
static void rebuild(struct tsr_engine *e, struct tsr_reducer *r)
{
    bool never = r->options.find_unused && !r->options.static_graph;
    if (r->rebuilt || never || !r->has_order)
        return;
    for (size_t i = 0; i < r->n_params && r->options.static_graph; i++)
        if (!r->slots[r->params[i]->id].used && r->n_ready < r->n_params)
            r->ready_order[r->n_ready++] = r->params[i];
    if (r->n_ready != r->n_params)
        return;
    struct assignment a = {.e = e, .r = r};
    assign(&a, r->ready_order, r->n_ready, r->caps, r->n_caps, false);
    share_order(e, r, a.n);
    install(e, r, &a);
    r->rebuilt = true;
}

/* Raises an error if the last reduction lacks a gradient, so that a bucket never started (R214). */
static void check_finished(struct tsr_engine *e, const struct tsr_reducer *r)
{
    bool has_begun = false;
    for (size_t i = 0; i < r->n_params; i++)
        has_begun = has_begun || r->slots[r->params[i]->id].ready;
    for (size_t i = 0; i < r->n_params && has_begun; i++)
        if (!r->slots[r->params[i]->id].ready) {
            TSR__RAISE(e, TSR_ERUNTIME,
                       "Expected to have finished reduction in the prior iteration before starting "
                       "a new one: %s got no gradient (find_unused allows it)",
                       r->params[i]->fqn);
            return;
        }
}

void tsr__reducer_prepare(struct tsr_engine *e)
{
    struct tsr_reducer *r = e->reducer;
    if (e->grad_enabled) {
        check_finished(e, r);
        rebuild(e, r);
        tsr__reducer_attach_delayed(e, r);
    }
    tsr__reducer_sync_buffers(e, r);
}

static struct tsr_tensor *pre_forward(struct tsr_engine *e, struct tsr_module *m,
                                      struct tsr_tensor *in)
{
    struct tsr_reducer *r = e->reducer;
    (void)m;
    if (!e->traced) /* whose inputs were cast before the root's mark */
        tsr__reducer_prepare(e);
    if (!tsr__reducer_is_mixed(r))
        return in;
    if (in && tsr_dtype_is_float((tsr_dtype)in->dtype)) {
        struct tsr_tensor *as_given = in;
        in = tsr_op_cast(e, as_given, r->options.mp.param);
        tsr_release(e, as_given);
    }
    tsr__reducer_copy_params(e, r);
    return in;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* DDP clones the model's outputs in a node of its own (_DDPSink) with find_unused, and in a static
 * graph until a backward has run. A trace has the clones itself. */
static struct tsr_tensor *post_forward(struct tsr_engine *e, struct tsr_module *m,
                                       struct tsr_tensor *out)
{
    const struct tsr_reducer *r = e->reducer;
    bool clones = r->options.static_graph ? !r->has_run_backward : r->options.find_unused;
    (void)m;
    if (!clones || !out || e->traced || !tsr__ok(e))
        return out;
    struct tsr_tensor *clone = tsr_op_clone(e, out);
    tsr_release(e, out);
    return clone;
}

static const struct tsr_module_hooks hooks = {pre_forward, post_forward};

tsr_status tsr_ddp(struct tsr_engine *e, const struct tsr_ddp_options *options)
{
    TSR_TRY(check_ddp(e, options));
    struct tsr_reducer *r = tsr_arena_alloc(&e->arena, sizeof *r);
    if (!r)
        return tsr_no_memory(NULL);
    if (options)
        r->options = *options;
    TSR_TRY(read_device(r));
    TSR_TRY(read_caps(e, r));
    TSR_TRY(find_params(e, r));
    r->sync = true;
    r->comm = tsr__comm_add(e, "replicate", e->world, 1, UINT16_MAX);
    r->stream = tsr__stream_add(e, "all_reduce", TSR_ROLE_ALL_REDUCE, -1);
    e->reducer = r;
    e->tree.root->hooks = &hooks;
    e->tree.n_wrapped++;
    tsr__wrapper_add(e, &r->base, &tsr__reducer_wrapper);
    if (tsr__reducer_is_mixed(r))
        tsr__reducer_mix(e, r);
    if (r->n_params > 0)
        initial_buckets(e, r);
    /* what only the construction reads is borrowed from the caller */
    r->options.ignored = r->options.delayed = NULL;
    r->options.delayed_after = NULL;
    return e->status;
}

/* ---- inspection ------------------------------------------------------------------------------ */
size_t tsr_ddp_n_buckets(struct tsr_engine *e)
{
    return e->reducer && e->reducer->has_launched ? e->reducer->n_buckets : 0;
}

struct tsr_bucket_info tsr_ddp_bucket(struct tsr_engine *e, size_t i)
{
    struct tsr_reducer *r = e->reducer;
    struct bucket *b = &r->buckets[i];
    struct tsr_bucket_info info = {.index = i,
                                   .n_params = b->n,
                                   .numel = b->numel,
                                   .bytes = b->bytes,
                                   .last = i + 1 == r->n_buckets,
                                   .is_reduced = b->launched};
    const char **names = tsr_arena_alloc(&e->arena, (b->n + 1) * sizeof *names);
    for (size_t k = 0; names && k < b->n; k++)
        names[k] = b->params[k]->fqn;
    info.params = names;
    return info;
}
