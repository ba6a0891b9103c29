/* ops_pointwise.c: activations, sums, products, scalings and casts, forward and backward. Order and
 * sizes of allocations are those of eager PyTorch (golden-memory/operators.md, sections 7 and 9).
 */
#include "engine/ops/ops_common.h"

/* The wider of two dtypes, as PyTorch promotes. */
tsr_dtype tsr__promote(uint8_t a, uint8_t b)
{
    if (a == b)
        return (tsr_dtype)a;
    if (a == TSR_F64 || b == TSR_F64)
        return TSR_F64;
    return TSR_F32; /* f32 with a half type, or bf16 with f16 */
}

void tsr__emit_pointwise_with(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                              int n, struct tsr_tensor *out, const struct tsr_pointwise *p)
{
    uint64_t read = 0;
    if (!out || !tsr__ok(e))
        return;
    for (int i = 0; i < n; i++) {
        tsr__operand_tensor(e, in[i], TSR_READ);
        read += in[i] ? tsr__tensor_bytes(in[i]) : 0;
    }
    tsr__operand_tensor(e, out, TSR_WRITE);
    uint64_t columns = out->n_dims > 1 ? out->dims[1] : out->numel;
    if (p->columns)
        columns = p->columns;
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = out->dtype,
                            .name = name,
                            .flops = (double)out->numel,
                            .bytes_read = read,
                            .bytes_written = tsr__tensor_bytes(out),
                            .dims = {p->rows      ? p->rows
                                     : out->numel ? out->numel / columns
                                                  : 0,
                                     columns, p->per_row},
                            .constants = {p->constant},
                            .n_args = p->n_args,
                            .args = p->args};
    tsr__emit_op(e, &work);
}

void tsr__emit_pointwise(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                         int n, struct tsr_tensor *out)
{
    tsr__emit_pointwise_with(e, name, in, n, out, &(struct tsr_pointwise){0});
}

void tsr__node_save_result(struct tsr_engine *e, struct tsr_node *node, const struct tsr_tensor *y)
{
    if (!node || !y)
        return;
    struct tsr_tensor *same =
        tsr__tensor_view(e, y->storage, (tsr_dtype)y->dtype, y->n_dims, y->dims);
    tsr__node_save(e, node, same);
    tsr_release(e, same);
}

struct tsr_tensor *tsr__op_unary(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                 tsr_dtype dtype, tsr_backward_fn backward, enum tsr_saves saves)
{
    return tsr__op_unary_by(e, x, name, dtype, backward, saves, 0);
}

struct tsr_tensor *tsr__op_unary_by(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                    tsr_dtype dtype, tsr_backward_fn backward, enum tsr_saves saves,
                                    double number)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, name, backward, &x, 1);
    if (saves == TSR_SAVES_INPUT)
        tsr__node_save(e, node, x);
    struct tsr_tensor *y = tsr__tensor_like(e, x, dtype, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise_with(e, name, &x, 1, y, &(struct tsr_pointwise){.constant = number});
    if (node)
        node->number = number;
    if (saves == TSR_SAVES_RESULT)
        tsr__node_save_result(e, node, y);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr__op_alias(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                 const uint64_t *dims, tsr_backward_fn backward,
                                 const uint64_t a[TSR_MAX_DIMS])
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, name, backward, &x, 1);
    for (int i = 0; node && i < TSR_MAX_DIMS; i++)
        node->a[i] = a[i];
    struct tsr_tensor *y = tsr__tensor_view(e, x->storage, (tsr_dtype)x->dtype,
                                            dims ? 2 : x->n_dims, dims ? dims : x->dims);
    if (!y)
        return tsr__op_abort(e, node);
    y->offset = x->offset;
    y->width = x->width;
    y->pitch = x->pitch;
    tsr__node_output(node, y, 0);
    return y;
}

void tsr__as_columns(struct tsr_tensor *view, uint64_t offset, uint64_t width, uint64_t pitch)
{
    if (!view)
        return;
    unsigned item = tsr_dtype_bytes((tsr_dtype)view->dtype);
    view->offset += offset * item;
    view->width = (uint32_t)(width * item);
    view->pitch = (uint32_t)(pitch * item);
}

void tsr__backward_pass(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                        struct tsr_tensor **grad_in)
{
    (void)e;
    (void)node;
    grad_in[0] = tsr_retain(grad_out[0]);
}

void tsr__backward_scale(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    grad_in[0] = tsr__tensor_like(e, g, (tsr_dtype)g->dtype, TSR_CAT_TEMP);
    tsr__emit_pointwise_with(e, "mul_scalar", &g, 1, grad_in[0],
                             &(struct tsr_pointwise){.constant = node->number});
    if (grad_in[0])
        grad_in[0]->layout = g->layout;
}

