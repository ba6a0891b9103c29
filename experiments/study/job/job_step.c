/* job_step.c: keys that exclude each other: those of the step (checkpointing, loss, metrics,
 * optimizer), and values that PyTorch's FSDP1 has and that are not modelled with it. */
#include <stdio.h>
#include <string.h>

#include "experiments/study/job/job.h"

/* Checkpointing by operator is modelled with hooks outside of the recomputation and early stop. */
static tsr_status check_selective(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool outside = s->ckpt_hooks == TSR_HOOKS_OUTSIDE;
    enum tsr_key_id key = outside ? TSR_K_CHECKPOINT_HOOKS : TSR_K_CHECKPOINT_EARLY_STOP;
    if (s->ckpt_every != TSR_CKPT_SELECTIVE_OP || (!outside && s->ckpt_early_stop))
        return TSR_OK;
    return tsr_node_error(
        tsr_job_at(job, key), "%s: found %s beside checkpoint: selective_op; allowed: %s",
        tsr_keys[key].name, outside ? "outside" : "false", outside ? "inside" : "true");
}

/* Head and loss in chunks need to know the head, and all of the vocabulary. */
static tsr_status check_chunks(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_model *m = &job->model;
    unsigned long long chunks = s->loss_chunks, tokens = s->batch * s->seq;
    const struct tsr_yaml_node *at = tsr_job_at(job, TSR_K_LOSS_CHUNKS);
    if (chunks < 2)
        return TSR_OK;
    if (m->family == TSR_FAMILY_TREE || m->family == TSR_FAMILY_TRACED)
        return tsr_node_error(at,
                              "loss.chunks: found %llu beside model %s; allowed: 1, or a model of "
                              "the Llama family, GPT-2 or MPT",
                              chunks, m->name);
    if (s->tp > 1)
        return tsr_node_error(at, "loss.chunks: found %llu beside tp: %llu; allowed: 1", chunks,
                              (unsigned long long)s->tp);
    if (chunks > tokens)
        return tsr_node_error(at,
                              "loss.chunks: found %llu; allowed: 1 to %llu, the tokens of a "
                              "micro-batch",
                              chunks, tokens);
    return TSR_OK;
}

static const char *shown(const struct tsr_settings *s, enum tsr_key_id key, char *out, size_t size)
{
    if (tsr_key_format(&tsr_keys[key], s, out, size) != TSR_OK)
        snprintf(out, size, "?");
    return out;
}

/* `key` has a value that goes with `other` only as `allowed` says. */
static tsr_status refuse(const struct tsr_job *job, enum tsr_key_id key, enum tsr_key_id other,
                         const char *allowed)
{
    char found[64], beside[64];
    return tsr_node_error(tsr_job_at(job, key), "%s: found %s beside %s: %s; allowed: %s",
                          tsr_keys[key].name, shown(job->settings, key, found, sizeof found),
                          tsr_keys[other].name, shown(job->settings, other, beside, sizeof beside),
                          allowed);
}

/* A share is of all blocks. */
static tsr_status check_share(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool each = s->ckpt_every <= 1 || s->ckpt_every == TSR_CKPT_SELECTIVE_OP;
    if (!(s->ckpt_share < 1))
        return TSR_OK;
    if (!each)
        return refuse(job, TSR_K_CHECKPOINT_SHARE, TSR_K_CHECKPOINT_EVERY,
                      "1, or checkpoint.every: full or selective_op");
    if (s->ckpt_first)
        return refuse(job, TSR_K_CHECKPOINT_SHARE, TSR_K_CHECKPOINT_FIRST,
                      "1, or no checkpoint.first");
    return TSR_OK;
}

