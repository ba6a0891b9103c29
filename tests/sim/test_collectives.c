/* test_collectives.c: collectives against closed forms: ring times, latencies, protocols, rails,
 * sharing of links. */
#include "tests/sim/sim_testing.h"

static const double US = 1e-6;

/* One collective over `world` GPUs of one node, or one per node. */
static double collective_time(uint8_t kind, uint32_t world, bool across, uint64_t bytes,
                              const struct tsr_cluster *cluster, const struct tsr_sim_options *o)
{
    struct job *job = job_create(across ? 8 * world : world, 1, 1);
    uint16_t comm =
        across ? job_comm(job, "across", world, 8, -1) : job_comm(job, "inside", world, 1, -1);
    put_collective(job, 0, 0, kind, S_GATHER, comm, bytes);
    double time = run_time(cluster, job, o);
    job_destroy(job);
    return time;
}

static void ring_times_are_exact(void **state)
{
    static const uint32_t sizes[] = {2, 3, 8, 64};
    static const uint64_t bytes[] = {1 << 20, 1000003, UINT64_C(1) << 30};
    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 3; k++)
            for (int across = 0; across < 2; across++)
                for (int fold = 0; fold < 2; fold++) {
                    uint32_t n = sizes[i];
                    struct tsr_cluster c = test_cluster(across ? n : 1);
                    struct tsr_sim_options o = exact_options();
                    o.fold = fold;
                    if (!across && n > 8) {
                        c.gpus_per_node = c.nvlink_domain_gpus = 64;
                        c.nics_per_node = 64;
                    }
                    if (across && n > 8 && !fold)
                        continue; /* 512 ranks: the folded case says it all */
                    double rate = across ? 50e9 : 400e9;
                    double once = (n - 1.0) / n * (double)bytes[k] / rate;
                    assert_close(collective_time(TSR_ALL_GATHER, n, across, bytes[k], &c, &o), once,
                                 1e-9);
                    assert_close(collective_time(TSR_REDUCE_SCATTER, n, across, bytes[k], &c, &o),
                                 once, 1e-9);
                    assert_close(collective_time(TSR_ALL_REDUCE, n, across, bytes[k], &c, &o),
                                 2 * once, 1e-9);
                    assert_close(collective_time(TSR_BROADCAST, n, across, bytes[k], &c, &o),
                                 (double)bytes[k] / rate, 1e-9);
                }
}

static void latency_is_paid_once(void **state)
{
    /* 450 GB/s and tens of microseconds: the case that a TCP window would halve. */
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    c.intra_bw = 450e9;
    o.latency_scale = 1.0;
    double wire = 7.0 / 8.0 * 90e9 / 450e9;
    assert_close(collective_time(TSR_ALL_GATHER, 8, false, UINT64_C(90000000000), &c, &o),
                 (8.4 + 7 * 3.4) * US + wire, 1e-9);
    assert_close(collective_time(TSR_ALL_REDUCE, 8, false, UINT64_C(90000000000), &c, &o),
                 (8.4 + 14 * 3.4) * US + 2 * wire, 1e-9);
    assert_close(collective_time(TSR_ALL_GATHER, 2, true, 50000000, &c, &o),
                 (8.4 + 14.0) * US + 0.5 * 50e6 / 50e9, 1e-9);
}

static void protocols_cost_their_flags(void **state)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    double best = 1e9;
    (void)state;
    o.latency_scale = 1.0;
    const uint64_t bytes = 12000000;
    const double wire = 7.0 / 8.0 * 12e6 / 400e9;
    /* Twice the bytes would take 2 * wire; LL reaches 141 GB/s of the bus on a Hopper node. */
    const double expected[] = {[TSR_PROTO_LL] = (6.6 + 7 * 0.6) * US + 7.0 / 8.0 * 12e6 / 141e9,
                               [TSR_PROTO_LL128] = (14.0 + 7 * 1.9) * US + wire * 128 / 120,
                               [TSR_PROTO_SIMPLE] = (8.4 + 7 * 3.4) * US + wire};
    for (int p = TSR_PROTO_LL; p <= TSR_PROTO_SIMPLE; p++) {
        o.protocol = (enum tsr_protocol)p;
        double time = collective_time(TSR_ALL_GATHER, 8, false, bytes, &c, &o);
        assert_close(time, expected[p], 1e-9);
        best = time < best ? time : best;
    }
    o.protocol = TSR_PROTO_AUTO;
    assert_close(collective_time(TSR_ALL_GATHER, 8, false, bytes, &c, &o), best, 1e-12);
}

