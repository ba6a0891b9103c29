/* job.c: one strategy: its mesh and world, and the checks that its sizes make sense together. */
#include "experiments/study/job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/settings.h"
#include "experiments/study/model/trace_file.h"

const struct tsr_yaml_node *tsr_job_at(const struct tsr_job *job, size_t key)
{
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, key);
    return at ? at : job->strategy->at;
}

tsr_status tsr_job_refuse_misfits(const struct tsr_job *job, const struct tsr_misfit *list,
                                  size_t n, const char *why)
{
    for (size_t i = 0; i < n; i++) {
        const struct tsr_key *key = &tsr_keys[list[i].key];
        char found[64] = "?";
        if (!list[i].found)
            continue;
        TSR_TRY(tsr_key_format(key, job->settings, found, sizeof found));
        return tsr_node_error(tsr_job_at(job, list[i].key), "%s: found %s%s; allowed: %s",
                              key->name, found, why, list[i].allowed);
    }
    return TSR_OK;
}

enum { MAX_WORLD = 1 << 20 }; /* as the key has it */

/* ---- mesh -------------------------------------------------------------------------------- */

/* Sizes as given; 0 where the world decides. */
static tsr_status read_mesh(const struct tsr_job *job, struct tsr_shape_value *out)
{
    const struct tsr_settings *s = job->settings;
    *out = s->mesh;
    if (s->mesh.n && (s->mesh_replicate || s->mesh_shard))
        return tsr_node_error(tsr_setting_at(s, TSR_K_MESH_SHAPE),
                              "mesh.shape: found beside mesh.replicate or mesh.shard; allowed: "
                              "[REPLICATE, SHARD] or {replicate: N, shard: N}");
    if (s->mesh_replicate)
        *out = (struct tsr_shape_value){2, {(uint32_t)s->mesh_replicate, (uint32_t)s->mesh_shard}};
    else if (s->mesh_shard)
        *out = (struct tsr_shape_value){1, {(uint32_t)s->mesh_shard}};
    return TSR_OK;
}

static const struct tsr_yaml_node *mesh_at(const struct tsr_job *job)
{
    static const enum tsr_key_id keys[] = {TSR_K_MESH_SHAPE, TSR_K_MESH_SHARD,
                                           TSR_K_MESH_REPLICATE};
    for (size_t i = 0; i < 3; i++)
        if (tsr_setting_at(job->settings, keys[i]))
            return tsr_setting_at(job->settings, keys[i]);
    return job->strategy->at;
}

static tsr_status check_world(struct tsr_job *job, uint64_t world)
{
    uint64_t have = (uint64_t)job->cluster.nodes * job->cluster.gpus_per_node;
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, TSR_K_WORLD);
    if (*job->cluster.name && world > have)
        return tsr_node_error(at ? at : mesh_at(job),
                              "%s: found %llu; allowed: 1 to %llu, the GPUs of cluster %s",
                              at ? "world" : "mesh: product", (unsigned long long)world,
                              (unsigned long long)have, job->cluster.name);
    job->world = (uint32_t)world;
    return TSR_OK;
}

static void name_dims(struct tsr_job *job)
{
    bool replicates = job->settings->api == TSR_API_REPLICATE || job->settings->api == TSR_API_DDP;
    if (replicates) { /* whatever the shape: every rank holds a copy */
        job->mesh.n_dims = 1;
        job->mesh.shape[0] = job->world / (uint32_t)job->settings->tp;
    }
    if (job->mesh.n_dims == 2) {
        snprintf(job->mesh.name[0], sizeof job->mesh.name[0], "replicate");
        snprintf(job->mesh.name[1], sizeof job->mesh.name[1], "shard");
    } else {
        snprintf(job->mesh.name[0], sizeof job->mesh.name[0], "%s",
                 replicates ? "replicate" : "shard");
    }
}

