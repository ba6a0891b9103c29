/* inspect.c: `tessera inspect`: what a file stands for (a model, a cluster, an experiment),
 * without simulating it. */
#include "experiments/cli/inspect/inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/fsdp/transitions.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/base/json.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/job/job.h"
#include "experiments/study/model/trace_file.h"
#include "experiments/study/report/report.h"
#include "sim/base/files.h"

const char *tsr_group_digits(uint64_t value, char out[32])
{
    char plain[24];
    int n = snprintf(plain, sizeof plain, "%" PRIu64, value), used = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = plain[i];
    }
    out[used] = 0;
    return out;
}

/* ---- a model as JSON ------------------------------------------------------------------------- */

static json_t *llama_sizes(const struct tsr_model *model)
{
    const struct tsr_llama_config *c = &model->llama;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b}", "layers", (json_int_t)c->n_layers,
        "hidden_size", (json_int_t)c->hidden_size, "heads", (json_int_t)c->n_heads, "kv_heads",
        (json_int_t)c->n_kv_heads, "head_dim", (json_int_t)c->head_dim, "ffn_dim",
        (json_int_t)(model->family == TSR_FAMILY_MOE ? model->moe.expert_size
                                                     : c->intermediate_size),
        "vocab_size", (json_int_t)c->vocab_size, "tied_embeddings", (int)c->tie_embeddings,
        "qkv_bias", (int)c->qkv_bias, "qk_norm", (int)c->qk_norm);
}

static json_t *gpt2_sizes(const struct tsr_model *model)
{
    const struct tsr_gpt2_config *c = &model->gpt2;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b}", "layers", (json_int_t)c->n_layer,
                     "hidden_size", (json_int_t)c->n_embd, "heads", (json_int_t)c->n_head,
                     "ffn_dim", (json_int_t)c->n_inner, "vocab_size", (json_int_t)c->vocab_size,
                     "tied_embeddings", !c->untied);
}

static json_t *mpt_sizes(const struct tsr_model *model)
{
    const struct tsr_mpt_config *c = &model->mpt;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b}", "layers", (json_int_t)c->n_layers,
                     "hidden_size", (json_int_t)c->d_model, "heads", (json_int_t)c->n_heads,
                     "ffn_dim", (json_int_t)c->ffn_width, "vocab_size", (json_int_t)c->vocab_size,
                     "tied_embeddings", !c->untied);
}

static json_t *counts_of(const struct tsr_param_counts *n)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "embedding",
                     (json_int_t)n->embed, "layer", (json_int_t)n->layer, "layers",
                     (json_int_t)n->n_layers, "dense_layer", (json_int_t)n->dense_layer,
                     "dense_layers", (json_int_t)n->n_dense_layers, "final_norm",
                     (json_int_t)n->final_norm, "head", (json_int_t)n->head, "total",
                     (json_int_t)n->total, "active_per_token", (json_int_t)n->active);
}

/* What a trace file is recognised by, and the variants that it holds. */
static json_t *trace_of(const struct tsr_traced_file *trace)
{
    json_t *variants = json_array();
    for (size_t i = 0; i < trace->n_variants; i++)
        json_array_append_new(variants, json_string(trace->variants[i].name));
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:o}", "source", trace->source, "class",
                     trace->type, "sha256", trace->sha256, "modules",
                     (json_int_t)trace->model.n_modules, "blocks", (json_int_t)trace->n_blocks,
                     "parameters", (json_int_t)trace->n_elements, "variants", variants);
}

/* NULL when out of memory. */
static json_t *tsr_inspect_model(const struct tsr_model *model)
{
    json_t *sizes = NULL, *counts = NULL, *experts = json_null();
    if (model->family == TSR_FAMILY_GPT2)
        sizes = gpt2_sizes(model);
    else if (model->family == TSR_FAMILY_MPT)
        sizes = mpt_sizes(model);
    else if (model->family != TSR_FAMILY_TREE && !model->trace)
        sizes = llama_sizes(model);
    if (model->family != TSR_FAMILY_TREE && !model->trace)
        counts = counts_of(&model->counts);
    if (model->family == TSR_FAMILY_MOE)
        experts = json_pack("{s:I, s:I, s:I}", "routed", (json_int_t)model->moe.n_experts, "shared",
                            (json_int_t)model->moe.n_shared, "per_token",
                            (json_int_t)model->moe.n_per_token);
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:b}", "name", model->name, "file", model->path,
        "model_type", model->type, "sizes", sizes ? sizes : json_object(), "parameters",
        counts ? counts : json_object(), "experts", experts, "sliding_window",
        model->sliding_window ? json_integer((json_int_t)model->sliding_window) : json_null(),
        "simulated", model->family != TSR_FAMILY_MOE);
}

