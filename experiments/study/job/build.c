/* build.c: creates the engine of one rank from a resolved strategy, and finds the parts of its
 * model that strategies talk about. */
#include "experiments/study/job/build.h"

#include <stdlib.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/fit.h"
#include "experiments/study/job/patterns.h"
#include "experiments/study/model/trace_file.h"

/* ---- the model --------------------------------------------------------------------------- */

static tsr_status add_extras(const struct tsr_model *m, struct tsr_engine *engine)
{
    const struct tsr_tree_extras *x = &m->extras;
    for (size_t i = 0; i < x->n_ties; i++)
        TSR_TRY(tsr_param_tie(engine, x->ties[i][0], x->ties[i][1]));
    if (x->n_frozen)
        TSR_TRY(tsr_check_patterns(engine, tsr_node_get(m->doc.root, "frozen"), TSR_PATTERN_PARAMS,
                                   TSR_PATTERN_EACH, "frozen", m->name));
    if (x->n_dtypes)
        TSR_TRY(tsr_check_patterns(engine, tsr_node_get(m->doc.root, "param_dtypes"),
                                   TSR_PATTERN_PARAMS, TSR_PATTERN_EACH, "param_dtypes", m->name));
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
    case TSR_FAMILY_TRACED:
        return tsr_model_traced(engine, &m->trace->model);
    case TSR_FAMILY_MOE:
        return tsr_model_require_runnable(m);
    }
    if (job->settings->master != TSR_F32)
        TSR_TRY(tsr_param_set_dtype(engine, "**", (tsr_dtype)job->settings->master));
    return add_extras(m, engine);
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
        return s->momentum && s->run.momentum > 0 ? TSR_OPT_SGD_MOMENTUM : TSR_OPT_SGD;
    return TSR_OPT_NONE;
}

static tsr_status configure_step(const struct tsr_job *job, struct tsr_engine *engine)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_step_config step = {
        .batch = s->batch,
        .seq = s->seq,
        .n_micro = (uint32_t)s->accum_steps,
        .optimizer = optimizer_of(s),
        .accumulate = (enum tsr_accumulate)s->accum_mode,
        .loss_chunks = s->loss_chunks,
        .state_dtype = (tsr_dtype)s->state_dtype,
        .clip = s->clip,
        .clip_how = (enum tsr_clip)s->clip_how,
        .loss_kernel = tsr_settings_compile(s, TSR_COMPILE_LOSS)
                           ? TSR_LOSS_COMPILED
                           : (enum tsr_loss_kernel)s->loss_kernel,
        .metrics = (uint32_t)s->metrics,
        .reads_loss = s->reads_loss,
        .decay_matrices_only = s->run.decay == TSR_DECAY_MATRICES,
        .sgd = s->optimizer == TSR_OPTIM_SGD ? (enum tsr_sgd)s->variant : TSR_SGD_FOREACH,
        .sgd_decay = s->optimizer == TSR_OPTIM_SGD && s->run.weight_decay > 0,
        .nesterov = s->nesterov,
        .maximize = s->maximize,
        .amsgrad = s->amsgrad,
        .sync = (enum tsr_sync)s->sync,
        .report = job->executes};
    tsr_status status = tsr_step_configure(engine, &step);
    if (status == TSR_OK)
        return TSR_OK;
    return tsr_node_wrap_error(tsr_job_at(job, TSR_K_ACCUMULATION_MODE), status,
                               job->strategy->name);
}

/* ---- the engine -------------------------------------------------------------------------- */

static tsr_status apply_two_level(const struct tsr_job *job, struct tsr_engine *engine)
{
    if (!job->settings->two_level_gather)
        return TSR_OK;
    tsr_status status = tsr_use_two_level_gather(engine, job->cluster.gpus_per_node);
    return status == TSR_OK ? status
                            : tsr_node_wrap_error(tsr_job_at(job, TSR_K_TWO_LEVEL_GATHER), status,
                                                  tsr_keys[TSR_K_TWO_LEVEL_GATHER].name);
}

