/* test_nccl_memory.c: buffers of communicators by hand, and beside what was published. */
#include "tests/sim/sim_testing.h"

#include "sim/network/nccl_buffers.h"
#include "sim/network/nccl_memory.h"

#define MIB (UINT64_C(1) << 20)

/* ---- one communicator ------------------------------------------------------------------------ */

/* 8 x Hopper behind NVSwitch. */
static struct tsr__nccl_comm hopper(unsigned uses)
{
    return (struct tsr__nccl_comm){.size = 8,
                                   .inside = 8,
                                   .channels = 24,
                                   .nvls_channels = 16,
                                   .pair_links = 18,
                                   .uses = uses};
}

static struct tsr__nccl_comm ampere(uint32_t size, bool at_init)
{
    return (struct tsr__nccl_comm){.size = size,
                                   .inside = size,
                                   .channels = 24,
                                   .pair_links = 12,
                                   .reads = true,
                                   .at_init = at_init,
                                   .uses = at_init ? 0 : TSR__NCCL_RINGS};
}

static uint64_t mib(const struct tsr__nccl_comm *comm)
{
    struct tsr__nccl_buffers buffers = tsr__nccl_buffers_of(comm);
    return tsr__nccl_buffers_sum(&buffers) / MIB;
}

static void algorithms_inside_a_node(void **state)
{
    (void)state;
    struct tsr__nccl_comm c = hopper(TSR__NCCL_RINGS);
    struct tsr__nccl_buffers b = tsr__nccl_buffers_of(&c);
    /* 32 channels x 3 tables, 2 more; NVLS: one a channel, and credits */
    assert_int_equal(b.tables, (32 * 3 + 2 + 24 + 1) * 2 * MIB);
    assert_int_equal(b.rings, 24 * (10 + 2) * MIB);
    assert_int_equal(b.trees + b.nvls + b.pat + b.messages, 0);
    c.uses = TSR__NCCL_RINGS | TSR__NCCL_TREES | TSR__NCCL_NVLS;
    b = tsr__nccl_buffers_of(&c);
    assert_int_equal(b.trees, 24 * (10 + 2) * MIB); /* the other way round the chain */
    assert_int_equal(b.nvls, 16 * 2 * 8 * MIB);     /* channels, up and down, members */
    c.uses = TSR__NCCL_TREES;
    assert_int_equal(tsr__nccl_buffers_of(&c).trees, 24 * 2 * (10 + 2) * MIB);
    c.uses = TSR__NCCL_RINGS;
    c.sends_inside = c.recvs_inside = 7;
    assert_int_equal(tsr__nccl_buffers_of(&c).messages, 7 * 32 * (10 + 2) * MIB);
    c.pair_links = 0; /* PCIe */
    assert_int_equal(tsr__nccl_buffers_of(&c).messages, 7 * 2 * (10 + 2) * MIB);
}

static void algorithms_between_nodes(void **state)
{
    (void)state;
    struct tsr__nccl_comm c = hopper(TSR__NCCL_RINGS);
    c.size = 32;
    c.channels = 16;
    /* a member of a full node leaves it on 2 channels */
    assert_int_equal(tsr__nccl_buffers_of(&c).rings, (14 * 12 + 2 * 20) * MIB);
    c.uses |= TSR__NCCL_TREES; /* inner (parent and two children) on one of them, a leaf on one */
    assert_int_equal(tsr__nccl_buffers_of(&c).trees, (16 * 12 + (3 + 1) * 20) * MIB);
    c.uses |= TSR__NCCL_NVLS_TREES;
    assert_int_equal(tsr__nccl_buffers_of(&c).nvls, (256 + 8 * (3 + 1) * 20) * MIB);
    c.messages_between = true; /* 16 channels x 16 steps x 128 KiB, each way */
    assert_int_equal(tsr__nccl_buffers_of(&c).messages, 2 * 32 * MIB);
    c = (struct tsr__nccl_comm){.size = 8, .inside = 1, .channels = 16, .uses = TSR__NCCL_PAT};
    assert_int_equal(tsr__nccl_buffers_of(&c).pat, 5 * 16 * 20 * MIB); /* 1, 7, 2, 6, 4 away */
    c.uses |= TSR__NCCL_RINGS;
    assert_int_equal(tsr__nccl_buffers_of(&c).pat, 4 * 16 * 20 * MIB);
    c.size = 6; /* 1, 5, 2, 4 away */
    c.uses = TSR__NCCL_PAT;
    assert_int_equal(tsr__nccl_buffers_of(&c).pat, 4 * 16 * 20 * MIB);
}

