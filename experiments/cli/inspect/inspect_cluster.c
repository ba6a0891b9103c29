/* inspect_cluster.c: what a cluster file says; unknown values (null) stay unknown. */
#include <inttypes.h>
#include <string.h>

#include "experiments/cli/inspect/inspect.h"

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

json_t *tsr_inspect_cluster(const struct tsr_cluster *c)
{
    static const char *const intra[] = {"none", "nvswitch", "nvlink", "pcie", "shared_memory"};
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:o, s:I, s:o, s:s, s:o, s:I, s:o}",
                     "name", c->name, "file", c->path, "description", c->description, "node",
                     c->node_name, "nodes", (json_int_t)c->nodes, "gpus_per_node",
                     (json_int_t)c->gpus_per_node, "gpus", (json_int_t)c->nodes * c->gpus_per_node,
                     "inside_node", intra[c->intra], "inside_bytes_per_s_per_gpu",
                     real_or_null(c->intra_bw), "nics_per_node", (json_int_t)c->nics_per_node,
                     "nic_bytes_per_s", real_or_null(c->nic_bw), "topology", c->topology,
                     "oversubscription", json_real(oversubscription_of(c)), "nvlink_domain_gpus",
                     (json_int_t)c->nvlink_domain_gpus, "gpu", gpu_of(&c->gpu));
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

void tsr_print_cluster(FILE *out, const json_t *cluster)
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
    print_gpu(out, json_object_get(cluster, "gpu"));
}