/* What only groups on the device can have (engine/fsdp/OPTIONS.md). */
static tsr_status check_own_options(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool offloads = s->offload != TSR_OFFLOAD_NONE;
    static const char allowed[] = "false, or offload: none";
    const struct tsr_misfit misfits[] = {
        {TSR_K_MIRROR, allowed, offloads && s->mirror},
        {TSR_K_DIRECT_GATHER, allowed, offloads && s->direct_gather},
        {TSR_K_FOLDED_SCALE, allowed, offloads && s->folded_scale}};
    return tsr_job_refuse_misfits(job, misfits, 3, " beside offload");
}

/* What DistributedDataParallel of PyTorch 2.11 stops at: the node behind the model's outputs asks
 * for a reduction that no_sync() has switched off. */
static tsr_status check_ddp(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    bool stops = s->api == TSR_API_DDP && s->ddp_static_graph && s->accum_steps > 1 &&
                 s->accum_mode != TSR_ACCUM_REDUCE_EACH;
    const struct tsr_misfit misfits[] = {{TSR_K_ACCUMULATION_MODE, "reduce_each", stops}};
    return tsr_job_refuse_misfits(
        job, misfits, 1, ", under which DDP stops in its first backward (ddp.static_graph)");
}

/* The tensor-parallel dimension comes last: its ranks are neighbours. */
static tsr_status add_tensor_parallel(struct tsr_job *job)
{
    uint64_t tp = job->settings->tp;
    if (tp == 1)
        return TSR_OK;
    if (job->settings->api == TSR_API_DDP)
        return tsr_node_error(tsr_job_at(job, TSR_K_TP),
                              "tp: found %llu beside api: ddp; allowed: fully_shard or replicate",
                              (unsigned long long)tp);
    if (job->settings->model_impl == TSR_IMPL_TRANSFORMERS)
        return tsr_node_error(tsr_job_at(job, TSR_K_TP),
                              "tp: found %llu beside model.implementation: transformers; allowed: "
                              "1, or plain modules",
                              (unsigned long long)tp);
    if (tsr_model_is_tied(&job->model))
        return tsr_node_error(tsr_job_at(job, TSR_K_TP),
                              "tp: found %llu for %s, whose head is its embedding: PyTorch's "
                              "parallelize_module unties them without a word; allowed: 1, or a "
                              "model with tie_word_embeddings: false",
                              (unsigned long long)tp, job->model.name);
    int n = job->mesh.n_dims++;
    job->mesh.shape[n] = (uint32_t)tp;
    snprintf(job->mesh.name[n], sizeof job->mesh.name[n], "tp");
    return TSR_OK;
}

static tsr_status resolve_mesh(struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_shape_value shape;
    uint64_t world = s->world, cluster = (uint64_t)job->cluster.nodes * job->cluster.gpus_per_node;
    TSR_TRY(read_mesh(job, &shape));
    uint64_t known = 1;
    for (uint32_t i = 0; i < shape.n; i++)
        known *= shape.size[i] ? shape.size[i] : 1;
    uint64_t tp = s->tp;
    bool open = shape.n == 2 && shape.size[1] == 0; /* {replicate: N} alone */
    if (!world)
        world = shape.n && !open ? known * tp : cluster;
    if (!world)
        return tsr_job_lacks(job->experiment, "world", "the number of GPUs, or a cluster");
    if (world > MAX_WORLD)
        return tsr_node_error(tsr_job_at(job, s->nodes ? TSR_K_NODES : TSR_K_CLUSTER_NAME),
                              "%s: found %llu GPUs, all of which take part; allowed: up to %d, or "
                              "world: 1 to %d",
                              s->nodes ? "nodes" : "cluster", (unsigned long long)world, MAX_WORLD,
                              MAX_WORLD);
    if (world % tp != 0)
        return tsr_node_error(tsr_job_at(job, TSR_K_TP),
                              "tp: found %llu; allowed: a divisor of %llu, the world",
                              (unsigned long long)tp, (unsigned long long)world);
    world /= tp; /* what is left for the mesh of data parallelism */
    if (shape.n == 0)
        shape = (struct tsr_shape_value){1, {(uint32_t)world}};
    else if (open && world % known == 0)
        shape.size[1] = (uint32_t)(world / known);
    else if (open || known != world)
        return tsr_node_error(mesh_at(job),
                              "mesh: found sizes whose product is %llu; allowed: a product of "
                              "%llu, the world",
                              (unsigned long long)known, (unsigned long long)world);
    job->mesh.n_dims = (int)shape.n;
    memcpy(job->mesh.shape, shape.size, sizeof shape.size);
    TSR_TRY(check_world(job, world * tp));
    name_dims(job);
    return add_tensor_parallel(job);
}