/* PyTorch's set_separate_reduce_scatter_group(), on all groups. */
static tsr_status separate_reductions(const struct tsr_job *job, struct tsr_engine *engine)
{
    if (!job->settings->separate_reduce)
        return TSR_OK;
    tsr_status status =
        tsr_set_separate_reduce_scatter_group(engine, tsr_module_root(engine), true, true);
    return status == TSR_OK
               ? status
               : tsr_node_wrap_error(tsr_job_at(job, TSR_K_SEPARATE_REDUCE_SCATTER_GROUP), status,
                                     "separate_reduce_scatter_group");
}

static tsr_status set_up(const struct tsr_job *job, struct tsr_engine *engine)
{
    tsr_status status = build_model(job, engine);
    if (status != TSR_OK && status != TSR_ECONFIG)
        return tsr_node_wrap_error(tsr_job_at(job, TSR_K_MODEL_NAME), status, "model");
    TSR_TRY(status);
    if (job->settings->tp > 1)
        status = tsr_tensor_parallel_model(engine, "tp", job->settings->sequence_parallel);
    if (status != TSR_OK)
        return tsr_node_wrap_error(tsr_job_at(job, TSR_K_TP), status, "tp");
    TSR_TRY(tsr_apply_wrap(job, engine));
    status = tsr_traced_check_wrapping(engine);
    if (status != TSR_OK)
        return tsr_job_refuse_wrap(job, status);
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
    enum tsr_key_id key = s->init != TSR_INIT_META                                ? TSR_K_INIT
                          : loads && s->load != TSR_LOAD_SHARDED                  ? TSR_K_LOAD
                          : saves && !tsr_save_is_sharded((enum tsr_save)s->save) ? TSR_K_SAVE
                                                                                  : TSR_N_KEYS;
    if (s->tp <= 1 || key == TSR_N_KEYS)
        return TSR_OK;
    return tsr_node_error(
        tsr_job_at(job, key), "%s: full tensors beside tp: %llu are not modelled; allowed: %s",
        tsr_keys[key].name, (unsigned long long)s->tp, key == TSR_K_INIT ? "meta" : "sharded");
}

