/* ops_norm.c: norms other than eager PyTorch's own (ops_basic.c): fused with a residual sum, and
 * RMSNorm by hand (the last section).
 *
 * Fused: a residual sum and the norm of it in one kernel, and their gradients in one.
 *
 * A block begins with a norm of its input, which is a sum as well, but one that the block before
 * has made: the norm's weight belongs to another group, whose gather that block does not wait for.
 * So its forward is the norm alone. Its backward is the fused one: the input is passed through as
 * the node's second result, and the gradient of it comes in beside the norm's.
 */
#include "engine/ops/ops_common.h"
#include "engine/ops/ops_fused.h"

enum { EDGE_A, EDGE_B, EDGE_WEIGHT, EDGE_BIAS };

/* Of the columns of gradients: a row for every multiprocessor. */
static uint64_t partial_sums(const struct tsr_node *node)
{
    unsigned n = (node->edges[EDGE_WEIGHT].node != NULL) + (node->edges[EDGE_BIAS].node != NULL);
    return 4 * n * TSR_MULTIPROCESSORS * node->a[1];
}

static struct tsr_tensor *param_grad(struct tsr_engine *e, const struct tsr_node *node, int edge,
                                     const struct tsr_tensor *w)
{
    const struct tsr_node *to = node->edges[edge].node;
    return to ? tsr__tensor_like(e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, to)) : NULL;
}

/* in: gradients of the norm and of the sum, the sum, weight. out: of the sum, weight, bias. */
static void emit_backward(struct tsr_engine *e, const struct tsr_node *node,
                          struct tsr_tensor *const in[4], struct tsr_tensor *const out[3],
                          struct tsr_tensor *const stat[2])
{
    bool centered = node->w[1] != NULL;
    struct tsr_work work = {.op = TSR_OP_NORM_BWD,
                            .name = centered ? "fused_add_layer_norm_backward"
                                             : "fused_add_rms_norm_backward",
                            .dims = {node->a[0], node->a[1]},
                            .constants = {node->number}};
    if (!in[2] || !tsr__ok(e))
        return;
    struct tsr_tensor *scratch = tsr__workspace(e, partial_sums(node));
    struct tsr_tensor *all[9] = {in[0],  in[1],  in[2],   in[3],  out[0],
                                 out[1], out[2], stat[0], stat[1]};
    for (int i = 0; i < 9; i++) {
        bool written = i >= 4 && i < 7;
        tsr__operand_tensor(e, all[i], written ? TSR_WRITE : TSR_READ);
        if (all[i])
            *(written ? &work.bytes_written : &work.bytes_read) += tsr__tensor_bytes(all[i]);
    }
    tsr__operand_storage(e, scratch ? scratch->storage : NULL, TSR_WRITE, TSR_DTYPE_NONE);
    work.dtype = in[2]->dtype;
    work.flops = 9.0 * (double)in[2]->numel;
    tsr__emit_op(e, &work);
    tsr_release(e, scratch);
}

/* saved: the sum, mean (layer norm), 1 / root. a: rows, columns */
static void add_norm_backward(struct tsr_engine *e, struct tsr_node *node,
                              struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *h = tsr__node_saved(e, node, 0), *w = node->w[0], *b = node->w[1];
    struct tsr_tensor *mean = b ? tsr__node_saved(e, node, 1) : NULL;
    struct tsr_tensor *rstd = tsr__node_saved(e, node, b ? 2 : 1), *out[3] = {NULL};
    if (!grad_out[0]) { /* nobody used the norm */
        for (int i = 0; i < 2; i++)
            grad_in[i] = node->edges[i].node ? tsr_retain(grad_out[1]) : NULL;
    } else if (h) {
        if (node->edges[EDGE_A].node || node->edges[EDGE_B].node)
            out[0] = grad_out[1] ? tsr__result_over(e, grad_out[1], 1, TSR_CAT_TEMP)
                                 : tsr__tensor_like(e, h, (tsr_dtype)h->dtype, TSR_CAT_TEMP);
        out[1] = param_grad(e, node, EDGE_WEIGHT, w);
        out[2] = b ? param_grad(e, node, EDGE_BIAS, b) : NULL;
        emit_backward(e, node, (struct tsr_tensor *[]){grad_out[0], grad_out[1], h, w}, out,
                      (struct tsr_tensor *[]){mean, rstd});
        for (int i = 0; i < 2; i++)
            grad_in[i] = node->edges[i].node ? tsr_retain(out[0]) : NULL;
        tsr_release(e, out[0]);
        grad_in[EDGE_WEIGHT] = out[1];
        grad_in[EDGE_BIAS] = out[2];
    }
    tsr_release(e, h);
    tsr_release(e, mean);
    tsr_release(e, rstd);
}

