/* test_schedule.c: learning rates. */
#include "tests/files/data_testing.h"

#include <math.h>

#include "exec/train/train.h"

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

/* Values worked out by hand: W = 4, N = 10, so p = (t - 3) / 7. */
static void factors_are_the_formulas(void **state)
{
    (void)state;
    struct tsr_schedule s = {TSR_SCHEDULE_CONSTANT, 2, 0.1, 4, 10};
    for (enum tsr_schedule_kind kind = TSR_SCHEDULE_CONSTANT; kind <= TSR_SCHEDULE_COSINE; kind++) {
        s.kind = kind;
        for (unsigned t = 0; t < 4; t++)
            near(tsr_schedule_factor(&s, t), 0.2 * (t + 1));
    }
    static const double linear[] = {0.9 * 6 / 7 + 0.1, 0.9 * 5 / 7 + 0.1, 0.9 * 4 / 7 + 0.1,
                                    0.9 * 3 / 7 + 0.1, 0.9 * 2 / 7 + 0.1, 0.9 * 1 / 7 + 0.1};
    /* cos(k pi / 7), k = 1 ... 6 */
    static const double cosine[] = {0.90096886790241912624,  0.62348980185873353053,
                                    0.22252093395631440429,  -0.22252093395631440429,
                                    -0.62348980185873353053, -0.90096886790241912624};
    for (unsigned t = 4; t < 10; t++) {
        s.kind = TSR_SCHEDULE_CONSTANT;
        near(tsr_schedule_factor(&s, t), 1);
        s.kind = TSR_SCHEDULE_LINEAR;
        near(tsr_schedule_factor(&s, t), linear[t - 4]);
        s.kind = TSR_SCHEDULE_COSINE;
        near(tsr_schedule_factor(&s, t), 0.1 + 0.45 * (1 + cosine[t - 4]));
        near(tsr_learning_rate(&s, t), 2 * (0.1 + 0.45 * (1 + cosine[t - 4])));
    }
}

static void the_ends_are_sane(void **state)
{
    (void)state;
    for (enum tsr_schedule_kind kind = TSR_SCHEDULE_LINEAR; kind <= TSR_SCHEDULE_COSINE; kind++) {
        struct tsr_schedule s = {kind, 1, 0.25, 0, 100};
        double last = 1;
        for (uint64_t t = 0; t < 100; t++) { /* falls, and never reaches the end */
            double f = tsr_schedule_factor(&s, t);
            assert_true(f < last && f > 0.25);
            last = f;
        }
        for (uint64_t t = 100; t < 1000; t += 50)
            near(tsr_schedule_factor(&s, t), 0.25);
        near(tsr_schedule_factor(&s, UINT64_MAX), 0.25);
        s.warmup_steps = 100; /* nothing but warm-up */
        near(tsr_schedule_factor(&s, 99), 100.0 / 101);
        near(tsr_schedule_factor(&s, 100), 0.25);
    }
}

static void refused(struct tsr_schedule s, const char *what, const char *allowed)
{
    assert_int_equal(tsr_schedule_check(&s), TSR_ECONFIG);
    test_error_names(what, allowed, NULL);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    struct tsr_schedule good = {TSR_SCHEDULE_COSINE, 3e-4, 0.1, 10, 10}, s = good;
    assert_int_equal(tsr_schedule_check(&good), TSR_OK);
    s.base = -1;
    refused(s, "learning rate is -1", "from 0");
    s.base = NAN;
    refused(s, "learning rate is", "nan");
    s = good;
    s.min_ratio = 1.5;
    refused(s, "ratio of the learning rate is 1.5", "0 to 1");
    s = good;
    s.warmup_steps = 11;
    refused(s, "train.warmup: found 11", "10");
    s = good;
    s.total_steps = 0;
    refused(s, "steps is 0", "from 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors_are_the_formulas),
                                       cmocka_unit_test(the_ends_are_sane),
                                       cmocka_unit_test(mistakes_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
