/* test_folding.c: folded and unfolded simulations agree; classes are as few as they should be; a
 * partition that is not equitable is refused. */
#include "tests/sim/sim_testing.h"

#include "sim/fold/fold.h"

/* Two iterations of a small step with everything on: latencies, host, sharing. */
static struct job *step_job(uint32_t world, uint32_t shard_size, int extra_comm)
{
    struct job *job = job_create(world, 1, 2);
    uint16_t shard = job_comm(job, "shard", shard_size, 1, -1);
    uint16_t replicate = UINT16_MAX;
    if (shard_size < world)
        replicate = job_comm(job, "replicate", world / shard_size, shard_size, -1);
    for (int it = 0; it < 2; it++) {
        put_step(job, 0, it, 4, shard, replicate, 123456789, 800);
        if (extra_comm)
            put_collective(job, 0, it, (uint8_t)extra_comm, S_USER,
                           job->tables.n_comms > 2 ? 2 : job_comm(job, "world", world, 1, -1),
                           7654321);
    }
    return job;
}

/* Largest relative difference between the spans of a folded and an unfolded run. */
static double difference(const struct tsr_cluster *c, const struct job *job,
                         struct tsr_sim_options o, uint32_t *n_ranks)
{
    double worst = 0.0;
    o.fold = true;
    struct tsr_sim_result *folded = run_job(c, job, &o);
    o.fold = false;
    struct tsr_sim_result *whole = run_job(c, job, &o);
    uint32_t weight = 0;
    for (uint32_t i = 0; i < folded->n_ranks; i++) {
        const struct tsr_sim_rank *rep = &folded->ranks[i], *rank = &whole->ranks[rep->rank];
        weight += rep->weight;
        for (uint32_t it = 0; it < folded->n_iterations; it++) {
            assert_int_equal(rep->exec_hash[it], rank->exec_hash[it]);
            assert_int_equal(rep->sent_intra[it], rank->sent_intra[it]);
            assert_int_equal(rep->sent_inter[it], rank->sent_inter[it]);
            for (size_t k = 0; k < job->rows[rep->layout][it]->n_instrs; k++) {
                double a = rep->spans[it][k].end, b = rank->spans[it][k].end;
                double d = fabs(a - b) / (b > 0.0 ? b : 1.0);
                worst = d > worst ? d : worst;
            }
        }
    }
    assert_int_equal(weight, job->sim.world);
    *n_ranks = folded->n_ranks;
    tsr_sim_result_destroy(folded);
    tsr_sim_result_destroy(whole);
    return worst;
}

static void folded_is_unfolded(void **state)
{
    static const struct {
        uint32_t world, shard;
        int extra;
        uint32_t most_classes; /* symmetric */
    } cases[] = {
        {16, 16, 0, 1},  {16, 8, 0, 1},
        {64, 16, 0, 1},  {32, 4, 0, 1},
        {24, 8, 0, 1},   {16, 8, TSR_ALL_TO_ALL, 1},
        {24, 24, 0, 24}, {16, 8, TSR_ALL_REDUCE, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int slow = 0; slow < 2; slow++) {
            struct tsr_cluster c = test_cluster(8);
            struct tsr_sim_options o = tsr_sim_options_default();
            struct job *job = step_job(cases[i].world, cases[i].shard, cases[i].extra);
            uint32_t n_ranks;
            o.slow_rank = 5;
            o.slow_factor = slow ? 1.25 : 0.0;
            double worst = difference(&c, job, o, &n_ranks);
            if (worst > 1e-12)
                fail_msg("case %zu slow %d: %g", i, slow, worst);
            if (!slow)
                assert_true(n_ranks <= cases[i].most_classes);
            job_destroy(job);
        }
}

/* A slow rank that enters the replicas' all-reduce straight from its kernels does not keep step
 * with its group: the literal partition takes over. */
static void a_twin_out_of_step_is_noticed(void **state)
{
    (void)state;
    for (int aligned = 0; aligned < 2; aligned++) {
        struct tsr_cluster c = test_cluster(8);
        struct tsr_sim_options o = tsr_sim_options_default();
        struct job *job = step_job(64, 16, 0);
        uint32_t n_ranks;
        o.slow_rank = 5;
        o.slow_factor = 2.0;
        if (!aligned)
            put_collective(job, 0, 0, TSR_ALL_REDUCE, S_COMPUTE, 1, 55555555);
        assert_true(difference(&c, job, o, &n_ranks) <= 1e-12);
        assert_true(aligned ? n_ranks == 5 : n_ranks == 12);
        job_destroy(job);
    }
}

static void shared_links_fold(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct tsr_cluster c = test_cluster(8);
        struct tsr_sim_options o = tsr_sim_options_default();
        struct job *job = step_job(64, 8, 0);
        uint32_t n_ranks;
        if (variant % 2)
            c.nics_per_node = 2;
        if (variant >= 2) {
            c.n_tiers = 1;
            c.tiers[0] = (struct tsr_tier){.below_gpus = 16, .oversubscription = 3.0};
        }
        double worst = difference(&c, job, o, &n_ranks);
        if (worst > 1e-12)
            fail_msg("variant %d: %g", variant, worst);
        assert_true(n_ranks <= 64);
        job_destroy(job);
    }
}

