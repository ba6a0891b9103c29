/* ops_attention_math.c: attention by plain matrix products: PyTorch's math backend, where
 * everything is fp32, and transformers' eager attention. Order, sizes and lifetimes of the math
 * backend: operators.md, sections 7 (the numbered list) and 9.
 */
#include "engine/ops/ops_common.h"

/* ---- products -------------------------------------------------------------------------------- */

enum { SCORES, WEIGHTED };

static struct tsr_attention_shape shape_of(const struct tsr_node *node)
{
    return (struct tsr_attention_shape){.batch = node->a[0],
                                        .seq = node->a[1],
                                        .heads = node->a[2],
                                        .kv_heads = node->a[3],
                                        .head_dim = node->a[4]};
}

static void emit_bmm(struct tsr_engine *e, const char *name, const struct tsr_attention_shape *s,
                     double scale, struct tsr_tensor *const in[2], struct tsr_tensor *out,
                     int which)
{
    uint64_t n = which == SCORES ? s->seq : s->head_dim, k = which == SCORES ? s->head_dim : s->seq;
    const uint64_t args[4] = {s->batch, s->seq, s->heads, s->head_dim};
    const struct tsr_matmul_shape gemm = {{s->seq, n, k, s->batch * s->heads}, scale, 4, args};
    tsr__emit_gemm(e, name, in[0], in[1], NULL, out, &gemm);
}

struct sizes {
    uint64_t dims[2];
};

/* The sizes of scores and weights (SCORES), or of queries, keys, values and results (WEIGHTED). */
static struct sizes sizes_of(const struct tsr_attention_shape *s, int which)
{
    if (which == SCORES)
        return (struct sizes){{s->batch * s->heads * s->seq, s->seq}};
    return (struct sizes){{s->batch * s->seq, s->heads * s->head_dim}};
}

static uint8_t gradient_layout(const struct tsr_attention_shape *s, int which, int operand)
{
    if (which == SCORES && operand == 1)
        return TSR_LAYOUT_TRANSPOSED;
    return s->heads == 1 || (which == WEIGHTED && operand == 0) ? TSR_LAYOUT_TOKENS
                                                                : TSR_LAYOUT_HEADS;
}

/* Two saved operands; the second one's gradient comes first. a[5]: SCORES or WEIGHTED */
static void bmm_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    static const char *const names[2][2] = {{"bmm_grad_q", "bmm_grad_k"},
                                            {"bmm_grad_p", "bmm_grad_v"}};
    struct tsr_attention_shape s = shape_of(node);
    int which = (int)node->a[5];
    struct tsr_tensor *in[2] = {tsr__node_factor(e, node, 0), tsr__node_factor(e, node, 1)};
    for (int i = 1; i >= 0; i--) {
        if (!node->edges[i].node || !in[1 - i])
            continue;
        bool scores_like = which == WEIGHTED && i == 0;
        struct sizes sizes = sizes_of(&s, scores_like ? SCORES : WEIGHTED);
        grad_in[i] = tsr__tensor_new(e, (tsr_dtype)in[1 - i]->dtype, 2, sizes.dims, TSR_CAT_TEMP);
        emit_bmm(e, names[which][i], &s, node->number,
                 (struct tsr_tensor *[]){grad_out[0], in[1 - i]}, grad_in[i],
                 scores_like ? SCORES : WEIGHTED);
        if (grad_in[i])
            grad_in[i]->layout = gradient_layout(&s, which, i);
    }
    tsr_release(e, in[0]);
    tsr_release(e, in[1]);
}

