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
    const char *key = outside ? "checkpoint.hooks" : "checkpoint.early_stop";
    if (s->ckpt_every != TSR_CKPT_SELECTIVE_OP || (!outside && s->ckpt_early_stop))
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, key),
                          "%s: found %s beside checkpoint: selective_op; allowed: %s", key,
                          outside ? "outside" : "false", outside ? "inside" : "true");
}

/* Head and loss in chunks need to know the head, and all of the vocabulary. */
static tsr_status check_chunks(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_model *m = &job->model;
    unsigned long long chunks = s->loss_chunks, tokens = s->batch * s->seq;
    const struct tsr_yaml_node *at = tsr_job_at(job, "loss.chunks");
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

static const char *shown(const struct tsr_settings *s, const char *key, char *out, size_t size)
{
    if (tsr_key_format(&tsr_keys[tsr_key_find(key)], s, out, size) != TSR_OK)
        snprintf(out, size, "?");
    return out;
}

/* `key` has a value that goes with `other` only as `allowed` says. */
static tsr_status refuse(const struct tsr_job *job, const char *key, const char *other,
                         const char *allowed)
{
    char found[64], beside[64];
    return tsr_node_error(tsr_job_at(job, key), "%s: found %s beside %s: %s; allowed: %s", key,
                          shown(job->settings, key, found, sizeof found), other,
                          shown(job->settings, other, beside, sizeof beside), allowed);
}

/* A share is of all blocks. */
static tsr_status check_share(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool each = s->ckpt_every <= 1 || s->ckpt_every == TSR_CKPT_SELECTIVE_OP;
    if (!(s->ckpt_share < 1))
        return TSR_OK;
    if (!each)
        return refuse(job, "checkpoint.share", "checkpoint.every",
                      "1, or checkpoint.every: full or selective_op");
    if (s->ckpt_first)
        return refuse(job, "checkpoint.share", "checkpoint.first", "1, or no checkpoint.first");
    return TSR_OK;
}

/* What needs logits, in the dtype of the loss and left as they are. */
static tsr_status check_loss(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool flash = s->loss_kernel != TSR_LOSS_EAGER;
    const char *key = flash ? "loss.kernel" : "loss.metrics", *none = flash ? "eager" : "0";
    if (!flash && !s->metrics)
        return TSR_OK;
    if (s->loss_chunks > 1)
        return refuse(job, key, "loss.chunks", none);
    if (job->model.family == TSR_FAMILY_TREE && job->model.tree.loss_mse)
        return refuse(job, key, "model.tree", none);
    if (tsr_job_dialect(s) == TSR_DIALECT_FUSED)
        return refuse(job, key, "dialect", none);
    if (flash && s->tp > 1)
        return refuse(job, key, "tp", none);
    if (s->metrics && s->loss_kernel == TSR_LOSS_FLASH_INPLACE)
        return refuse(job, "loss.metrics", "loss.kernel", "0, or loss.kernel: flash_attn");
    return TSR_OK;
}

/* A compiled loss is that of eager cross-entropy. */
static tsr_status check_compiled_loss(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (!tsr_settings_compile(s, TSR_COMPILE_LOSS))
        return TSR_OK;
    if (s->loss_kernel != TSR_LOSS_EAGER)
        return refuse(job, "compile.components", "loss.kernel", "[model], or loss.kernel: eager");
    if (job->model.family == TSR_FAMILY_TREE && job->model.tree.loss_mse)
        return refuse(job, "compile.components", "model.tree",
                      "[model], or a tree whose loss is cross_entropy");
    return TSR_OK;
}

/* Kernels for each parameter are those of parameters on the device. */
static tsr_status check_loops(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool decoupled = s->optimizer == TSR_OPTIM_ADAMW && s->variant >= TSR_ADAMW_DECOUPLED;
    if (s->offload && decoupled)
        return refuse(job, "optimizer.variant", "offload", "foreach, fused or loop");
    if (s->offload && s->clip && s->clip_how != TSR_CLIP_FOREACH)
        return refuse(job, "clip_variant", "offload", "foreach");
    return TSR_OK;
}

/* What torch.optim.SGD and AdamW, and composer's, refuse or have not. */
static tsr_status check_optimizer(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool sgd = s->optimizer == TSR_OPTIM_SGD, decoupled = s->variant >= TSR_ADAMW_DECOUPLED;
    if (sgd && decoupled)
        return refuse(job, "optimizer.variant", "optimizer.name", "foreach, fused or loop");
    if (s->nesterov && !sgd)
        return refuse(job, "optimizer.nesterov", "optimizer.name", "false");
    if (s->nesterov && !s->momentum)
        return refuse(job, "optimizer.nesterov", "optimizer.momentum", "false");
    if (s->nesterov && s->run.momentum == 0)
        return refuse(job, "optimizer.nesterov", "train.momentum", "false");
    if (s->nesterov && s->run.dampening != 0)
        return refuse(job, "optimizer.nesterov", "train.dampening", "false");
    if (s->maximize && s->optimizer == TSR_OPTIM_ADAMW && decoupled)
        return refuse(job, "optimizer.maximize", "optimizer.variant", "false");
    if (s->amsgrad && s->optimizer != TSR_OPTIM_ADAMW)
        return refuse(job, "optimizer.amsgrad", "optimizer.name", "false");
    if (s->amsgrad && decoupled)
        return refuse(job, "optimizer.amsgrad", "optimizer.variant", "false");
    return TSR_OK;
}

/* Gradients that stay sums are scaled by the one kernel that can. */
static tsr_status check_folded(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (!s->folded_scale)
        return TSR_OK;
    if (s->optimizer != TSR_OPTIM_ADAMW)
        return refuse(job, "folded_scale", "optimizer.name", "false, or optimizer.name: adamw");
    if (s->variant != TSR_ADAMW_FUSED)
        return refuse(job, "folded_scale", "optimizer.variant",
                      "false, or optimizer.variant: fused");
    if (s->clip && s->clip_how != TSR_CLIP_FOREACH)
        return refuse(job, "folded_scale", "clip_variant", "false, or clip_variant: foreach");
    return TSR_OK;
}

/* A reference is one if nothing in it is rounded to less; and what is only simulated needs none. */
static tsr_status check_reference(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct {
        const char *key, *allowed;
        bool found;
    } table[] = {{"precision.param", "none", s->param != TSR_DTYPE_NONE},
                 {"precision.reduce", "none", s->reduce != TSR_DTYPE_NONE},
                 {"precision.output", "none", s->output != TSR_DTYPE_NONE},
                 {"precision.linear", "plain", s->linear != TSR_LINEAR_PLAIN},
                 {"optimizer.state", "master", s->state_dtype != TSR_DTYPE_NONE},
                 {"loss.kernel", "eager", s->loss_kernel != TSR_LOSS_EAGER},
                 {"folded_scale", "false", s->folded_scale}, /* its factor is an f32 */
                 {"dialect", "eager or fused", s->dialect == TSR_DIALECT_COMPILE},
                 {"model.implementation", "plain", s->model_impl != TSR_IMPL_PLAIN},
                 {"api", "fully_shard, replicate or ddp", s->api == TSR_API_FSDP1}};
    for (size_t i = 0; s->master == TSR_F64 && i < sizeof table / sizeof *table; i++) {
        char found[64] = "?";
        if (!table[i].found)
            continue;
        TSR_TRY(tsr_key_format(&tsr_keys[tsr_key_find(table[i].key)], s, found, sizeof found));
        return tsr_node_error(tsr_job_at(job, table[i].key),
                              "%s: found %s beside precision.master: f64; allowed: %s",
                              table[i].key, found, table[i].allowed);
    }
    return TSR_OK;
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
    return tsr_node_error(tsr_job_at(job, "precision.reduce"),
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

/* A value that is not modelled with FSDP1. */
struct misfit {
    const char *key, *allowed;
    bool found;
};

static tsr_status refuse_misfit(const struct tsr_job *job, const struct misfit *m)
{
    char found[64];
    TSR_TRY(tsr_key_format(&tsr_keys[tsr_key_find(m->key)], job->settings, found, sizeof found));
    return tsr_node_error(tsr_job_at(job, m->key), "%s: found %s beside api: fsdp1; allowed: %s",
                          m->key, found, m->allowed);
}

tsr_status tsr_job_check_fsdp1(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (s->api != TSR_API_FSDP1)
        return TSR_OK;
    const struct misfit misfits[] = {
        {"reshard_after_forward", "null, true (FULL_SHARD) or false (SHARD_GRAD_OP)",
         s->reshard.kind == TSR_RESHARD_INT},
        {"accumulation.mode", "reduce_each or no_reduce (no_sync)",
         s->accum_mode > TSR_ACCUM_NO_REDUCE},
        {"offload", "none", s->offload != TSR_OFFLOAD_NONE},
        {"tp", "1", s->tp > 1},
        {"init", "meta", s->init != TSR_INIT_META},
    };
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++)
        if (misfits[i].found)
            return refuse_misfit(job, &misfits[i]);
    return TSR_OK;
}
