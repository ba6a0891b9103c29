/* test_goodput.c: the simulated month against the closed forms of Daly, "A higher order estimate of
 * the optimum checkpoint interval for restart dumps" (FGCS 22, 2006), and hand-made cases. */
#include "tests/sim/sim_testing.h"

#include "sim/base/quantile.h"
#include "sim/figures/goodput.h"

/* A run of a thousand months: the mean is then that of infinite time. */
static struct tsr_goodput_input long_run(double mtbf, double interval, double stall, double restart)
{
    return (struct tsr_goodput_input){.mtbf_s = mtbf,
                                      .interval_s = interval,
                                      .stall_s = stall,
                                      .restart_s = restart,
                                      .horizon_s = 30 * 86400.0,
                                      .seed = 1,
                                      .runs = 1000};
}

/* Share of useful work with exponential failures that may strike at any time (Daly's equation for
 * the expected wall time): interval / (M e^(R/M) (e^((interval + stall)/M) - 1)). */
static double daly(const struct tsr_goodput_input *in)
{
    double m = in->mtbf_s;
    return in->interval_s /
           (m * exp(in->restart_s / m) * expm1((in->interval_s + in->stall_s) / m));
}

static void useful_work_is_dalys(void **state)
{
    static const double cases[][4] = {/* MTBF, interval, stall, restart */
                                      {10800, 1800, 60, 600},
                                      {10800, 600, 120, 300},
                                      {86400, 7200, 300, 1200},
                                      {3600, 1200, 30, 900}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tsr_goodput_input in = long_run(cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
        struct tsr_goodput got;
        assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_OK);
        assert_close(got.useful, daly(&in), 0.004);
        assert_close(got.useful + got.lost + got.checkpoint + got.restart, 1.0, 1e-9);
        assert_close(got.failures, in.horizon_s / in.mtbf_s, 0.02);
        assert_true(got.useful_p5 < got.useful_p50 && got.useful_p50 < got.useful_p95);
    }
}

/* Young: sqrt(2 stall M) - stall is near the optimum where the stall is small; the curve is flat
 * there, so the interval is compared loosely and the goodput tightly. */
static void the_best_interval_is_youngs(void **state)
{
    static const double cases[][3] = {{10800, 60, 600}, {36000, 120, 600}, {7200, 15, 300}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double young = sqrt(2 * cases[i][1] * cases[i][0]), best;
        struct tsr_goodput_input in = long_run(cases[i][0], young, cases[i][1], cases[i][2]);
        struct tsr_goodput got;
        in.runs = 60;
        assert_int_equal(tsr_goodput_best(&in, 30, cases[i][0], &best, &got), TSR_OK);
        assert_close(best, young, 0.2);
        assert_close(got.useful, daly(&in), 0.01);
        assert_true(got.useful <= 1.0);
    }
}

/* Where Daly's curve has lost as much as was allowed, the range ends; within bounds that are
 * nearer, there. */
static void the_flat_range_ends_where_the_curve_has_lost_that_much(void **state)
{
    struct tsr_goodput_input in = long_run(36000, 2940, 120, 600);
    struct tsr_goodput_range range;
    const double loss = 0.002;
    (void)state;
    in.runs = 60;
    double least = daly(&in) - loss;
    assert_int_equal(tsr_goodput_flat(&in, 30, 36000, loss, &range), TSR_OK);
    assert_true(range.from_s < 0.9 * in.interval_s && range.to_s > 1.1 * in.interval_s);
    struct tsr_goodput_input at = in;
    at.interval_s = range.from_s;
    assert_close(daly(&at), least, 0.0006);
    at.interval_s = range.to_s;
    assert_close(daly(&at), least, 0.0006);
    struct tsr_goodput_range all;
    assert_int_equal(tsr_goodput_flat(&in, 2900, 3000, loss, &all), TSR_OK);
    assert_true(all.from_s == 2900 && all.to_s == 3000);
    assert_int_equal(tsr_goodput_flat(&in, 3000, 4000, loss, &all), TSR_EVALUE);
}

