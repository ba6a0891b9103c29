/* ops_attention.c: attention: which kernel eager PyTorch takes, and the fused ones, flash
 * and memory-efficient; and the padding taken away before it and put back after. Order and sizes of
 * allocations: operators.md, sections 7 and 9.
 */
#include "engine/ops/ops_common.h"

/* ---- attention kernels ----------------------------------------------------------------------- */

enum { MAX_SCRATCH = 6, MAX_ASIDE = MAX_SCRATCH + 2 };

/* Memory that a kernel takes in addition to its arguments: the random state, and scratch. No
 * executor reads these, so they are operands only while a block is traced, whose plan of memory has
 * them. `of` borrows the tensors; NULL ones are left out. */
struct aside {
    int n;
    struct tsr_tensor *of[MAX_ASIDE];
    uint8_t access[MAX_ASIDE];
};

static void set_aside(struct aside *a, struct tsr_tensor *const *tensors, int n, uint8_t access)
{
    for (int i = 0; i < n; i++) {
        a->of[a->n] = tensors[i];
        a->access[a->n++] = access;
    }
}

static void emit_attention(struct tsr_engine *e, const char *name, bool backward,
                           const struct tsr_attention_shape *s, uint64_t key_heads, bool causal,
                           double scale, struct tsr_tensor *const *in, int n_in,
                           struct tsr_tensor *const *out, int n_out, const struct aside *aside)
{
    uint64_t read = 0, written = 0;
    for (int i = 0; i < n_in; i++) {
        tsr__operand_tensor(e, in[i], TSR_READ);
        read += in[i] ? tsr__tensor_bytes(in[i]) : 0;
    }
    for (int i = 0; i < n_out; i++) {
        tsr__operand_tensor(e, out[i], TSR_WRITE);
        written += out[i] ? tsr__tensor_bytes(out[i]) : 0;
    }
    for (int i = 0; e->capture && i < aside->n; i++)
        tsr__operand_tensor(e, aside->of[i], aside->access[i]);
    /* two products forward; five in backward, of which model FLOP count four (2 x forward) */
    double pair = 4.0 * (double)s->batch * (double)s->heads * (double)s->seq * (double)s->seq *
                  (double)s->head_dim;
    struct tsr_work work = {.op = backward ? TSR_OP_ATTENTION_BWD : TSR_OP_ATTENTION,
                            .dtype = in[0] ? in[0]->dtype : TSR_F32,
                            .causal = causal,
                            .name = name,
                            .flops = (causal ? 0.5 : 1.0) * (backward ? 2.5 * pair : pair),
                            .model_flops = backward ? 2 * pair : pair,
                            .bytes_read = read,
                            .bytes_written = written,
                            .dims = {s->batch, s->heads, key_heads, s->seq, s->seq, s->head_dim},
                            .constants = {scale}};
    tsr__emit_op(e, &work);
}

/* a: batch, seq, heads, heads of k and v, head size as the kernel sees it, flags */
enum { FLASH = 1, PADDED = 2, MASKED = 4, FULL = 8 };

/* Later keys are left out by the kernel. */
static bool is_causal(uint64_t flags)
{
    return !(flags & (MASKED | FULL));
}

static struct tsr_attention_shape shape_of(const struct tsr_node *node)
{
    return (struct tsr_attention_shape){.batch = node->a[0],
                                        .seq = node->a[1],
                                        .heads = node->a[2],
                                        .kv_heads = node->a[3],
                                        .head_dim = node->a[4]};
}

/* Row sums, the accumulator of dQ, and dK and dV of all query heads before they are summed. */
static void flash_backward_scratch(struct tsr_engine *e, const struct tsr_attention_shape *s,
                                   uint64_t item, struct tsr_tensor *work[MAX_SCRATCH])
{
    uint64_t bh = s->batch * s->heads, s128 = tsr_round_up(s->seq, 128);
    work[2] = tsr__workspace(e, 4 * bh * s128);
    work[3] = tsr__workspace(e, 4 * bh * s128 * tsr__flash_head_dim(s->head_dim));
    for (int i = 4; i < 6 && s->kv_heads < s->heads; i++)
        work[i] = tsr__workspace(e, item * bh * s->seq * s->head_dim);
}

