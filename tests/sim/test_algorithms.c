/* test_algorithms.c: NCCL's algorithms against closed forms, the choice between them, and what the
 * calibrated numbers add. */
#include "tests/sim/sim_testing.h"

#include "sim/predict.h"

static const double US = 1e-6, GB = 1e9;

/* Hopper nodes whose switch reduces. */
static struct tsr_cluster hopper(uint32_t nodes)
{
    struct tsr_cluster c = test_cluster(nodes);
    c.multicast = true;
    return c;
}

static struct tsr_sim_options forced(enum tsr_algorithm algorithm, double latency)
{
    struct tsr_sim_options o = exact_options();
    o.algorithm = algorithm;
    o.latency_scale = latency;
    o.fold = true;
    return o;
}

static double predict(const struct tsr_cluster *c, const struct tsr_sim_options *o, uint8_t kind,
                      uint32_t ranks, uint32_t nodes, uint64_t bytes)
{
    struct tsr_collective_query what = {kind, ranks, nodes};
    double seconds = 0.0;
    if (tsr_predict_collective(c, o, &what, &bytes, 1, &seconds) != TSR_OK)
        fail_msg("tsr_predict_collective: %s", tsr_error_text());
    return seconds;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- closed forms ------------------------------------------------------------------------ */

/* 2^30 bytes: log2(size / 64) = 24, where the tuner's tree factor is 1 again. */
static void trees_follow_the_double_binary_tree(void **state)
{
    static const struct {
        uint32_t nodes;
        double trees, depth;
    } cases[] = {{2, 1.0, 1.0}, {4, 2.0, 2.0}, {5, 2.0, 2.0}, {8, 2.0, 3.0}};
    const double s = 1 << 30, tree = 0.92;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tsr_cluster c = test_cluster(cases[i].nodes);
        struct tsr_sim_options o = forced(TSR_ALGO_TREE, 1.0);
        uint32_t n = 8 * cases[i].nodes;
        double between = cases[i].trees * s / tree / 8 / (50 * GB);
        double inside = 2 * s * 7 / 8 / tree / (400 * GB);
        double latency = (8.4 + 2 * (7 * 4.0 + cases[i].depth * 14.0)) * US;
        assert_close(predict(&c, &o, TSR_ALL_REDUCE, n, cases[i].nodes, 1 << 30),
                     latency + larger(between, inside), 1e-9);
    }
}

static void medium_trees_are_slower(void **state)
{
    struct tsr_cluster c = test_cluster(4);
    struct tsr_sim_options o = forced(TSR_ALGO_TREE, 0.0);
    (void)state;
    /* 1 MiB: 2^14 * 64 bytes, half of the rate. */
    assert_close(predict(&c, &o, TSR_ALL_REDUCE, 32, 4, 1 << 20),
                 2.0 * (1 << 20) / (0.92 * 0.5) / 8 / (50 * GB), 1e-9);
}

static void the_switch_reduces(void **state)
{
    (void)state;
    for (uint32_t n = 5; n <= 8; n++) {
        struct tsr_cluster c = hopper(1);
        struct tsr_sim_options o = forced(TSR_ALGO_NVLS, 1.0);
        const double s = 1 << 28;
        assert_close(predict(&c, &o, TSR_ALL_REDUCE, n, 1, 1 << 28),
                     25 * US + s * (n + 1) / n / (0.85 * 400 * GB), 1e-9);
        assert_close(predict(&c, &o, TSR_ALL_GATHER, n, 1, 1 << 28),
                     25 * US + s / (0.85 * 400 * GB), 1e-9);
    }
}

/* What a rank is said to send are bytes; that an algorithm reaches less is time, not bytes. */
static void bytes_sent_are_bytes(void **state)
{
    static const struct {
        enum tsr_algorithm algorithm;
        double inside, between; /* times the size */
    } cases[] = {{TSR_ALGO_RING, 30.0 / 16 * 7 / 8, 30.0 / 16 / 8},
                 {TSR_ALGO_TREE, 2.0 * 7 / 8, 1.0 / 8},
                 {TSR_ALGO_NVLS_TREE, 9.0 / 8, 1.0 / 8}};
    const double s = 1 << 26;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tsr_cluster c = hopper(2);
        struct tsr_sim_options o = forced(cases[i].algorithm, 1.0);
        struct job *job = job_create(16, 1, 1);
        put_collective(job, 0, 0, TSR_ALL_REDUCE, S_GATHER, job_comm(job, "world", 16, 1, -1),
                       1 << 26);
        struct tsr_sim_result *r = run_job(&c, job, &o);
        assert_close((double)r->ranks[0].sent_intra[0], cases[i].inside * s, 1e-6);
        assert_close((double)r->ranks[0].sent_inter[0], cases[i].between * s, 1e-6);
        tsr_sim_result_destroy(r);
        job_destroy(job);
    }
}

