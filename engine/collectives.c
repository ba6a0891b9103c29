/* collectives.c: what a group's all-gather and reduction emit (sections 3.4, 3.5, 3.8).
 *
 * [Note: streams] Copy-in and all-gather run on their own streams, copy-out on the compute stream;
 * the reduce-scatter input is made on the compute stream, its output on the reduce-scatter stream.
 * A block is handed back on the stream that allocated it, hence the waits W1-W15.
 */
#include "engine.h"

#include <math.h>

/* ---- divide factors (3.14) --------------------------------------------------------------------
 */

struct tsr_divide tsr__divide_factors(uint32_t shard, uint32_t replicate, tsr_dtype reduce,
                                      double factor, bool force_sum)
{
    bool risky = reduce != TSR_F32 && reduce != TSR_BF16;
    double n = (double)shard * replicate;
    struct tsr_divide d = {.rs_op = TSR_REDUCE_SUM, .ar_op = TSR_REDUCE_SUM};
    if (!risky && !force_sum) {
        if (factor == 0) {
            if (n > 1)
                d.rs_op = d.ar_op = TSR_REDUCE_AVG;
        } else if (factor == shard) {
            d.rs_op = TSR_REDUCE_AVG;
        } else {
            d.rs_op = TSR_REDUCE_PREMUL_SUM;
            d.premul = 1 / factor;
        }
        return d;
    }
    double f = factor != 0 ? factor : n;
    if (!risky) {
        d.post = f;
        return d;
    }
    d.pre = 1;
    while (fmod(f, d.pre) == 0 && f / d.pre > d.pre)
        d.pre *= 2;
    d.post = f / d.pre;
    return d;
}

/* ---- all-gather (3.4) ---------------------------------------------------------------------------
 */

struct gather {
    uint32_t size, rank; /* of the communicator: the shard group or the smaller one */
    uint16_t comm;
    bool from_slice;       /* from SHARDED_POST_FORWARD */
    uint64_t elems, bytes; /* one rank's contribution */
    tsr_dtype dtype;       /* U8 when the group mixes dtypes */
};

static tsr_dtype gather_dtype(const struct tsr_fsdp_param *p)
{
    return p->param_dtype != TSR_DTYPE_NONE ? p->param_dtype : p->orig_dtype;
}

static uint64_t input_numel(const struct tsr_group *g, const struct gather *a,
                            const struct tsr_fsdp_param *p)
{
    return a->from_slice ? p->shard_numel * g->shard_size / a->size : p->shard_numel;
}

static struct gather plan_gather(struct tsr_engine *e, struct tsr_group *g)
{
    struct gather a = {.size = g->shard_size, .rank = g->shard_rank, .comm = g->shard_comm};
    if (g->sharded == TSR_SHARDED_POST_FORWARD) {
        a.from_slice = true;
        a.size = g->post_forward_size;
        a.rank = e->config.rank / g->shard_stride % a.size;
        a.comm = g->post_forward_comm;
    }
    a.dtype = gather_dtype(g->params[0]);
    for (size_t i = 0; i < g->n_params; i++) {
        tsr_dtype dtype = gather_dtype(g->params[i]);
        uint64_t n = input_numel(g, &a, g->params[i]);
        a.elems += n;
        a.bytes += n * tsr_dtype_bytes(dtype);
        if (dtype != a.dtype)
            a.dtype = TSR_U8;
    }
    if (a.dtype == TSR_U8)
        a.elems = a.bytes;
    return a;
}

static struct tsr_storage *gather_source(const struct gather *a, struct tsr_fsdp_param *p)
{
    return a->from_slice ? p->post_forward : p->sharded;
}

/* All shards that need a cast go into one flat buffer with one batched kernel. */
static struct tsr_storage *cast_inputs(struct tsr_engine *e, struct tsr_group *g,
                                       const struct gather *a)
{
    uint64_t bytes = 0, read = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (p->param_dtype == TSR_DTYPE_NONE)
            continue;
        uint64_t n = input_numel(g, a, p);
        bytes += n * tsr_dtype_bytes(p->param_dtype);
        read += n * tsr_dtype_bytes(a->from_slice ? p->param_dtype : p->orig_dtype);
    }
    if (bytes == 0)
        return NULL;
    struct tsr_storage *flat = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (!flat)
        return NULL;
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->param_dtype != TSR_DTYPE_NONE)
            tsr__operand_storage(e, gather_source(a, g->params[i]), TSR_READ);
    tsr__operand_storage(e, flat, TSR_WRITE);
    tsr__emit_copy(e, g->mp.param, read, bytes, "all_gather_cast");
    return flat;
}

