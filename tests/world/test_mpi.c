/* test_world_mpi.c: by itself, what a build without MPI says. Under mpirun (mpirun.sh) it is one
 * rank: `own` and `tcp` meet the others through PMIx or our rendezvous, `mpi` through MPI; all have
 * the bits of a world of threads. `die`: rank 1 is killed, and the others hear of it.
 */
#include "exec/launch/launch.h"
#include "tests/world/collectives_testing.h"

#include <setjmp.h>
#include <signal.h>

#include <cmocka.h>

enum { MOST = 16 };

static uint64_t digest_of_threads(const struct ct_program *program, uint32_t rank)
{
    struct ct_rank ranks[MOST];
    ct_threads(program->world, 20, ranks, ct_random_body, (void *)program);
    return ranks[rank].digest;
}

static int complain(const char *text)
{
    fprintf(stderr, "%s\n", text);
    return 1;
}

/* After a failure of rank 0 all ranks know why. The news may overtake the first barrier. */
static int give_up(struct tsr_world *world)
{
    tsr_status status = tsr_world_barrier(world);
    if (status == TSR_OK && world->rank == 0)
        world->ops->abort(world, TSR_ERUNTIME, "enough");
    while (status == TSR_OK)
        status = tsr_world_barrier(world);
    if (status != TSR_ERUNTIME || strcmp(tsr_error_text(), "rank 0 gave up: enough") != 0)
        return complain(tsr_error_text());
    return 0;
}

/* Rank 1 is gone without a word; what the others hear goes to a file, since mpirun ends them. */
static int hear_of_a_loss(struct tsr_world *world)
{
    const char *path = getenv("HEARD");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return complain("HEARD is not set");
    (void)signal(SIGTERM, SIG_IGN);
    if (tsr_world_barrier(world) == TSR_OK && world->rank == 1)
        (void)raise(SIGKILL);
    (void)!tsr_world_barrier(world);
    fprintf(file, "%s\n", tsr_error_text());
    (void)fclose(file);
    world->ops->destroy(world); /* when the others have been told */
    return 75;
}

static int rank_main(const char *how)
{
    struct tsr_launch launch;
    struct tsr_world *world;
    char error[512];
    if (tsr_launch_environment(&launch) != TSR_OK)
        return complain(tsr_error_text());
    bool mpi = strcmp(how, "mpi") == 0;
    if ((mpi ? tsr_world_mpi(&launch, 20, &world)
             : tsr_world_processes(&launch, 20, strcmp(how, "tcp") == 0 ? "tcp" : "auto",
                                   &world)) != TSR_OK)
        return complain(tsr_error_text());
    if (world->size > MOST)
        return complain("too many ranks for this test");
    if (strcmp(how, "die") == 0)
        return hear_of_a_loss(world);
    struct ct_program program = ct_program(world->size, 7);
    uint64_t digest = ct_run_rank(world, &program, error, sizeof error);
    if (error[0])
        return complain(error);
    if (digest != digest_of_threads(&program, world->rank))
        return complain("other bits than a world of threads");
    /* MPI cannot end in order after a failure. */
    int failed = mpi ? 0 : give_up(world);
    if (!failed)
        printf("rank %u of %u: %s, %s%s\n", world->rank, world->size, world->ops->name,
               launch.source, launch.pmix && !mpi ? ", PMIx" : "");
    world->ops->destroy(world);
    return failed;
}

static void test_mpi__build_without_it__said(void **state)
{
    (void)state;
    struct tsr_world *world;
    tsr_status status = tsr_world_mpi(NULL, 5, &world);
    if (status == TSR_OK) { /* has MPI: a job of one rank */
        assert_int_equal(world->size, 1);
        assert_string_equal(world->ops->name, "mpi");
        assert_int_equal(tsr_world_barrier(world), TSR_OK);
        world->ops->destroy(world);
        return;
    }
    assert_null(world);
    assert_int_equal(status, TSR_EUNSUPPORTED);
    assert_string_equal(tsr_error_text(), "this build has no MPI (CMake option TESSERA_MPI)");
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mpi__build_without_it__said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
