/* ops_basic.c: matrix products, norms and embeddings, forward and backward. Order and sizes of
 * allocations are those of eager PyTorch (golden-memory/operators.md, sections 7 and 9).
 */
#include "engine/ops/ops_common.h"
#include "engine/ops/ops_fused.h"

struct tsr_tensor *tsr__workspace(struct tsr_engine *e, uint64_t bytes)
{
    return bytes ? tsr__tensor_new(e, TSR_U8, 1, &bytes, TSR_CAT_WORKSPACE) : NULL;
}

void tsr__emit_column_sum(struct tsr_engine *e, const char *name, struct tsr_tensor *x,
                          struct tsr_tensor *out, uint64_t rows, uint64_t columns)
{
    if (!x || !out || !tsr__ok(e))
        return;
    struct tsr_column_sum scratch = tsr__column_sum_scratch(rows, columns);
    struct tsr_tensor *partial = tsr__workspace(e, scratch.partial);
    struct tsr_tensor *semaphores = tsr__workspace(e, scratch.semaphores);
    tsr__operand_tensor(e, x, TSR_READ);
    tsr__operand_tensor(e, partial, TSR_WRITE);
    tsr__operand_tensor(e, semaphores, TSR_WRITE);
    tsr__operand_tensor(e, out, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_REDUCTION,
                            .dtype = x->dtype,
                            .name = name,
                            .flops = (double)x->numel,
                            .bytes_read = tsr__tensor_bytes(x),
                            .bytes_written = tsr__tensor_bytes(out),
                            .dims = {rows, columns}};
    tsr__emit_op(e, &work);
    tsr_release(e, partial);
    tsr_release(e, semaphores);
}

/* ---- linear ---------------------------------------------------------------------------------- */
/* The first matrix product of a thread takes cuBLAS' workspace (32 MiB on sm_90), the first biased
 * one cublasLt's (1 MiB), after its output; both stay (operators.md, section 5). */
void tsr__take_workspace(struct tsr_engine *e, bool biased)
{
    if (e->emit.capture)
        return; /* with the block's first product that runs */
    bool *have = e->autograd.in_backward ? &e->ops->workspace_autograd : &e->ops->workspace_main;
    bool *have_lt = e->autograd.in_backward ? &e->ops->lt_autograd : &e->ops->lt_main;
    if (!*have && tsr__ok(e)) {
        *have = true;
        e->ops->workspaces[e->ops->n_workspaces++] =
            tsr__storage_new(e, TSR_CUBLAS_WORKSPACE, TSR_CAT_WORKSPACE);
    }
    if (biased && !*have_lt && tsr__ok(e)) {
        *have_lt = true;
        e->ops->workspaces[e->ops->n_workspaces++] =
            tsr__storage_new(e, TSR_CUBLASLT_WORKSPACE, TSR_CAT_WORKSPACE);
    }
}

void tsr__emit_gemm(struct tsr_engine *e, const char *name, struct tsr_tensor *a,
                    struct tsr_tensor *b, struct tsr_tensor *extra, struct tsr_tensor *out,
                    const struct tsr_matmul_shape *gemm)
{
    const uint64_t *mnk_batch = gemm->mnk_batch;
    double flops = 2.0;
    if (!a || !b || !out || !tsr__ok(e))
        return;
    struct tsr_work work = {.op = TSR_OP_GEMM,
                            .dtype = out->dtype,
                            .name = name,
                            .constants = {gemm->scale},
                            .n_args = gemm->n_args,
                            .args = gemm->args};
    for (int i = 0; i < 4; i++) {
        flops *= (double)mnk_batch[i];
        work.dims[i] = mnk_batch[i];
    }
    work.flops = work.model_flops = flops;
    work.bytes_read = tsr__tensor_bytes(a) + tsr__tensor_bytes(b);
    if (extra == out) /* the product is added to what is there */
        work.bytes_read += tsr__tensor_bytes(out);
    work.bytes_written = tsr__tensor_bytes(out);
    tsr__operand_tensor(e, a, TSR_READ);
    tsr__operand_tensor(e, b, TSR_READ);
    tsr__operand_tensor(e, extra, TSR_READ);
    tsr__operand_tensor(e, out, TSR_WRITE);
    tsr__emit_op(e, &work);
}