/* Without failures every interval costs its stall, and nothing else. */
static void a_machine_that_never_fails(void **state)
{
    struct tsr_goodput_input in = long_run(1e12, 900, 100, 500);
    struct tsr_goodput got;
    (void)state;
    in.horizon_s = 1e6;
    in.runs = 3;
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_OK);
    assert_close(got.useful, 0.9, 1e-9);
    assert_close(got.checkpoint, 0.1, 1e-9);
    assert_close(got.checkpoints, 1000 - 1, 0.002); /* the last one ends with the horizon */
    assert_close(got.lost, 0.0, 0.0);
    in.write_s = 400; /* beside the work */
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_OK);
    assert_close(got.useful, 0.9, 1e-9);
    in.write_s = 1400; /* longer than the work: the next one waits 500 s and stalls 100 s */
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_OK);
    assert_close(got.useful, 900.0 / 1500, 2e-3);
    in = long_run(
        1e12, 0.9, 0.1,
        500); /* a checkpoint each second, 2.6e9 in all: what is alike is not walked through */
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_OK);
    assert_close(got.useful, 0.9, 1e-6);
    assert_close(got.checkpoints, in.horizon_s, 1e-6);
}

/* Writing beside the work stalls less and risks more; with a long write it must lose more work. */
static void a_slow_write_risks_more_work(void **state)
{
    struct tsr_goodput_input in = long_run(10800, 1800, 20, 600);
    struct tsr_goodput fast, slow;
    (void)state;
    assert_int_equal(tsr_goodput_simulate(&in, &fast), TSR_OK);
    in.write_s = 900;
    assert_int_equal(tsr_goodput_simulate(&in, &slow), TSR_OK);
    assert_true(slow.lost > 1.5 * fast.lost && slow.useful < fast.useful);
    /* A failure loses the work since the last complete checkpoint: half an interval, and the time
     * of the write. */
    assert_close(slow.lost / fast.lost, (900.0 + 900.0) / 900.0, 0.15);
}

static void impossible_times_are_refused(void **state)
{
    struct tsr_goodput_input in = long_run(10800, 0, 20, 600);
    struct tsr_goodput got;
    double best;
    (void)state;
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_EVALUE);
    in.interval_s = 100;
    in.stall_s = -1;
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_EVALUE);
    in.stall_s = 1;
    in.interval_s = 1e-3; /* too many */
    assert_int_equal(tsr_goodput_simulate(&in, &got), TSR_EVALUE);
    assert_int_equal(tsr_goodput_best(&in, 10, 5, &best, &got), TSR_EVALUE);
}

/* Places of order statistics, counted from 0: 0.5 of four values lies between the second and third.
 */
static void quantiles_lie_on_lines_between_neighbours(void **state)
{
    double values[] = {7, 1, 4, 2};
    (void)state;
    tsr_sort_ascending(values, 4);
    for (int i = 1; i < 4; i++)
        assert_true(values[i - 1] <= values[i]);
    assert_close(tsr_quantile(values, 4, 0.0), 1, 0);
    assert_close(tsr_quantile(values, 4, 0.5), 3, 0);
    assert_close(tsr_quantile(values, 4, 0.9), 6.1, 1e-15);
    assert_close(tsr_quantile(values, 4, 1.0), 7, 0);
    assert_close(tsr_quantile(values, 1, 0.3), 1, 0);
    assert_true(isnan(tsr_quantile(values, 0, 0.5)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_lie_on_lines_between_neighbours),
        cmocka_unit_test(useful_work_is_dalys),
        cmocka_unit_test(the_best_interval_is_youngs),
        cmocka_unit_test(the_flat_range_ends_where_the_curve_has_lost_that_much),
        cmocka_unit_test(a_machine_that_never_fails),
        cmocka_unit_test(a_slow_write_risks_more_work),
        cmocka_unit_test(impossible_times_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
