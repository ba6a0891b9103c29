/* job_load.c: the model and the cluster that a strategy names, read from their files and changed as
 * its keys say.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/job.h"

/* ---- model -------------------------------------------------------------------------------- */

tsr_status tsr_job_lacks(const struct tsr_experiment *experiment, const char *key,
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
        return tsr_node_error(tsr_setting_at(s, TSR_K_MODEL_LAYERS),
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
        return tsr_node_error(tsr_setting_at(s, TSR_K_MODEL_POSITIONS),
                              "model.positions: found %llu beside model %s; allowed: null, or a "
                              "model with learned positions (GPT-2, MPT)",
                              (unsigned long long)s->model_positions, model->name);
    model->max_positions = s->model_positions;
    model->gpt2.n_positions = model->mpt.max_seq_len = s->model_positions;
    add_to_name(model, s->model_layers ? "and" : "with", s->model_positions, "position");
    return tsr_model_count(model);
}

static tsr_status refuse_word(const struct tsr_settings *s, enum tsr_key_id key,
                              const struct tsr_model *model, const char *allowed)
{
    char found[64];
    TSR_TRY(tsr_key_format(&tsr_keys[key], s, found, sizeof found));
    return tsr_node_error(tsr_setting_at(s, key), "%s: found %s beside model %s; allowed: %s",
                          tsr_keys[key].name, found, model->name, allowed);
}

/* Values that the model, or another one of these keys, has no use for. */
static tsr_status check_variant(const struct tsr_settings *s, const struct tsr_model *model)
{
    static const enum tsr_key_id keys[] = {TSR_K_MODEL_IMPLEMENTATION, TSR_K_MODEL_NAMES,
                                           TSR_K_MODEL_NORM, TSR_K_MODEL_PACKED};
    const bool set[] = {s->model_impl, s->model_names, s->model_norm, s->model_packed};
    bool known = model->family == TSR_FAMILY_LLAMA || model->family == TSR_FAMILY_GPT2;
    char allowed[96];
    /* A stack may give what such a model has no use for. It is counted all the same, and building
     * it is refused with the true reason. */
    if (model->family == TSR_FAMILY_MOE && s->stack)
        return TSR_OK;
    for (size_t i = 0; i < sizeof set / sizeof set[0] && !known; i++) {
        const struct tsr_key *key = &tsr_keys[keys[i]];
        snprintf(allowed, sizeof allowed, "%s, or a model of the Llama family or GPT-2", key->def);
        if (set[i])
            return refuse_word(s, keys[i], model, allowed);
    }
    if (s->model_norm && model->family != TSR_FAMILY_LLAMA)
        return refuse_word(s, TSR_K_MODEL_NORM, model, "kernel, or a model of the Llama family");
    bool plain = s->model_impl == TSR_IMPL_PLAIN;
    if (s->model_names != TSR_NAMES_HF && !plain)
        return tsr_node_error(tsr_setting_at(s, TSR_K_MODEL_NAMES),
                              "model.names: found torchtitan beside model.implementation: "
                              "transformers; allowed: hf");
    if (s->dialect != TSR_DIALECT_EAGER && !plain)
        return tsr_node_error(tsr_setting_at(s, TSR_K_DIALECT),
                              "dialect: found %s beside model.implementation: transformers; "
                              "allowed: eager",
                              tsr_words_dialect[s->dialect]);
    if (s->model_packed && plain)
        return tsr_node_error(tsr_setting_at(s, TSR_K_MODEL_PACKED),
                              "model.packed: found true beside model.implementation: plain; "
                              "allowed: false");
    return TSR_OK;
}

/* How linear layers run in fp8, and with which kernels around them. */
static tsr_status check_fp8(const struct tsr_settings *s)
{
    bool compiled = s->dialect == TSR_DIALECT_COMPILE;
    if (s->linear == TSR_LINEAR_FP8_TENSORWISE && compiled &&
        !tsr_settings_compile(s, TSR_COMPILE_MODEL))
        return tsr_node_error(tsr_setting_at(s, TSR_K_PRECISION_LINEAR),
                              "precision.linear: found fp8_tensorwise beside compile.components: "
                              "[loss]; allowed: plain, or compile.components with model");
    if (s->linear == TSR_LINEAR_FP8_TENSORWISE && !compiled)
        return tsr_node_error(tsr_setting_at(s, TSR_K_PRECISION_LINEAR),
                              "precision.linear: found fp8_tensorwise beside dialect: %s; allowed: "
                              "plain, fp8_delayed, or dialect: compile",
                              tsr_words_dialect[s->dialect]);
    if (s->linear == TSR_LINEAR_FP8_DELAYED && compiled)
        return tsr_node_error(tsr_setting_at(s, TSR_K_PRECISION_LINEAR),
                              "precision.linear: found fp8_delayed beside dialect: compile; "
                              "allowed: plain, fp8_tensorwise, or dialect: eager");
    if (s->fp8_gather && s->linear != TSR_LINEAR_FP8_TENSORWISE && s->api == TSR_API_FULLY_SHARD)
        return tsr_node_error(tsr_setting_at(s, TSR_K_PRECISION_FP8_GATHER),
                              "precision.fp8_gather: found true; allowed: false, or "
                              "precision.linear: fp8_tensorwise");
    if (s->linear == TSR_LINEAR_FP8_TENSORWISE && s->tp > 1)
        return tsr_node_error(tsr_setting_at(s, TSR_K_PRECISION_LINEAR),
                              "precision.linear: found fp8_tensorwise beside tp: %llu; allowed: "
                              "plain",
                              (unsigned long long)s->tp);
    return TSR_OK;
}

static tsr_status check_unpad(const struct tsr_settings *s, const struct tsr_model *model)
{
    if (!s->attention_unpad)
        return TSR_OK;
    if (model->family != TSR_FAMILY_MPT)
        return refuse_word(s, TSR_K_ATTENTION_UNPAD, model, "false, or a model of the MPT family");
    if (s->dialect != TSR_DIALECT_EAGER)
        return tsr_node_error(tsr_setting_at(s, TSR_K_ATTENTION_UNPAD),
                              "attention_unpad: found true beside dialect: %s; allowed: false, or "
                              "dialect: eager",
                              tsr_words_dialect[s->dialect]);
    if (s->attention == TSR_SDPA_FLASH)
        return TSR_OK;
    return tsr_node_error(tsr_setting_at(s, TSR_K_ATTENTION_UNPAD),
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

/* model.layers and the like change what was read. */
static tsr_status change_model(const struct tsr_settings *s, tsr_status status,
                               struct tsr_model *out)
{
    TSR_TRY(status);
    TSR_GOTO(failed, set_layers(s, out));
    TSR_GOTO(failed, set_positions(s, out));
    TSR_GOTO(failed, set_variant(s, out));
    return TSR_OK;
failed:
    tsr_model_fini(out);
    return status;
}

static tsr_status load_trace(const struct tsr_experiment *experiment, const struct tsr_settings *s,
                             struct tsr_model *out)
{
    char path[TSR_FILE_BYTES];
    const struct tsr_yaml_node *at = tsr_setting_at(s, TSR_K_MODEL_TRACE);
    const char *other = s->model ? "model.name" : "model.tree";
    if (s->model || s->model_tree.path || s->model_tree.node)
        return tsr_node_error(at, "model.trace: found %s beside %s; allowed: one of them",
                              s->model_trace, other);
    TSR_TRY(tsr_find_file("model.trace", s->model_trace, at, experiment->path, path));
    return tsr_model_load_trace(path, out);
}

static tsr_status load_tree(const struct tsr_experiment *experiment, const struct tsr_settings *s,
                            struct tsr_model *out)
{
    char path[TSR_FILE_BYTES];
    if (s->model_tree.node)
        return tsr_model_load_tree_node(s->model_tree.node, experiment->path, out);
    TSR_TRY(tsr_find_file("model.tree", s->model_tree.path, tsr_setting_at(s, TSR_K_MODEL_TREE),
                          experiment->path, path));
    return tsr_model_load_tree(path, out);
}

tsr_status tsr_load_model(const struct tsr_experiment *experiment,
                          const struct tsr_strategy *strategy, struct tsr_model *out)
{
    const struct tsr_settings *s = &strategy->settings;
    const char *tree = s->model_tree.node ? "a tree" : s->model_tree.path;
    char path[TSR_FILE_BYTES];
    memset(out, 0, sizeof(*out));
    if (s->model_trace)
        return change_model(s, load_trace(experiment, s, out), out);
    if (s->model && tree)
        return tsr_node_error(tsr_setting_at(s, TSR_K_MODEL_TREE),
                              "model.tree: found %s beside model.name: %s; allowed: one of them",
                              tree, s->model);
    if (!s->model && !tree)
        return tsr_job_lacks(
            experiment, "model",
            "a name of models/, the path of a config.json, {tree: FILE} or {trace: FILE}");
    if (tree)
        return change_model(s, load_tree(experiment, s, out), out);
    TSR_TRY(tsr_find_model(s->model, tsr_setting_at(s, TSR_K_MODEL_NAME), experiment->path, path));
    return change_model(s, tsr_model_load_hf(path, out), out);
}

/* ---- cluster ------------------------------------------------------------------------------ */

static tsr_status load_gpu(struct tsr_job *job, const char *name)
{
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, TSR_K_GPU);
    char path[TSR_FILE_BYTES];
    TSR_TRY(tsr_find_gpu(name, at ? at : tsr_job_at(job, TSR_K_CLUSTER_NAME), job->experiment->path,
                         path));
    return tsr_gpu_load(path, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                        job->experiment->kernels, &job->cluster.gpu);
}

/* NCCL's topology of a node, or a SimGrid platform. */
static tsr_status load_xml(struct tsr_job *job, const char *path)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_cluster *c = &job->cluster;
    char gpu[64];
    TSR_TRY(tsr_cluster_load_xml(path, (uint32_t)s->nodes, (uint32_t)s->gpus_per_node, c, gpu));
    if (!s->gpu && !*gpu)
        return tsr_node_error(tsr_job_at(job, TSR_K_CLUSTER_NAME),
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
        return tsr_node_error(tsr_setting_at(job->settings, TSR_K_NODES),
                              "nodes: found %llu; allowed: multiples of %u, the nodes of an NVLink "
                              "domain of cluster %s",
                              (unsigned long long)nodes, domain_nodes, c->name);
    c->nodes = (uint32_t)nodes;
    if (nodes > 1 && !strcmp(c->topology, "single_node"))
        memcpy(c->topology, "fat_tree", sizeof "fat_tree");
    return TSR_OK;
}

/* ---- keys of a cluster -------------------------------------------------------------------- */

static const enum tsr_key_id own_keys[] = {TSR_K_CLUSTER_NODES,
                                           TSR_K_CLUSTER_GPUS,
                                           TSR_K_CLUSTER_NVLINK,
                                           TSR_K_CLUSTER_NICS,
                                           TSR_K_CLUSTER_GPU,
                                           TSR_K_CLUSTER_NIC_GBIT,
                                           TSR_K_CLUSTER_OVERSUBSCRIPTION,
                                           TSR_K_CLUSTER_LEAF_NODES};
enum { N_OWN = sizeof own_keys / sizeof own_keys[0] };

static struct tsr_cluster_keys keys_of(const struct tsr_own_cluster *own)
{
    return (struct tsr_cluster_keys){
        .nodes = (uint32_t)own->nodes,
        .gpus = (uint32_t)own->gpus,
        .nics = (uint32_t)own->nics,
        .nvlink = (enum tsr_nvlink)own->nvlink,
        .nic_gbit = isnan(own->nic_gbit) ? 0.0 : own->nic_gbit,
        .oversubscription = isnan(own->oversubscription) ? 0.0 : own->oversubscription,
        .leaf_nodes = (uint32_t)own->leaf_nodes,
    };
}

/* The first of these keys that was given; NULL: none. */
static const struct tsr_yaml_node *any_own_key(const struct tsr_settings *s, const char **name)
{
    for (size_t i = 0; i < N_OWN; i++) {
        char value[64];
        const struct tsr_key *key = &tsr_keys[own_keys[i]];
        *name = key->name;
        if (tsr_key_format(key, s, value, sizeof value) != TSR_OK || strcmp(value, key->def) != 0)
            return tsr_setting_at(s, own_keys[i]);
    }
    return NULL;
}

/* A line of sim/cluster about "cluster.KEY: ..." gets the place of the key. */
static tsr_status at_key(const struct tsr_job *job, tsr_status status)
{
    char text[512];
    snprintf(text, sizeof text, "%s", tsr_error_text());
    size_t n = strcspn(text, ":");
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)(n < 60 ? n : 60), text);
    size_t i = tsr_key_find(key);
    if (status != TSR_ECONFIG || i == TSR_N_KEYS)
        return status;
    const struct tsr_yaml_node *at = tsr_setting_at(job->settings, i);
    for (size_t k = 0; k < N_OWN && !at; k++)
        at = tsr_setting_at(job->settings, own_keys[k]);
    return tsr_node_error(at ? at : job->strategy->at, "%s", text);
}

