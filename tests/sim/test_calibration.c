/* test_calibration.c: the calibrated numbers of a device file are read with their source, mistakes
 * give one line, an override wins, and each number moves the time that it is about. */
#include <math.h>
#include <unistd.h>

#include "tests/sim/sim_testing.h"

/* Keeps the kernel tables of the cards of all tests. */
static struct tsr_kernel_store store;

static const char gpu_text[] =
    "{\"kind\":\"gpu\",\"name\":\"g\",\"architecture\":\"Hopper\",\"sm_count\":132,"
    "\"memory\":{\"visible_bytes\":85000000000,\"bandwidth_bytes_per_s\":3e12},"
    "\"peak_dense_flop_per_s\":{\"bf16\":1e15,\"fp16\":1e15,\"fp8\":null,\"tf32\":5e14,"
    "\"fp32\":6e13,\"fp64\":null},\"nvlink\":{\"bandwidth_bytes_per_s_per_direction\":450e9},"
    "\"pcie\":{\"bandwidth_bytes_per_s_per_direction\":63e9}%s%s}";
static const char node_text[] =
    "{\"kind\":\"node\",\"name\":\"n\",\"gpu\":\"g\",\"gpus_per_node\":8,"
    "\"intra_node\":{\"type\":\"nvswitch\","
    "\"bandwidth_bytes_per_s_per_gpu_per_direction\":450e9},\"nics\":null}";

/* Loads a node whose GPU file has `calibration` ("": no such object). */
static tsr_status load_with(const char *calibration, struct tsr_cluster *out)
{
    char dir[] = "/tmp/tsr-calibration-XXXXXX", path[300];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/gpu-g.json", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, gpu_text, *calibration ? ",\"calibration\":" : "", calibration);
    fclose(file);
    snprintf(path, sizeof path, "%s/node-n.json", dir);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(node_text, file);
    fclose(file);
    tsr_status status = tsr_cluster_load(path, NULL, &store, out);
    unlink(path);
    snprintf(path, sizeof path, "%s/gpu-g.json", dir);
    unlink(path);
    rmdir(dir);
    return status;
}

static void a_file_without_numbers_has_the_defaults(void **state)
{
    struct tsr_cluster c;
    (void)state;
    assert_int_equal(load_with("", &c), TSR_OK);
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++) {
        const struct tsr_calibration_row *row = tsr_calibration_row((enum tsr_calibration_id)i);
        assert_close(c.gpu.calibration.value[i], row->value, 0.0);
        assert_true(row->min <= row->value && row->value <= row->max);
        assert_string_equal(c.gpu.calibration.source[i], row->source);
        assert_true(*row->source && *row->help);
    }
}

static void a_number_comes_with_its_source(void **state)
{
    struct tsr_cluster c;
    (void)state;
    assert_int_equal(load_with("{\"matmul_sustained\":{\"value\":0.93,\"source\":\"fitted: here\","
                               "\"data\":\"rows 1 to 5\"},"
                               "\"host_scale\":{\"value\":2,\"source\":\"measured\"}}",
                               &c),
                     TSR_OK);
    const struct tsr_calibration *k = &c.gpu.calibration;
    assert_close(k->value[TSR_CAL_MATMUL_SUSTAINED], 0.93, 0.0);
    assert_string_equal(k->source[TSR_CAL_MATMUL_SUSTAINED], "fitted: here");
    assert_string_equal(k->data[TSR_CAL_MATMUL_SUSTAINED], "rows 1 to 5");
    assert_close(k->value[TSR_CAL_HOST_SCALE], 2.0, 0.0);
    assert_string_equal(k->data[TSR_CAL_HOST_SCALE], "");
    assert_close(k->value[TSR_CAL_MEMORY_SUSTAINED], 1.0, 0.0);
}

