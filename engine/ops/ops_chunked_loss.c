/* ops_chunked_loss.c: head and cross-entropy in one operation, chunk by chunk over the tokens.
 *
 * The algorithm is that of Liger Kernel's fused linear cross entropy: forward makes the loss of a
 * chunk and at once its gradients, so that the logits of only one chunk exist at a time; backward
 * has nothing left but to scale what forward made. The kernels are eager PyTorch's instead of one
 * fused Triton kernel: logits are cast to fp32 as in the loss without chunks. Nothing of it was
 * recorded; it is a model of the algorithm, not of an implementation.
 *
 * T tokens, D width, V words, N chunks of ceil(T / N) tokens, b bytes of the dtype that computes:
 *
 *   once     label count   4             how many labels count: the divisor of every chunk
 *            grad of x     T D b   uninitialised; a chunk's product goes straight into its rows
 *            grad of w     V D b   zeros; each chunk's product is added in place
 *            loss          4       zero; each chunk's is added
 *   a chunk  logits        T/N V b            matrix product; freed when they are cast
 *            fp32 logits   T/N V 4            freed when the log-softmax is there; none if b is f32
 *            log-softmax   T/N V 4            its gradient takes its place
 *            chunk's loss  4                  its share of the mean
 *            grad, cast    T/N V b            for the products; fp32 one freed; none if b is f32
 *
 * The largest moments of a chunk are fp32 logits beside the log-softmax: 8 T/N V bytes. A gradient
 * that nobody needs is neither allocated nor computed; without gradients (evaluation) there are
 * only the losses. Both gradients live until backward hands them over: that of x to the node before
 * the head, that of w to its parameter, which for a tied one is a summand beside the embedding's.
 *
 * In the fused dialect a chunk has nothing but its logits and its loss: their kernel puts the
 * gradient in the place of the logits. A compiled loss (ops_compiled_loss.c) has its gradient
 * beside the logits, both in the dtype of the model: 2 T/N V b.
 */
#include "engine/ops/ops_fused.h"

enum { EDGE_X, EDGE_W };

static const uint64_t stored_as_linear = 0; /* args of products, KERNELS.md */

struct chunked {
    struct tsr_engine *e;
    struct tsr_tensor *x, *w, *labels;
    struct tsr_tensor *grad_x, *grad_w, *loss; /* gradients: NULL if not needed */
    struct tsr_tensor *count;                  /* labels that count */
    uint64_t rows, step;                       /* tokens; those of a chunk */
};

/* Rows [from, from + n) of a tensor; a new reference. */
static struct tsr_tensor *rows_of(struct tsr_engine *e, struct tsr_tensor *t, uint64_t from,
                                  uint64_t n)
{
    uint64_t row = t->numel / t->dims[0];
    uint64_t dims[2] = {n, row};
    struct tsr_tensor *part = tsr__tensor_view(e, t->storage, (tsr_dtype)t->dtype, t->n_dims, dims);
    if (part)
        part->offset = t->offset + from * row * tsr_dtype_bytes((tsr_dtype)t->dtype);
    return part;
}

static void fill_zero(struct tsr_engine *e, struct tsr_tensor *t)
{
    if (t)
        tsr__emit_fill(e, t->storage, (tsr_dtype)t->dtype, 0);
}

/* t in another dtype, whose reference is given up; itself if it has it. */
static struct tsr_tensor *cast(struct tsr_engine *e, struct tsr_tensor *t, tsr_dtype dtype)
{
    if (!t || t->dtype == dtype)
        return t;
    struct tsr_tensor *y = tsr__tensor_like(e, t, dtype, tsr__result_category(e));
    tsr__emit_pointwise(e, "cast", &t, 1, y);
    tsr_release(e, t);
    return y;
}

/* ---- a chunk --------------------------------------------------------------------------------- */

static struct tsr_tensor *logits_of(struct chunked *c, struct tsr_tensor *x)
{
    struct tsr_engine *e = c->e;
    uint64_t dims[2] = {x->dims[0], c->w->dims[0]};
    const struct tsr_matmul_shape gemm = {
        {dims[0], dims[1], c->w->dims[1], 1}, 1, 1, &stored_as_linear};
    struct tsr_tensor *logits =
        tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, tsr__result_category(e));
    if (!logits)
        return NULL;
    tsr__emit_gemm(e, "mm", x, c->w, NULL, logits, &gemm);
    tsr__take_workspace(e, false);
    return logits;
}

