/* reducer.c: the bucketed replicate, DDP's reducer (sections 5.2 and 5.3).
 *
 * Trainable parameters are assigned to buckets; a bucket is all-reduced when all its gradients are
 * there, strictly in index order, on a stream of its own. After the first synced backward the
 * buckets are rebuilt in the order in which gradients became ready.
 *
 * Mixed precision: the forward computes with copies in the param dtype, which live from the root's
 * pre-forward to the end of backward; buckets have the reduce dtype; gradients end in the
 * parameter's own dtype.
 */
#include "bucket.h"
#include "engine.h"

struct bucket {
    size_t n, waiting;
    struct tsr_param **params;
    uint64_t *offsets; /* bytes into the buffer */
    uint64_t numel, bytes;
    struct tsr_storage *buffer;
    uint32_t event; /* of the running all-reduce */
    bool launched;
};

struct slot { /* per parameter, by parameter id */
    uint32_t bucket, index;
    bool member, ready;
};

struct tsr_reducer {
    struct tsr_ddp_options options;
    uint64_t first_cap, cap; /* bytes */
    size_t n_params;
    struct tsr_param **params; /* trainable, definition order */
    struct slot *slots;
    size_t n_buckets, next;
    struct bucket *buckets;
    size_t n_ready;
    struct tsr_param **ready_order; /* of the running backward */
    bool sync, rebuilt, has_order;
    uint32_t n_synced; /* backwards with reduction so far */
    bool reducing;     /* this backward reduces */
    uint16_t comm, stream;
    bool has_launched; /* any bucket since the last look (tsr_ddp_bucket) */
};

/* ---- bucket assignment ----------------------------------------------------------------------- */
static tsr_dtype bucket_dtype(const struct tsr_reducer *r, const struct tsr_param *p)
{
    if (r->options.mp.reduce != TSR_DTYPE_NONE)
        return r->options.mp.reduce;
    return r->options.mp.param != TSR_DTYPE_NONE ? r->options.mp.param : p->dtype;
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
        b.bytes += p->numel * tsr_dtype_bytes(bucket_dtype(r, p));
    }
    TSR__ARENA_PUSH(a->e, a->buckets, a->n, a->cap, b);
}

/* The rule of bucket.c over parameters. initial: sorted by smallest parameter, then reversed, so
 * that those defined last are reduced first. */
static void assign(struct assignment *a, struct tsr_param *const *params, size_t n, uint64_t first,
                   uint64_t cap, bool initial)
{
    const uint64_t limits[2] = {first, cap};
    struct tsr_bucket_plan plan;
    struct tsr_bucket_item *items = tsr_arena_alloc(&a->e->arena, (n + 1) * sizeof *items);
    if (!items) {
        TSR__RAISE(a->e, TSR_ENOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        items[i].dtype = bucket_dtype(a->r, params[i]);
        items[i].bytes = params[i]->numel * tsr_dtype_bytes(items[i].dtype);
    }
    tsr_status status = tsr_bucket_assign(items, n, limits, 2, &plan);
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
    for (size_t i = 0; i < r->n_buckets; i++)
        tsr__storage_release(e, &r->buckets[i].buffer);
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
        if (e->params_ready) /* else tsr__reducer_init_params() makes them */
            b->buffer = tsr__storage_new(e, b->bytes, TSR_CAT_REDUCE_SCATTER);
    }
}

static void initial_buckets(struct tsr_engine *e, struct tsr_reducer *r)
{
    struct assignment a = {.e = e, .r = r};
    if (r->options.find_unused && !r->options.static_graph)
        assign(&a, r->params, r->n_params, r->first_cap, r->cap, true);
    else
        assign(&a, r->params, r->n_params, UINT64_MAX, UINT64_MAX, true);
    install(e, r, &a);
}

/* ---- construction ---------------------------------------------------------------------------- */
struct collect {
    struct tsr_engine *e;
    struct tsr_reducer *r;
    size_t cap;
    bool *seen;
};