/* An offloaded shard comes over in its original dtype and is cast on the device (R191). */
static struct tsr_storage *h2d_input(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    uint64_t bytes = p->shard_numel * tsr_dtype_bytes(p->orig_dtype);
    struct tsr_storage *device = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (!device)
        return NULL;
    tsr__operand_storage(e, p->sharded, TSR_READ);
    tsr__operand_storage(e, device, TSR_WRITE);
    tsr__emit_copy(e, p->orig_dtype, bytes, bytes, "h2d_shard");
    if (p->param_dtype == TSR_DTYPE_NONE)
        return device;
    uint64_t cast_bytes = p->shard_numel * tsr_dtype_bytes(p->param_dtype);
    struct tsr_storage *cast = tsr__storage_new(e, cast_bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (cast) {
        tsr__operand_storage(e, device, TSR_READ);
        tsr__operand_storage(e, cast, TSR_WRITE);
        tsr__emit_copy(e, p->param_dtype, bytes, cast_bytes, "all_gather_cast");
    }
    tsr__storage_release(e, &device);
    return cast;
}

static struct tsr_storage *copy_in(struct tsr_engine *e, struct tsr_group *g,
                                   const struct gather *a)
{
    bool offloaded = g->offload != TSR_OFFLOAD_NONE && !a->from_slice;
    struct tsr_storage *flat = NULL;
    if (offloaded)
        for (size_t i = 0; i < g->n_params; i++)
            g->params[i]->temp = h2d_input(e, g->params[i]);
    else if (g->offload == TSR_OFFLOAD_NONE)
        flat = cast_inputs(e, g, a);
    if (g->custom_all_gather && g->custom_all_gather->allocate)
        g->custom_all_gather->allocate(e, a->elems * a->size, a->dtype, g->custom_all_gather->user);
    struct tsr_storage *out = tsr__storage_new(e, a->bytes * a->size, TSR_CAT_ALL_GATHER);
    if (out && tsr__ok(e)) {
        for (size_t i = 0; i < g->n_params; i++) {
            struct tsr_fsdp_param *p = g->params[i];
            if (offloaded)
                tsr__operand_storage(e, p->temp, TSR_READ);
            else if (!flat || p->param_dtype == TSR_DTYPE_NONE)
                tsr__operand_storage(e, gather_source(a, p), TSR_READ);
        }
        tsr__operand_storage(e, flat, TSR_READ);
        tsr__operand(e, out, a->bytes * a->rank, a->bytes, TSR_WRITE);
        tsr__emit_copy(e, a->dtype, a->bytes, a->bytes, "all_gather_copy_in");
    }
    tsr__storage_release(e, &flat);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->temp);
    return out;
}

static void trace_all_gather(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                             bool async_op, uint16_t stream)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "all_gather");
    tsr__event_str(&ev, "g", g->name);
    tsr__event_str(&ev, "pg", e->comms[a->comm].name);
    tsr__event_int(&ev, "n_in", (int64_t)a->elems);
    tsr__event_int(&ev, "n_out", (int64_t)(a->elems * a->size));
    tsr__event_str(&ev, "dtype", tsr_dtype_name(a->dtype));
    tsr__event_int(&ev, "bytes", (int64_t)(a->bytes * a->size));
    tsr__event_bool(&ev, "async", async_op);
    tsr__event_str(&ev, "stream", e->streams[stream].name);
    tsr__event_send(e, &ev);
}

static void emit_all_gather(struct tsr_engine *e, const struct gather *a, struct tsr_storage *out,
                            uint16_t stream)
{
    tsr__operand(e, out, a->bytes * a->rank, a->bytes, TSR_READ); /* in place (R92) */
    tsr__operand_storage(e, out, TSR_WRITE);
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = (uint8_t)a->dtype,
                              .stream = stream,
                              .comm = a->comm,
                              .bytes = a->bytes * a->size};
    tsr__emit(e, &instr);
}

/* Hands a user's collective its two tensors and lets it emit on `stream`. */
static void run_custom(struct tsr_engine *e, const struct tsr_custom_comm *custom,
                       const struct tsr_custom_call *call, struct tsr_tensor *out,
                       struct tsr_tensor *in, uint16_t stream)
{
    uint16_t current = e->stream;
    uint8_t hook = e->origin.hook;
    e->stream = stream;
    e->origin.hook = TSR_HOOK_USER;
    if (out && in)
        custom->run(e, out, in, call, custom->user);
    e->origin.hook = hook;
    e->stream = current;
    tsr_release(e, in);
    tsr_release(e, out);
}