/* What needs logits, in the dtype of the loss and left as they are. */
static tsr_status check_loss(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool flash = s->loss_kernel != TSR_LOSS_EAGER;
    enum tsr_key_id key = flash ? TSR_K_LOSS_KERNEL : TSR_K_LOSS_METRICS;
    const char *none = flash ? "eager" : "0";
    if (!flash && !s->metrics)
        return TSR_OK;
    if (s->loss_chunks > 1)
        return refuse(job, key, TSR_K_LOSS_CHUNKS, none);
    if (job->model.family == TSR_FAMILY_TREE && job->model.tree.loss_mse)
        return refuse(job, key, TSR_K_MODEL_TREE, none);
    if (tsr_job_dialect(s) == TSR_DIALECT_FUSED)
        return refuse(job, key, TSR_K_DIALECT, none);
    if (flash && s->tp > 1)
        return refuse(job, key, TSR_K_TP, none);
    if (s->metrics && s->loss_kernel == TSR_LOSS_FLASH_INPLACE)
        return refuse(job, TSR_K_LOSS_METRICS, TSR_K_LOSS_KERNEL, "0, or loss.kernel: flash_attn");
    return TSR_OK;
}

/* A compiled loss is that of eager cross-entropy. */
static tsr_status check_compiled_loss(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (!tsr_settings_compile(s, TSR_COMPILE_LOSS))
        return TSR_OK;
    if (s->loss_kernel != TSR_LOSS_EAGER)
        return refuse(job, TSR_K_COMPILE_COMPONENTS, TSR_K_LOSS_KERNEL,
                      "[model], or loss.kernel: eager");
    if (job->model.family == TSR_FAMILY_TREE && job->model.tree.loss_mse)
        return refuse(job, TSR_K_COMPILE_COMPONENTS, TSR_K_MODEL_TREE,
                      "[model], or a tree whose loss is cross_entropy");
    return TSR_OK;
}

/* Kernels for each parameter are those of parameters on the device. */
static tsr_status check_loops(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool decoupled = s->optimizer == TSR_OPTIM_ADAMW && s->variant >= TSR_ADAMW_DECOUPLED;
    if (s->offload && decoupled)
        return refuse(job, TSR_K_OPTIMIZER_VARIANT, TSR_K_OFFLOAD, "foreach, fused or loop");
    if (s->offload && s->clip && s->clip_how != TSR_CLIP_FOREACH)
        return refuse(job, TSR_K_CLIP_VARIANT, TSR_K_OFFLOAD, "foreach");
    return TSR_OK;
}

/* What torch.optim.SGD and AdamW, and composer's, refuse or have not. */
static tsr_status check_optimizer(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool sgd = s->optimizer == TSR_OPTIM_SGD, decoupled = s->variant >= TSR_ADAMW_DECOUPLED;
    if (sgd && decoupled)
        return refuse(job, TSR_K_OPTIMIZER_VARIANT, TSR_K_OPTIMIZER_NAME, "foreach, fused or loop");
    if (s->nesterov && !sgd)
        return refuse(job, TSR_K_OPTIMIZER_NESTEROV, TSR_K_OPTIMIZER_NAME, "false");
    if (s->nesterov && !s->momentum)
        return refuse(job, TSR_K_OPTIMIZER_NESTEROV, TSR_K_OPTIMIZER_MOMENTUM, "false");
    if (s->nesterov && s->run.momentum == 0)
        return refuse(job, TSR_K_OPTIMIZER_NESTEROV, TSR_K_TRAIN_MOMENTUM, "false");
    if (s->nesterov && s->run.dampening != 0)
        return refuse(job, TSR_K_OPTIMIZER_NESTEROV, TSR_K_TRAIN_DAMPENING, "false");
    if (s->maximize && s->optimizer == TSR_OPTIM_ADAMW && decoupled)
        return refuse(job, TSR_K_OPTIMIZER_MAXIMIZE, TSR_K_OPTIMIZER_VARIANT, "false");
    if (s->amsgrad && s->optimizer != TSR_OPTIM_ADAMW)
        return refuse(job, TSR_K_OPTIMIZER_AMSGRAD, TSR_K_OPTIMIZER_NAME, "false");
    if (s->amsgrad && decoupled)
        return refuse(job, TSR_K_OPTIMIZER_AMSGRAD, TSR_K_OPTIMIZER_VARIANT, "false");
    return TSR_OK;
}

