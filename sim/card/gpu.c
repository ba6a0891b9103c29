/* gpu.c: reads device files with the kernel tables that they name and their calibrated numbers. */
#include "sim/card/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/words.h"
#include "sim/card/calibration.h"
#include "sim/card/cost.h"
#include "sim/input/json_doc.h"

/* Bounds that catch a wrong unit (TFLOP/s instead of FLOP/s), not a slow core that was measured. */
static const double MIN_FLOP_PER_S = 1e8, MAX_FLOP_PER_S = 1e19;
enum { MAX_SMS = 100000 };
static const double MULTICAST_CAPABILITY = 9.0; /* from Hopper on the switch sums */

static tsr_status read_gpu_peaks(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    static const char *const keys[TSR_N_PEAKS] = {
        [TSR_PEAK_BF16] = "peak_dense_flop_per_s.bf16",
        [TSR_PEAK_FP16] = "peak_dense_flop_per_s.fp16",
        [TSR_PEAK_FP8] = "peak_dense_flop_per_s.fp8",
        [TSR_PEAK_TF32] = "peak_dense_flop_per_s.tf32",
        [TSR_PEAK_FP32] = "peak_dense_flop_per_s.fp32",
        [TSR_PEAK_FP64] = "peak_dense_flop_per_s.fp64",
    };
    for (int i = 0; i < TSR_N_PEAKS; i++)
        TSR_TRY(tsr__doc_number(doc, keys[i], TSR__NULLABLE, MIN_FLOP_PER_S, MAX_FLOP_PER_S,
                                &gpu->peak_flops[i]));
    const char *achievable = "achievable_matmul_flop_per_s.bf16";
    TSR_TRY(tsr__doc_number(doc, achievable, TSR__OPTIONAL, MIN_FLOP_PER_S, MAX_FLOP_PER_S,
                            &gpu->achievable_bf16));
    double peak = gpu->peak_flops[TSR_PEAK_BF16];
    TSR_TRY(tsr__doc_number(doc, "achievable_matmul_flop_per_s.fp8", TSR__OPTIONAL, MIN_FLOP_PER_S,
                            MAX_FLOP_PER_S, &gpu->achievable_fp8));
    if (peak > 0.0 && gpu->achievable_bf16 > peak)
        return tsr__doc_fail(doc, achievable, tsr__doc_find(doc, achievable),
                             "at most the dense bf16 peak");
    return TSR_OK;
}

