/* test_step_bound.c: tsr_sim_step_bound() never promises more than the simulator delivers, and
 * promises nothing where an iteration ends on another stream than the compute stream.
 */
#include "tests/sim/sim_testing.h"

static const double US = 1e-6;

static double bound_of(const struct job *job, const struct tsr_sim_options *o)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_step_bound bound = {.step_s = -1};
    assert_int_equal(tsr_sim_step_bound(&c, &job->sim, o, &bound), TSR_OK);
    return bound.step_s;
}

static double step_of(const struct job *job, const struct tsr_sim_options *o)
{
    struct tsr_cluster c = test_cluster(1);
    struct tsr_metrics metrics;
    struct tsr_sim_result *r = run_job(&c, job, o);
    assert_int_equal(tsr_metrics_of(&job->sim, r, job->sim.n_iterations - 1, &metrics, NULL),
                     TSR_OK);
    tsr_sim_result_destroy(r);
    return metrics.step_s;
}

/* ---- single cases ------------------------------------------------------------------------ */

static void a_step_of_kernels_takes_their_sum(void **state)
{
    struct job *job = job_create(1, 1, 3);
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int it = 0; it < 3; it++) {
        put_kernel(job, 0, it, S_COMPUTE, 10);
        put_kernel(job, 0, it, S_COMPUTE, 5);
    }
    assert_close(bound_of(job, &o), 15 * US, 1e-12);
    assert_close(step_of(job, &o), 15 * US, 1e-12);
    o.slow_factor = 0.5; /* a fast GPU */
    assert_close(bound_of(job, &o), 7.5 * US, 1e-12);
    assert_true(step_of(job, &o) >= 7.4 * US);
    job_destroy(job);
}

/* Work of another stream is left when the compute stream is through: then kernels of the next
 * iteration run before this one ends, and the step may be shorter than their sum. */
static void a_tail_on_another_stream_promises_nothing(void **state)
{
    struct job *job = job_create(1, 1, 2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 10);
    put_kernel(job, 0, 0, S_USER, 100);
    put_kernel(job, 0, 1, S_COMPUTE, 10);
    assert_close(bound_of(job, &o), 0, 1e-12);
    assert_true(step_of(job, &o) < 10 * US);
    job_destroy(job);
}

static void a_tail_that_is_waited_for_counts(void **state)
{
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int by_host = 0; by_host < 2; by_host++) {
        struct job *job = job_create(1, 1, 2);
        for (int it = 0; it < 2; it++) {
            uint32_t event = 1, last = 2;
            put_kernel(job, 0, it, S_COMPUTE, 10);
            put_kernel(job, 0, it, S_USER, 100);
            put_after(job, 0, it, S_GATHER, S_USER, &event); /* by a detour */
            put_event(job, 0, it, TSR_RECORD, S_GATHER, last);
            put_event(job, 0, it, by_host ? TSR_HOST_WAIT : TSR_WAIT, S_COMPUTE, last);
            put_kernel(job, 0, it, S_COMPUTE, 1);
        }
        assert_close(bound_of(job, &o), 11 * US, 1e-12);
        assert_true(step_of(job, &o) >= 11 * US);
        job_destroy(job);
    }
}

static void a_wait_for_an_earlier_record_covers_no_more(void **state)
{
    struct job *job = job_create(1, 1, 2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    for (int it = 0; it < 2; it++) {
        put_kernel(job, 0, it, S_USER, 1);
        put_event(job, 0, it, TSR_RECORD, S_USER, 1);
        put_kernel(job, 0, it, S_USER, 100); /* after the record */
        put_event(job, 0, it, TSR_WAIT, S_COMPUTE, 1);
        put_kernel(job, 0, it, S_COMPUTE, 10);
    }
    assert_close(bound_of(job, &o), 0, 1e-12);
    job_destroy(job);
}

static void classes_promise_the_least(void **state)
{
    struct job *job = job_create(2, 2, 2);
    struct tsr_sim_options o = exact_options();
    (void)state;
    job->class_of[1] = 1;
    for (int it = 0; it < 2; it++) {
        put_kernel(job, 0, it, S_COMPUTE, 10);
        put_kernel(job, 1, it, S_COMPUTE, 4);
    }
    assert_close(bound_of(job, &o), 4 * US, 1e-12);
    job_destroy(job);
}

static void one_iteration_promises_nothing(void **state)
{
    struct job *job = job_create(1, 1, 1);
    struct tsr_sim_options o = exact_options();
    (void)state;
    put_kernel(job, 0, 0, S_COMPUTE, 10);
    assert_close(bound_of(job, &o), 0, 1e-12);
    job_destroy(job);
}

/* ---- random programs --------------------------------------------------------------------- */

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(random_next(seed) % n);
}

/* Kernels, gathers, records and waits on all streams; most programs end as a step does. */
static struct job *random_job(uint64_t *seed)
{
    struct job *job = job_create(2, 1, 3);
    uint16_t shard = job_comm(job, "shard", 2, 1, -1);
    uint32_t n = 3 + draw(seed, 20), ends = draw(seed, 4);
    uint64_t start = *seed;
    for (int it = 0; it < 3; it++) {
        uint32_t event = 1;
        *seed = start; /* iterations are alike */
        for (uint32_t k = 0; k < n; k++) {
            uint32_t what = draw(seed, 8), on = draw(seed, N_STREAMS),
                     other = draw(seed, N_STREAMS);
            if (what < 3)
                put_kernel(job, 0, it, S_COMPUTE, 1 + draw(seed, 50));
            else if (what < 4)
                put_kernel(job, 0, it, (uint16_t)on, 1 + draw(seed, 50));
            else if (what < 6)
                put_collective(job, 0, it, TSR_ALL_GATHER, S_GATHER, shard, 1000000);
            else if (on != other)
                put_after(job, 0, it, (uint16_t)on, (uint16_t)other, &event);
        }
        for (uint16_t s = 1; s < N_STREAMS && ends; s++)
            put_after(job, 0, it, S_COMPUTE, s, &event);
        if (ends)
            put_kernel(job, 0, it, S_COMPUTE, 1);
    }
    return job;
}

static void no_step_is_shorter(void **state)
{
    uint64_t seed = 20250801;
    int promised = 0, refused = 0;
    (void)state;
    for (int i = 0; i < 150; i++) {
        struct job *job = random_job(&seed);
        struct tsr_sim_options o = i % 2 ? exact_options() : tsr_sim_options_default();
        double bound = bound_of(job, &o), step = step_of(job, &o);
        if (step < bound * (1 - 1e-9))
            fail_msg("program %d: the step takes %.12g s, its bound is %.12g s", i, step, bound);
        promised += bound > 0;
        refused += bound <= 0;
        job_destroy(job);
    }
    assert_true(promised > 75 && refused > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_kernels_takes_their_sum),
        cmocka_unit_test(a_tail_on_another_stream_promises_nothing),
        cmocka_unit_test(a_tail_that_is_waited_for_counts),
        cmocka_unit_test(a_wait_for_an_earlier_record_covers_no_more),
        cmocka_unit_test(classes_promise_the_least),
        cmocka_unit_test(one_iteration_promises_nothing),
        cmocka_unit_test(no_step_is_shorter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
