/* test_timed.c: what `tessera calibrate` timed counts as it was timed: kernels by name, collectives
 * by size and ranks, the host; ranks that share cores take turns. Mistakes name the key. */
#include "tests/sim/sim_testing.h"

#include <unistd.h>

#include "sim/card/cost.h"
#include "sim/predict.h"

/* Keeps the kernel tables of the cards of all tests. */
static struct tsr_kernel_store store;

#define US 1e-6

static const char gpu_text[] =
    "{\"kind\":\"gpu\",\"name\":\"g\",\"architecture\":\"g\",\"sm_count\":null,"
    "\"memory\":{\"visible_bytes\":1000000000,\"bandwidth_bytes_per_s\":1e10},"
    "\"peak_dense_flop_per_s\":{\"bf16\":1e10,\"fp16\":null,\"fp8\":null,\"tf32\":null,"
    "\"fp32\":1e10,\"fp64\":null},\"nvlink\":null,"
    "\"pcie\":{\"bandwidth_bytes_per_s_per_direction\":1e10},\"kernels\":[\"k\"],"
    "\"host\":{\"launch_s\":1e-3,\"event_s\":2e-6,\"alloc_s\":3e-6,\"collective_s\":4e-6}}";
static const char kernels_text[] =
    "{\"kind\":\"kernels\",\"name\":\"k\",\"gpu\":\"g\",\"description\":\"timed\",\"measured\":["
    "{\"kernel\":\"mm\",\"dtype\":\"f32\",\"per\":\"flop\",\"runs\":[[2000000,100,100,100,100],"
    "[2000000000,50000,1000,1000,1000]]},"
    "{\"kernel\":\"add\",\"dtype\":\"bf16\",\"per\":\"byte\",\"runs\":[[1000,7,10,10]]}]}";
static const char node_text[] =
    "{\"kind\":\"node\",\"name\":\"n\",\"gpu\":\"g\",\"gpus_per_node\":4,"
    "\"intra_node\":{\"type\":\"shared_memory\","
    "\"bandwidth_bytes_per_s_per_gpu_per_direction\":1e10},\"nics\":null,\"pcie_generation\":5,"
    "\"host\":{\"cores\":2,\"memory_bytes\":1000000000},\"collectives\":["
    "{\"kind\":\"all_gather\",\"ranks\":2,\"runs\":[[1000,10],[100000,1000]]},"
    "{\"kind\":\"all_reduce\",\"ranks\":4,\"runs\":[[4096,30]]}]}";

static void write_file(const char *dir, const char *name, const char *text, const char *from,
                       const char *to)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    const char *at = from ? strstr(text, from) : NULL;
    assert_non_null(file);
    if (at)
        fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    else
        fputs(text, file);
    fclose(file);
}

/* The three files, with `from` replaced where it stands. */
static tsr_status load_with(const char *from, const char *to, struct tsr_cluster *out)
{
    static const char *const names[] = {"gpu-g.json", "kernels-k.json", "node-n.json"};
    static const char *const texts[] = {gpu_text, kernels_text, node_text};
    char dir[] = "/tmp/tsr-timed-XXXXXX", path[300];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++)
        write_file(dir, names[i], texts[i], from, to);
    snprintf(path, sizeof path, "%s/node-n.json", dir);
    tsr_status status = tsr_cluster_load(path, NULL, &store, out);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return status;
}