static void custom_all_gather(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                              struct tsr_storage *out, uint16_t stream)
{
    struct tsr_custom_call call = {.comm = a->comm, .size = a->size, .index = a->rank};
    uint64_t all = a->elems * a->size;
    struct tsr_tensor *to = tsr__tensor_view(e, out, a->dtype, 1, &all);
    struct tsr_tensor *from = tsr__tensor_view(e, out, a->dtype, 1, &a->elems);
    if (from)
        from->offset = a->bytes * a->rank;
    run_custom(e, g->custom_all_gather, &call, to, from, stream);
}

void tsr__all_gather_issue(struct tsr_engine *e, struct tsr_group *g, bool async_op,
                           uint16_t copy_in_stream, uint16_t stream)
{
    struct gather a = plan_gather(e, g);
    uint16_t current = e->stream;
    e->stream = copy_in_stream;
    struct tsr_storage *out = copy_in(e, g, &a);
    e->stream = current;
    if (!out || !tsr__ok(e))
        return;
    tsr__wait_stream(e, stream, copy_in_stream); /* W3 */
    trace_all_gather(e, g, &a, async_op, stream);
    if (g->custom_all_gather)
        custom_all_gather(e, g, &a, out, stream);
    else
        emit_all_gather(e, &a, out, stream);
    g->result = (struct tsr_all_gather_result){.pending = true, .async = async_op, .output = out};
    g->result.event = tsr__record_event(e, stream);
}

/* ---- copy-out (3.5) -------------------------------------------------------------------------- */
static void ensure_unsharded(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p)
{
    if (!p->unsharded) {
        tsr_dtype dtype = gather_dtype(p);
        uint64_t bytes = p->shard_numel * g->shard_size * tsr_dtype_bytes(dtype);
        struct tsr_storage *s =
            tsr__storage_empty(e, bytes, TSR_CAT_UNSHARDED_PARAM, TSR_SPACE_DEVICE);
        p->unsharded = tsr__tensor_view(e, s, dtype, p->param->n_dims, p->param->shape);
        if (s && p->unsharded)
            s->refs--; /* the tensor is its only holder */
        if (p->unsharded)
            p->unsharded->param = p->param;
    }
    if (p->unsharded)
        tsr__storage_back(e, p->unsharded->storage);
}

/* Replicate, or one rank: the "gather" is a copy (R106). */
static void copy_out_local(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_storage *cast = NULL;
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        struct tsr_storage *source = p->sharded, *previous = cast;
        cast = NULL;
        if (g->offload != TSR_OFFLOAD_NONE) {
            source = cast = h2d_input(e, p);
        } else if (p->param_dtype != TSR_DTYPE_NONE) {
            uint64_t bytes = p->shard_numel * tsr_dtype_bytes(p->param_dtype);
            source = cast = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
            tsr__operand_storage(e, p->sharded, TSR_READ);
            tsr__operand_storage(e, cast, TSR_WRITE);
            tsr__emit_copy(e, p->param_dtype, p->shard_numel * tsr_dtype_bytes(p->orig_dtype),
                           bytes, "param_cast");
        }
        tsr__storage_release(e, &previous);
        ensure_unsharded(e, g, p);
        if (!p->unsharded || !tsr__ok(e))
            break;
        tsr__operand_storage(e, source, TSR_READ);
        tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE);
        tsr__emit_copy(e, (tsr_dtype)p->unsharded->dtype, p->unsharded->storage->bytes,
                       p->unsharded->storage->bytes, "param_copy");
    }
    tsr__storage_release(e, &cast);
}

/* Table of pointers of the batched split-copy: bytes as PyTorch's kernel builds it (golden-memory,
 * operators.md section 6; 4224 = 132 multiprocessors x 32). */
static uint64_t split_table_bytes(const struct tsr_group *g, const struct gather *a)
{
    uint64_t blocks = 0, rows = 0;
    for (size_t i = 0; i < g->n_params; i++)
        blocks += tsr_ceil_div(
            input_numel(g, a, g->params[i]) * tsr_dtype_bytes(gather_dtype(g->params[i])), 2048);
    uint64_t f = tsr_ceil_div(blocks * a->size, 4224);
    uint64_t k = tsr_min_u64((uint64_t)ceil(sqrt((double)f)), a->size);
    uint64_t per = k ? tsr_ceil_div(f, k) : 1;
    for (size_t i = 0; i < g->n_params; i++)
        rows += tsr_ceil_div(input_numel(g, a, g->params[i]) *
                                 tsr_dtype_bytes(gather_dtype(g->params[i])),
                             2048 * (per ? per : 1));
    return 8 * (4 * g->n_params + 1 + rows);
}