static void more_bandwidth_is_never_slower(void **state)
{
    (void)state;
    for (int protocol = TSR_PROTO_AUTO; protocol <= TSR_PROTO_SIMPLE; protocol++)
        for (int across = 0; across < 2; across++)
            for (uint64_t bytes = 1000; bytes < 1000000000; bytes *= 31) {
                double last = 1e9;
                for (int step = 0; step < 16; step++) {
                    double rate = 1e9 * pow(1.7, step);
                    struct tsr_cluster c = test_cluster(4);
                    struct tsr_sim_options o = exact_options();
                    o.latency_scale = 1.0;
                    o.fold = true;
                    o.protocol = (enum tsr_protocol)protocol;
                    o.intra_bw = o.nic_bw = rate;
                    double time = collective_time(TSR_REDUCE_SCATTER, 4, across, bytes, &c, &o);
                    assert_true(time <= last * (1 + 1e-12));
                    last = time;
                }
            }
}

/* With 8 members on each node a ring leaves through every NIC, so each carries an eighth. */
static void rings_use_every_rail(void **state)
{
    struct job *job = job_create(16, 1, 1);
    uint16_t comm = job_comm(job, "world", 16, 1, -1);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    const double bytes = 1.6e9;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, (uint64_t)bytes);
    struct tsr_sim_result *r = run_job(&c, job, &o);
    /* 15/16 of S: an eighth over the NIC at 50 GB/s takes longer than 7/8 over NVLink. */
    assert_close(r->iteration_end[0], 15.0 / 16.0 * bytes / 8 / 50e9, 1e-9);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(r->ranks[i].sent_intra[0], (uint64_t)(15.0 / 16.0 * bytes * 7 / 8));
        assert_int_equal(r->ranks[i].sent_inter[0], (uint64_t)(15.0 / 16.0 * bytes / 8));
    }
    tsr_sim_result_destroy(r);
    c.nic_bw = 1e12; /* now NVLink decides */
    assert_close(run_time(&c, job, &o), 15.0 / 16.0 * bytes * 7 / 8 / 400e9, 1e-9);
    job_destroy(job);
}

/* 12 members, 8 on one node and 4 on the other: 4 rings, so the smaller node's NICs carry 1/4. */
static void uneven_nodes_work(void **state)
{
    struct job *job = job_create(12, 1, 1);
    uint16_t comm = job_comm(job, "world", 12, 1, -1);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, 1200000000);
    double wire = 11.0 / 12.0 * 1.2e9 / 4 / 50e9;
    assert_close(run_time(&c, job, &o), wire, 1e-9);
    o.fold = true;
    assert_close(run_time(&c, job, &o), wire, 1e-12);
    job_destroy(job);
}

/* Three nodes: an odd number of them changes no rate. */
static void odd_nodes_work(void **state)
{
    struct job *job = job_create(24, 1, 1);
    uint16_t comm = job_comm(job, "world", 24, 1, -1);
    struct tsr_cluster c = test_cluster(3);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, 2400000000);
    assert_close(run_time(&c, job, &o), 23.0 / 24.0 * 2.4e9 / 8 / 50e9, 1e-9);
    job_destroy(job);
}

/* Four GPUs on one NIC: the wire takes what they all send. */
static void shared_nics_are_shared(void **state)
{
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    c.nics_per_node = 2;
    for (int fold = 0; fold < 2; fold++) {
        struct job *job = job_create(16, 1, 1);
        uint16_t comm = job_comm(job, "replicate", 2, 8, -1);
        o.fold = fold;
        put_collective(job, 0, 0, TSR_ALL_REDUCE, S_GATHER, comm, 100000000);
        assert_close(run_time(&c, job, &o), 4 * 0.1e9 / 50e9, 1e-12);
        job_destroy(job);
    }
}

/* Two NICs per GPU add up. */
static void more_nics_than_gpus_add_up(void **state)
{
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    c.nics_per_node = 16;
    assert_close(collective_time(TSR_ALL_REDUCE, 2, true, 100000000, &c, &o), 0.1e9 / 100e9, 1e-9);
}

/* A domain that spans nodes keeps everything on NVLink. */
static void an_nvlink_rack_needs_no_nic(void **state)
{
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    c.nvlink_domain_gpus = 16;
    assert_close(collective_time(TSR_ALL_REDUCE, 2, true, 400000000, &c, &o), 0.4e9 / 400e9, 1e-9);
}

