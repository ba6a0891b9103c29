/* reducer_backward.c: gradients become ready, buckets start in index order, comm hooks replace the
 * all-reduce, and the end of backward waits for everything (section 5.3).
 */
#include "engine/ddp/reducer.h"

/* ---- all-reduces ----------------------------------------------------------------------------- */
static void emit_all_reduce(struct tsr_engine *e, struct tsr_reducer *r, struct tsr_storage *buffer,
                            tsr_dtype dtype)
{
    tsr__operand_storage(e, buffer, TSR_READ_WRITE, dtype);
    struct tsr_instr reduce = {.kind = TSR_ALL_REDUCE,
                               .dtype = (uint8_t)dtype,
                               .reduce_op = TSR_REDUCE_SUM,
                               .stream = e->stream,
                               .comm = r->comm,
                               .bytes = buffer->bytes};
    tsr__emit(e, &reduce);
}

void tsr__reducer_divide(struct tsr_engine *e, struct tsr_storage *buffer, tsr_dtype dtype)
{
    tsr__operand_storage(e, buffer, TSR_READ_WRITE, dtype);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "div_by_world",
                            .flops = (double)buffer->bytes / tsr_dtype_bytes(dtype),
                            .bytes_read = buffer->bytes,
                            .bytes_written = buffer->bytes,
                            .constants = {e->emit.comms[e->reducer->comm].size}};
    tsr__emit_op(e, &work);
}

/* FP16_COMPRESS, BF16_COMPRESS: cast, divide, reduce, cast back. */
static void compressed(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b,
                       tsr_dtype half)
{
    tsr_dtype dtype = tsr__bucket_dtype(r, b->params[0]);
    struct tsr_storage *small = tsr__storage_new(e, b->numel * tsr_dtype_bytes(half), TSR_CAT_TEMP);
    if (!small || !tsr__ok(e))
        return;
    tsr__operand_storage(e, b->buffer, TSR_READ, dtype);
    tsr__operand_storage(e, small, TSR_WRITE, half);
    tsr__emit_copy(e, half, b->bytes, small->bytes, "compress");
    tsr__reducer_divide(e, small, half);
    emit_all_reduce(e, r, small, half);
    tsr__operand_storage(e, small, TSR_READ, half);
    tsr__operand_storage(e, b->buffer, TSR_WRITE, dtype);
    tsr__emit_copy(e, dtype, small->bytes, b->bytes, "decompress");
    tsr__storage_release(e, &small);
}

static void run_hook(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b)
{
    tsr_dtype dtype = tsr__bucket_dtype(r, b->params[0]);
    switch (r->hook) {
    case TSR_DDP_HOOK_ALLREDUCE:
        tsr__reducer_divide(e, b->buffer, dtype);
        emit_all_reduce(e, r, b->buffer, dtype);
        break;
    case TSR_DDP_HOOK_FP16_COMPRESS:
        compressed(e, r, b, TSR_F16);
        break;
    case TSR_DDP_HOOK_BF16_COMPRESS:
        compressed(e, r, b, TSR_BF16);
        break;
    case TSR_DDP_HOOK_USER: {
        struct tsr_tensor *view = tsr__tensor_view(e, b->buffer, dtype, 1, &b->numel);
        uint8_t hook = e->origin.hook;
        e->origin.hook = TSR_HOOK_USER;
        if (view)
            r->user_hook(e, view, r->user);
        e->origin.hook = hook;
        tsr_release(e, view);
        break;
    }
    }
}

void tsr__reducer_order(struct tsr_engine *e, uint16_t from, uint16_t to, uint32_t event)
{
    struct tsr_instr record = {
        .kind = TSR_RECORD, .stream = from, .comm = UINT16_MAX, .event = event};
    struct tsr_instr wait = {.kind = TSR_WAIT, .stream = to, .comm = UINT16_MAX, .event = event};
    tsr__emit(e, &record);
    if (to != from)
        tsr__emit(e, &wait);
}

static void launch(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b)
{
    uint16_t compute = e->stream;
    if (tsr__reducer_is_mixed(r))
        tsr__reducer_cast_bucket(e, r, b);
    tsr__reducer_order(e, compute, r->stream, tsr__new_event(e));
    e->stream = r->stream;
    if (r->has_hook)
        run_hook(e, r, b);
    else
        emit_all_reduce(e, r, b->cast ? b->cast : b->buffer, tsr__reduce_dtype(r, b->params[0]));
    e->stream = compute;
    b->event = tsr__new_event(e);
    tsr__reducer_order(e, r->stream, r->stream, b->event);
    b->launched = true;
    if (tsr__reducer_is_mixed(r))
        tsr__reducer_upcast(e, r, b);
}

