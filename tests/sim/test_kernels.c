/* test_kernels.c: kernel tables: exact where something was measured, sensible between and on other
 * cards, and one line for every mistake in a file. */
#include <unistd.h>

#include "tests/sim/sim_testing.h"

#include "sim/card/cost.h"

/* Keeps the kernel tables of the cards of all tests. */
static struct tsr_kernel_store store;

static const struct tsr_kernel_choice plain = {0};

static struct tsr_gpu gpu_of(const char *name)
{
    struct tsr_gpu gpu;
    char path[512];
    const char *dir = getenv("TSR_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/experiments/clusters/gpu-%s.json", dir ? dir : ".", name);
    if (tsr_gpu_load(path, NULL, &store, &gpu) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    /* What a step sustains is another matter. */
    gpu.calibration = tsr_calibration_default();
    return gpu;
}

static double seconds(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                      const struct tsr_work *work)
{
    double s;
    if (tsr_cost_kernel(gpu, choice, work, &s) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return s;
}

static struct tsr_work gemm(uint64_t m, uint64_t n, uint64_t k, uint64_t batch, tsr_dtype dtype)
{
    uint64_t size = tsr_dtype_bytes(dtype);
    return (struct tsr_work){.op = TSR_OP_GEMM,
                             .dtype = (uint8_t)dtype,
                             .name = "mm",
                             .flops = 2.0 * (double)m * (double)n * (double)k * (double)batch,
                             .bytes_read = size * batch * (m * k + k * n),
                             .bytes_written = size * batch * m * n,
                             .dims = {m, n, k, batch}};
}

static double tflops(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                     const struct tsr_work *work)
{
    return work->flops / seconds(gpu, choice, work) / 1e12;
}

/* ---- matrix products --------------------------------------------------------------------- */

static void measured_products_are_exact(void **state)
{
    static const struct {
        uint64_t m, n, k, batch;
        tsr_dtype dtype;
        double tflops;
    } rows[] = {{256, 256, 256, 1, TSR_BF16, 6.186},      {256, 256, 4096, 1, TSR_BF16, 86.704},
                {1024, 1024, 1024, 1, TSR_BF16, 246.724}, {4096, 4096, 4096, 1, TSR_BF16, 786.048},
                {512, 512, 512, 4, TSR_BF16, 148.471},    {4096, 4096, 4096, 4, TSR_BF16, 794.3},
                {256, 256, 512, 1, TSR_F32, 7.571},       {2048, 2048, 2048, 4, TSR_F32, 324.958}};
    static const char *const cards[] = {"h100-sxm5-80g", "h200-sxm", "h100-sxm5-96g-500w"};
    (void)state;
    for (size_t c = 0; c < 3; c++) {
        struct tsr_gpu gpu = gpu_of(cards[c]);
        gpu.memory_bw = 3.35e12; /* the shapes that memory decides differ */
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            struct tsr_kernel_choice choice = {.tf32 = true};
            struct tsr_work w = gemm(rows[i].m, rows[i].n, rows[i].k, rows[i].batch, rows[i].dtype);
            assert_close(tflops(&gpu, &choice, &w), rows[i].tflops, 1e-5);
        }
    }
}

/* Time grows with every dimension, also between measured shapes and beyond them. */
static void time_grows_with_the_shape(void **state)
{
    struct tsr_gpu gpu = gpu_of("h100-sxm5-80g");
    double last = 0.0;
    (void)state;
    for (uint64_t k = 1024; k <= 65536; k += 512) {
        struct tsr_work w = gemm(3000, 2500, k, 1, TSR_BF16);
        double s = seconds(&gpu, &plain, &w);
        assert_true(s > last);
        last = s;
    }
    last = 0.0;
    for (uint64_t m = 2048; m <= 131072; m += 2048) {
        struct tsr_work w = gemm(m, 4096, 4096, 1, TSR_BF16);
        double s = seconds(&gpu, &plain, &w);
        assert_true(s > last * 0.999);
        last = s;
    }
    struct tsr_work huge = gemm(131072, 50368, 8192, 1, TSR_BF16);
    assert_true(tflops(&gpu, &plain, &huge) > 700.0 && tflops(&gpu, &plain, &huge) < 830.0);
}

/* However large: nothing passes the best product that was ever measured on a card. */
static void no_shape_beats_the_best(void **state)
{
    static const struct {
        const char *card;
        double best;
    } cards[] = {{"h100-sxm5-80g", 811.0}, {"a100-sxm4-80g", 271.3}, {"b200-sxm", 1746.0}};
    (void)state;
    for (size_t c = 0; c < 3; c++) {
        struct tsr_gpu gpu = gpu_of(cards[c].card);
        double most = 0.0;
        for (uint64_t n = 4096; n <= 65536; n *= 2) {
            struct tsr_work w = gemm(16384, n, 16384, 1, TSR_BF16);
            double rate = tflops(&gpu, &plain, &w);
            assert_true(rate <= cards[c].best);
            most = rate > most ? rate : most;
        }
        assert_true(most > 0.97 * cards[c].best);
    }
}

/* One tile more than the multiprocessors hold costs a wave. */
static void waves_show(void **state)
{
    struct tsr_gpu gpu = gpu_of("h100-sxm5-80g");
    struct tsr_work full = gemm(128 * 11, 128 * 12, 8192, 1, TSR_BF16);
    struct tsr_work more = gemm(128 * 12, 128 * 12, 8192, 1, TSR_BF16);
    (void)state;
    assert_true(seconds(&gpu, &plain, &more) > 1.15 * seconds(&gpu, &plain, &full));
}

/* The best shapes that a public sweep found on each card (gemm.csv). */
static void other_cards_are_scaled(void **state)
{
    struct tsr_gpu a100 = gpu_of("a100-sxm4-80g"), b200 = gpu_of("b200-sxm");
    struct tsr_gpu h100 = gpu_of("h100-sxm5-80g");
    (void)state;
    struct tsr_work w = gemm(1024, 10240, 5120, 1, TSR_BF16);
    assert_close(tflops(&a100, &plain, &w), 271.2, 0.01);
    w = gemm(1792, 16128, 3072, 1, TSR_BF16);
    assert_close(tflops(&b200, &plain, &w), 1745.0, 0.01);
    w = gemm(1024, 9216, 14336, 1, TSR_F8);
    w.bytes_written *= 2;
    assert_close(tflops(&h100, &plain, &w), 1402.6, 0.01);
    /* a slower card fills up with smaller products */
    w = gemm(1024, 1024, 1024, 1, TSR_BF16);
    struct tsr_work large = gemm(8192, 8192, 8192, 1, TSR_BF16);
    assert_true(tflops(&a100, &plain, &w) / tflops(&a100, &plain, &large) >
                tflops(&h100, &plain, &w) / tflops(&h100, &plain, &large));
    /* fp32 stays below its own peak where tf32 is off */
    w = gemm(8192, 8192, 8192, 1, TSR_F32);
    assert_true(tflops(&h100, &plain, &w) < 67.0);
    assert_true(tflops(&h100, &(struct tsr_kernel_choice){.tf32 = true}, &w) > 300.0);
}

/* A point that is left out has the mean of its neighbours: near the truth, and not the truth. */
static void a_point_left_out_is_interpolated(void **state)
{
    struct tsr_gpu gpu = gpu_of("h100-sxm5-80g");
    struct tsr_work w = gemm(1024, 2048, 1024, 1, TSR_BF16);
    double known = seconds(&gpu, &plain, &w);
    struct tsr_kernels *tables = malloc(sizeof *tables);
    (void)state;
    assert_non_null(tables);
    assert_ptr_equal(gpu.kernels, gpu_of("h100-sxm5-80g").kernels); /* one copy of equal tables */
    *tables = *gpu.kernels;
    gpu.kernels = tables;
    assert_true(tsr_kernels_forget(tables, &plain, &w));
    assert_false(tsr_kernels_forget(tables, &plain, &w));
    double guessed = seconds(&gpu, &plain, &w);
    assert_close(guessed, known, 0.10);
    assert_true(fabs(guessed - known) > 1e-9);
    struct tsr_work none = gemm(1000, 2048, 1024, 1, TSR_BF16);
    assert_false(tsr_kernels_forget(tables, &plain, &none));
    free(tables);
}

/* ---- attention --------------------------------------------------------------------------- */

static struct tsr_work attention(bool backward, bool causal, uint64_t length, uint64_t head)
{
    uint64_t batch = 16384 / length ? 16384 / length : 1, heads = 2048 / head;
    return (struct tsr_work){.op = backward ? TSR_OP_ATTENTION_BWD : TSR_OP_ATTENTION,
                             .dtype = TSR_BF16,
                             .causal = causal,
                             .name = "attention",
                             .flops = (backward ? 2.5 : 1.0) * (causal ? 0.5 : 1.0) * 4.0 *
                                      (double)(batch * heads * length) * (double)(length * head),
                             .dims = {batch, heads, heads, length, length, head}};
}

static double both_passes(const struct tsr_gpu *gpu, unsigned kernel, uint64_t length,
                          uint64_t head)
{
    struct tsr_kernel_choice choice = {.attention = kernel};
    struct tsr_work fwd = attention(false, true, length, head);
    struct tsr_work bwd = attention(true, true, length, head);
    return (fwd.flops + bwd.flops) / (seconds(gpu, &choice, &fwd) + seconds(gpu, &choice, &bwd)) /
           1e12;
}

static void attention_is_exact_at_published_lengths(void **state)
{
    struct tsr_gpu a = gpu_of("a100-sxm4-80g"), h = gpu_of("h100-sxm5-80g");
    struct tsr_gpu h200 = gpu_of("h200-sxm");
    struct tsr_kernel_choice cudnn = {.attention = TSR_ATTN_CUDNN};
    struct tsr_kernel_choice fa3 = {.attention = TSR_ATTN_FLASH3};
    (void)state;
    assert_close(both_passes(&a, TSR_ATTN_FLASH1_TRITON, 2048, 128), 68.0, 1e-3);
    assert_close(both_passes(&a, TSR_ATTN_FLASH1_TRITON, 16384, 64), 80.0, 1e-3);
    assert_close(both_passes(&a, TSR_ATTN_FLASH1, 4096, 64), 87.0, 1e-3);
    assert_close(both_passes(&h, TSR_ATTN_FLASH1, 8192, 128), 135.0, 1e-3);
    assert_close(both_passes(&a, TSR_ATTN_FLASH2, 8192, 128), 182.0, 1e-3);
    assert_close(both_passes(&a, TSR_ATTN_AUTO, 8192, 128), 182.0, 1e-3);
    struct tsr_work efficient = attention(false, true, 4096, 128), one = efficient;
    efficient.name = "efficient_attention";
    assert_close(seconds(&a, &plain, &efficient),
                 seconds(&a, &(struct tsr_kernel_choice){.attention = TSR_ATTN_FLASH1}, &one), 0.0);
    /* nobody published Triton on an H100: FlashAttention-1's ratio */
    assert_close(both_passes(&h, TSR_ATTN_FLASH1_TRITON, 4096, 128), 74.0 * 126.0 / 76.0, 1e-3);
    struct tsr_work w = attention(false, false, 4096, 128);
    assert_close(tflops(&h, &fa3, &w), 638.0, 1e-3);
    assert_close(tflops(&h, &cudnn, &w), 609.0, 1e-3);
    assert_close(tflops(&h200, &cudnn, &w), 671.0, 1e-3);
}

static void attention_between_is_between(void **state)
{
    struct tsr_gpu h = gpu_of("h100-sxm5-80g");
    double last = 0.0;
    (void)state;
    for (uint64_t length = 256; length <= 131072; length += 256) {
        struct tsr_work w = attention(false, true, length, 128);
        double rate = tflops(&h, &plain, &w);
        assert_true(rate > 0.0 && rate < 420.0);
        assert_true(rate > last * 0.97 || length > 16384);
        last = rate;
    }
    /* head sizes: 96 lies between 64 and 128, 80 pays for 96 */
    struct tsr_work w64 = attention(false, true, 4096, 64),
                    w128 = attention(false, true, 4096, 128);
    struct tsr_work w96 = w128, w80 = w128;
    w96.dims[5] = 96;
    w80.dims[5] = 80;
    assert_true(seconds(&h, &plain, &w96) > seconds(&h, &plain, &w128));
    assert_true(seconds(&h, &plain, &w96) * w64.flops < seconds(&h, &plain, &w64) * w96.flops);
    assert_close(seconds(&h, &plain, &w80), seconds(&h, &plain, &w96) * 96.0 / 80.0, 0.02);
    /* a launch of one block leaves the rest of the card idle */
    struct tsr_work one = attention(false, true, 128, 128), many = one;
    many.dims[0] = 128;
    many.flops *= 128.0;
    one.dims[0] = one.dims[1] = 1;
    one.flops /= 16.0 * 128.0;
    assert_true(tflops(&h, &plain, &one) < tflops(&h, &plain, &many) / 50.0);
}

static void a_kernel_of_another_card_is_refused(void **state)
{
    struct tsr_gpu a = gpu_of("a100-sxm4-80g");
    struct tsr_kernel_choice fa3 = {.attention = TSR_ATTN_FLASH3};
    struct tsr_work w = attention(false, true, 4096, 128);
    double s;
    (void)state;
    assert_int_equal(tsr_cost_kernel(&a, &fa3, &w, &s), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(),
                        "attention_kernel: found flash3, allowed on a100-sxm4-80g (Ampere): auto, "
                        "flash1, flash1_triton, flash2, cudnn or math");
}

/* ---- norms ------------------------------------------------------------------------------- */

static void norms_by_backend(void **state)
{
    struct tsr_gpu h200 = gpu_of("h200-sxm"), h100 = gpu_of("h100-sxm5-80g");
    struct tsr_work w = {.op = TSR_OP_NORM_BWD,
                         .dtype = TSR_BF16,
                         .name = "rms_norm_backward",
                         .bytes_read = UINT64_C(4) * 16384 * 4096,
                         .bytes_written = UINT64_C(2) * 16384 * 4096,
                         .dims = {16384, 4096}};
    struct tsr_kernel_choice cudnn = {.norm = TSR_NORMS_CUDNN};
    struct tsr_kernel_choice compiled = {.norm = TSR_NORMS_COMPILED};
    double bytes = 6.0 * 16384 * 4096;
    (void)state;
    assert_close(seconds(&h200, &plain, &w), bytes / 1807.3e9, 1e-3);
    assert_close(seconds(&h200, &compiled, &w), bytes / 1703.5e9, 1e-3);
    assert_close(seconds(&h200, &cudnn, &w), bytes / 3801.0e9, 1e-3);
    /* less bandwidth slows a norm by less than the ratio of bandwidths, and does slow it */
    double slower = seconds(&h100, &plain, &w) / seconds(&h200, &plain, &w);
    assert_true(slower > 1.0 && slower < 4.8 / 3.35);
    w.name = "fused_add_rms_norm_backward";
    assert_close(seconds(&h200, &plain, &w), bytes / 1703.5e9, 1e-3);
}

/* ---- kernels without a table ------------------------------------------------------------- */

static struct tsr_work stream(uint8_t op, const char *name, tsr_dtype dtype, uint64_t read,
                              uint64_t written)
{
    return (struct tsr_work){.op = op,
                             .dtype = (uint8_t)dtype,
                             .name = name,
                             .bytes_read = read,
                             .bytes_written = written,
                             .dims = {1, written / tsr_dtype_bytes(dtype)}};
}

/* RMSNorm of PyTorch operations, 2,048 x 32,768 in bf16 on an A100: 1.9 ms; torch's cross entropy
 * of 16,384 x 65,536 in fp32 on an H100: 6.0 ms forward, 11.3 ms backward. */
static void eager_chains_take_what_was_measured(void **state)
{
    struct tsr_gpu a = gpu_of("a100-sxm4-80g"), h = gpu_of("h100-sxm5-80g");
    uint64_t n = UINT64_C(2048) * 32768, v = UINT64_C(4) * 16384 * 65536;
    struct tsr_work norm[] = {stream(TSR_OP_POINTWISE, "cast", TSR_F32, 2 * n, 4 * n),
                              stream(TSR_OP_POINTWISE, "pow", TSR_F32, 4 * n, 4 * n),
                              stream(TSR_OP_REDUCTION, "mean", TSR_F32, 4 * n, 8192),
                              stream(TSR_OP_POINTWISE, "mul", TSR_F32, 4 * n + 8192, 4 * n),
                              stream(TSR_OP_POINTWISE, "cast", TSR_BF16, 4 * n, 2 * n),
                              stream(TSR_OP_POINTWISE, "mul", TSR_BF16, 2 * n + 65536, 2 * n)};
    struct tsr_work loss[] = {stream(TSR_OP_LOSS, "log_softmax", TSR_F32, v, v),
                              stream(TSR_OP_LOSS, "nll_loss", TSR_F32, v, 8),
                              stream(TSR_OP_LOSS, "nll_loss_backward", TSR_F32, 8, v),
                              stream(TSR_OP_LOSS, "log_softmax_backward", TSR_F32, 2 * v, v)};
    double sum = 0.0;
    (void)state;
    for (size_t i = 0; i < sizeof norm / sizeof norm[0]; i++)
        sum += seconds(&a, &plain, &norm[i]);
    assert_close(sum, 1.9e-3, 0.05);
    assert_close(seconds(&h, &plain, &loss[0]) + seconds(&h, &plain, &loss[1]), 5.996e-3, 0.05);
    assert_close(seconds(&h, &plain, &loss[2]) + seconds(&h, &plain, &loss[3]), 11.303e-3, 0.05);
    /* both operands whole: bandwidth decides */
    struct tsr_work whole = stream(TSR_OP_POINTWISE, "mul", TSR_BF16, 4 * n, 2 * n);
    assert_close(6.0 * (double)n / seconds(&a, &plain, &whole), 0.85 * a.memory_bw, 0.02);
}

/* ---- files ------------------------------------------------------------------------------- */

static const char table_text[] =
    "{\"kind\":\"kernels\",\"name\":\"t\",\"gpu\":\"g\",\"description\":\"test\",\"matmul\":["
    "{\"dtype\":\"bf16\",\"start_s\":5e-6,\"extra_k\":100,\"peak_share\":0.8,\"memory_share\":0.9,"
    "\"tiles\":[[128,128,1.0]],\"m\":[1024,2048],\"n\":[1024],\"k\":[1024],\"batch\":[1],"
    "\"tflops\":[200,400]}],\"attention\":[{\"kernel\":\"flash2\",\"pass\":\"forward\","
    "\"causal\":true,\"head_size\":128,\"seq\":[1024,2048],\"tflops\":[200,300]}],\"norms\":["
    "{\"backend\":\"eager\",\"pass\":\"forward\",\"start_s\":2e-6,\"bytes_per_s\":2e12,"
    "\"bytes_per_element\":4,\"rows\":[1024],\"columns\":[4096],\"us\":[12]}]}";
static const char gpu_text[] =
    "{\"kind\":\"gpu\",\"name\":\"g\",\"architecture\":\"Hopper\",\"sm_count\":132,"
    "\"memory\":{\"visible_bytes\":85000000000,\"bandwidth_bytes_per_s\":3e12},"
    "\"peak_dense_flop_per_s\":{\"bf16\":1e15,\"fp16\":1e15,\"fp8\":null,\"tf32\":5e14,"
    "\"fp32\":6e13,\"fp64\":null},\"nvlink\":null,"
    "\"pcie\":{\"bandwidth_bytes_per_s_per_direction\":63e9},\"kernels\":[\"t\"]}";

static void write_file(const char *path, const char *text, const char *from, const char *to)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    const char *at = *from ? strstr(text, from) : NULL;
    if (at)
        fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    else
        fputs(text, file);
    fclose(file);
}