/* "host": what `tessera calibrate` timed of the host that issues for it. */
static tsr_status read_host(const struct tsr__doc *doc, struct tsr_host_times *host)
{
    const struct {
        const char *key;
        double *out;
    } rows[] = {{"host.launch_s", &host->launch_s},
                {"host.collective_s", &host->collective_s},
                {"host.event_s", &host->event_s},
                {"host.alloc_s", &host->alloc_s},
                {"host.segment_s", &host->segment_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TSR_TRY(tsr__doc_number(doc, rows[i].key, TSR__OPTIONAL, 0.0, 1.0, rows[i].out));
    return TSR_OK;
}

static tsr_status read_traits(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    const char *capability = json_string_value(tsr__doc_find(doc, "compute_capability"));
    gpu->traits = tsr_gpu_traits_of(gpu->architecture);
    gpu->traits.has_multicast |= capability && strtod(capability, NULL) >= MULTICAST_CAPABILITY;
    return tsr__gpu_traits_read(doc, &gpu->traits);
}

static tsr_status read_facts(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    uint64_t sms;
    const char *link = "nvlink.bandwidth_bytes_per_s_per_direction";
    TSR_TRY(tsr__doc_copy_path(doc->path, gpu->path, sizeof gpu->path));
    TSR_TRY(tsr__doc_string(doc, "name", TSR__REQUIRED, gpu->name, sizeof gpu->name));
    TSR_TRY(tsr__doc_string(doc, "description", TSR__OPTIONAL, gpu->description,
                            sizeof gpu->description));
    TSR_TRY(tsr__doc_string(doc, "architecture", TSR__REQUIRED, gpu->architecture,
                            sizeof gpu->architecture));
    TSR_TRY(tsr__doc_count(doc, "sm_count", TSR__NULLABLE, MAX_SMS, &sms));
    gpu->sm_count = (uint32_t)sms;
    TSR_TRY(read_traits(doc, gpu));
    TSR_TRY(tsr__doc_number(doc, "compute_clock_hz", TSR__OPTIONAL, 1e6, 1e11, &gpu->clock_hz));
    TSR_TRY(tsr__doc_count(doc, "memory.visible_bytes", TSR__NULLABLE, UINT64_C(1) << 50,
                           &gpu->visible_bytes));
    TSR_TRY(tsr__doc_count(doc, "memory.context_bytes", TSR__OPTIONAL, UINT64_C(1) << 40,
                           &gpu->context_bytes));
    TSR_TRY(tsr__doc_count(doc, "memory.library_bytes", TSR__OPTIONAL, UINT64_C(1) << 40,
                           &gpu->library_bytes));
    TSR_TRY(tsr__doc_rate(doc, "memory.bandwidth_bytes_per_s", TSR__NULLABLE, &gpu->memory_bw));
    TSR_TRY(tsr__doc_rate(doc, "pcie.bandwidth_bytes_per_s_per_direction", TSR__NULLABLE,
                          &gpu->pcie_bw));
    TSR_TRY(read_host(doc, &gpu->host));
    if (!json_is_null(tsr__doc_find(doc, "nvlink")))
        TSR_TRY(tsr__doc_rate(doc, link, TSR__NULLABLE, &gpu->nvlink_bw));
    return read_gpu_peaks(doc, gpu);
}

/* ---- kernel tables --------------------------------------------------------------------------- */

static struct tsr_card card_of(const struct tsr_gpu *gpu)
{
    struct tsr_card card;
    memset(&card, 0, sizeof card); /* equal cards have equal bytes */
    card.sm_count = gpu->sm_count;
    card.clock_hz = gpu->clock_hz;
    card.memory_bw = gpu->memory_bw;
    memcpy(card.name, gpu->name, sizeof card.name);
    memcpy(card.architecture, gpu->architecture, sizeof card.architecture);
    memcpy(card.peak_flops, gpu->peak_flops, sizeof card.peak_flops);
    return card;
}

/* The card that the tables of `doc` were measured on: the facts of its device file. */
static tsr_status read_measured_card(const struct tsr__doc *doc, struct tsr_card *out)
{
    struct tsr_gpu gpu;
    struct tsr__doc file = {0};
    char *path = NULL;
    tsr_status status;
    memset(&gpu, 0, sizeof gpu);
    TSR_GOTO(done,
             tsr__doc_open_sibling(doc, "gpu", tsr__doc_find(doc, "gpu"), "gpu", &file, &path));
    TSR_GOTO(done, read_facts(&file, &gpu));
done:
    tsr__doc_close(&file);
    free(path);
    *out = card_of(&gpu);
    return status;
}

static tsr_status read_table(const struct tsr__doc *doc, const json_t *name,
                             struct tsr_kernels *out)
{
    struct tsr__doc file = {0};
    struct tsr_card card;
    char *path = NULL;
    tsr_status status;
    TSR_GOTO(done, tsr__doc_open_sibling(doc, "kernels", name, "kernels", &file, &path));
    TSR_GOTO(done, read_measured_card(&file, &card));
    TSR_GOTO(done, tsr__kernels_read(&file, &card, out));
done:
    tsr__doc_close(&file);
    free(path);
    return status;
}

static tsr_status read_tables(const struct tsr__doc *doc, const struct tsr_kernels **out)
{
    const json_t *list = tsr__doc_find(doc, "kernels");
    if (!list || json_is_null(list))
        return TSR_OK;
    if (!json_is_array(list) || json_array_size(list) > TSR_KERNEL_FILES)
        return tsr__doc_fail(doc, "kernels", list, "a list of at most 4 names of kernel tables");
    struct tsr__kept_kernels *kept = tsr__kernels_new();
    if (!kept)
        return tsr_no_memory("kernel tables");
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < json_array_size(list) && status == TSR_OK; i++)
        status = read_table(doc, json_array_get(list, i), tsr__kernels_of(kept));
    if (status == TSR_OK)
        *out = tsr__kernels_keep(doc->kernels, kept);
    else
        tsr__kernels_drop(kept);
    return status;
}

/* What the best product of a sweep would reach without prologues and incomplete waves; its rate
 * itself where the file does not tell its shape. */
static tsr_status read_large(const struct tsr__doc *doc, const char *dtype, int peak,
                             double achievable, const struct tsr_gpu *gpu, double *out)
{
    char key[64];
    float shape[3];
    uint32_t n;
    snprintf(key, sizeof key, "achievable_matmul_shape.%s", dtype);
    const json_t *list = tsr__doc_find(doc, key);
    *out = achievable;
    if (!list || json_is_null(list))
        return TSR_OK;
    TSR_TRY(tsr__doc_numbers(doc, key, 1.0, 1e6, 3, shape, &n));
    if (n != 3 || achievable <= 0.0)
        return tsr__doc_fail(doc, key, list, "[m, n, k] of achievable_matmul_flop_per_s");
    uint64_t dims[4] = {(uint64_t)shape[0], (uint64_t)shape[1], (uint64_t)shape[2], 1};
    *out = tsr__matmul_large_rate(gpu, peak, dims, achievable);
    return TSR_OK;
}

/* ---- a file ---------------------------------------------------------------------------------- */

tsr_status tsr__gpu_read(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    static const char *const facts[] = {
        "vendor",        "reference_node", /* of clusters in a few keys */
        "board_power_w", "memory.nominal_gb", "memory.context_source",
        "memory.type",   "memory.l2_bytes",   "nvlink.generation",
        "nvlink.links",  "pcie.description",  "notes",
        "source",        "host.source",       NULL};
    TSR_TRY(read_facts(doc, gpu));
    TSR_TRY(tsr__calibration_read(doc, &gpu->calibration));
    TSR_TRY(read_tables(doc, &gpu->kernels));
    TSR_TRY(read_large(doc, "bf16", TSR_PEAK_BF16, gpu->achievable_bf16, gpu, &gpu->large_bf16));
    TSR_TRY(read_large(doc, "fp8", TSR_PEAK_FP8, gpu->achievable_fp8, gpu, &gpu->large_fp8));
    return tsr__doc_check(doc, facts);
}

tsr_status tsr_gpu_load(const char *path, const char *const *folders,
                        struct tsr_kernel_store *store, struct tsr_gpu *out)
{
    struct tsr__doc doc;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr__doc_open(path, "gpu", &doc));
    doc.folders = folders;
    doc.kernels = store;
    tsr_status status = tsr__gpu_read(&doc, out);
    tsr__doc_close(&doc);
    if (status != TSR_OK)
        memset(out, 0, sizeof *out);
    return status;
}

