/* job.c: resolves the names of a strategy and checks that its sizes make sense together. */
#include "experiments/study/job/job.h"

#include <stdio.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/config/settings.h"

const struct tsr_yaml_node *tsr_job_at(const struct tsr_job *job, const char *key)
{
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, key);
    return at ? at : job->strategy->at;
}

/* ---- model and cluster ------------------------------------------------------------------- */

static tsr_status no_key(const struct tsr_experiment *experiment, const char *key,
                         const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "%s: has no key \"%s\"; allowed: %s", experiment->path, key,
                    allowed);
}

static void add_to_name(struct tsr_model *model, const char *joint, uint64_t n, const char *what)
{
    char tail[64];
    snprintf(tail, sizeof tail, " %s %llu %s%s", joint, (unsigned long long)n, what,
             n == 1 ? "" : "s");
    if (strlen(model->name) + strlen(tail) < sizeof model->name)
        strcat(model->name, tail);
}

/* model.layers: the same model with another depth. */
static tsr_status set_layers(const struct tsr_settings *s, struct tsr_model *model)
{
    if (!s->model_layers)
        return TSR_OK;
    if (model->family == TSR_FAMILY_LLAMA)
        model->llama.n_layers = s->model_layers;
    else if (model->family == TSR_FAMILY_GPT2)
        model->gpt2.n_layer = s->model_layers;
    else if (model->family == TSR_FAMILY_MPT)
        model->mpt.n_layers = s->model_layers;
    else
        return tsr_node_error(tsr_setting_at(s, "model.layers"),
                              "model.layers: found %llu beside model %s; allowed: null, or a model "
                              "of the Llama family, GPT-2 or MPT",
                              (unsigned long long)s->model_layers, model->name);
    add_to_name(model, "with", s->model_layers, "layer");
    return tsr_model_count(model);
}

/* model.positions: the same model with a learned table of another length. */
static tsr_status set_positions(const struct tsr_settings *s, struct tsr_model *model)
{
    if (!s->model_positions)
        return TSR_OK;
    if (!model->positions_are_hard)
        return tsr_node_error(tsr_setting_at(s, "model.positions"),
                              "model.positions: found %llu beside model %s; allowed: null, or a "
                              "model with learned positions (GPT-2, MPT)",
                              (unsigned long long)s->model_positions, model->name);
    model->max_positions = s->model_positions;
    model->gpt2.n_positions = model->mpt.max_seq_len = s->model_positions;
    add_to_name(model, s->model_layers ? "and" : "with", s->model_positions, "position");
    return tsr_model_count(model);
}

static tsr_status refuse_word(const struct tsr_settings *s, const char *name,
                              const struct tsr_model *model, const char *allowed)
{
    char found[64];
    TSR_TRY(tsr_key_format(&tsr_keys[tsr_key_find(name)], s, found, sizeof found));
    return tsr_node_error(tsr_setting_at(s, name), "%s: found %s beside model %s; allowed: %s",
                          name, found, model->name, allowed);
}

/* Values that the model, or another one of these keys, has no use for. */
static tsr_status check_variant(const struct tsr_settings *s, const struct tsr_model *model)
{
    static const char *const keys[] = {"model.implementation", "model.names", "model.norm",
                                       "model.packed"};
    const bool set[] = {s->model_impl, s->model_names, s->model_norm, s->model_packed};
    bool known = model->family == TSR_FAMILY_LLAMA || model->family == TSR_FAMILY_GPT2;
    char allowed[96];
    for (size_t i = 0; i < sizeof set / sizeof set[0] && !known; i++) {
        const struct tsr_key *key = &tsr_keys[tsr_key_find(keys[i])];
        snprintf(allowed, sizeof allowed, "%s, or a model of the Llama family or GPT-2", key->def);
        if (set[i])
            return refuse_word(s, keys[i], model, allowed);
    }
    if (s->model_norm && model->family != TSR_FAMILY_LLAMA)
        return refuse_word(s, "model.norm", model, "kernel, or a model of the Llama family");
    bool plain = s->model_impl == TSR_IMPL_PLAIN;
    if (s->model_names != TSR_NAMES_HF && !plain)
        return tsr_node_error(tsr_setting_at(s, "model.names"),
                              "model.names: found torchtitan beside model.implementation: "
                              "transformers; allowed: hf");
    if (s->dialect != TSR_DIALECT_EAGER && !plain)
        return tsr_node_error(tsr_setting_at(s, "dialect"),
                              "dialect: found %s beside model.implementation: transformers; "
                              "allowed: eager",
                              tsr_words_dialect[s->dialect]);
    if (s->model_packed && plain)
        return tsr_node_error(tsr_setting_at(s, "model.packed"),
                              "model.packed: found true beside model.implementation: plain; "
                              "allowed: false");
    return TSR_OK;
}