static tsr_status load_changed(const char *from, const char *to, struct tsr_gpu *gpu)
{
    char dir[] = "/tmp/tsr-kernels-XXXXXX", table[300], device[300];
    assert_non_null(mkdtemp(dir));
    snprintf(table, sizeof table, "%s/kernels-t.json", dir);
    snprintf(device, sizeof device, "%s/gpu-g.json", dir);
    assert_true(!*from || strstr(table_text, from) || strstr(gpu_text, from));
    write_file(table, table_text, from, to);
    write_file(device, gpu_text, from, to);
    tsr_status status = tsr_gpu_load(device, NULL, &store, gpu);
    unlink(table);
    unlink(device);
    rmdir(dir);
    return status;
}

static void bad_tables_give_one_line(void **state)
{
    static const char *const bads[][3] = {
        {"[\"t\"]", "\"t\"",
         "gpu-g.json: key \"kernels\": found \"t\", allowed a list of at most 4"},
        {"[\"t\"]", "[\"x\"]", "key \"kernels\": found \"x\", allowed a NAME with a file"},
        {"\"gpu\":\"g\"", "\"gpu\":\"h\"", "kernels-t.json: key \"gpu\": found \"h\""},
        {"\"dtype\":\"bf16\"", "\"dtype\":\"int8\"",
         "kernels-t.json: matmul[0]: key \"dtype\": found \"int8\", allowed bf16, tf32"},
        {"\"extra_k\":100", "\"extra_k\":-1", "matmul[0]: key \"extra_k\": found -1"},
        {"[[128,128,1.0]]", "[[128,128,1.5]]", "matmul[0]: key \"tiles\": found [128,128,1.5]"},
        {"\"m\":[1024,2048]", "\"m\":[2048,1024]",
         "key \"m\": found [2048,1024], allowed numbers that grow"},
        {"[200,400]", "[200]", "key \"tflops\": found [200], allowed 2 numbers above 0 or nulls"},
        {"[200,400]", "[200,0]", "key \"tflops\": found 0, allowed 2 numbers"},
        {"\"flash2\"", "\"flash9\"",
         "attention[0]: key \"kernel\": found \"flash9\", allowed flash1"},
        {"\"forward\"", "\"both\"", "attention[0]: key \"pass\": found \"both\", allowed forward"},
        {"\"causal\":true", "\"causal\":1", "key \"causal\": found 1, allowed true or false"},
        {"[200,300]", "[200]", "attention[0]: key \"tflops\": found [200], allowed 2 numbers"},
        {"\"eager\"", "\"slow\"", "norms[0]: key \"backend\": found \"slow\""},
        {"\"us\":[12]", "\"us\":[-1]", "norms[0]: key \"us\": found -1"},
        {"\"bytes_per_s\":2e12", "\"bytes_per_s\":null",
         "norms[0]: key \"bytes_per_s\": found null"},
        {"\"norms\":[{", "\"norms\":[7,{", "key \"norms[0]\": found 7, allowed an object"},
        {"\"description\":\"test\",", "", "key \"description\": found nothing"},
    };
    struct tsr_gpu gpu;
    (void)state;
    assert_int_equal(load_changed("", "", &gpu), TSR_OK);
    struct tsr_work w = gemm(2048, 1024, 1024, 1, TSR_BF16);
    assert_close(tflops(&gpu, &plain, &w), 400.0, 1e-5);
    /* a shape without a figure takes its neighbour's factor */
    assert_int_equal(load_changed("[200,400]", "[200,null]", &gpu), TSR_OK);
    assert_true(tflops(&gpu, &plain, &w) > 100.0 && tflops(&gpu, &plain, &w) < 600.0);
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        assert_int_equal(load_changed(bads[i][0], bads[i][1], &gpu), TSR_ECONFIG);
        if (!strstr(tsr_error_text(), bads[i][2]) || strchr(tsr_error_text(), '\n'))
            fail_msg("%s -> %s: %s", bads[i][0], bads[i][1], tsr_error_text());
    }
}