/* ---- calibrated numbers ---------------------------------------------------------------------- */

/* The table of calibrated numbers and their reading from a device file. */

static const char AS_TABLE[] = "default: as measured in short runs";

static const struct tsr_calibration_row rows[TSR_N_CALIBRATIONS] = {
    [TSR_CAL_MATMUL_SUSTAINED] = {"matmul_sustained", 1.0, 0.1, 1.5, AS_TABLE,
                                  "rate of matrix products in a step over the table's"},
    [TSR_CAL_ATTENTION_SUSTAINED] = {"attention_sustained", 1.0, 0.1, 1.5, AS_TABLE,
                                     "rate of attention kernels in a step over the table's"},
    [TSR_CAL_TRITON_SUSTAINED] = {"triton_sustained", 1.0, 0.1, 2.0, AS_TABLE,
                                  "rate of flash1_triton in a step over the table's"},
    [TSR_CAL_BACKWARD_SUSTAINED] = {"backward_sustained", 1.0, 0.1, 1.5,
                                    "default: products of backward run as those of forward",
                                    "rate of products and attention of backward over forward's"},
    [TSR_CAL_MEMORY_SUSTAINED] = {"memory_sustained", 1.0, 0.1, 1.5, AS_TABLE,
                                  "bandwidth of memory-bound kernels in a step over the table's"},
    [TSR_CAL_HOST_SCALE] = {"host_scale", 1.0, 0.0, 100.0, "default: sim/options.c",
                            "multiplies every host cost"},
    [TSR_CAL_COMM_COMPUTE_SLOWDOWN] = {"comm_compute_slowdown", 0.0, 0.0, 0.9,
                                       "default: no figure, none",
                                       "share of speed that kernels lose beside a collective"},
    [TSR_CAL_INTRA_EFFICIENCY] = {"intra_efficiency", 0.80, 0.05, 1.0,
                                  "default: ring all-gather of 16 GiB on 8 H200, 361 of 450 GB/s",
                                  "reachable share of the link rate inside a node"},
    [TSR_CAL_INTER_EFFICIENCY] = {"inter_efficiency", 0.80, 0.05, 1.0,
                                  "default: that inside a node",
                                  "reachable share of the link rate between nodes"},
    [TSR_CAL_STRAGGLER_SHARE] = {"straggler_share", 0.0, 0.0, 1.0, "default: no figure, none",
                                 "extra share of kernels' time per doubling of the nodes"},
    [TSR_CAL_STEP_OVERHEAD] = {"step_overhead_s", 0.0, 0.0, 10.0, "default: no figure, none",
                               "seconds of the host per step outside of the program"},
    [TSR_CAL_COLLECTIVE_BASE] =
        {"collective_base_s", 0.0, 0.0, 0.01, "default: the tuner's latencies alone",
         "seconds of every collective beyond the latencies of NCCL's tuner"},
    [TSR_CAL_COLLECTIVE_FILL] = {"collective_fill_s", 0.0, 0.0, 0.1, "default: no figure, none",
                                 "seconds until the pipeline of a large collective is full"},
    [TSR_CAL_COLLECTIVE_OWN] = {"collective_own", 0.0, 0.0, 10.0, "default: in place, nothing",
                                "time of a rank's own bytes over that of bytes on its link"},
};