static void emit_split_copy(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                            struct tsr_storage *table)
{
    tsr__operand_storage(e, g->result.output, TSR_READ);
    tsr__operand_storage(e, table, TSR_READ_WRITE);
    uint64_t extra = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__operand_storage(e, p->temp, TSR_READ_WRITE);
        tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE);
        if (p->shard_dim > 0) /* a second pass: chunks along dim d */
            extra += p->unsharded->storage->bytes;
    }
    uint64_t bytes = a->bytes * a->size;
    struct tsr_work work = {.op = TSR_OP_SPLIT_COPY,
                            .dtype = (uint8_t)a->dtype,
                            .name = "split_with_sizes_copy",
                            .bytes_read = bytes + extra,
                            .bytes_written = bytes + extra};
    tsr__emit_op(e, &work);
}

void tsr__all_gather_copy_out(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->result.local) {
        copy_out_local(e, g);
        return;
    }
    struct gather a = plan_gather(e, g);
    tsr__wait_event(e, e->stream, g->result.event); /* W4 */
    if (g->result.async)
        tsr__wait_work(e, e->stream, g->result.event); /* W5 */
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        ensure_unsharded(e, g, p);
        if (p->shard_dim > 0 && p->unsharded)
            p->temp = tsr__storage_new(e, p->unsharded->storage->bytes, TSR_CAT_WORKSPACE);
    }
    struct tsr_storage *table =
        tsr__ok(e) ? tsr__storage_new(e, split_table_bytes(g, &a), TSR_CAT_WORKSPACE) : NULL;
    if (tsr__ok(e))
        emit_split_copy(e, g, &a, table);
    tsr__storage_release(e, &table);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->temp);
}

/* ---- reduction (3.8 a-m) --------------------------------------------------------------------- */
struct reduction {
    struct tsr_reduce_item *items;
    size_t n;
    uint64_t elems; /* S': padded elements of one rank */
    tsr_dtype grad, reduce, orig;
    struct tsr_divide divide;
    struct tsr_storage *input, *output, *result; /* result: what becomes the gradients */
    uint16_t post_stream;
    bool all_reduces; /* DDP-kind */
};

static bool plan_reduction(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    r->grad = (tsr_dtype)r->items[0].grad->dtype;
    for (size_t i = 0; i < r->n; i++) {
        r->elems += r->items[i].p->shard_numel;
        tsr_dtype dtype = (tsr_dtype)r->items[i].grad->dtype;
        if (dtype != r->grad && e->config.version >= TSR_TORCH_2_15) {
            r->grad = TSR_F32; /* half and full gradients are promoted (R70) */
        } else if (dtype != r->grad) {
            TSR__RAISE(e, TSR_EASSERT,
                       "FSDP reduce-scatter expects uniform gradient dtype but got %s and %s",
                       tsr_dtype_name(r->grad), tsr_dtype_name((tsr_dtype)r->items[i].grad->dtype));
            return false;
        }
    }
    r->reduce = g->reduce_dtype != TSR_DTYPE_NONE ? g->reduce_dtype : r->grad;
    r->orig = g->orig_dtype;
    r->all_reduces = g->is_replicate || g->is_hsdp;
    r->divide = tsr__divide_factors(g->shard_size, g->replicate_size, r->reduce, g->divide_factor,
                                    g->force_sum);
    r->post_stream = g->comm->reduce_scatter;
    return true;
}

static void trace_reduce(struct tsr_engine *e, struct tsr_group *g, const struct reduction *r)
{
    if (!e->has_trace)
        return;
    const char **names = g->names;
    for (size_t i = 0; i < r->n; i++)
        names[i] = r->items[i].p->param->fqn;
    struct tsr_event ev;
    tsr__event_begin(&ev, "reduce");
    tsr__event_str(&ev, "g", g->name);
    tsr__event_strs(&ev, "params", names, r->n);
    tsr__event_str(&ev, "grad_dtype", tsr_dtype_name(r->grad));
    tsr__event_str(&ev, "reduce_dtype", tsr_dtype_name(r->reduce));
    tsr__event_num(&ev, "pre_div", r->divide.pre);
    tsr__event_num(&ev, "post_div", r->divide.post);
    if (g->shard_size == 1)
        tsr__event_bool(&ev, "local", true);
    tsr__event_send(e, &ev);
}