/* in: a, b (or NULL), weight, bias (or NULL). out: sum, result, mean (or NULL), 1 / root. */
static void emit_forward(struct tsr_engine *e, const struct tsr_node *shape,
                         struct tsr_tensor *const in[4], struct tsr_tensor *const out[4])
{
    bool adds = in[1] != NULL, centered = in[3] != NULL;
    struct tsr_work work = {.op = TSR_OP_NORM,
                            .dtype = out[0]->dtype,
                            .flops = (adds ? 5.0 : 4.0) * (double)out[0]->numel,
                            .dims = {shape->a[0], shape->a[1]},
                            .constants = {e->model->norm_eps}};
    if (adds)
        work.name = centered ? "fused_add_layer_norm" : "fused_add_rms_norm";
    else
        work.name = centered ? "layer_norm" : "rms_norm";
    for (int i = 0; i < 8; i++) {
        struct tsr_tensor *t = i < 4 ? in[i] : out[i - 4];
        if (!adds && (i == 1 || i == 4 || (i == 6 && !centered)))
            continue; /* slots that the norm alone does not have */
        tsr__operand_tensor(e, t, i < 4 ? TSR_READ : TSR_WRITE);
        if (t)
            *(i < 4 ? &work.bytes_read : &work.bytes_written) += tsr__tensor_bytes(t);
    }
    tsr__emit_op(e, &work);
}

/* The node of a sum that is not added here passes the sum through. */
static struct tsr_tensor *sum_of(struct tsr_engine *e, struct tsr_tensor *a, struct tsr_tensor *b)
{
    if (b)
        return tsr__result_over(e, b, 1, tsr__result_category(e));
    struct tsr_tensor *same =
        tsr__tensor_view(e, a->storage, (tsr_dtype)a->dtype, a->n_dims, a->dims);
    if (same)
        same->offset = a->offset;
    return same;
}

/* Keeps the sum by a handle of its own: the result's would keep the node that keeps it. */
static void save_sum(struct tsr_engine *e, struct tsr_node *node, const struct tsr_tensor *sum)
{
    struct tsr_tensor *same =
        tsr__tensor_view(e, sum->storage, (tsr_dtype)sum->dtype, sum->n_dims, sum->dims);
    if (same)
        same->offset = sum->offset;
    tsr__node_save(e, node, same);
    tsr_release(e, same);
}