/* What the CUDA context and libraries leave to NCCL and the allocator; 0: unknown. */
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
                                       .dialect = tsr_job_dialect(s),
                                       .linear = (enum tsr_linear)s->linear,
                                       .fp8_gather = s->fp8_gather,
                                       .gqa_repeat = s->gqa_repeat};
    *out = NULL;
    TSR_TRY(check_outside_step(job));
    bool has_card = s->alloc_limit == TSR_LIMIT_CARD && !job->limit_bytes;
    if (job->limit_bytes != TSR_UNLIMITED)
        config.allocator.device_bytes = job->limit_bytes;
    if (has_card)
        config.allocator.device_bytes = left_on_card(&job->cluster.gpu);
    if (has_card && !config.allocator.device_bytes)
        return tsr_node_error(tsr_job_at(job, TSR_K_ALLOCATOR_LIMIT),
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

tsr_status tsr_build_aside(const struct tsr_job *job, tsr_engine_fn use, void *user)
{
    struct tsr_program scratch;
    struct tsr_recorder recorder;
    struct tsr_engine *engine = NULL;
    tsr_program_init(&scratch, NULL);
    tsr_recorder_init(&recorder, &scratch);
    tsr_status status = tsr_build(job, 0, &recorder.base, &engine);
    if (status == TSR_OK && use)
        status = use(job, engine, user);
    tsr_engine_destroy(engine);
    tsr_program_fini(&scratch);
    return status;
}

tsr_status tsr_build_check(const struct tsr_job *job)
{
    return tsr_build_aside(job, NULL, NULL);
}

/* ---- parts of the model ---------------------------------------------------------------------- */

tsr_status tsr_match_modules(struct tsr_engine *engine, const char *const *patterns, size_t n,
                             struct tsr_modules *out)
{
    size_t found = 0;
    memset(out, 0, sizeof(*out));
    tsr_module_match(engine, patterns, n, NULL, &found);
    out->items = calloc(found ? found : 1, sizeof(struct tsr_module *));
    if (!out->items)
        return tsr_no_memory(NULL);
    out->n = found;
    tsr_module_match(engine, patterns, n, out->items, &out->n);
    return TSR_OK;
}

/* ---- the blocks -------------------------------------------------------------------------- */

/* The container with most children that are containers themselves: a model's list of layers. */
static struct tsr_module *longest_list(struct tsr_module *module, size_t *longest)
{
    struct tsr_module *best = NULL;
    size_t n = tsr_module_n_children(module), inner = 0;
    for (size_t i = 0; i < n; i++)
        inner += tsr_module_n_children(tsr_module_child(module, i)) > 0;
    if (inner > *longest && *tsr_module_fqn(module)) {
        *longest = inner;
        best = module;
    }
    for (size_t i = 0; i < n; i++) {
        struct tsr_module *below = longest_list(tsr_module_child(module, i), longest);
        best = below ? below : best;
    }
    return best;
}

/* Of a traced model: the children of all outermost lists whose children are more than a layer. */
static bool add_lists(struct tsr_module *module, struct tsr_modules *out, size_t *cap)
{
    size_t n = tsr_module_n_children(module), inner = 0;
    const char *type = tsr_module_type_name(module);
    for (size_t i = 0; i < n; i++)
        inner += tsr_module_n_children(tsr_module_child(module, i)) > 0;
    bool is_list = !strcmp(type, "ModuleList") || !strcmp(type, "ModuleDict");
    for (size_t i = 0; i < n; i++) {
        struct tsr_module *child = tsr_module_child(module, i);
        if (is_list && inner > 0 ? !TSR_PUSH(out->items, out->n, *cap, child)
                                 : !add_lists(child, out, cap))
            return false;
    }
    return true;
}

static tsr_status children_of(const struct tsr_module *list, struct tsr_modules *out)
{
    out->n = tsr_module_n_children(list);
    out->items = calloc(out->n ? out->n : 1, sizeof(struct tsr_module *));
    if (!out->items)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < out->n; i++)
        out->items[i] = tsr_module_child(list, i);
    return TSR_OK;
}

tsr_status tsr_find_blocks(const struct tsr_job *job, struct tsr_engine *engine,
                           struct tsr_modules *out)
{
    const char *pattern = job->settings->model_blocks;
    size_t longest = 0;
    memset(out, 0, sizeof(*out));
    if (!pattern && job->model.family == TSR_FAMILY_LLAMA)
        pattern = job->model.llama.names == TSR_NAMES_HF ? "model.layers.*" : "layers.*";
    if (!pattern && job->model.family == TSR_FAMILY_GPT2)
        pattern = job->model.gpt2.names == TSR_NAMES_HF ? "transformer.h.*" : "h.*";
    if (!pattern && job->model.family == TSR_FAMILY_MPT)
        pattern = "transformer.blocks.*";
    if (pattern) {
        TSR_TRY(tsr_match_modules(engine, &pattern, 1, out));
        if (out->n)
            return TSR_OK;
        free(out->items);
        memset(out, 0, sizeof(*out));
        return tsr_node_error(tsr_job_at(job, TSR_K_MODEL_BLOCKS),
                              "model.blocks: found %s, which matches no module of %s; allowed: a "
                              "pattern like model.layers.* (`tessera inspect` shows names)",
                              pattern, job->model.name);
    }
    if (job->model.family == TSR_FAMILY_TRACED) {
        size_t cap = 0;
        const struct tsr_traced_file *t = job->model.trace;
        for (size_t i = 0; i < t->n_blocks; i++) {
            struct tsr_module *block = tsr_module_find(engine, t->model.modules[t->blocks[i]].name);
            TSR_CHECK(block); /* tsr_traced_check() has compared names with places */
            if (!TSR_PUSH(out->items, out->n, cap, block))
                return tsr_no_memory(NULL);
        }
        if (!t->n_blocks && !add_lists(tsr_module_root(engine), out, &cap))
            return tsr_no_memory(NULL);
        if (out->n)
            return TSR_OK;
    }
    struct tsr_module *list = longest_list(tsr_module_root(engine), &longest);
    if (!list)
        return tsr_node_error(
            tsr_job_at(job, job->model.trace ? TSR_K_MODEL_TRACE : TSR_K_MODEL_TREE),
            "model.blocks: found null, and model %s has no list of blocks; "
            "allowed: a pattern of module names",
            job->model.name);
    return children_of(list, out);
}

