/* ops_compiled_loss.c: the cross-entropy that torch.compile makes of cross_entropy(logits.float(),
 * labels), as torchtitan and torchtune compile it (engine/compile/COMPILE.md, The loss). It is
 * simulated only.
 *
 * Inductor fuses the cast to fp32 into each kernel, so that nothing of T x V elements exists beside
 * the logits but their gradient. T tokens, V words, b bytes of an element of the logits:
 *
 *   forward   maximum, logarithm of the sum of exponentials   T f32 each   one kernel, one pass
 *             loss, number of labels that count               f32          one kernel over T rows
 *   backward  gradient                                        T V b        one kernel, one pass
 *
 * Saved for backward are the logits themselves, the labels, and all results but the loss.
 *
 * Of a vocabulary that tensor parallelism cuts (loss_parallel) the compiler meets DTensor's own
 * code, with an all-reduce of one number a token after each of the first three kernels, and saves
 * softmax less one-hot in fp32 (tests/oracle/compile/block.py loss):
 *
 *   forward   maximum; sum of exponentials                    T f32        one pass each
 *             zeros                                           T V f32      a fill
 *             log-probability of the label                    T f32        one element a row, which
 *                                                                          is -1 in the zeros, too
 *             loss, number of labels that count               f32          one kernel over T rows
 *             softmax less one-hot                            T V f32      one pass over both
 *   backward  gradient                                        T V b        one kernel, one pass
 */
#include "engine/ops/ops_common.h"

static struct tsr_tensor *vector(struct tsr_engine *e, const struct tsr_tensor *logits, uint64_t n)
{
    return tsr__tensor_new(e, tsr__wide(logits), 1, &n, tsr__result_category(e));
}

void tsr__compiled_loss(struct tsr_engine *e, struct tsr_tensor *logits, struct tsr_tensor *labels,
                        struct tsr_tensor *out[TSR_LOSS_RESULTS])
{
    for (int i = TSR_LOSS_MAX; i <= TSR_LOSS_LOG; i++)
        out[i] = vector(e, logits, logits->dims[0]);
    tsr__emit_loss_of(e, TSR_COMPILED_FIRST, "compiled_log_sum_exp", &logits, 1, out, 2, 1);
    for (int i = TSR_LOSS_VALUE; i <= TSR_LOSS_COUNT; i++)
        out[i] = vector(e, logits, 1);
    struct tsr_tensor *in[4] = {logits, labels, out[TSR_LOSS_MAX], out[TSR_LOSS_LOG]};
    tsr__emit_loss_of(e, TSR_COMPILED, "compiled_nll", in, 4, &out[TSR_LOSS_VALUE], 2, 0);
}

void tsr__compiled_loss_backward(struct tsr_engine *e, struct tsr_tensor *logits,
                                 struct tsr_tensor *labels, struct tsr_tensor *const *made,
                                 struct tsr_tensor *g, struct tsr_tensor *gradient)
{
    struct tsr_tensor *in[6] = {
        logits, labels, made[TSR_LOSS_MAX], made[TSR_LOSS_LOG], made[TSR_LOSS_COUNT], g};
    tsr__emit_loss_of(e, TSR_COMPILED_FIRST, "compiled_cross_entropy_backward", in, 6, &gradient, 1,
                      1);
}

/* saved: logits, labels, maximum, logarithm, number of labels */
static void loss_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *saved[5];
    for (int i = 0; i < 5; i++)
        saved[i] = tsr__node_saved(e, node, i);
    struct tsr_tensor *x = saved[0], *made[TSR_LOSS_RESULTS] = {saved[2], saved[3], NULL, saved[4]};
    if (x)
        grad_in[0] = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, TSR_CAT_TEMP);
    tsr__compiled_loss_backward(e, x, saved[1], made, grad_out[0], grad_in[0]);
    for (int i = 0; i < 5; i++)
        tsr_release(e, saved[i]);
}

/* ---- a vocabulary that tensor parallelism cuts ----------------------------------------------- */

/* One number a token, made from the local columns, then reduced over the ranks. */
static struct tsr_tensor *over_ranks(struct tsr_engine *e, enum tsr_compiled compiled,
                                     const char *name, struct tsr_tensor *const *in, int n,
                                     unsigned passes, uint8_t reduce_op)
{
    struct tsr_tensor *row = vector(e, in[0], in[0]->dims[0]);
    tsr__emit_loss_of(e, compiled, name, in, n, &row, 1, passes);
    tsr__tp_reduce(e, row, reduce_op);
    return row;
}

