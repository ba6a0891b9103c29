/* test_cost.c: kernels are never faster than the roofline, follow published figures, and unknown
 * values are refused by name. */
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "tests/sim/sim_testing.h"

#include "sim/card/cost.h"
#include "sim/network/fabric.h"

/* Keeps the kernel tables of the cards of all tests. */
static struct tsr_kernel_store store;

static const struct tsr_kernel_choice no_choice = {0};

static struct tsr_cluster load(const char *name)
{
    struct tsr_cluster c;
    char path[512];
    const char *dir = getenv("TSR_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/experiments/clusters/%s", dir ? dir : ".", name);
    if (tsr_cluster_load(path, NULL, &store, &c) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    /* What a step sustains is another matter. */
    c.gpu.calibration = tsr_calibration_default();
    return c;
}

static double seconds(const struct tsr_gpu *gpu, const struct tsr_work *work)
{
    double s;
    if (tsr_cost_kernel(gpu, &no_choice, work, &s) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return s;
}

static struct tsr_work gemm(uint64_t m, uint64_t n, uint64_t k, tsr_dtype dtype)
{
    return (struct tsr_work){.op = TSR_OP_GEMM,
                             .dtype = (uint8_t)dtype,
                             .name = "mm",
                             .flops = 2.0 * (double)m * (double)n * (double)k,
                             .bytes_read = tsr_dtype_bytes(dtype) * (m * k + k * n),
                             .bytes_written = tsr_dtype_bytes(dtype) * m * n,
                             .dims = {m, n, k, 1}};
}

/* Segments of 1 GiB with nothing to wait for, as intel/llvm#8971 has them (nsys, RTX 3070). */
static void segments_cost_what_was_seen(void **state)
{
    (void)state;
    double call = tsr_sim_options_default().host_segment_s, gib = 1073741824.0;
    assert_in_range((call + tsr__cost_segment(false, gib)) * 1e6, 807, 855);
    assert_in_range((call + tsr__cost_segment(true, gib)) * 1e6, 763, 2779);
    assert_true(tsr__cost_segment(true, 2 * gib) == 2 * tsr__cost_segment(true, gib));
}

static void nothing_beats_the_roofline(void **state)
{
    static const char *const nodes[] = {"node-dgx-a100-80g.json",         "node-dgx-h100.json",
                                        "node-grand-teton-h100-96g.json", "node-dgx-b200.json",
                                        "node-gb200-nvl72-tray.json",     "node-pcie-4090-8.json"};
    uint64_t random = 7;
    (void)state;
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        struct tsr_cluster c = load(nodes[i]);
        for (int k = 0; k < 2000; k++) {
            struct tsr_work w =
                gemm(1 + random_next(&random) % 9000, 1 + random_next(&random) % 9000,
                     1 + random_next(&random) % 9000, k % 2 ? TSR_BF16 : TSR_F32);
            w.op = (uint8_t)(random_next(&random) % TSR_N_OP_KINDS);
            w.causal = k % 3 == 0;
            bool vector =
                w.op != TSR_OP_GEMM && w.op != TSR_OP_ATTENTION && w.op != TSR_OP_ATTENTION_BWD;
            if (vector)
                w.flops /= 1000;
            double peak =
                c.gpu.peak_flops[w.dtype == TSR_BF16 && !vector ? TSR_PEAK_BF16 : TSR_PEAK_FP32];
            double bytes = (double)(w.bytes_read + w.bytes_written);
            double s = seconds(&c.gpu, &w);
            if (!(s >= w.flops / peak && s >= bytes / c.gpu.memory_bw && s < 100.0))
                fail_msg("%s: op %u of %llu x %llu x %llu, dtype %u: %g s", nodes[i], w.op,
                         (unsigned long long)w.dims[0], (unsigned long long)w.dims[1],
                         (unsigned long long)w.dims[2], w.dtype, s);
        }
    }
}

static double tflops(const struct tsr_gpu *gpu, uint64_t m, uint64_t n, uint64_t k)
{
    struct tsr_work w = gemm(m, n, k, TSR_BF16);
    return w.flops / seconds(gpu, &w) / 1e12;
}

/* Rows of the published sm_90 table (short runs on an idle card). */
static void matrix_products_follow_the_published_table(void **state)
{
    static const struct {
        uint64_t m, n, k;
        double tflops;
    } rows[] = {
        {256, 256, 256, 6.186},    {512, 512, 4096, 184.6},   {1024, 1024, 1024, 246.7},
        {1024, 4096, 4096, 742.3}, {2048, 2048, 512, 345.0},  {2048, 4096, 4096, 760.4},
        {4096, 256, 4096, 398.9},  {4096, 4096, 1024, 681.1}, {4096, 4096, 4096, 786.0},
        {8192, 8192, 8192, 795.0},
    };
    struct tsr_cluster c = load("node-dgx-h100.json");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_close(tflops(&c.gpu, rows[i].m, rows[i].n, rows[i].k), rows[i].tflops, 0.25);
}

static void fp32_runs_at_the_fp32_rate(void **state)
{
    struct tsr_cluster c = load("node-dgx-h100.json");
    struct tsr_work w = gemm(8192, 8192, 8192, TSR_F32);
    (void)state;
    double rate = w.flops / seconds(&c.gpu, &w);
    assert_true(rate < 67e12 && rate > 0.6 * 67e12);
}

static void attention_follows_the_published_charts(void **state)
{
    struct tsr_cluster h = load("node-dgx-h100.json"), a = load("node-dgx-a100-80g.json");
    (void)state;
    /* 16 heads of 128, batch 2, 8,192 tokens, causal: 333 TFLOP/s forward on H100. */
    double flops = 4.0 * 2 * 16 * 8192 * 8192.0 * 128 / 2;
    struct tsr_work w = {.op = TSR_OP_ATTENTION,
                         .dtype = TSR_BF16,
                         .causal = 1,
                         .flops = flops,
                         .dims = {2, 16, 16, 8192, 8192, 128}};
    assert_close(flops / seconds(&h.gpu, &w), 333e12, 0.01);
    double forward_h = seconds(&h.gpu, &w), forward_a = seconds(&a.gpu, &w);
    w.op = TSR_OP_ATTENTION_BWD;
    w.flops = 2.5 * flops;
    assert_close(3.5 * flops / (forward_h + seconds(&h.gpu, &w)), 308e12, 0.01);
    assert_close(3.5 * flops / (forward_a + seconds(&a.gpu, &w)), 182e12, 0.01);
}

/* By the name of the kernel: cuDNN's is faster than FlashAttention-2, the memory-efficient one
 * slower. */
static void attention_is_of_the_kernel_that_ran(void **state)
{
    struct tsr_cluster c = load("node-dgx-h100.json");
    struct tsr_work w = {.op = TSR_OP_ATTENTION,
                         .dtype = TSR_BF16,
                         .causal = 1,
                         .name = "flash_attention",
                         .flops = 4.0 * 2 * 16 * 8192 * 8192.0 * 128 / 2,
                         .dims = {2, 16, 16, 8192, 8192, 128}};
    double flash = seconds(&c.gpu, &w);
    (void)state;
    w.name = "cudnn_attention";
    assert_true(seconds(&c.gpu, &w) < 0.9 * flash);
    w.name = "efficient_attention";
    assert_true(seconds(&c.gpu, &w) > 1.5 * flash);
}

/* A repeated operand costs by elements of the result, whatever the dtypes are. */
static void broadcasts_count_elements(void **state)
{
    struct tsr_cluster c = load("node-dgx-h100.json");
    const uint64_t n = UINT64_C(4096) * 4096;
    struct tsr_work w = {.op = TSR_OP_POINTWISE,
                         .dtype = TSR_BF16,
                         .name = "mul",
                         .bytes_read = 2 * n + 4096 * 4,
                         .bytes_written = 4 * n,
                         .dims = {4096, 4096}};
    double slow = (double)n / (132 * 1.83e9 * 0.92) + 2e-6;
    (void)state;
    assert_close(seconds(&c.gpu, &w), slow, 0.001);
    w.name = "div_broadcast";
    assert_close(seconds(&c.gpu, &w), slow, 0.001);
    w.name = "mul_scalar";
    assert_close(seconds(&c.gpu, &w), 6.0 * (double)n / (3.35e12 * 0.85) + 2e-6, 0.001);
}

static void norms_follow_the_published_table(void **state)
{
    struct tsr_cluster c = load("node-dgx-h200.json");
    /* 8,192 x 8,192 bf16, eager: 0.102 ms forward, 0.260 ms backward (268 and 403 MB). */
    struct tsr_work w = {
        .op = TSR_OP_NORM, .dtype = TSR_BF16, .bytes_read = 268435456, .dims = {8192, 8192}};
    (void)state;
    assert_close(seconds(&c.gpu, &w), 0.102e-3, 0.005);
    w.op = TSR_OP_NORM_BWD;
    w.bytes_read = 402653184;
    assert_close(seconds(&c.gpu, &w), 0.260e-3, 0.005);
}

/* Ring all-gather and reduce-scatter of 16 GiB on 8 H200: 41.59 and 41.42 ms. */
static void collectives_follow_the_published_rows(void **state)
{
    struct tsr_cluster c = load("node-dgx-h200.json");
    struct tsr_sim_options o = tsr_sim_options_default();
    (void)state;
    o.host_scale = 0.0;
    for (int kind = TSR_ALL_GATHER; kind <= TSR_REDUCE_SCATTER; kind++) {
        struct job *job = job_create(8, 1, 1);
        uint16_t comm = job_comm(job, "shard", 8, 1, -1);
        put_collective(job, 0, 0, (uint8_t)kind, S_GATHER, comm, UINT64_C(17179869184));
        assert_close(run_time(&c, job, &o), 41.5e-3, 0.02);
        job_destroy(job);
    }
}

static void unknown_values_are_named(void **state)
{
    struct tsr_cluster c = load("node-dgx-h100.json");
    struct tsr_work w = gemm(128, 128, 128, TSR_F64);
    double s;
    (void)state;
    c.gpu.peak_flops[TSR_PEAK_FP64] = 0.0;
    assert_int_equal(tsr_cost_kernel(&c.gpu, &no_choice, &w, &s), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), c.gpu.path));
    assert_non_null(strstr(tsr_error_text(), "\"peak_dense_flop_per_s.fp64\""));
    c.gpu.memory_bw = 0.0;
    w = gemm(128, 128, 128, TSR_BF16);
    assert_int_equal(tsr_cost_kernel(&c.gpu, &no_choice, &w, &s), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "\"memory.bandwidth_bytes_per_s\""));
}

