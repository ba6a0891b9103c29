/* ops_fused_norm.c: a residual sum and the norm of it in one kernel, and their gradients in one.
 *
 * A block begins with a norm of its input, which is a sum as well, but one that the block before
 * has made: the norm's weight belongs to another group, whose gather that block does not wait for.
 * So its forward is the norm alone. Its backward is the fused one: the input is passed through as
 * the node's second result, and the gradient of it comes in beside the norm's.
 */
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
                            .constants = {e->model->norm_eps}};
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
