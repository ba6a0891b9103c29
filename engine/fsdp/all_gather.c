/* all_gather.c: what gathering a group's parameters emits (section 3.4): copy-in and the
 * collective, or, without copies, the collective alone. The copy-out: copy_out.c.
 *
 * [Note: streams] Copy-in and all-gather run on their own streams, copy-out on the compute stream;
 * the reduce-scatter input is made on the compute stream, its output on the reduce-scatter stream.
 * A block is handed back on the stream that allocated it, hence the waits W1-W15.
 */
#include "engine/fsdp/collectives.h"

static uint64_t input_numel(const struct tsr_group *g, const struct tsr__gather *a,
                            const struct tsr_fsdp_param *p)
{
    return a->from_slice ? p->shard_numel * g->shard_size / a->size : p->shard_numel;
}

int tsr__extension_inputs(const struct tsr_fsdp_param *p, struct tsr_gather_input out[4])
{
    int n = p->extension->pre(p->extension->user, p->shard_numel, out);
    return n < 0 ? 0 : n > 4 ? 4 : n;
}

uint64_t tsr__input_bytes(const struct tsr_group *g, const struct tsr__gather *a,
                          const struct tsr_fsdp_param *p, tsr_dtype *dtype)
{
    struct tsr_gather_input in[4];
    *dtype = tsr__gather_dtype(p);
    if (!p->extension)
        return input_numel(g, a, p) * tsr_dtype_bytes(*dtype);
    uint64_t bytes = 0;
    int n = tsr__extension_inputs(p, in);
    for (int i = 0; i < n; i++) {
        bytes += in[i].numel * tsr_dtype_bytes(in[i].dtype);
        *dtype = i == 0 || in[i].dtype == *dtype ? in[i].dtype : TSR_U8;
    }
    return bytes;
}

struct tsr__gather tsr__plan_gather(struct tsr_engine *e, struct tsr_group *g)
{
    struct tsr__gather a = {.size = g->shard_size, .rank = g->shard_rank, .comm = g->shard_comm};
    if (g->sharded == TSR_SHARDED_POST_FORWARD) {
        a.from_slice = true;
        a.size = g->post_forward_size;
        a.rank = e->config.rank / g->shard_stride % a.size;
        a.comm = g->post_forward_comm;
    }
    for (size_t i = 0; i < g->n_params; i++) {
        tsr_dtype dtype;
        a.bytes += tsr__input_bytes(g, &a, g->params[i], &dtype);
        a.dtype = i == 0 || dtype == a.dtype ? dtype : TSR_U8; /* mixed: packed as bytes */
    }
    a.elems = a.bytes / tsr_dtype_bytes(a.dtype);
    return a;
}

static struct tsr_storage *gather_source(const struct tsr__gather *a, struct tsr_fsdp_param *p)
{
    return a->from_slice ? p->post_forward : p->sharded;
}

static bool needs_cast(const struct tsr_fsdp_param *p)
{
    return p->param_dtype != TSR_DTYPE_NONE && !p->extension;
}

/* Slices of a smaller group are in the compute dtype as they are. */
static bool reads_mirror(const struct tsr_group *g, const struct tsr__gather *a)
{
    return g->mirrors && !a->from_slice;
}

/* All shards that need a cast go into one flat buffer with one batched kernel. */
static struct tsr_storage *cast_inputs(struct tsr_engine *e, struct tsr_group *g,
                                       const struct tsr__gather *a)
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

