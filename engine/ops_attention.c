/* ops_attention.c: rotary embedding, head repetition, split, and causal attention in the variants
 * that eager PyTorch chooses from: flash, memory-efficient, math, and transformers' own.
 */
#include "ops_common.h"

/* ---- rotary, repeat, split ------------------------------------------------------------------- */
/* Complex product with the table of angles; in fp32. a: table bytes */
static void rotate_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    uint64_t n = node->a[0] / 8;
    struct tsr_tensor *table = tsr__tensor_new(e, TSR_F64, 1, &n, TSR_CAT_TEMP); /* conjugate */
    grad_in[0] = tsr__tensor_like(e, g, (tsr_dtype)g->dtype, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "rotary_backward", (struct tsr_tensor *[]){g, table}, 2, grad_in[0]);
    tsr_release(e, table);
}

static struct tsr_tensor *rotate(struct tsr_engine *e, struct tsr_tensor *x, uint64_t table_bytes)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Rotary", rotate_backward, &x, 1);
    if (node)
        node->a[0] = table_bytes;
    tsr__node_save_weight(e, node, NULL); /* the table: a buffer, saved without cost */
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "rotary", &x, 1, y);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr_op_rotary(struct tsr_engine *e, struct tsr_tensor *x, uint64_t seq,
                                 uint64_t head_dim)
{
    if (!x)
        return NULL;
    struct tsr_tensor *wide = tsr_op_cast(e, x, TSR_F32);
    struct tsr_tensor *turned = rotate(e, wide, 4 * seq * head_dim); /* complex64 x seq x d/2 */
    struct tsr_tensor *y = tsr_op_cast(e, turned, (tsr_dtype)x->dtype);
    tsr_release(e, turned);
    tsr_release(e, wide);
    return y;
}

static void repeat_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    grad_in[0] = tsr__tensor_new(e, (tsr_dtype)grad_out[0]->dtype, 2, node->a, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "sum_heads", grad_out, 1, grad_in[0]);
}

struct tsr_tensor *tsr_op_repeat_heads(struct tsr_engine *e, struct tsr_tensor *x, uint64_t times)
{
    if (!x || times == 1)
        return tsr_retain(x);
    struct tsr_node *node = tsr__node_new(e, "RepeatHeads", repeat_backward, &x, 1);
    if (node) {
        node->a[0] = x->dims[0];
        node->a[1] = x->dims[1];
    }
    uint64_t dims[2] = {x->dims[0], x->dims[1] * times};
    struct tsr_tensor *y =
        tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "expand_heads", &x, 1, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* Each part has a node of its own, made after the split's. They leave their gradients in the split
 * node's saved slots; it runs last and concatenates them. */
static void join_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *parts[3];
    uint64_t dims[2] = {node->a[0], node->a[1]};
    (void)grad_out;
    for (int i = 0; i < 3; i++)
        parts[i] = node->saved[i].tensor;
    grad_in[0] = tsr__tensor_new(e, (tsr_dtype)node->a[2], 2, dims, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "cat_gradients", parts, 3, grad_in[0]);
}

static void part_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_node *join = node->edges[0].node;
    (void)e;
    join->n_saved = 3;
    join->saved[node->a[0]].tensor = tsr_retain(grad_out[0]);
    if (!join->grads[0]) /* any gradient makes the join run */
        grad_in[0] = tsr_retain(grad_out[0]);
}

static struct tsr_tensor *part_of(struct tsr_engine *e, struct tsr_tensor *base,
                                  struct tsr_node *join, uint64_t width, uint64_t index)
{
    uint64_t dims[2] = {base->dims[0], width};
    struct tsr_tensor *part = tsr__tensor_view(e, base->storage, (tsr_dtype)base->dtype, 2, dims);
    if (!part || !join)
        return part;
    struct tsr_tensor handle = {.requires_grad = true, .grad_fn = join};
    struct tsr_tensor *inputs[1] = {&handle};
    struct tsr_node *node = tsr__node_new(e, "SplitPart", part_backward, inputs, 1);
    if (node)
        node->a[0] = index;
    tsr__node_output(node, part, 0);
    return part;
}