/* A module that is ignored, with all below it: their gradients stay this rank's own (R215). */
static void ignore(struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_params; i++)
        m->params[i].param->ignored = true;
    for (size_t i = 0; i < m->n_children; i++)
        ignore(m->children[i]);
}

static bool find_ignored(void *user, struct tsr_module *m)
{
    const struct tsr_ddp_options *o = user;
    for (size_t i = 0; i < o->n_ignored; i++)
        if (tsr__glob(o->ignored[i], m->fqn))
            ignore(m);
    return true;
}

/* Pre-order, own parameters first, a shared one under its first name (5.2). */
static bool collect(void *user, struct tsr_module *m)
{
    struct collect *c = user;
    for (size_t i = 0; i < m->n_params; i++) {
        struct tsr_param *p = m->params[i].param;
        if (c->seen[p->id] || p->fsdp || p->ignored || !p->requires_grad)
            continue;
        c->seen[p->id] = true;
        c->r->slots[p->id].member = true;
        if (!TSR__ARENA_PUSH(c->e, c->r->params, c->r->n_params, c->cap, p))
            return false;
    }
    return true;
}

tsr_status tsr_ddp(struct tsr_engine *e, const struct tsr_ddp_options *options)
{
    if (!e->root || e->reducer)
        return tsr_fail(TSR_EASSERT, e->root ? "replicate has already been applied to the root"
                                             : "the engine has no model");
    if (e->root->state)
        return tsr_fail(TSR_ERUNTIME, "Cannot apply `replicate()` on a Module already managed by "
                                      "`fully_shard`");
    struct tsr_reducer *r = tsr_arena_alloc(&e->arena, sizeof *r);
    struct collect c = {.e = e, .r = r};
    c.seen = tsr_arena_alloc(&e->arena, e->n_params + 1);
    if (!r || !c.seen)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    r->slots = tsr_arena_alloc(&e->arena, (e->n_params + 1) * sizeof *r->slots);
    if (!r->slots)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    if (options)
        r->options = *options;
    tsr__module_walk(e->root, find_ignored, &r->options);
    tsr__module_walk(e->root, collect, &c);
    r->options.ignored = NULL; /* the caller's */
    r->options.n_ignored = 0;
    if (r->n_params == 0)
        return tsr_fail(TSR_ERUNTIME, "DistributedDataParallel is not needed when a module doesn't "
                                      "have any parameters that require a gradient");
    r->ready_order = tsr_arena_alloc(&e->arena, (r->n_params + 1) * sizeof *r->ready_order);
    if (!r->ready_order)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    bool given = r->options.bucket_cap_mb > 0;
    r->cap = given ? (uint64_t)(r->options.bucket_cap_mb * 1048576) : UINT64_C(25) << 20;
    r->first_cap = given ? r->cap : UINT64_C(1) << 20;
    r->sync = true;
    r->comm = tsr__comm_add(e, "replicate", e->world, 1, UINT16_MAX);
    r->stream = tsr__stream_add(e, "all_reduce", TSR_ROLE_ALL_REDUCE, -1);
    e->reducer = r;
    initial_buckets(e, r);
    return e->status;
}

tsr_status tsr_ddp_set_sync(struct tsr_engine *e, bool sync)
{
    if (!e->reducer)
        return tsr_fail(TSR_EATTRIBUTE, "the model has no attribute 'set_requires_gradient_sync'");
    e->reducer->sync = sync;
    return TSR_OK;
}

/* Parameters that compute in another dtype get a handle whose storage comes and goes. */
static void make_handle(struct tsr_engine *e, struct tsr_param *p, tsr_dtype dtype)
{
    struct tsr_storage *s = tsr__storage_empty(e, p->numel * tsr_dtype_bytes(dtype),
                                               TSR_CAT_UNSHARDED_PARAM, TSR_SPACE_DEVICE);
    struct tsr_tensor *leaf = tsr__tensor_view(e, s, dtype, p->n_dims, p->shape);
    if (!leaf)
        return;
    s->refs--;
    leaf->param = p;
    leaf->requires_grad = p->requires_grad;
    tsr_release(e, p->value);
    p->value = leaf;
}