static bool all_unused(const struct tsr_reducer *r, const struct bucket *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (r->slots[b->params[i]->id].used)
            return false;
    return true;
}

/* True in the first reducing backward of a static graph. It finds out which parameters are used, so
 * gradients go to the buckets when it ends, and every bucket is reduced, whatever is unused. */
static bool is_first_of_static(const struct tsr_reducer *r)
{
    return r->options.static_graph && r->n_synced == 0;
}

static void launch_ready(struct tsr_engine *e, struct tsr_reducer *r)
{
    bool may_skip = r->options.skip_all_reduce_unused && !is_first_of_static(r);
    while (r->next < r->n_buckets && r->buckets[r->next].waiting == 0) {
        struct bucket *b = &r->buckets[r->next++];
        if (!(may_skip && all_unused(r, b)))
            launch(e, r, b);
    }
}

static void emit_to_bucket(struct tsr_engine *e, const struct tsr_reducer *r,
                           const struct tsr_tensor *grad, uint64_t bytes, tsr_dtype dtype)
{
    bool is_hooked = r->has_hook || tsr__reducer_is_mixed(r);
    double scale = is_hooked ? 1 : 1.0 / e->emit.comms[r->comm].size;
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "grad_to_bucket",
                            .bytes_read = grad ? tsr__tensor_bytes(grad) : 0,
                            .bytes_written = bytes,
                            .constants = {scale}};
    struct tsr_instr copy = {.kind = TSR_COPY,
                             .dtype = (uint8_t)dtype,
                             .stream = e->stream,
                             .comm = UINT16_MAX,
                             .work = &work,
                             .bytes = bytes};
    tsr__emit(e, &copy);
}

/* The gradient goes into its place in the bucket, times 1/world unless a comm hook is installed
 * (R212). */
static void copy_to_bucket(struct tsr_engine *e, struct tsr_reducer *r, struct tsr_param *p)
{
    struct slot *s = &r->slots[p->id];
    struct bucket *b = &r->buckets[s->bucket];
    uint64_t bytes = p->numel * tsr_dtype_bytes(tsr__bucket_dtype(r, p));
    struct tsr_tensor *grad = p->value->grad;
    if (!b->buffer || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, grad, TSR_READ);
    tsr__operand(e, b->buffer, b->offsets[s->index], bytes, TSR_WRITE, tsr__bucket_dtype(r, p));
    emit_to_bucket(e, r, grad, bytes, tsr__bucket_dtype(r, p));
    bool view = r->options.gradient_as_bucket_view && p->value->dtype == tsr__bucket_dtype(r, p);
    if (!view || !grad || grad->storage == b->buffer)
        return;
    struct tsr_tensor *alias =
        tsr__tensor_view(e, b->buffer, tsr__bucket_dtype(r, p), p->n_dims, p->shape);
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
    if (!is_first_of_static(r))
        launch_ready(e, r);
}

/* Parameters that this backward does not use count as ready with its first gradient (R214). In a
 * static graph they are those that its first backward did not use. */
static void mark_unused(struct tsr_engine *e, struct tsr_reducer *r)
{
    if (r->marked_unused)
        return;
    r->marked_unused = true;
    for (size_t i = 0; i < r->n_params && (r->options.find_unused || r->options.static_graph); i++)
        if (!r->slots[r->params[i]->id].used)
            mark_ready(e, r, r->params[i]);
}

/* The whole delayed buffer at once, when the hook parameter's gradient is there. */
static void launch_delayed(struct tsr_engine *e, struct tsr_reducer *r)
{
    uint16_t compute = e->stream;
    if (!r->delayed_buffer)
        return;
    tsr__reducer_order(e, compute, r->stream, tsr__new_event(e));
    e->stream = r->stream;
    tsr__reducer_divide(e, r->delayed_buffer, r->delayed[0]->dtype);
    emit_all_reduce(e, r, r->delayed_buffer, r->delayed[0]->dtype);
    e->stream = compute;
    r->delayed_event = tsr__new_event(e);
    tsr__reducer_order(e, r->stream, r->stream, r->delayed_event);
}

