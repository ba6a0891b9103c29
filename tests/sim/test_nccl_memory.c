/* test_nccl_memory.c: buffers of communicators by hand: channels x what their rings connect. */
#include "tests/sim/sim_testing.h"

#include "sim/network/nccl_memory.h"

#define MIB (UINT64_C(1) << 20)

static struct tsr_nccl_memory of(const struct tsr_cluster *cluster, const struct job *job)
{
    struct tsr_nccl_memory out;
    assert_int_equal(tsr_nccl_memory_of(cluster, job->classes[0], job->sim.n_iterations, &out),
                     TSR_OK);
    return out;
}

/* One all-gather over `size` ranks that lie `stride` apart. */
static struct tsr_nccl_memory of_group(const struct tsr_cluster *cluster, uint32_t size,
                                       uint32_t stride)
{
    struct job *job = job_create(size * stride, 1, 1);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, job_comm(job, "g", size, stride, -1), 64);
    struct tsr_nccl_memory out = of(cluster, job);
    job_destroy(job);
    return out;
}

static void rings_inside_a_node(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(1);
    assert_int_equal(of_group(&c, 8, 1).bytes, 24 * (10 + 2) * MIB);
    assert_int_equal(of_group(&c, 2, 4).bytes, 24 * (10 + 2) * MIB);
    assert_true(of_group(&c, 8, 1).known);
    c.intra = TSR_INTRA_PCIE;
    assert_int_equal(of_group(&c, 8, 1).bytes, 2 * (10 + 2) * MIB);
    assert_int_equal(of_group(&c, 1, 1).bytes, 0); /* nobody to talk to */
    assert_int_equal(of_group(&c, 1, 1).n_comms, 0);
}

/* 16 channels; a rank of a full node leaves it on 2 of them, one alone in its node on all. */
static void rings_between_nodes(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(4);
    assert_int_equal(of_group(&c, 16, 1).bytes, (16 * 10 + 14 * 2 + 2 * 10) * MIB);
    assert_int_equal(of_group(&c, 4, 8).bytes, 16 * (10 + 10) * MIB);
    c.nics_per_node = 4;
    assert_int_equal(of_group(&c, 4, 8).bytes, 8 * (10 + 10) * MIB);
}

/* Communicators add up; only those that are used connect. */
static void used_communicators_add_up(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(1);
    struct job *job = job_create(8, 1, 2);
    uint16_t a = job_comm(job, "a", 8, 1, -1), b = job_comm(job, "b", 4, 1, -1);
    job_comm(job, "unused", 2, 1, -1);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, a, 64);
    assert_int_equal(of(&c, job).n_comms, 1);
    put_collective(job, 0, 1, TSR_ALL_REDUCE, S_REDUCE, b, 64);
    put_collective(job, 0, 1, TSR_ALL_REDUCE, S_REDUCE, b, 64);
    put_kernel(job, 0, 1, S_COMPUTE, 1);
    assert_int_equal(of(&c, job).n_comms, 2);
    assert_int_equal(of(&c, job).bytes, 2 * 24 * 12 * MIB);
    job_destroy(job);
}

static void what_nobody_published_is_unknown(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(1);
    struct job *job = job_create(8, 1, 1);
    uint16_t comm = job_comm(job, "a", 8, 1, -1);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, comm, 64);
    assert_true(of(&c, job).known);
    put_p2p(job, 0, 0, TSR_SEND, S_GATHER, comm, 1, 64);
    assert_false(of(&c, job).known);
    job_destroy(job);
    memcpy(c.gpu.architecture, "Blackwell", sizeof "Blackwell");
    assert_false(of_group(&c, 8, 1).known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_inside_a_node),
        cmocka_unit_test(rings_between_nodes),
        cmocka_unit_test(used_communicators_add_up),
        cmocka_unit_test(what_nobody_published_is_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