static void all_to_all_sends_to_every_peer(void **state)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        assert_close(collective_time(TSR_ALL_TO_ALL, 8, false, 800000000, &c, &o),
                     7.0 / 8.0 * 0.8e9 / 400e9, 1e-12);
    }
}

/* Pods of one node over a fabric with a seventh of the bandwidth. */
static void oversubscribed_pods_slow_down(void **state)
{
    struct tsr_cluster c = test_cluster(4);
    struct tsr_sim_options o = exact_options();
    (void)state;
    c.n_tiers = 1;
    c.tiers[0] = (struct tsr_tier){.below_gpus = 8, .oversubscription = 7.0};
    for (int fold = 0; fold < 2; fold++) {
        struct job *job = job_create(32, 1, 1);
        uint16_t comm = job_comm(job, "replicate", 4, 8, -1);
        o.fold = fold;
        put_collective(job, 0, 0, TSR_ALL_REDUCE, S_GATHER, comm, 400000000);
        assert_close(run_time(&c, job, &o), 7 * 2 * 0.75 * 0.4e9 / 50e9, 1e-12);
        job_destroy(job);
    }
}

/* Two replicas' collectives on one NIC, sizes 1:3, end at 2S/B and 4S/B; rings inside the nodes
 * meanwhile do not meet them. */
static void two_collectives_share_a_nic(void **state)
{
    const double s = 100e6, inside = 7.0 / 8.0 * 3.2e9 / 400e9;
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int fold = 0; fold < 2; fold++) {
        struct job *job = job_create(16, 1, 1);
        o.fold = fold;
        put_collective(job, 0, 0, TSR_ALL_REDUCE, S_GATHER, job_comm(job, "small", 2, 8, -1),
                       (uint64_t)s);
        put_collective(job, 0, 0, TSR_ALL_REDUCE, S_REDUCE, job_comm(job, "large", 2, 8, -1),
                       (uint64_t)(3 * s));
        put_collective(job, 0, 0, TSR_ALL_GATHER, S_USER, job_comm(job, "shard", 8, 1, -1),
                       3200000000);
        struct tsr_sim_result *r = run_job(&c, job, &o);
        const struct tsr_sim_span *span = r->ranks[0].spans[0];
        assert_close(span[0].end, 2 * s / 50e9, 1e-9);
        assert_close(span[1].end, 4 * s / 50e9, 1e-9);
        assert_close(span[2].end, inside, 1e-9);
        tsr_sim_result_destroy(r);
        job_destroy(job);
    }
}

static void one_member_moves_nothing(void **state)
{
    struct job *job = job_create(2, 1, 1);
    uint16_t comm = job_comm(job, "alone", 1, 1, -1);
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    o.latency_scale = 1.0;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, 1000000);
    assert_true(run_time(&c, job, &o) <= 0.0);
    job_destroy(job);
}

static void unknown_rates_are_refused(void **state)
{
    struct job *job = job_create(16, 1, 1);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = exact_options();
    struct tsr_sim_result *r;
    (void)state;
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, job_comm(job, "world", 16, 1, -1), 1000);
    c.nics_per_node = 0;
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &r), TSR_ECONFIG);
    assert_null(r);
    assert_non_null(strstr(tsr_error_text(), "nics.bandwidth"));
    c = test_cluster(1);
    assert_int_equal(tsr_sim_run(&c, &job->sim, &o, &r), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), "16 ranks"));
    job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_times_are_exact),
        cmocka_unit_test(latency_is_paid_once),
        cmocka_unit_test(protocols_cost_their_flags),
        cmocka_unit_test(more_bandwidth_is_never_slower),
        cmocka_unit_test(rings_use_every_rail),
        cmocka_unit_test(uneven_nodes_work),
        cmocka_unit_test(odd_nodes_work),
        cmocka_unit_test(shared_nics_are_shared),
        cmocka_unit_test(more_nics_than_gpus_add_up),
        cmocka_unit_test(an_nvlink_rack_needs_no_nic),
        cmocka_unit_test(all_to_all_sends_to_every_peer),
        cmocka_unit_test(oversubscribed_pods_slow_down),
        cmocka_unit_test(two_collectives_share_a_nic),
        cmocka_unit_test(one_member_moves_nothing),
        cmocka_unit_test(unknown_rates_are_refused),
    };
    return cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
}