/* A product with a weight, which is stored as (out, in), or (in, out) if transposed. */
static void linear_gemm(struct tsr_engine *e, const char *name, struct tsr_tensor *const in[3],
                        struct tsr_tensor *out, const uint64_t mnk[3], bool transposed)
{
    const uint64_t arg = transposed;
    const struct tsr_matmul_shape gemm = {{mnk[0], mnk[1], mnk[2], 1}, 1, 1, &arg};
    tsr__emit_gemm(e, name, in[0], in[1], in[2], out, &gemm);
}

enum { LINEAR_CONV1D = 1, LINEAR_BIASED = 2 };
/* Edges in PyTorch's order (addmm: bias, input, weight): leaves receive gradients in this order. */
enum { EDGE_BIAS, EDGE_INPUT, EDGE_WEIGHT };

/* a: rows, out, in, flags */
static void linear_weight_grad(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *g,
                               struct tsr_tensor *x, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *w = node->w[0];
    struct tsr_tensor *grad = tsr__tensor_like(
        e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, node->edges[EDGE_WEIGHT].node));
    if (x && grad && tsr__ok(e)) {
        grad->is_view = !(node->a[3] & LINEAR_BIASED);
        linear_gemm(e, "mm_weight_grad", (struct tsr_tensor *[]){g, x, NULL}, grad,
                    (uint64_t[]){node->a[1], node->a[2], node->a[0]}, node->a[3] & LINEAR_CONV1D);
        tsr__take_workspace(e, false);
    }
    grad_in[EDGE_WEIGHT] = grad;
}

/* The fused dialect adds to what another consumer of the input has left: no gradient comes out. */
static bool add_input_grad(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *g)
{
    struct tsr_tensor *into =
        tsr__waiting_gradient(e, node, EDGE_INPUT, (tsr_dtype)g->dtype, node->a[0] * node->a[2]);
    if (!into)
        return false;
    linear_gemm(e, "addmm_input_grad", (struct tsr_tensor *[]){g, node->w[0], into}, into,
                (uint64_t[]){node->a[0], node->a[2], node->a[1]}, node->a[3] & LINEAR_CONV1D);
    tsr__take_workspace(e, false);
    tsr_release(e, into);
    return true;
}

static void linear_input_grad(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *g,
                              struct tsr_tensor **grad_in)
{
    struct tsr_tensor *w = node->w[0];
    uint64_t dims[2] = {node->a[0], node->a[2]};
    if (add_input_grad(e, node, g))
        return;
    struct tsr_tensor *grad = tsr__tensor_new(e, (tsr_dtype)g->dtype, 2, dims, TSR_CAT_TEMP);
    if (grad) {
        grad->is_view = true; /* a reshaped view of the product's result */
        linear_gemm(e, "mm_input_grad", (struct tsr_tensor *[]){g, w, NULL}, grad,
                    (uint64_t[]){node->a[0], node->a[2], node->a[1]}, node->a[3] & LINEAR_CONV1D);
        tsr__take_workspace(e, false);
    }
    grad_in[EDGE_INPUT] = grad;
}

static void bias_grad(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *g,
                      struct tsr_tensor **grad_in)
{
    struct tsr_tensor *grad = tsr__tensor_new(e, (tsr_dtype)g->dtype, 1, &node->a[1],
                                              tsr__grad_category(e, node->edges[EDGE_BIAS].node));
    tsr__emit_column_sum(e, "sum_bias_grad", g, grad, node->a[0], node->a[1]);
    grad_in[EDGE_BIAS] = grad;
}

