/* test_hosts.c: the memory of a node's host as the sum of its ranks (host_fit.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "experiments/study/job/emit.h"
#include "experiments/study/job/host_fit.h"

enum { GPUS = 8, WORLD = 21, CLASSES = 3, PROGRAMS = 2, MOST = 8 };

#define TAKE(b)                                                             \
    {                                                                       \
        .kind = TSR_HOST_ALLOC, .space = TSR_SPACE_HOST, .block_bytes = (b) \
    }
#define GIVE(b)                                                            \
    {                                                                      \
        .kind = TSR_HOST_FREE, .space = TSR_SPACE_HOST, .block_bytes = (b) \
    }
#define LOCK(b)                             \
    {                                       \
        .kind = TSR_PIN, .block_bytes = (b) \
    }
#define MEET                   \
    {                          \
        .kind = TSR_ALL_REDUCE \
    }
#define LAST             \
    {                    \
        .kind = TSR_MARK \
    }

/* Init and a step of three rank classes: rank 0, which reads a file of 1,000 bytes after a peak
 * that all have; the other ranks; the last two, which page-lock more. */
static struct tsr_instr instrs[CLASSES][PROGRAMS][MOST] = {
    {{TAKE(50), GIVE(50), TAKE(1000), MEET, GIVE(1000), TAKE(5), LAST}, {TAKE(10), GIVE(10), LAST}},
    {{TAKE(50), GIVE(50), TAKE(2), GIVE(2), MEET, TAKE(5), LAST}, {TAKE(20), GIVE(20), LAST}},
    {{TAKE(50), GIVE(50), MEET, TAKE(5), LAST}, {LOCK(100), LAST}},
};

struct made {
    struct tsr_settings settings;
    struct tsr_job job;
    struct tsr_emission emission;
    uint32_t class_of[WORLD];
    struct tsr_emitted_class classes[CLASSES];
    struct tsr_program programs[CLASSES][PROGRAMS];
    struct tsr_host_use use;
};

static struct tsr_program program_of(struct tsr_instr *list, int iteration)
{
    struct tsr_program program = {.instrs = list, .iteration = iteration};
    while (list[program.n_instrs].kind != TSR_MARK)
        program.n_instrs++;
    return program;
}

static void make(struct made *m, uint32_t world, uint64_t memory)
{
    memset(m, 0, sizeof *m);
    m->job.settings = &m->settings;
    m->job.world = world;
    m->job.cluster.gpus_per_node = GPUS;
    m->job.cluster.host_memory_bytes = memory;
    for (int c = 0; c < CLASSES; c++)
        for (int k = 0; k < PROGRAMS; k++) {
            m->programs[c][k] = program_of(instrs[c][k], k ? 0 : TSR_PROGRAM_INIT);
            m->classes[c].programs[k] = &m->programs[c][k];
        }
    for (uint32_t r = 0; r < WORLD; r++)
        m->class_of[r] = r == 0 ? 0 : r + 2 < WORLD ? 1 : 2;
    m->emission = (struct tsr_emission){.world = world,
                                        .n_classes = CLASSES,
                                        .n_iterations = PROGRAMS,
                                        .first = 1,
                                        .steady = 1,
                                        .class_of = m->class_of,
                                        .classes = m->classes};
}

static void use(struct made *m)
{
    assert_int_equal(tsr_host_use_of(&m->job, &m->emission, &m->use), TSR_OK);
}

static struct tsr_host_fit fit_of(uint32_t world, uint64_t memory)
{
    struct made m;
    struct tsr_host_fit fit;
    make(&m, world, memory);
    use(&m);
    tsr_host_fit_of(&m.job, &m.emission, &m.use, &fit);
    tsr_host_use_fini(&m.use);
    return fit;
}

/* Nodes of 8, 8 and 5 ranks. The peak of 50 bytes, which all have before rank 0 reads its file,
 * does not count beside it; the 5 bytes do: nothing says that the file is gone when others take
 * them. In the step ranks hold them, too; the last two lock 100 while others take 20. */
