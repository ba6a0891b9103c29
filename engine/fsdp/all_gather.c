/* all_gather.c: what gathering a group's parameters emits (sections 3.4 and 3.5): copy-in, the
 * collective, copy-out; all-gather extensions (2.11); and gathers without copies.
 *
 * [Note: streams] Copy-in and all-gather run on their own streams, copy-out on the compute stream;
 * the reduce-scatter input is made on the compute stream, its output on the reduce-scatter stream.
 * A block is handed back on the stream that allocated it, hence the waits W1-W15.
 */
#include <math.h>

#include "engine/fsdp/fsdp.h"

static tsr_dtype gather_dtype(const struct tsr_fsdp_param *p)
{
    return p->param_dtype != TSR_DTYPE_NONE ? p->param_dtype : p->orig_dtype;
}

/* The unsharded parameter exists and is backed by memory of the current stream. */
static void tsr__ensure_unsharded(struct tsr_engine *e, struct tsr_group *g,
                                  struct tsr_fsdp_param *p)
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

/* ---- gathers without copies ------------------------------------------------------------------ */

/* All-gathers without copies (OPTIONS.md, `gather: direct`): each parameter is
 * gathered into its own unsharded storage, all of a group in one launch. There is no gathered
 * buffer, no copy-in and no copy-out.
 *
 * [Note: retiring] The collective writes what modules read, so the memory belongs to the stream of
 * the collective and may be written again only when the last reader on the compute stream is done.
 * Waiting for that at once would end the overlap of the next gather with the computation before
 * it. So a group that is resharded is retired with an event, and its memory goes back when a later
 * gather begins, which waits for the event then: in forward the gather after the next one (two
 * groups' parameters are there beside the retired ones), in backward the next one, which starts
 * when the backward before it has ended, as PyTorch's does. */

bool tsr__is_direct(const struct tsr_group *g)
{
    if (!g->direct || g->shard_size == 1 || g->custom_all_gather || g->offload != TSR_OFFLOAD_NONE)
        return false;
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->extension || g->params[i]->shard_dim > 0)
            return false;
    return true;
}

static void give_back(struct tsr_engine *e, struct tsr_group *g)
{
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i]->unsharded)
            tsr__storage_unback(e, g->params[i]->unsharded->storage);
}

static void unretire(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t i, bool frees)
{
    struct tsr_group *g = comm->retired[i];
    tsr__wait_event(e, comm->all_gather, g->retire_event);
    g->retire_event = 0;
    if (frees)
        give_back(e, g);
    comm->n_retired--;
    for (; i < comm->n_retired; i++)
        comm->retired[i] = comm->retired[i + 1];
}

void tsr__direct_settle(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t keep)
{
    while (comm->n_retired > keep && tsr__ok(e))
        unretire(e, comm, 0, true);
}

/* Memory for what `stream` is about to gather. */
static void tsr__direct_prepare(struct tsr_engine *e, struct tsr_group *g, uint16_t stream)
{
    struct tsr_comm_ctx *comm = g->comm;
    for (size_t i = 0; i < comm->n_retired; i++)
        if (comm->retired[i] == g) /* its own memory serves again */
            unretire(e, comm, i--, false);
    tsr__direct_settle(e, comm, g->training == TSR_FORWARD ? 1 : 0);
    uint16_t current = e->stream;
    e->stream = stream;
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        tsr__ensure_unsharded(e, g, g->params[i]);
    e->stream = current;
}

void tsr__direct_retire(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr_comm_ctx *comm = g->comm;
    if (g->n_params == 0 || !g->params[0]->unsharded || g->retire_event)
        return;
    if (g->params[0]->unsharded->storage->stream == e->stream) {
        give_back(e, g); /* gathered on the compute stream */
        return;
    }
    g->retire_event = tsr__record_event(e, e->stream);
    (void)TSR__ARENA_PUSH(e, comm->retired, comm->n_retired, comm->cap_retired, g);
}