static void efficient_backward_scratch(struct tsr_engine *e, const struct tsr_attention_shape *s,
                                       uint64_t item, struct tsr_tensor *work[MAX_SCRATCH])
{
    uint64_t bh = s->batch * s->heads;
    bool wide = item == 4;
    if (wide) { /* the product of result and gradient, its row sums, those once more with
                 the heads outside */
        struct tsr_tensor *product = tsr__workspace(e, 4 * bh * s->seq * s->head_dim);
        struct tsr_tensor *sums = s->heads > 1 ? tsr__workspace(e, 4 * bh * s->seq) : NULL;
        work[2] = tsr__workspace(e, 4 * bh * s->seq);
        tsr_release(e, product);
        tsr_release(e, sums);
    } else {
        work[2] = tsr__workspace(e, 4 * bh * s->seq);
    }
    work[3] = tsr__workspace(
        e, tsr__efficient_accumulator(s->batch, s->heads, s->seq, s->head_dim, wide));
}

/* saved: q, k, v, result, log-sum-exp [, seed, offset] */
static void attention_backward(struct tsr_engine *e, struct tsr_node *node,
                               struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    bool flash = node->a[5] & FLASH;
    struct tsr_attention_shape s = shape_of(node);
    struct tsr_tensor *saved[7] = {NULL}, *work[MAX_SCRATCH] = {NULL};
    for (int i = 0; i < node->n_saved; i++)
        saved[i] = tsr__node_saved(e, node, i);
    uint64_t item = saved[0] ? tsr_dtype_bytes((tsr_dtype)saved[0]->dtype) : 2;
    bool copies = node->a[5] & PADDED && s.heads > 1;
    for (int i = 0; i < 2 && copies; i++) /* gradient and result, made contiguous */
        work[i] = tsr__workspace(e, item * s.batch * s.seq * s.heads * s.head_dim);
    bool joined = tsr__split_gradients(e, node, grad_in);
    for (int i = 0; i < 3 && !joined; i++)
        grad_in[i] = tsr__tensor_like(e, saved[i], saved[i] ? (tsr_dtype)saved[i]->dtype : TSR_F32,
                                      TSR_CAT_TEMP);
    if (flash)
        flash_backward_scratch(e, &s, item, work);
    else
        efficient_backward_scratch(e, &s, item, work);
    struct tsr_tensor *in[6] = {saved[0], saved[1], saved[2], saved[3], saved[4], grad_out[0]};
    struct aside aside = {.n = 0};
    set_aside(&aside, &saved[5], flash ? 2 : 0, TSR_READ);
    set_aside(&aside, work, MAX_SCRATCH, TSR_WRITE);
    if (tsr__ok(e))
        emit_attention(e, flash ? "flash_attention_backward" : "efficient_attention_backward", true,
                       &s, s.kv_heads, is_causal(node->a[5]), node->number, in, 6, grad_in, 3,
                       &aside);
    for (int i = 0; i < MAX_SCRATCH; i++)
        tsr_release(e, work[i]);
    for (int i = 0; i < 7; i++)
        tsr_release(e, saved[i]);
}

/* What a forward kernel returns: result, log-sum-exp, and flash's random state. */
static void run_kernel(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                       const struct tsr_attention_shape *s, unsigned flags, double scale,
                       struct tsr_tensor *out[4])
{
    bool flash = flags & FLASH;
    enum tsr_category category = tsr__result_category(e);
    uint64_t bh = s->batch * s->heads, d32 = tsr__flash_head_dim(s->head_dim);
    uint64_t rows = bh * (flash ? s->seq : tsr_round_up(s->seq, 32)), seed = 16, offset = 8;
    bool half = tsr_dtype_bytes((tsr_dtype)qkv[0]->dtype) == 2;
    struct tsr_tensor *work[2] = {NULL, NULL};
    out[0] = tsr__tensor_like(e, qkv[0], (tsr_dtype)qkv[0]->dtype, category);
    out[1] = tsr__tensor_new(e, tsr__wide(qkv[0]), 1, &rows, category);
    if (flash) {
        uint64_t splits = tsr__flash_splits(s->batch, s->heads, s->seq, s->head_dim);
        if (splits > 1) {
            work[0] = tsr__workspace(e, 4 * splits * bh * s->seq);
            work[1] = tsr__workspace(e, 4 * splits * bh * s->seq * d32);
        }
        out[2] = tsr__tensor_new(e, TSR_U8, 1, &seed, category);
        out[3] = tsr__tensor_new(e, TSR_U8, 1, &offset, category);
    } else if (s->head_dim > 128 && half) {
        work[0] = tsr__workspace(e, 4 * bh * s->seq * s->head_dim);
    }
    struct aside aside = {.n = 0};
    set_aside(&aside, work, 2, TSR_WRITE);
    set_aside(&aside, &out[2], 2, TSR_WRITE);
    if (tsr__ok(e))
        emit_attention(e, flash ? "flash_attention" : "efficient_attention", false, s, s->kv_heads,
                       is_causal(flags), scale, qkv, 3, out, 2, &aside);
    tsr_release(e, work[0]);
    tsr_release(e, work[1]);
}

