/* ops_fp8.c: linear layers in fp8, with what it takes to get there: scales and casts (FP8.md).
 *
 * Tensorwise (torchao, dynamic scaling): every operand of every product is scaled by its own
 * largest magnitude, found just before: a maximum of every row, the maximum of these, a cast. The
 * tensors that are saved stay in 16 bits; the backward casts them again, the other way round in
 * memory, since fp8 products only take rows of the reduced dimension.
 *
 * Delayed (TransformerEngine 0.10): the scale comes from earlier iterations, so one kernel casts,
 * transposes and finds the largest magnitude. The transposed fp8 copies of input and weight are
 * saved for the backward, in place of the input.
 */
#include "engine/ops/ops_common.h"

#include <string.h>

enum { EDGE_BIAS, EDGE_INPUT, EDGE_WEIGHT };
enum { ROWS, OUT, IN }; /* node->a */

/* ---- what runs in fp8 ------------------------------------------------------------------------ */

static bool is_in_block(const struct tsr_module *m)
{
    for (; m && m->parent; m = m->parent)
        if (m->parent->no_forward)
            return true;
    return false;
}

static bool fits(int n_dims, const uint64_t *dims)
{
    return n_dims == 2 && dims[0] % 16 == 0 && dims[1] % 16 == 0;
}

bool tsr__is_fp8(const struct tsr_engine *e, const struct tsr_tensor *x, const struct tsr_tensor *w)
{
    bool half = x->dtype == TSR_BF16 || x->dtype == TSR_F16;
    bool known = e->origin.module < e->tree.n_modules;
    return e->config.linear != TSR_LINEAR_PLAIN && fits(w->n_dims, w->dims) && half &&
           (x->dtype == w->dtype || w->dtype == TSR_F8) && known &&
           is_in_block(e->tree.modules[e->origin.module]);
}

bool tsr__fp8_gathers(const struct tsr_engine *e, const struct tsr_param *p)
{
    if (!e->config.fp8_gather || !fits(p->n_dims, p->shape))
        return false;
    for (size_t i = 0; i < e->tree.n_modules; i++) {
        const struct tsr_module *m = e->tree.modules[i];
        for (size_t k = 0; k < m->n_params; k++)
            if (m->params[k].param == p)
                return m->type_name && !strcmp(m->type_name, "Linear") && is_in_block(m);
    }
    return false;
}

