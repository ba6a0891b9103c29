/* test_exact_operands.c: the declared operands are those that kernels, copies and collectives use:
 * every strategy runs over poisoned memory, with the results of a run that is not verified.
 */
#include "tests/exec/jobs_testing.h"

enum { STEPS = 2 };

static void compare_losses(const struct job_rank *a, const struct job_rank *b)
{
    for (uint32_t r = 0; r < a->job->world; r++) {
        assert_memory_equal(a[r].losses, b[r].losses, sizeof a[r].losses);
        assert_memory_equal(a[r].executed, b[r].executed, sizeof a[r].executed);
        assert_true(a[r].losses[1][0] > 0);
    }
}

static void verified__every_strategy__as_declared_and_the_same_losses(void **state)
{
    const struct job_config plain = {.n_steps = STEPS};
    const struct job_config verified = {.n_steps = STEPS, .serial = true, .verify = true};
    struct strategies s;
    (void)state;
    strategies_open(&s);
    const struct strategies_walk walk = strategies_walk(3, 1);
    for (size_t i = walk.first; i < s.file.n; i += walk.stride) {
        struct tsr_job job;
        struct job_rank *a, *b;
        strategies_job(&s, s.file.strategies[i].name, &job);
        job_run_ok(&job, &plain, &a);
        job_run_ok(&job, &verified, &b);
        compare_losses(a, b);
        job_close(a);
        job_close(b);
        tsr_job_close(&job);
    }
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verified__every_strategy__as_declared_and_the_same_losses),
    };
    return cmocka_run_group_tests_name("exact operands", tests, NULL, NULL);
}