static tsr_status load_own(struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const struct tsr_cluster_keys keys = keys_of(&s->own);
    char path[TSR_FILE_BYTES];
    TSR_TRY(tsr_find_gpu(s->own.gpu, tsr_setting_at(s, TSR_K_CLUSTER_GPU), job->experiment->path,
                         path));
    tsr_status status =
        tsr_cluster_make(path, &keys, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                         job->experiment->kernels, &job->cluster);
    return status == TSR_OK ? TSR_OK : at_key(job, status);
}

/* Keys beside a file change it. */
static tsr_status change_file(struct tsr_job *job)
{
    const struct tsr_cluster_keys keys = keys_of(&job->settings->own);
    tsr_status status = tsr_cluster_change(&job->cluster, &keys);
    if (status != TSR_OK)
        return at_key(job, status);
    return job->settings->own.gpu ? load_gpu(job, job->settings->own.gpu) : TSR_OK;
}

static bool is_xml(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, ".xml");
}

static tsr_status load_file(struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const char *key;
    const struct tsr_yaml_node *own = any_own_key(s, &key);
    char path[TSR_FILE_BYTES];
    TSR_TRY(tsr_find_cluster(s->cluster, tsr_setting_at(s, TSR_K_CLUSTER_NAME),
                             job->experiment->path, path));
    if (is_xml(path) && own)
        return tsr_node_error(own, "%s: found beside cluster.name: %s; allowed: a .json file", key,
                              s->cluster);
    if (is_xml(path))
        return load_xml(job, path);
    TSR_TRY(tsr_cluster_load(path, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                             job->experiment->kernels, &job->cluster));
    return change_file(job);
}

