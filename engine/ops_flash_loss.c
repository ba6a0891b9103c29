/* ops_flash_loss.c: the cross-entropy of flash-attn (CrossEntropyLoss, reduction "mean"), which
 * llm-foundry calls "fused_crossentropy": forward is one kernel over the logits in their dtype,
 * which makes a loss and a log-sum-exp of every token; backward is one kernel that makes the
 * gradient of the logits, by default in new memory, with inplace_backward in the place of the
 * logits. What is around it has one number a token. Not to be confused with the fused dialect's
 * own (ops_fused_loss.c), which makes the gradient in forward.
 */
#include "ops_fused.h"

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
    struct tsr_tensor *ignored = rows_like(e, rows, TSR_U8, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "eq", &labels, 1, ignored);
    tsr__emit_pointwise(e, "masked_fill", (struct tsr_tensor *[]){rows, ignored}, 2, rows);
    tsr_release(e, ignored);
}

/* saved: logits, log-sum-exp, labels, their number */
static void flash_loss_backward(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *saved[4];
    for (int i = 0; i < 4; i++)
        saved[i] = tsr__node_saved(e, node, i);
    struct tsr_tensor *x = saved[0], *share = scalar(e, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "div", (struct tsr_tensor *[]){grad_out[0], saved[3]}, 2, share);
    struct tsr_tensor *rows = rows_like(e, x, TSR_F32, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "clone", &share, 1, rows); /* expanded, then contiguous */
    tsr_release(e, share);
    if (rows)
        mask_ignored(e, rows, saved[2]);
    bool inplace = e->step.loss_kernel == TSR_LOSS_FLASH_INPLACE;
    if (x)
        grad_in[0] = inplace
                         ? tsr__tensor_view(e, x->storage, (tsr_dtype)x->dtype, x->n_dims, x->dims)
                         : tsr__tensor_like(e, x, (tsr_dtype)x->dtype, TSR_CAT_TEMP);
    tsr__emit_loss(e, "flash_cross_entropy_backward",
                   (struct tsr_tensor *[]){x, rows, saved[1], saved[2]}, 4, grad_in, 1);
    tsr_release(e, rows);
    for (int i = 0; i < 4; i++)
        tsr_release(e, saved[i]);
}

/* The sum of the tokens' losses over the number of labels that count. */
static struct tsr_tensor *mean(struct tsr_engine *e, struct tsr_tensor *losses,
                               struct tsr_tensor *labels, struct tsr_tensor **count)
{
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *sum = scalar(e, category);
    tsr__emit_loss(e, "sum", &losses, 1, &sum, 1);
    struct tsr_tensor *counts = rows_like(e, losses, TSR_U8, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "ne", &labels, 1, counts);
    *count = scalar(e, category);
    tsr__emit_loss(e, "sum", &counts, 1, count, 1);
    tsr_release(e, counts);
    struct tsr_tensor *loss = scalar(e, category);
    if (*count)
        tsr__emit_pointwise(e, "div", (struct tsr_tensor *[]){sum, *count}, 2, loss);
    tsr_release(e, sum);
    return loss;
}

struct tsr_tensor *tsr__op_flash_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels)
{
    if (!logits || !labels)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "FlashCrossEntropy", flash_loss_backward, &logits, 1);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *out[2] = {rows_like(e, logits, TSR_F32, category),
                                 rows_like(e, logits, TSR_F32, category)};
    struct tsr_tensor *count = NULL, *loss = NULL;
    if (out[0] && out[1]) {
        tsr__emit_loss(e, "flash_cross_entropy", (struct tsr_tensor *[]){logits, labels}, 2, out,
                       2);
        mask_ignored(e, out[0], labels);
        loss = mean(e, out[0], labels, &count);
    }
    tsr__node_save(e, node, logits);
    tsr__node_save(e, node, out[1]);
    tsr__node_save(e, node, labels);
    tsr__node_save(e, node, count);
    tsr_release(e, out[0]);
    tsr_release(e, out[1]);
    tsr_release(e, count);
    if (!loss)
        return tsr__op_abort(e, node);
    tsr__node_output(node, loss, 0);
    return loss;
}