/* Takes the kept results of a selective checkpoint, or runs the kernel. */
static void results(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                    const struct tsr_attention_shape *s, unsigned flags, double scale,
                    struct tsr_tensor *out[4])
{
    bool kept = tsr__selective_keeps(e, false);
    int n = flags & FLASH ? 4 : 2;
    if (kept && tsr__selective_reuses(e)) {
        for (int i = 0; i < n; i++)
            out[i] = tsr__selective_take(e);
        return;
    }
    run_kernel(e, qkv, s, flags, scale, out);
    for (int i = 0; i < n && kept; i++)
        tsr__selective_put(e, out[i]);
}

static struct tsr_tensor *fused_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                          const struct tsr_attention_shape *s,
                                          struct tsr_tensor *mask, unsigned flags, double scale)
{
    struct tsr_tensor *out[4] = {NULL};
    if (!qkv[0] || !qkv[1] || !qkv[2])
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Attention", attention_backward, qkv, 3);
    for (int i = 0; i < 3; i++)
        tsr__node_save(e, node, qkv[i]);
    if (node) {
        uint64_t a[TSR_MAX_DIMS] = {s->batch, s->seq, s->heads, s->kv_heads, s->head_dim, flags};
        for (int i = 0; i < TSR_MAX_DIMS; i++)
            node->a[i] = a[i];
        node->number = scale;
    }
    results(e, qkv, s, flags, scale, out);
    tsr__node_save_result(e, node, out[0]);
    for (int i = 1; i < 4; i++) {
        tsr__node_save(e, node, out[i]);
        tsr_release(e, out[i]);
    }
    tsr__node_save(e, node, mask);
    if (!out[0])
        return tsr__op_abort(e, node);
    tsr__node_output(node, out[0], 0);
    return out[0];
}

/* ---- head sizes that are no multiple of 8 ---------------------------------------------------- */

/* a: rows, width of the unpadded, layout of the gradient */
static void pad_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    grad_in[0] = tsr__tensor_new(e, (tsr_dtype)grad_out[0]->dtype, 2, node->a, TSR_CAT_TEMP);
    tsr__emit_pointwise_with(
        e, "pad_backward", grad_out, 1, grad_in[0],
        &(struct tsr_pointwise){.n_args = 3, .args = {node->a[4], node->a[3]}});
    if (grad_in[0])
        grad_in[0]->layout = (uint8_t)node->a[2];
}

/* from, to: head sizes. */
static struct tsr_tensor *pad(struct tsr_engine *e, struct tsr_tensor *x, uint64_t from,
                              uint64_t to, enum tsr_layout layout)
{
    struct tsr_node *node = tsr__node_new(e, "Pad", pad_backward, &x, 1);
    if (node) {
        node->a[0] = x->dims[0];
        node->a[1] = x->dims[1];
        node->a[2] = layout;
        node->a[3] = from;
        node->a[4] = to;
    }
    uint64_t dims[2] = {x->dims[0], x->dims[1] / from * to};
    struct tsr_tensor *y =
        tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise_with(e, "pad", &x, 1, y,
                             &(struct tsr_pointwise){.n_args = 3, .args = {from, to}});
    tsr__node_output(node, y, 0);
    return y;
}

/* a: rows and width of the padded, head sizes of the padded and the slice, offset in the head,
 * layout of the gradient */