/* MFU divides by the peak of the dtype in which products run. */
static void a_product_has_the_peak_of_its_dtype(void **state)
{
    static const struct {
        tsr_dtype dtype;
        int peak;
    } rows[] = {{TSR_BF16, TSR_PEAK_BF16},
                {TSR_F16, TSR_PEAK_FP16},
                {TSR_F8, TSR_PEAK_FP8},
                {TSR_F32, TSR_PEAK_FP32},
                {TSR_F64, TSR_PEAK_FP64}};
    struct tsr_cluster c = load("node-dgx-h100.json");
    struct tsr_kernel_choice tf32 = {.tf32 = true};
    struct tsr_work w = gemm(8, 8, 8, TSR_F32);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        w.dtype = (uint8_t)rows[i].dtype;
        assert_close(tsr_work_peak(&c.gpu, &no_choice, &w), c.gpu.peak_flops[rows[i].peak], 0.0);
    }
    w.dtype = TSR_I64;
    assert_close(tsr_work_peak(&c.gpu, &no_choice, &w), 0.0, 0.0);
    w.dtype = TSR_F32;
    assert_close(tsr_work_peak(&c.gpu, &tf32, &w), c.gpu.peak_flops[TSR_PEAK_TF32], 0.0);
    w.op = TSR_OP_ATTENTION;
    assert_close(tsr_work_peak(&c.gpu, &tf32, &w), c.gpu.peak_flops[TSR_PEAK_FP32], 0.0);
}

