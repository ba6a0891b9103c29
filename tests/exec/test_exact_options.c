/* test_exact_options.c: what the engine can do that PyTorch does not (engine/OPTIONS.md) changes no
 * bit of a loss or a norm, and leaves out the copies that it says it leaves out.
 */
#include "jobs_testing.h"

enum { STEPS = 3 };

static uint32_t count(const struct tsr_program *program, const char *kernel)
{
    uint32_t n = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_work *work = program->instrs[i].work;
        n += work && !strcmp(work->name, kernel);
    }
    return n;
}

/* The same strategy with the options and without. */
static void run_both(const struct strategies *s, const char *name, struct job_rank *out[2],
                     struct tsr_job job[2], struct tsr_settings *plain)
{
    static const struct job_config config = {.n_steps = STEPS};
    for (int k = 0; k < 2; k++)
        strategies_job(s, name, &job[k]);
    assert_true(job[0].settings->mirror || job[0].settings->direct_gather);
    *plain = *job[1].settings;
    plain->mirror = plain->direct_gather = false;
    job[1].settings = plain;
    for (int k = 0; k < 2; k++)
        job_run_ok(&job[k], &config, &out[k]);
}

static void same_numbers(const char *name, struct job_rank *const ranks[2])
{
    for (uint32_t r = 0; r < ranks[0]->job->world; r++) {
        if (memcmp(ranks[0][r].losses, ranks[1][r].losses, sizeof ranks[0][r].losses) != 0)
            fail_msg("%s: rank %u has other losses with the options", name, r);
        if (memcmp(ranks[0][r].norms, ranks[1][r].norms, sizeof ranks[0][r].norms) != 0)
            fail_msg("%s: rank %u has other norms with the options", name, r);
        assert_true(ranks[0][r].losses[STEPS - 1][0] > 0);
    }
}

static void compare(const char *name, const char *const *absent)
{
    struct strategies s;
    struct tsr_job job[2];
    struct tsr_settings plain;
    struct job_rank *ranks[2];
    strategies_open(&s);
    run_both(&s, name, ranks, job, &plain);
    same_numbers(name, ranks);
    for (; *absent; absent++) {
        assert_int_equal(count(&ranks[0]->programs[STEPS], *absent), 0);
        assert_true(count(&ranks[1]->programs[STEPS], *absent) > 0);
    }
    for (int k = 0; k < 2; k++) {
        job_close(ranks[k]);
        tsr_job_close(&job[k]);
    }
    strategies_close(&s);
}

static const char *const nothing[] = {NULL};
static const char *const casts[] = {"all_gather_cast", NULL};
static const char *const copies[] = {"param_cast", "param_copy", "reduce_scatter_copy", NULL};
static const char *const local[] = {"param_cast", "param_copy", NULL};
static const char *const splits[] = {"all_gather_copy_in", "split_with_sizes_copy", NULL};
static const char *const all[] = {"all_gather_cast", "all_gather_copy_in", "split_with_sizes_copy",
                                  NULL};

static void mirrors(void **state)
{
    (void)state;
    compare("mirror", casts);
    compare("mirror-foreach", nothing);
    compare("mirror-hsdp", casts);
    compare("mirror-replicate", copies);
    compare("mirror-one", copies);
    compare("mirror-accumulate", local);
}

static void direct_gathers(void **state)
{
    (void)state;
    compare("direct", splits);
    compare("direct-bf16", splits);
    compare("direct-2", all);
    compare("direct-keep", splits);
    compare("direct-prefetch", splits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mirrors), cmocka_unit_test(direct_gathers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