static void test_hosts__the_fullest_node_counts(void **state)
{
    (void)state;
    struct made m;
    make(&m, WORLD, 0);
    use(&m);
    assert_int_equal(m.use.nodes[0].bytes, 1000 + 7 * 5);
    assert_int_equal(m.use.nodes[0].node, 0);
    assert_int_equal(m.use.nodes[1].bytes, 3 * (5 + 20) + 2 * (5 + 100));
    assert_int_equal(m.use.nodes[1].node, 2);
    assert_int_equal(m.use.bytes[0], 1000);
    tsr_host_use_fini(&m.use);
    struct tsr_host_fit fit = fit_of(WORLD, 0);
    assert_int_equal(fit.required, 1035);
    assert_int_equal(fit.steady, 285);
    assert_int_equal(fit.ranks, 8);
    assert_int_equal(fit.rank, 0);
    assert_int_equal(fit.rank_bytes, 1000);
    assert_string_equal(fit.section, "init");
}

/* One class is in step from end to end; so are classes that allocate and free alike. */
static void test_hosts__ranks_in_step(void **state)
{
    (void)state;
    struct made m;
    make(&m, 16, 0);
    memset(m.class_of, 0, sizeof m.class_of);
    m.emission.n_classes = 1;
    use(&m);
    assert_int_equal(m.use.nodes[0].bytes, 8 * 1000);
    tsr_host_use_fini(&m.use);
    make(&m, GPUS, 0);
    m.emission.n_iterations = 1;
    for (int c = 0; c < CLASSES; c++)
        m.programs[c][0] = program_of(instrs[c > 0][1], TSR_PROGRAM_INIT);
    use(&m);
    assert_int_equal(m.use.nodes[0].bytes, 10 + 7 * 20);
    tsr_host_use_fini(&m.use);
}

/* Without a common collective the maxima of the whole program count. */
static void test_hosts__ranks_that_do_not_meet(void **state)
{
    (void)state;
    static struct tsr_instr lonely[] = {LOCK(7), MEET, MEET, LAST};
    struct made m;
    make(&m, GPUS, 0);
    m.programs[0][0] = program_of(lonely, TSR_PROGRAM_INIT);
    use(&m);
    assert_int_equal(m.use.nodes[0].bytes, 7 + 7 * 50);
    tsr_host_use_fini(&m.use);
}

static void test_hosts__fewer_ranks_than_a_node(void **state)
{
    (void)state;
    assert_int_equal(fit_of(1, 0).required, 1000);
    assert_int_equal(fit_of(1, 0).ranks, 1);
    assert_int_equal(fit_of(5, 0).required, 1020);
    assert_int_equal(fit_of(5, 0).steady, 15 + 4 * 25);
    assert_int_equal(fit_of(7, 0).required, 1030);
}

static void test_hosts__the_verdict_is_exact(void **state)
{
    (void)state;
    assert_int_equal(fit_of(WORLD, 0).verdict, TSR_HOST_UNKNOWN);
    assert_int_equal(fit_of(WORLD, 1035).verdict, TSR_HOST_FITS);
    assert_int_equal(fit_of(WORLD, 1035).shortfall, 0);
    assert_int_equal(fit_of(WORLD, 1034).verdict, TSR_HOST_TOO_SMALL);
    assert_int_equal(fit_of(WORLD, 1034).shortfall, 1);
}

static void test_hosts__without_a_cluster_there_is_no_node(void **state)
{
    (void)state;
    struct made m;
    struct tsr_host_fit fit;
    make(&m, WORLD, 1);
    m.job.cluster.gpus_per_node = 0;
    use(&m);
    tsr_host_fit_of(&m.job, &m.emission, &m.use, &fit);
    assert_int_equal(fit.verdict, TSR_HOST_UNKNOWN);
    assert_int_equal(fit.ranks, 0);
    assert_int_equal(m.use.nodes[0].bytes, 0);
    tsr_host_use_fini(&m.use);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts__the_fullest_node_counts),
        cmocka_unit_test(test_hosts__ranks_in_step),
        cmocka_unit_test(test_hosts__ranks_that_do_not_meet),
        cmocka_unit_test(test_hosts__fewer_ranks_than_a_node),
        cmocka_unit_test(test_hosts__the_verdict_is_exact),
        cmocka_unit_test(test_hosts__without_a_cluster_there_is_no_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