/* ---- sizes ------------------------------------------------------------------------------- */

static tsr_status check_positions(const struct tsr_job *job)
{
    const struct tsr_model *m = &job->model;
    if (!m->positions_are_hard || job->settings->seq <= m->max_positions)
        return TSR_OK;
    return tsr_node_error(tsr_job_at(job, TSR_K_SEQ),
                          "seq: found %llu; allowed: up to the %llu positions of model %s",
                          (unsigned long long)job->settings->seq,
                          (unsigned long long)m->max_positions, m->name);
}

/* Largest byte counts, in floating point: what does not fit into 62 bits is refused. */
static tsr_status check_overflow(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_model *m = &job->model;
    double limit = 4611686018427387904.0; /* 2^62 */
    double tokens = (double)s->batch * (double)s->seq * (double)s->accum_steps;
    double width = 1, layers = 1, heads = 1;
    if (m->family == TSR_FAMILY_LLAMA) {
        width = (double)m->llama.vocab_size + 8.0 * (double)m->llama.hidden_size +
                4.0 * (double)m->llama.intermediate_size;
        layers = (double)m->llama.n_layers;
        heads = (double)m->llama.n_heads;
    } else if (m->family == TSR_FAMILY_GPT2) {
        width = (double)m->gpt2.vocab_size + 16.0 * (double)m->gpt2.n_embd +
                2.0 * (double)m->gpt2.n_inner;
        layers = (double)m->gpt2.n_layer;
        heads = (double)m->gpt2.n_head;
    } else if (m->family == TSR_FAMILY_MPT) {
        width = (double)m->mpt.vocab_size + 16.0 * (double)m->mpt.d_model +
                2.0 * (double)m->mpt.ffn_width;
        layers = (double)m->mpt.n_layers;
        heads = (double)m->mpt.n_heads;
    }
    double linear = tokens * width * layers * 16;
    double scores = tokens * (double)s->seq * heads * layers * 16;
    double params = (double)m->counts.total * 32;
    double most = linear > scores ? linear : scores;
    if (linear < limit && scores < limit && params < limit)
        return TSR_OK;
    if (params >= limit)
        return tsr_node_error(tsr_setting_at(s, TSR_K_MODEL_NAME),
                              "model: found %.3g parameters: sizes overflow; allowed: fewer than "
                              "%.3g",
                              (double)m->counts.total, limit / 32);
    return tsr_node_error(tsr_job_at(job, s->batch > s->seq ? TSR_K_BATCH : TSR_K_SEQ),
                          "batch x seq x accumulation.steps: found %llu x %llu x %llu: sizes "
                          "overflow (about %.3g bytes); allowed: fewer than %.3g bytes",
                          (unsigned long long)s->batch, (unsigned long long)s->seq,
                          (unsigned long long)s->accum_steps, most, limit);
}

/* ---- opening ----------------------------------------------------------------------------- */

static tsr_status open_job(struct tsr_job *job, enum tsr_job_needs needs)
{
    TSR_TRY(tsr_model_require_runnable(&job->model));
    TSR_TRY(tsr_job_choose_trace(job));
    if (tsr_has_cluster(job->settings))
        TSR_TRY(tsr_load_cluster(job));
    else if (needs == TSR_NEEDS_ALL)
        return tsr_job_lacks(job->experiment, "cluster",
                             "a name of clusters/, the path of a cluster or node file, or "
                             "{nodes: N, gpus: N, gpu: NAME}");
    TSR_TRY(resolve_mesh(job));
    TSR_TRY(check_positions(job));
    TSR_TRY(check_overflow(job));
    TSR_TRY(tsr_job_check_fsdp1(job));
    TSR_TRY(tsr_check_reads(job));
    TSR_TRY(tsr_job_drop_unread(job));
    TSR_TRY(check_own_options(job));
    TSR_TRY(check_ddp(job));
    return tsr_job_check_step(job);
}