/* Pointer table of chunk_cat (operators.md section 6); none when the gradients are wider than the
 * reduce dtype: that case takes another kernel. */
static struct tsr_storage *cat_table(struct tsr_engine *e, const struct reduction *r)
{
    if (tsr_dtype_bytes(r->reduce) < tsr_dtype_bytes(r->grad))
        return NULL;
    uint64_t rows = 0;
    for (size_t i = 0; i < r->n; i++)
        rows += tsr_ceil_div(r->items[i].p->shard_numel * tsr_dtype_bytes(r->reduce), 2048);
    return tsr__storage_new(e, 8 * (6 * r->n + 2 + rows), TSR_CAT_WORKSPACE);
}

static void told_of_buffer(struct tsr_engine *e, struct tsr_group *g, const struct reduction *r,
                           uint64_t numel)
{
    const struct tsr_custom_comm *custom = g->custom_reduce_scatter;
    if (custom && custom->allocate)
        custom->allocate(e, numel, r->reduce, custom->user);
}

/* Row j of the (W x S') input: the j-th padded chunk of every gradient, cast on the fly (R155). */
static void reduce_copy_in(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    uint64_t bytes = r->elems * g->shard_size * tsr_dtype_bytes(r->reduce), read = 0;
    told_of_buffer(e, g, r, r->elems * g->shard_size);
    r->input = tsr__storage_new(e, bytes, TSR_CAT_REDUCE_SCATTER);
    struct tsr_storage *table = r->input ? cat_table(e, r) : NULL;
    if (!tsr__ok(e)) {
        tsr__storage_release(e, &table);
        return;
    }
    for (size_t i = 0; i < r->n; i++) {
        tsr__operand_tensor(e, r->items[i].grad, TSR_READ);
        read += tsr__tensor_bytes(r->items[i].grad) * (r->items[i].p->shard_dim > 0 ? 2 : 1);
    }
    tsr__operand_storage(e, table, TSR_READ_WRITE);
    tsr__operand_storage(e, r->input, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_CHUNK_CAT,
                            .dtype = (uint8_t)r->reduce,
                            .name = "chunk_cat",
                            .bytes_read = read,
                            .bytes_written = bytes};
    tsr__emit_op(e, &work);
    tsr__storage_release(e, &table);
    size_t keep = g->shard_size > 1 ? 1 : 0; /* a loop variable holds the last one (section 3) */
    for (size_t i = 0; i + keep < r->n; i++) {
        tsr_release(e, r->items[i].grad);
        r->items[i].grad = NULL;
    }
}

static void emit_scale(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype, double divisor)
{
    if (divisor == 0 || divisor == 1)
        return;
    tsr__operand_storage(e, s, TSR_READ_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "div",
                            .flops = (double)s->bytes / tsr_dtype_bytes(dtype),
                            .bytes_read = s->bytes,
                            .bytes_written = s->bytes};
    tsr__emit_op(e, &work);
}

static void trace_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                 const struct reduction *r)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "reduce_scatter");
    tsr__event_str(&ev, "g", g->name);
    tsr__event_str(&ev, "pg", e->comms[g->shard_comm].name);
    tsr__event_int(&ev, "n_in", (int64_t)(r->elems * g->shard_size));
    tsr__event_int(&ev, "n_out", (int64_t)r->elems);
    tsr__event_str(&ev, "dtype", tsr_dtype_name(r->reduce));
    tsr__event_int(&ev, "bytes", (int64_t)r->input->bytes);
    tsr__event_str(&ev, "op", tsr_reduce_op_name(r->divide.rs_op));
    if (r->divide.rs_op == TSR_REDUCE_PREMUL_SUM)
        tsr__event_num(&ev, "factor", r->divide.premul);
    tsr__event_str(&ev, "stream", e->streams[g->comm->reduce_scatter].name);
    tsr__event_send(e, &ev);
}

/* One shard rank: a copy, divided once by the custom factor (R173). */
static void local_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                 const struct reduction *r)
{
    tsr__operand_storage(e, r->input, TSR_READ);
    tsr__operand_storage(e, r->output, TSR_WRITE);
    tsr__emit_copy(e, r->reduce, r->input->bytes, r->output->bytes, "reduce_scatter_copy");
    if (g->divide_factor != 0 && r->divide.rs_op == TSR_REDUCE_PREMUL_SUM)
        emit_scale(e, r->output, r->reduce, g->divide_factor);
}

