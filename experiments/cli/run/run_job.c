/* run_job.c: a strategy as something to train: what `tessera run` makes of the keys. */
#include "experiments/cli/run/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/config/settings.h"

/* ---- files ----------------------------------------------------------------------------------- */

static tsr_status find_path(struct tsr_run_job *r, enum tsr_key_id key, const char *name,
                            const char **out)
{
    char(*more)[1024] = realloc(r->paths, (r->n_paths + 1) * sizeof *more);
    if (!more)
        return tsr_no_memory(NULL);
    r->paths = more;
    TSR_TRY(tsr_find_file(tsr_keys[key].name, name, tsr_job_at(&r->job, key), r->experiment.path,
                          r->paths[r->n_paths]));
    *out = r->paths[r->n_paths++];
    return TSR_OK;
}

/* "a.bin,b.bin": the paths move when more are found, so names are resolved to indices first. */
static tsr_status find_list(struct tsr_run_job *r, enum tsr_key_id key, const char *text,
                            size_t *first, size_t *n)
{
    *first = r->n_paths;
    *n = 0;
    for (bool more = text && *text; more;) {
        char name[1024];
        const char *unused;
        int length = (int)strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", length, text);
        if (*n == TSR_RUN_MAX_FILES)
            return tsr_node_error(tsr_job_at(&r->job, key), "%s: found more than %d files",
                                  tsr_keys[key].name, TSR_RUN_MAX_FILES);
        if (!length)
            return tsr_node_error(tsr_job_at(&r->job, key),
                                  "%s: found an empty name; allowed: files, separated by commas",
                                  tsr_keys[key].name);
        TSR_TRY(find_path(r, key, name, &unused));
        ++*n;
        text += length;
        more = *text++ == ',';
    }
    return TSR_OK;
}

static tsr_status find_files(struct tsr_run_job *r)
{
    const struct tsr_run_settings *s = &r->job.settings->run;
    size_t first[3], n[3];
    TSR_TRY(find_list(r, TSR_K_DATA_TRAIN, s->train, &first[0], &n[0]));
    TSR_TRY(find_list(r, TSR_K_DATA_VAL, s->val, &first[1], &n[1]));
    TSR_TRY(find_list(r, TSR_K_MODEL_WEIGHTS, s->weights, &first[2], &n[2]));
    for (size_t i = 0; i < n[0]; i++)
        r->train_files[i] = r->paths[first[0] + i];
    for (size_t i = 0; i < n[1]; i++)
        r->val_files[i] = r->paths[first[1] + i];
    r->config.train_files = r->train_files;
    r->config.n_train_files = n[0];
    r->config.val_files = r->val_files;
    r->config.n_val_files = n[1];
    r->config.weights = n[2] ? r->paths[first[2]] : NULL;
    return TSR_OK;
}

/* ---- what all ranks must agree on ------------------------------------------------------------ */

size_t tsr_run_job_n_hashes(void)
{
    return TSR_N_KEYS + 2;
}

static uint64_t hash_text(const char *text)
{
    return text ? tsr_hash_bytes(TSR_HASH_INIT, text, strlen(text) + 1) : 0;
}

void tsr_run_job_hashes(const struct tsr_run_job *r, uint64_t *hashes)
{
    char text[4096];
    size_t n = TSR_N_KEYS;
    for (size_t i = 0; i < n; i++)
        hashes[i] = tsr_key_format(&tsr_keys[i], r->job.settings, text, sizeof text) == TSR_OK
                        ? hash_text(text)
                        : 0;
    hashes[n] = hash_text(r->config.dir);
    hashes[n + 1] = hash_text(r->config.resume_from);
}

const char *tsr_run_job_hash_name(size_t i)
{
    size_t n = TSR_N_KEYS;
    return i < n ? tsr_keys[i].name : i == n ? "--out" : "--resume";
}

/* ---- the configuration ----------------------------------------------------------------------- */