void tsr__reducer_attach_delayed(struct tsr_engine *e, struct tsr_reducer *r)
{
    bool fresh = false;
    for (size_t i = 0; i < r->n_delayed && tsr__ok(e); i++) {
        struct tsr_param *p = r->delayed[i];
        if (!p->value || p->value->grad || !r->delayed_buffer)
            continue;
        p->value->grad = tsr__tensor_view(e, r->delayed_buffer, p->dtype, p->n_dims, p->shape);
        if (p->value->grad)
            p->value->grad->offset = r->slots[p->id].delayed_offset;
        fresh = true;
    }
    if (!fresh || !tsr__ok(e))
        return;
    tsr__emit_fill(e, r->delayed_buffer, r->delayed[0]->dtype, 0);
}

static void grad_ready(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p)
{
    struct tsr_reducer *r = (struct tsr_reducer *)w;
    struct slot *s = &r->slots[p->id];
    if (!tsr__ok(e))
        return;
    s->has_new_grad = true;
    if (!r->reducing)
        return;
    if (p == r->delayed_after)
        launch_delayed(e, r);
    if (!s->member || is_first_of_static(r))
        return;
    mark_unused(e, r);
    if (r->n_ready < r->n_params && !s->ready)
        r->ready_order[r->n_ready++] = p;
    mark_ready(e, r, p);
}

/* Returns true if `p` is in the graph of this backward. */
static bool is_used(const struct tsr_param *p, uint32_t pass)
{
    const struct tsr_tensor *leaf = p->value;
    return leaf && leaf->accumulator && leaf->accumulator->mark == pass;
}

/* A parameter of a static graph that its first backward did not use must never be used. One that
 * was used and is not any more keeps its bucket waiting, which the next forward reports. */
static void check_static(struct tsr_engine *e, const struct tsr_reducer *r, uint32_t pass)
{
    for (size_t i = 0; i < r->n_params; i++)
        if (!r->slots[r->params[i]->id].used && is_used(r->params[i], pass)) {
            TSR__RAISE(e, TSR_ERUNTIME,
                       "Your training graph has changed in this iteration, e.g., one parameter is "
                       "unused in first iteration, but then got used in the second iteration. this "
                       "is not compatible with static_graph set to True: %s",
                       r->params[i]->fqn);
            return;
        }
}

static void backward_begin(struct tsr_engine *e, struct tsr_wrapper *w, uint32_t pass)
{
    struct tsr_reducer *r = (struct tsr_reducer *)w;
    r->has_run_backward = true;
    r->reducing = r->sync;
    if (!r->reducing)
        return;
    r->next = 0;
    r->n_ready = 0;
    r->marked_unused = false;
    for (size_t i = 0; i < r->n_buckets; i++) {
        tsr__storage_release(e, &r->buckets[i].cast); /* of a backward that failed */
        r->buckets[i].waiting = r->buckets[i].n;
        r->buckets[i].launched = false;
    }
    for (size_t i = 0; i < r->n_params; i++)
        r->slots[r->params[i]->id].ready = false;
    if (r->options.static_graph && r->n_synced > 0) {
        check_static(e, r, pass);
        return;
    }
    for (size_t i = 0; i < r->n_params; i++)
        r->slots[r->params[i]->id].used = is_used(r->params[i], pass);
}

static void emit_used_map(struct tsr_engine *e, const struct tsr_reducer *r,
                          struct tsr_storage *map)
{
    tsr__operand_storage(e, map, TSR_WRITE, TSR_U8);
    for (size_t i = 0; i < r->n_params; i++)
        tsr__push_arg(e, r->slots[r->params[i]->id].has_new_grad);
    struct tsr_work work = {
        .op = TSR_OP_POINTWISE, .dtype = TSR_U8, .name = "used_map", .bytes_written = map->bytes};
    tsr__emit_op(e, &work);
}

/* Emits the all-reduce of a bitmap: which parameters some rank used since the last reduction. */
static void reduce_used_map(struct tsr_engine *e, struct tsr_reducer *r)
{
    struct tsr_instr reduce = {.kind = TSR_ALL_REDUCE,
                               .dtype = TSR_U8,
                               .reduce_op = TSR_REDUCE_SUM,
                               .comm = r->comm,
                               .bytes = r->used_map->bytes};
    emit_used_map(e, r, r->used_map);
    tsr__operand_storage(e, r->used_map, TSR_READ_WRITE, TSR_U8);
    tsr__emit(e, &reduce);
}