void tsr__direct_discard(struct tsr_engine *e, struct tsr_group *g)
{
    if (g->sharded != TSR_UNSHARDED)
        give_back(e, g);
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

/* One rank's contribution of a parameter in bytes; dtype: of its elements, U8 if they differ. */
static uint64_t input_bytes(const struct tsr_group *g, const struct gather *a,
                            const struct tsr_fsdp_param *p, tsr_dtype *dtype);

static uint64_t input_numel(const struct tsr_group *g, const struct gather *a,
                            const struct tsr_fsdp_param *p)
{
    return a->from_slice ? p->shard_numel * g->shard_size / a->size : p->shard_numel;
}

static int extension_inputs(const struct tsr_fsdp_param *p, struct tsr_gather_input out[4])
{
    int n = p->extension->pre(p->extension->user, p->shard_numel, out);
    return n < 0 ? 0 : n > 4 ? 4 : n;
}

static uint64_t input_bytes(const struct tsr_group *g, const struct gather *a,
                            const struct tsr_fsdp_param *p, tsr_dtype *dtype)
{
    struct tsr_gather_input in[4];
    *dtype = gather_dtype(p);
    if (!p->extension)
        return input_numel(g, a, p) * tsr_dtype_bytes(*dtype);
    uint64_t bytes = 0;
    int n = extension_inputs(p, in);
    for (int i = 0; i < n; i++) {
        bytes += in[i].numel * tsr_dtype_bytes(in[i].dtype);
        *dtype = i == 0 || in[i].dtype == *dtype ? in[i].dtype : TSR_U8;
    }
    return bytes;
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
    for (size_t i = 0; i < g->n_params; i++) {
        tsr_dtype dtype;
        a.bytes += input_bytes(g, &a, g->params[i], &dtype);
        a.dtype = i == 0 || dtype == a.dtype ? dtype : TSR_U8; /* mixed: packed as bytes */
    }
    a.elems = a.bytes / tsr_dtype_bytes(a.dtype);
    return a;
}

static struct tsr_storage *gather_source(const struct gather *a, struct tsr_fsdp_param *p)
{
    return a->from_slice ? p->post_forward : p->sharded;
}

static bool needs_cast(const struct tsr_fsdp_param *p)
{
    return p->param_dtype != TSR_DTYPE_NONE && !p->extension;
}

/* Slices of a smaller group are in the compute dtype as they are. */
static bool reads_mirror(const struct tsr_group *g, const struct gather *a)
{
    return g->mirrors && !a->from_slice;
}

/* All shards that need a cast go into one flat buffer with one batched kernel. */
static struct tsr_storage *cast_inputs(struct tsr_engine *e, struct tsr_group *g,
                                       const struct gather *a)
{
    uint64_t bytes = 0, read = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        if (!needs_cast(p))
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
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__slot(e, 0);
        if (needs_cast(p))
            tsr__operand_storage(e, gather_source(a, p), TSR_READ,
                                 a->from_slice ? p->param_dtype : p->orig_dtype);
    }
    tsr__slot(e, 1);
    tsr_dtype dtype = a->dtype == TSR_U8 ? TSR_U8 : g->mp.param; /* mixed: bytes */
    tsr__operand_storage(e, flat, TSR_WRITE, dtype);
    tsr__emit_copy(e, dtype, read, bytes, "all_gather_cast");
    return flat;
}