static uint64_t hash_settings(const struct tsr_job *job)
{
    uint64_t hash = tsr_hash_u64(TSR_HASH_INIT, job->world);
    char text[4096];
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (tsr_key_format(&tsr_keys[i], job->settings, text, sizeof text) == TSR_OK)
            hash = tsr_hash_bytes(hash, text, strlen(text) + 1);
    return hash;
}

static uint64_t vocab_of(const struct tsr_model *m)
{
    switch (m->family) {
    case TSR_FAMILY_GPT2:
        return m->gpt2.vocab_size;
    case TSR_FAMILY_MPT:
        return m->mpt.vocab_size;
    case TSR_FAMILY_TREE:
        return m->tree.tokens;
    default:
        return m->llama.vocab_size;
    }
}

static struct tsr_hf_model hf_of(const struct tsr_model *m)
{
    struct tsr_hf_model hf = {.family = TSR_HF_AS_IS};
    if (m->family == TSR_FAMILY_LLAMA) {
        hf.family = TSR_HF_LLAMA;
        hf.tied = m->llama.tie_embeddings;
        if (m->llama.names == TSR_NAMES_PLAIN)
            hf.interleaved_head_dim = m->llama.head_dim;
    } else if (m->family == TSR_FAMILY_GPT2) {
        hf.family = TSR_HF_GPT2;
        hf.tied = !m->gpt2.untied;
    }
    return hf;
}

static void fill_in(struct tsr_run_job *r, const struct tsr_args *args)
{
    const struct tsr_settings *s = r->job.settings;
    const struct tsr_run_settings *t = &s->run;
    struct tsr_train_config *c = &r->config;
    c->size = r->job.world;
    c->data_size = r->job.world / (uint32_t)s->tp;
    c->sequential = t->order == TSR_ORDER_SEQUENTIAL;
    c->seq = s->seq;
    c->n_vocab = vocab_of(&r->job.model);
    c->seed = t->seed;
    c->n_micro = (uint32_t)s->accum_steps;
    c->micro_batch = (uint32_t)s->batch;
    c->schedule = (struct tsr_schedule){(enum tsr_schedule_kind)t->schedule, t->lr, t->min_lr,
                                        t->warmup, t->steps};
    c->beta1 = t->beta1;
    c->beta2 = t->beta2;
    c->eps = t->eps;
    c->weight_decay = t->weight_decay;
    c->momentum = t->momentum;
    c->dampening = t->dampening;
    c->max_norm = t->max_norm;
    c->n_states = s->optimizer == TSR_OPTIM_ADAMW
                      ? 2 + s->amsgrad
                      : s->optimizer == TSR_OPTIM_SGD && s->momentum && t->momentum > 0;
    c->state_dtype = (tsr_dtype)s->state_dtype;
    c->log_every = t->log_every;
    c->eval_every = t->eval_every;
    c->eval_batches = t->eval_batches;
    c->save_every = t->save_every;
    c->leave_last = !t->save_last;
    c->keep = (unsigned)t->keep;
    c->async_save = args->async_save;
    c->save = (enum tsr_save)s->save;
    c->dir = args->out ? args->out : args->resume;
    c->resume_from = args->resume;
    c->hf = hf_of(&r->job.model);
    c->config_hash = hash_settings(&r->job);
    c->memory_capacity = r->job.cluster.gpu.visible_bytes;
}

