/* reduce.c: what reducing a group's gradients emits (section 3.8): copy-in, reduce-scatter,
 * all-reduce and hook; and which divisions a mean takes (3.14). The streams: see all_gather.c.
 */
#include <math.h>

#include "engine/fsdp/collectives.h"
#include "engine/ops/ops_common.h"

/* Hands a user's collective its two tensors and lets it emit on `stream`. */
void tsr__run_custom(struct tsr_engine *e, const struct tsr_custom_comm *custom,
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

/* ---- divide factors (3.14) --------------------------------------------------------------------
 */

static struct tsr__divide divide_factors(uint32_t shard, uint32_t replicate, tsr_dtype reduce,
                                         double factor, bool force_sum)
{
    bool risky = reduce != TSR_F32 && reduce != TSR_BF16;
    double n = (double)shard * replicate;
    struct tsr__divide d = {.rs_op = TSR_REDUCE_SUM, .ar_op = TSR_REDUCE_SUM};
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

/* ---- reduction (3.8 a-m) --------------------------------------------------------------------- */

static bool plan_reduction(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
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
    r->divide = tsr__is_folded(g)
                    ? (struct tsr__divide){.rs_op = TSR_REDUCE_SUM, .ar_op = TSR_REDUCE_SUM}
                    : divide_factors(g->shard_size, g->replicate_size, r->reduce, g->divide_factor,
                                     g->force_sum);
    r->post_stream = g->comm->reduce_scatter;
    return true;
}

static void trace_reduce(struct tsr_engine *e, struct tsr_group *g, const struct tsr__reduction *r)
{
    if (!e->emit.has_trace)
        return;
    const char **names = g->names;
    for (size_t i = 0; i < r->n; i++)
        names[i] = r->items[i].p->param->fqn;
    struct tsr_event ev;
    tsr__event_group(&ev, "reduce", g);
    tsr__event_strs(&ev, "params", names, r->n);
    tsr__event_str(&ev, "grad_dtype", tsr_dtype_name(r->grad));
    tsr__event_str(&ev, "reduce_dtype", tsr_dtype_name(r->reduce));
    tsr__event_num(&ev, "pre_div", r->divide.pre);
    tsr__event_num(&ev, "post_div", r->divide.post);
    if (g->shard_size == 1)
        tsr__event_bool(&ev, "local", true);
    tsr__event_send(e, &ev);
}

/* PyTorch's own chunk_cat copies, or casts bf16 to fp32; other casts take a composite one. */
static bool cat_is_composite(const struct tsr__reduction *r)
{
    return r->reduce != r->grad && !(r->grad == TSR_BF16 && r->reduce == TSR_F32);
}

/* Pointer table of chunk_cat (operators.md section 6). The composite one has none. */
static struct tsr_storage *cat_table(struct tsr_engine *e, const struct tsr__reduction *r)
{
    uint64_t rows = 0;
    if (cat_is_composite(r))
        return NULL;
    for (size_t i = 0; i < r->n; i++)
        rows += tsr_ceil_div(r->items[i].p->shard_numel * tsr_dtype_bytes(r->reduce), 2048);
    return tsr__storage_new(e, 8 * (6 * r->n + 2 + rows), TSR_CAT_WORKSPACE);
}

/* The composite chunk_cat first makes a padded copy of every gradient that the ranks do not divide
 * evenly; all live until it ends. Returns their bytes. */
static uint64_t pad_gradients(struct tsr_engine *e, const struct tsr_group *g,
                              const struct tsr__reduction *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct tsr_tensor *grad = r->items[i].grad;
        uint64_t numel = r->items[i].p->shard_numel * g->shard_size;
        uint64_t padded = numel * tsr_dtype_bytes((tsr_dtype)grad->dtype);
        bool copies = cat_is_composite(r) && numel != grad->numel;
        r->items[i].padded = copies ? tsr__storage_new(e, padded, TSR_CAT_WORKSPACE) : NULL;
        bytes += copies ? padded : 0;
    }
    return bytes;
}

static void drop_cat_scratch(struct tsr_engine *e, const struct tsr__reduction *r,
                             struct tsr_storage **table)
{
    tsr__storage_release(e, table);
    for (size_t i = 0; i < r->n; i++)
        tsr__storage_release(e, &r->items[i].padded);
}

static void told_of_buffer(struct tsr_engine *e, struct tsr_group *g,
                           const struct tsr__reduction *r, uint64_t numel)
{
    const struct tsr_custom_comm *custom = g->custom_reduce_scatter;
    if (custom && custom->allocate)
        custom->allocate(e, numel, r->reduce, custom->user);
}

static enum tsr_category output_category(struct tsr_group *g, const struct tsr__reduction *r)
{
    /* the first output of a sum over micro-batches stays; later ones are added to it and go (R240)
     */
    if (r->all_reduces && !g->all_reduce_grads)
        return g->partial ? TSR_CAT_REDUCE_SCATTER_OUTPUT : TSR_CAT_PARTIAL_REDUCE_OUTPUT;
    bool becomes_grad = r->reduce == r->orig && g->offload == TSR_OFFLOAD_NONE;
    for (size_t i = 0; i < r->n; i++)
        becomes_grad &= !r->items[i].p->grad;
    return becomes_grad ? TSR_CAT_SHARDED_GRAD : TSR_CAT_REDUCE_SCATTER_OUTPUT;
}

/* One rank has all, and what it copies in becomes the gradient as it is (OPTIONS.md, mirror). */
static bool reduces_in_place(struct tsr_group *g, const struct tsr__reduction *r)
{
    return tsr__is_aliased(g) && !g->custom_reduce_scatter &&
           output_category(g, r) == TSR_CAT_SHARDED_GRAD;
}

/* Row j of the (W x S') input: the j-th padded chunk of every gradient, cast on the fly (R155). */
static void reduce_copy_in(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
{
    uint64_t bytes = r->elems * g->shard_size * tsr_dtype_bytes(r->reduce), read = 0;
    told_of_buffer(e, g, r, r->elems * g->shard_size);
    r->input = tsr__storage_new(
        e, bytes, reduces_in_place(g, r) ? TSR_CAT_SHARDED_GRAD : TSR_CAT_REDUCE_SCATTER);
    struct tsr_storage *table = r->input ? cat_table(e, r) : NULL;
    uint64_t padded = pad_gradients(e, g, r);
    if (!tsr__ok(e)) {
        drop_cat_scratch(e, r, &table);
        return;
    }
    tsr__push_arg(e, g->shard_size);
    for (size_t i = 0; i < r->n; i++) {
        tsr__slot(e, 0);
        tsr__operand_tensor(e, r->items[i].grad, TSR_READ);
        tsr__cut_args(e, r->items[i].p);
        read += tsr__tensor_bytes(r->items[i].grad) * (r->items[i].p->shard_dim > 0 ? 2 : 1);
    }
    tsr__slot(e, 1);
    tsr__operand_storage(e, table, TSR_WRITE, TSR_DTYPE_NONE);
    for (size_t i = 0; i < r->n; i++) {
        tsr__slot(e, 1);
        tsr__operand_storage(e, r->items[i].padded, TSR_WRITE, TSR_DTYPE_NONE);
    }
    tsr__slot(e, 2);
    tsr__operand_storage(e, r->input, TSR_WRITE, r->reduce);
    struct tsr_work work = {.op = TSR_OP_CHUNK_CAT,
                            .dtype = (uint8_t)r->reduce,
                            .name = "chunk_cat",
                            .bytes_read = read + padded,
                            .bytes_written = bytes + padded};
    tsr__emit_op(e, &work);
    drop_cat_scratch(e, r, &table);
    size_t keep = g->shard_size > 1 ? 1 : 0; /* a loop variable holds the last one (section 3) */
    for (size_t i = 0; i + keep < r->n; i++) {
        tsr_release(e, r->items[i].grad);
        r->items[i].grad = NULL;
    }
}

void tsr__emit_scale(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype, double divisor)
{
    if (divisor == 0 || divisor == 1)
        return;
    tsr__operand_storage(e, s, TSR_READ_WRITE, dtype);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "div",
                            .flops = (double)s->bytes / tsr_dtype_bytes(dtype),
                            .bytes_read = s->bytes,
                            .bytes_written = s->bytes,
                            .dims = {1, s->bytes / tsr_dtype_bytes(dtype)},
                            .constants = {divisor}};
    tsr__emit_op(e, &work);
}

static void trace_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                 const struct tsr__reduction *r)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "reduce_scatter", g);
    tsr__event_str(&ev, "pg", e->emit.comms[g->shard_comm].name);
    tsr__event_int(&ev, "n_in", (int64_t)(r->elems * g->shard_size));
    tsr__event_int(&ev, "n_out", (int64_t)r->elems);
    tsr__event_str(&ev, "dtype", tsr_dtype_name(r->reduce));
    tsr__event_int(&ev, "bytes", (int64_t)r->input->bytes);
    tsr__event_str(&ev, "op", tsr_reduce_op_name(r->divide.rs_op));
    if (r->divide.rs_op == TSR_REDUCE_PREMUL_SUM)
        tsr__event_num(&ev, "factor", r->divide.premul);
    tsr__event_str(&ev, "stream", e->emit.streams[g->comm->reduce_scatter].name);
    tsr__event_send(e, &ev);
}