/* Keys of the experiment beside `cluster`. */
static tsr_status change_cluster(struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    if (s->cluster && is_xml(s->cluster))
        return TSR_OK; /* load_xml() has seen them */
    if (s->gpus_per_node)
        return tsr_node_error(tsr_setting_at(s, TSR_K_GPUS_PER_NODE),
                              "gpus_per_node: found %llu beside cluster: %s; allowed: null, or a "
                              "SimGrid platform",
                              (unsigned long long)s->gpus_per_node, job->cluster.name);
    TSR_TRY(set_nodes(job));
    return s->gpu ? load_gpu(job, s->gpu) : TSR_OK;
}

tsr_status tsr_load_cluster(struct tsr_job *job)
{
    const struct tsr_settings *s = job->settings;
    const char *key;
    const struct tsr_yaml_node *own = any_own_key(s, &key);
    if (!s->cluster && !s->own.gpu)
        return tsr_node_error(own ? own : job->strategy->at,
                              "%s: found beside neither cluster.name nor cluster.gpu; allowed: "
                              "beside the name of a cluster file, or of a card",
                              key);
    TSR_TRY(s->cluster ? load_file(job) : load_own(job));
    TSR_TRY(change_cluster(job));
    tsr_calibration_override(&job->cluster.gpu.calibration, s->calibration,
                             "sim.calibration of the experiment");
    return TSR_OK;
}

bool tsr_has_cluster(const struct tsr_settings *s)
{
    const char *key;
    return s->cluster || s->own.gpu || any_own_key(s, &key);
}