tsr_status tsr__check_fp8(const struct tsr_engine_config *config)
{
    bool compiled = config->dialect == TSR_DIALECT_COMPILE;
    if (config->linear == TSR_LINEAR_FP8_TENSORWISE && !compiled)
        return tsr_fail(TSR_EUNSUPPORTED, "linear layers in fp8 with tensorwise scaling are "
                                          "modelled in the dialect compile only");
    if (config->fp8_gather && config->linear != TSR_LINEAR_FP8_TENSORWISE)
        return tsr_fail(TSR_EUNSUPPORTED, "a gather in fp8 needs linear layers in fp8 with "
                                          "tensorwise scaling");
    if (config->linear == TSR_LINEAR_FP8_DELAYED && compiled)
        return tsr_fail(TSR_EUNSUPPORTED, "linear layers in fp8 with delayed scaling break the "
                                          "graph of the dialect compile; allowed: eager, fused");
    return TSR_OK;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void emit(struct tsr_engine *e, const char *name, uint8_t op, struct tsr_tensor *const *in,
                 int n_in, struct tsr_tensor *const *out, int n_out)
{
    struct tsr_work work = {.op = op, .name = name};
    if (!tsr__ok(e) || !in[0] || !out[0])
        return;
    for (int i = 0; i < n_in + n_out; i++) {
        struct tsr_tensor *t = i < n_in ? in[i] : out[i - n_in];
        tsr__operand_tensor(e, t, i < n_in ? TSR_READ : TSR_WRITE);
        if (t)
            *(i < n_in ? &work.bytes_read : &work.bytes_written) += tsr__tensor_bytes(t);
    }
    work.dtype = in[0]->dtype;
    work.flops = (double)in[0]->numel;
    work.dims[0] = in[0]->n_dims > 1 ? in[0]->dims[0] : 1;
    work.dims[1] = in[0]->n_dims > 1 ? in[0]->dims[1] : in[0]->numel;
    tsr__emit_op(e, &work);
}

static struct tsr_tensor *largest(struct tsr_engine *e, struct tsr_tensor *x)
{
    const uint64_t one = 1;
    if (!x)
        return NULL;
    struct tsr_tensor *rows = tsr__tensor_new(e, TSR_F32, 1, x->dims, TSR_CAT_TEMP);
    emit(e, "amax_rows", TSR_OP_REDUCTION, &x, 1, &rows, 1);
    struct tsr_tensor *all = tsr__tensor_new(e, TSR_F32, 1, &one, TSR_CAT_TEMP);
    emit(e, "amax", TSR_OP_REDUCTION, &rows, 1, &all, 1);
    tsr_release(e, rows);
    return all;
}

/* x in fp8 by its own scale. transposed: the other order in memory. What came in fp8 has its scale:
 * it is taken as it is, or copied in the other order. */
static struct tsr_tensor *scaled(struct tsr_engine *e, struct tsr_tensor *x, bool transposed)
{
    if (x && x->dtype == TSR_F8 && !transposed)
        return tsr_retain(x);
    if (x && x->dtype == TSR_F8) {
        struct tsr_tensor *turned = tsr__tensor_like(e, x, TSR_F8, TSR_CAT_TEMP);
        emit(e, "fp8_transpose", TSR_OP_POINTWISE, &x, 1, &turned, 1);
        return turned;
    }
    struct tsr_tensor *scale = largest(e, x), *in[2] = {x, scale};
    struct tsr_tensor *out = x ? tsr__tensor_like(e, x, TSR_F8, TSR_CAT_TEMP) : NULL;
    emit(e, transposed ? "fp8_cast_transposed" : "fp8_cast", TSR_OP_POINTWISE, in, 2, &out, 1);
    tsr_release(e, scale);
    return out;
}

/* Both orders by one kernel, with a stored scale; either may be NULL. */
static void cast_transpose(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor **plain,
                           struct tsr_tensor **transposed)
{
    struct tsr_tensor *out[2] = {NULL, NULL};
    int n = 0;
    struct tsr_tensor **to[2] = {plain, transposed};
    for (int i = 0; i < 2 && x; i++)
        if (to[i])
            out[n++] = *to[i] = tsr__tensor_like(e, x, TSR_F8, tsr__result_category(e));
    if (n)
        emit(e, n == 2 ? "fp8_cast_transpose" : "fp8_cast", TSR_OP_POINTWISE, &x, 1, out, n);
}

/* The history of largest magnitudes becomes the next scales: a few numbers. */
static void update_scales(struct tsr_engine *e)
{
    const uint64_t n = 16;
    struct tsr_tensor *scales = tsr__tensor_new(e, TSR_F32, 1, &n, TSR_CAT_TEMP);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = TSR_F32,
                            .name = "fp8_update_scales",
                            .bytes_written = 64,
                            .dims = {1, n}};
    if (!scales)
        return;
    tsr__operand_tensor(e, scales, TSR_WRITE);
    tsr__emit_op(e, &work);
    tsr_release(e, scales);
}

/* out := a b in fp8, a result of 16 bits. */
static void product(struct tsr_engine *e, const char *name, struct tsr_tensor *const in[3],
                    struct tsr_tensor *out, const uint64_t mnk[3])
{
    struct tsr_work work = {.op = TSR_OP_GEMM,
                            .dtype = TSR_F8,
                            .name = name,
                            .dims = {mnk[0], mnk[1], mnk[2], 1},
                            .constants = {1}};
    if (!in[0] || !in[1] || !out || !tsr__ok(e))
        return;
    work.flops = work.model_flops = 2.0 * (double)mnk[0] * (double)mnk[1] * (double)mnk[2];
    work.bytes_read = tsr__tensor_bytes(in[0]) + tsr__tensor_bytes(in[1]);
    work.bytes_written = tsr__tensor_bytes(out);
    for (int i = 0; i < 3; i++)
        tsr__operand_tensor(e, in[i], TSR_READ);
    tsr__operand_tensor(e, out, TSR_WRITE);
    tsr__emit_op(e, &work);
    tsr__take_workspace(e, false);
}

/* ---- backward -------------------------------------------------------------------------------- */

static struct tsr_tensor *input_grad(struct tsr_engine *e, const struct tsr_node *node,
                                     struct tsr_tensor *g8, struct tsr_tensor *w8, tsr_dtype dtype)
{
    const uint64_t dims[2] = {node->a[ROWS], node->a[IN]};
    struct tsr_tensor *grad = tsr__tensor_new(e, dtype, 2, dims, TSR_CAT_TEMP);
    product(e, "fp8_mm_input_grad", (struct tsr_tensor *[]){g8, w8, NULL}, grad,
            (uint64_t[]){node->a[ROWS], node->a[IN], node->a[OUT]});
    return grad;
}

static struct tsr_tensor *weight_grad(struct tsr_engine *e, const struct tsr_node *node,
                                      struct tsr_tensor *g8, struct tsr_tensor *x8, tsr_dtype dtype)
{
    struct tsr_tensor *grad = tsr__tensor_like(
        e, node->w[0], dtype, tsr__grad_category(e, node->edges[EDGE_WEIGHT].node));
    product(e, "fp8_mm_weight_grad", (struct tsr_tensor *[]){g8, x8, NULL}, grad,
            (uint64_t[]){node->a[OUT], node->a[IN], node->a[ROWS]});
    return grad;
}