static void emit_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                const struct reduction *r)
{
    tsr__operand_storage(e, r->input, TSR_READ);
    tsr__operand_storage(e, r->output, TSR_WRITE);
    struct tsr_instr instr = {.kind = TSR_REDUCE_SCATTER,
                              .dtype = (uint8_t)r->reduce,
                              .reduce_op = r->divide.rs_op,
                              .factor = r->divide.premul,
                              .stream = g->comm->reduce_scatter,
                              .comm = g->reduce_comm,
                              .bytes = r->input->bytes};
    tsr__emit(e, &instr);
}

static void custom_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                  const struct reduction *r)
{
    struct tsr_custom_call call = {.comm = g->reduce_comm,
                                   .size = g->shard_size,
                                   .index = g->shard_rank,
                                   .reduce_op = r->divide.rs_op,
                                   .factor = r->divide.premul};
    uint64_t all = r->elems * g->shard_size;
    run_custom(e, g->custom_reduce_scatter, &call,
               tsr__tensor_view(e, r->output, r->reduce, 1, &r->elems),
               tsr__tensor_view(e, r->input, r->reduce, 1, &all), g->comm->reduce_scatter);
}

static void keep_reduce_input(struct tsr_engine *e, struct tsr_comm_ctx *comm,
                              struct tsr_storage *input, uint32_t event)
{
    if (comm->n_reduce_inputs == TSR_MAX_REDUCE_INPUTS)
        tsr__drop_reduce_inputs(e, comm, TSR_MAX_REDUCE_INPUTS - 1);
    comm->reduce_inputs[comm->n_reduce_inputs++] = (struct tsr_reduce_input){input, event};
}

static enum tsr_category output_category(struct tsr_group *g, const struct reduction *r)
{
    if (r->all_reduces && !g->all_reduce_grads)
        return g->partial ? TSR_CAT_REDUCE_SCATTER_OUTPUT : TSR_CAT_PARTIAL_REDUCE_OUTPUT;
    bool becomes_grad = r->reduce == r->orig && g->offload == TSR_OFFLOAD_NONE;
    for (size_t i = 0; i < r->n; i++)
        becomes_grad &= !r->items[i].p->grad;
    return becomes_grad ? TSR_CAT_SHARDED_GRAD : TSR_CAT_REDUCE_SCATTER_OUTPUT;
}

static void reduce_scatter(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    uint16_t stream = g->comm->reduce_scatter;
    tsr__wait_stream(e, stream, e->stream); /* W11 */
    uint16_t current = e->stream;
    e->stream = stream;
    told_of_buffer(e, g, r, r->elems);
    r->output = tsr__storage_new(e, r->elems * tsr_dtype_bytes(r->reduce), output_category(g, r));
    if (!r->output || !tsr__ok(e)) {
        e->stream = current;
        return;
    }
    emit_scale(e, r->input, r->reduce, r->divide.pre);
    if (g->shard_size == 1) {
        local_reduce_scatter(e, g, r);
    } else {
        trace_reduce_scatter(e, g, r);
        if (g->custom_reduce_scatter)
            custom_reduce_scatter(e, g, r);
        else
            emit_reduce_scatter(e, g, r);
    }
    e->stream = current;
    keep_reduce_input(e, g->comm, r->input, tsr__record_event(e, stream));
}

static void add_into(struct tsr_engine *e, struct tsr_storage *into, struct tsr_storage *from,
                     tsr_dtype dtype)
{
    tsr__operand_storage(e, from, TSR_READ);
    tsr__operand_storage(e, into, TSR_READ_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "add",
                            .bytes_read = 2 * into->bytes,
                            .bytes_written = into->bytes};
    tsr__emit_op(e, &work);
}

/* HSDP, reduce-scatter only: the output stays as a partial sum (R167). */
static void keep_partial(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    const char *res = "save";
    if (g->partial) {
        res = "accumulate";
        add_into(e, g->partial, r->output, r->reduce);
    } else {
        g->partial = r->output;
        r->output = NULL;
    }
    g->post_reduce_event = tsr__record_event(e, g->comm->reduce_scatter);
    if (e->has_trace) {
        struct tsr_event ev;
        tsr__event_begin(&ev, "partial_reduce");
        tsr__event_str(&ev, "g", g->name);
        tsr__event_str(&ev, "res", res);
        tsr__event_send(e, &ev);
    }
}