/* ---- a model as text ------------------------------------------------------------------------- */

static uint64_t get(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void count_line(FILE *out, const char *what, uint64_t n, uint64_t times)
{
    char digits[32], product[32];
    if (!n || !times)
        return;
    tsr_group_digits(n, digits);
    if (times == 1)
        fprintf(out, "  %-22s %20s\n", what, digits);
    else
        fprintf(out, "  %-22s %20s  = %s x %" PRIu64 "\n", what,
                tsr_group_digits(n * times, product), digits, times);
}

static void print_sizes(FILE *out, const json_t *sizes)
{
    const char *key;
    json_t *value;
    bool first = true;
    json_object_foreach((json_t *)sizes, key, value)
    {
        if (json_is_integer(value))
            fprintf(out, "%s%s %" JSON_INTEGER_FORMAT, first ? "  " : ", ", key,
                    json_integer_value(value));
        else if (json_is_true(value))
            fprintf(out, ", %s", key);
        first = false;
    }
    if (!first)
        fprintf(out, "\n");
}

static void print_trace(FILE *out, const json_t *trace)
{
    char digits[32];
    const char *variants = "  variants";
    const json_t *list = json_object_get(trace, "variants");
    fprintf(out, "  %s of %s, %" PRIu64 " modules, %" PRIu64 " repeated blocks, %s parameters\n",
            json_string_value(json_object_get(trace, "class")),
            json_string_value(json_object_get(trace, "source")), get(trace, "modules"),
            get(trace, "blocks"), tsr_group_digits(get(trace, "parameters"), digits));
    for (size_t i = 0; i < json_array_size(list); i++) {
        fprintf(out, "%s %s", variants, json_string_value(json_array_get(list, i)));
        variants = ",";
    }
    fprintf(out, "\n  sha256 %s\n", json_string_value(json_object_get(trace, "sha256")));
}

static void tsr_print_model(FILE *out, const json_t *model)
{
    const json_t *n = json_object_get(model, "parameters");
    const json_t *experts = json_object_get(model, "experts");
    char bytes[32];
    fprintf(out, "Model %s (%s)\n", json_string_value(json_object_get(model, "name")),
            json_string_value(json_object_get(model, "model_type")));
    fprintf(out, "  file %s\n", json_string_value(json_object_get(model, "file")));
    print_sizes(out, json_object_get(model, "sizes"));
    if (json_object_get(model, "trace"))
        print_trace(out, json_object_get(model, "trace"));
    if (json_is_object(experts))
        fprintf(out, "  experts %" PRIu64 " routed, %" PRIu64 " shared, %" PRIu64 " per token\n",
                get(experts, "routed"), get(experts, "shared"), get(experts, "per_token"));
    if (get(n, "total") == 0)
        return;
    fprintf(out, "\nParameters\n");
    count_line(out, "embedding", get(n, "embedding"), 1);
    count_line(out, "dense layers", get(n, "dense_layer"), get(n, "dense_layers"));
    count_line(out, "layers", get(n, "layer"), get(n, "layers"));
    count_line(out, "final norm", get(n, "final_norm"), 1);
    count_line(out, "head", get(n, "head"), 1);
    if (!get(n, "head"))
        fprintf(out, "  %-22s %20s  (the embedding again)\n", "head", "tied");
    count_line(out, "total", get(n, "total"), 1);
    if (get(n, "active_per_token") != get(n, "total"))
        count_line(out, "active per token", get(n, "active_per_token"), 1);
    fprintf(out, "  a bf16 checkpoint has %s\n",
            tsr_bytes_text(2.0 * (double)get(n, "total"), bytes));
    if (json_is_false(json_object_get(model, "simulated")))
        fprintf(out, "  not modelled in sim and compare: experts (routing, expert weights)%s\n",
                strncmp(json_string_value(json_object_get(model, "model_type")), "deepseek", 8)
                    ? ""
                    : " and latent attention");
}

/* ---- a cluster ------------------------------------------------------------------------------- */

/* Unknown values (null) stay unknown. */

/* 0 means unknown in the structs of sim/cluster/cluster.h. */
static json_t *real_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *calibration_of(const struct tsr_calibration *calibration)
{
    json_t *out = json_object();
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++) {
        const struct tsr_calibration_row *row = tsr_calibration_row((enum tsr_calibration_id)i);
        json_object_set_new(out, row->name,
                            json_pack("{s:f, s:s, s:s, s:s}", "value", calibration->value[i],
                                      "source", calibration->source[i], "data",
                                      calibration->data[i], "means", row->help));
    }
    return out;
}