/* One shard rank: a copy, divided once by the custom factor (R173). */
static void local_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                 const struct tsr__reduction *r, bool in_place)
{
    if (!in_place) {
        tsr__operand_storage(e, r->input, TSR_READ, r->reduce);
        tsr__operand_storage(e, r->output, TSR_WRITE, r->reduce);
        tsr__emit_copy(e, r->reduce, r->input->bytes, r->output->bytes, "reduce_scatter_copy");
    }
    if (g->divide_factor != 0 && r->divide.rs_op == TSR_REDUCE_PREMUL_SUM)
        tsr__emit_scale(e, r->output, r->reduce, g->divide_factor);
}

static void emit_reduce_scatter(struct tsr_engine *e, struct tsr_group *g,
                                const struct tsr__reduction *r)
{
    tsr__operand_storage(e, r->input, TSR_READ, r->reduce);
    tsr__operand_storage(e, r->output, TSR_WRITE, r->reduce);
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
                                  const struct tsr__reduction *r)
{
    struct tsr_custom_call call = {.comm = g->reduce_comm,
                                   .size = g->shard_size,
                                   .index = g->shard_rank,
                                   .reduce_op = r->divide.rs_op,
                                   .factor = r->divide.premul};
    uint64_t all = r->elems * g->shard_size;
    tsr__run_custom(e, g->custom_reduce_scatter, &call,
                    tsr__tensor_view(e, r->output, r->reduce, 1, &r->elems),
                    tsr__tensor_view(e, r->input, r->reduce, 1, &all), g->comm->reduce_scatter);
}

