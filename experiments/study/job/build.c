/* build.c: creates the engine of one rank from a resolved strategy. */
#include "experiments/study/job/build.h"

#include "experiments/study/config/keys_words.h"

#include <string.h>

#include "engine/layout/tensor_parallel.h"

/* ---- the model --------------------------------------------------------------------------- */

static tsr_status add_extras(const struct tsr_tree_extras *x, struct tsr_engine *engine)
{
    for (size_t i = 0; i < x->n_ties; i++)
        TSR_TRY(tsr_param_tie(engine, x->ties[i][0], x->ties[i][1]));
    for (size_t i = 0; i < x->n_frozen; i++)
        TSR_TRY(tsr_param_freeze(engine, x->frozen[i]));
    for (size_t i = 0; i < x->n_dtypes; i++)
        TSR_TRY(tsr_param_set_dtype(engine, x->dtype_patterns[i], x->dtypes[i]));
    return TSR_OK;
}

static tsr_status build_model(const struct tsr_job *job, struct tsr_engine *engine)
{
    const struct tsr_model *m = &job->model;
    switch (m->family) {
    case TSR_FAMILY_LLAMA:
        TSR_TRY(tsr_model_llama(engine, &m->llama));
        break;
    case TSR_FAMILY_GPT2:
        TSR_TRY(tsr_model_gpt2(engine, &m->gpt2));
        break;
    case TSR_FAMILY_MPT:
        TSR_TRY(tsr_model_mpt(engine, &m->mpt));
        break;
    case TSR_FAMILY_TREE:
        TSR_TRY(tsr_model_tree(engine, &m->tree));
        break;
    case TSR_FAMILY_MOE:
        return tsr_model_require_runnable(m);
    }
    if (job->settings->master != TSR_F32)
        TSR_TRY(tsr_param_set_dtype(engine, "**", (tsr_dtype)job->settings->master));
    return add_extras(&m->extras, engine);
}

/* ---- the step ---------------------------------------------------------------------------- */

static enum tsr_optimizer optimizer_of(const struct tsr_settings *s)
{
    static const enum tsr_optimizer adamw[] = {TSR_OPT_ADAMW_FOREACH, TSR_OPT_ADAMW_FUSED,
                                               TSR_OPT_ADAMW_LOOP, TSR_OPT_DECOUPLED,
                                               TSR_OPT_DECOUPLED_READ};
    if (s->optimizer == TSR_OPTIM_ADAMW)
        return adamw[s->variant];
    if (s->optimizer == TSR_OPTIM_SGD)
        return s->momentum ? TSR_OPT_SGD_MOMENTUM : TSR_OPT_SGD;
    return TSR_OPT_NONE;
}

static tsr_status configure_step(const struct tsr_job *job, struct tsr_engine *engine)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_step_config step = {.batch = s->batch,
                                   .seq = s->seq,
                                   .n_micro = (uint32_t)s->accum_steps,
                                   .optimizer = optimizer_of(s),
                                   .accumulate = (enum tsr_accumulate)s->accum_mode,
                                   .loss_chunks = s->loss_chunks,
                                   .state_dtype = (tsr_dtype)s->state_dtype,
                                   .clip = s->clip,
                                   .clip_how = (enum tsr_clip)s->clip_how,
                                   .loss_kernel = (enum tsr_loss_kernel)s->loss_kernel,
                                   .metrics = (uint32_t)s->metrics,
                                   .reads_loss = s->reads_loss,
                                   .decay_matrices_only = s->run.decay == TSR_DECAY_MATRICES,
                                   .sgd_decay = s->optimizer == TSR_OPTIM_SGD && job->executes &&
                                                s->run.weight_decay > 0,
                                   .sync = (enum tsr_sync)s->sync,
                                   .report = job->executes};
    tsr_status status = tsr_step_configure(engine, &step);
    if (status == TSR_OK)
        return TSR_OK;
    return tsr_node_wrap_error(tsr_job_at(job, "accumulation.mode"), status, job->strategy->name);
}

/* ---- the engine -------------------------------------------------------------------------- */

static tsr_status apply_two_level(const struct tsr_job *job, struct tsr_engine *engine)
{
    if (!job->settings->two_level_gather)
        return TSR_OK;
    tsr_status status = tsr_use_two_level_gather(engine, job->cluster.gpus_per_node);
    return status == TSR_OK ? status
                            : tsr_node_wrap_error(tsr_job_at(job, "two_level_gather"), status,
                                                  "two_level_gather");
}

