/* ops_hand_norm.c: RMSNorm written with elementary operations, as many models have it:
 *
 *     y = float(x); y = y * rsqrt(mean(y^2) + eps); result = cast_back(y) * weight
 *
 * Each is an operation of its own that allocates, saves and frees (operators.md, sections 7, 9 and
 * 16). transformers keeps the mean to the end and writes weight * y.
 */
#include "engine/ops/ops_common.h"

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

/* a: rows, columns, 1 if the weight is the first operand. The weight's gradient is a sum over the
 * rows of a full product; it is made after the operands are let go. */
static void weigh_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0), *w = node->w[0], *g = grad_out[0];
    struct tsr_tensor *full = NULL;
    bool weight_first = node->a[2], trains = node->edges[1].node != NULL;
    for (int i = 0; i < 2; i++) {
        if ((i == 0) == weight_first) {
            grad_in[0] = node->edges[0].node ? temp_like(e, x) : NULL;
            tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){g, w}, 2, grad_in[0]);
        } else if (trains) {
            full = temp_like(e, g);
            tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){g, x}, 2, full);
        }
    }
    tsr_release(e, x);
    if (trains && full) {
        grad_in[1] =
            tsr__tensor_like(e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, node->edges[1].node));
        tsr__emit_column_sum(e, "sum_weight_grad", full, grad_in[1], node->a[0], node->a[1]);
    }
    tsr_release(e, full);
}

static struct tsr_tensor *weigh(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *w,
                                bool weight_first)
{
    if (!x || !w)
        return NULL;
    struct tsr_tensor *in[2] = {x, w};
    struct tsr_node *node = tsr__node_new(e, "Mul", weigh_backward, in, 2);
    tsr__node_save(e, node, x);
    tsr__node_save_weight(e, node, w);
    if (node) {
        node->a[0] = x->dims[0];
        node->a[1] = w->numel;
        node->a[2] = weight_first;
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