static void trees_of_switches(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 4; nodes += 2) {
        struct tsr_cluster c = hopper(nodes);
        struct tsr_sim_options o = forced(TSR_ALGO_NVLS_TREE, 1.0);
        const double s = 1 << 28, depth = nodes == 2 ? 1 : 2;
        double inside = s * 9 / 8 / (0.85 * 0.93 * 400 * GB), between = depth * s / 8 / (50 * GB);
        assert_close(predict(&c, &o, TSR_ALL_REDUCE, 8 * nodes, nodes, 1 << 28),
                     (25 + 2 * depth * 20.9) * US + larger(inside, between), 1e-9);
    }
}

static void pat_takes_logarithmic_rounds(void **state)
{
    struct tsr_cluster c = test_cluster(8);
    struct tsr_sim_options o = forced(TSR_ALGO_PAT, 1.0);
    const double s = 1 << 24;
    (void)state;
    double expected = (8.0 + 3 / 3.5 * 14.0 + 8 * 2.8) * US + 7.0 / 8 * s / 0.75 / (50 * GB);
    assert_close(predict(&c, &o, TSR_ALL_GATHER, 8, 8, 1 << 24), expected, 1e-9);
    assert_close(predict(&c, &o, TSR_REDUCE_SCATTER, 8, 8, 1 << 24), expected, 1e-9);
    /* An all-reduce has none: the choice goes on without it. */
    struct tsr_sim_options any = forced(TSR_ALGO_AUTO, 1.0);
    assert_close(predict(&c, &o, TSR_ALL_REDUCE, 8, 8, 1 << 24),
                 predict(&c, &any, TSR_ALL_REDUCE, 8, 8, 1 << 24), 1e-12);
}

static void copy_engines_move_what_rings_move(void **state)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = forced(TSR_ALGO_COPY_ENGINE, 1.0);
    (void)state;
    assert_close(predict(&c, &o, TSR_ALL_GATHER, 8, 1, 1 << 28),
                 (8.4 + 3.4) * US + 7.0 / 8 * (1 << 28) / (400 * GB), 1e-9);
}

/* ---- choice ------------------------------------------------------------------------------ */

/* AUTO is the least of what can be forced, at every size. */
static void auto_is_the_cheapest(void **state)
{
    static const enum tsr_algorithm algorithms[] = {TSR_ALGO_RING, TSR_ALGO_TREE, TSR_ALGO_NVLS,
                                                    TSR_ALGO_NVLS_TREE};
    uint32_t used = 0;
    (void)state;
    for (uint32_t nodes = 1; nodes <= 4; nodes *= 2)
        for (uint64_t bytes = 1024; bytes <= 1 << 30; bytes *= 32) {
            struct tsr_cluster c = hopper(nodes);
            struct tsr_sim_options o = forced(TSR_ALGO_AUTO, 1.0);
            o.protocol = TSR_PROTO_AUTO;
            double time = predict(&c, &o, TSR_ALL_REDUCE, 8 * nodes, nodes, bytes), best = 1e9;
            for (size_t i = 0; i < 4; i++) {
                o.algorithm = algorithms[i];
                double one = predict(&c, &o, TSR_ALL_REDUCE, 8 * nodes, nodes, bytes);
                if (one < best)
                    best = one;
                if (one <= time * (1 + 1e-12))
                    used |= 1u << algorithms[i];
            }
            assert_close(time, best, 1e-12);
        }
    assert_int_equal(used, 1u << TSR_ALGO_RING | 1u << TSR_ALGO_TREE | 1u << TSR_ALGO_NVLS |
                               1u << TSR_ALGO_NVLS_TREE);
}

/* Published: on H200, NVLS from 5 GPUs on, rings for all-gathers; an A100's switch has none. */
static void nvls_is_for_what_has_it(void **state)
{
    const uint64_t bytes = UINT64_C(1) << 33;
    struct tsr_sim_options any = forced(TSR_ALGO_AUTO, 1.0), ring = forced(TSR_ALGO_RING, 1.0);
    struct tsr_cluster c = hopper(1);
    (void)state;
    any.protocol = ring.protocol = TSR_PROTO_AUTO;
    for (uint32_t n = 2; n <= 8; n++) {
        double time = predict(&c, &any, TSR_ALL_REDUCE, n, 1, bytes);
        double rings = predict(&c, &ring, TSR_ALL_REDUCE, n, 1, bytes);
        assert_true(n <= 4 ? fabs(time - rings) < 1e-9 * rings : time < 0.99 * rings);
    }
    assert_close(predict(&c, &any, TSR_ALL_GATHER, 8, 1, bytes),
                 predict(&c, &ring, TSR_ALL_GATHER, 8, 1, bytes), 1e-12);
    c.multicast = false;
    assert_close(predict(&c, &any, TSR_ALL_REDUCE, 8, 1, bytes),
                 predict(&c, &ring, TSR_ALL_REDUCE, 8, 1, bytes), 1e-12);
}