struct tsr_storage *tsr__h2d_input(struct tsr_engine *e, struct tsr_fsdp_param *p)
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
                                           const struct tsr__gather *a, struct tsr_fsdp_param *p)
{
    struct tsr_gather_input in[4];
    tsr_dtype dtype;
    int n = tsr__extension_inputs(p, in);
    for (int i = 0; i < n; i++)
        if (p->local_numel != p->shard_numel && in[i].numel != p->shard_numel)
            TSR__RAISE(e, TSR_EASSERT,
                       "%s is cut unevenly: its all-gather inputs must have the padded size %llu",
                       p->param->fqn, (unsigned long long)p->shard_numel);
    uint64_t bytes = tsr__input_bytes(g, a, p, &dtype);
    struct tsr_storage *out = tsr__storage_new(e, bytes, TSR_CAT_ALL_GATHER_INPUT);
    if (!out || !tsr__ok(e))
        return out;
    tsr__operand_storage(e, p->sharded, TSR_READ, p->param->dtype);
    tsr__operand_storage(e, out, TSR_WRITE, dtype);
    tsr__emit_copy(e, dtype, p->sharded->bytes, bytes, "pre_all_gather");
    return out;
}

/* The pieces that travel, in the order of the group: a cast one lies in `flat`. */
static void copy_in_sources(struct tsr_engine *e, struct tsr_group *g, const struct tsr__gather *a,
                            struct tsr_storage *flat)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr_dtype dtype;
        uint64_t bytes = tsr__input_bytes(g, a, p, &dtype);
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
static void direct_operands(struct tsr_engine *e, struct tsr_group *g, const struct tsr__gather *a,
                            struct tsr_storage *flat)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < g->n_params; i++) {
        struct tsr_fsdp_param *p = g->params[i];
        tsr_dtype dtype;
        uint64_t bytes = tsr__input_bytes(g, a, p, &dtype);
        bool cast = flat && needs_cast(p);
        tsr__slot(e, 0);
        tsr__operand(e, cast ? flat : gather_source(a, p), cast ? offset : 0, bytes, TSR_READ,
                     dtype);
        tsr__slot(e, 1);
        tsr__operand_storage(e, p->unsharded->storage, TSR_WRITE, dtype);
        offset += cast ? bytes : 0;
    }
}

static void trace_all_gather(struct tsr_engine *e, struct tsr_group *g, const struct tsr__gather *a,
                             bool async_op, uint16_t stream);

/* Every parameter straight into its place, in one launch. */
static void gather_directly(struct tsr_engine *e, struct tsr_group *g, const struct tsr__gather *a,
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
    if (!tsr__ok(e)) {
        if (casts)
            tsr__storage_release(e, &flat);
        return;
    }
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
                                   const struct tsr__gather *a)
{
    bool offloaded = g->offload != TSR_OFFLOAD_NONE && !a->from_slice;
    struct tsr_storage *flat = NULL;
    if (offloaded)
        for (size_t i = 0; i < g->n_params; i++)
            g->params[i]->temp = tsr__h2d_input(e, g->params[i]);
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

static void trace_all_gather(struct tsr_engine *e, struct tsr_group *g, const struct tsr__gather *a,
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

static void emit_all_gather(struct tsr_engine *e, const struct tsr__gather *a,
                            struct tsr_storage *out, uint16_t stream)
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

static void custom_all_gather(struct tsr_engine *e, struct tsr_group *g,
                              const struct tsr__gather *a, struct tsr_storage *out, uint16_t stream)
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
    struct tsr__gather a = tsr__plan_gather(e, g);
    uint16_t current = e->stream;
    if (tsr__is_direct(g)) {
        gather_directly(e, g, &a, copy_in_stream, stream);
        g->result.async = async_op;
        return;
    }
    e->stream = copy_in_stream;
    struct tsr_storage *out = copy_in(e, g, &a);
    e->stream = current;
    if (!out || !tsr__ok(e)) {
        tsr__storage_release(e, &out);
        return;
    }
    tsr__wait_stream(e, stream, copy_in_stream); /* W3 */
    trace_all_gather(e, g, &a, async_op, stream);
    if (g->custom_all_gather)
        custom_all_gather(e, g, &a, out, stream);
    else
        emit_all_gather(e, &a, out, stream);
    g->result = (struct tsr_all_gather_result){.pending = true, .async = async_op, .output = out};
    g->result.event = tsr__record_event(e, stream);
}