static void keep_reduce_input(struct tsr_engine *e, struct tsr_comm_ctx *comm,
                              struct tsr_storage *input, uint32_t event)
{
    const struct tsr_reduce_input kept = {input, event};
    if (!TSR__ARENA_PUSH(e, comm->reduce_inputs, comm->n_reduce_inputs, comm->cap_reduce_inputs,
                         kept))
        tsr__storage_release(e, &input);
}

static void reduce_scatter(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
{
    uint16_t stream = g->comm->reduce_scatter;
    tsr__wait_stream(e, stream, e->stream); /* W11 */
    uint16_t current = e->stream;
    e->stream = stream;
    bool in_place = reduces_in_place(g, r);
    told_of_buffer(e, g, r, r->elems);
    r->output = in_place ? r->input
                         : tsr__storage_new(e, r->elems * tsr_dtype_bytes(r->reduce),
                                            output_category(g, r));
    if (!r->output || !tsr__ok(e)) {
        e->stream = current;
        return;
    }
    tsr__emit_scale(e, r->input, r->reduce, r->divide.pre);
    if (g->shard_size == 1) {
        local_reduce_scatter(e, g, r, in_place);
    } else {
        trace_reduce_scatter(e, g, r);
        if (g->custom_reduce_scatter)
            custom_reduce_scatter(e, g, r);
        else
            emit_reduce_scatter(e, g, r);
    }
    e->stream = current;
    if (!in_place)
        keep_reduce_input(e, g->comm, r->input, tsr__record_event(e, stream));
    r->input = NULL;
}

static void add_into(struct tsr_engine *e, struct tsr_storage *into, struct tsr_storage *from,
                     tsr_dtype dtype)
{
    tsr__operand_storage(e, from, TSR_READ, dtype);
    tsr__operand_storage(e, into, TSR_READ_WRITE, dtype);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)dtype,
                            .name = "add_into",
                            .bytes_read = 2 * into->bytes,
                            .bytes_written = into->bytes};
    tsr__emit_op(e, &work);
}

/* HSDP, reduce-scatter only: the output stays as a partial sum (R167). */
static void keep_partial(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
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
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "partial_reduce", g);
        tsr__event_str(&ev, "res", res);
        tsr__event_send(e, &ev);
    }
}

static void trace_all_reduce(struct tsr_engine *e, struct tsr_group *g,
                             const struct tsr__reduction *r, bool adds_partial)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_group(&ev, "all_reduce", g);
    tsr__event_str(&ev, "pg", e->emit.comms[g->replicate_comm].name);
    tsr__event_int(&ev, "n", (int64_t)r->elems);
    tsr__event_str(&ev, "dtype", tsr_dtype_name(r->reduce));
    tsr__event_int(&ev, "bytes", (int64_t)r->output->bytes);
    tsr__event_str(&ev, "op", tsr_reduce_op_name(r->divide.ar_op));
    tsr__event_bool(&ev, "adds_partial", adds_partial);
    tsr__event_str(&ev, "stream", e->emit.streams[g->comm->all_reduce].name);
    tsr__event_send(e, &ev);
}