static void slice_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    const struct tsr_pointwise p = {.n_args = 3, .args = {node->a[3], node->a[2], node->a[4]}};
    grad_in[0] = tsr__tensor_new(e, (tsr_dtype)grad_out[0]->dtype, 2, node->a, TSR_CAT_TEMP);
    tsr__emit_pointwise_with(e, "slice_backward", grad_out, 1, grad_in[0], &p);
    if (grad_in[0])
        grad_in[0]->layout = (uint8_t)node->a[5];
}

struct tsr_tensor *tsr__slice_heads(struct tsr_engine *e, struct tsr_tensor *x, uint64_t from,
                                    uint64_t to, uint64_t offset, enum tsr_layout layout)
{
    if (!x)
        return NULL;
    struct tsr_tensor *y = tsr__op_alias(
        e, x, "Slice", (uint64_t[]){x->dims[0], x->dims[1] / from * to}, slice_backward,
        (uint64_t[TSR_MAX_DIMS]){x->dims[0], x->dims[1], from, to, offset, layout});
    tsr__as_columns(y, offset, to, from);
    return y;
}

struct tsr_tensor *tsr_op_clone(struct tsr_engine *e, struct tsr_tensor *x)
{
    return tsr__op_unary(e, x, "clone", (tsr_dtype)x->dtype, tsr__backward_pass, TSR_SAVES_NOTHING);
}

struct tsr_tensor *tsr_op_contiguous(struct tsr_engine *e, struct tsr_tensor *x)
{
    return !x || x->layout == TSR_LAYOUT_TOKENS ? tsr_retain(x) : tsr_op_clone(e, x);
}

static struct tsr_tensor *padded_flash(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                       const struct tsr_attention_shape *s)
{
    struct tsr_attention_shape wide = *s;
    struct tsr_tensor *padded[3];
    wide.head_dim = tsr_round_up(s->head_dim, 8);
    for (int i = 0; i < 3; i++) {
        uint64_t heads = i ? s->kv_heads : s->heads;
        padded[i] = pad(e, qkv[i], s->head_dim, wide.head_dim,
                        heads > 1 ? TSR_LAYOUT_HEADS : TSR_LAYOUT_TOKENS);
    }
    struct tsr_tensor *whole = fused_attention(
        e, padded, &wide, NULL, FLASH | PADDED | (s->full ? FULL : 0), tsr__attention_scale(s));
    struct tsr_tensor *part =
        tsr__slice_heads(e, whole, wide.head_dim, s->head_dim, 0, TSR_LAYOUT_TOKENS);
    tsr_release(e, whole);
    for (int i = 0; i < 3; i++)
        tsr_release(e, padded[i]);
    return part;
}

/* ---- which kernel ---------------------------------------------------------------------------- */

/* Raises PyTorch's error unless queries, keys and values have one dtype:
 * scaled_dot_product_attention looks at all three, eager attention at the operands of each product.
 */
static bool same_dtypes(struct tsr_engine *e, struct tsr_tensor *const qkv[3])
{
    const char *name[3];
    for (int i = 0; i < 3; i++)
        name[i] = tsr_dtype_name((tsr_dtype)qkv[i]->dtype);
    bool same = qkv[1]->dtype == qkv[0]->dtype && qkv[2]->dtype == qkv[0]->dtype;
    if (same)
        return true;
    if (e->config.attention == TSR_ATTENTION_EAGER)
        TSR__RAISE(e, TSR_ERUNTIME, "attention: expected scalar type %s but found %s", name[0],
                   qkv[1]->dtype == qkv[0]->dtype ? name[2] : name[1]);
    else
        TSR__RAISE(e, TSR_ERUNTIME,
                   "attention: Expected query, key, and value to have the same dtype, but got "
                   "query.dtype: %s key.dtype: %s and value.dtype: %s instead",
                   name[0], name[1], name[2]);
    return false;
}