static struct tsr_cluster load(void)
{
    struct tsr_cluster c;
    if (load_with(NULL, NULL, &c) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return c;
}

static double kernel_us(const struct tsr_cluster *c, const char *name, uint8_t op, tsr_dtype dtype,
                        double amount, uint64_t dim)
{
    const struct tsr_kernel_choice choice = {0};
    double s;
    struct tsr_work work = {.op = op, .dtype = (uint8_t)dtype, .name = name, .dims = {dim, dim}};
    if (op == TSR_OP_GEMM) {
        work.flops = amount;
        work.dims[2] = dim;
    } else {
        work.bytes_read = (uint64_t)amount;
    }
    if (tsr_cost_kernel(&c->gpu, &choice, &work, &s) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return s / US;
}

static void kernels_take_what_was_timed(void **state)
{
    struct tsr_cluster c = load();
    (void)state;
    assert_close(kernel_us(&c, "mm", TSR_OP_GEMM, TSR_F32, 2e6, 100), 100, 1e-4);
    assert_close(kernel_us(&c, "mm", TSR_OP_GEMM, TSR_F32, 2e9, 1000), 50000, 1e-4);
    /* In the middle both rates count alike: 20 and 40 GFLOP/s. */
    double dim = sqrt(1e5),
           between = kernel_us(&c, "mm", TSR_OP_GEMM, TSR_F32, 2e6 * sqrt(1e3), (uint64_t)dim);
    assert_close(between, 2e6 * sqrt(1e3) / sqrt(20e9 * 40e9) / US, 1e-2);
    /* Another dtype takes what the only one takes. */
    assert_close(kernel_us(&c, "add", TSR_OP_POINTWISE, TSR_F32, 1000, 10), 7, 1e-4);
    /* What has no run takes the rates of the file. */
    assert_true(kernel_us(&c, "mul", TSR_OP_POINTWISE, TSR_F32, 1e6, 1000) > 100);
}

static void runs_on_another_card_say_nothing(void **state)
{
    struct tsr_cluster c = load();
    (void)state;
    snprintf(c.gpu.name, sizeof c.gpu.name, "other");
    assert_true(kernel_us(&c, "mm", TSR_OP_GEMM, TSR_F32, 2e6, 100) > 200);
}

static double collective_us(const struct tsr_cluster *c, uint8_t kind, uint32_t ranks,
                            uint64_t bytes)
{
    struct tsr_sim_options o = tsr_sim_options_default();
    struct tsr_collective_query what = {kind, ranks, 1};
    double s;
    if (tsr_predict_collective(c, &o, &what, &bytes, 1, &s) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return s / US;
}

static void collectives_take_what_was_timed(void **state)
{
    struct tsr_cluster c = load();
    (void)state;
    assert_close(collective_us(&c, TSR_ALL_GATHER, 2, 1000), 10, 1e-5);
    assert_close(collective_us(&c, TSR_ALL_GATHER, 2, 10000), 100, 1e-5);
    assert_close(collective_us(&c, TSR_ALL_GATHER, 2, 100000), 1000, 1e-5);
    assert_close(collective_us(&c, TSR_ALL_GATHER, 2, 8), 10, 1e-5);
    assert_close(collective_us(&c, TSR_ALL_GATHER, 2, 300000), 3000, 1e-5);
    assert_close(collective_us(&c, TSR_ALL_REDUCE, 4, 4096), 30, 1e-5);
    /* Not timed with so many ranks: as NCCL would, over the links. */
    double links = collective_us(&c, TSR_ALL_GATHER, 4, 100000000);
    assert_close(links, 0.75 * 1e8 / (0.8 * 1e10) / US, 0.05);
}

static double step_time(const struct tsr_cluster *c, uint32_t world,
                        const struct tsr_sim_options *o)
{
    struct job *job = job_create(world, 1, 1);
    struct tsr_work work = {.op = TSR_OP_GEMM,
                            .dtype = TSR_F32,
                            .name = "mm",
                            .flops = 2e9,
                            .dims = {1000, 1000, 1000}};
    struct tsr_instr instr = {.kind = TSR_OP, .stream = S_COMPUTE, .work = &work};
    put(job, 0, 0, &instr);
    double seconds = run_time(c, job, o);
    job_destroy(job);
    return seconds;
}

static void ranks_share_cores_and_the_host_is_timed(void **state)
{
    struct tsr_cluster c = load();
    struct tsr_sim_options o = tsr_sim_options_default();
    (void)state;
    /* One launch of 1 ms, then 50 ms. */
    assert_close(step_time(&c, 1, &o), 0.051, 1e-4);
    assert_close(step_time(&c, 2, &o), 0.051, 1e-4);
    assert_close(step_time(&c, 4, &o), 0.102, 1e-4); /* two cores */
    o.host_launch_s = 5e-3;                          /* the experiment's own */
    assert_close(step_time(&c, 1, &o), 0.055, 1e-4);
}

static void mistakes_give_one_line(void **state)
{
    static const char *const bads[][3] = {
        {"\"dtype\":\"f32\"", "\"dtype\":\"f33\"", "measured[0]: key \"dtype\": found \"f33\""},
        {"\"per\":\"flop\"", "\"per\":\"day\"", "key \"per\": found \"day\", allowed \"flop\""},
        {"[2000000,100,100,100,100]", "[2000000,0,100]", "measured[0]: key \"runs\": found "},
        {"[2000000,100,100,100,100]", "[2000000]", "measured[0]: key \"runs\": found "},
        {"[[1000,7,10,10]]", "[]", "measured[1]: key \"runs\": found []"},
        {"\"kernel\":\"add\",", "", "measured[1]: key \"kernel\": found nothing"},
        {"\"measured\":[", "\"measured\":[7,", "key \"measured\": found 7, allowed objects"},
        {"\"cores\":2", "\"cores\":0", "key \"host.cores\": found 0, allowed a number from 1"},
        {"\"cores\":2,", "", "key \"host.cores\": found nothing"},
        {"shared_memory", "shared", "key \"intra_node.type\": found \"shared\""},
        {"\"kind\":\"all_gather\"", "\"kind\":\"gather\"", "collectives[0]: key \"kind\": found"},
        {"[1000,10],[100000,1000]", "[1000,10],[1000,20]", "bytes growing"},
        {"[1000,10],[100000,1000]", "[1000,-10]", "collectives[0]: key \"runs\": found "},
        {"\"ranks\":2", "\"ranks\":0", "collectives[0]: key \"ranks\": found 0"},
        {"\"launch_s\":1e-3", "\"launch_s\":\"a\"", "key \"host.launch_s\": found \"a\""},
    };
    struct tsr_cluster c;
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        assert_int_equal(load_with(bads[i][0], bads[i][1], &c), TSR_ECONFIG);
        if (!strstr(tsr_error_text(), bads[i][2]) || strchr(tsr_error_text(), '\n'))
            fail_msg("%s -> %s", bads[i][1], tsr_error_text());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_take_what_was_timed),
        cmocka_unit_test(runs_on_another_card_say_nothing),
        cmocka_unit_test(collectives_take_what_was_timed),
        cmocka_unit_test(ranks_share_cores_and_the_host_is_timed),
        cmocka_unit_test(mistakes_give_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