/* One input, saved: input (silu, gelu) or result (relu). */
static void activation_backward(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0);
    struct tsr_tensor *grad =
        tsr__tensor_like(e, x, x ? (tsr_dtype)x->dtype : TSR_F32, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, node->label, (struct tsr_tensor *[]){grad_out[0], x}, 2, grad);
    tsr_release(e, x);
    grad_in[0] = grad;
}

static struct tsr_tensor *activation(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                     const char *backward_name, enum tsr_saves saves)
{
    struct tsr_tensor *y =
        x ? tsr__op_unary(e, x, name, (tsr_dtype)x->dtype, activation_backward, saves) : NULL;
    if (y && y->grad_fn)
        y->grad_fn->label = backward_name;
    return y;
}

struct tsr_tensor *tsr_op_silu(struct tsr_engine *e, struct tsr_tensor *x)
{
    return activation(e, x, "silu", "silu_backward", TSR_SAVES_INPUT);
}

struct tsr_tensor *tsr_op_gelu(struct tsr_engine *e, struct tsr_tensor *x)
{
    return activation(e, x, "gelu", "gelu_backward", TSR_SAVES_INPUT);
}

struct tsr_tensor *tsr_op_gelu_erf(struct tsr_engine *e, struct tsr_tensor *x)
{
    return activation(e, x, "gelu_erf", "gelu_erf_backward", TSR_SAVES_INPUT);
}

struct tsr_tensor *tsr_op_relu(struct tsr_engine *e, struct tsr_tensor *x)
{
    return activation(e, x, "relu", "threshold_backward", TSR_SAVES_RESULT);
}

struct tsr_tensor *tsr__grad_as(struct tsr_engine *e, struct tsr_tensor *g, tsr_dtype dtype)
{
    if (g->dtype == dtype)
        return tsr_retain(g);
    struct tsr_tensor *out = tsr__tensor_like(e, g, dtype, TSR_CAT_TEMP);
    if (!out)
        return NULL;
    tsr__operand_tensor(e, g, TSR_READ);
    tsr__operand_tensor(e, out, TSR_WRITE);
    tsr__emit_copy(e, dtype, tsr__tensor_bytes(g), tsr__tensor_bytes(out), "cast");
    return out;
}

void tsr__cast_grad(struct tsr_engine *e, struct tsr_tensor **g, tsr_dtype dtype)
{
    if (!*g)
        return;
    struct tsr_tensor *cast = tsr__grad_as(e, *g, dtype);
    tsr_release(e, *g);
    *g = cast;
}

void tsr__node_save_factors(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *a,
                            struct tsr_tensor *b)
{
    if (node && node->edges[1].node)
        tsr__node_save(e, node, a);
    if (node && node->edges[0].node)
        tsr__node_save(e, node, b);
}

struct tsr_tensor *tsr__node_factor(struct tsr_engine *e, struct tsr_node *node, int i)
{
    if (!node->edges[1 - i].node)
        return NULL;
    return tsr__node_saved(e, node, i == 1 && node->edges[1].node ? 1 : 0);
}

/* Second operand first (operators.md, section 3). Products of two dtypes are as wide as the result;
 * autograd casts them once all are made. a: dtypes of the operands */
static void mul_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_tensor *a = tsr__node_factor(e, node, 0), *b = tsr__node_factor(e, node, 1);
    for (int i = 1; i >= 0; i--) {
        struct tsr_tensor *other = i == 1 ? a : b, *own = i == 1 ? b : a;
        if (!node->edges[i].node || !other)
            continue;
        grad_in[i] = tsr__tensor_like(e, own ? own : grad_out[0], (tsr_dtype)grad_out[0]->dtype,
                                      TSR_CAT_TEMP);
        tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){grad_out[0], other}, 2, grad_in[i]);
    }
    for (int i = 0; i < 2; i++)
        tsr__cast_grad(e, &grad_in[i], (tsr_dtype)node->a[i]);
    tsr_release(e, a);
    tsr_release(e, b);
}

/* The result of two operands: shaped as the first, in the wider dtype. Takes over the node. */
static struct tsr_tensor *promoted(struct tsr_engine *e, struct tsr_node *node, const char *name,
                                   struct tsr_tensor *const in[2])
{
    struct tsr_tensor *y = tsr__tensor_like(e, in[0], tsr__promote(in[0]->dtype, in[1]->dtype),
                                            tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, name, in, 2, y);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr_op_mul(struct tsr_engine *e, struct tsr_tensor *a, struct tsr_tensor *b)
{
    if (!a || !b)
        return NULL;
    struct tsr_tensor *in[2] = {a, b};
    struct tsr_node *node = tsr__node_new(e, "Mul", mul_backward, in, 2);
    tsr__node_save_factors(e, node, a, b);
    for (int i = 0; node && i < 2; i++)
        node->a[i] = in[i]->dtype;
    return promoted(e, node, "mul", in);
}

/* Passes the same tensor to both inputs; saves nothing. */
static void add_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    for (int i = 0; i < 2; i++)
        if (node->edges[i].node)
            grad_in[i] = tsr__grad_as(e, grad_out[0], (tsr_dtype)node->a[i]);
}