/* What people have seen, MiB. A report that counts a whole process, or that does not name its
 * machine, has more in it than buffers: then the prediction is a lower bound, and `least` is the
 * share of the report that it must reach all the same. */
static void published_figures(void **state)
{
    (void)state;
    struct tsr__nccl_comm two = ampere(2, true), four = ampere(4, true), eight = ampere(8, true);
    struct tsr__nccl_comm one = ampere(1, true), all = hopper(0);
    four.ends_chains = true; /* the report is of rank 0, where every chain begins */
    one.channels = 64;       /* #2363 is a B300: 64 channels x 16 steps x 512 KiB */
    one.reads = false;
    all.sends_inside = all.recvs_inside = 7;
    const struct {
        const char *source;
        uint64_t predicted;
        double published, least; /* least 1: exact */
    } rows[] = {
        {"nccl#964: 4 x A100, a group of two", mib(&two), 544, 1},
        {"nccl#964: 4 x A100, a group of more, rank 0", mib(&four), 688, 1},
        {"nccl#2363: one rank, the shared buffer alone", tsr__nccl_buffers_of(&one).messages / MIB,
         512, 1},
        /* 3.28 GB came with the first all-to-all, the communicator and its device code with it */
        {"nccl#1685: 8 x H100, first all-to-all", mib(&all), 3.28e3 / 1.048576, 0.9},
        /* of a whole process, its context with it; the machine is not told */
        {"nccl#864: one communicator", mib(&eight), 1.6e3 / 1.048576, 0.5},
        {"nccl#864: three and more", 3 * mib(&eight), 6e3 / 1.048576, 0.4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double share = (double)rows[i].predicted / rows[i].published;
        print_message("%-46s published %5.0f, predicted %5.0f MiB (%.2f)\n", rows[i].source,
                      rows[i].published, (double)rows[i].predicted, share);
        assert_true(share >= rows[i].least && share <= 1.0);
    }
}

/* ---- of programs ----------------------------------------------------------------------------- */

static struct tsr_nccl_memory of_with(const struct tsr_cluster *cluster, const struct job *job,
                                      const struct tsr_sim_options *options)
{
    struct tsr_nccl_memory out;
    assert_int_equal(
        tsr_nccl_memory_of(cluster, options, job->classes[0], job->sim.n_iterations, &out), TSR_OK);
    return out;
}

static struct tsr_nccl_memory of(const struct tsr_cluster *cluster, const struct job *job)
{
    struct tsr_sim_options options = tsr_sim_options_default();
    return of_with(cluster, job, &options);
}

/* One large all-gather over `size` ranks that lie `stride` apart. */
static struct tsr_nccl_memory of_group(const struct tsr_cluster *cluster, uint32_t size,
                                       uint32_t stride)
{
    struct job *job = job_create(size * stride, 1, 1);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, job_comm(job, "g", size, stride, -1),
                   64 << 20);
    struct tsr_nccl_memory out = of(cluster, job);
    job_destroy(job);
    return out;
}

enum { TABLES = (32 * 3 + 2) * 2, NET_TABLES = (16 * 3 + 2) * 2 };

static void groups_of_a_cluster(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(4);
    assert_int_equal(of_group(&c, 8, 1).bytes, (TABLES + 24 * 12) * MIB);
    assert_int_equal(of_group(&c, 2, 4).bytes, (TABLES + 24 * 12) * MIB);
    assert_int_equal(of_group(&c, 8, 1).at_most, of_group(&c, 8, 1).bytes);
    assert_int_equal(of_group(&c, 16, 1).bytes, (NET_TABLES + 14 * 12 + 2 * 20) * MIB);
    assert_int_equal(of_group(&c, 1, 1).bytes, 0); /* nobody to talk to */
    assert_int_equal(of_group(&c, 1, 1).n_comms, 0);
    c.intra = TSR_INTRA_PCIE;
    assert_int_equal(of_group(&c, 8, 1).bytes, ((2 * 3 + 2) * 2 + 2 * 12) * MIB);
    c.intra = TSR_INTRA_MEMORY;
    assert_int_equal(of_group(&c, 8, 1).at_most, 0); /* no NCCL */
}