/* Values come from rank 0 (R206): one broadcast per 250 MiB of parameters. */
static void broadcast_params(struct tsr_engine *e, struct tsr_reducer *r)
{
    const uint64_t chunk = UINT64_C(250) << 20;
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n_params; i++) {
        struct tsr_storage *s = r->params[i]->master;
        if (!s)
            continue;
        tsr__operand_storage(e, s, TSR_READ_WRITE);
        bytes += s->bytes;
        if (bytes < chunk && i + 1 < r->n_params)
            continue;
        struct tsr_instr instr = {.kind = TSR_BROADCAST,
                                  .dtype = (uint8_t)r->params[i]->dtype,
                                  .comm = r->comm,
                                  .bytes = bytes};
        tsr__emit(e, &instr);
        bytes = 0;
    }
}

void tsr__reducer_init_params(struct tsr_engine *e)
{
    struct tsr_reducer *r = e->reducer;
    broadcast_params(e, r);
    for (size_t i = 0; i < r->n_buckets; i++)
        r->buckets[i].buffer = tsr__storage_new(e, r->buckets[i].bytes, TSR_CAT_REDUCE_SCATTER);
    tsr_dtype dtype = r->options.mp.param;
    for (size_t i = 0; i < r->n_params && dtype != TSR_DTYPE_NONE; i++)
        if (r->params[i]->dtype != dtype)
            make_handle(e, r->params[i], dtype);
}

/* ---- forward --------------------------------------------------------------------------------- */
static void cast_params(struct tsr_engine *e, struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_params && tsr__ok(e); i++) {
        struct tsr_param *p = r->params[i];
        if (!p->value || p->value->storage == p->master || p->value->storage->live)
            continue;
        tsr__storage_back(e, p->value->storage);
        if (!tsr__ok(e))
            return;
        tsr__operand_storage(e, p->master, TSR_READ);
        tsr__operand_storage(e, p->value->storage, TSR_WRITE);
        tsr__emit_copy(e, (tsr_dtype)p->value->dtype, p->master->bytes, p->value->storage->bytes,
                       "param_cast");
    }
}

/* Once: by the order in which gradients became ready; static graphs one backward later (R208). */
static void rebuild(struct tsr_engine *e, struct tsr_reducer *r)
{
    bool never = r->options.find_unused && !r->options.static_graph;
    if (r->rebuilt || never || !r->has_order || r->n_ready != r->n_params)
        return;
    struct assignment a = {.e = e, .r = r};
    assign(&a, r->ready_order, r->n_ready, r->first_cap, r->cap, false);
    install(e, r, &a);
    r->rebuilt = true;
}

/* A gradient that never came keeps its bucket from starting: the next forward says so (R214). */
static void check_finished(struct tsr_engine *e, const struct tsr_reducer *r)
{
    if (r->n_synced == 0 || r->options.find_unused || r->options.static_graph)
        return;
    for (size_t i = 0; i < r->n_params; i++)
        if (!r->slots[r->params[i]->id].ready) {
            TSR__RAISE(e, TSR_ERUNTIME,
                       "Expected to have finished reduction in the prior iteration before starting "
                       "a new one: %s got no gradient (find_unused allows it)",
                       r->params[i]->fqn);
            return;
        }
}

struct tsr_tensor *tsr__reducer_pre_forward(struct tsr_engine *e, struct tsr_tensor *in)
{
    struct tsr_reducer *r = e->reducer;
    if (e->grad_enabled)
        check_finished(e, r);
    if (e->grad_enabled && r->sync)
        rebuild(e, r);
    cast_params(e, r);
    tsr_dtype dtype = r->options.mp.param;
    if (dtype == TSR_DTYPE_NONE || !in || !tsr_dtype_is_float((tsr_dtype)in->dtype))
        return in;
    struct tsr_tensor *out = tsr_op_cast(e, in, dtype);
    tsr_release(e, in);
    return out;
}

