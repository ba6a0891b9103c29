/* test_exact_options.c: what the engine can do that PyTorch does not (engine/fsdp/OPTIONS.md)
 * changes no bit of a loss or a norm, and leaves out the kernels that it says it leaves out.
 */
#include "tests/exec/jobs_testing.h"

#include <math.h>

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

static uint32_t means(const struct tsr_program *program)
{
    uint32_t n = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        uint8_t kind = program->instrs[i].kind;
        n += (kind == TSR_REDUCE_SCATTER || kind == TSR_ALL_REDUCE) &&
             program->instrs[i].reduce_op == TSR_REDUCE_AVG;
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
    assert_true(job[0].settings->mirror || job[0].settings->direct_gather ||
                job[0].settings->folded_scale);
    *plain = *job[1].settings;
    plain->mirror = plain->direct_gather = plain->folded_scale = false;
    job[1].settings = plain;
    for (int k = 0; k < 2; k++)
        job_run_ok(&job[k], &config, &out[k]);
}

/* Relative to the plain run; 0: every bit. */
static void same(const char *name, const char *what, uint32_t rank, const double *with,
                 const double *plain, size_t n, double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs(with[i] - plain[i]) <= tolerance * fabs(plain[i])))
            fail_msg("%s: rank %u has other %s with the options: %.17g instead of %.17g", name,
                     rank, what, with[i], plain[i]);
}

static void same_numbers(const char *name, struct job_rank *const ranks[2], double tolerance)
{
    for (uint32_t r = 0; r < ranks[0]->job->world; r++) {
        const struct job_rank *with = &ranks[0][r], *plain = &ranks[1][r];
        same(name, "losses", r, with->losses[0], plain->losses[0],
             sizeof plain->losses / sizeof(double), tolerance);
        same(name, "norms", r, with->norms, plain->norms, sizeof plain->norms / sizeof(double),
             tolerance);
        assert_true(with->losses[STEPS - 1][0] > 0);
    }
}

static void compare_within(double tolerance, const char *name, const char *const *absent)
{
    struct strategies s;
    struct tsr_job job[2];
    struct tsr_settings plain;
    struct job_rank *ranks[2];
    strategies_open(&s);
    run_both(&s, name, ranks, job, &plain);
    same_numbers(name, ranks, tolerance);
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

static void compare(const char *name, const char *const *absent)
{
    compare_within(0, name, absent);
}

static const char *const nothing[] = {NULL};
static const char *const casts[] = {"all_gather_cast", NULL};
static const char *const copies[] = {"param_cast", "param_copy", "reduce_scatter_copy", NULL};
static const char *const local[] = {"param_cast", "param_copy", NULL};
static const char *const splits[] = {"all_gather_copy_in", "split_with_sizes_copy", NULL};
static const char *const reductions[] = {"foreach_mul_clip", "chunk_cat", "param_cast",
                                         "reduce_scatter_copy", NULL};
static const char *const clips[] = {"foreach_mul_clip", NULL};
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

/* Powers of two scale without rounding, so sums and means give the same bits. */
static void folded_scales(void **state)
{
    (void)state;
    compare("folded", clips);
    compare("folded-bf16", clips);
    compare("folded-hsdp", clips);
    compare("folded-replicate", clips);
    compare("folded-plain", nothing);
    compare("folded-one", reductions);
    compare("folded-fp16", clips);
    compare_within(1e-5, "folded-3", clips);
}

/* Only sums go between ranks, but where f16 might overflow. */
static void only_sums(void **state)
{
    (void)state;
    struct strategies s;
    struct tsr_job job[2];
    struct tsr_settings plain;
    struct job_rank *ranks[2];
    strategies_open(&s);
    run_both(&s, "folded-hsdp", ranks, job, &plain);
    assert_int_equal(means(&ranks[0]->programs[STEPS]), 0);
    assert_true(means(&ranks[1]->programs[STEPS]) > 0);
    for (int k = 0; k < 2; k++) {
        job_close(ranks[k]);
        tsr_job_close(&job[k]);
    }
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mirrors), cmocka_unit_test(direct_gathers),
                                       cmocka_unit_test(folded_scales),
                                       cmocka_unit_test(only_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