/* An offloaded shard comes over in its original dtype and is cast on the device (R191). */
static struct tsr_storage *h2d_input(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    uint64_t bytes = p->shard_numel * tsr_dtype_bytes(p->orig_dtype);
    struct tsr_storage *device = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (!device)
        return NULL;
    tsr__operand_storage(e, p->sharded, TSR_READ, p->orig_dtype);
    tsr__operand_storage(e, device, TSR_WRITE, p->orig_dtype);
    tsr__emit_copy(e, p->orig_dtype, bytes, bytes, "h2d_shard");
    if (p->param_dtype == TSR_DTYPE_NONE)
        return device;
    uint64_t cast_bytes = p->shard_numel * tsr_dtype_bytes(p->param_dtype);
    struct tsr_storage *cast = tsr__storage_new(e, cast_bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (cast) {
        tsr__operand_storage(e, device, TSR_READ, p->orig_dtype);
        tsr__operand_storage(e, cast, TSR_WRITE, p->param_dtype);
        tsr__emit_copy(e, p->param_dtype, bytes, cast_bytes, "all_gather_cast");
    }
    tsr__storage_release(e, &device);
    return cast;
}

/* pre_all_gather: the shard becomes what travels. Padded ranks need inputs of the shard's size: the
 * error comes on those ranks only (Q9). */
static struct tsr_storage *extension_input(struct tsr_engine *e, struct tsr_group *g,
                                           const struct gather *a, struct tsr_fsdp_param *p)
{
    struct tsr_gather_input in[4];
    tsr_dtype dtype;
    int n = extension_inputs(p, in);
    for (int i = 0; i < n; i++)
        if (p->local_numel != p->shard_numel && in[i].numel != p->shard_numel)
            TSR__RAISE(e, TSR_EASSERT,
                       "%s is cut unevenly: its all-gather inputs must have the padded size %llu",
                       p->param->fqn, (unsigned long long)p->shard_numel);
    uint64_t bytes = input_bytes(g, a, p, &dtype);
    struct tsr_storage *out = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (!out || !tsr__ok(e))
        return out;
    tsr__operand_storage(e, p->sharded, TSR_READ, p->param->dtype);
    tsr__operand_storage(e, out, TSR_WRITE, dtype);
    tsr__emit_copy(e, dtype, p->sharded->bytes, bytes, "pre_all_gather");
    return out;
}

/* The pieces that travel, in the order of the group: a cast one lies in `flat`. */
static void copy_in_sources(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                            struct tsr_storage *flat)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr_dtype dtype;
        uint64_t bytes = input_bytes(g, a, p, &dtype);
        tsr__slot(e, 0);
        if (p->temp) {
            tsr__operand_storage(e, p->temp, TSR_READ, dtype);
        } else if (flat && needs_cast(p)) { /* the mirror is laid out alike */
            tsr__operand(e, flat, offset, bytes, TSR_READ, dtype);
            offset += bytes;
        } else {
            tsr__operand_storage(e, gather_source(a, p), TSR_READ, dtype);
        }
    }
}

/* Where each piece lies that a direct gather takes: cast ones in `flat`. */
static void direct_operands(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                            struct tsr_storage *flat)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr_dtype dtype;
        uint64_t bytes = input_bytes(g, a, p, &dtype);
        bool cast = flat && needs_cast(p);
        tsr__slot(e, 0);
        tsr__operand(e, cast ? flat : gather_source(a, p), cast ? offset : 0, bytes, TSR_READ,
                     dtype);
        tsr__slot(e, 1);
        tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, dtype);
        offset += cast ? bytes : 0;
    }
}

static void trace_all_gather(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                             bool async_op, uint16_t stream);

/* Every parameter straight into its place, in one launch. */
static void gather_directly(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                            uint16_t copy_in_stream, uint16_t stream)
{
    uint16_t current = e->stream;
    bool casts = !reads_mirror(g, a) && !a->from_slice;
    e->stream = copy_in_stream;
    struct tsr_storage *flat = reads_mirror(g, a) ? tsr__mirror(e, g)
                               : casts            ? cast_inputs(e, g, a)
                                                  : NULL;
    e->stream = current;
    tsr__direct_prepare(e, g, stream);
    if (!tsr__ok(e))
        return;
    tsr__wait_stream(e, stream, copy_in_stream); /* W3 */
    trace_all_gather(e, g, a, false, stream);
    direct_operands(e, g, a, flat);
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = (uint8_t)a->dtype,
                              .stream = stream,
                              .comm = a->comm,
                              .bytes = a->bytes * a->size};
    tsr__emit(e, &instr);
    g->result = (struct tsr_all_gather_result){.pending = true, .direct = true};
    g->result.event = tsr__record_event(e, stream);
    if (casts && flat) { /* its memory is the copy-in stream's */
        tsr__wait_event(e, copy_in_stream, g->result.event);
        tsr__storage_release(e, &flat);
    }
}

static struct tsr_storage *copy_in(struct tsr_engine *e, struct tsr_group *g,
                                   const struct gather *a)
{
    bool offloaded = g->offload != TSR_OFFLOAD_NONE && !a->from_slice;
    struct tsr_storage *flat = NULL;
    if (offloaded)
        for (size_t i = 0; i < g->n_params; i++)
            g->params[i]->temp = h2d_input(e, g->params[i]);
    else if (reads_mirror(g, a))
        flat = tsr__mirror(e, g);
    else if (g->offload == TSR_OFFLOAD_NONE && !g->mirrors)
        flat = cast_inputs(e, g, a);
    for (size_t i = 0; i < g->n_params && !offloaded; i++)
        if (g->params[i]->extension)
            g->params[i]->temp = extension_input(e, g, a, g->params[i]);
    if (g->custom_all_gather && g->custom_all_gather->allocate)
        g->custom_all_gather->allocate(e, a->elems * a->size, a->dtype, g->custom_all_gather->user);
    struct tsr_storage *out = tsr__storage_new(e, a->bytes * a->size, TSR_CAT_ALL_GATHER);
    if (out && tsr__ok(e)) {
        copy_in_sources(e, g, a, flat);
        tsr__slot(e, 1);
        tsr__operand(e, out, a->bytes * a->rank, a->bytes, TSR_WRITE, TSR_DTYPE_NONE);
        tsr__emit_copy(e, a->dtype, a->bytes, a->bytes, "all_gather_copy_in");
    }
    if (!reads_mirror(g, a))
        tsr__storage_release(e, &flat);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->temp);
    return out;
}