/* Communicators add up; only those that are used connect, and only what is used. */
static void used_communicators_add_up(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(1);
    struct tsr_sim_options old = tsr_sim_options_default(), trees = old;
    struct job *job = job_create(8, 1, 2);
    uint16_t a = job_comm(job, "a", 8, 1, -1), b = job_comm(job, "b", 4, 1, -1);
    job_comm(job, "unused", 2, 1, -1);
    put_collective(job, 0, 0, TSR_ALL_GATHER, S_GATHER, a, 64 << 20);
    assert_int_equal(of(&c, job).n_comms, 1);
    put_collective(job, 0, 1, TSR_ALL_REDUCE, S_REDUCE, b, 8);
    put_collective(job, 0, 1, TSR_ALL_REDUCE, S_REDUCE, b, 8);
    put_kernel(job, 0, 1, S_COMPUTE, 1);
    assert_int_equal(of(&c, job).n_comms, 2);
    assert_int_equal(of(&c, job).bytes, 2 * (TABLES + 24 * 12) * MIB);
    trees.algorithm = TSR_ALGO_TREE; /* gathers have none, and stay rings */
    assert_int_equal(of_with(&c, job, &trees).bytes, (2 * TABLES + 24 * 12 + 24 * 24) * MIB);
    c.multicast = true; /* a large one by NVLS, which has its tables in any case */
    put_collective(job, 0, 1, TSR_ALL_REDUCE, S_REDUCE, a, 256 << 20);
    assert_int_equal(of(&c, job).bytes, (2 * (TABLES + 25 * 2 + 24 * 12) + 16 * 2 * 8) * MIB);
    old.nccl_at_init = true; /* rings, trees, NVLS and a shared buffer of messages each */
    assert_int_equal(of_with(&c, job, &old).bytes, (2 * (24 * 24 + 256) + 16 * 2 * (8 + 4)) * MIB);
    job_destroy(job);
}

static void messages_connect_their_peers(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(2);
    struct job *job = job_create(16, 1, 1);
    uint16_t inside = job_comm(job, "a", 8, 1, -1), far = job_comm(job, "b", 2, 8, -1);
    put_p2p(job, 0, 0, TSR_SEND, S_GATHER, inside, 1, 64);
    assert_int_equal(of(&c, job).bytes, (TABLES + 32 * 2) * MIB);
    put_p2p(job, 0, 0, TSR_SEND, S_GATHER, inside, 1, 64); /* the same peer */
    put_p2p(job, 0, 0, TSR_RECV, S_GATHER, inside, 2, 64);
    assert_int_equal(of(&c, job).bytes, (TABLES + 32 * (2 + 10)) * MIB);
    put_p2p(job, 0, 0, TSR_SEND, S_GATHER, far, 1, 64);
    assert_int_equal(of(&c, job).bytes, (TABLES + 32 * (2 + 10) + NET_TABLES + 2 * 32) * MIB);
    job_destroy(job);
}

/* The least is marked: it is not all. */
static void what_nobody_published_has_bounds(void **state)
{
    (void)state;
    struct tsr_cluster c = test_cluster(1);
    c.gpu.traits = tsr_gpu_traits_of("Blackwell");
    struct tsr_nccl_memory m = of_group(&c, 8, 1);
    assert_int_equal(m.bytes, (TABLES + 24 * 12) * MIB);
    assert_int_equal(m.at_most, ((64 * 3 + 2) * 2 + 64 * 12) * MIB);
    c = test_cluster(1);
    c.intra_bw = c.gpu.nvlink_bw = 0; /* the tuner has nothing to choose by */
    c.multicast = true;
    m = of_group(&c, 8, 1);
    assert_int_equal(m.bytes, (TABLES + 25 * 2 + 24 * 12) * MIB);
    assert_int_equal(m.at_most, m.bytes + (24 * 12 + 256) * MIB); /* trees, NVLS */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algorithms_inside_a_node),
        cmocka_unit_test(algorithms_between_nodes),
        cmocka_unit_test(published_figures),
        cmocka_unit_test(groups_of_a_cluster),
        cmocka_unit_test(used_communicators_add_up),
        cmocka_unit_test(messages_connect_their_peers),
        cmocka_unit_test(what_nobody_published_has_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