tsr_status tsr_job_open(const struct tsr_experiment *experiment,
                        const struct tsr_strategy *strategy, enum tsr_job_needs needs,
                        struct tsr_job *out)
{
    memset(out, 0, sizeof(*out));
    out->experiment = experiment;
    out->strategy = strategy;
    out->settings = &strategy->settings;
    TSR_TRY(tsr_load_model(experiment, strategy, &out->model));
    tsr_status status = open_job(out, needs);
    if (status != TSR_OK)
        tsr_job_close(out);
    return status;
}

void tsr_job_close(struct tsr_job *job)
{
    tsr_model_fini(&job->model);
    free(job->own_settings);
    job->own_settings = NULL;
}

/* ---- words ------------------------------------------------------------------------------- */

enum tsr_dialect tsr_job_dialect(const struct tsr_settings *s)
{
    if (s->dialect != TSR_DIALECT_COMPILE)
        return (enum tsr_dialect)s->dialect;
    return tsr_settings_compile(s, TSR_COMPILE_MODEL) ? TSR_DIALECT_COMPILE : TSR_DIALECT_EAGER;
}

/* AdamW's decay is a number that a kernel gets, so only a run has it. */
static bool decay_is_seen(const struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    return s->optimizer == TSR_OPTIM_SGD || tsr_setting_at(s, TSR_K_TRAIN_DECAY) ||
           tsr_setting_at(s, TSR_K_TRAIN_WEIGHT_DECAY);
}

/* Some parameter is that of several modules. */
static bool shares_params(const struct tsr_model *m)
{
    size_t places = 0;
    for (size_t i = 0; m->trace && i < m->trace->model.n_modules; i++)
        places += m->trace->model.modules[i].n_params;
    return tsr_model_is_tied(m) || (m->trace && places > m->trace->model.n_params);
}

const char *tsr_ddp_mixed_fault(const struct tsr_job *job, bool *stops)
{
    const struct tsr_settings *s = job->settings;
    *stops = s->api == TSR_API_DDP && s->param;
    if (!*stops)
        return NULL;
    if (s->ddp_find_unused)
        return "takes all parameters for unused where ddp.find_unused is true, and stops";
    if (s->accum_steps > 1 && s->accum_mode)
        return "stops at no_sync() (accumulation.mode)";
    if (shares_params(&job->model) && !s->ddp_static_graph)
        return "stops at parameters that modules share unless ddp.static_graph is true";
    if (s->ddp_view)
        return "reduces the second step's gradients in all later ones where "
               "ddp.gradient_as_bucket_view is true";
    *stops = false;
    return s->ddp_static_graph ? "reduces memory that nothing has written in its first two steps"
                               : "reduces memory that nothing has written in its first step";
}