/* How linear layers run in fp8, and with which kernels around them. */
static tsr_status check_fp8(const struct tsr_settings *s)
{
    bool compiled = s->dialect == TSR_DIALECT_COMPILE;
    if (s->linear == TSR_LINEAR_FP8_TENSORWISE && !compiled)
        return tsr_node_error(tsr_setting_at(s, "precision.linear"),
                              "precision.linear: found fp8_tensorwise beside dialect: %s; allowed: "
                              "plain, fp8_delayed, or dialect: compile",
                              tsr_words_dialect[s->dialect]);
    if (s->linear == TSR_LINEAR_FP8_DELAYED && compiled)
        return tsr_node_error(tsr_setting_at(s, "precision.linear"),
                              "precision.linear: found fp8_delayed beside dialect: compile; "
                              "allowed: plain, fp8_tensorwise, or dialect: eager");
    if (s->fp8_gather && (s->linear != TSR_LINEAR_FP8_TENSORWISE || s->api != TSR_API_FULLY_SHARD))
        return tsr_node_error(tsr_setting_at(s, "precision.fp8_gather"),
                              "precision.fp8_gather: found true; allowed: false, or api: "
                              "fully_shard with precision.linear: fp8_tensorwise");
    if (compiled && s->tp > 1)
        return tsr_node_error(tsr_setting_at(s, "dialect"),
                              "dialect: found compile beside tp: %llu; allowed: eager or fused",
                              (unsigned long long)s->tp);
    return TSR_OK;
}

static tsr_status check_unpad(const struct tsr_settings *s, const struct tsr_model *model)
{
    if (!s->attention_unpad)
        return TSR_OK;
    if (model->family != TSR_FAMILY_MPT)
        return refuse_word(s, "attention_unpad", model, "false, or a model of the MPT family");
    if (s->dialect != TSR_DIALECT_EAGER)
        return tsr_node_error(tsr_setting_at(s, "attention_unpad"),
                              "attention_unpad: found true beside dialect: %s; allowed: false, or "
                              "dialect: eager",
                              tsr_words_dialect[s->dialect]);
    if (s->attention == TSR_SDPA_FLASH)
        return TSR_OK;
    return tsr_node_error(tsr_setting_at(s, "attention_unpad"),
                          "attention_unpad: found true beside attention: %s; allowed: false, or "
                          "attention: flash",
                          tsr_words_attention[s->attention]);
}

/* model.implementation, .names, .norm, .packed: another way to write the same model. */
static tsr_status set_variant(const struct tsr_settings *s, struct tsr_model *model)
{
    TSR_TRY(check_variant(s, model));
    TSR_TRY(check_unpad(s, model));
    TSR_TRY(check_fp8(s));
    model->mpt.unpad = s->attention_unpad;
    model->llama.impl = model->gpt2.impl = (enum tsr_impl)s->model_impl;
    model->llama.names = model->gpt2.names = (enum tsr_names)s->model_names;
    model->llama.packed_mask = model->gpt2.packed_mask = s->model_packed;
    model->llama.hand_norm = s->model_norm == TSR_NORM_HAND;
    return TSR_OK;
}

static tsr_status load_any(const char *path, bool is_tree, const struct tsr_settings *s,
                           struct tsr_model *out)
{
    TSR_TRY(is_tree ? tsr_model_load_tree(path, out) : tsr_model_load_hf(path, out));
    tsr_status status;
    TSR_GOTO(failed, set_layers(s, out));
    TSR_GOTO(failed, set_positions(s, out));
    TSR_GOTO(failed, set_variant(s, out));
    return TSR_OK;
failed:
    tsr_model_fini(out);
    return status;
}

tsr_status tsr_load_model(const struct tsr_experiment *experiment,
                          const struct tsr_strategy *strategy, struct tsr_model *out)
{
    const struct tsr_settings *s = &strategy->settings;
    char path[TSR_FILE_BYTES];
    memset(out, 0, sizeof(*out));
    if (s->model && s->model_tree)
        return tsr_node_error(tsr_setting_at(s, "model.tree"),
                              "model.tree: found %s beside model.name: %s; allowed: one of them",
                              s->model_tree, s->model);
    if (!s->model && !s->model_tree)
        return no_key(experiment, "model",
                      "a name of models/, the path of a config.json, or {tree: FILE}");
    if (s->model_tree) {
        TSR_TRY(tsr_find_file("model.tree", s->model_tree, tsr_setting_at(s, "model.tree"),
                              experiment->path, path));
        return load_any(path, true, s, out);
    }
    TSR_TRY(tsr_find_model(s->model, tsr_setting_at(s, "model.name"), experiment->path, path));
    return load_any(path, false, s, out);
}

