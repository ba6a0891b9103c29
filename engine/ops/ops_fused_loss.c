/* ops_fused_loss.c: cross-entropy in one kernel, as llm.c and Liger Kernel have it: the gradient of
 * the logits is made together with the loss and takes their place, so that neither logits in f32
 * nor log-probabilities exist. Backward scales it.
 */
#include "engine/ops/ops_fused.h"

static struct tsr_tensor *scalar(struct tsr_engine *e, tsr_dtype dtype)
{
    const uint64_t one = 1;
    return tsr__tensor_new(e, dtype, 1, &one, tsr__result_category(e));
}

void tsr__emit_cross_entropy(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *labels,
                             struct tsr_tensor *count, struct tsr_tensor *loss,
                             struct tsr_tensor *gradient)
{
    if (!x || !labels || !count || !loss || !tsr__ok(e))
        return;
    uint64_t rows = x->dims[0], item = tsr_dtype_bytes(tsr__wide(x));
    struct tsr_tensor *scratch = tsr__workspace(e, item * rows); /* the loss of every row */
    struct tsr_work work = {.op = TSR_OP_LOSS,
                            .dtype = x->dtype,
                            .name = "fused_cross_entropy",
                            .flops = (gradient ? 6.0 : 4.0) * (double)x->numel,
                            .bytes_read = tsr__tensor_bytes(x) + tsr__tensor_bytes(labels) + 4,
                            .bytes_written = item + (gradient ? tsr__tensor_bytes(gradient) : 0),
                            .dims = {rows, rows ? x->numel / rows : 0}};
    tsr__operand_tensor(e, x, TSR_READ);
    tsr__operand_tensor(e, labels, TSR_READ);
    tsr__operand_tensor(e, count, TSR_READ);
    tsr__operand_tensor(e, loss, TSR_WRITE);
    tsr__operand_tensor(e, gradient, TSR_WRITE);
    tsr__operand_storage(e, scratch ? scratch->storage : NULL, TSR_WRITE, TSR_DTYPE_NONE);
    tsr__emit_op(e, &work);
    tsr_release(e, scratch);
}

void tsr__scale_gradient(struct tsr_engine *e, struct tsr_tensor *gradient, struct tsr_tensor *g)
{
    if (gradient && g && !g->is_one)
        tsr__emit_pointwise(e, "mul", (struct tsr_tensor *[]){gradient, g}, 2, gradient);
}

/* saved: the gradient */
static void cross_entropy_backward(struct tsr_engine *e, struct tsr_node *node,
                                   struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    grad_in[0] = tsr__node_saved(e, node, 0);
    tsr__scale_gradient(e, grad_in[0], grad_out[0]);
}

struct tsr_tensor *tsr__op_fused_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels)
{
    if (!logits || !labels)
        return NULL;
    struct tsr_node *node =
        tsr__node_new(e, "FusedCrossEntropy", cross_entropy_backward, &logits, 1);
    struct tsr_tensor *count = scalar(e, TSR_F32), *loss = scalar(e, tsr__wide(logits));
    struct tsr_tensor *gradient =
        node ? tsr__result_over(e, logits, 1, tsr__result_category(e)) : NULL;
    tsr__emit_loss(e, "count_labels", &labels, 1, &count, 1);
    tsr__emit_cross_entropy(e, logits, labels, count, loss, gradient);
    tsr__node_save(e, node, gradient);
    tsr_release(e, gradient);
    tsr_release(e, count);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, loss, 0);
    return loss;
}