size_t tsr_job_notes(const struct tsr_job *job, char (*out)[256], size_t n)
{
    const struct tsr_model *m = &job->model;
    unsigned long long seq = (unsigned long long)job->settings->seq;
    size_t used = 0;
    if (m->sliding_window && seq > m->sliding_window && used < n)
        snprintf(out[used++], 256,
                 "model %s: attention is modelled in full; its sliding window of %llu is shorter "
                 "than seq %llu",
                 m->name, (unsigned long long)m->sliding_window, seq);
    if (m->max_positions && seq > m->max_positions && used < n)
        snprintf(out[used++], 256, "model %s: seq %llu is beyond its %llu positions", m->name, seq,
                 (unsigned long long)m->max_positions);
    uint64_t per_node = job->cluster.gpus_per_node, nodes = job->settings->nodes;
    if (nodes && per_node && nodes > (job->world + per_node - 1) / per_node && used < n)
        snprintf(out[used++], 256,
                 "nodes: %llu: world %u takes %llu of them; the others are unused",
                 (unsigned long long)nodes, job->world,
                 (unsigned long long)((job->world + per_node - 1) / per_node));
    else if (job->world < job->cluster.nodes * per_node && !job->settings->world && used < n)
        snprintf(out[used++], 256, "mesh: %u of the %llu GPUs of cluster %s; %llu of them are idle",
                 job->world, (unsigned long long)(job->cluster.nodes * per_node), job->cluster.name,
                 (unsigned long long)(job->cluster.nodes * per_node - job->world));
    bool stops;
    const char *fault = tsr_ddp_mixed_fault(job, &stops);
    if (stops && used < n)
        snprintf(out[used++], 256, "api: ddp: precision.param: %s " TSR_DDP_MIXED_FAULT,
                 tsr_dtype_name((tsr_dtype)job->settings->param), fault);
    static const enum tsr_key_id keys[] = {TSR_K_ATTENTION, TSR_K_GQA_REPEAT, TSR_K_ATTENTION_UNPAD,
                                           TSR_K_SEQ};
    const char *allowed;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (tsr_setting_at(job->settings, keys[i]) && tsr_model_ignores(job, keys[i], &allowed) &&
            used < n)
            snprintf(out[used++], 256, "model %s does not read %s%s%s", m->name,
                     tsr_keys[keys[i]].name, strcmp(allowed, "no such key") ? ", but for " : "",
                     strcmp(allowed, "no such key") ? allowed : "");
    if (tsr_decays_nothing(job) && decay_is_seen(job) && used < n)
        snprintf(out[used++], 256, "%s", tsr_decays_nothing_words);
    return used;
}

void tsr_strategy_words(const struct tsr_settings *s, char *out, size_t size)
{
    static const char *const wraps[] = {"per block", "per block, embedding and head apart",
                                        "one group", "own groups"};
    char value[128] = "", more[160] = "";
    if (s->description) {
        snprintf(out, size, "%s", s->description);
        return;
    }
    const struct tsr_key *param = &tsr_keys[TSR_K_PRECISION_PARAM];
    const struct tsr_key *reduce = &tsr_keys[TSR_K_PRECISION_REDUCE];
    char param_text[16], reduce_text[16];
    if (tsr_key_format(param, s, param_text, sizeof param_text) != TSR_OK ||
        tsr_key_format(reduce, s, reduce_text, sizeof reduce_text) != TSR_OK ||
        tsr_key_format(&tsr_keys[TSR_K_RESHARD_AFTER_FORWARD], s, value, sizeof value) != TSR_OK)
        return;
    if (s->api == TSR_API_FULLY_SHARD || s->api == TSR_API_FSDP1)
        snprintf(more, sizeof more, ", reshard %s", value);
    if (s->ckpt_every)
        snprintf(more + strlen(more), sizeof more - strlen(more), ", %scheckpointing",
                 s->ckpt_every == TSR_CKPT_SELECTIVE_OP ? "selective " : "");
    if (s->forward_prefetch || s->backward_prefetch)
        snprintf(more + strlen(more), sizeof more - strlen(more), ", prefetch %llu/%llu",
                 (unsigned long long)s->forward_prefetch, (unsigned long long)s->backward_prefetch);
    if (s->offload)
        snprintf(more + strlen(more), sizeof more - strlen(more), ", offload");
    if (s->api == TSR_API_DDP)
        snprintf(out, size, "ddp, compute %s, reduce %s%s", param_text, reduce_text, more);
    else
        snprintf(out, size, "%s %s, compute %s, reduce %s%s",
                 s->api == TSR_API_REPLICATE ? "replicate"
                 : s->api == TSR_API_FSDP1   ? "fsdp1"
                                             : "fully_shard",
                 wraps[s->wrap.kind], param_text, reduce_text, more);
}
