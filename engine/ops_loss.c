/* ops_loss.c: cross-entropy in fp32 (log-softmax and nll, as eager PyTorch composes it) and the
 * mean of squares.
 */
#include "ops_common.h"

void tsr__emit_loss(struct tsr_engine *e, const char *name, struct tsr_tensor *in,
                    struct tsr_tensor *extra, struct tsr_tensor *out)
{
    if (!in || !out || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, in, TSR_READ);
    tsr__operand_tensor(e, extra, TSR_READ);
    tsr__operand_tensor(e, out, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_LOSS,
                            .dtype = in->dtype,
                            .name = name,
                            .flops = 4.0 * (double)in->numel,
                            .bytes_read =
                                tsr__tensor_bytes(in) + (extra ? tsr__tensor_bytes(extra) : 0),
                            .bytes_written = tsr__tensor_bytes(out)};
    tsr__emit_op(e, &work);
}

/* A vocabulary that tensor parallelism cuts: `n` numbers per token are all-reduced. */
static void sum_over_vocabulary(struct tsr_engine *e, const struct tsr_tensor *x, int n)
{
    if (e->tp.size < 2 || !x)
        return;
    for (int i = 0; i < n && tsr__ok(e); i++) {
        struct tsr_tensor *row = tsr__tensor_new(e, TSR_F32, 1, x->dims, TSR_CAT_TEMP);
        tsr__tp_sum(e, row);
        tsr_release(e, row);
    }
}

static void log_softmax_backward(struct tsr_engine *e, struct tsr_node *node,
                                 struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *p = tsr__node_saved(e, node, 0);
    grad_in[0] = tsr__tensor_like(e, p, TSR_F32, TSR_CAT_TEMP);
    tsr__emit_loss(e, "log_softmax_backward", grad_out[0], p, grad_in[0]);
    tsr_release(e, p);
}

static struct tsr_tensor *log_softmax(struct tsr_engine *e, struct tsr_tensor *x)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "LogSoftmax", log_softmax_backward, &x, 1);
    struct tsr_tensor *y = tsr__tensor_like(e, x, TSR_F32, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_loss(e, "log_softmax", x, NULL, y);
    sum_over_vocabulary(e, x, 2); /* the largest logit and the sum of exponentials */
    tsr__node_save_result(e, node, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* saved: labels, total weight. a: shape of the log-probabilities */
static void nll_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_tensor *labels = tsr__node_saved(e, node, 0);
    (void)grad_out;
    grad_in[0] = tsr__tensor_new(e, TSR_F32, 2, node->a, TSR_CAT_TEMP);
    tsr__emit_loss(e, "nll_loss_backward", labels, NULL, grad_in[0]);
    tsr_release(e, labels);
}

static struct tsr_tensor *nll(struct tsr_engine *e, struct tsr_tensor *p, struct tsr_tensor *labels)
{
    if (!p)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "NllLoss", nll_backward, &p, 1);
    tsr__node_save(e, node, labels);
    if (node) {
        node->a[0] = p->dims[0];
        node->a[1] = p->dims[1];
    }
    uint64_t one = 1;
    struct tsr_tensor *loss = tsr__tensor_new(e, TSR_F32, 1, &one, tsr__result_category(e));
    struct tsr_tensor *weight = tsr__tensor_new(e, TSR_F32, 1, &one, tsr__result_category(e));
    tsr__emit_loss(e, "nll_loss", labels, NULL, loss);
    sum_over_vocabulary(e, p, 1); /* the label's log-probability lies on one rank */
    tsr__node_save(e, node, weight);
    tsr_release(e, weight);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, loss, 0);
    return loss;
}

struct tsr_tensor *tsr_op_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                        struct tsr_tensor *labels)
{
    struct tsr_tensor *wide = tsr_op_cast(e, logits, TSR_F32);
    struct tsr_tensor *p = log_softmax(e, wide);
    struct tsr_tensor *loss = nll(e, p, labels);
    tsr_release(e, p);
    tsr_release(e, wide);
    return loss;
}

static void mean_square_backward(struct tsr_engine *e, struct tsr_node *node,
                                 struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *x = tsr__node_saved(e, node, 0);
    grad_in[0] = tsr__tensor_like(e, x, x ? (tsr_dtype)x->dtype : TSR_F32, TSR_CAT_TEMP);
    tsr__emit_loss(e, "mse_backward", x, grad_out[0], grad_in[0]);
    tsr_release(e, x);
}

struct tsr_tensor *tsr_op_mean_square(struct tsr_engine *e, struct tsr_tensor *x)
{
    if (!x)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "MeanSquare", mean_square_backward, &x, 1);
    tsr__node_save(e, node, x);
    uint64_t one = 1;
    struct tsr_tensor *loss = tsr__tensor_new(e, TSR_F32, 1, &one, tsr__result_category(e));
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__emit_loss(e, "mse", x, NULL, loss);
    tsr__node_output(node, loss, 0);
    return loss;
}
