/* test_exact_streams.c: streams run beside each other and behind the host, and what they compute
 * does not depend on when. Under ThreadSanitizer these jobs also show that it reports no race where
 * there is none.
 */
#include "tests/exec/jobs_testing.h"

#if defined(__SANITIZE_THREAD__)
enum { SEEDS = 5 }; /* is there to find races; bits are compared in other builds */
#else
enum { SEEDS = 20 };
#endif

/* The most that workers were busy, and the host ahead, on rank 0. */
static struct {
    unsigned busy;
    uint64_t ahead;
} most;

static void look(struct job_rank *rank, uint32_t i)
{
    (void)i;
    if (rank->rank != 0)
        return;
    most.busy = atomic_load(&((struct tsr_host_device *)rank->device)->peak_busy);
    most.ahead = test_exec_of(rank->executor)->run_ahead;
}

static void streams__a_slow_device__two_are_busy_and_the_host_is_far_ahead(void **state)
{
    const struct job_config config = {.n_steps = 2, .jitter_us = 400, .hooks = {.ran = look}};
    struct strategies s;
    struct tsr_job job;
    struct job_rank *ranks;
    (void)state;
    strategies_open(&s);
    strategies_job(&s, "hsdp", &job);
    job_run_ok(&job, &config, &ranks);
    assert_true(most.busy >= 2);
    assert_true(most.ahead >= 100);
    job_close(ranks);
    tsr_job_close(&job);
    strategies_close(&s);
}

static void compare_losses(const struct job_rank *a, const struct job_rank *b, uint64_t seed)
{
    for (uint32_t r = 0; r < a->job->world; r++) {
        bool same = !memcmp(a[r].losses, b[r].losses, sizeof a[r].losses) &&
                    !memcmp(a[r].norms, b[r].norms, sizeof a[r].norms) &&
                    !memcmp(a[r].executed, b[r].executed, sizeof a[r].executed);
        if (!same)
            fail_msg("%s: rank %u differs with seed %llu: loss %.17g, %.17g",
                     a->job->strategy->name, r, (unsigned long long)seed, a[r].losses[1][0],
                     b[r].losses[1][0]);
    }
}

/* Memory of new owners is poisoned, so that a value that comes too early is none. */
static void jitter__many_seeds__the_bits_of_a_run_without(void **state)
{
    static const char *const names[] = {"hsdp", "pinned", "tp-sequence", "ddp", "prefetch"};
    enum { N = sizeof names / sizeof *names };
    const struct job_config plain = {.n_steps = 2};
    struct strategies s;
    (void)state;
    strategies_open(&s);
    for (size_t i = 0; i < N; i++) {
        struct tsr_job job;
        struct job_rank *a, *b;
        strategies_job(&s, names[i], &job);
        job_run_ok(&job, &plain, &a);
        assert_true(a[0].losses[0][0] > 1 && a[0].losses[1][0] > 1);
        for (uint64_t seed = i; seed < SEEDS; seed += N) {
            const struct job_config shaken = {
                .n_steps = 2, .jitter_us = 60, .jitter_seed = seed, .poison = true};
            job_run_ok(&job, &shaken, &b);
            compare_losses(a, b, seed);
            job_close(b);
        }
        job_close(a);
        tsr_job_close(&job);
    }
    strategies_close(&s);
}

/* The host does not wait between the steps. */
static void ahead__several_strategies__come_to_their_end(void **state)
{
    static const char *const names[] = {"fsdp",       "keep",       "ddp",       "offload",
                                        "checkpoint", "accumulate", "expandable"};
    const struct job_config config = {.n_steps = 3, .ahead = true};
    struct strategies s;
    (void)state;
    strategies_open(&s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tsr_job job;
        struct job_rank *ranks;
        strategies_job(&s, names[i], &job);
        job.executes = i % 2 == 0; /* else nobody waits for a loss */
        job_run_ok(&job, &config, &ranks);
        assert_true(job.executes == (ranks[0].losses[2][0] > 0));
        job_close(ranks);
        tsr_job_close(&job);
    }
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams__a_slow_device__two_are_busy_and_the_host_is_far_ahead),
        cmocka_unit_test(jitter__many_seeds__the_bits_of_a_run_without),
        cmocka_unit_test(ahead__several_strategies__come_to_their_end),
    };
    return cmocka_run_group_tests_name("exact streams", tests, NULL, NULL);
}
