/* test_fabric.c: ways through racks and PCIe trees, and links that are slow, dead or shared with
 * others, against closed forms; folded = unfolded under all of it. */
#include "tests/sim/sim_testing.h"

enum { GB = 1000000000 };

/* All ranks of the classes that are not idle do one collective; the time of it. */
static double one_collective(const struct tsr_cluster *c, uint32_t world, uint32_t size,
                             uint32_t stride, uint8_t kind, uint64_t bytes, bool first_rail_only,
                             const struct tsr_sim_options *o)
{
    struct job *job = job_create(world, 2, 1);
    uint16_t comm = job_comm(job, "group", size, stride, -1);
    put_collective(job, 0, 0, kind, S_GATHER, comm, bytes);
    for (uint32_t r = 0; r < world && first_rail_only; r++)
        job->class_of[r] = r % 8 != 0;
    double seconds = run_time(c, job, o);
    job_destroy(job);
    return seconds;
}

/* ---- racks ------------------------------------------------------------------------------- */

/* Of two nodes below a tier with 4:1, each rail has a quarter of 2 x 50 GB/s; if rails share, one
 * rail alone has all of it. */
static void rails_have_uplinks_of_their_own(void **state)
{
    (void)state;
    for (int fold = 0; fold < 2; fold++)
        for (int rails = 0; rails < 2; rails++) {
            struct tsr_cluster c = test_cluster(4);
            struct tsr_sim_options o = exact_options();
            o.fold = fold;
            c.n_tiers = 1;
            c.tiers[0] = (struct tsr_tier){
                .below_gpus = 16, .rails = rails ? 8 : 0, .oversubscription = 4.0};
            double seconds = one_collective(&c, 32, 4, 8, TSR_ALL_REDUCE, GB, true, &o);
            assert_close(seconds, 2 * 0.75 * GB / (rails ? 25e9 : 50e9), 1e-12);
        }
}

/* 2:1 above nodes and 3:1 above pairs of nodes is 6:1 for who crosses both. */
static void oversubscriptions_multiply(void **state)
{
    struct tsr_cluster c = test_cluster(8);
    struct tsr_sim_options o = exact_options();
    (void)state;
    c.n_tiers = 2;
    c.tiers[0] = (struct tsr_tier){.below_gpus = 8, .oversubscription = 2.0};
    c.tiers[1] = (struct tsr_tier){.below_gpus = 16, .oversubscription = 3.0};
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        assert_close(one_collective(&c, 64, 8, 8, TSR_ALL_REDUCE, GB, false, &o),
                     2 * 0.875 * GB / (50e9 * 2 / 6), 1e-12);
        assert_close(one_collective(&c, 16, 2, 8, TSR_ALL_REDUCE, GB, false, &o), GB / 25e9, 1e-12);
    }
}

/* ---- PCIe -------------------------------------------------------------------------------- */

static struct tsr_cluster pcie_cluster(uint32_t nodes, uint32_t sockets, bool peer_to_peer)
{
    struct tsr_cluster c = test_cluster(nodes);
    c.intra = TSR_INTRA_PCIE;
    c.intra_bw = 32e9;
    c.nics_per_node = 2;
    c.places = (struct tsr_places){.switches = 4,
                                   .sockets = sockets,
                                   .switch_bw = 20e9,
                                   .socket_bw = 10e9,
                                   .peer_to_peer = peer_to_peer};
    for (uint8_t i = 0; i < 8; i++)
        c.places.switch_of_gpu[i] = i / 2;
    for (uint8_t i = 0; i < 4; i++)
        c.places.socket_of_switch[i] = i / 2;
    c.places.switch_of_nic[1] = 2;
    return c;
}