struct tsr_tensor *tsr__op_add_norm(struct tsr_engine *e, struct tsr_tensor *a,
                                    struct tsr_param *wp, struct tsr_param *bp)
{
    struct tsr_tensor *b = e->ops->add_norm.addend, *w = a ? tsr__param_value(e, wp) : NULL;
    struct tsr_tensor *bias = w && bp ? tsr__param_value(e, bp) : NULL, *out[4] = {NULL};
    if (!w || (bp && !bias))
        return NULL;
    tsr_dtype dtype = tsr__norm_dtype(e, a, w, bias, wp);
    struct tsr_tensor *in[4] = {a, b, w, bias};
    struct tsr_node *node = tsr__node_new(e, "AddNorm", add_norm_backward, in, 4);
    struct tsr_node shape = {.a = {w->numel ? a->numel / w->numel : 0, w->numel}};
    if (node) {
        node->w[0] = w;
        node->w[1] = bias;
        node->a[0] = shape.a[0];
        node->a[1] = shape.a[1];
        node->number = e->model->norm_eps;
    }
    out[0] = sum_of(e, a, b);
    out[1] = tsr__tensor_like(e, a, dtype, tsr__result_category(e));
    for (int i = bias ? 2 : 3; i < 4; i++)
        out[i] = tsr__tensor_new(e, tsr__wide(a), 1, shape.a, tsr__result_category(e));
    bool complete = out[0] && out[1] && out[3] && (out[2] || !bias);
    if (complete) {
        emit_forward(e, &shape, in, out);
        save_sum(e, node, out[0]);
        tsr__node_save(e, node, out[2]);
        tsr__node_save(e, node, out[3]);
    }
    tsr_release(e, out[2]);
    tsr_release(e, out[3]);
    if (!complete) {
        tsr_release(e, out[0]);
        tsr_release(e, out[1]);
        return tsr__op_abort(e, node);
    }
    tsr__node_output(node, out[1], 0);
    if (!node || node->edges[EDGE_A].node || node->edges[EDGE_B].node)
        tsr__node_output(node, out[0], 1);
    e->ops->add_norm.sum = out[0];
    return out[1];
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Nothing that would see only one of the two arguments or results stands around the call. */
static bool is_plain_call(const struct tsr_module *m)
{
    return !m->hooks && !m->checkpoint.inside && !m->checkpoint.outside;
}

/* norm(a + b) by a call of the module `norm`. *sum: a new reference to a + b, which may be in the
 * place of b. b NULL: norm(a), *sum is a, as a result of the same node, so that its backward adds
 * the gradients of both. Composed of eager operations where something hooks the module's call, the
 * norm is one of elementary operations, or dtypes differ. */
static struct tsr_tensor *call_add_norm(struct tsr_engine *e, struct tsr_module *norm,
                                        struct tsr_tensor *a, struct tsr_tensor *b,
                                        struct tsr_tensor **sum)
{
    *sum = NULL;
    if (!a || !tsr__ok(e))
        return NULL;
    bool by_hand = e->model->llama && e->model->llama->hand_norm;
    if (!tsr__is_fused(e) || by_hand || !is_plain_call(norm) || (b && b->dtype != a->dtype)) {
        *sum = b ? tsr_op_add(e, a, b) : tsr_retain(a);
        return tsr_call(e, norm, *sum);
    }
    e->ops->add_norm.on = true;
    e->ops->add_norm.addend = b;
    struct tsr_tensor *y = tsr_call(e, norm, a);
    *sum = e->ops->add_norm.sum;
    e->ops->add_norm.on = false;
    e->ops->add_norm.addend = e->ops->add_norm.sum = NULL;
    return y;
}

struct tsr_tensor *tsr__fused_block(struct tsr_engine *e, struct tsr_tensor *x,
                                    struct tsr_module *const part[4])
{
    struct tsr_tensor *h = tsr_retain(x), *y = NULL;
    for (int i = 0; i < 4; i += 2) {
        struct tsr_tensor *sum = NULL, *normed = call_add_norm(e, part[i], h, y, &sum);
        tsr_release(e, y);
        tsr_release(e, h);
        h = sum;
        y = tsr_call(e, part[i + 1], normed);
        tsr_release(e, normed);
    }
    struct tsr_tensor *out = tsr__op_add_over(e, h, y);
    tsr_release(e, y);
    tsr_release(e, h);
    return out;
}

/* ---- RMSNorm by hand ------------------------------------------------------------------------- */

/* RMSNorm written with elementary operations, as many models have it:
 *
 *     y = float(x); y = y * rsqrt(mean(y^2) + eps); result = cast_back(y) * weight
 *
 * and nn.RMSNorm where input and weight have two dtypes (rms_norm_composite of ATen): there the
 * result is cast back last.
 *
 * Each is an operation of its own that allocates, saves and frees (operators.md, sections 7, 9 and
 * 16). transformers keeps the mean to the end and writes weight * y. */

static struct tsr_tensor *rows_of(struct tsr_engine *e, const struct tsr_tensor *x)
{
    return x ? tsr__tensor_new(e, tsr__wide(x), 1, x->dims, tsr__result_category(e)) : NULL;
}

static struct tsr_tensor *temp_like(struct tsr_engine *e, const struct tsr_tensor *x)
{
    return x ? tsr__tensor_like(e, x, (tsr_dtype)x->dtype, TSR_CAT_TEMP) : NULL;
}

static void by_number(struct tsr_engine *e, const char *name, struct tsr_tensor *x,
                      struct tsr_tensor *y, double number)
{
    tsr__emit_pointwise_with(e, name, &x, 1, y, &(struct tsr_pointwise){.constant = number});
}

/* The second input has one element a row. */
static void by_row(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *row,
                   struct tsr_tensor *y)
{
    tsr__emit_pointwise_with(e, "mul", (struct tsr_tensor *[]){x, row}, 2, y,
                             &(struct tsr_pointwise){.per_row = 2});
}

/* ---- square ---------------------------------------------------------------------------------- */

/* gradient * (2 * x^1) */
static void square_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0);
    struct tsr_tensor *power = temp_like(e, x);
    by_number(e, "pow", x, power, 1);
    struct tsr_tensor *twice = temp_like(e, x);
    by_number(e, "mul_scalar", power, twice, 2);
    grad_in[0] = temp_like(e, x);
    tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){grad_out[0], twice}, 2, grad_in[0]);
    tsr_release(e, power);
    tsr_release(e, twice);
    tsr_release(e, x);
}