static void mistakes_give_one_line(void **state)
{
    static const char *const bads[][2] = {
        {"[1]", "key \"calibration\": found [1], allowed an object"},
        {"{\"matmul\":{\"value\":1,\"source\":\"x\"}}",
         "key \"calibration.matmul\": found {\"source\":\"x\",\"value\":1}, allowed "
         "matmul_sustained, "},
        {"{\"matmul_sustained\":0.9}",
         "key \"calibration.matmul_sustained.value\": found nothing, allowed a number from 0.1"},
        {"{\"matmul_sustained\":{\"value\":0,\"source\":\"x\"}}",
         "key \"calibration.matmul_sustained.value\": found 0, allowed a number from 0.1 to 1.5"},
        {"{\"matmul_sustained\":{\"value\":\"1\",\"source\":\"x\"}}", "found \"1\", allowed"},
        {"{\"matmul_sustained\":{\"value\":1}}",
         "key \"calibration.matmul_sustained.source\": found nothing, allowed a string"},
        {"{\"host_scale\":{\"value\":1,\"source\":\"x\",\"data\":7}}",
         "key \"calibration.host_scale.data\": found 7, allowed a string"},
    };
    struct tsr_cluster c;
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        assert_int_equal(load_with(bads[i][0], &c), TSR_ECONFIG);
        if (!strstr(tsr_error_text(), bads[i][1]) || strchr(tsr_error_text(), '\n') ||
            !strstr(tsr_error_text(), "gpu-g.json: "))
            fail_msg("%s -> %s", bads[i][0], tsr_error_text());
    }
}

static void an_override_wins(void **state)
{
    struct tsr_calibration k = tsr_calibration_default();
    double values[TSR_N_CALIBRATIONS];
    (void)state;
    for (int i = 0; i < TSR_N_CALIBRATIONS; i++)
        values[i] = (double)NAN;
    values[TSR_CAL_COMM_COMPUTE_SLOWDOWN] = 0.0;
    values[TSR_CAL_MATMUL_SUSTAINED] = 0.5;
    tsr_calibration_override(&k, values, "the user");
    assert_close(k.value[TSR_CAL_MATMUL_SUSTAINED], 0.5, 0.0);
    assert_string_equal(k.source[TSR_CAL_MATMUL_SUSTAINED], "the user");
    assert_string_equal(k.source[TSR_CAL_COMM_COMPUTE_SLOWDOWN], "the user");
    assert_close(k.value[TSR_CAL_MEMORY_SUSTAINED], 1.0, 0.0);
    assert_string_not_equal(k.source[TSR_CAL_MEMORY_SUSTAINED], "the user");
}

/* Time of one kernel of a kind with one number set. */
static double kernel_with(uint8_t op, enum tsr_calibration_id id, double value)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_work w = {.op = op, .dtype = TSR_BF16, .name = "k", .bytes_read = 1000000000};
    double seconds;
    if (op == TSR_OP_GEMM || op == TSR_OP_ATTENTION) {
        w.flops = 2e13;
        w.bytes_read = 1000;
    }
    memcpy(w.dims,
           op == TSR_OP_GEMM ? (uint64_t[]){8192, 8192, 149011, 1, 0, 0}
                             : (uint64_t[]){4, 16, 16, 4096, 4096, 128},
           6 * sizeof *w.dims);
    c.gpu.calibration.value[id] = value;
    assert_int_equal(tsr_cost_kernel(&c.gpu, &(struct tsr_kernel_choice){0}, &w, &seconds), TSR_OK);
    return seconds;
}

static void sustained_rates_slow_their_kernels_only(void **state)
{
    static const struct {
        uint8_t op;
        enum tsr_calibration_id id;
    } pairs[] = {{TSR_OP_GEMM, TSR_CAL_MATMUL_SUSTAINED},
                 {TSR_OP_ATTENTION, TSR_CAL_ATTENTION_SUSTAINED},
                 {TSR_OP_POINTWISE, TSR_CAL_MEMORY_SUSTAINED}};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            double whole = kernel_with(pairs[i].op, pairs[k].id, 1.0);
            double half = kernel_with(pairs[i].op, pairs[k].id, 0.5);
            assert_close(half / whole, i == k ? 2.0 : 1.0, 1e-2);
        }
}

static void triton_has_a_number_of_its_own(void **state)
{
    static const uint64_t dims[6] = {4, 16, 16, 4096, 4096, 128};
    struct tsr_kernel_choice triton = {.attention = TSR_ATTN_FLASH1_TRITON};
    struct tsr_work w = {
        .op = TSR_OP_ATTENTION, .dtype = TSR_BF16, .name = "k", .flops = 2e13, .bytes_read = 1000};
    struct tsr_cluster c = test_cluster(1);
    double whole, other, half;
    (void)state;
    memcpy(w.dims, dims, sizeof dims);
    assert_int_equal(tsr_cost_kernel(&c.gpu, &triton, &w, &whole), TSR_OK);
    c.gpu.calibration.value[TSR_CAL_ATTENTION_SUSTAINED] = 0.5;
    assert_int_equal(tsr_cost_kernel(&c.gpu, &triton, &w, &other), TSR_OK);
    c.gpu.calibration.value[TSR_CAL_TRITON_SUSTAINED] = 0.5;
    assert_int_equal(tsr_cost_kernel(&c.gpu, &triton, &w, &half), TSR_OK);
    assert_close(other, whole, 0.0);
    assert_close(half / whole, 2.0, 1e-2);
}