/* Every kind of kernel, dtype and choice of kernels on a card: a time, or one line that names the
 * kernel and what the card lacks. `lacks`: the key that is null. Returns how many have no time. */
static size_t time_everything(const struct tsr_gpu *gpu, const char *lacks)
{
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F8, TSR_F64};
    enum { DTYPES = 5, ALL = DTYPES * TSR_N_OP_KINDS * TSR_N_ATTENTION_KERNELS * 2 };
    size_t refused = 0;
    for (unsigned i = 0; i < ALL; i++) {
        tsr_dtype dtype = dtypes[i % DTYPES];
        unsigned rest = i / DTYPES;
        struct tsr_work w = gemm(512, 512, 512, dtype);
        w.op = (uint8_t)(rest % TSR_N_OP_KINDS);
        rest /= TSR_N_OP_KINDS;
        struct tsr_kernel_choice choice = {.attention = rest / 2, .tf32 = rest % 2};
        double s = NAN;
        tsr_status status = tsr_cost_kernel(gpu, &choice, &w, &s);
        const char *text = tsr_error_text();
        if (status == TSR_OK && !(s > 0 && s < 100))
            fail_msg("%s null: op %u in %s takes %g s", lacks, w.op, tsr_dtype_name(dtype), s);
        bool named = status == TSR_OK || strstr(text, "kernel mm needs it") ||
                     strstr(text, "attention_kernel: found");
        if (!named || strchr(text, '\n'))
            fail_msg("%s null: op %u in %s: %s", lacks, w.op, tsr_dtype_name(dtype), text);
        refused += status != TSR_OK;
    }
    return refused;
}