struct tsr_tensor *tsr_op_attention(struct tsr_engine *e, struct tsr_tensor *q,
                                    struct tsr_tensor *k, struct tsr_tensor *v,
                                    const struct tsr_attention_shape *shape,
                                    struct tsr_tensor **weights)
{
    struct tsr_tensor *qkv[3] = {q, k, v};
    enum tsr_attention variant = e->config.attention;
    struct tsr_attention_shape s = *shape;
    if (weights)
        *weights = NULL;
    if (!q || !k || !v || !tsr__ok(e) || !same_dtypes(e, qkv))
        return NULL;
    if (variant == TSR_ATTENTION_EAGER)
        return tsr__eager_attention(e, qkv, &s, weights);
    if (s.head_dim)
        s.kv_heads = k->dims[1] / s.head_dim;
    bool half = q->dtype == TSR_BF16 || q->dtype == TSR_F16;
    struct tsr_tensor *o = NULL;
    bool padded = s.head_dim % 8 != 0;
    unsigned full = s.full ? FULL : 0;
    if (variant == TSR_SDPA_FLASH && half && !padded)
        return fused_attention(e, qkv, &s, NULL, FLASH | full, tsr__attention_scale(&s));
    if (variant == TSR_SDPA_FLASH && half)
        o = padded_flash(e, qkv, &s);
    else if (variant != TSR_SDPA_MATH && q->dtype != TSR_F64 && s.kv_heads == s.heads &&
             s.head_dim % (half ? 8 : 4) == 0)
        return fused_attention(e, qkv, &s, NULL, full, tsr__attention_scale(&s));
    else
        o = tsr__math_attention(e, qkv, &s, NULL);
    bool sliced = variant == TSR_SDPA_FLASH && half;
    if (o && (sliced || s.heads > 1))
        o->layout = TSR_LAYOUT_HEADS;
    return o;
}

/* The kernel wants rows of a multiple of 8 elements: takes over the mask. */
static struct tsr_tensor *aligned_mask(struct tsr_engine *e, const struct tsr_attention_shape *s,
                                       struct tsr_tensor *mask)
{
    if (s->seq % 8 == 0)
        return mask;
    uint64_t n = mask->numel / s->seq * tsr_round_up(s->seq, 8);
    struct tsr_tensor *padded =
        tsr__tensor_new(e, (tsr_dtype)mask->dtype, 1, &n, tsr__result_category(e));
    tsr__emit_pointwise(e, "constant_pad_nd", &mask, 1, padded);
    tsr_release(e, mask);
    return padded;
}

struct tsr_tensor *tsr__masked_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                         const struct tsr_attention_shape *shape,
                                         struct tsr_tensor *mask)
{
    struct tsr_attention_shape s = *shape;
    if (!mask) /* made behind the other three: they are there if it is */
        return NULL;
    if (!same_dtypes(e, qkv)) {
        tsr_release(e, mask);
        return NULL;
    }
    s.kv_heads = qkv[1]->dims[1] / s.head_dim;
    bool half = tsr_dtype_bytes((tsr_dtype)qkv[0]->dtype) == 2;
    struct tsr_tensor *o = NULL;
    if (e->config.attention != TSR_SDPA_MATH && s.head_dim % (half ? 8 : 4) == 0) {
        mask = aligned_mask(e, &s, mask);
        o = fused_attention(e, qkv, &s, mask, MASKED, tsr__attention_scale(&s));
    } else {
        o = tsr__math_attention(e, qkv, &s, mask);
        if (o && s.heads > 1)
            o->layout = TSR_LAYOUT_HEADS;
    }
    tsr_release(e, mask);
    return o;
}

/* ---- padding --------------------------------------------------------------------------------- */

/* Removing and putting back padding, as flash-attn's bert_padding does it around its
 * variable-length kernels: unpad_input() finds the tokens that the mask keeps (the host reads their
 * number and the longest sequence, and so waits for the device twice) and gathers their rows;
 * pad_input() writes rows back into zeros. Here every token is kept: sizes are those of full
 * batches. Integers of 32 bits are kept as bytes; scratch of nonzero() is that of one scan. */