/* Gradients that stay sums are scaled by the one kernel that can. */
static tsr_status check_folded(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (!s->folded_scale)
        return TSR_OK;
    if (s->optimizer != TSR_OPTIM_ADAMW)
        return refuse(job, TSR_K_FOLDED_SCALE, TSR_K_OPTIMIZER_NAME,
                      "false, or optimizer.name: adamw");
    if (s->variant != TSR_ADAMW_FUSED)
        return refuse(job, TSR_K_FOLDED_SCALE, TSR_K_OPTIMIZER_VARIANT,
                      "false, or optimizer.variant: fused");
    if (s->clip && s->clip_how != TSR_CLIP_FOREACH)
        return refuse(job, TSR_K_FOLDED_SCALE, TSR_K_CLIP_VARIANT,
                      "false, or clip_variant: foreach");
    return TSR_OK;
}

/* A reference is one if nothing in it is rounded to less; and what is only simulated needs none. */
static tsr_status check_reference(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_misfit misfits[] = {
        {TSR_K_PRECISION_PARAM, "none", s->param != TSR_DTYPE_NONE},
        {TSR_K_PRECISION_REDUCE, "none", s->reduce != TSR_DTYPE_NONE},
        {TSR_K_PRECISION_OUTPUT, "none", s->output != TSR_DTYPE_NONE},
        {TSR_K_PRECISION_LINEAR, "plain", s->linear != TSR_LINEAR_PLAIN},
        {TSR_K_OPTIMIZER_STATE, "master", s->state_dtype != TSR_DTYPE_NONE},
        {TSR_K_LOSS_KERNEL, "eager", s->loss_kernel != TSR_LOSS_EAGER},
        {TSR_K_FOLDED_SCALE, "false", s->folded_scale}, /* its factor is an f32 */
        {TSR_K_DIALECT, "eager or fused", s->dialect == TSR_DIALECT_COMPILE},
        {TSR_K_MODEL_IMPLEMENTATION, "plain", s->model_impl != TSR_IMPL_PLAIN},
        {TSR_K_API, "fully_shard, replicate or ddp", s->api == TSR_API_FSDP1}};
    size_t n = s->master == TSR_F64 ? sizeof misfits / sizeof *misfits : 0;
    return tsr_job_refuse_misfits(job, misfits, n, " beside precision.master: f64");
}

/* DDP's _MixedPrecision ends in an error of PyTorch's where gradients are reduced in 16 bits and
 * parameters are computed with as they are. */
static tsr_status check_ddp_reduce(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool halves = s->reduce == TSR_BF16 || s->reduce == TSR_F16;
    bool as_they_are = s->param == TSR_DTYPE_NONE || s->param == TSR_F32;
    if (s->api != TSR_API_DDP || !halves || !as_they_are)
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, TSR_K_PRECISION_REDUCE),
                          "precision.reduce: found %s beside api: ddp and precision.param: %s; "
                          "allowed: none or f32, or parameters in 16 bits, too",
                          tsr_dtype_name((tsr_dtype)s->reduce),
                          s->param == TSR_DTYPE_NONE ? "none" : "f32");
}

tsr_status tsr_job_check_step(const struct tsr_job *job)
{
    TSR_TRY(check_ddp_reduce(job));
    TSR_TRY(check_reference(job));
    TSR_TRY(check_selective(job));
    TSR_TRY(check_share(job));
    TSR_TRY(check_chunks(job));
    TSR_TRY(check_loss(job));
    TSR_TRY(check_compiled_loss(job));
    TSR_TRY(check_optimizer(job));
    TSR_TRY(check_folded(job));
    return check_loops(job);
}

/* ---- FSDP1 ----------------------------------------------------------------------------------- */

tsr_status tsr_job_check_fsdp1(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (s->api != TSR_API_FSDP1)
        return TSR_OK;
    const struct tsr_misfit misfits[] = {
        {TSR_K_RESHARD_AFTER_FORWARD, "null, true (FULL_SHARD) or false (SHARD_GRAD_OP)",
         s->reshard.kind == TSR_RESHARD_INT},
        {TSR_K_ACCUMULATION_MODE, "reduce_each or no_reduce (no_sync)",
         s->accum_mode > TSR_ACCUM_NO_REDUCE},
        {TSR_K_OFFLOAD, "none", s->offload != TSR_OFFLOAD_NONE},
        {TSR_K_TP, "1", s->tp > 1},
        {TSR_K_INIT, "meta", s->init != TSR_INIT_META},
    };
    return tsr_job_refuse_misfits(job, misfits, sizeof misfits / sizeof *misfits,
                                  " beside api: fsdp1");
}