static json_t *sources_of(const struct tsr_gpu *gpu)
{
    char lines[16][256];
    json_t *out = json_array();
    size_t n = tsr_kernel_sources(gpu, lines, 16);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_string(lines[i]));
    return out;
}

static json_t *gpu_of(const struct tsr_gpu *gpu)
{
    static const char *const peaks[TSR_N_PEAKS] = {
        [TSR_PEAK_BF16] = "bf16", [TSR_PEAK_FP16] = "fp16", [TSR_PEAK_FP8] = "fp8",
        [TSR_PEAK_TF32] = "tf32", [TSR_PEAK_FP32] = "fp32", [TSR_PEAK_FP64] = "fp64"};
    json_t *flops = json_object();
    for (int i = 0; i < TSR_N_PEAKS; i++)
        json_object_set_new(flops, peaks[i], real_or_null(gpu->peak_flops[i]));
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", gpu->name, "file",
        gpu->path, "description", gpu->description, "visible_bytes",
        gpu->visible_bytes ? json_integer((json_int_t)gpu->visible_bytes) : json_null(),
        "memory_bytes_per_s", real_or_null(gpu->memory_bw), "nvlink_bytes_per_s",
        real_or_null(gpu->nvlink_bw), "pcie_bytes_per_s", real_or_null(gpu->pcie_bw),
        "achievable_bf16_flop_per_s", real_or_null(gpu->achievable_bf16), "peak_flop_per_s", flops,
        "calibration", calibration_of(&gpu->calibration), "kernel_times", sources_of(gpu));
}

/* Of the whole network, from the nodes to the top. */
static double oversubscription_of(const struct tsr_cluster *c)
{
    double over = 1;
    for (uint32_t i = 0; i < c->n_tiers; i++)
        over *= c->tiers[i].oversubscription;
    return over;
}

/* NULL when out of memory. */
static json_t *tsr_inspect_cluster(const struct tsr_cluster *c)
{
    static const char *const intra[] = {"none", "nvswitch", "nvlink", "pcie", "shared_memory"};
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:o, s:I, s:o, s:s, s:o, s:I, s:o, s:o}", "name",
        c->name, "file", c->path, "description", c->description, "node", c->node_name, "nodes",
        (json_int_t)c->nodes, "gpus_per_node", (json_int_t)c->gpus_per_node, "gpus",
        (json_int_t)c->nodes * c->gpus_per_node, "inside_node", intra[c->intra],
        "inside_bytes_per_s_per_gpu", real_or_null(c->intra_bw), "nics_per_node",
        (json_int_t)c->nics_per_node, "nic_bytes_per_s", real_or_null(c->nic_bw), "topology",
        c->topology, "oversubscription", json_real(oversubscription_of(c)), "nvlink_domain_gpus",
        (json_int_t)c->nvlink_domain_gpus, "gpu", gpu_of(&c->gpu), "network",
        tsr_inspect_topology(c));
}

/* "450 GB/s", or "?". */
static const char *rate(const json_t *object, const char *key, double unit, const char *unit_name,
                        char out[64])
{
    const json_t *value = json_object_get(object, key);
    if (json_is_number(value))
        snprintf(out, 64, "%.4g %s", json_number_value(value) / unit, unit_name);
    else
        snprintf(out, 64, "?");
    return out;
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && *value ? value : "?";
}