static tsr_status load_gpu(struct tsr_job *job, const char *name)
{
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, "gpu");
    char path[TSR_FILE_BYTES];
    TSR_TRY(tsr_find_gpu(name, at ? at : tsr_job_at(job, "cluster"), job->experiment->path, path));
    return tsr_gpu_load(path, &job->cluster.gpu);
}

/* NCCL's topology of a node, or a SimGrid platform. */
static tsr_status load_xml(struct tsr_job *job, const char *path)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_cluster *c = &job->cluster;
    char gpu[64];
    TSR_TRY(tsr_cluster_load_xml(path, (uint32_t)s->nodes, (uint32_t)s->gpus_per_node, c, gpu));
    if (!s->gpu && !*gpu)
        return tsr_node_error(tsr_job_at(job, "cluster"),
                              "cluster: %s does not tell which cards these are; allowed: a key "
                              "gpu with the name of a device file (h100-sxm5-80g)",
                              s->cluster);
    TSR_TRY(load_gpu(job, s->gpu ? s->gpu : gpu));
    if (!*c->platform || c->gpus_per_node == 1)
        return TSR_OK;
    c->intra = c->gpu.nvlink_bw > 0 ? TSR_INTRA_NVSWITCH : TSR_INTRA_PCIE;
    c->multicast = c->intra == TSR_INTRA_NVSWITCH;
    c->intra_bw = c->gpu.nvlink_bw > 0 ? c->gpu.nvlink_bw : c->gpu.pcie_bw;
    return TSR_OK;
}

/* More or fewer nodes than the file has; a node file becomes a cluster without contention. */
static tsr_status set_nodes(struct tsr_job *job)
{
    uint64_t nodes = job->settings->nodes;
    struct tsr_cluster *c = &job->cluster;
    uint32_t domain_nodes = c->nvlink_domain_gpus / c->gpus_per_node;
    if (!nodes)
        return TSR_OK;
    if (domain_nodes > 1 && nodes % domain_nodes != 0)
        return tsr_node_error(tsr_setting_at(job->settings, "nodes"),
                              "nodes: found %llu; allowed: multiples of %u, the nodes of an NVLink "
                              "domain of cluster %s",
                              (unsigned long long)nodes, domain_nodes, c->name);
    c->nodes = (uint32_t)nodes;
    if (nodes > 1 && !strcmp(c->topology, "single_node"))
        memcpy(c->topology, "fat_tree", sizeof "fat_tree");
    return TSR_OK;
}

static tsr_status load_cluster_file(struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    char path[TSR_FILE_BYTES];
    TSR_TRY(
        tsr_find_cluster(s->cluster, tsr_setting_at(s, "cluster"), job->experiment->path, path));
    size_t n = strlen(path);
    if (n > 4 && !strcmp(path + n - 4, ".xml"))
        return load_xml(job, path);
    if (s->gpus_per_node)
        return tsr_node_error(tsr_setting_at(s, "gpus_per_node"),
                              "gpus_per_node: found %llu beside cluster: %s; allowed: null, or a "
                              "SimGrid platform",
                              (unsigned long long)s->gpus_per_node, s->cluster);
    TSR_TRY(tsr_cluster_load(path, &job->cluster));
    TSR_TRY(set_nodes(job));
    return s->gpu ? load_gpu(job, s->gpu) : TSR_OK;
}

static tsr_status load_cluster(struct tsr_job *job)
{
    TSR_TRY(load_cluster_file(job));
    tsr_calibration_override(&job->cluster.gpu.calibration, job->settings->calibration,
                             "sim.calibration of the experiment");
    return TSR_OK;
}

/* ---- mesh -------------------------------------------------------------------------------- */

