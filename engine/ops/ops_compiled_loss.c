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

struct tsr_tensor *tsr__op_compiled_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                                  struct tsr_tensor *labels)
{
    struct tsr_tensor *made[TSR_LOSS_RESULTS];
    if (!logits || !labels)
        return NULL;
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