/* Without bias the weight's gradient comes first, with bias the input's (operators.md, section 3).
 */
static void linear_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    bool biased = node->a[3] & LINEAR_BIASED;
    struct tsr_tensor *x = NULL;
    tsr__node_touch(e, node); /* a checkpointed region is recomputed first, if something is saved */
    if (node->edges[EDGE_WEIGHT].node)
        x = tsr__node_saved(e, node, 0);
    if (biased && node->edges[EDGE_INPUT].node)
        linear_input_grad(e, node, g, grad_in);
    if (node->edges[EDGE_WEIGHT].node)
        linear_weight_grad(e, node, g, x, grad_in);
    if (!biased && node->edges[EDGE_INPUT].node)
        linear_input_grad(e, node, g, grad_in);
    tsr_release(e, x);
    if (node->edges[EDGE_BIAS].node)
        bias_grad(e, node, g, grad_in);
}

static struct tsr_tensor *linear(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_param *wp,
                                 struct tsr_param *bp, unsigned flags)
{
    if (!x)
        return NULL;
    struct tsr_tensor *w = tsr__param_value(e, wp), *b = bp ? tsr__param_value(e, bp) : NULL;
    if (!w || (bp && !b))
        return NULL;
    if (!(flags & LINEAR_CONV1D) && tsr__is_fp8(e, x, w))
        return tsr__fp8_linear(e, x, w, b);
    if (x->dtype != w->dtype) {
        TSR__RAISE(e, TSR_ERUNTIME,
                   "%s: expected mat1 and mat2 to have the same dtype, but got: %s != %s", wp->fqn,
                   tsr_dtype_name((tsr_dtype)x->dtype), tsr_dtype_name((tsr_dtype)w->dtype));
        return NULL;
    }
    if (b && b->dtype != w->dtype) {
        TSR__RAISE(e, TSR_ERUNTIME, "%s: self and mat2 must have the same dtype, but got %s and %s",
                   bp->fqn, tsr_dtype_name((tsr_dtype)b->dtype),
                   tsr_dtype_name((tsr_dtype)w->dtype));
        return NULL;
    }
    uint64_t in = w->dims[flags & LINEAR_CONV1D ? 0 : 1];
    uint64_t out = w->dims[flags & LINEAR_CONV1D ? 1 : 0];
    uint64_t rows = in ? x->numel / in : 0;
    struct tsr_node *node =
        tsr__node_new(e, "Linear", linear_backward, (struct tsr_tensor *[]){b, x, w}, 3);
    if (node) {
        node->a[0] = rows;
        node->a[1] = out;
        node->a[2] = in;
        node->a[3] = flags | (b ? LINEAR_BIASED : 0);
        /* each of the two is needed for the gradient of the other, and the bias needs neither */
        if (node->edges[EDGE_WEIGHT].node)
            tsr__node_save(e, node, x);
        if (node->edges[EDGE_INPUT].node)
            tsr__node_save_weight(e, node, w);
        node->w[0] = w;
    }
    uint64_t dims[2] = {rows, out};
    bool kept = tsr__selective_keeps(e, true), reuse = kept && tsr__selective_reuses(e);
    struct tsr_tensor *y =
        reuse ? tsr__selective_take(e)
              : tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    if (!reuse) {
        linear_gemm(e, b ? "addmm" : "mm", (struct tsr_tensor *[]){x, w, b}, y,
                    (uint64_t[]){rows, out, in}, flags & LINEAR_CONV1D);
        tsr__take_workspace(e, b != NULL);
    }
    if (kept && !reuse)
        tsr__selective_put(e, y);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr_op_linear(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_param *w,
                                 struct tsr_param *bias)
{
    return linear(e, x, w, bias, 0);
}

struct tsr_tensor *tsr_op_conv1d(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_param *w,
                                 struct tsr_param *bias)
{
    return linear(e, x, w, bias, LINEAR_CONV1D);
}

/* ---- norms ----------------------------------------------------------------------------------- */
/* The gradients of a norm's weight and bias. Of many rows of few columns PyTorch sums blocks of
 * rows first, and these into new tensors, which replace those that it had taken. Here the first
 * kernel has the sums already; the second one hands them over. */
struct norm_grads {
    struct tsr_tensor *taken[2], *blocks[2];
};

static struct tsr_tensor *norm_grad(struct tsr_engine *e, const struct tsr_node *node, int i,
                                    enum tsr_category category)
{
    return tsr__tensor_like(e, node->w[i], (tsr_dtype)node->w[i]->dtype, category);
}

static struct norm_grads take_norm_grads(struct tsr_engine *e, const struct tsr_node *node)
{
    /* Inductor has sums over rows of its own (engine/compile). */
    uint64_t blocks = e->capture ? 0 : tsr__norm_row_blocks(node->a[0], node->a[1]);
    uint64_t dims[2] = {blocks, node->a[1]};
    struct norm_grads g = {.taken = {NULL}};
    for (int i = 0; i < 2; i++) {
        const struct tsr_node *to = node->w[i] ? node->edges[1 + i].node : NULL;
        if (to)
            g.taken[i] =
                norm_grad(e, node, i, dims[0] ? TSR_CAT_WORKSPACE : tsr__grad_category(e, to));
    }
    for (int i = 0; i < 2; i++)
        if (dims[0] && g.taken[i])
            g.blocks[i] =
                tsr__tensor_new(e, (tsr_dtype)node->w[i]->dtype, 2, dims, TSR_CAT_WORKSPACE);
    return g;
}

static void sum_norm_blocks(struct tsr_engine *e, const struct tsr_node *node, struct norm_grads *g,
                            int i)
{
    struct tsr_tensor *blocks = g->blocks[i], *from = g->taken[i];
    struct tsr_tensor *out = norm_grad(e, node, i, tsr__grad_category(e, node->edges[1 + i].node));
    struct tsr_column_sum bytes = tsr__column_sum_scratch(blocks->dims[0], blocks->dims[1]);
    struct tsr_tensor *scratch[2] = {tsr__workspace(e, bytes.partial),
                                     tsr__workspace(e, bytes.semaphores)};
    tsr__operand_tensor(e, from, TSR_READ);
    tsr__operand_tensor(e, out, TSR_WRITE);
    tsr__operand_tensor(e, blocks, TSR_READ);
    for (int k = 0; k < 2; k++)
        tsr__operand_tensor(e, scratch[k], TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_REDUCTION,
                            .dtype = blocks->dtype,
                            .name = "clone",
                            .flops = (double)blocks->numel,
                            .bytes_read = tsr__tensor_bytes(blocks),
                            .bytes_written = tsr__tensor_bytes(from),
                            .dims = {blocks->dims[0], blocks->dims[1]}};
    tsr__emit_op(e, &work);
    tsr_release(e, scratch[0]);
    tsr_release(e, scratch[1]);
    tsr_release(e, from);
    g->taken[i] = out;
}

/* saved: input, statistics (rms: 1; layer norm: 2). a: rows, columns */
static void norm_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0), *g = grad_out[0], *gx = NULL;
    struct tsr_tensor *w = node->w[0], *b = node->w[1], *stat[2] = {NULL, NULL};
    for (int i = 0; i < (b ? 2 : 1); i++)
        stat[i] = tsr__node_saved(e, node, 1 + i);
    if (node->edges[0].node)
        gx = tsr__tensor_like(e, x, x ? (tsr_dtype)x->dtype : TSR_F32, TSR_CAT_TEMP);
    struct norm_grads grads = take_norm_grads(e, node);
    if (x && tsr__ok(e)) {
        tsr__operand_tensor(e, g, TSR_READ);
        tsr__operand_tensor(e, x, TSR_READ);
        tsr__operand_tensor(e, w, TSR_READ);
        tsr__operand_tensor(e, gx, TSR_WRITE);
        tsr__operand_tensor(e, grads.taken[0], TSR_WRITE);
        tsr__operand_tensor(e, grads.taken[1], TSR_WRITE);
        for (int i = 0; i < 2; i++)
            tsr__operand_tensor(e, stat[i], TSR_READ);
        for (int i = 0; i < 2; i++)
            tsr__operand_tensor(e, grads.blocks[i], TSR_WRITE);
        struct tsr_work work = {.op = TSR_OP_NORM_BWD,
                                .dtype = x->dtype,
                                .name = b ? "layer_norm_backward" : "rms_norm_backward",
                                .flops = 8.0 * (double)x->numel,
                                .bytes_read = tsr__tensor_bytes(g) + tsr__tensor_bytes(x),
                                .bytes_written = gx ? tsr__tensor_bytes(gx) : 0,
                                .dims = {node->a[0], node->a[1]},
                                .constants = {node->number}};
        for (int i = 0; i < 2; i++)
            work.bytes_written += grads.blocks[i] ? tsr__tensor_bytes(grads.blocks[i]) : 0;
        tsr__emit_op(e, &work);
        for (int i = 0; i < 2; i++)
            if (grads.blocks[i])
                sum_norm_blocks(e, node, &grads, i);
    }
    for (int i = 0; i < 2; i++)
        tsr_release(e, grads.blocks[i]);
    tsr_release(e, x);
    tsr_release(e, stat[0]);
    tsr_release(e, stat[1]);
    grad_in[0] = gx;
    grad_in[1] = grads.taken[0];
    grad_in[2] = grads.taken[1];
}