static void bias_grad(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *g,
                      struct tsr_tensor **grad_in)
{
    if (!node->edges[EDGE_BIAS].node)
        return;
    grad_in[EDGE_BIAS] = tsr__tensor_new(e, (tsr_dtype)g->dtype, 1, &node->a[OUT],
                                         tsr__grad_category(e, node->edges[EDGE_BIAS].node));
    tsr__emit_column_sum(e, "sum_bias_grad", g, grad_in[EDGE_BIAS], node->a[ROWS], node->a[OUT]);
}

/* saved: the input */
static void tensorwise_backward(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0], *x = NULL;
    if (node->edges[EDGE_WEIGHT].node)
        x = tsr__node_saved(e, node, 0);
    if (node->edges[EDGE_INPUT].node) {
        struct tsr_tensor *g8 = scaled(e, g, false), *w8 = scaled(e, node->w[0], true);
        grad_in[EDGE_INPUT] = input_grad(e, node, g8, w8, (tsr_dtype)g->dtype);
        tsr_release(e, g8);
        tsr_release(e, w8);
    }
    if (x) {
        struct tsr_tensor *g8 = scaled(e, g, true), *x8 = scaled(e, x, true);
        grad_in[EDGE_WEIGHT] = weight_grad(e, node, g8, x8, (tsr_dtype)g->dtype);
        tsr_release(e, g8);
        tsr_release(e, x8);
    }
    tsr_release(e, x);
    bias_grad(e, node, g, grad_in);
}

/* saved: input and weight, transposed, fp8 */
static void delayed_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0], *g8 = NULL, *g8t = NULL;
    struct tsr_tensor *x8t = tsr__node_saved(e, node, 0), *w8t = tsr__node_saved(e, node, 1);
    bool input = node->edges[EDGE_INPUT].node, weight = node->edges[EDGE_WEIGHT].node;
    update_scales(e);
    cast_transpose(e, g, input ? &g8 : NULL, weight ? &g8t : NULL);
    if (input)
        grad_in[EDGE_INPUT] = input_grad(e, node, g8, w8t, (tsr_dtype)g->dtype);
    if (weight)
        grad_in[EDGE_WEIGHT] = weight_grad(e, node, g8t, x8t, (tsr_dtype)g->dtype);
    tsr_release(e, g8);
    tsr_release(e, g8t);
    tsr_release(e, x8t);
    tsr_release(e, w8t);
    bias_grad(e, node, g, grad_in);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void tensorwise_inputs(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *x,
                              struct tsr_tensor *w, struct tsr_tensor *out[2])
{
    out[0] = scaled(e, x, false);
    out[1] = scaled(e, w, false);
    if (node && node->edges[EDGE_WEIGHT].node)
        tsr__node_save(e, node, x);
}

static void delayed_inputs(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *x,
                           struct tsr_tensor *w, struct tsr_tensor *out[2])
{
    struct tsr_tensor *x8t = NULL, *w8t = NULL;
    update_scales(e);
    cast_transpose(e, x, &out[0], node ? &x8t : NULL);
    cast_transpose(e, w, &out[1], node ? &w8t : NULL);
    tsr__node_save(e, node, x8t);
    tsr__node_save(e, node, w8t);
    tsr_release(e, x8t);
    tsr_release(e, w8t);
}

struct tsr_tensor *tsr__fp8_linear(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *w,
                                   struct tsr_tensor *b)
{
    bool delayed = e->config.linear == TSR_LINEAR_FP8_DELAYED;
    const uint64_t out = w->dims[0], in = w->dims[1], rows = x->numel / in, dims[2] = {rows, out};
    struct tsr_tensor *fp8[2] = {NULL, NULL}, *y = NULL;
    struct tsr_node *node =
        tsr__node_new(e, "Fp8Linear", delayed ? delayed_backward : tensorwise_backward,
                      (struct tsr_tensor *[]){b, x, w}, 3);
    if (node) {
        node->a[ROWS] = rows;
        node->a[OUT] = out;
        node->a[IN] = in;
        node->w[0] = w;
    }
    bool kept = tsr__selective_keeps(e, true), reuse = kept && tsr__selective_reuses(e);
    (delayed ? delayed_inputs : tensorwise_inputs)(e, node, x, w, fp8);
    y = reuse ? tsr__selective_take(e)
              : tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, tsr__result_category(e));
    if (y && !reuse)
        product(e, b ? "fp8_addmm" : "fp8_mm", (struct tsr_tensor *[]){fp8[0], fp8[1], b}, y,
                (uint64_t[]){rows, out, in});
    if (y && kept && !reuse)
        tsr__selective_put(e, y);
    tsr_release(e, fp8[0]);
    tsr_release(e, fp8[1]);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}