/* PyTorch's set_separate_reduce_scatter_group(), on all groups. */
static tsr_status separate_reductions(const struct tsr_job *job, struct tsr_engine *engine)
{
    if (!job->settings->separate_reduce)
        return TSR_OK;
    if (job->settings->api != TSR_API_FULLY_SHARD)
        return tsr_node_error(tsr_job_at(job, "separate_reduce_scatter_group"),
                              "separate_reduce_scatter_group: found true beside api: %s; allowed: "
                              "false, or api: fully_shard",
                              tsr_words_api[job->settings->api]);
    tsr_status status =
        tsr_set_separate_reduce_scatter_group(engine, tsr_module_root(engine), true, true);
    return status == TSR_OK ? status
                            : tsr_node_wrap_error(tsr_job_at(job, "separate_reduce_scatter_group"),
                                                  status, "separate_reduce_scatter_group");
}

static tsr_status set_up(const struct tsr_job *job, struct tsr_engine *engine)
{
    tsr_status status = build_model(job, engine);
    if (status != TSR_OK && status != TSR_ECONFIG)
        return tsr_node_wrap_error(tsr_job_at(job, "model.name"), status, "model");
    TSR_TRY(status);
    if (job->settings->tp > 1)
        status = tsr_tensor_parallel_model(engine, "tp", job->settings->sequence_parallel);
    if (status != TSR_OK)
        return tsr_node_wrap_error(tsr_job_at(job, "tp"), status, "tp");
    TSR_TRY(tsr_apply_checkpoint(job, engine));
    TSR_TRY(tsr_apply_wrap(job, engine));
    TSR_TRY(apply_two_level(job, engine));
    TSR_TRY(separate_reductions(job, engine));
    return configure_step(job, engine);
}

/* Full tensors of a tensor-parallel model would have to be put together from both ways of cutting.
 */
static tsr_status check_outside_step(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool loads = s->phases >> TSR_SECTION_LOAD & 1, saves = s->phases >> TSR_SECTION_SAVE & 1;
    const char *key = s->init != TSR_INIT_META                                ? "init"
                      : loads && s->load != TSR_LOAD_SHARDED                  ? "load"
                      : saves && !tsr_save_is_sharded((enum tsr_save)s->save) ? "save"
                                                                              : NULL;
    if (s->tp <= 1 || !key)
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, key),
                          "%s: full tensors beside tp: %llu are not modelled; allowed: %s", key,
                          (unsigned long long)s->tp, strcmp(key, "init") ? "sharded" : "meta");
}

/* What the CUDA context and libraries leave to the allocator; 0: unknown. */
static uint64_t left_on_card(const struct tsr_gpu *gpu)
{
    uint64_t taken = gpu->context_bytes + gpu->library_bytes;
    return gpu->visible_bytes > taken ? gpu->visible_bytes - taken : 0;
}

tsr_status tsr_build(const struct tsr_job *job, uint32_t rank, struct tsr_executor *executor,
                     struct tsr_engine **out)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_engine_config config = {.mesh = job->mesh,
                                       .rank = rank,
                                       .init = (enum tsr_init)s->init,
                                       .executor = executor,
                                       .allocator = s->allocator,
                                       .attention = (enum tsr_attention)s->attention,
                                       .dialect = (enum tsr_dialect)s->dialect,
                                       .linear = (enum tsr_linear)s->linear,
                                       .fp8_gather = s->fp8_gather,
                                       .gqa_repeat = s->gqa_repeat};
    *out = NULL;
    TSR_TRY(check_outside_step(job));
    if (s->alloc_limit == TSR_LIMIT_CARD)
        config.allocator.device_bytes = left_on_card(&job->cluster.gpu);
    if (s->alloc_limit == TSR_LIMIT_CARD && !config.allocator.device_bytes)
        return tsr_node_error(tsr_job_at(job, "allocator.limit"),
                              "allocator.limit: found card, but %s does not say how many bytes "
                              "are visible (null); allowed: none",
                              *job->cluster.name ? job->cluster.gpu.path : "no cluster, which");
    TSR_TRY(tsr_engine_create(&config, out));
    tsr_status status = set_up(job, *out);
    if (status == TSR_OK)
        return TSR_OK;
    tsr_engine_destroy(*out);
    *out = NULL;
    return status;
}

tsr_status tsr_build_check(const struct tsr_job *job)
{
    struct tsr_program scratch;
    struct tsr_recorder recorder;
    struct tsr_engine *engine = NULL;
    tsr_program_init(&scratch, NULL);
    tsr_recorder_init(&recorder, &scratch);
    tsr_status status = tsr_build(job, 0, &recorder.base, &engine);
    tsr_engine_destroy(engine);
    tsr_program_fini(&scratch);
    return status;
}