/* A layer norm keeps the dtype of its input and takes weights of that dtype, or f32 ones for an
 * input of 16 bits. */
static tsr_dtype layer_norm_dtype(struct tsr_engine *e, const struct tsr_tensor *x,
                                  const struct tsr_tensor *w, const struct tsr_tensor *b,
                                  const struct tsr_param *wp)
{
    bool is_half = x->dtype == TSR_BF16 || x->dtype == TSR_F16;
    bool fits = w->dtype == b->dtype && (x->dtype == w->dtype || (is_half && w->dtype == TSR_F32));
    if (!fits)
        TSR__RAISE(e, TSR_ERUNTIME,
                   "%s: a layer norm of %s: expected scalar type %s but found %s and %s", wp->fqn,
                   tsr_dtype_name((tsr_dtype)x->dtype), is_half ? "f32" : "that of its input",
                   tsr_dtype_name((tsr_dtype)w->dtype), tsr_dtype_name((tsr_dtype)b->dtype));
    return (tsr_dtype)x->dtype;
}

tsr_dtype tsr__norm_dtype(struct tsr_engine *e, const struct tsr_tensor *x,
                          const struct tsr_tensor *w, const struct tsr_tensor *b,
                          const struct tsr_param *wp)
{
    return b ? layer_norm_dtype(e, x, w, b, wp) : (tsr_dtype)x->dtype;
}