static void all_reduce(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
{
    uint16_t stream = g->comm->all_reduce;
    bool partial = g->partial != NULL;
    if (partial) {
        e->stream = g->comm->reduce_scatter;
        add_into(e, r->output, g->partial, r->reduce);
        r->partial = g->partial;
        g->partial = NULL;
    }
    tsr__wait_stream(e, stream, g->comm->reduce_scatter); /* W12 */
    trace_all_reduce(e, g, r, partial);
    tsr__operand_storage(e, r->output, TSR_READ_WRITE, r->reduce);
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

/* Copies of gradients to the host block, but into fresh pinned memory. */
static bool ends_blocking(const struct tsr_group *g, const struct tsr__reduction *r)
{
    return g->offload == TSR_OFFLOAD_CPU ||
           (g->offload == TSR_OFFLOAD_CPU_PINNED && r->items[r->n - 1].p->grad);
}

/* What the hook's stream has read of a reduction that is only scattered: 2.15 keeps it until the
 * next one (Q3). */
static void keep_hooked(struct tsr_engine *e, struct tsr_group *g, const struct tsr__reduction *r,
                        bool host_waited)
{
    if (r->all_reduces || !r->output || r->output->refs > (r->result == r->output ? 2 : 1))
        return; /* it is kept */
    if (e->config.version < TSR_TORCH_2_15) {
        e->fsdp->raced[TSR_RACE_HOOKED_OUTPUT] |= !host_waited;
        return;
    }
    g->all_reduce.buffer = r->output;
    tsr__storage_retain(r->output);
}

static void run_hook(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r)
{
    uint16_t stream = g->comm->all_reduce;
    /* behind an all-reduce the hook runs on its stream, whatever it asked for (R169, R170) */
    if (!r->all_reduces && g->hook_stream != UINT16_MAX)
        stream = g->hook_stream;
    tsr__wait_stream(e, stream, g->comm->reduce_scatter); /* W12 */
    if (e->emit.has_trace) {
        struct tsr_event ev;
        tsr__event_group(&ev, "all_reduce_hook", g);
        tsr__event_int(&ev, "n", (int64_t)r->elems);
        tsr__event_str(&ev, "dtype", tsr_dtype_name(r->reduce));
        tsr__event_str(&ev, "stream", e->emit.streams[stream].name);
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

static void drop_grads(struct tsr_engine *e, const struct tsr_reduce_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsr_release(e, items[i].grad);
}

void tsr__reduce_grads(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item *items,
                       size_t n)
{
    struct tsr__reduction r = {.items = items, .n = n};
    uint16_t current = e->stream;
    if (!tsr__ok(e) || !plan_reduction(e, g, &r)) {
        drop_grads(e, items, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        tsr__tp_reduce_partial(e, items[i].p->param, items[i].grad);
    if (tsr__keep_gradients(e, g, items, n))
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
        bool host_waits = ends_blocking(g, &r);
        tsr__post_reduce(e, g, &r);
        if (g->has_hook)
            keep_hooked(e, g, &r, host_waits);
    }
    e->stream = current;
    drop_grads(e, items, n);
    if (r.input != r.output) /* of a reduction that failed */
        tsr__storage_release(e, &r.input);
    tsr__storage_release(e, &r.partial);
    tsr__storage_release(e, &r.output);
    tsr__storage_release(e, &r.result);
}

/* ---- gradients that stay sums ------------------------------------------------------------------
 *
 * OPTIONS.md, `folded_scale`: collectives only add, and the fused optimizer multiplies by what is
 * left to do, 1 / ranks and the factor of clipping, as it reads them. Norms are those of the scaled
 * gradients.
 */

/* As for the divide factors (3.14), f16 might overflow if it were divided after the sum. */
bool tsr__is_folded(const struct tsr_group *g)
{
    tsr_dtype reduced = g->reduce_dtype != TSR_DTYPE_NONE ? g->reduce_dtype
                        : g->mp.param != TSR_DTYPE_NONE   ? g->mp.param
                                                          : g->orig_dtype;
    return g->folds && reduced != TSR_F16;
}

double tsr__folded_scale(const struct tsr_param *p)
{
    if (!p->fsdp || !tsr__is_folded(p->fsdp->group))
        return 1;
    const struct tsr_group *g = p->fsdp->group;
    double ranks = (double)g->shard_size * g->replicate_size;
    return 1 / (g->divide_factor != 0 ? g->divide_factor : ranks);
}

bool tsr__folds(const struct tsr_wrapped *wrapped)
{
    for (size_t i = 0; i < wrapped->n_states; i++)
        for (size_t k = 0; k < wrapped->states[i]->n_groups; k++)
            if (wrapped->states[i]->groups[k]->folds)
                return true;
    return false;
}