static void host_reads(struct tsr_engine *e, struct tsr_tensor *t)
{
    if (!t || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, t, TSR_READ);
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

static struct tsr_tensor *flat(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t n,
                               struct tsr_tensor *from)
{
    struct tsr_tensor *t = tsr__tensor_new(e, dtype, 1, &n, tsr__result_category(e));
    tsr__emit_pointwise(e, name, &from, from ? 1 : 0, t);
    return t;
}

struct tsr_tensor *tsr__op_padding_mask(struct tsr_engine *e)
{
    return tsr__ok(e) ? flat(e, "new_ones", TSR_U8, e->shape.batch * e->shape.seq, NULL) : NULL;
}

/* Where the kept tokens are: nonzero() of the mask, whose number of results the host needs. */
static struct tsr_tensor *find_tokens(struct tsr_engine *e, struct tsr_tensor *mask)
{
    uint64_t tokens = mask->numel;
    struct tsr_tensor *scan = tsr__workspace(e, tsr__scan_scratch(tokens));
    struct tsr_tensor *number = flat(e, "count_nonzero", TSR_U8, 4, mask);
    tsr_release(e, scan);
    host_reads(e, number);
    tsr_release(e, number);
    scan = tsr__workspace(e, tsr__scan_scratch(tokens));
    struct tsr_tensor *indices = flat(e, "nonzero", TSR_I64, tokens, mask);
    tsr_release(e, scan);
    return indices;
}

/* The begins of the sequences, which the kernels need. */
static struct tsr_tensor *find_begins(struct tsr_engine *e, struct tsr_tensor *lengths)
{
    uint64_t batch = e->shape.batch;
    struct tsr_tensor *longest = flat(e, "max", TSR_U8, 4, lengths);
    host_reads(e, longest);
    tsr_release(e, longest);
    struct tsr_tensor *sums = flat(e, "cumsum", TSR_U8, 4 * batch, lengths);
    struct tsr_tensor *begins = flat(e, "constant_pad_nd", TSR_U8, 4 * (batch + 1), sums);
    tsr_release(e, sums);
    return begins;
}

struct tsr_unpadding tsr__find_unpadding(struct tsr_engine *e, struct tsr_tensor *mask)
{
    struct tsr_unpadding u = {NULL, NULL};
    if (!mask || !tsr__ok(e))
        return u;
    struct tsr_tensor *lengths = flat(e, "sum", TSR_U8, 4 * e->shape.batch, mask);
    u.indices = find_tokens(e, mask);
    u.begins = find_begins(e, lengths);
    tsr_release(e, lengths);
    return u;
}

void tsr__unpadding_release(struct tsr_engine *e, struct tsr_unpadding *u)
{
    tsr_release(e, u->indices);
    tsr_release(e, u->begins);
    *u = (struct tsr_unpadding){NULL, NULL};
}

/* Rows of x at `indices`, or the other way round: rows of x go to `indices` of zeros. */
static struct tsr_tensor *gather(struct tsr_engine *e, struct tsr_tensor *x,
                                 struct tsr_tensor *indices, enum tsr_category category)
{
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, category);
    tsr__emit_pointwise(e, "gather_rows", (struct tsr_tensor *[]){x, indices}, 2, y);
    return y;
}

static struct tsr_tensor *scatter(struct tsr_engine *e, struct tsr_tensor *x,
                                  struct tsr_tensor *indices, enum tsr_category category)
{
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, category);
    if (y)
        tsr__emit_fill(e, y->storage, (tsr_dtype)y->dtype, 0);
    tsr__emit_pointwise(e, "scatter_rows", (struct tsr_tensor *[]){x, indices}, 2, y);
    return y;
}

static void gather_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *indices = tsr__node_saved(e, node, 0);
    if (indices)
        grad_in[0] = scatter(e, grad_out[0], indices, TSR_CAT_TEMP);
    tsr_release(e, indices);
}

static void scatter_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *indices = tsr__node_saved(e, node, 0);
    if (indices)
        grad_in[0] = gather(e, grad_out[0], indices, TSR_CAT_TEMP);
    tsr_release(e, indices);
}

static struct tsr_tensor *moved(struct tsr_engine *e, struct tsr_tensor *x,
                                struct tsr_tensor *indices, bool unpad)
{
    if (!x || !indices || !tsr__ok(e))
        return NULL;
    struct tsr_node *node = tsr__node_new(e, unpad ? "Unpad" : "Pad",
                                          unpad ? gather_backward : scatter_backward, &x, 1);
    tsr__node_save(e, node, indices);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *y =
        unpad ? gather(e, x, indices, category) : scatter(e, x, indices, category);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr__op_unpad(struct tsr_engine *e, struct tsr_tensor *x,
                                 const struct tsr_unpadding *u)
{
    return moved(e, x, u->indices, true);
}

struct tsr_tensor *tsr__op_pad(struct tsr_engine *e, struct tsr_tensor *x,
                               const struct tsr_unpadding *u)
{
    return moved(e, x, u->indices, false);
}