/* A step of one product of `phase` on one rank of `nodes` nodes. */
static double product_with(uint8_t phase, bool recompute, uint32_t nodes,
                           enum tsr_calibration_id id, double value)
{
    struct tsr_cluster c = test_cluster(nodes);
    struct tsr_sim_options o = tsr_sim_options_default();
    struct job *job = job_create(8 * nodes, 1, 1);
    struct tsr_work w = {.op = TSR_OP_GEMM,
                         .dtype = TSR_BF16,
                         .recompute = recompute,
                         .name = "mm",
                         .flops = 2e13,
                         .dims = {8192, 8192, 149011, 1}};
    struct tsr_instr instr = {.kind = TSR_OP,
                              .stream = S_COMPUTE,
                              .comm = UINT16_MAX,
                              .work = &w,
                              .dtype = TSR_BF16,
                              .origin = {.phase = phase}};
    c.gpu.calibration.value[id] = value;
    put(job, 0, 0, &instr);
    double end = run_time(&c, job, &o);
    job_destroy(job);
    return end;
}

static void products_of_backward_have_a_rate_of_their_own(void **state)
{
    (void)state;
    enum tsr_calibration_id id = TSR_CAL_BACKWARD_SUSTAINED;
    double plain = product_with(TSR_PHASE_FORWARD, false, 1, id, 0.5);
    assert_close(product_with(TSR_PHASE_BACKWARD, false, 1, id, 1.0), plain, 1e-9);
    assert_close(product_with(TSR_PHASE_BACKWARD, true, 1, id, 0.5), plain, 1e-9);
    assert_close(product_with(TSR_PHASE_BACKWARD, false, 1, id, 0.5) / plain, 2.0, 1e-2);
}

static void more_nodes_have_a_slower_slowest_gpu(void **state)
{
    (void)state;
    enum tsr_calibration_id id = TSR_CAL_STRAGGLER_SHARE;
    double plain = product_with(TSR_PHASE_FORWARD, false, 1, id, 0.0);
    assert_close(product_with(TSR_PHASE_FORWARD, false, 1, id, 0.1), plain, 1e-9);
    assert_close(product_with(TSR_PHASE_FORWARD, false, 8, id, 0.0), plain, 1e-9);
    assert_close(product_with(TSR_PHASE_FORWARD, false, 8, id, 0.1) / plain, 1.3, 1e-2);
}

/* A step of one rank: a kernel that takes 1 us. Its end, with host costs. */
static double step_with(enum tsr_calibration_id id, double value)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = tsr_sim_options_default();
    struct job *job = job_create(1, 1, 1);
    c.gpu.calibration.value[id] = value;
    put_kernel(job, 0, 0, S_COMPUTE, 1.0);
    double end = run_time(&c, job, &o);
    job_destroy(job);
    return end;
}

static void host_numbers_move_the_host(void **state)
{
    struct tsr_sim_options o = tsr_sim_options_default();
    (void)state;
    double plain = step_with(TSR_CAL_HOST_SCALE, 1.0);
    assert_close(step_with(TSR_CAL_HOST_SCALE, 3.0), plain + 2 * o.host_launch_s, 1e-9);
    assert_close(step_with(TSR_CAL_STEP_OVERHEAD, 0.25), plain + 0.25, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_numbers_has_the_defaults),
        cmocka_unit_test(a_number_comes_with_its_source),
        cmocka_unit_test(mistakes_give_one_line),
        cmocka_unit_test(an_override_wins),
        cmocka_unit_test(sustained_rates_slow_their_kernels_only),
        cmocka_unit_test(triton_has_a_number_of_its_own),
        cmocka_unit_test(products_of_backward_have_a_rate_of_their_own),
        cmocka_unit_test(more_nodes_have_a_slower_slowest_gpu),
        cmocka_unit_test(host_numbers_move_the_host),
    };
    return cmocka_run_group_tests_name("calibration", tests, NULL, NULL);
}