static void a_ring_crosses_switches_and_sockets(void **state)
{
    static const struct {
        uint32_t sockets;
        bool peer;
        double rate;
    } cases[] = {
        {0, true, 20e9},  /* from one switch to the next */
        {2, true, 10e9},  /* from one socket to the other */
        {0, false, 10e9}, /* both GPUs of a switch send over its uplink */
    };
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int fold = 0; fold < 2; fold++) {
            struct tsr_cluster c = pcie_cluster(1, cases[i].sockets, cases[i].peer);
            o.fold = fold;
            assert_close(one_collective(&c, 8, 8, 1, TSR_ALL_GATHER, GB, false, &o),
                         0.875 * GB / cases[i].rate, 1e-12);
        }
}

/* GPU 2 of each node has its adapter behind another switch: 20 GB/s instead of 32 and 50. */
static void adapters_are_reached_over_their_switch(void **state)
{
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (uint32_t from = 0; from < 4; from += 2) {
        struct tsr_cluster c = pcie_cluster(2, 0, true);
        struct job *job = job_create(16, 3, 1);
        uint16_t comm = job_comm(job, "pair", 2, 8, -1);
        for (uint32_t r = 0; r < 16; r++)
            job->class_of[r] = r == from ? 0 : r == from + 8 ? 1 : 2;
        put_p2p(job, 0, 0, TSR_SEND, S_GATHER, comm, 1, GB);
        put_p2p(job, 1, 0, TSR_RECV, S_GATHER, comm, 0, GB);
        assert_close(run_time(&c, job, &o), GB / (from ? 20e9 : 32e9), 1e-12);
        job_destroy(job);
    }
}

/* ---- faults ------------------------------------------------------------------------------ */

/* Sixteen GPUs in two nodes: each rail carries an eighth. */
static double ring_seconds(const struct tsr_sim_options *o)
{
    struct tsr_cluster c = test_cluster(2);
    return one_collective(&c, 16, 16, 1, TSR_ALL_GATHER, 16 * (uint64_t)GB, false, o);
}

static void a_slow_link_slows_its_ring(void **state)
{
    const struct tsr_link_fault slow_nic = {TSR_LINK_NIC, 11, 0.5};
    const struct tsr_link_fault slow_port = {TSR_LINK_PORT, 3, 0.125};
    struct tsr_sim_options o = exact_options();
    (void)state;
    o.conditions.faults.n_links = 1;
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        o.conditions.faults.links = &slow_nic;
        assert_close(ring_seconds(&o), 15.0 * GB / 8 / 25e9, 1e-12);
        o.conditions.faults.links = &slow_port; /* a port carries 7 of 8 rings */
        assert_close(ring_seconds(&o), 15.0 * GB * 7 / 8 / 50e9, 1e-12);
    }
}

static void a_dead_adapter_fails_or_is_avoided(void **state)
{
    const struct tsr_link_fault one = {TSR_LINK_NIC, 3, 0.0};
    struct tsr_link_fault all[8];
    struct tsr_sim_options o = exact_options();
    struct tsr_cluster c = test_cluster(2);
    struct job *job = job_create(16, 1, 1);
    struct tsr_sim_result *result;
    (void)state;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, job_comm(job, "all", 16, 1, -1), GB);
    o.conditions.faults = (struct tsr_faults){.n_links = 1, .links = &one};
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(),
                        "faults: found nic 3 dead, which ranks 3 and 11 communicate over: their "
                        "collectives fail; allowed: a share above 0, or sim.reroute: true");
    o.conditions.reroute = true; /* two rings then share adapter 4 */
    assert_close(ring_seconds(&o), 15.0 * GB / 8 / 25e9, 1e-12);
    for (uint32_t i = 0; i < 8; i++)
        all[i] = (struct tsr_link_fault){TSR_LINK_NIC, i, 0.0};
    o.conditions.faults = (struct tsr_faults){.n_links = 8, .links = all};
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "or one live adapter in the node"));
    o.conditions.faults = (struct tsr_faults){.n_links = 1, .links = all};
    all[0].index = 16;
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_ECONFIG);
    assert_string_equal(tsr_error_text(), "faults: found nic 16, allowed 0 to 15");
    all[0] = (struct tsr_link_fault){TSR_LINK_UPLINK, 0, 0.5};
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "this job uses no uplink"));
    job_destroy(job);
}