static tsr_status rehearse(struct tsr_run_job *r, const struct tsr_gpu_ops *gpus,
                           bool deterministic)
{
    struct tsr_train_config *c = &r->config;
    struct tsr_run_rehearsal step;
    const struct tsr_device_ops *gpu = gpus ? gpus->kernels() : NULL;
    TSR_TRY(tsr_run_rehearse(&r->job, gpu, deterministic, c->n_val_files > 0,
                             c->dir ? &c->save : NULL, &step));
    double tokens = (double)c->seq * c->n_micro * c->micro_batch;
    c->flops_per_token = (uint64_t)(step.model_flops / tokens);
    r->peak_bytes = gpu ? step.host_bytes : step.peak_bytes;
    r->device_bytes = step.device_bytes;
    r->scratch_bytes = step.scratch_bytes;
    return TSR_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Values whose kernels are only simulated. */
static tsr_status check_kernels(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_misfit misfits[] = {
        {TSR_K_OPTIMIZER_VARIANT, "foreach, fused or loop (--on sim simulates it)",
         s->optimizer == TSR_OPTIM_ADAMW && s->variant >= TSR_ADAMW_DECOUPLED},
        {TSR_K_CLIP_VARIANT, "foreach (--on sim simulates it)",
         s->clip && s->clip_how != TSR_CLIP_FOREACH},
        {TSR_K_LOSS_KERNEL, "eager (--on sim simulates it)", s->loss_kernel != TSR_LOSS_EAGER},
        {TSR_K_LOSS_METRICS, "0 (--on sim simulates it)", s->metrics > 0},
        {TSR_K_DIALECT, "eager or fused (--on sim simulates it)",
         s->dialect == TSR_DIALECT_COMPILE},
        {TSR_K_PRECISION_LINEAR, "plain (--on sim simulates it)", s->linear != TSR_LINEAR_PLAIN},
        {TSR_K_ATTENTION_UNPAD, "false (--on sim simulates it)", s->attention_unpad}};
    TSR_TRY(tsr_job_refuse_misfits(job, misfits, sizeof misfits / sizeof *misfits,
                                   ", whose kernels the host has not"));
    return TSR_OK;
}

static tsr_status check_warmup(const struct tsr_run_job *r)
{
    const struct tsr_run_settings *t = &r->job.settings->run;
    if (t->warmup <= t->steps)
        return TSR_OK;
    return tsr_node_error(tsr_job_at(&r->job, TSR_K_TRAIN_WARMUP),
                          "train.warmup: found %llu; allowed: up to train.steps, %llu",
                          (unsigned long long)t->warmup, (unsigned long long)t->steps);
}

static tsr_status check(const struct tsr_run_job *r)
{
    const struct tsr_settings *s = r->job.settings;
    TSR_TRY(check_warmup(r));
    if (r->job.model.trace)
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_MODEL_TRACE),
                              "model.trace: found a traced model, whose kernels are PyTorch's; "
                              "allowed to run: a model of another kind (--on sim simulates it)");
    if (!tsr_save_is_sharded((enum tsr_save)s->save))
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_SAVE),
                              "save: found %s, which is simulated and not executed; allowed to "
                              "run: sharded or sharded_async",
                              tsr_words_save[s->save]);
    if (s->init != TSR_INIT_META)
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_INIT),
                              "init: found a model that is built whole; allowed: meta");
    if (r->job.model.family != TSR_FAMILY_TREE && s->seq > r->job.model.max_positions)
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_SEQ),
                              "seq: found %llu; allowed: up to the %llu positions of model %s",
                              (unsigned long long)s->seq,
                              (unsigned long long)r->job.model.max_positions, r->job.model.name);
    if (s->api == TSR_API_FSDP1)
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_API),
                              "api: found fsdp1, which is simulated and not executed; allowed to "
                              "run: fully_shard, replicate or ddp");
    if (!s->reshard_after_backward && s->api == TSR_API_FULLY_SHARD)
        return tsr_node_error(
            tsr_job_at(&r->job, TSR_K_RESHARD_AFTER_BACKWARD),
            "reshard_after_backward: found false, with which the next step would "
            "compute with parameters from before the optimizer's; allowed to "
            "run: true (accumulation.mode no_reduce_no_reshard keeps them between "
            "micro-batches)");
    if (r->job.model.family == TSR_FAMILY_LLAMA && r->job.model.llama.rope.other)
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_MODEL_NAME),
                              "model %s: found a rotation that is scaled in another way than Llama "
                              "3's; allowed: rope_type default or llama3 (--on sim simulates it)",
                              r->job.model.name);
    if (s->model_impl == TSR_IMPL_TRANSFORMERS)
        return tsr_node_error(tsr_job_at(&r->job, TSR_K_MODEL_IMPLEMENTATION),
                              "model.implementation: found transformers, whose elementary kernels "
                              "the host has not; allowed: plain (--on sim simulates it)");
    TSR_TRY(check_kernels(&r->job));
    if (r->job.model.family == TSR_FAMILY_TREE && r->job.model.tree.tokens == 0)
        return tsr_node_error(
            tsr_job_at(&r->job, TSR_K_MODEL_TREE),
            "model.tree: found a model with float input; allowed: one with tokens");
    return TSR_OK;
}

