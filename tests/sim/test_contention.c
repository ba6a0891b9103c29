/* test_contention.c: kernels beside a collective's kernel run slower, by the share that the GPU's
 * calibration names; copy engines take none. */
#include "tests/sim/sim_testing.h"

static const double US = 1e-6;

/* A collective that takes `seconds` on the test cluster, all members on one node. */
static uint64_t bytes_for(double seconds)
{
    return (uint64_t)llround(seconds * 400e9 * 8.0 / 7.0);
}

static struct tsr_cluster slowing_cluster(double share)
{
    struct tsr_cluster c = test_cluster(1);
    c.gpu.calibration.value[TSR_CAL_COMM_COMPUTE_SLOWDOWN] = share;
    return c;
}

/* The host issues the kernel at 0 and the collective 0.2 s later. */
static struct tsr_sim_options late_host(void)
{
    struct tsr_sim_options o = exact_options();
    o.host_scale = 1.0;
    o.host_launch_s = o.host_event_s = o.host_alloc_s = 0.0;
    o.host_collective_s = 0.2;
    return o;
}

/* 1 s of compute, a collective from 0.2 to 0.7 s beside it at 85 %: 1.075 s. */
static void a_kernel_is_rerated_exactly(void **state)
{
    struct job *job = job_create(8, 1, 1);
    uint16_t comm = job_comm(job, "shard", 8, 1, -1);
    struct tsr_cluster c = slowing_cluster(0.15);
    struct tsr_sim_options o = late_host();
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 1e6 - 2);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, bytes_for(0.5));
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        struct tsr_sim_result *r = run_job(&c, job, &o);
        const struct tsr_sim_span *s = r->ranks[0].spans[0];
        assert_close(s[1].start, 0.2, 1e-12);
        assert_close(s[1].end, 0.7, 1e-9);
        assert_close(s[0].end, 1.075 - 2 * US, 1e-9);
        tsr_sim_result_destroy(r);
    }
    c = slowing_cluster(0.0);
    assert_close(run_time(&c, job, &o), 1.0 - 2 * US, 1e-9);
    job_destroy(job);
}

/* Two communicators at once take twice the share; their calls of one group are one kernel. */
static void each_kernel_takes_its_share(void **state)
{
    struct tsr_cluster c = slowing_cluster(0.2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int group = 0; group < 2; group++) {
        struct job *job = job_create(8, 1, 1);
        uint16_t first = job_comm(job, "shard", 8, 1, -1);
        uint16_t second = group ? first : job_comm(job, "reduce", 8, 1, -1);
        put_kernel(job, 0, 0, S_COMPUTE, 1e6);
        if (group)
            put_kind(job, 0, 0, TSR_GROUP_BEGIN, S_GATHER);
        put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, first, bytes_for(0.3));
        put_collective(job, 0, 0, TSR_ALL_GATHER, group ? S_GATHER : S_REDUCE, second,
                       bytes_for(0.3));
        if (group)
            put_kind(job, 0, 0, TSR_GROUP_END, S_GATHER);
        /* Both share the links: 0.6 s. The kernel does 0.6 s times 1 - 0.4 (or 1 - 0.2). */
        double lost = 0.6 * (group ? 0.2 : 0.4);
        assert_close(run_time(&c, job, &o), 1.0 + lost, 1e-5);
        job_destroy(job);
    }
}

/* A rank that waits for the others holds the SMs already: its kernel is there. */
static void a_waiting_kernel_takes_its_share(void **state)
{
    struct job *job = job_create(8, 2, 1);
    uint16_t comm = job_comm(job, "shard", 8, 1, -1);
    struct tsr_cluster c = slowing_cluster(0.25);
    struct tsr_sim_options o = exact_options();
    (void)state;
    job->class_of[7] = 1;
    put_kernel(job, 0, 0, S_COMPUTE, 1e6);
    put_collective(job, 0, 0, TSR_ALL_REDUCE, S_GATHER, comm, bytes_for(0.05));
    put_kernel(job, 1, 0, S_GATHER, 0.3e6);
    put_collective(job, 1, 0, TSR_ALL_REDUCE, S_GATHER, comm, bytes_for(0.05));
    for (int fold = 0; fold < 2; fold++) {
        o.fold = fold;
        struct tsr_sim_result *r = run_job(&c, job, &o);
        assert_close(r->ranks[0].spans[0][1].end, 0.4, 1e-5);
        assert_close(r->ranks[0].spans[0][0].end, 1.0 + 0.25 * 0.4, 1e-5);
        tsr_sim_result_destroy(r);
    }
    job_destroy(job);
}

static void copy_engines_take_none(void **state)
{
    struct job *job = job_create(8, 1, 1);
    uint16_t comm = job_comm(job, "shard", 8, 1, -1);
    struct tsr_cluster c = slowing_cluster(0.15);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 1e6);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, bytes_for(0.5));
    assert_close(run_time(&c, job, &o), 1.075, 1e-5);
    o.algorithm = TSR_ALGO_COPY_ENGINE;
    assert_close(run_time(&c, job, &o), 1.0, 1e-5);
    job_destroy(job);
}

/* A step with everything on: folded and unfolded agree, also with a slow GPU. */
static void folding_keeps_the_share(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        struct job *job = job_create(32, 1, 1);
        uint16_t shard = job_comm(job, "shard", 8, 1, -1);
        uint16_t replicate = job_comm(job, "replicate", 4, 8, -1);
        struct tsr_cluster c = test_cluster(4);
        struct tsr_sim_options o = tsr_sim_options_default();
        c.multicast = true;
        c.gpu.calibration.value[TSR_CAL_COMM_COMPUTE_SLOWDOWN] = 0.12;
        put_step(job, 0, 0, 4, shard, replicate, 123456789, 800);
        o.slow_rank = 5;
        o.slow_factor = slow ? 1.25 : 0.0;
        double folded = run_time(&c, job, &o);
        o.fold = false;
        assert_close(folded, run_time(&c, job, &o), 1e-12);
        c.gpu.calibration.value[TSR_CAL_COMM_COMPUTE_SLOWDOWN] = 0.0;
        assert_true(run_time(&c, job, &o) < folded);
        job_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_rerated_exactly),
        cmocka_unit_test(each_kernel_takes_its_share),
        cmocka_unit_test(a_waiting_kernel_takes_its_share),
        cmocka_unit_test(copy_engines_take_none),
        cmocka_unit_test(folding_keeps_the_share),
    };
    return cmocka_run_group_tests_name("contention", tests, NULL, NULL);
}