/* ---- backward -------------------------------------------------------------------------------- */
static void launch(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b)
{
    uint32_t ready = tsr__new_event(e);
    struct tsr_instr record = {
        .kind = TSR_RECORD, .stream = e->stream, .comm = UINT16_MAX, .event = ready};
    struct tsr_instr wait = {
        .kind = TSR_WAIT, .stream = r->stream, .comm = UINT16_MAX, .event = ready};
    tsr__emit(e, &record);
    tsr__emit(e, &wait);
    tsr__operand_storage(e, b->buffer, TSR_READ_WRITE);
    struct tsr_instr reduce = {.kind = TSR_ALL_REDUCE,
                               .dtype = (uint8_t)bucket_dtype(r, b->params[0]),
                               .reduce_op = TSR_REDUCE_SUM,
                               .stream = r->stream,
                               .comm = r->comm,
                               .bytes = b->bytes};
    tsr__emit(e, &reduce);
    b->event = tsr__new_event(e);
    struct tsr_instr done = {
        .kind = TSR_RECORD, .stream = r->stream, .comm = UINT16_MAX, .event = b->event};
    tsr__emit(e, &done);
    b->launched = true;
}

static void launch_ready(struct tsr_engine *e, struct tsr_reducer *r)
{
    while (r->next < r->n_buckets && r->buckets[r->next].waiting == 0)
        launch(e, r, &r->buckets[r->next++]);
}

/* The gradient times 1/world goes into its place in the bucket (R212). */
static void copy_to_bucket(struct tsr_engine *e, struct tsr_reducer *r, struct tsr_param *p)
{
    struct slot *s = &r->slots[p->id];
    struct bucket *b = &r->buckets[s->bucket];
    uint64_t bytes = p->numel * tsr_dtype_bytes(bucket_dtype(r, p));
    struct tsr_tensor *grad = p->value->grad;
    if (!b->buffer || !tsr__ok(e))
        return;
    if (grad)
        tsr__operand_tensor(e, grad, TSR_READ);
    tsr__operand(e, b->buffer, b->offsets[s->index], bytes, TSR_WRITE);
    tsr__emit_copy(e, bucket_dtype(r, p), grad ? tsr__tensor_bytes(grad) : 0, bytes,
                   "grad_to_bucket");
    bool view = r->options.gradient_as_bucket_view && p->value->dtype == bucket_dtype(r, p);
    if (!view || (grad && grad->storage == b->buffer))
        return;
    struct tsr_tensor *alias =
        tsr__tensor_view(e, b->buffer, bucket_dtype(r, p), p->n_dims, p->shape);
    if (alias)
        alias->offset = b->offsets[s->index];
    tsr_release(e, grad);
    p->value->grad = alias;
}

static void mark_ready(struct tsr_engine *e, struct tsr_reducer *r, struct tsr_param *p)
{
    struct slot *s = &r->slots[p->id];
    if (s->ready)
        return;
    s->ready = true;
    copy_to_bucket(e, r, p);
    r->buckets[s->bucket].waiting--;
    bool delayed = r->options.static_graph && r->n_synced == 0;
    if (!delayed)
        launch_ready(e, r);
}

void tsr__reducer_ready(struct tsr_engine *e, struct tsr_param *p)
{
    struct tsr_reducer *r = e->reducer;
    if (!r->reducing || !r->slots[p->id].member || !tsr__ok(e))
        return;
    if (r->n_ready < r->n_params && !r->slots[p->id].ready)
        r->ready_order[r->n_ready++] = p;
    mark_ready(e, r, p);
}