/* Sizes as given; 0 where the world decides. */
static tsr_status read_mesh(const struct tsr_job *job, struct tsr_shape_value *out)
{
    const struct tsr_settings *s = job->settings;
    *out = s->mesh;
    if (s->mesh.n && (s->mesh_replicate || s->mesh_shard))
        return tsr_node_error(tsr_setting_at(s, "mesh.shape"),
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
    static const char *const keys[] = {"mesh.shape", "mesh.shard", "mesh.replicate"};
    for (size_t i = 0; i < 3; i++)
        if (tsr_setting_at(job->settings, keys[i]))
            return tsr_setting_at(job->settings, keys[i]);
    return job->strategy->at;
}

static tsr_status check_world(struct tsr_job *job, uint64_t world)
{
    uint64_t have = (uint64_t)job->cluster.nodes * job->cluster.gpus_per_node;
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, "world");
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
    static const char *const keys[] = {"mirror", "direct_gather", "folded_scale"};
    const bool on[] = {s->mirror, s->direct_gather, s->folded_scale};
    for (int i = 0; i < 3; i++) {
        if (on[i] && s->api == TSR_API_DDP)
            return tsr_node_error(tsr_job_at(job, keys[i]),
                                  "%s: found true beside api: ddp; allowed: false, or api: "
                                  "fully_shard or replicate",
                                  keys[i]);
        if (on[i] && s->offload != TSR_OFFLOAD_NONE)
            return tsr_node_error(tsr_job_at(job, keys[i]),
                                  "%s: found true beside offload; allowed: false, or offload: none",
                                  keys[i]);
    }
    return TSR_OK;
}

/* The tensor-parallel dimension comes last: its ranks are neighbours. */
static tsr_status add_tensor_parallel(struct tsr_job *job)
{
    uint64_t tp = job->settings->tp;
    if (tp == 1)
        return TSR_OK;
    if (job->settings->api == TSR_API_DDP)
        return tsr_node_error(tsr_job_at(job, "tp"),
                              "tp: found %llu beside api: ddp; allowed: fully_shard or replicate",
                              (unsigned long long)tp);
    if (job->settings->model_impl == TSR_IMPL_TRANSFORMERS)
        return tsr_node_error(tsr_job_at(job, "tp"),
                              "tp: found %llu beside model.implementation: transformers; allowed: "
                              "1, or plain modules",
                              (unsigned long long)tp);
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
        return no_key(job->experiment, "world", "the number of GPUs, or a cluster");
    if (world % tp != 0)
        return tsr_node_error(tsr_job_at(job, "tp"),
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
    return tsr_node_error(
        tsr_job_at(job, "seq"), "seq: found %llu; allowed: up to the %llu positions of model %s",
        (unsigned long long)job->settings->seq, (unsigned long long)m->max_positions, m->name);
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
        return tsr_node_error(tsr_setting_at(s, "model.name"),
                              "model: found %.3g parameters: sizes overflow; allowed: fewer than "
                              "%.3g",
                              (double)m->counts.total, limit / 32);
    return tsr_node_error(tsr_job_at(job, s->batch > s->seq ? "batch" : "seq"),
                          "batch x seq x accumulation.steps: found %llu x %llu x %llu: sizes "
                          "overflow (about %.3g bytes); allowed: fewer than %.3g bytes",
                          (unsigned long long)s->batch, (unsigned long long)s->seq,
                          (unsigned long long)s->accum_steps, most, limit);
}

/* ---- opening ----------------------------------------------------------------------------- */

static tsr_status open_job(struct tsr_job *job, enum tsr_job_needs needs)
{
    TSR_TRY(tsr_model_require_runnable(&job->model));
    if (job->settings->cluster)
        TSR_TRY(load_cluster(job));
    else if (needs == TSR_NEEDS_ALL)
        return no_key(job->experiment, "cluster",
                      "a name of clusters/, or the path of a cluster or node file");
    TSR_TRY(resolve_mesh(job));
    TSR_TRY(check_positions(job));
    TSR_TRY(check_overflow(job));
    TSR_TRY(tsr_job_check_fsdp1(job));
    TSR_TRY(check_own_options(job));
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
}

/* ---- words ------------------------------------------------------------------------------- */

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
    const struct tsr_key *param = &tsr_keys[tsr_key_find("precision.param")];
    const struct tsr_key *reduce = &tsr_keys[tsr_key_find("precision.reduce")];
    char param_text[16], reduce_text[16];
    if (tsr_key_format(param, s, param_text, sizeof param_text) != TSR_OK ||
        tsr_key_format(reduce, s, reduce_text, sizeof reduce_text) != TSR_OK ||
        tsr_key_format(&tsr_keys[tsr_key_find("reshard_after_forward")], s, value, sizeof value) !=
            TSR_OK)
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