static struct tsr_tensor *bmm(struct tsr_engine *e, const struct tsr_attention_shape *s,
                              struct tsr_tensor *a, struct tsr_tensor *b, int which, double scale)
{
    if (!a || !b)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Bmm", bmm_backward, (struct tsr_tensor *[]){a, b}, 2);
    tsr__node_save_factors(e, node, a, b);
    if (node) {
        uint64_t sizes[TSR_MAX_DIMS] = {s->batch, s->seq,      s->heads,
                                        s->heads, s->head_dim, (uint64_t)which};
        for (int i = 0; i < TSR_MAX_DIMS; i++)
            node->a[i] = sizes[i];
        node->number = scale;
    }
    struct sizes sizes = sizes_of(s, which);
    struct tsr_tensor *y =
        tsr__tensor_new(e, (tsr_dtype)a->dtype, 2, sizes.dims, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    emit_bmm(e, which == SCORES ? "bmm_scores" : "bmm_values", s, scale,
             (struct tsr_tensor *[]){a, b}, y, which);
    tsr__node_output(node, y, 0);
    return y;
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* a[0]: with scratch of the size of the scores */
static void softmax_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *p = tsr__node_saved(e, node, 0);
    grad_in[0] = tsr__tensor_like(e, p, p ? (tsr_dtype)p->dtype : TSR_F32, TSR_CAT_TEMP);
    struct tsr_tensor *work = p && node->a[0] ? tsr__workspace(e, tsr__tensor_bytes(p)) : NULL;
    tsr__emit_pointwise(e, "softmax_backward", (struct tsr_tensor *[]){grad_out[0], p}, 2,
                        grad_in[0]);
    tsr_release(e, work);
    tsr_release(e, p);
}

/* safe: rows that are masked as a whole become zeros, which takes a flag for every score. Of the
 * eager variant, whose mask is no tensor here, the kernel leaves out later keys itself (causal). */
static struct tsr_tensor *softmax(struct tsr_engine *e, struct tsr_tensor *x, bool safe,
                                  bool causal)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Softmax", softmax_backward, &x, 1);
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    struct tsr_tensor *work[3] = {NULL};
    if (safe) {
        work[0] = tsr__workspace(e, x->numel);
        work[1] = tsr__workspace(e, x->dims[0]);
        work[2] = tsr__workspace(e, 4);
    }
    tsr__emit_pointwise_with(e, "softmax", &x, 1, y,
                             &(struct tsr_pointwise){.n_args = 1, .args = {causal}});
    for (int i = 0; i < 3; i++)
        tsr_release(e, work[i]);
    if (node)
        node->a[0] = safe;
    tsr__node_save_result(e, node, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* ---- small operations ------------------------------------------------------------------------ */

static void copy_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    (void)node;
    grad_in[0] = tsr__tensor_like(e, g, (tsr_dtype)g->dtype, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "clone", &g, 1, grad_in[0]);
}

/* Queries and keys each take the root of the scale. */
static struct tsr_tensor *scaled(struct tsr_engine *e, const struct tsr_attention_shape *s,
                                 struct tsr_tensor *x)
{
    return tsr__op_unary_by(e, x, "mul_scalar", tsr__wide(x), tsr__backward_scale,
                            TSR_SAVES_NOTHING, sqrt(tsr__attention_scale(s)));
}

/* Batched products want one batch dimension: with more than one sequence and more than one head a
 * tensor in token order cannot be viewed so, and is copied. */
static struct tsr_tensor *copied(struct tsr_engine *e, struct tsr_tensor *x)
{
    return tsr__op_unary(e, x, "clone", tsr__wide(x), tsr__backward_pass, TSR_SAVES_NOTHING);
}

/* The view of a product's result as heads; its gradient is copied. */
static struct tsr_tensor *as_heads(struct tsr_engine *e, struct tsr_tensor *x)
{
    return tsr__op_alias(e, x, "View", NULL, copy_backward, (uint64_t[TSR_MAX_DIMS]){0});
}

static struct tsr_tensor *number(struct tsr_engine *e, tsr_dtype dtype, double value)
{
    const uint64_t one = 1;
    struct tsr_tensor *t = tsr__tensor_new(e, dtype, 1, &one, tsr__result_category(e));
    tsr__emit_pointwise_with(e, "scalar", NULL, 0, t, &(struct tsr_pointwise){.constant = value});
    return t;
}

static struct tsr_tensor *square(struct tsr_engine *e, const char *name, tsr_dtype dtype,
                                 uint64_t side, struct tsr_tensor *const *in, int n)
{
    const uint64_t elements = side * side;
    struct tsr_tensor *t = tsr__tensor_new(e, dtype, 1, &elements, tsr__result_category(e));
    tsr__emit_pointwise_with(e, name, in, n, t, &(struct tsr_pointwise){.columns = side});
    return t;
}

/* 0 and -inf, made from a lower triangle of booleans. */
static struct tsr_tensor *causal_mask(struct tsr_engine *e, uint64_t seq, tsr_dtype dtype)
{
    struct tsr_tensor *ones = square(e, "ones", TSR_U8, seq, NULL, 0);
    struct tsr_tensor *triangle = square(e, "tril", TSR_U8, seq, &ones, 1);
    tsr_release(e, ones);
    struct tsr_tensor *zero = number(e, dtype, 0), *inf = number(e, dtype, -INFINITY);
    struct tsr_tensor *in[3] = {triangle, zero, inf};
    struct tsr_tensor *mask = square(e, "where", dtype, seq, in, 3);
    tsr_release(e, zero);
    tsr_release(e, inf);
    tsr_release(e, triangle);
    return mask;
}

static struct tsr_tensor *sum_with_mask(struct tsr_engine *e, struct tsr_tensor *scores,
                                        struct tsr_tensor *mask)
{
    struct tsr_node *node = tsr__node_new(e, "Add", tsr__backward_pass, &scores, 1);
    struct tsr_tensor *y = tsr__tensor_like(e, scores, tsr__wide(scores), tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "add_mask", (struct tsr_tensor *[]){scores, mask}, 2, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* Adds the mask in place, or into a new tensor where every operation is recorded. Takes over the
 * scores. */
static struct tsr_tensor *add_mask(struct tsr_engine *e, struct tsr_tensor *scores,
                                   struct tsr_tensor *mask)
{
    const struct tsr_region *region =
        e->autograd.packing ? e->autograd.packing : e->autograd.unpacking;
    bool in_place = !e->config.instrumented && !(region && region->selective);
    if (!scores || !mask)
        return scores;
    struct tsr_tensor *y = in_place ? tsr__op_alias(e, scores, "Add", NULL, tsr__backward_pass,
                                                    (uint64_t[TSR_MAX_DIMS]){0})
                                    : sum_with_mask(e, scores, mask);
    if (in_place)
        tsr__emit_pointwise(e, "add_mask", (struct tsr_tensor *[]){scores, mask}, 2, y);
    tsr_release(e, scores);
    return y;
}

/* ---- the math backend ------------------------------------------------------------------------ */

struct math {
    struct tsr_tensor *wide[3];   /* q, k, v in fp32 (f64 stays f64) */
    struct tsr_tensor *q, *k, *v; /* as the products take them, but for copies */
    struct tsr_tensor *mask;
    bool copies_q, copies_k, copies_v; /* for the products, see copied() */
};

/* Steps 1 to 4. */
static void prepare(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                    const struct tsr_attention_shape *s, struct tsr_tensor *mask, struct math *m)
{
    uint64_t times = s->heads / s->kv_heads;
    enum tsr_layout layout = s->kv_heads > 1 ? TSR_LAYOUT_HEADS : TSR_LAYOUT_TOKENS;
    tsr_dtype wide = tsr__wide(qkv[0]);
    /* a product makes keys seen as many heads dense; values keep what they are in fp32 */
    bool dense_v = qkv[2]->layout == TSR_LAYOUT_HEADS ||
                   (qkv[2]->layout == TSR_LAYOUT_EXPANDED && qkv[2]->dtype != wide);
    m->copies_q = s->batch > 1 && s->heads > 1;
    m->copies_k = m->copies_q && s->kv_heads == s->heads && qkv[1]->layout == TSR_LAYOUT_TOKENS;
    m->copies_v = m->copies_q && s->kv_heads == s->heads && !dense_v;
    for (int i = 0; i < 3; i++)
        m->wide[i] = tsr_op_cast(e, qkv[i], wide);
    m->q = scaled(e, s, m->wide[0]);
    m->mask = mask ? tsr_retain(mask) : s->full ? NULL : causal_mask(e, s->seq, wide);
    m->k = tsr__op_repeat(e, m->wide[1], times, s->head_dim, true, layout);
    m->v = tsr__op_repeat(e, m->wide[2], times, s->head_dim, true, layout);
}

/* Steps 5 and 6: the masked scores. */
static struct tsr_tensor *masked_scores(struct tsr_engine *e, const struct tsr_attention_shape *s,
                                        const struct math *m)
{
    struct tsr_tensor *k = scaled(e, s, m->k);
    struct tsr_tensor *q = m->copies_q ? copied(e, m->q) : tsr_retain(m->q);
    struct tsr_tensor *by = m->copies_k ? copied(e, k) : tsr_retain(k);
    struct tsr_tensor *scores = bmm(e, s, q, by, SCORES, 1);
    tsr_release(e, q);
    tsr_release(e, by);
    tsr_release(e, k);
    return add_mask(e, scores, m->mask);
}

/* Steps 8 and 9. */
static struct tsr_tensor *weighted(struct tsr_engine *e, const struct tsr_attention_shape *s,
                                   const struct math *m, struct tsr_tensor *p, tsr_dtype dtype)
{
    bool grad = e->grad_enabled;
    e->grad_enabled = false; /* a second result that nobody asks a gradient of */
    struct tsr_tensor *weights = tsr_op_cast(e, p, dtype);
    e->grad_enabled = grad;
    struct tsr_tensor *v = m->copies_v ? copied(e, m->v) : tsr_retain(m->v);
    struct tsr_tensor *product = bmm(e, s, p, v, WEIGHTED, 1);
    tsr_release(e, v);
    struct tsr_tensor *heads = m->copies_q ? as_heads(e, product) : tsr_retain(product);
    struct tsr_tensor *out = tsr_op_cast(e, heads, dtype);
    tsr_release(e, heads);
    tsr_release(e, product);
    tsr_release(e, weights);
    return out;
}

struct tsr_tensor *tsr__math_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                       const struct tsr_attention_shape *s, struct tsr_tensor *mask)
{
    struct math m = {0};
    tsr_dtype dtype = (tsr_dtype)qkv[0]->dtype;
    prepare(e, qkv, s, mask, &m);
    struct tsr_tensor *scores = masked_scores(e, s, &m);
    struct tsr_tensor *p = softmax(e, scores, true, false);
    tsr_release(e, scores);
    struct tsr_tensor *out = weighted(e, s, &m, p, dtype);
    tsr_release(e, p);
    tsr_release(e, m.mask);
    tsr_release(e, m.q);
    tsr_release(e, m.k);
    tsr_release(e, m.v);
    for (int i = 0; i < 3; i++)
        tsr_release(e, m.wide[i]);
    return out;
}

/* ---- transformers' eager attention ----------------------------------------------------------- */

/* Product, scores (the product is rounded before it is scaled), softmax in fp32, product. */
struct tsr_tensor *tsr__eager_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                        const struct tsr_attention_shape *s,
                                        struct tsr_tensor **weights)
{
    tsr_dtype dtype = (tsr_dtype)qkv[0]->dtype;
    uint64_t times = s->kv_heads ? s->heads / s->kv_heads : 1;
    struct tsr_tensor *t[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        bool grouped = i > 0 && qkv[i]->dims[1] < s->heads * s->head_dim;
        t[i] = tsr__op_repeat(e, qkv[i], grouped ? times : 1, s->head_dim, true, TSR_LAYOUT_TOKENS);
    }
    struct tsr_tensor *product = bmm(e, s, t[0], t[1], SCORES, 1);
    struct tsr_tensor *scores =
        product ? tsr__op_unary_by(e, product, "mul_scalar", (tsr_dtype)product->dtype,
                                   tsr__backward_scale, TSR_SAVES_NOTHING, tsr__attention_scale(s))
                : NULL;
    tsr_release(e, product);
    struct tsr_tensor *wide = tsr_op_cast(e, scores, tsr__wide(scores));
    tsr_release(e, scores);
    struct tsr_tensor *p32 = softmax(e, wide, false, !s->full);
    tsr_release(e, wide);
    struct tsr_tensor *p = tsr_op_cast(e, p32, dtype);
    tsr_release(e, p32);
    struct tsr_tensor *out = bmm(e, s, p, t[2], WEIGHTED, 1);
    for (int i = 0; i < 3; i++)
        tsr_release(e, t[i]);
    if (weights)
        *weights = p;
    else
        tsr_release(e, p);
    return out;
}