void tsr_op_split3(struct tsr_engine *e, struct tsr_tensor *x, uint64_t q, uint64_t kv,
                   struct tsr_tensor *out[3])
{
    out[0] = out[1] = out[2] = NULL;
    if (!x || !tsr__ok(e))
        return;
    struct tsr_node *join = tsr__node_new(e, "Split", join_backward, &x, 1);
    if (join) {
        join->a[0] = x->dims[0];
        join->a[1] = x->dims[1];
        join->a[2] = x->dtype;
    }
    uint64_t widths[3] = {q, kv, kv};
    for (int i = 0; i < 3 && tsr__ok(e); i++)
        out[i] = part_of(e, x, join, widths[i], (uint64_t)i);
    tsr__node_release(e, join);
}

/* ---- attention kernels ----------------------------------------------------------------------- */
struct kernel {
    const struct tsr_attention_shape *s;
    uint64_t key_heads; /* heads of k and v as the kernel sees them */
    uint64_t e;         /* bytes per element */
};

static void emit_attention(struct tsr_engine *e, const char *name, bool backward,
                           const struct tsr_attention_shape *s, uint64_t key_heads,
                           struct tsr_tensor *const *in, int n_in, struct tsr_tensor *const *out,
                           int n_out)
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
    /* two products forward; five in backward, of which model FLOP count four (2 x forward) */
    double pair = 4.0 * (double)s->batch * (double)s->heads * (double)s->seq * (double)s->seq *
                  (double)s->head_dim;
    struct tsr_work work = {.op = backward ? TSR_OP_ATTENTION_BWD : TSR_OP_ATTENTION,
                            .dtype = in[0] ? in[0]->dtype : TSR_F32,
                            .causal = 1,
                            .name = name,
                            .flops = 0.5 * (backward ? 2.5 * pair : pair),
                            .model_flops = backward ? 2 * pair : pair,
                            .bytes_read = read,
                            .bytes_written = written,
                            .dims = {s->batch, s->heads, key_heads, s->seq, s->seq, s->head_dim}};
    tsr__emit_op(e, &work);
}

static struct tsr_tensor *scratch(struct tsr_engine *e, uint64_t bytes, enum tsr_category category)
{
    return tsr__tensor_new(e, TSR_U8, 1, &bytes, category);
}

/* saved: q, k, v, result, log-sum-exp [, seed, offset]. a: shape */
static struct tsr_attention_shape shape_of(const struct tsr_node *node)
{
    return (struct tsr_attention_shape){node->a[0], node->a[1], node->a[2], node->a[3], node->a[4]};
}

static void attention_backward(struct tsr_engine *e, struct tsr_node *node,
                               struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    bool flash = node->a[5] == TSR_SDPA_FLASH;
    struct tsr_attention_shape s = shape_of(node);
    struct tsr_tensor *saved[5] = {NULL}, *work[4] = {NULL};
    for (int i = 0; i < 5; i++)
        saved[i] = tsr__node_saved(e, node, i);
    for (int i = 0; i < 3; i++)
        grad_in[i] = tsr__tensor_like(e, saved[i], saved[i] ? (tsr_dtype)saved[i]->dtype : TSR_F32,
                                      TSR_CAT_TEMP);
    uint64_t bh = s.batch * s.heads,
             item = saved[0] ? tsr_dtype_bytes((tsr_dtype)saved[0]->dtype) : 2;
    uint64_t s128 = tsr_round_up(s.seq, 128), d32 = tsr_round_up(s.head_dim, 32);
    work[0] = scratch(e, 4 * bh * (flash ? s128 : s.seq), TSR_CAT_WORKSPACE);
    if (flash)
        work[1] = scratch(e, 4 * bh * s128 * d32, TSR_CAT_WORKSPACE);
    if (flash && s.kv_heads < s.heads)
        for (int i = 2; i < 4; i++) /* dK and dV of all query heads before they are summed */
            work[i] = scratch(e, item * bh * s.seq * s.head_dim, TSR_CAT_WORKSPACE);
    struct tsr_tensor *in[6] = {saved[0], saved[1], saved[2], saved[3], saved[4], grad_out[0]};
    if (tsr__ok(e))
        emit_attention(e, flash ? "flash_attention_backward" : "efficient_attention_backward", true,
                       &s, s.kv_heads, in, 6, grad_in, 3);
    for (int i = 0; i < 4; i++)
        tsr_release(e, work[i]);
    for (int i = 0; i < 5; i++)
        tsr_release(e, saved[i]);
}

static void set_shape(struct tsr_node *node, const struct tsr_attention_shape *s, uint64_t kv_heads)
{
    node->a[0] = s->batch;
    node->a[1] = s->seq;
    node->a[2] = s->heads;
    node->a[3] = kv_heads;
    node->a[4] = s->head_dim;
}