static json_int_t integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Every calibrated number with where it comes from. */
static void print_calibration(FILE *out, json_t *calibration)
{
    const char *name;
    json_t *one;
    fprintf(out, "    calibration (sim.calibration.NAME overrides)\n");
    json_object_foreach(calibration, name, one)
    {
        const char *data = json_string_value(json_object_get(one, "data"));
        fprintf(out, "      %-22s %-8.4g %s%s%s\n", name,
                json_number_value(json_object_get(one, "value")), text(one, "source"),
                data && *data ? "; data: " : "", data ? data : "");
    }
}

static void print_gpu(FILE *out, const json_t *gpu)
{
    const json_t *peaks = json_object_get(gpu, "peak_flop_per_s");
    const json_t *visible = json_object_get(gpu, "visible_bytes");
    char a[64], b[64], c[64], memory[32] = "?";
    if (json_is_integer(visible))
        tsr_bytes_text((double)json_integer_value(visible), memory);
    fprintf(out, "  GPU %s (%s), file %s\n", text(gpu, "name"), text(gpu, "description"),
            text(gpu, "file"));
    fprintf(out, "    memory %s visible, %s\n", memory,
            rate(gpu, "memory_bytes_per_s", 1e12, "TB/s", a));
    fprintf(out, "    peak bf16 %s, tf32 %s, fp32 %s (dense)",
            rate(peaks, "bf16", 1e12, "TFLOP/s", a), rate(peaks, "tf32", 1e12, "TFLOP/s", b),
            rate(peaks, "fp32", 1e12, "TFLOP/s", c));
    fprintf(out, "; best measured bf16 product %s\n",
            rate(gpu, "achievable_bf16_flop_per_s", 1e12, "TFLOP/s", a));
    fprintf(out, "    NVLink %s, PCIe %s (one direction)\n",
            rate(gpu, "nvlink_bytes_per_s", 1e9, "GB/s", a),
            rate(gpu, "pcie_bytes_per_s", 1e9, "GB/s", b));
    const json_t *sources = json_object_get(gpu, "kernel_times");
    for (size_t i = 0; i < json_array_size(sources); i++)
        fprintf(out, "    %s\n", json_string_value(json_array_get(sources, i)));
    print_calibration(out, json_object_get(gpu, "calibration"));
}

static void tsr_print_cluster(FILE *out, const json_t *cluster)
{
    char a[64], b[64];
    fprintf(out, "Cluster %s (%s)\n  file %s\n", text(cluster, "name"),
            text(cluster, "description"), text(cluster, "file"));
    fprintf(out,
            "  %" JSON_INTEGER_FORMAT " GPUs: %" JSON_INTEGER_FORMAT
            " x node %s with %" JSON_INTEGER_FORMAT "\n",
            integer(cluster, "gpus"), integer(cluster, "nodes"), text(cluster, "node"),
            integer(cluster, "gpus_per_node"));
    fprintf(out,
            "  inside a node: %s, %s per GPU and direction; NVLink spans %" JSON_INTEGER_FORMAT
            " GPUs\n",
            text(cluster, "inside_node"),
            rate(cluster, "inside_bytes_per_s_per_gpu", 1e9, "GB/s", a),
            integer(cluster, "nvlink_domain_gpus"));
    if (integer(cluster, "nodes") > 1)
        fprintf(out,
                "  between nodes: %" JSON_INTEGER_FORMAT
                " adapters per node, %s each and direction; %s, oversubscription %s\n",
                integer(cluster, "nics_per_node"), rate(cluster, "nic_bytes_per_s", 1e9, "GB/s", a),
                text(cluster, "topology"), rate(cluster, "oversubscription", 1, ": 1", b));
    else
        fprintf(out, "  one node: nothing leaves it\n");
    tsr_print_topology(out, cluster);
    print_gpu(out, json_object_get(cluster, "gpu"));
}

static const char *const formats[] = {"text", "json", NULL};

enum file_kind { FILE_EXPERIMENT, FILE_HF, FILE_TREE, FILE_CLUSTER, FILE_TRACE };