static void trace_all_gather(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                             bool async_op, uint16_t stream)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "all_gather", g);
    tsr__event_str(&ev, "pg", e->emit.comms[a->comm].name);
    tsr__event_int(&ev, "n_in", (int64_t)a->elems);
    tsr__event_int(&ev, "n_out", (int64_t)(a->elems * a->size));
    tsr__event_str(&ev, "dtype", tsr_dtype_name(a->dtype));
    tsr__event_int(&ev, "bytes", (int64_t)(a->bytes * a->size));
    tsr__event_bool(&ev, "async", async_op);
    tsr__event_str(&ev, "stream", e->emit.streams[stream].name);
    tsr__event_send(e, &ev);
}

static void emit_all_gather(struct tsr_engine *e, const struct gather *a, struct tsr_storage *out,
                            uint16_t stream)
{
    tsr_dtype dtype = a->dtype;
    tsr__operand(e, out, a->bytes * a->rank, a->bytes, TSR_READ, dtype); /* in place (R92) */
    tsr__operand_storage(e, out, TSR_WRITE, dtype);
    struct tsr_instr instr = {.kind = TSR_ALL_GATHER,
                              .dtype = (uint8_t)a->dtype,
                              .stream = stream,
                              .comm = a->comm,
                              .bytes = a->bytes * a->size};
    tsr__emit(e, &instr);
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
    tsr__run_custom(e, g->custom_all_gather, &call, to, from, stream);
}

void tsr__all_gather_issue(struct tsr_engine *e, struct tsr_group *g, bool async_op,
                           uint16_t copy_in_stream, uint16_t stream)
{
    struct gather a = plan_gather(e, g);
    uint16_t current = e->stream;
    if (tsr__is_direct(g)) {
        gather_directly(e, g, &a, copy_in_stream, stream);
        g->result.async = async_op;
        return;
    }
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
            tsr__operand_storage(e, p->sharded, TSR_READ, p->orig_dtype);
            tsr__operand_storage(e, cast, TSR_WRITE, p->param_dtype);
            tsr__emit_copy(e, p->param_dtype, p->shard_numel * tsr_dtype_bytes(p->orig_dtype),
                           bytes, "param_cast");
        }
        tsr__storage_release(e, &previous);
        tsr__ensure_unsharded(e, g, p);
        if (!p->unsharded || !tsr__ok(e))
            break;
        tsr__operand_storage(e, source, TSR_READ, gather_dtype(p));
        tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, gather_dtype(p));
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
    tsr_dtype dtype;
    for (size_t i = 0; i < g->n_params; i++)
        blocks += tsr_ceil_div(input_bytes(g, a, g->params[i], &dtype), 2048);
    uint64_t f = tsr_ceil_div(blocks * a->size, 4224);
    uint64_t k = tsr_min_u64((uint64_t)ceil(sqrt((double)f)), a->size);
    uint64_t per = k ? tsr_ceil_div(f, k) : 1;
    for (size_t i = 0; i < g->n_params; i++)
        rows += tsr_ceil_div(input_bytes(g, a, g->params[i], &dtype), 2048 * (per ? per : 1));
    return 8 * (4 * g->n_params + 1 + rows);
}

/* Raw outputs of an extension: one storage per gathered input; post_all_gather reads them. */
static void make_raw(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p)
{
    struct tsr_gather_input in[4];
    int n = extension_inputs(p, in);
    for (int i = 0; i < n && tsr__ok(e); i++) {
        tsr__storage_release(e, &p->raw[i]);
        p->raw[i] = tsr__storage_new(e, in[i].numel * g->shard_size * tsr_dtype_bytes(in[i].dtype),
                                     TSR_CAT_UNSHARDED_PARAM);
    }
}