static void more_bandwidth_is_never_slower(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 4; nodes += 3)
        for (uint64_t bytes = 1000; bytes < 1000000000; bytes *= 31) {
            double last = 1e9;
            for (int step = 0; step < 12; step++) {
                struct tsr_cluster c = hopper(nodes);
                struct tsr_sim_options o = forced(TSR_ALGO_AUTO, 1.0);
                o.protocol = TSR_PROTO_AUTO;
                o.intra_bw = o.nic_bw = 1e9 * pow(1.9, step);
                c.nic_fill_s = 300 * US;
                c.gpu.calibration.value[TSR_CAL_COLLECTIVE_FILL] = 50 * US;
                c.gpu.calibration.value[TSR_CAL_COLLECTIVE_OWN] = 0.3;
                double time = predict(&c, &o, TSR_ALL_REDUCE, 8 * nodes, nodes, bytes);
                assert_true(time <= last * (1 + 1e-12));
                last = time;
            }
        }
}

/* A group of small calls is one launch: NCCL chooses the protocol by all their bytes. */
static void calls_of_a_group_are_tuned_together(void **state)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = forced(TSR_ALGO_RING, 1.0);
    const uint64_t call = 1 << 20;
    double times[2];
    (void)state;
    o.protocol = TSR_PROTO_AUTO;
    for (int group = 0; group < 2; group++) {
        struct job *job = job_create(8, 1, 1);
        uint16_t comm = job_comm(job, "shard", 8, 1, -1);
        if (group)
            put_kind(job, 0, 0, TSR_GROUP_BEGIN, S_GATHER);
        for (int i = 0; i < (group ? 64 : 1); i++)
            put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, call);
        if (group)
            put_kind(job, 0, 0, TSR_GROUP_END, S_GATHER);
        times[group] = run_time(&c, job, &o);
        job_destroy(job);
    }
    /* Alone: LL, 141 GB/s at most. Together 64 MiB: Simple, whose latency is paid once. */
    assert_close(times[0], (6.6 + 7 * 0.6) * US + 7.0 / 8 * (double)call / (141 * GB), 1e-9);
    assert_close(times[1], (8.4 + 7 * 3.4) * US + 64 * 7.0 / 8 * (double)call / (400 * GB), 1e-9);
}

/* ---- calibrated numbers ------------------------------------------------------------------ */

static void calibrated_numbers_add_up(void **state)
{
    const double s = 1 << 28, ring = 2 * 15.0 / 16 * s, wire = ring / 8 / (50 * GB);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = forced(TSR_ALGO_RING, 1.0);
    (void)state;
    double plain = predict(&c, &o, TSR_ALL_REDUCE, 16, 2, 1 << 28);
    assert_close(plain, (8.4 + 28 * 3.4 + 2 * 14.0) * US + wire, 1e-9);
    c.gpu.calibration.value[TSR_CAL_COLLECTIVE_BASE] = 20 * US;
    c.nic_latency_s = 30 * US; /* twice there, twice back */
    assert_close(predict(&c, &o, TSR_ALL_REDUCE, 16, 2, 1 << 28), plain + 80 * US, 1e-9);
    c.nic_fill_s = 400 * US;
    double fill = 400 * US * 1.5 * wire / (400 * US + 1.5 * wire);
    assert_close(predict(&c, &o, TSR_ALL_REDUCE, 16, 2, 1 << 28), plain + 80 * US + fill, 1e-9);
    c.gpu.calibration.value[TSR_CAL_COLLECTIVE_OWN] = 0.5; /* of its sixteenth, read and written */
    assert_close(predict(&c, &o, TSR_ALL_REDUCE, 16, 2, 1 << 28),
                 plain + 80 * US + fill + 0.5 * 2 * s / 16 / (400 * GB), 1e-9);
}