/* Flash and memory-efficient attention: one kernel. */
static struct tsr_tensor *fused_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                          const struct tsr_attention_shape *s, uint64_t kv_heads,
                                          bool flash)
{
    struct tsr_node *node = tsr__node_new(e, "Attention", attention_backward, qkv, 3);
    for (int i = 0; i < 3; i++)
        tsr__node_save(e, node, qkv[i]);
    if (node) {
        set_shape(node, s, kv_heads);
        node->a[5] = flash ? TSR_SDPA_FLASH : TSR_SDPA_EFFICIENT;
    }
    enum tsr_category category = tsr__result_category(e);
    uint64_t rows = s->batch * s->heads * (flash ? s->seq : tsr_round_up(s->seq, 32));
    struct tsr_tensor *out[4] = {NULL};
    out[0] = tsr__tensor_like(e, qkv[0], qkv[0] ? (tsr_dtype)qkv[0]->dtype : TSR_F32, category);
    out[1] = tsr__tensor_new(e, TSR_F32, 1, &rows, category);
    if (flash) { /* random state */
        out[2] = scratch(e, 16, category);
        out[3] = scratch(e, 8, category);
    }
    if (tsr__ok(e))
        emit_attention(e, flash ? "flash_attention" : "efficient_attention", false, s, kv_heads,
                       qkv, 3, out, 2);
    if (out[0] && node) {
        struct tsr_tensor *same = tsr__tensor_view(e, out[0]->storage, (tsr_dtype)out[0]->dtype,
                                                   out[0]->n_dims, out[0]->dims);
        tsr__node_save(e, node, same);
        tsr_release(e, same);
    }
    for (int i = 1; i < 4; i++) {
        tsr__node_save(e, node, out[i]);
        tsr_release(e, out[i]);
    }
    if (!out[0])
        return tsr__op_abort(e, node);
    tsr__node_output(node, out[0], 0);
    return out[0];
}

/* ---- attention as plain products ------------------------------------------------------------- */
enum { SCORES, WEIGHTED };

static void emit_bmm(struct tsr_engine *e, const char *name, const struct tsr_attention_shape *s,
                     struct tsr_tensor *a, struct tsr_tensor *b, struct tsr_tensor *out, int which)
{
    double flops = 2.0 * (double)s->batch * (double)s->heads * (double)s->seq * (double)s->seq *
                   (double)s->head_dim;
    if (!out || !a || !b)
        return;
    tsr__operand_tensor(e, a, TSR_READ);
    tsr__operand_tensor(e, b, TSR_READ);
    tsr__operand_tensor(e, out, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_GEMM,
                            .dtype = out->dtype,
                            .name = name,
                            .flops = flops,
                            .model_flops = flops,
                            .bytes_read = tsr__tensor_bytes(a) + tsr__tensor_bytes(b),
                            .bytes_written = tsr__tensor_bytes(out),
                            .dims = {s->seq, which == SCORES ? s->seq : s->head_dim,
                                     which == SCORES ? s->head_dim : s->seq, s->batch * s->heads}};
    tsr__emit_op(e, &work);
}

/* bmm of two saved operands; the second operand's gradient comes first. a[5]: SCORES or WEIGHTED */
static void bmm_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_attention_shape s = shape_of(node);
    struct tsr_tensor *in[2] = {tsr__node_saved(e, node, 0), tsr__node_saved(e, node, 1)};
    for (int i = 1; i >= 0; i--) {
        if (!node->edges[i].node || !in[i])
            continue;
        grad_in[i] = tsr__tensor_like(e, in[i], (tsr_dtype)in[i]->dtype, TSR_CAT_TEMP);
        bool scores_like = node->a[5] == WEIGHTED && i == 0;
        emit_bmm(e, "bmm_backward", &s, grad_out[0], in[1 - i], grad_in[i],
                 scores_like ? SCORES : WEIGHTED);
    }
    tsr_release(e, in[0]);
    tsr_release(e, in[1]);
}