/* The slowest of several slow GPUs sets the pace of everybody. */
static void several_gpus_are_slow(void **state)
{
    const struct tsr_slow_gpu slow[] = {{3, 1.25}, {9, 1.5}, {12, 1.25}};
    struct tsr_sim_options o = exact_options();
    struct tsr_cluster c = test_cluster(2);
    (void)state;
    o.conditions.faults = (struct tsr_faults){.n_slow = 3, .slow = slow};
    for (int fold = 0; fold < 2; fold++) {
        struct job *job = job_create(16, 1, 1);
        uint16_t comm = job_comm(job, "all", 16, 1, -1);
        uint32_t event = 1;
        o.fold = fold;
        o.infinite_bandwidth = true;
        for (int i = 0; i < 3; i++) {
            put_kernel(job, 0, 0, S_COMPUTE, 1000.0);
            put_after(job, 0, 0, S_GATHER, S_COMPUTE, &event);
            put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, GB);
            put_after(job, 0, 0, S_COMPUTE, S_GATHER, &event);
        }
        assert_close(run_time(&c, job, &o), 3 * 1.5e-3, 1e-9);
        job_destroy(job);
    }
}

/* ---- others ------------------------------------------------------------------------------ */

static void others_take_a_share(void **state)
{
    struct tsr_sim_options o = exact_options();
    double alone = ring_seconds(&o);
    (void)state;
    o.conditions.background[TSR_LINK_NIC] = 0.75; /* a rail of 12.5 GB/s, a port of 400 */
    assert_close(ring_seconds(&o), 15.0 * GB / 8 / 12.5e9, 1e-12);
    o.conditions.background[TSR_LINK_NIC] = 0.0;
    o.conditions.background[TSR_LINK_PORT] = 0.5; /* 7/8 over 200 GB/s: a little more than a rail */
    assert_close(ring_seconds(&o), 15.0 * GB * 7 / 8 / 200e9, 1e-12);
    assert_close(alone, 15.0 * GB / 8 / 50e9, 1e-12);
}

/* B bytes of the ring and k messages of b on one adapter, never idle: (B + k b) / rate. */
static void messages_share_an_adapter(void **state)
{
    const double ring = 15.0 * GB / 8, message = 0.25 * GB;
    struct tsr_traffic traffic = {0, 8, message, 0.02, 0.0};
    struct tsr_sim_options o = exact_options();
    (void)state;
    o.conditions.traffic = (struct tsr_traffic_list){1, &traffic};
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        traffic.period_s = 1.0; /* one message */
        assert_close(ring_seconds(&o), (ring + message) / 50e9, 1e-9);
        traffic.period_s = 0.03; /* the second at 30 ms, of 47.5 */
        assert_close(ring_seconds(&o), (ring + 2 * message) / 50e9, 1e-9);
        traffic.start_s = 1.0; /* too late */
        assert_close(ring_seconds(&o), ring / 50e9, 1e-9);
        traffic.start_s = 0.0;
    }
    traffic.to = 0;
    struct tsr_cluster c = test_cluster(2);
    struct job *job = job_create(16, 1, 1);
    struct tsr_sim_result *result;
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "traffic: found from 0 to 0"));
    job_destroy(job);
}

/* Nor do they keep one alive that is through: kernels beside collectives are slowed down by
 * activities whose end nobody waits for. */
static void messages_end_with_the_job(void **state)
{
    const struct tsr_traffic traffic = {0, 8, 1e6, 1e-3, 0.0};
    struct tsr_sim_options o = exact_options();
    struct tsr_cluster c = test_cluster(2);
    struct job *job = job_create(16, 1, 1);
    uint16_t comm = job_comm(job, "all", 16, 1, -1);
    (void)state;
    c.gpu.calibration.value[TSR_CAL_COMM_COMPUTE_SLOWDOWN] = 0.2;
    o.conditions.traffic = (struct tsr_traffic_list){1, &traffic};
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, GB);
    put_kernel(job, 0, 0, S_COMPUTE, 1000.0);
    assert_close(run_time(&c, job, &o), 15.0 / 16 * GB / 8 / 50e9, 0.05);
    job_destroy(job);
}

