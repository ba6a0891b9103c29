/* test_reference.c: precision.master: f64 is a reference: what f32 computes lies near it,
 * strategies that add in other orders agree with it to what f64 resolves, and its gradient is the
 * slope of its loss. The executed hashes of the same strategies are those of exact_hashes.
 */
#include "tests/exec/jobs_testing.h"

#include <math.h>

enum { STEPS = 3 };

struct outcome {
    double loss[STEPS], norm; /* mean over the ranks; the norm of the first gradient */
};

/* Plain SGD on one batch, clipping that changes nothing. */
static struct outcome train(const char *name, double lr)
{
    const struct job_config config = {.n_steps = STEPS, .same_batch = true};
    struct outcome out = {.norm = 0};
    struct strategies s;
    struct tsr_job job;
    struct job_rank *ranks;
    char rate[64];
    snprintf(rate, sizeof rate, "train.lr=%g", lr);
    const char *sets[] = {rate, "optimizer.name=sgd", "optimizer.momentum=false",
                          "train.weight_decay=0", "train.max_norm=1e9"};
    snprintf(s.path, sizeof s.path, "%s/tests/exec/strategies.yaml", TSR_SOURCE_DIR);
    job_ok(tsr_experiment_load(s.path, sets, sizeof sets / sizeof *sets, &s.file));
    strategies_job(&s, name, &job);
    job_run_ok(&job, &config, &ranks);
    for (uint32_t r = 0; r < job.world; r++)
        for (int i = 0; i < STEPS; i++)
            out.loss[i] += ranks[r].losses[i][0] / job.world;
    out.norm = ranks[0].norms[0];
    job_close(ranks);
    tsr_job_close(&job);
    strategies_close(&s);
    return out;
}

static double off(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

static void test_f32__same_strategy__near_the_reference(void **state)
{
    (void)state;
    struct outcome f32 = train("fsdp", 0.1), f64 = train("f64", 0.1);
    double most = 0;
    for (int i = 0; i < STEPS; i++)
        most = fmax(most, off(f32.loss[i], f64.loss[i]));
    assert_true(most < 1e-6 && most > 1e-10); /* f32 rounds, f64 does not */
    assert_true(off(f32.norm, f64.norm) < 1e-5);
}

/* Fused kernels, recomputation, two replicas, cut products, the host's optimizer. */
static void test_f64__other_strategies__agree_to_what_f64_resolves(void **state)
{
    static const char *const names[] = {"f64-fused", "f64-tp", "f64-offload"};
    (void)state;
    struct outcome first = train("f64", 0.1);
    assert_true(first.loss[STEPS - 1] < first.loss[0]);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct outcome other = train(names[k], 0.1);
        for (int i = 0; i < STEPS; i++)
            if (off(other.loss[i], first.loss[i]) > 1e-13)
                fail_msg("%s, step %d: a loss of %.17g instead of %.17g", names[k], i + 1,
                         other.loss[i], first.loss[i]);
        assert_true(off(other.norm, first.norm) < 1e-12);
    }
}

/* A small step down the gradient lowers the loss by lr |g|^2 - O(lr^2), and two of them by so much
 * that the second term can be told from the first. */
static double slope_error(const char *name)
{
    const double lr = 2e-5;
    struct outcome one = train(name, lr), two = train(name, 2 * lr);
    double by_one = (one.loss[0] - one.loss[1]) / lr;
    double by_two = (two.loss[0] - two.loss[1]) / (2 * lr);
    return off(2 * by_one - by_two, one.norm * one.norm);
}

static void test_gradient__finite_differences__are_its_square(void **state)
{
    (void)state;
    static const char *const names[] = {"f64", "f64-fused", "f64-tp", "f64-gpt2"};
    double f32 = slope_error("fsdp");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double f64 = slope_error(names[i]);
        if (f64 > 1e-7 || f32 < 1000 * f64)
            fail_msg("%s: the slope is off by %g; in f32 by %g", names[i], f64, f32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32__same_strategy__near_the_reference),
        cmocka_unit_test(test_f64__other_strategies__agree_to_what_f64_resolves),
        cmocka_unit_test(test_gradient__finite_differences__are_its_square),
    };
    return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