void tsr__reducer_backward_begin(struct tsr_engine *e, uint32_t pass)
{
    struct tsr_reducer *r = e->reducer;
    r->reducing = r->sync;
    if (!r->reducing)
        return;
    r->next = 0;
    r->n_ready = 0;
    for (size_t i = 0; i < r->n_buckets; i++) {
        r->buckets[i].waiting = r->buckets[i].n;
        r->buckets[i].launched = false;
    }
    for (size_t i = 0; i < r->n_params; i++)
        r->slots[r->params[i]->id].ready = false;
    if (!r->options.find_unused)
        return;
    for (size_t i = 0; i < r->n_params; i++) {
        struct tsr_tensor *leaf = r->params[i]->value;
        if (leaf && (!leaf->accumulator || leaf->accumulator->mark != pass))
            mark_ready(e, r, r->params[i]);
    }
}

/* Which parameters some rank used: a bitmap, all-reduced. */
static void reduce_used_map(struct tsr_engine *e, struct tsr_reducer *r)
{
    struct tsr_storage *map = tsr__storage_new(e, 4 * r->n_params, TSR_CAT_TEMP);
    if (map && tsr__ok(e)) {
        struct tsr_instr reduce = {.kind = TSR_ALL_REDUCE,
                                   .dtype = TSR_U8,
                                   .reduce_op = TSR_REDUCE_SUM,
                                   .comm = r->comm,
                                   .bytes = map->bytes};
        tsr__operand_storage(e, map, TSR_READ_WRITE);
        tsr__emit(e, &reduce);
    }
    tsr__storage_release(e, &map);
}

static void copy_back(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b, size_t i)
{
    struct tsr_param *p = b->params[i];
    struct tsr_tensor *grad = p->value->grad;
    uint64_t bytes = p->numel * tsr_dtype_bytes(bucket_dtype(r, p));
    if (!grad || grad->storage == b->buffer || !tsr__ok(e))
        return;
    struct tsr_tensor *to = grad;
    if (p->value->storage != p->master) { /* the optimizer's gradient has the original dtype */
        if (!p->full_grad)
            p->full_grad = tsr__tensor_new(e, p->dtype, p->n_dims, p->shape, TSR_CAT_SHARDED_GRAD);
        to = p->full_grad;
    }
    if (!to)
        return;
    tsr__operand(e, b->buffer, b->offsets[i], bytes, TSR_READ);
    tsr__operand_tensor(e, to, TSR_WRITE);
    tsr__emit_copy(e, (tsr_dtype)to->dtype, bytes, tsr__tensor_bytes(to), "bucket_to_grad");
    if (to != grad) {
        tsr_release(e, grad);
        p->value->grad = NULL;
    }
}

/* End of backward: all buckets are waited for, gradients copied back, copies of parameters freed.
 */
void tsr__reducer_finalize(struct tsr_engine *e)
{
    struct tsr_reducer *r = e->reducer;
    if (r->reducing && tsr__ok(e)) {
        launch_ready(e, r);
        if (r->options.find_unused && !r->options.static_graph)
            reduce_used_map(e, r);
        for (size_t i = 0; i < r->n_buckets && tsr__ok(e); i++) {
            struct bucket *b = &r->buckets[i];
            if (!b->launched)
                continue;
            struct tsr_instr wait = {
                .kind = TSR_WAIT, .stream = e->stream, .comm = UINT16_MAX, .event = b->event};
            tsr__emit(e, &wait);
            for (size_t k = 0; k < b->n; k++)
                copy_back(e, r, b, k);
        }
        r->n_synced++;
        r->has_order = !r->options.static_graph || r->n_synced > 1;
    }
    r->has_launched = r->reducing;
    r->reducing = false;
    for (size_t i = 0; i < r->n_params; i++)
        if (r->params[i]->value && r->params[i]->value->storage != r->params[i]->master)
            tsr__storage_unback(e, r->params[i]->value->storage);
}

void tsr__reducer_destroy(struct tsr_engine *e)
{
    e->reducer = NULL; /* everything of it lives in the arena */
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
                                   .last = i + 1 == r->n_buckets};
    const char **names = tsr_arena_alloc(&e->arena, (b->n + 1) * sizeof *names);
    for (size_t k = 0; names && k < b->n; k++)
        names[k] = b->params[k]->fqn;
    info.params = names;
    return info;
}