struct tsr_tensor *tsr_op_add(struct tsr_engine *e, struct tsr_tensor *a, struct tsr_tensor *b)
{
    if (!a || !b)
        return NULL;
    struct tsr_tensor *in[2] = {a, b};
    struct tsr_node *node = tsr__node_new(e, "Add", add_backward, in, 2);
    if (node) {
        node->a[0] = a->dtype;
        node->a[1] = b->dtype;
    }
    return promoted(e, node, "add", in);
}

/* b's gradient is the sum over the batch, also for a batch of one. */
static void add_rows_backward(struct tsr_engine *e, struct tsr_node *node,
                              struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    if (node->edges[0].node)
        grad_in[0] = tsr__grad_as(e, grad_out[0], (tsr_dtype)node->a[2]);
    if (!node->edges[1].node)
        return;
    struct tsr_tensor *sum =
        tsr__tensor_new(e, (tsr_dtype)grad_out[0]->dtype, 2, node->a, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "sum_rows", grad_out, 1, sum);
    grad_in[1] = sum ? tsr__grad_as(e, sum, (tsr_dtype)node->a[3]) : NULL;
    tsr_release(e, sum);
}

struct tsr_tensor *tsr_op_add_rows(struct tsr_engine *e, struct tsr_tensor *a, struct tsr_tensor *b)
{
    if (!a || !b)
        return NULL;
    struct tsr_tensor *in[2] = {a, b};
    struct tsr_node *node = tsr__node_new(e, "AddRows", add_rows_backward, in, 2);
    if (node) {
        node->a[0] = b->dims[0];
        node->a[1] = b->dims[1];
        node->a[2] = a->dtype;
        node->a[3] = b->dtype;
    }
    return promoted(e, node, "add", in);
}

struct tsr_tensor *tsr_op_arange(struct tsr_engine *e, uint64_t n)
{
    struct tsr_tensor *y = tsr__tensor_new(e, TSR_I64, 1, &n, tsr__result_category(e));
    tsr__emit_pointwise(e, "arange", NULL, 0, y);
    return y;
}

/* a[0]: dtype of the input */
static void cast_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    grad_in[0] = tsr__tensor_like(e, g, (tsr_dtype)node->a[0], TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "cast", &g, 1, grad_in[0]);
    if (grad_in[0])
        grad_in[0]->layout = g->layout;
}

struct tsr_tensor *tsr_op_cast(struct tsr_engine *e, struct tsr_tensor *x, tsr_dtype dtype)
{
    if (!x || x->dtype == dtype)
        return tsr_retain(x);
    struct tsr_tensor *y = tsr__op_unary(e, x, "cast", dtype, cast_backward, TSR_SAVES_NOTHING);
    if (y && y->grad_fn)
        y->grad_fn->a[0] = x->dtype;
    return y;
}

/* saved: input, mean of the weight (the weight itself is not needed) */
static void scale_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_factor(e, node, 0), *w = node->w[0];
    struct tsr_tensor *mean = tsr__node_factor(e, node, 1);
    if (x) {
        grad_in[1] =
            tsr__tensor_like(e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, node->edges[1].node));
        tsr__emit_pointwise(e, "scale_weight_grad", (struct tsr_tensor *[]){grad_out[0], x}, 2,
                            grad_in[1]);
    }
    if (mean) { /* the result, so its gradient, has the shape and the dtype of the input */
        grad_in[0] = tsr__tensor_like(e, grad_out[0], (tsr_dtype)grad_out[0]->dtype, TSR_CAT_TEMP);
        tsr__emit_pointwise(e, "scale_input_grad", (struct tsr_tensor *[]){grad_out[0], mean}, 2,
                            grad_in[0]);
    }
    tsr_release(e, mean);
    tsr_release(e, x);
}

struct tsr_tensor *tsr_op_scale_by_mean(struct tsr_engine *e, struct tsr_tensor *x,
                                        struct tsr_param *wp)
{
    struct tsr_tensor *w = x ? tsr__param_value(e, wp) : NULL;
    const uint64_t one = 1;
    if (!w)
        return NULL;
    struct tsr_node *node =
        tsr__node_new(e, "Scale", scale_backward, (struct tsr_tensor *[]){x, w}, 2);
    struct tsr_tensor *mean =
        tsr__tensor_new(e, (tsr_dtype)w->dtype, 1, &one, tsr__result_category(e));
    tsr__emit_pointwise(e, "mean_all", &w, 1, mean);
    tsr__node_save_factors(e, node, x, mean);
    if (node)
        node->w[0] = w;
    /* the mean has no dimensions, so its dtype does not widen the result */
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, tsr__result_category(e));
    tsr__emit_pointwise(e, "scale", (struct tsr_tensor *[]){x, mean}, 2, y);
    tsr_release(e, mean);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}