static struct tsr_tensor *log_softmax(struct chunked *c, struct tsr_tensor *x)
{
    struct tsr_engine *e = c->e;
    struct tsr_tensor *logits = cast(e, logits_of(c, x), tsr__wide(x));
    struct tsr_tensor *p = tsr__tensor_like(e, logits, tsr__wide(logits), tsr__result_category(e));
    tsr__emit_loss_in_passes(e, "log_softmax", &logits, 1, &p, 1, TSR_LOG_SOFTMAX_PASSES);
    tsr_release(e, logits);
    return p;
}

/* fused: p are logits, which become their gradient if one is needed. */
static void add_loss(struct chunked *c, struct tsr_tensor *p, struct tsr_tensor *labels, bool fused)
{
    struct tsr_engine *e = c->e;
    uint64_t one = 1;
    struct tsr_tensor *loss = tsr__tensor_new(e, tsr__wide(p), 1, &one, tsr__result_category(e));
    if (p && loss) {
        struct tsr_tensor *in[3] = {p, labels, c->count};
        if (fused)
            tsr__emit_cross_entropy(e, p, labels, c->count, loss,
                                    c->grad_x || c->grad_w ? p : NULL);
        else
            tsr__emit_loss_in_passes(e, "nll_loss_part", in, 3, &loss, 1, 0);
        tsr__emit_pointwise(e, "add", (struct tsr_tensor *[]){c->loss, loss}, 2, c->loss);
    }
    tsr_release(e, loss);
}

/* The products of the logits' gradient: with the weight, and with the hidden states. */
static void add_gradients(struct chunked *c, struct tsr_tensor *g, struct tsr_tensor *x,
                          uint64_t from)
{
    struct tsr_engine *e = c->e;
    uint64_t rows = x->dims[0], words = c->w->dims[0], width = c->w->dims[1];
    if (c->grad_x && tsr__ok(e)) {
        struct tsr_tensor *part = rows_of(e, c->grad_x, from, rows);
        if (part)
            tsr__emit_gemm(
                e, "mm_input_grad", g, c->w, NULL, part,
                &(struct tsr_matmul_shape){{rows, width, words, 1}, 1, 1, &stored_as_linear});
        tsr_release(e, part);
    }
    if (c->grad_w && tsr__ok(e))
        tsr__emit_gemm(
            e, "addmm_weight_grad", g, x, c->grad_w, c->grad_w,
            &(struct tsr_matmul_shape){{words, width, rows, 1}, 1, 1, &stored_as_linear});
}

static void run_compiled(struct chunked *c, struct tsr_tensor *x, struct tsr_tensor *labels,
                         uint64_t from)
{
    struct tsr_engine *e = c->e;
    struct tsr_tensor *logits = logits_of(c, x), *made[TSR_LOSS_RESULTS], *gradient = NULL;
    if (!logits)
        return;
    tsr__compiled_loss(e, logits, labels, made);
    if (made[TSR_LOSS_VALUE])
        tsr__emit_pointwise(e, "add", (struct tsr_tensor *[]){c->loss, made[TSR_LOSS_VALUE]}, 2,
                            c->loss);
    if (c->grad_x || c->grad_w)
        gradient = tsr__tensor_like(e, logits, (tsr_dtype)logits->dtype, tsr__result_category(e));
    if (gradient)
        tsr__compiled_loss_backward(e, logits, labels, made, NULL, gradient);
    for (int i = 0; i < TSR_LOSS_RESULTS; i++)
        tsr_release(e, made[i]);
    tsr_release(e, logits);
    if (gradient)
        add_gradients(c, gradient, x, from);
    tsr_release(e, gradient);
}

static void run_eager(struct chunked *c, struct tsr_tensor *x, struct tsr_tensor *labels,
                      uint64_t from)
{
    struct tsr_engine *e = c->e;
    bool fused = tsr__is_fused(e);
    struct tsr_tensor *p = fused ? logits_of(c, x) : log_softmax(c, x);
    add_loss(c, p, labels, fused);
    if (p && (c->grad_x || c->grad_w)) {
        struct tsr_tensor *in[3] = {p, labels, c->count}; /* softmax - onehot, in place */
        if (!fused)
            tsr__emit_loss(e, "cross_entropy_backward", in, 3, &p, 1);
        p = cast(e, p, (tsr_dtype)x->dtype);
        if (p)
            add_gradients(c, p, x, from);
    }
    tsr_release(e, p);
}