static void post_all_gather(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    uint64_t read = 0;
    for (int i = 0; i < 4; i++) {
        tsr__operand_storage(e, p->raw[i], TSR_READ, TSR_DTYPE_NONE);
        read += p->raw[i] ? p->raw[i]->bytes : 0;
    }
    tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, gather_dtype(p));
    tsr__emit_copy(e, (tsr_dtype)p->unsharded->dtype, read, p->unsharded->storage->bytes,
                   p->extension->post);
    if (p->extension->free_after_post && e->config.version >= TSR_TORCH_2_15)
        tsr__drop_raw(e, p);
}

void tsr__drop_raw(struct tsr_engine *e, struct tsr_fsdp_param *p)
{
    for (int i = 0; i < 4; i++)
        tsr__storage_release(e, &p->raw[i]);
}

/* An output that is its pieces one behind the other, padding at the end included. */
static void split_output(struct tsr_engine *e, const struct tsr_storage *s, tsr_dtype dtype,
                         uint32_t size)
{
    uint64_t n = s ? s->bytes / tsr_dtype_bytes(dtype) : 0;
    if (n == 0)
        return;
    tsr__slot(e, 2);
    tsr__operand_storage(e, s, TSR_WRITE, dtype);
    tsr__push_arg(e, 1);
    tsr__push_arg(e, n);
    tsr__push_arg(e, 1);
    tsr__push_arg(e, n / size);
}

void tsr__cut_args(struct tsr_engine *e, const struct tsr_fsdp_param *p)
{
    uint64_t outer = 1, inner = 1;
    int d = p->shard_dim < 0 ? 0 : p->shard_dim, n_dims = p->param->n_dims;
    for (int i = 0; i < n_dims; i++)
        if (i != d)
            *(i < d ? &outer : &inner) *= p->param->shape[i];
    tsr__push_arg(e, outer);
    tsr__push_arg(e, n_dims ? p->param->shape[d] : 1);
    tsr__push_arg(e, inner);
    tsr__push_arg(e, n_dims ? p->padded[d] : 1);
}

static void emit_split_copy(struct tsr_engine *e, struct tsr_group *g, const struct gather *a,
                            struct tsr_storage *table)
{
    tsr__operand_storage(e, g->result.output, TSR_READ, a->dtype);
    tsr__operand_storage(e, table, TSR_WRITE, TSR_DTYPE_NONE);
    tsr__push_arg(e, a->size);
    uint64_t extra = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__slot(e, 1);
        tsr__operand_storage(e, p->temp, TSR_WRITE, TSR_DTYPE_NONE);
        for (int k = 0; k < 4 && p->extension; k++)
            split_output(e, p->raw[k], TSR_U8, a->size);
        if (!p->extension && (p->shard_dim <= 0 || a->from_slice)) {
            split_output(e, p->unsharded->storage, gather_dtype(p), a->size);
        } else if (!p->extension) {
            tsr__slot(e, 2);
            tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, gather_dtype(p));
            tsr__cut_args(e, p);
        }
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
        if (tsr__is_aliased(g))
            tsr__alias_unsharded(e, g);
        else
            copy_out_local(e, g);
        return;
    }
    struct gather a = plan_gather(e, g);
    tsr__wait_event(e, e->stream, g->result.event); /* W4 */
    if (g->result.async)
        tsr__wait_work(e, e->stream, g->result.event); /* W5 */
    if (g->result.direct)
        return;
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr__ensure_unsharded(e, g, p);
        if (p->extension)
            make_raw(e, g, p);
        if (p->shard_dim > 0 && p->unsharded)
            p->temp = tsr__storage_new(e, p->unsharded->storage->bytes, TSR_CAT_WORKSPACE);
    }
    struct tsr_storage *table =
        tsr__ok(e) ? tsr__storage_new(e, split_table_bytes(g, &a), TSR_CAT_WORKSPACE) : NULL;
    if (tsr__ok(e))
        emit_split_copy(e, g, &a, table);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (g->params[i]->extension)
            post_all_gather(e, g->params[i]);
    tsr__storage_release(e, &table);
    for (size_t i = 0; i < g->n_params; i++)
        tsr__storage_release(e, &g->params[i]->temp);
}
