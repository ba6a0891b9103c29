/* metrics.c: what a trainer computes from the logits of a micro-batch beside its loss. Composer's
 * language metrics (cross-entropy, perplexity) each run PyTorch's cross_entropy with reduction
 * "sum" after the backward of the micro-batch, without gradients and in fp32, and add the sum and
 * the number of labels to what they have. The trainer's state holds the logits until those of the
 * next micro-batch are there.
 */
#include "engine/ops/ops_fused.h"
#include "engine/step/step_impl.h"

tsr_status tsr__check_loss(const struct tsr_engine *e)
{
    const struct tsr_step_config *s = &e->step->config;
    bool compiled = s->loss_kernel == TSR_LOSS_COMPILED;
    bool flash = s->loss_kernel != TSR_LOSS_EAGER && !compiled;
    TSR_TRY(tsr__check_chunked_loss(e));
    if (compiled && (e->model->loss_mse || tsr__is_fused(e)))
        return tsr_fail(TSR_EUNSUPPORTED, "a compiled loss is modelled for cross-entropy, outside "
                                          "the fused dialect");
    if ((s->metrics || flash) && (e->model->loss_mse || s->loss_chunks > 1))
        return tsr_fail(TSR_EUNSUPPORTED,
                        "%s of a model without logits for its loss are not modelled",
                        flash ? "kernels of flash-attn" : "metrics");
    if (flash && (e->tp->size > 1 || tsr__is_fused(e)))
        return tsr_fail(TSR_EUNSUPPORTED, "flash-attn's loss of a tensor-parallel model or in the "
                                          "fused dialect is not modelled");
    if (s->metrics && (s->loss_kernel == TSR_LOSS_FLASH_INPLACE || tsr__is_fused(e)))
        return tsr_fail(TSR_EUNSUPPORTED,
                        "metrics need logits that backward leaves alone: not with a loss whose "
                        "gradient takes their place");
    return TSR_OK;
}

void tsr__keep_logits(struct tsr_engine *e, const struct tsr_tensor *logits)
{
    struct tsr_tensor *before = e->step->kept_logits;
    if (e->step->config.metrics == 0 || !logits)
        return;
    e->step->kept_logits = tsr__tensor_view(e, logits->storage, (tsr_dtype)logits->dtype,
                                            logits->n_dims, logits->dims);
    tsr_release(e, before);
}

/* The labels are copied to be moved on by one, as the model does it for its loss. */
static struct tsr_tensor *shifted(struct tsr_engine *e, struct tsr_tensor *labels)
{
    struct tsr_tensor *copy = tsr__tensor_like(e, labels, TSR_I64, tsr__result_category(e));
    tsr__emit_pointwise(e, "clone", &labels, 1, copy);
    return copy;
}

/* The states of a metric, a sum of losses and a number of labels: new zeros at the begin of every
 * step. */
static void reset(struct tsr_engine *e, struct tsr_tensor *states[2])
{
    static const tsr_dtype dtypes[2] = {TSR_F32, TSR_I64};
    const uint64_t one = 1;
    for (int i = 0; i < 2; i++) {
        struct tsr_tensor *zero = tsr__tensor_new(e, dtypes[i], 1, &one, TSR_CAT_BUFFER);
        if (zero)
            tsr__emit_fill(e, zero->storage, dtypes[i], 0);
        tsr_release(e, states[i]);
        states[i] = zero;
    }
}

static void add_to(struct tsr_engine *e, struct tsr_tensor *state, struct tsr_tensor *more)
{
    if (state && more)
        tsr__emit_pointwise(e, "add", (struct tsr_tensor *[]){state, more}, 2, state);
}

static void update(struct tsr_engine *e, struct tsr_tensor *const states[2],
                   struct tsr_tensor *labels)
{
    struct tsr_tensor *loss = tsr_op_cross_entropy(e, e->step->kept_logits, labels);
    struct tsr_tensor *number = tsr__op_count_labels(e, labels);
    add_to(e, states[1], number);
    tsr_release(e, number);
    add_to(e, states[0], loss);
    tsr_release(e, loss);
}

void tsr__run_metrics(struct tsr_engine *e, uint32_t micro)
{
    if (e->step->config.metrics == 0 || !e->step->kept_logits || !tsr__ok(e))
        return;
    bool grad = e->grad_enabled;
    e->grad_enabled = false;
    tsr__set_phase(e, TSR_PHASE_METRICS, micro);
    for (uint32_t i = 0; i < e->step->config.metrics && micro == 0; i++)
        reset(e, e->step->metric_states[i]);
    struct tsr_tensor *labels = shifted(e, e->step->labels[micro]);
    for (uint32_t i = 0; i < e->step->config.metrics && labels && tsr__ok(e); i++)
        update(e, e->step->metric_states[i], labels);
    tsr_release(e, labels);
    e->grad_enabled = grad;
}