static void run_chunk(struct chunked *c, uint64_t from)
{
    struct tsr_engine *e = c->e;
    uint64_t rows = tsr_min_u64(c->step, c->rows - from);
    struct tsr_tensor *x = rows_of(e, c->x, from, rows);
    struct tsr_tensor *labels = rows_of(e, c->labels, from, rows);
    if (x && labels && e->ops->loss_kernel == TSR_LOSS_COMPILED)
        run_compiled(c, x, labels, from);
    else if (x && labels)
        run_eager(c, x, labels, from);
    tsr_release(e, labels);
    tsr_release(e, x);
}

/* ---- the node -------------------------------------------------------------------------------- */

/* saved: the gradients that are needed, in the order of the edges */
static void chunked_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    int next = 0;
    for (int i = EDGE_X; i <= EDGE_W; i++) {
        if (!node->edges[i].node)
            continue;
        struct tsr_tensor *grad = tsr__node_saved(e, node, next++);
        if (tsr__is_fused(e))
            tsr__scale_gradient(e, grad, grad_out[0]);
        else if (grad)
            tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){grad, grad_out[0]}, 2, grad);
        grad_in[i] = grad;
    }
}

static bool check(struct tsr_engine *e, const struct tsr_tensor *x, const struct tsr_param *p,
                  const struct tsr_tensor *w)
{
    if (x->dtype == w->dtype)
        return true;
    TSR__RAISE(e, TSR_ERUNTIME,
               "%s: expected mat1 and mat2 to have the same dtype, but got: %s != %s", p->fqn,
               tsr_dtype_name((tsr_dtype)x->dtype), tsr_dtype_name((tsr_dtype)w->dtype));
    return false;
}

static void make_results(struct chunked *c, const struct tsr_node *node)
{
    struct tsr_engine *e = c->e;
    uint64_t one = 1;
    if (node && node->edges[EDGE_X].node)
        c->grad_x = tsr__tensor_like(e, c->x, (tsr_dtype)c->x->dtype, tsr__result_category(e));
    if (node && node->edges[EDGE_W].node)
        c->grad_w = tsr__tensor_like(e, c->w, (tsr_dtype)c->w->dtype, TSR_CAT_UNSHARDED_GRAD);
    fill_zero(e, c->grad_w);
    c->count = tsr__tensor_new(e, TSR_F32, 1, &one, tsr__result_category(e));
    tsr__emit_loss(e, "count_labels", &c->labels, 1, &c->count, 1);
    c->loss = tsr__tensor_new(e, tsr__wide(c->x), 1, &one, tsr__result_category(e));
    fill_zero(e, c->loss);
}

struct tsr_tensor *tsr_op_chunked_cross_entropy(struct tsr_engine *e, struct tsr_tensor *x,
                                                struct tsr_param *wp, struct tsr_tensor *labels,
                                                uint64_t chunks)
{
    struct tsr_tensor *w = x && labels ? tsr__param_value(e, wp) : NULL;
    if (!w || !check(e, x, wp, w))
        return NULL;
    struct chunked c = {.e = e, .x = x, .w = w, .labels = labels, .rows = x->numel / w->dims[1]};
    c.step = tsr_ceil_div(c.rows, chunks ? chunks : 1);
    struct tsr_node *node =
        tsr__node_new(e, "ChunkedCrossEntropy", chunked_backward, (struct tsr_tensor *[]){x, w}, 2);
    make_results(&c, node);
    for (uint64_t from = 0; from < c.rows && tsr__ok(e); from += c.step)
        run_chunk(&c, from);
    tsr__node_save(e, node, c.grad_x);
    tsr__node_save(e, node, c.grad_w);
    tsr_release(e, c.grad_x);
    tsr_release(e, c.grad_w);
    tsr_release(e, c.count);
    if (!c.loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, c.loss, 0);
    return c.loss;
}

/* ---- the head of a model --------------------------------------------------------------------- */

struct tsr_tensor *tsr__head(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x)
{
    struct tsr_param *w = m->params[0].param;
    return e->ops->head_labels
               ? tsr_op_chunked_cross_entropy(e, x, w, e->ops->head_labels, e->ops->loss_chunks)
               : tsr_op_linear(e, x, w, NULL);
}

tsr_status tsr__check_chunked_loss(const struct tsr_engine *e)
{
    if (e->ops->loss_chunks < 2)
        return TSR_OK;
    if (!e->model->head)
        return tsr_fail(TSR_EUNSUPPORTED, "a loss in chunks is modelled for the Llama family and "
                                          "GPT-2; this model has no head for it");
    if (e->tp->size > 1)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "a loss in chunks of a tensor-parallel model is not modelled");
    return TSR_OK;
}
