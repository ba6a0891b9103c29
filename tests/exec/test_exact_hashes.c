/* test_exact_hashes.c: what is recorded, what is simulated and what is executed are one program:
 * for every strategy, program and rank the executed hashes are equal.
 */
#include "sim/sim.h"
#include "tests/exec/jobs_testing.h"

enum { STEPS = 3 };

/* Recorded by itself, every rank by an engine of its own: ranks that do alike still have other rows
 * of the gathered parameters. */
struct recording {
    struct tsr_emission ranks[JOB_RANKS];
    const struct tsr_program *const *programs[JOB_RANKS];
    uint32_t world;
};

static void record(const struct tsr_job *job, struct recording *recording)
{
    recording->world = job->world;
    for (uint32_t r = 0; r < job->world; r++) {
        job_ok(tsr_emit_rank(job, r, STEPS, &recording->ranks[r]));
        assert_int_equal(recording->ranks[r].n_iterations, 1 + STEPS);
        recording->programs[r] =
            (const struct tsr_program *const *)recording->ranks[r].classes[0].programs;
    }
}

/* NULL without a simulator. */
static struct tsr_sim_result *simulate(const struct tsr_job *job, const struct recording *recording)
{
#ifdef TSR_HAVE_SIMGRID
    static const uint32_t class_of[JOB_RANKS] = {0, 1, 2, 3};
    const struct tsr_sim_job sim = {.world = job->world,
                                    .n_classes = job->world,
                                    .n_iterations = 1 + STEPS,
                                    .class_of = class_of,
                                    .programs = recording->programs};
    struct tsr_sim_options options = tsr_sim_options_default();
    struct tsr_sim_result *result;
    options.fold = false;
    job_ok(tsr_sim_run(&job->cluster, &sim, &options, &result));
    assert_int_equal(result->n_ranks, job->world);
    return result;
#else
    (void)job;
    (void)recording;
    return NULL;
#endif
}

static void compare_rank(const struct job_rank *r, const struct tsr_program *const *programs,
                         const struct tsr_sim_rank *simulated)
{
    for (uint32_t i = 0; i <= STEPS; i++) {
        uint64_t recorded = tsr_program_expected_exec_hash(programs[i]);
        assert_int_equal(programs[i]->n_instrs, r->programs[i].n_instrs);
        assert_int_equal(tsr_program_hash(programs[i]), tsr_program_hash(&r->programs[i]));
        if (r->executed[i] != recorded)
            fail_msg("%s: rank %u, program %u: executed %016llx, recorded %016llx",
                     r->job->strategy->name, r->rank, i, (unsigned long long)r->executed[i],
                     (unsigned long long)recorded);
        if (simulated && simulated->exec_hash[i] != recorded)
            fail_msg("%s: rank %u, program %u: simulated %016llx, recorded %016llx",
                     r->job->strategy->name, r->rank, i,
                     (unsigned long long)simulated->exec_hash[i], (unsigned long long)recorded);
    }
}

static void compare(const struct strategies *s, const char *name)
{
    const struct job_config config = {.n_steps = STEPS};
    struct recording recording;
    struct tsr_job job;
    struct job_rank *ranks;
    strategies_job(s, name, &job);
    job_run_ok(&job, &config, &ranks);
    record(&job, &recording);
    struct tsr_sim_result *result = simulate(&job, &recording);
    for (uint32_t r = 0; r < job.world; r++) {
        if (result)
            assert_int_equal(result->ranks[r].rank, r);
        compare_rank(&ranks[r], recording.programs[r], result ? &result->ranks[r] : NULL);
    }
    if (result)
        tsr_sim_result_destroy(result);
    for (uint32_t r = 0; r < job.world; r++)
        tsr_emission_fini(&recording.ranks[r]);
    job_close(ranks);
    tsr_job_close(&job);
}

static void recorded_simulated_executed__every_strategy__one_hash(void **state)
{
    struct strategies s;
    (void)state;
    strategies_open(&s);
    const struct strategies_walk walk = strategies_walk(4, 1);
    for (size_t i = walk.first; i < s.file.n; i += walk.stride)
        compare(&s, s.file.strategies[i].name);
    strategies_close(&s);
}

/* The hashes say something: strategies that differ have other ones. */
static void hashes__other_strategies__differ(void **state)
{
    static const char *const names[] = {"fsdp", "keep", "hsdp", "ddp", "offload", "tp", "bf16"};
    enum { N = sizeof names / sizeof *names };
    const struct job_config config = {.n_steps = 1};
    uint64_t hashes[N];
    struct strategies s;
    (void)state;
    strategies_open(&s);
    for (size_t i = 0; i < N; i++) {
        struct tsr_job job;
        struct job_rank *ranks;
        strategies_job(&s, names[i], &job);
        job_run_ok(&job, &config, &ranks);
        hashes[i] = ranks[0].executed[1];
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(hashes[i], hashes[j]);
        job_close(ranks);
        tsr_job_close(&job);
    }
    strategies_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_simulated_executed__every_strategy__one_hash),
        cmocka_unit_test(hashes__other_strategies__differ),
    };
    return cmocka_run_group_tests_name("exact hashes", tests, NULL, NULL);
}