static void a_pcie_node_folds(void **state)
{
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = tsr_sim_options_default();
    struct job *job = step_job(16, 8, 0);
    uint32_t n_ranks;
    (void)state;
    c.intra = TSR_INTRA_PCIE;
    c.intra_bw = 31.5e9;
    c.nics_per_node = 1;
    assert_true(difference(&c, job, o, &n_ranks) <= 1e-12);
    assert_int_equal(n_ranks, 1);
    job_destroy(job);
}

/* Classes of programs that differ, as uneven shards make them. */
static void layouts_split_classes(void **state)
{
    struct job *job = job_create(16, 2, 1);
    struct tsr_cluster c = test_cluster(2);
    struct tsr_sim_options o = tsr_sim_options_default();
    uint32_t n_ranks;
    (void)state;
    uint16_t shard = job_comm(job, "shard", 16, 1, -1);
    for (int class = 0; class < 2; class ++)
        put_step(job, class, 0, 3, shard, UINT16_MAX, 99999999, class ? 700 : 800);
    job->class_of[15] = 1;
    assert_true(difference(&c, job, o, &n_ranks) <= 1e-12);
    assert_int_equal(n_ranks, 2);
    job_destroy(job);
}

/* ---- the partition itself ---------------------------------------------------------------- */

struct fixture {
    struct job *job;
    struct tsr_cluster cluster;
    struct tsr_sim_options options;
    struct tsr__fabric fabric;
    struct tsr__tapes tapes;
    struct tsr__net net;
};

static void open_net(struct fixture *f, uint32_t world, uint32_t shard, bool slow)
{
    f->job = step_job(world, shard, 0);
    f->cluster = test_cluster(world / 8);
    f->options = tsr_sim_options_default();
    f->options.slow_factor = slow ? 1.25 : 0.0;
    f->options.slow_rank = 0;
    assert_int_equal(tsr__fabric_init(&f->fabric, &f->cluster, &f->options, world), TSR_OK);
    assert_int_equal(tsr__tapes_build(&f->cluster, &f->job->sim, &f->options, &f->tapes), TSR_OK);
    assert_int_equal(tsr__net_build(&f->fabric, &f->tapes, &f->job->sim, &f->options, &f->net),
                     TSR_OK);
}

static void close_net(struct fixture *f)
{
    tsr__net_fini(&f->net);
    tsr__tapes_fini(&f->tapes);
    job_destroy(f->job);
}

static void bad_partitions_are_refused(void **state)
{
    struct fixture f;
    struct tsr__partition p;
    (void)state;
    open_net(&f, 64, 16, true);
    assert_int_equal(tsr__fold_refine(&f.net, false, &p), TSR_OK);
    assert_int_equal(tsr__fold_check(&f.net, &p), TSR_OK);
    assert_true(p.n_ranks > 1 && p.n_ranks <= 16);
    /* Any two classes of ranks merged by hand are wrong: the partition was the coarsest. */
    for (uint32_t merged = 1; merged < p.n_ranks; merged++) {
        uint32_t saved[64];
        memcpy(saved, p.rank, sizeof saved);
        for (uint32_t r = 0; r < 64; r++)
            p.rank[r] = p.rank[r] == merged ? 0 : p.rank[r];
        assert_int_equal(tsr__fold_check(&f.net, &p), TSR_EBACKEND);
        memcpy(p.rank, saved, sizeof saved);
    }
    for (uint32_t merged = 1; merged < p.n_links; merged++) {
        uint32_t n_links = tsr__fabric_links(&f.fabric);
        uint32_t *saved = malloc(n_links * sizeof *saved);
        memcpy(saved, p.link, n_links * sizeof *saved);
        for (uint32_t l = 0; l < n_links; l++)
            p.link[l] = p.link[l] == merged ? 0 : p.link[l];
        assert_int_equal(tsr__fold_check(&f.net, &p), TSR_EBACKEND);
        memcpy(p.link, saved, n_links * sizeof *saved);
        free(saved);
    }
    tsr__partition_fini(&p);
    close_net(&f);
}

static void a_straggler_costs_a_few_classes_a_replica(void **state)
{
    struct fixture f;
    struct tsr__partition p;
    (void)state;
    open_net(&f, 1024, 16, true); /* 64 replicas */
    assert_int_equal(tsr__fold_refine(&f.net, false, &p), TSR_OK);
    assert_int_equal(tsr__fold_check(&f.net, &p), TSR_OK);
    /* Its column, the column that shares a rail with it, and the others. */
    assert_true(p.n_ranks <= 3 * 64);
    tsr__partition_fini(&p);
    close_net(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folded_is_unfolded),
        cmocka_unit_test(a_twin_out_of_step_is_noticed),
        cmocka_unit_test(shared_links_fold),
        cmocka_unit_test(a_pcie_node_folds),
        cmocka_unit_test(layouts_split_classes),
        cmocka_unit_test(bad_partitions_are_refused),
        cmocka_unit_test(a_straggler_costs_a_few_classes_a_replica),
    };
    return cmocka_run_group_tests_name("folding", tests, NULL, NULL);
}