/* The GPU's kernels in f64 are there to be compared with the host's, one by one. */
/* Clipping sums norms of offloaded gradients on the host, where NCCL does not reach: PyTorch has a
 * second backend there (cpu:gloo), which this run has not. */
static tsr_status check_on_gpus(const struct tsr_job *job, const struct tsr_args *args)
{
    const struct tsr_settings *s = job->settings;
    bool has_nccl =
        !(args->comm && !strcmp(args->comm, "loopback")) && (job->world > 1 || args->force_nccl);
    if (s->master == TSR_F64)
        return tsr_node_error(
            tsr_job_at(job, TSR_K_PRECISION_MASTER),
            "precision.master: found f64 with --on cuda; allowed: f32, bf16 or f16, or "
            "--on host");
    if (s->offload != TSR_OFFLOAD_NONE && s->clip && has_nccl)
        return tsr_node_error(tsr_job_at(job, TSR_K_CLIP),
                              "clip: found true beside offload, --on cuda with NCCL; allowed: "
                              "false, --comm loopback, or --on host");
    return TSR_OK;
}

/* --ranks N and --nproc N are the key world; --async-save is the key save, where no --set gives it.
 */
static tsr_status load(const struct tsr_args *args, struct tsr_run_job *r)
{
    const char *sets[TSR_MAX_SETS + 2];
    const struct tsr_strategy *strategy = NULL;
    char world[32];
    uint64_t ranks = args->ranks ? args->ranks : args->nproc;
    size_t n = 0;
    if (args->async_save)
        sets[n++] = "save=sharded_async";
    memcpy(sets + n, args->sets, args->n_sets * sizeof *sets);
    n += args->n_sets;
    snprintf(world, sizeof world, "world=%llu", (unsigned long long)ranks);
    if (ranks)
        sets[n++] = world;
    TSR_TRY(tsr_experiment_load(args->file, sets, n, &r->experiment));
    r->has_experiment = true;
    TSR_TRY(tsr_experiment_find(&r->experiment, args->strategy, &strategy));
    TSR_TRY(tsr_job_open(&r->experiment, strategy, TSR_MAY_LACK_CLUSTER, &r->job));
    r->has_job = true;
    r->job.executes = true;
    return TSR_OK;
}

tsr_status tsr_run_job_open(const struct tsr_args *args, const struct tsr_gpu_ops *gpus,
                            struct tsr_run_job *out)
{
    tsr_status status;
    *out = (struct tsr_run_job){0};
    TSR_GOTO(failed, load(args, out));
    TSR_GOTO(failed, check(out));
    if (gpus)
        TSR_GOTO(failed, check_on_gpus(&out->job, args));
    TSR_GOTO(failed, find_files(out));
    fill_in(out, args);
    TSR_GOTO(failed, tsr_schedule_check(&out->config.schedule));
    TSR_GOTO(failed, rehearse(out, gpus, args->deterministic));
    return TSR_OK;

failed:
    tsr_run_job_close(out);
    return status;
}

void tsr_run_job_close(struct tsr_run_job *r)
{
    if (r->has_job)
        tsr_job_close(&r->job);
    if (r->has_experiment)
        tsr_experiment_fini(&r->experiment);
    free(r->paths);
    *r = (struct tsr_run_job){0};
}