static struct tsr_tensor *bmm(struct tsr_engine *e, const struct tsr_attention_shape *s,
                              struct tsr_tensor *a, struct tsr_tensor *b, int which)
{
    if (!a || !b)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Bmm", bmm_backward, (struct tsr_tensor *[]){a, b}, 2);
    tsr__node_save(e, node, a);
    tsr__node_save(e, node, b);
    if (node) {
        set_shape(node, s, s->heads);
        node->a[5] = (uint64_t)which;
    }
    uint64_t scores[2] = {s->batch * s->heads * s->seq, s->seq};
    uint64_t result[2] = {s->batch * s->seq, s->heads * s->head_dim};
    struct tsr_tensor *y = tsr__tensor_new(
        e, (tsr_dtype)a->dtype, 2, which == SCORES ? scores : result, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    emit_bmm(e, which == SCORES ? "bmm_scores" : "bmm_values", s, a, b, y, which);
    tsr__node_output(node, y, 0);
    return y;
}

static void softmax_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *p = tsr__node_saved(e, node, 0);
    grad_in[0] = tsr__tensor_like(e, p, p ? (tsr_dtype)p->dtype : TSR_F32, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "softmax_backward", (struct tsr_tensor *[]){grad_out[0], p}, 2,
                        grad_in[0]);
    tsr_release(e, p);
}

static struct tsr_tensor *softmax(struct tsr_engine *e, struct tsr_tensor *x)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Softmax", softmax_backward, &x, 1);
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "softmax", &x, 1, y);
    if (node) {
        struct tsr_tensor *same =
            tsr__tensor_view(e, y->storage, (tsr_dtype)y->dtype, y->n_dims, y->dims);
        tsr__node_save(e, node, same);
        tsr_release(e, same);
    }
    tsr__node_output(node, y, 0);
    return y;
}

/* Scores, softmax in fp32, product: the math backend (everything in fp32) and transformers' eager
 * attention (softmax in fp32 only). */
static struct tsr_tensor *plain_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                          const struct tsr_attention_shape *s, bool all_fp32,
                                          struct tsr_tensor **weights)
{
    tsr_dtype dtype = qkv[0] ? (tsr_dtype)qkv[0]->dtype : TSR_F32;
    uint64_t times = s->kv_heads ? s->heads / s->kv_heads : 1;
    struct tsr_tensor *t[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        struct tsr_tensor *wide = all_fp32 ? tsr_op_cast(e, qkv[i], TSR_F32) : tsr_retain(qkv[i]);
        bool grouped = i > 0 && wide && wide->dims[1] < s->heads * s->head_dim;
        t[i] = tsr_op_repeat_heads(e, wide, grouped ? times : 1);
        tsr_release(e, wide);
    }
    struct tsr_tensor *scores = bmm(e, s, t[0], t[1], SCORES);
    struct tsr_tensor *wide = tsr_op_cast(e, scores, TSR_F32);
    tsr_release(e, scores);
    struct tsr_tensor *p32 = softmax(e, wide);
    tsr_release(e, wide);
    struct tsr_tensor *p = tsr_op_cast(e, p32, all_fp32 ? TSR_F32 : dtype);
    tsr_release(e, p32);
    struct tsr_tensor *o = bmm(e, s, p, t[2], WEIGHTED);
    struct tsr_tensor *y = tsr_op_cast(e, o, dtype);
    tsr_release(e, o);
    for (int i = 0; i < 3; i++)
        tsr_release(e, t[i]);
    if (weights)
        *weights = p;
    else
        tsr_release(e, p);
    return y;
}

struct tsr_tensor *tsr_op_attention(struct tsr_engine *e, struct tsr_tensor *q,
                                    struct tsr_tensor *k, struct tsr_tensor *v,
                                    const struct tsr_attention_shape *s,
                                    struct tsr_tensor **weights)
{
    struct tsr_tensor *qkv[3] = {q, k, v};
    enum tsr_attention variant = e->config.attention;
    if (weights)
        *weights = NULL;
    if (!q || !k || !v || !tsr__ok(e))
        return NULL;
    if (variant == TSR_ATTENTION_EAGER)
        return plain_attention(e, qkv, s, false, weights);
    uint64_t kv_heads = s->head_dim ? k->dims[1] / s->head_dim : s->kv_heads;
    bool half = q->dtype == TSR_BF16 || q->dtype == TSR_F16;
    if (variant == TSR_SDPA_FLASH && half)
        return fused_attention(e, qkv, s, kv_heads, true);
    if (variant != TSR_SDPA_MATH && kv_heads == s->heads)
        return fused_attention(e, qkv, s, kv_heads, false);
    return plain_attention(e, qkv, s, true, NULL);
}