static void copy_back(struct tsr_engine *e, struct tsr_reducer *r, struct bucket *b, size_t i)
{
    struct tsr_param *p = b->params[i];
    struct tsr_storage *from = b->reduced ? b->reduced : b->buffer;
    struct tsr_tensor *grad = tsr__reducer_is_mixed(r) ? p->full_grad : p->value->grad;
    tsr_dtype dtype = tsr__reduce_dtype(r, p);
    uint64_t bytes = p->numel * tsr_dtype_bytes(dtype);
    uint64_t at = b->offsets[i] / tsr_dtype_bytes(tsr__bucket_dtype(r, p)) * tsr_dtype_bytes(dtype);
    bool may_be_unused = r->options.find_unused || r->options.static_graph;
    if (may_be_unused && !r->slots[p->id].has_new_grad)
        return; /* what an earlier backward left in the gradient stays */
    if (!grad || grad->storage == from || !tsr__ok(e))
        return;
    tsr__operand(e, from, at, bytes, TSR_READ, dtype);
    tsr__operand_tensor(e, grad, TSR_WRITE);
    tsr__emit_copy(e, (tsr_dtype)grad->dtype, bytes, tsr__tensor_bytes(grad), "bucket_to_grad");
}

void tsr__reducer_wait(struct tsr_engine *e, uint32_t event)
{
    struct tsr_instr wait = {
        .kind = TSR_WAIT, .stream = e->stream, .comm = UINT16_MAX, .event = event};
    tsr__emit(e, &wait);
}

/* Waits for the all-reduces of a backward, and takes their results. */
static void finalize(struct tsr_engine *e, struct tsr_reducer *r)
{
    if (tsr__reducer_is_mixed(r))
        tsr__reducer_end_upcast(e, r);
    for (size_t i = 0; i < r->n_buckets && tsr__ok(e); i++) {
        struct bucket *b = &r->buckets[i];
        if (!b->launched)
            continue;
        tsr__reducer_wait(e, b->event);
        if (b->cast) {
            tsr__storage_release(e, &b->reduced);
            b->reduced = b->cast;
            b->cast = NULL;
        }
        for (size_t k = 0; k < b->n; k++)
            copy_back(e, r, b, k);
    }
    if (r->delayed_event)
        tsr__reducer_wait(e, r->delayed_event);
    r->delayed_event = 0;
    for (size_t i = 0; i < r->n_params && !r->options.static_graph; i++)
        r->slots[r->params[i]->id].has_new_grad = false;
}

/* Ends a backward: all buckets are waited for, and gradients copied back. */
static void backward_end(struct tsr_engine *e, struct tsr_wrapper *w)
{
    struct tsr_reducer *r = (struct tsr_reducer *)w;
    if (r->reducing && tsr__ok(e)) {
        bool first = is_first_of_static(r);
        if (first || (r->options.find_unused && !r->options.static_graph))
            reduce_used_map(e, r);
        for (size_t i = 0; i < r->n_params && first; i++)
            mark_ready(e, r, r->params[i]);
        launch_ready(e, r);
        finalize(e, r);
        r->n_synced++;
        r->has_order = !r->options.static_graph || r->n_synced > 1;
    }
    r->has_launched = r->reducing;
    r->reducing = false;
}

static void forward_begin(struct tsr_engine *e, struct tsr_wrapper *w)
{
    (void)w;
    tsr__reducer_prepare(e);
}

static void reads(struct tsr_engine *e, struct tsr_wrapper *w, const struct tsr_module *m)
{
    (void)w;
    tsr__reducer_reads(e, m);
}

static tsr_status begin_micro_batch(struct tsr_engine *e, struct tsr_wrapper *w,
                                    enum tsr_accumulate rule, bool is_last)
{
    (void)w;
    (void)rule;
    return tsr_ddp_set_sync(e, is_last);
}

const struct tsr_wrapper_ops tsr__reducer_wrapper = {.init_end = tsr__reducer_init_end,
                                                     .begin_micro_batch = begin_micro_batch,
                                                     .forward_begin = forward_begin,
                                                     .reads = reads,
                                                     .backward_begin = backward_begin,
                                                     .grad_ready = grad_ready,
                                                     .backward_end = backward_end,
                                                     .walk = tsr__walk_reducer};