/* saved: softmax less one-hot, number of labels. a: dtype of the logits */
static void cut_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    struct tsr_tensor *p = tsr__node_saved(e, node, 0), *count = tsr__node_saved(e, node, 1);
    if (p)
        grad_in[0] = tsr__tensor_like(e, p, (tsr_dtype)node->a[0], TSR_CAT_TEMP);
    tsr__emit_loss_of(e, TSR_COMPILED_FIRST, "compiled_cut_backward",
                      (struct tsr_tensor *[]){p, count, grad_out[0]}, 3, grad_in, 1, 1);
    tsr_release(e, count);
    tsr_release(e, p);
}

/* out: softmax less one-hot, loss, number of labels that count */
static void cut_forward(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *labels,
                        struct tsr_tensor *out[3])
{
    struct tsr_tensor *most =
        over_ranks(e, TSR_COMPILED_FIRST, "compiled_row_max", &x, 1, 1, TSR_REDUCE_MAX);
    struct tsr_tensor *sum = over_ranks(e, TSR_COMPILED, "compiled_row_exp_sum",
                                        (struct tsr_tensor *[]){x, most}, 2, 1, TSR_REDUCE_SUM);
    struct tsr_tensor *onehot = tsr__tensor_like(e, x, tsr__wide(x), TSR_CAT_TEMP);
    if (onehot)
        tsr__emit_fill(e, onehot->storage, tsr__wide(x), 0.0);
    struct tsr_tensor *row =
        over_ranks(e, TSR_COMPILED, "compiled_nll_gather",
                   (struct tsr_tensor *[]){x, labels, most, sum}, 4, 0, TSR_REDUCE_SUM);
    out[1] = vector(e, x, 1);
    out[2] = vector(e, x, 1);
    tsr__emit_loss_of(e, TSR_COMPILED, "compiled_nll_rows", (struct tsr_tensor *[]){row, labels}, 2,
                      &out[1], 2, 1);
    tsr_release(e, row);
    out[0] = tsr__tensor_like(e, x, tsr__wide(x), tsr__result_category(e));
    tsr__emit_loss_of(e, TSR_COMPILED, "compiled_softmax",
                      (struct tsr_tensor *[]){x, onehot, most, sum}, 4, &out[0], 1, 1);
    tsr_release(e, onehot);
    tsr_release(e, sum);
    tsr_release(e, most);
}

static struct tsr_tensor *cut_cross_entropy(struct tsr_engine *e, struct tsr_tensor *x,
                                            struct tsr_tensor *labels)
{
    struct tsr_tensor *out[3];
    struct tsr_node *node = tsr__node_new(e, "CompiledCrossEntropy", cut_backward, &x, 1);
    cut_forward(e, x, labels, out);
    if (node)
        node->a[0] = x->dtype;
    tsr__node_save(e, node, out[0]);
    tsr__node_save(e, node, out[2]);
    tsr_release(e, out[0]);
    tsr_release(e, out[2]);
    if (!out[1])
        return tsr__op_abort(e, node);
    tsr__node_output(node, out[1], 0);
    return out[1];
}

struct tsr_tensor *tsr__op_compiled_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                                  struct tsr_tensor *labels)
{
    struct tsr_tensor *made[TSR_LOSS_RESULTS];
    if (!logits || !labels)
        return NULL;
    if (e->tp->size > 1)
        return cut_cross_entropy(e, logits, labels);
    struct tsr_node *node = tsr__node_new(e, "CompiledCrossEntropy", loss_backward, &logits, 1);
    tsr__compiled_loss(e, logits, labels, made);
    struct tsr_tensor *saved[5] = {logits, labels, made[TSR_LOSS_MAX], made[TSR_LOSS_LOG],
                                   made[TSR_LOSS_COUNT]};
    for (int i = 0; i < 5; i++)
        tsr__node_save(e, node, saved[i]);
    for (int i = 2; i < 5; i++)
        tsr_release(e, saved[i]);
    if (!made[TSR_LOSS_VALUE])
        return tsr__op_abort(e, node);
    tsr__node_output(node, made[TSR_LOSS_VALUE], 0);
    return made[TSR_LOSS_VALUE];
}