const struct tsr_calibration_row *tsr_calibration_row(enum tsr_calibration_id id)
{
    TSR_CHECK(id < TSR_N_CALIBRATIONS);
    return &rows[id];
}

struct tsr_calibration tsr_calibration_default(void)
{
    struct tsr_calibration out = {0};
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++) {
        out.value[i] = rows[i].value;
        snprintf(out.source[i], sizeof out.source[i], "%s", rows[i].source);
    }
    return out;
}

void tsr_calibration_override(struct tsr_calibration *calibration,
                              const double values[TSR_N_CALIBRATIONS], const char *source)
{
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++) {
        if (isnan(values[i]))
            continue;
        calibration->value[i] = values[i];
        snprintf(calibration->source[i], sizeof calibration->source[i], "%s", source);
        calibration->data[i][0] = '\0';
    }
}

static tsr_status check_name(const struct tsr__doc *doc, const char *name, const json_t *value)
{
    char key[96], allowed[640] = "";
    const char *names[TSR_N_CALIBRATIONS + 1] = {NULL};
    size_t used = 0;
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        if (!strcmp(rows[i].name, name))
            return TSR_OK;
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s", i == 0 ? "" : ", ",
                                 rows[i].name);
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        names[i] = rows[i].name;
    const char *near = tsr_nearest(name, names);
    if (near)
        snprintf(allowed + used, sizeof allowed - used, "; nearest: \"%s\"", near);
    snprintf(key, sizeof key, "calibration.%.60s", name);
    return tsr__doc_fail(doc, key, value, allowed);
}

static tsr_status read_one(const struct tsr__doc *doc, int id, struct tsr_calibration *out)
{
    char key[96];
    const struct tsr_calibration_row *row = &rows[id];
    snprintf(key, sizeof key, "calibration.%s", row->name);
    if (!tsr__doc_find(doc, key))
        return TSR_OK;
    snprintf(key, sizeof key, "calibration.%s.value", row->name);
    TSR_TRY(tsr__doc_number(doc, key, TSR__REQUIRED, row->min, row->max, &out->value[id]));
    snprintf(key, sizeof key, "calibration.%s.source", row->name);
    TSR_TRY(tsr__doc_string(doc, key, TSR__REQUIRED, out->source[id], sizeof out->source[id]));
    snprintf(key, sizeof key, "calibration.%s.data", row->name);
    return tsr__doc_string(doc, key, TSR__OPTIONAL, out->data[id], sizeof out->data[id]);
}

tsr_status tsr__calibration_read(const struct tsr__doc *doc, struct tsr_calibration *out)
{
    json_t *object = tsr__doc_find(doc, "calibration"), *value;
    const char *name;
    *out = tsr_calibration_default();
    if (!object || json_is_null(object))
        return TSR_OK;
    if (!json_is_object(object))
        return tsr__doc_fail(doc, "calibration", object, "an object of numbers with their source");
    if (json_object_size(object) > TSR_MAX_CALIBRATED)
        return tsr__doc_fail(doc, "calibration", object, "at most 12 numbers of a GPU type");
    json_object_foreach(object, name, value) TSR_TRY(check_name(doc, name, value));
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        TSR_TRY(read_one(doc, i, out));
    return TSR_OK;
}
