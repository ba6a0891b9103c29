/* ops_flash_loss.c: the cross-entropy of flash-attn (CrossEntropyLoss, reduction "mean"), which
 * llm-foundry calls "fused_crossentropy": forward is one kernel over the logits in their dtype,
 * which makes a loss and a log-sum-exp of every token; backward is one kernel that makes the
 * gradient of the logits, by default in new memory, with inplace_backward in the place of the
 * logits. What is around it has one number a token. Not to be confused with the fused dialect's
 * own (ops_fused_loss.c), which makes the gradient in forward.
 */
#include "engine/ops/ops_fused.h"

static struct tsr_tensor *rows_like(struct tsr_engine *e, const struct tsr_tensor *x,
                                    tsr_dtype dtype, enum tsr_category category)
{
    return x ? tsr__tensor_new(e, dtype, 1, x->dims, category) : NULL;
}

static struct tsr_tensor *scalar(struct tsr_engine *e, enum tsr_category category)
{
    const uint64_t one = 1;
    return tsr__tensor_new(e, TSR_F32, 1, &one, category);
}

/* masked_fill_(labels == ignore_index, 0) on one number a token */
static void mask_ignored(struct tsr_engine *e, struct tsr_tensor *rows, struct tsr_tensor *labels)
{
    struct tsr_tensor *ignored = rows_like(e, rows, TSR_U8, tsr__result_category(e));
    tsr__emit_pointwise(e, "eq", &labels, 1, ignored);
    if (rows)
        tsr__emit_pointwise(e, "masked_fill", (struct tsr_tensor *[]){rows, ignored}, 2, rows);
    tsr_release(e, ignored);
}

struct tsr_tensor *tsr__op_count_labels(struct tsr_engine *e, struct tsr_tensor *labels)
{
    const uint64_t one = 1;
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *counts = rows_like(e, labels, TSR_U8, category);
    tsr__emit_pointwise(e, "ne", &labels, 1, counts);
    struct tsr_tensor *number = tsr__tensor_new(e, TSR_I64, 1, &one, category);
    struct tsr_tensor *wide = tsr__workspace(e, 8 * (labels ? labels->numel : 0));
    tsr__emit_loss(e, "sum", &counts, 1, &number, 1);
    tsr_release(e, wide);
    tsr_release(e, counts);
    return number;
}

/* ---- a loss of every token ------------------------------------------------------------------- */

/* saved: logits, log-sum-exp, labels. The gradient that comes in is one number for all tokens. */
static void rows_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *saved[3];
    for (int i = 0; i < 3; i++)
        saved[i] = tsr__node_saved(e, node, i);
    struct tsr_tensor *x = saved[0], *rows = rows_like(e, x, TSR_F32, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "clone", grad_out, 1, rows);
    mask_ignored(e, rows, saved[2]);
    bool inplace = e->ops->loss_inplace;
    if (x)
        grad_in[0] = inplace
                         ? tsr__tensor_view(e, x->storage, (tsr_dtype)x->dtype, x->n_dims, x->dims)
                         : tsr__tensor_like(e, x, (tsr_dtype)x->dtype, TSR_CAT_TEMP);
    tsr__emit_loss(e, "flash_cross_entropy_backward",
                   (struct tsr_tensor *[]){x, rows, saved[1], saved[2]}, 4, grad_in, 1);
    tsr_release(e, rows);
    for (int i = 0; i < 3; i++)
        tsr_release(e, saved[i]);
}

static struct tsr_tensor *losses_of(struct tsr_engine *e, struct tsr_tensor *logits,
                                    struct tsr_tensor *labels)
{
    struct tsr_node *node = tsr__node_new(e, "FlashCrossEntropy", rows_backward, &logits, 1);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *out[2] = {rows_like(e, logits, TSR_F32, category),
                                 rows_like(e, logits, TSR_F32, category)};
    tsr__emit_loss(e, "flash_cross_entropy", (struct tsr_tensor *[]){logits, labels}, 2, out, 2);
    mask_ignored(e, out[0], labels);
    tsr__node_save(e, node, logits);
    tsr__node_save(e, node, out[1]);
    tsr__node_save(e, node, labels);
    tsr_release(e, out[1]);
    if (!out[0])
        return tsr__op_abort(e, node);
    tsr__node_output(node, out[0], 0);
    return out[0];
}

/* ---- their mean ------------------------------------------------------------------------------ */

/* saved: how many count */
static void mean_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *number = tsr__node_saved(e, node, 0);
    grad_in[0] = scalar(e, TSR_CAT_TEMP);
    if (grad_in[0])
        tsr__emit_pointwise(e, "div", (struct tsr_tensor *[]){grad_out[0], number}, 2, grad_in[0]);
    tsr_release(e, number);
}

static struct tsr_tensor *mean_of(struct tsr_engine *e, struct tsr_tensor *losses,
                                  struct tsr_tensor *labels)
{
    if (!losses)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Mean", mean_backward, &losses, 1);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *sum = scalar(e, category);
    tsr__emit_loss(e, "sum", &losses, 1, &sum, 1);
    struct tsr_tensor *number = tsr__op_count_labels(e, labels), *loss = scalar(e, category);
    if (sum && number && loss)
        tsr__emit_pointwise(e, "div", (struct tsr_tensor *[]){sum, number}, 2, loss);
    tsr__node_save(e, node, number);
    tsr_release(e, number);
    tsr_release(e, sum);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, loss, 0);
    return loss;
}

struct tsr_tensor *tsr__op_flash_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels)
{
    if (!logits || !labels)
        return NULL;
    struct tsr_tensor *losses = losses_of(e, logits, labels);
    struct tsr_tensor *loss = mean_of(e, losses, labels);
    tsr_release(e, losses);
    return loss;
}