static void efficiencies_are_of_their_links(void **state)
{
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = forced(TSR_ALGO_RING, 0.0);
    (void)state;
    o.link_efficiency = 0.0;
    c.gpu.calibration.value[TSR_CAL_INTRA_EFFICIENCY] = 0.7;
    c.gpu.calibration.value[TSR_CAL_INTER_EFFICIENCY] = 0.9;
    assert_close(predict(&c, &o, TSR_ALL_GATHER, 8, 1, 1 << 28),
                 7.0 / 8 * (1 << 28) / (0.7 * 400 * GB), 1e-9);
    assert_close(predict(&c, &o, TSR_ALL_GATHER, 2, 2, 1 << 28), 0.5 * (1 << 28) / (0.9 * 50 * GB),
                 1e-9);
}

/* ---- folding ----------------------------------------------------------------------------- */

static void every_algorithm_folds(void **state)
{
    (void)state;
    for (int a = TSR_ALGO_AUTO; a < TSR_N_ALGORITHMS; a++)
        for (int slow = 0; slow < 2; slow++) {
            struct tsr_cluster c = hopper(4);
            struct tsr_sim_options o = tsr_sim_options_default();
            struct job *job = job_create(32, 1, 1);
            uint16_t shard = job_comm(job, "shard", 8, 1, -1);
            uint16_t replicate = job_comm(job, "replicate", 4, 8, -1);
            uint16_t world = job_comm(job, "world", 32, 1, -1);
            put_step(job, 0, 0, 3, shard, replicate, 87654321, 700);
            put_collective(job, 0, 0, TSR_ALL_REDUCE, S_USER, world, 44444444);
            o.algorithm = (enum tsr_algorithm)a;
            o.slow_rank = 3;
            o.slow_factor = slow ? 1.3 : 0.0;
            double folded = run_time(&c, job, &o);
            o.fold = false;
            assert_close(folded, run_time(&c, job, &o), 1e-12);
            job_destroy(job);
        }
}

/* ---- predictions ------------------------------------------------------------------------- */

static void sizes_do_not_disturb_each_other(void **state)
{
    const uint64_t bytes[] = {1 << 30, 4096, 1 << 24};
    struct tsr_cluster c = hopper(2);
    struct tsr_sim_options o = tsr_sim_options_default();
    struct tsr_collective_query what = {TSR_ALL_REDUCE, 16, 2};
    double seconds[3];
    (void)state;
    assert_int_equal(tsr_predict_collective(&c, &o, &what, bytes, 3, seconds), TSR_OK);
    for (size_t i = 0; i < 3; i++)
        assert_close(seconds[i], predict(&c, &o, TSR_ALL_REDUCE, 16, 2, bytes[i]), 1e-9);
    assert_close(tsr_bus_factor(TSR_ALL_REDUCE, 16), 2 * 15.0 / 16, 1e-15);
    assert_close(tsr_bus_factor(TSR_ALL_GATHER, 16), 15.0 / 16, 1e-15);
    assert_close(tsr_bus_factor(TSR_BROADCAST, 16), 1.0, 1e-15);
}

static void groups_that_do_not_exist_are_refused(void **state)
{
    static const struct tsr_collective_query bad[] = {
        {TSR_ALL_REDUCE, 1, 1},  {TSR_ALL_REDUCE, 9, 1},  {TSR_ALL_REDUCE, 8, 2},
        {TSR_ALL_REDUCE, 24, 3}, {TSR_ALL_REDUCE, 15, 2}, {TSR_ALL_REDUCE, 8, 0}};
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = tsr_sim_options_default();
    const uint64_t bytes = 1024;
    double seconds;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tsr_predict_collective(&c, &o, &bad[i], &bytes, 1, &seconds), TSR_ECONFIG);
        assert_non_null(strstr(tsr_error_text(), "test.json"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_follow_the_double_binary_tree),
        cmocka_unit_test(medium_trees_are_slower),
        cmocka_unit_test(the_switch_reduces),
        cmocka_unit_test(bytes_sent_are_bytes),
        cmocka_unit_test(trees_of_switches),
        cmocka_unit_test(pat_takes_logarithmic_rounds),
        cmocka_unit_test(copy_engines_move_what_rings_move),
        cmocka_unit_test(auto_is_the_cheapest),
        cmocka_unit_test(nvls_is_for_what_has_it),
        cmocka_unit_test(more_bandwidth_is_never_slower),
        cmocka_unit_test(calls_of_a_group_are_tuned_together),
        cmocka_unit_test(calibrated_numbers_add_up),
        cmocka_unit_test(efficiencies_are_of_their_links),
        cmocka_unit_test(every_algorithm_folds),
        cmocka_unit_test(sizes_do_not_disturb_each_other),
        cmocka_unit_test(groups_that_do_not_exist_are_refused),
    };
    return cmocka_run_group_tests_name("algorithms", tests, NULL, NULL);
}