static void trace_all_reduce(struct tsr_engine *e, struct tsr_group *g, const struct reduction *r,
                             bool adds_partial)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "all_reduce");
    tsr__event_str(&ev, "g", g->name);
    tsr__event_str(&ev, "pg", e->comms[g->replicate_comm].name);
    tsr__event_int(&ev, "n", (int64_t)r->elems);
    tsr__event_str(&ev, "dtype", tsr_dtype_name(r->reduce));
    tsr__event_int(&ev, "bytes", (int64_t)r->output->bytes);
    tsr__event_str(&ev, "op", tsr_reduce_op_name(r->divide.ar_op));
    tsr__event_bool(&ev, "adds_partial", adds_partial);
    tsr__event_str(&ev, "stream", e->streams[g->comm->all_reduce].name);
    tsr__event_send(e, &ev);
}

static void all_reduce(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    uint16_t stream = g->comm->all_reduce;
    bool partial = g->partial != NULL;
    if (partial) {
        e->stream = g->comm->reduce_scatter;
        add_into(e, r->output, g->partial, r->reduce);
        tsr__storage_release(e, &g->partial);
    }
    tsr__wait_stream(e, stream, g->comm->reduce_scatter); /* W12 */
    trace_all_reduce(e, g, r, partial);
    tsr__operand_storage(e, r->output, TSR_READ_WRITE);
    struct tsr_instr instr = {.kind = TSR_ALL_REDUCE,
                              .dtype = (uint8_t)r->reduce,
                              .reduce_op = r->divide.ar_op,
                              .stream = stream,
                              .comm = g->replicate_comm,
                              .bytes = r->output->bytes};
    tsr__emit(e, &instr);
    g->all_reduce.event = tsr__record_event(e, stream);
    g->all_reduce.buffer = r->output;
    tsr__storage_retain(r->output);
    r->post_stream = stream;
}

static void run_hook(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    uint16_t stream = g->comm->all_reduce;
    if (!r->all_reduces && g->hook_stream != UINT16_MAX)
        stream = g->hook_stream;
    tsr__wait_stream(e, stream, g->comm->reduce_scatter); /* W12 */
    if (e->has_trace) {
        struct tsr_event ev;
        tsr__event_begin(&ev, "all_reduce_hook");
        tsr__event_str(&ev, "g", g->name);
        tsr__event_int(&ev, "n", (int64_t)r->elems);
        tsr__event_str(&ev, "dtype", tsr_dtype_name(r->reduce));
        tsr__event_str(&ev, "stream", e->streams[stream].name);
        tsr__event_send(e, &ev);
    }
    r->post_stream = stream;
    if (!g->hook)
        return;
    struct tsr_tensor *buffer = tsr__tensor_view(e, r->output, r->reduce, 1, &r->elems);
    e->stream = stream;
    e->origin.hook = TSR_HOOK_USER;
    if (buffer)
        g->hook(e, buffer, g->hook_user);
    e->origin.hook = TSR_HOOK_POST_BACKWARD;
    tsr_release(e, buffer);
}

static void cast_result(struct tsr_engine *e, struct reduction *r)
{
    r->result = r->output;
    if (r->reduce == r->orig) {
        tsr__storage_retain(r->result);
        return;
    }
    uint64_t bytes = r->elems * tsr_dtype_bytes(r->orig);
    r->result = tsr__storage_new(e, bytes, TSR_CAT_SHARDED_GRAD);
    if (!r->result)
        return;
    tsr__operand_storage(e, r->output, TSR_READ);
    tsr__operand_storage(e, r->result, TSR_WRITE);
    tsr__emit_copy(e, r->orig, r->output->bytes, bytes, "grad_cast");
}