/* Whether the file is compressed by gzip: of what is inspected, only traces are. */
static bool is_compressed(const char *path)
{
    unsigned char head[2] = {0};
    const char *why;
    int fd = tsr_file_open(NULL, path, TSR_OPEN_READ, NULL, &why);
    bool found = fd >= 0 && pread(fd, head, 2, 0) == 2 && head[0] == 0x1f && head[1] == 0x8b;
    if (fd >= 0)
        (void)close(fd);
    return found;
}

static tsr_status sniff(const char *path, enum file_kind *kind)
{
    struct tsr_doc doc;
    *kind = FILE_TRACE;
    if (is_compressed(path))
        return TSR_OK;
    TSR_TRY(tsr_doc_load(path, &doc));
    const struct tsr_yaml_node *what = tsr_node_get(doc.root, "kind");
    *kind = FILE_EXPERIMENT;
    if (tsr_node_get(doc.root, "model_type"))
        *kind = FILE_HF;
    else if (tsr_node_get(doc.root, "modules"))
        *kind = FILE_TREE;
    else if (what && (!strcmp(what->text, "cluster") || !strcmp(what->text, "node")))
        *kind = FILE_CLUSTER;
    tsr_doc_fini(&doc);
    return TSR_OK;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static tsr_status add_layouts(const struct tsr_experiment *e, json_t *out)
{
    json_t *list = json_array();
    json_object_set_new(out, "strategies", list);
    for (size_t i = 0; i < e->n; i++) {
        struct tsr_job job;
        json_t *layout = NULL;
        TSR_TRY(tsr_job_open(e, &e->strategies[i], TSR_MAY_LACK_CLUSTER, &job));
        tsr_status status = tsr_inspect_layout(&job, &layout);
        if (status == TSR_OK && *job.cluster.name && !json_object_get(out, "cluster"))
            json_object_set_new(out, "cluster", tsr_inspect_cluster(&job.cluster));
        tsr_job_close(&job);
        TSR_TRY(status);
        if (i == 0)
            json_object_set(out, "modules", json_object_get(layout, "modules"));
        json_object_del(layout, "modules");
        json_array_append_new(list, layout);
    }
    return TSR_OK;
}

static tsr_status gather_experiment(const struct tsr_experiment *e, json_t *out)
{
    struct tsr_model model;
    TSR_TRY(tsr_load_model(e, &e->strategies[0], &model));
    bool runnable = model.family != TSR_FAMILY_MOE;
    json_object_set_new(out, "model", tsr_inspect_model(&model));
    tsr_model_fini(&model);
    return runnable ? add_layouts(e, out) : TSR_OK;
}

/* A model file alone: an experiment of one rank around it. */
static tsr_status gather_model(const char *path, bool is_tree, json_t *out)
{
    struct tsr_strategy strategy = {.name = "one rank", .base = "one rank"};
    struct tsr_experiment e = {.path = path, .title = path, .n = 1, .strategies = &strategy};
    tsr_settings_default(&strategy.settings);
    strategy.settings.world = 1;
    strategy.settings.seq = 1;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path; /* relative to the folder of the file itself */
    if (is_tree)
        strategy.settings.model_tree.path = name;
    else
        strategy.settings.model = name;
    strategy.settings.wrap.kind = TSR_WRAP_ROOT;
    tsr_status status = gather_experiment(&e, out);
    json_object_del(out, "strategies");
    return status;
}

/* A trace is read and checked as a whole; the job that it belongs to is an experiment's matter. */
static tsr_status gather_trace(const char *path, json_t *out)
{
    struct tsr_model model;
    TSR_TRY(tsr_model_load_trace(path, &model));
    json_t *shown = tsr_inspect_model(&model);
    if (shown)
        json_object_set_new(shown, "trace", trace_of(model.trace));
    json_object_set_new(out, "model", shown);
    tsr_model_fini(&model);
    return TSR_OK;
}

static tsr_status gather(const struct tsr_args *args, json_t *out)
{
    enum file_kind kind;
    char config[TSR_FILE_BYTES];
    const char *file = args->file;
    struct stat info;
    if (stat(file, &info) == 0 && S_ISDIR(info.st_mode)) { /* as Hugging Face lays a model down */
        int n = snprintf(config, sizeof config, "%s/config.json", file);
        if (n > 0 && n < TSR_FILE_BYTES)
            file = config;
    }
    TSR_TRY(sniff(file, &kind));
    if (kind == FILE_CLUSTER) {
        struct tsr_kernel_store kernels = {0};
        struct tsr_cluster cluster;
        tsr_status loaded =
            tsr_cluster_load(file, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                             &kernels, &cluster);
        if (loaded == TSR_OK)
            json_object_set_new(out, "cluster", tsr_inspect_cluster(&cluster));
        tsr_kernel_store_fini(&kernels);
        return loaded;
    }
    if (kind == FILE_TRACE)
        return gather_trace(file, out);
    if (kind != FILE_EXPERIMENT)
        return gather_model(file, kind == FILE_TREE, out);
    struct tsr_experiment experiment;
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status = args->only ? tsr_experiment_only(&experiment, args->only) : TSR_OK;
    if (status == TSR_OK)
        status = gather_experiment(&experiment, out);
    if (status == TSR_OK)
        tsr_tell_unread(&experiment, NULL);
    tsr_experiment_fini(&experiment);
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Of the strategy whose modules are shown. */
static uint64_t tensor_parallel(const json_t *strategies)
{
    const json_t *first = json_array_get(strategies, 0);
    return first ? (uint64_t)json_integer_value(json_object_get(first, "tensor_parallel")) : 1;
}

static void print_text(FILE *out, const json_t *facts)
{
    const json_t *model = json_object_get(facts, "model");
    const json_t *modules = json_object_get(facts, "modules");
    const json_t *cluster = json_object_get(facts, "cluster");
    const json_t *strategies = json_object_get(facts, "strategies");
    if (model)
        tsr_print_model(out, model);
    if (modules) {
        fprintf(out, "\n");
        tsr_print_modules(out, modules, tensor_parallel(strategies));
    }
    if (cluster) {
        if (model)
            fprintf(out, "\n");
        tsr_print_cluster(out, cluster);
    }
    for (size_t i = 0; i < json_array_size(strategies); i++) {
        fprintf(out, "\n");
        tsr_print_layout(out, json_array_get(strategies, i));
    }
}

static tsr_status print_facts(const struct tsr_args *args, json_t *facts)
{
    tsr_status status = TSR_OK;
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    if (!strcmp(args->format, "json"))
        status = tsr_print_report(page.out, facts);
    else if (!tsr_json_show(facts))
        status = tsr_no_memory("the report");
    else
        print_text(page.out, facts);
    return tsr_page_end(&page, status);
}

/* The tables of legal moves as one graph, a cluster per machine. */
static void print_states(void)
{
    printf("digraph tessera {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n"
           "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (int m = 0; m < TSR_N_MACHINES; m++) {
        enum tsr_machine machine = (enum tsr_machine)m;
        const char *name = tsr_machine_name(machine), *state;
        size_t n;
        const struct tsr_transition *rows = tsr_transitions(machine, &n);
        printf("  subgraph cluster_%s {\n    label=\"%s\";\n", name, name);
        for (unsigned i = 0; (state = tsr_machine_state_name(machine, i)); i++)
            printf("    %s_%s [label=\"%s\"];\n", name, state, state);
        for (size_t i = 0; i < n; i++)
            printf("    %s_%s -> %s_%s [label=\"%s%s%s\"];\n", name,
                   tsr_machine_state_name(machine, rows[i].from), name,
                   tsr_machine_state_name(machine, rows[i].to), tsr_cause_name(rows[i].cause),
                   rows[i].when ? ": " : "", rows[i].when ? rows[i].when : "");
        printf("  }\n");
    }
    printf("}\n");
}

tsr_status tsr_cmd_inspect(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    if (args->states) {
        print_states();
        return TSR_OK;
    }
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->print_config)
        return tsr_print_config(args);
    json_t *facts = json_object();
    if (!facts)
        return tsr_no_memory(NULL);
    tsr_status status = gather(args, facts);
    if (status == TSR_OK)
        status = print_facts(args, facts);
    json_decref(facts);
    return status;
}