/* Sets the key of number `at` of a device file, depth first, to null; its name goes into `name`. */
static bool set_null(json_t *object, size_t *at, char *name, size_t size)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        char below[64] = "";
        if (json_is_object(value) && set_null(value, at, below, sizeof below)) {
            snprintf(name, size, "%.60s.%.60s", key, below);
            return true;
        }
        if ((*at)-- != 0)
            continue;
        snprintf(name, size, "%s", key);
        return json_object_set_new(object, key, json_null()) == 0;
    }
    return false;
}

static void every_null_of_a_device_file_gives_times_or_a_name(void **state)
{
    char dir[] = "/tmp/tsr-nulls-XXXXXX", path[600], clusters[512], name[160];
    const char *source = getenv("TSR_SOURCE_DIR");
    const char *const folders[] = {clusters, NULL};
    struct tsr_gpu gpu;
    size_t read = 0, n = 0;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(clusters, sizeof clusters, "%s/experiments/clusters", source ? source : ".");
    for (bool found = true; found; n++) {
        size_t at = n;
        snprintf(path, sizeof path, "%s/gpu-h100-sxm5-80g.json", clusters);
        json_t *file = json_load_file(path, 0, NULL);
        assert_non_null(file);
        found = set_null(file, &at, name, sizeof name);
        snprintf(path, sizeof path, "%s/gpu-nulls.json", dir);
        assert_int_equal(json_dump_file(file, path, 0), 0);
        json_decref(file);
        if (found && tsr_gpu_load(path, folders, &store, &gpu) == TSR_OK) {
            (void)time_everything(&gpu, name);
            read++;
        } else if (found) {
            assert_non_null(
                strstr(tsr_error_text(), strrchr(name, '.') ? strrchr(name, '.') + 1 : name));
        }
        unlink(path);
    }
    rmdir(dir);
    assert_true(n > 40 && read > 20);
}

/* A V100 or T4: no bf16, no table of kernels. */
static void fp16_needs_no_bf16(void **state)
{
    struct tsr_cluster c = load("node-dgx-h100.json"), other = c;
    struct tsr_work w = gemm(4096, 4096, 4096, TSR_F16);
    (void)state;
    w.op = TSR_OP_ATTENTION;
    double with_table = seconds(&c.gpu, &w);
    other.gpu.peak_flops[TSR_PEAK_BF16] = 0;
    assert_close(seconds(&other.gpu, &w), with_table, 1e-9);
    other.gpu.kernels = NULL;
    double without = seconds(&other.gpu, &w);
    assert_true(without > w.flops / 989e12 && without < 20 * w.flops / 989e12);
    assert_true(time_everything(&other.gpu, "bf16") > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_cost_what_was_seen),
        cmocka_unit_test(nothing_beats_the_roofline),
        cmocka_unit_test(matrix_products_follow_the_published_table),
        cmocka_unit_test(fp32_runs_at_the_fp32_rate),
        cmocka_unit_test(attention_follows_the_published_charts),
        cmocka_unit_test(attention_is_of_the_kernel_that_ran),
        cmocka_unit_test(broadcasts_count_elements),
        cmocka_unit_test(norms_follow_the_published_table),
        cmocka_unit_test(collectives_follow_the_published_rows),
        cmocka_unit_test(unknown_values_are_named),
        cmocka_unit_test(a_product_has_the_peak_of_its_dtype),
        cmocka_unit_test(every_null_of_a_device_file_gives_times_or_a_name),
        cmocka_unit_test(fp16_needs_no_bf16),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