/* 3.8 j: to the host; non-blocking only into a fresh pinned gradient. */
static void offload_grad(struct tsr_engine *e, struct tsr_group *g, const struct reduction *r,
                         struct tsr_fsdp_param *p, uint64_t offset)
{
    bool pinned = g->offload == TSR_OFFLOAD_CPU_PINNED;
    bool fresh = !p->grad;
    uint64_t bytes = p->local_numel * tsr_dtype_bytes(r->orig);
    uint8_t space = pinned ? TSR_SPACE_PINNED : TSR_SPACE_HOST;
    struct tsr_storage *host = tsr__storage_empty(e, bytes, TSR_CAT_SHARDED_GRAD, space);
    if (!host)
        return;
    tsr__operand(e, r->result, offset, bytes, TSR_READ);
    tsr__operand_storage(e, host, TSR_WRITE);
    tsr__emit_copy(e, r->orig, bytes, bytes, "d2h_grad");
    /* [2.15] a hook reads the gradient: the copy blocks (R194) */
    bool hooked = p->grad_hook && e->config.version >= TSR_TORCH_2_15;
    if (pinned && fresh && !hooked) {
        p->d2h_event = tsr__record_event(e, e->stream);
    } else {
        struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
        tsr__emit(e, &read);
    }
    if (fresh) {
        p->grad = host;
        return;
    }
    tsr__operand_storage(e, host, TSR_READ);
    tsr__operand_storage(e, p->grad, TSR_READ_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)r->orig,
                            .name = "host_add",
                            .bytes_read = 2 * bytes,
                            .bytes_written = bytes};
    struct tsr_instr add = {.kind = TSR_HOST_OP, .comm = UINT16_MAX, .work = &work};
    tsr__emit(e, &add);
    tsr__storage_release(e, &host);
}

/* Sharded gradients are views of one flat buffer at padded offsets (R159). */
static void set_sharded_grads(struct tsr_engine *e, struct tsr_group *g, struct reduction *r,
                              const char **accumulated, size_t *n_accumulated)
{
    uint64_t offset = 0, old_bytes = 0;
    struct tsr_storage *old = NULL;
    *n_accumulated = 0;
    for (size_t i = 0; i < r->n && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = r->items[i].p;
        if (p->grad)
            accumulated[(*n_accumulated)++] = p->param->fqn;
        if (g->offload != TSR_OFFLOAD_NONE) {
            offload_grad(e, g, r, p, offset);
        } else if (p->grad) {
            old = p->grad;
            old_bytes += p->local_numel * tsr_dtype_bytes(r->orig);
        } else {
            p->grad = r->result;
            tsr__storage_retain(r->result);
        }
        offset += p->shard_numel * tsr_dtype_bytes(r->orig);
    }
    if (!old)
        return;
    tsr__operand_storage(e, r->result, TSR_READ);
    tsr__operand_storage(e, old, TSR_READ_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)r->orig,
                            .name = "accumulate_sharded_grad",
                            .bytes_read = 2 * old_bytes,
                            .bytes_written = old_bytes};
    tsr__emit_op(e, &work);
}

static void post_reduce(struct tsr_engine *e, struct tsr_group *g, struct reduction *r)
{
    size_t n_accumulated = 0;
    const char **accumulated = g->names;
    e->stream = r->post_stream;
    emit_scale(e, r->output, r->reduce, r->divide.post);
    cast_result(e, r);
    if (r->result)
        set_sharded_grads(e, g, r, accumulated, &n_accumulated);
    for (size_t k = 0; k < r->n && tsr__ok(e); k++)
        if (r->items[k].p->grad_hook)
            r->items[k].p->grad_hook(e, r->items[k].p->param, r->items[k].p->grad_hook_user);
    g->post_reduce_event = tsr__record_event(e, r->post_stream);
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "sharded_grad");
    tsr__event_str(&ev, "g", g->name);
    tsr__event_str(&ev, "dtype", tsr_dtype_name(r->orig));
    tsr__event_strs(&ev, "accumulate", accumulated, n_accumulated);
    tsr__event_bool(&ev, "offload", g->offload != TSR_OFFLOAD_NONE);
    tsr__event_send(e, &ev);
}

void tsr__reduce(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item *items, size_t n)
{
    struct reduction r = {.items = items, .n = n};
    uint16_t current = e->stream;
    if (!tsr__ok(e) || !plan_reduction(e, g, &r))
        return;
    trace_reduce(e, g, &r);
    reduce_copy_in(e, g, &r);
    if (tsr__ok(e))
        reduce_scatter(e, g, &r);
    if (tsr__ok(e) && r.all_reduces && !g->all_reduce_grads) {
        e->stream = g->comm->reduce_scatter;
        keep_partial(e, g, &r);
    } else if (tsr__ok(e)) {
        if (r.all_reduces)
            all_reduce(e, g, &r);
        if (g->has_hook)
            run_hook(e, g, &r);
        post_reduce(e, g, &r);
    }
    e->stream = current;
    for (size_t i = 0; i < n; i++)
        tsr_release(e, items[i].grad);
    tsr__storage_release(e, &r.output);
    tsr__storage_release(e, &r.result);
}