static void sources_are_told(void **state)
{
    struct tsr_gpu a100 = gpu_of("a100-sxm4-80g"), h100 = gpu_of("h100-sxm5-80g");
    char lines[8][256];
    (void)state;
    size_t n = tsr_kernel_sources(&h100, lines, 8);
    assert_true(n >= 3);
    assert_string_equal(lines[0], "matrix products: table sm90, measured on h100-sxm5-80g");
    n = tsr_kernel_sources(&a100, lines, 8);
    assert_true(n >= 4);
    assert_non_null(strstr(lines[0], "matrix products: scaled"));
    assert_string_equal(lines[1], "attention: table sm80, measured on a100-sxm4-80g: flash2, "
                                  "flash1, flash1_triton");
    assert_non_null(strstr(lines[2], "scaled by the ratio of bf16 peaks: cudnn, math"));
    assert_int_equal(tsr_kernel_sources(&a100, lines, 2), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_products_are_exact),
        cmocka_unit_test(time_grows_with_the_shape),
        cmocka_unit_test(no_shape_beats_the_best),
        cmocka_unit_test(waves_show),
        cmocka_unit_test(other_cards_are_scaled),
        cmocka_unit_test(a_point_left_out_is_interpolated),
        cmocka_unit_test(attention_is_exact_at_published_lengths),
        cmocka_unit_test(attention_between_is_between),
        cmocka_unit_test(a_kernel_of_another_card_is_refused),
        cmocka_unit_test(norms_by_backend),
        cmocka_unit_test(eager_chains_take_what_was_measured),
        cmocka_unit_test(bad_tables_give_one_line),
        cmocka_unit_test(sources_are_told),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