static struct tsr_tensor *square(struct tsr_engine *e, struct tsr_tensor *x)
{
    return tsr__op_unary_by(e, x, "pow", tsr__wide(x), square_backward, TSR_SAVES_INPUT, 2);
}

/* ---- statistics of rows ---------------------------------------------------------------------- */

/* a: shape of the input */
static void mean_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    grad_in[0] = tsr__tensor_new(e, tsr__wide(grad_out[0]), 2, node->a, TSR_CAT_TEMP);
    tsr__emit_pointwise_with(e, "div", grad_out, 1, grad_in[0],
                             &(struct tsr_pointwise){.constant = (double)node->a[1], .per_row = 1});
}

/* -0.5 * gradient * result^3 */
static void rsqrt_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *r = tsr__node_saved(e, node, 0);
    struct tsr_tensor *scaled = temp_like(e, r);
    by_number(e, "mul_scalar", grad_out[0], scaled, -0.5);
    struct tsr_tensor *cube = temp_like(e, r);
    by_number(e, "pow", r, cube, 3);
    grad_in[0] = temp_like(e, r);
    tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){scaled, cube}, 2, grad_in[0]);
    tsr_release(e, scaled);
    tsr_release(e, cube);
    tsr_release(e, r);
}

static struct tsr_tensor *row_op(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                 tsr_backward_fn backward, double number)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, name, backward, &x, 1);
    if (node) {
        node->a[0] = x->dims[0];
        node->a[1] = x->n_dims > 1 ? x->dims[1] : 1;
    }
    struct tsr_tensor *y = rows_of(e, x);
    if (!y)
        return tsr__op_abort(e, node);
    const struct tsr_pointwise p = {
        .constant = number, .rows = x->dims[0], .columns = x->n_dims > 1 ? x->dims[1] : 1};
    tsr__emit_pointwise_with(e, name, &x, 1, y, &p);
    if (backward == rsqrt_backward)
        tsr__node_save_result(e, node, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Gradient of the second operand first: a full product, summed over the row at the end. */
static void scale_rows_backward(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *y = tsr__node_saved(e, node, 0), *r = tsr__node_saved(e, node, 1);
    struct tsr_tensor *full = temp_like(e, y);
    tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){grad_out[0], y}, 2, full);
    grad_in[0] = temp_like(e, y);
    by_row(e, grad_out[0], r, grad_in[0]);
    grad_in[1] = temp_like(e, r);
    if (full)
        tsr__emit_pointwise_with(
            e, "sum", &full, 1, grad_in[1],
            &(struct tsr_pointwise){.rows = full->dims[0], .columns = full->dims[1]});
    tsr_release(e, full);
    tsr_release(e, y);
    tsr_release(e, r);
}

static struct tsr_tensor *scale_rows(struct tsr_engine *e, struct tsr_tensor *y,
                                     struct tsr_tensor *r)
{
    if (!y || !r)
        return NULL;
    struct tsr_tensor *in[2] = {y, r};
    struct tsr_node *node = tsr__node_new(e, "Mul", scale_rows_backward, in, 2);
    tsr__node_save(e, node, y);
    tsr__node_save(e, node, r);
    struct tsr_tensor *out = tsr__tensor_like(e, y, (tsr_dtype)y->dtype, tsr__result_category(e));
    if (!out)
        return tsr__op_abort(e, node);
    by_row(e, y, r, out);
    tsr__node_output(node, out, 0);
    return out;
}

/* The sum of the rows of `full` in its dtype, cast to the weight's. */
static struct tsr_tensor *weight_grad(struct tsr_engine *e, const struct tsr_node *node,
                                      struct tsr_tensor *full)
{
    struct tsr_tensor *w = node->w[0], *sum = NULL;
    enum tsr_category category = tsr__grad_category(e, node->edges[1].node);
    bool casts = full->dtype != w->dtype;
    sum = tsr__tensor_like(e, w, (tsr_dtype)full->dtype, casts ? TSR_CAT_TEMP : category);
    tsr__emit_column_sum(e, "sum_weight_grad", full, sum, node->a[0], node->a[1]);
    if (!casts)
        return sum;
    struct tsr_tensor *grad = tsr__tensor_like(e, w, (tsr_dtype)w->dtype, category);
    tsr__emit_pointwise(e, "cast", &sum, 1, grad);
    tsr_release(e, sum);
    return grad;
}

/* a: rows, columns, 1 if the weight is the first operand, dtype of the input. The weight's gradient
 * is a sum over the rows of a full product; it is made after the operands are let go. */
