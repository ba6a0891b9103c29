/* test_hosts.c: the memory of a node's host as the sum of its ranks (host_fit.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "experiments/study/job/emit.h"
#include "experiments/study/job/host_fit.h"

enum { GPUS = 8, WORLD = 21, CLASSES = 3 };

/* Two programs, init and a step, of 21 ranks in three classes: rank 0; the others; the last two. */
struct made {
    struct tsr_job job;
    struct tsr_emission emission;
    uint32_t class_of[WORLD];
    struct tsr_emitted_class classes[CLASSES];
    struct tsr_program programs[2];
    struct tsr_host_use use;
};

static void make(struct made *m, uint32_t world, uint64_t memory)
{
    memset(m, 0, sizeof *m);
    m->job.world = world;
    m->job.cluster.gpus_per_node = GPUS;
    m->job.cluster.host_memory_bytes = memory;
    m->programs[0].iteration = TSR_PROGRAM_INIT;
    for (int c = 0; c < CLASSES; c++) {
        m->classes[c].programs[0] = &m->programs[0];
        m->classes[c].programs[1] = &m->programs[1];
    }
    for (uint32_t r = 0; r < WORLD; r++)
        m->class_of[r] = r == 0 ? 0 : r + 2 < WORLD ? 1 : 2;
    m->emission = (struct tsr_emission){.world = world,
                                        .n_classes = CLASSES,
                                        .n_iterations = 2,
                                        .first = 1,
                                        .steady = 1,
                                        .class_of = m->class_of,
                                        .classes = m->classes};
    assert_int_equal(tsr_host_use_init(&m->job, &m->emission, &m->use), TSR_OK);
    const uint64_t bytes[CLASSES][2] = {{1000, 10}, {1, 20}, {0, 100}};
    memcpy(m->use.bytes, bytes, sizeof bytes);
}

static struct tsr_host_fit fit_of(uint32_t world, uint64_t memory)
{
    struct made m;
    struct tsr_host_fit fit;
    make(&m, world, memory);
    tsr_host_fit_of(&m.job, &m.emission, &m.use, &fit);
    tsr_host_use_fini(&m.use);
    return fit;
}

/* Nodes of 8, 8 and 5 ranks: 1007, 8 and 3 bytes in init; 150, 160 and 260 in the step. */
static void test_hosts__the_fullest_node_counts(void **state)
{
    (void)state;
    struct made m;
    uint32_t node;
    make(&m, WORLD, 0);
    assert_int_equal(m.use.n_nodes, 3);
    assert_int_equal(tsr_host_of_node(&m.job, &m.emission, &m.use, 0, &node), 1007);
    assert_int_equal(node, 0);
    assert_int_equal(tsr_host_of_node(&m.job, &m.emission, &m.use, 1, &node), 260);
    assert_int_equal(node, 2);
    tsr_host_use_fini(&m.use);
    struct tsr_host_fit fit = fit_of(WORLD, 0);
    assert_int_equal(fit.required, 1007);
    assert_int_equal(fit.steady, 260);
    assert_int_equal(fit.ranks, 8);
    assert_int_equal(fit.rank, 0);
    assert_int_equal(fit.rank_bytes, 1000);
    assert_string_equal(fit.section, "init");
}

static void test_hosts__nodes_that_are_alike_are_looked_at_once(void **state)
{
    (void)state;
    struct made m;
    make(&m, 16, 0);
    memset(m.class_of, 0, sizeof m.class_of);
    tsr_host_use_fini(&m.use);
    assert_int_equal(tsr_host_use_init(&m.job, &m.emission, &m.use), TSR_OK);
    assert_int_equal(m.use.n_nodes, 1);
    tsr_host_use_fini(&m.use);
}

static void test_hosts__fewer_ranks_than_a_node(void **state)
{
    (void)state;
    assert_int_equal(fit_of(1, 0).required, 1000);
    assert_int_equal(fit_of(1, 0).ranks, 1);
    assert_int_equal(fit_of(5, 0).required, 1004);
    assert_int_equal(fit_of(5, 0).steady, 90);
    assert_int_equal(fit_of(7, 0).required, 1006);
}

static void test_hosts__the_verdict_is_exact(void **state)
{
    (void)state;
    assert_int_equal(fit_of(WORLD, 0).verdict, TSR_HOST_UNKNOWN);
    assert_int_equal(fit_of(WORLD, 1007).verdict, TSR_HOST_FITS);
    assert_int_equal(fit_of(WORLD, 1007).shortfall, 0);
    assert_int_equal(fit_of(WORLD, 1006).verdict, TSR_HOST_TOO_SMALL);
    assert_int_equal(fit_of(WORLD, 1006).shortfall, 1);
}

static void test_hosts__without_a_cluster_there_is_no_node(void **state)
{
    (void)state;
    struct made m;
    struct tsr_host_fit fit;
    make(&m, WORLD, 1);
    tsr_host_use_fini(&m.use);
    m.job.cluster.gpus_per_node = 0;
    assert_int_equal(tsr_host_use_init(&m.job, &m.emission, &m.use), TSR_OK);
    tsr_host_fit_of(&m.job, &m.emission, &m.use, &fit);
    assert_int_equal(fit.verdict, TSR_HOST_UNKNOWN);
    assert_int_equal(fit.ranks, 0);
    tsr_host_use_fini(&m.use);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts__the_fullest_node_counts),
        cmocka_unit_test(test_hosts__nodes_that_are_alike_are_looked_at_once),
        cmocka_unit_test(test_hosts__fewer_ranks_than_a_node),
        cmocka_unit_test(test_hosts__the_verdict_is_exact),
        cmocka_unit_test(test_hosts__without_a_cluster_there_is_no_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