/* ---- before and after -------------------------------------------------------------------- */

static bool is_inside(const char *fqn, const char *outer)
{
    size_t n = strlen(outer);
    return !strncmp(fqn, outer, n) && (fqn[n] == 0 || fqn[n] == '.');
}

static bool contains_block(const struct tsr_module *module, const struct tsr_modules *blocks)
{
    const char *fqn = tsr_module_fqn(module);
    for (size_t i = 0; i < blocks->n; i++)
        if (!*fqn || is_inside(tsr_module_fqn(blocks->items[i]), fqn))
            return true;
    return false;
}

static bool owns_params(const struct tsr_module *module, bool *aliases)
{
    bool own = false;
    for (size_t i = 0; i < tsr_module_n_params(module); i++) {
        struct tsr_param_info info = tsr_param_info(tsr_module_param(module, i), module);
        *aliases = *aliases || info.is_alias;
        own = true;
    }
    for (size_t i = 0; i < tsr_module_n_children(module); i++)
        own = owns_params(tsr_module_child(module, i), aliases) || own;
    return own;
}

struct sides {
    const struct tsr_modules *blocks;
    struct tsr_modules *before, *after;
    size_t cap_before, cap_after;
    bool passed; /* the blocks were met */
    bool tied;
};

static bool push(struct tsr_modules *to, size_t *cap, struct tsr_module *module)
{
    return TSR_PUSH(to->items, to->n, *cap, module);
}

static bool walk(struct sides *s, struct tsr_module *module)
{
    for (size_t i = 0; i < tsr_module_n_children(module); i++) {
        struct tsr_module *child = tsr_module_child(module, i);
        bool is_block = false;
        for (size_t k = 0; k < s->blocks->n; k++)
            is_block = is_block || s->blocks->items[k] == child;
        if (is_block) {
            s->passed = true;
        } else if (contains_block(child, s->blocks)) {
            if (!walk(s, child))
                return false;
        } else if (owns_params(child, &s->tied)) {
            bool ok = s->passed ? push(s->after, &s->cap_after, child)
                                : push(s->before, &s->cap_before, child);
            if (!ok)
                return false;
        }
    }
    return true;
}

tsr_status tsr_find_sides(const struct tsr_job *job, struct tsr_engine *engine,
                          const struct tsr_modules *blocks, struct tsr_modules *before,
                          struct tsr_modules *after)
{
    struct sides s = {.blocks = blocks, .before = before, .after = after};
    (void)job;
    memset(before, 0, sizeof(*before));
    memset(after, 0, sizeof(*after));
    bool ok = walk(&s, tsr_module_root(engine));
    /* A tied embedding and head are one parameter: two groups would each keep a copy of it. */
    for (size_t i = 0; ok && s.tied && i < before->n; i++)
        ok = push(after, &s.cap_after, before->items[i]);
    if (s.tied)
        before->n = 0;
    if (ok)
        return TSR_OK;
    free(before->items);
    free(after->items);
    memset(before, 0, sizeof(*before));
    memset(after, 0, sizeof(*after));
    return tsr_no_memory(NULL);
}