/* Messages never keep a job alive that is stuck. */
static void a_deadlock_is_seen_among_messages(void **state)
{
    const struct tsr_traffic traffic = {0, 8, 1e6, 1e-3, 0.0};
    struct tsr_sim_options o = exact_options();
    struct tsr_cluster c = test_cluster(2);
    struct job *job = job_create(16, 2, 1);
    uint16_t comm = job_comm(job, "all", 16, 1, -1);
    struct tsr_sim_result *result;
    (void)state;
    job->class_of[5] = 1; /* does not take part */
    put_kernel(job, 0, 0, S_COMPUTE, 1000.0);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, GB);
    o.conditions.traffic = (struct tsr_traffic_list){1, &traffic};
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_EBACKEND);
    assert_non_null(strstr(tsr_error_text(), "deadlock"));
    job_destroy(job);
}

/* Two rings of two nodes, each over both racks: alone each has an uplink of 100 GB/s for its eight
 * rails, together they have half. Beside each other in racks of their own they never meet. */
static void jobs_share_uplinks(void **state)
{
    static const uint32_t apart[] = {0, 1, 2, 3}, mixed[] = {0, 2, 1, 3};
    struct tsr_sim_options o = exact_options();
    struct tsr_cluster c = test_cluster(4);
    (void)state;
    c.n_tiers = 1;
    c.tiers[0] = (struct tsr_tier){.below_gpus = 16, .oversubscription = 8.0};
    for (int fold = 0; fold < 2; fold++)
        for (int both = 0; both < 2; both++)
            for (int is_mixed = 0; is_mixed < 2; is_mixed++) {
                struct job *job = job_create(32, 3, 1);
                uint16_t comm = job_comm(job, "pair", 2, 8, -1);
                double rate = !is_mixed ? 50e9 : both ? 100e9 / 16 : 100e9 / 8;
                o.fold = fold;
                o.node_of = is_mixed ? mixed : apart;
                put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, GB);
                put_collective(job, 1, 0, TSR_ALL_GATHER, S_GATHER, comm, GB);
                for (uint32_t r = 16; r < 32; r++)
                    job->class_of[r] = both ? 1 : 2; /* 2: idle */
                assert_close(run_time(&c, job, &o), 0.5 * GB / rate, 1e-12);
                job_destroy(job);
            }
    uint32_t outside[] = {0, 1, 2, 4};
    struct job *job = job_create(32, 1, 1);
    struct tsr_sim_result *result;
    o.node_of = outside;
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &result), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "found node 4, allowed 0 to 3"));
    job_destroy(job);
}

/* ---- noise ------------------------------------------------------------------------------- */

static void noise_is_a_function_of_its_seed(void **state)
{
    const double sigma = 0.1;
    double sum = 0, squares = 0;
    enum { N = 100000 };
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = tsr_noise(7, 1, i, sigma);
        sum += x;
        squares += x * x;
    }
    double mean = sum / N, spread = sqrt(squares / N - mean * mean);
    assert_close(mean, 1.0, 4 * sigma / sqrt(N));
    assert_close(spread, sqrt(expm1(sigma * sigma)), 0.02);
    assert_true(tsr_noise(7, 1, 3, sigma) == tsr_noise(7, 1, 3, sigma));
    assert_true(tsr_noise(7, 1, 3, sigma) != tsr_noise(8, 1, 3, sigma));
    assert_true(tsr_noise(7, 1, 3, 0.0) == 1.0);
}