static void weigh_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_factor(e, node, 0), *w = node->w[0], *g = grad_out[0];
    struct tsr_tensor *full = NULL;
    bool weight_first = node->a[2], trains = node->edges[1].node != NULL;
    for (int i = 0; i < 2; i++) {
        if ((i == 0) == weight_first) {
            grad_in[0] = node->edges[0].node ? temp_like(e, g) : NULL;
            tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){g, w}, 2, grad_in[0]);
        } else if (trains) {
            full = temp_like(e, g);
            tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){g, x}, 2, full);
        }
    }
    tsr_release(e, x);
    if (!weight_first)
        tsr__cast_grad(e, &grad_in[0], (tsr_dtype)node->a[3]);
    if (trains && full)
        grad_in[1] = weight_grad(e, node, full);
    tsr_release(e, full);
    if (weight_first)
        tsr__cast_grad(e, &grad_in[0], (tsr_dtype)node->a[3]);
}

static struct tsr_tensor *weigh(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *w,
                                bool weight_first)
{
    if (!x || !w)
        return NULL;
    struct tsr_tensor *in[2] = {x, w};
    struct tsr_node *node = tsr__node_new(e, "Mul", weigh_backward, in, 2);
    if (node) {
        if (node->edges[1].node)
            tsr__node_save(e, node, x);
        if (node->edges[0].node)
            tsr__node_save_weight(e, node, w);
        node->w[0] = w;
        node->a[0] = x->dims[0];
        node->a[1] = w->numel;
        node->a[2] = weight_first;
        node->a[3] = x->dtype;
    }
    struct tsr_tensor *y =
        tsr__tensor_like(e, x, tsr__promote(x->dtype, w->dtype), tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "mul", in, 2, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* ---- the norm -------------------------------------------------------------------------------- */

/* Adds epsilon in place. */
static struct tsr_tensor *shift(struct tsr_engine *e, struct tsr_tensor *mean)
{
    if (!mean)
        return NULL;
    struct tsr_tensor *y =
        tsr__op_alias(e, mean, "Add", NULL, tsr__backward_pass, (uint64_t[TSR_MAX_DIMS]){0});
    by_number(e, "add_scalar", mean, y, e->model->norm_eps);
    return y;
}

struct tsr_tensor *tsr__op_composite_rms_norm(struct tsr_engine *e, struct tsr_tensor *x,
                                              struct tsr_tensor *w)
{
    struct tsr_tensor *y = tsr_op_cast(e, x, tsr__wide(x));
    struct tsr_tensor *squares = square(e, y);
    struct tsr_tensor *mean = row_op(e, squares, "mean", mean_backward, 0);
    struct tsr_tensor *shifted = shift(e, mean);
    struct tsr_tensor *r = row_op(e, shifted, "rsqrt", rsqrt_backward, 0);
    tsr_release(e, shifted);
    tsr_release(e, mean);
    tsr_release(e, squares);
    struct tsr_tensor *normed = scale_rows(e, y, r);
    struct tsr_tensor *weighed = weigh(e, normed, w, false);
    tsr_release(e, normed);
    struct tsr_tensor *out = weighed ? tsr_op_cast(e, weighed, (tsr_dtype)x->dtype) : NULL;
    tsr_release(e, weighed);
    tsr_release(e, r);
    tsr_release(e, y);
    return out;
}

struct tsr_tensor *tsr_op_hand_rms_norm(struct tsr_engine *e, struct tsr_tensor *x,
                                        struct tsr_param *wp, bool transformers)
{
    struct tsr_tensor *w = x ? tsr__param_value(e, wp) : NULL;
    if (!w)
        return NULL;
    struct tsr_tensor *y = tsr_op_cast(e, x, tsr__wide(x));
    struct tsr_tensor *squares = square(e, y);
    struct tsr_tensor *mean = row_op(e, squares, "mean", mean_backward, 0);
    tsr_release(e, squares);
    struct tsr_tensor *shifted =
        row_op(e, mean, "add_scalar", tsr__backward_pass, e->model->norm_eps);
    if (!transformers) { /* `variance` is a variable there */
        tsr_release(e, mean);
        mean = NULL;
    }
    struct tsr_tensor *r = row_op(e, shifted, "rsqrt", rsqrt_backward, 0);
    tsr_release(e, shifted);
    struct tsr_tensor *normed = scale_rows(e, y, r);
    tsr_release(e, r);
    tsr_release(e, y);
    struct tsr_tensor *back = tsr_op_cast(e, normed, (tsr_dtype)x->dtype);
    struct tsr_tensor *out = weigh(e, back, w, transformers);
    tsr_release(e, back);
    tsr_release(e, normed);
    tsr_release(e, mean);
    return out;
}