enum norm_kind { KEEPS_DTYPE, PROMOTES };

static struct tsr_tensor *norm(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_param *wp,
                               struct tsr_param *bp, enum norm_kind kind)
{
    struct tsr_tensor *w = x ? tsr__param_value(e, wp) : NULL;
    struct tsr_tensor *b = w && bp ? tsr__param_value(e, bp) : NULL;
    if (!w || (bp && !b))
        return NULL;
    tsr_dtype dtype =
        kind == PROMOTES ? tsr__promote(x->dtype, w->dtype) : tsr__norm_dtype(e, x, w, b, wp);
    if (!tsr__ok(e))
        return NULL;
    bool is_eager = e->config.dialect == TSR_DIALECT_EAGER && !e->capture;
    if (kind == KEEPS_DTYPE && !b && x->dtype != w->dtype && is_eager)
        return tsr__op_composite_rms_norm(e, x, w);
    struct tsr_node *node =
        tsr__node_new(e, "Norm", norm_backward, (struct tsr_tensor *[]){x, w, b}, 3);
    uint64_t columns = w->numel, rows = columns ? x->numel / columns : 0;
    tsr__node_save(e, node, x);
    if (node) {
        node->w[0] = w;
        node->w[1] = b;
        node->a[0] = rows;
        node->a[1] = columns;
        node->number = e->model->norm_eps;
    }
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *y = tsr__tensor_like(e, x, dtype, category);
    struct tsr_tensor *stat[2] = {NULL, NULL};
    for (int i = 0; i < (b ? 2 : 1); i++)
        stat[i] = tsr__tensor_new(e, tsr__wide(x), 1, &rows, category);
    if (y && stat[0] && tsr__ok(e)) {
        tsr__operand_tensor(e, x, TSR_READ);
        tsr__operand_tensor(e, w, TSR_READ);
        tsr__operand_tensor(e, b, TSR_READ);
        tsr__operand_tensor(e, y, TSR_WRITE);
        tsr__operand_tensor(e, stat[0], TSR_WRITE);
        tsr__operand_tensor(e, stat[1], TSR_WRITE);
        struct tsr_work work = {.op = TSR_OP_NORM,
                                .dtype = x->dtype,
                                .name = b ? "layer_norm" : "rms_norm",
                                .flops = 4.0 * (double)x->numel,
                                .bytes_read = tsr__tensor_bytes(x),
                                .bytes_written = tsr__tensor_bytes(y),
                                .dims = {rows, columns},
                                .constants = {e->model->norm_eps}};
        tsr__emit_op(e, &work);
    }
    tsr__node_save(e, node, stat[0]);
    tsr__node_save(e, node, stat[1]);
    tsr_release(e, stat[0]);
    tsr_release(e, stat[1]);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr_op_rms_norm(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_param *w)
{
    return norm(e, x, w, NULL, KEEPS_DTYPE);
}

struct tsr_tensor *tsr__op_promoting_rms_norm(struct tsr_engine *e, struct tsr_tensor *x,
                                              struct tsr_param *w)
{
    return norm(e, x, w, NULL, PROMOTES);
}

struct tsr_tensor *tsr_op_layer_norm(struct tsr_engine *e, struct tsr_tensor *x,
                                     struct tsr_param *w, struct tsr_param *b)
{
    return norm(e, x, w, b, KEEPS_DTYPE);
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* Embeddings. Their backward sorts the ids of more than 3072 tokens, which takes
 * memory of the order of the gradient (operators.md, section 11). */

enum { MAX_SCRATCH = 12 };

struct sorting {
    struct tsr_tensor *held[MAX_SCRATCH]; /* until the gradient is complete */
    int n;
};

static void hold(struct tsr_engine *e, struct sorting *s, uint64_t bytes)
{
    s->held[s->n++] = tsr__workspace(e, bytes);
}

static void passing(struct tsr_engine *e, uint64_t bytes)
{
    struct tsr_tensor *scratch = tsr__workspace(e, bytes);
    tsr_release(e, scratch);
}

static void drop_last(struct tsr_engine *e, struct sorting *s)
{
    s->n--;
    tsr_release(e, s->held[s->n]);
}

/* Ids and positions, sorted. */
static void before_gradient(struct tsr_engine *e, struct sorting *s, uint64_t tokens)
{
    for (int i = 0; i < 3; i++)
        hold(e, s, 8 * tokens);
    passing(e, tsr__sort_scratch(tokens));
    drop_last(e, s);
}

/* Where each id begins and into how many partial sums it is cut. */
static void after_gradient(struct tsr_engine *e, struct sorting *s, uint64_t tokens,
                           const struct tsr_tensor *w)
{
    uint64_t rows = w->dims[0], width = w->dims[1], d32 = tsr_round_up(width, 32);
    uint64_t segments = tsr_min_u64(rows, tokens), partials = tokens / 10 + segments;
    uint64_t blocks = tsr_ceil_div(segments * d32, tsr_min_u64(d32, 1024));
    uint64_t item = tsr_dtype_bytes(tsr__wide(w));
    hold(e, s, 8 * tokens);
    hold(e, s, 8);
    hold(e, s, 8 * tokens);
    passing(e, tsr__unique_scratch(tokens));
    drop_last(e, s);
    hold(e, s, 8 * segments);
    hold(e, s, 8 * segments);
    passing(e, tsr__scan_scratch(segments));
    hold(e, s, 8);
    hold(e, s, 8 * partials);
    /* few ids with long runs would not fill the device: another kernel */
    if (blocks < 4 * TSR_MULTIPROCESSORS && partials > 4 * blocks) {
        hold(e, s, 8 * partials);
        if (w->dtype != tsr__wide(w)) /* otherwise straight into the gradient */
            hold(e, s, item * width * rows);
    } else {
        hold(e, s, item * width * partials);
    }
}

/* Which rows of the table this rank has: tensor parallelism cuts it by words. */
static void rows_args(struct tsr_engine *e, const struct tsr_tensor *w)
{
    bool is_cut = e->tp->size > 1 && w->param && w->param->tp;
    uint32_t rank = is_cut ? tsr_comm_index(&e->emit.comms[e->tp->comm], e->config.rank) : 0;
    tsr__push_arg(e, w->dims[0] * rank);
    tsr__push_arg(e, w->dims[0]);
}

static void embedding_backward(struct tsr_engine *e, struct tsr_node *node,
                               struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *ids = tsr__node_saved(e, node, 0), *w = node->w[0];
    bool sorts = ids && ids->numel > TSR_SORTED_TOKENS;
    struct sorting sorting = {.n = 0};
    if (sorts)
        before_gradient(e, &sorting, ids->numel);
    struct tsr_tensor *grad =
        tsr__tensor_like(e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, node->edges[0].node));
    if (sorts)
        after_gradient(e, &sorting, ids->numel, w);
    if (grad && ids) {
        tsr__operand_tensor(e, grad_out[0], TSR_READ);
        tsr__operand_tensor(e, ids, TSR_READ);
        tsr__operand_tensor(e, grad, TSR_WRITE);
        struct tsr_work work = {.op = TSR_OP_EMBEDDING_BWD,
                                .dtype = grad->dtype,
                                .name = "embedding_dense_backward",
                                .bytes_read = tsr__tensor_bytes(grad_out[0]),
                                .bytes_written = tsr__tensor_bytes(grad)};
        rows_args(e, w);
        tsr__emit_op(e, &work);
    }
    while (sorting.n > 0)
        drop_last(e, &sorting);
    tsr_release(e, ids);
    grad_in[0] = grad;
}

struct tsr_tensor *tsr_op_embedding(struct tsr_engine *e, struct tsr_tensor *ids,
                                    struct tsr_param *wp)
{
    struct tsr_tensor *w = ids ? tsr__param_value(e, wp) : NULL;
    if (!w)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Embedding", embedding_backward, &w, 1);
    tsr__node_save(e, node, ids);
    if (node)
        node->w[0] = w;
    uint64_t dims[2] = {ids->numel, w->dims[1]};
    struct tsr_tensor *y =
        tsr__tensor_new(e, (tsr_dtype)w->dtype, 2, dims, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__operand_tensor(e, ids, TSR_READ);
    tsr__operand_tensor(e, w, TSR_READ);
    tsr__operand_tensor(e, y, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_EMBEDDING,
                            .dtype = y->dtype,
                            .name = "embedding",
                            .bytes_read = tsr__tensor_bytes(y) + tsr__tensor_bytes(ids),
                            .bytes_written = tsr__tensor_bytes(y)};
    rows_args(e, w);
    tsr__emit_op(e, &work);
    tsr__node_output(node, y, 0);
    return y;
}