/* Each GPU's kernels take its own factor; the collective waits for the slowest. */
static void gpus_differ_by_their_noise(void **state)
{
    struct tsr_sim_options o = exact_options();
    struct tsr_cluster c = test_cluster(2);
    double slowest = 0;
    (void)state;
    o.fold = true; /* noise makes all ranks differ: it is simulated unfolded */
    o.infinite_bandwidth = true;
    o.conditions.jitter_gpu = 0.1;
    o.conditions.seed = 42;
    struct job *job = job_create(16, 1, 1);
    uint16_t comm = job_comm(job, "all", 16, 1, -1);
    put_kernel(job, 0, 0, S_COMPUTE, 1000.0);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_COMPUTE, comm, GB);
    for (uint32_t r = 0; r < 16; r++)
        slowest = fmax(slowest, tsr_noise(42, 0, r, 0.1));
    assert_close(run_time(&c, job, &o), slowest * 1e-3, 1e-9);
    double before = run_time(&c, job, &o);
    o.conditions.jitter_gpu = 0.0;
    o.conditions.jitter_kernel = 0.1;
    double first = run_time(&c, job, &o);
    assert_true(first == run_time(&c, job, &o));
    o.conditions.seed = 43;
    assert_true(first != run_time(&c, job, &o) && first != before);
    job_destroy(job);
}

/* ---- folding ----------------------------------------------------------------------------- */

static void disturbed_machines_fold(void **state)
{
    static const struct tsr_link_fault links[] = {{TSR_LINK_NIC, 3, 0.5},
                                                  {TSR_LINK_UPLINK, 1, 0.25}};
    static const struct tsr_slow_gpu slow[] = {{3, 1.25}, {9, 1.5}};
    static const struct tsr_traffic traffic[] = {{0, 8, 5e7, 0.01, 0.0}, {8, 24, 5e7, 0.01, 0.0}};
    (void)state;
    for (unsigned what = 1; what < 16; what++) {
        struct tsr_sim_options o = tsr_sim_options_default();
        struct tsr_cluster c = test_cluster(4);
        double end[2];
        c.n_tiers = 1;
        c.tiers[0] = (struct tsr_tier){.below_gpus = 16, .oversubscription = 2.0};
        o.conditions.faults.links = links;
        o.conditions.faults.n_links = what & 1 ? 2 : 0;
        o.conditions.faults.slow = slow;
        o.conditions.faults.n_slow = what & 2 ? 2 : 0;
        o.conditions.traffic = (struct tsr_traffic_list){what & 4 ? 2 : 0, traffic};
        if (what & 8)
            c.nics_per_node = 2; /* nic 3 is one of node 1 then */
        for (int fold = 0; fold < 2; fold++) {
            struct job *job = job_create(32, 1, 2);
            uint16_t shard = job_comm(job, "shard", 8, 1, -1);
            uint16_t copies = job_comm(job, "copies", 4, 8, -1);
            for (int it = 0; it < 2; it++)
                put_step(job, 0, it, 3, shard, copies, 200000000, 700.0);
            o.fold = fold;
            end[fold] = run_time(&c, job, &o);
            job_destroy(job);
        }
        if (fabs(end[1] - end[0]) > 1e-12 * end[0])
            fail_msg("case %u: folded %.15g, unfolded %.15g", what, end[1], end[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rails_have_uplinks_of_their_own),
        cmocka_unit_test(oversubscriptions_multiply),
        cmocka_unit_test(a_ring_crosses_switches_and_sockets),
        cmocka_unit_test(adapters_are_reached_over_their_switch),
        cmocka_unit_test(a_slow_link_slows_its_ring),
        cmocka_unit_test(a_dead_adapter_fails_or_is_avoided),
        cmocka_unit_test(several_gpus_are_slow),
        cmocka_unit_test(others_take_a_share),
        cmocka_unit_test(messages_share_an_adapter),
        cmocka_unit_test(messages_end_with_the_job),
        cmocka_unit_test(a_deadlock_is_seen_among_messages),
        cmocka_unit_test(jobs_share_uplinks),
        cmocka_unit_test(noise_is_a_function_of_its_seed),
        cmocka_unit_test(gpus_differ_by_their_noise),
        cmocka_unit_test(disturbed_machines_fold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
