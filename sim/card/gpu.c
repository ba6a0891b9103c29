/* gpu.c: reads device files with the kernel tables that they name. */
#include "sim/card/gpu.h"

#include "sim/card/cost.h"
#include "sim/input/json_doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that catch a wrong unit (TFLOP/s instead of FLOP/s), not a slow core that was measured. */
static const double MIN_FLOP_PER_S = 1e8, MAX_FLOP_PER_S = 1e19;
enum { MAX_SMS = 100000 };

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

/* ---- kernel tables ----------------------------------------------------------------------- */

static struct tsr_card card_of(const struct tsr_gpu *gpu)
{
    struct tsr_card card = {
        .sm_count = gpu->sm_count, .clock_hz = gpu->clock_hz, .memory_bw = gpu->memory_bw};
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

static tsr_status read_tables(const struct tsr__doc *doc, struct tsr_kernels *out)
{
    const json_t *list = tsr__doc_find(doc, "kernels");
    if (!list || json_is_null(list))
        return TSR_OK;
    if (!json_is_array(list) || json_array_size(list) > TSR_KERNEL_FILES)
        return tsr__doc_fail(doc, "kernels", list, "a list of at most 4 names of kernel tables");
    for (size_t i = 0; i < json_array_size(list); i++)
        TSR_TRY(read_table(doc, json_array_get(list, i), out));
    return TSR_OK;
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

/* ---- a file ------------------------------------------------------------------------------ */

tsr_status tsr__gpu_read(const struct tsr__doc *doc, struct tsr_gpu *gpu)
{
    TSR_TRY(read_facts(doc, gpu));
    TSR_TRY(tsr__calibration_read(doc, &gpu->calibration));
    TSR_TRY(read_tables(doc, &gpu->kernels));
    TSR_TRY(read_large(doc, "bf16", TSR_PEAK_BF16, gpu->achievable_bf16, gpu, &gpu->large_bf16));
    return read_large(doc, "fp8", TSR_PEAK_FP8, gpu->achievable_fp8, gpu, &gpu->large_fp8);
}

tsr_status tsr_gpu_load(const char *path, struct tsr_gpu *out)
{
    struct tsr__doc doc;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr__doc_open(path, "gpu", &doc));
    tsr_status status = tsr__gpu_read(&doc, out);
    tsr__doc_close(&doc);
    if (status != TSR_OK)
        memset(out, 0, sizeof *out);
    return status;
}
