/* test_run_check.c: what `run --check` puts beside a rank finds out an executor that does something
 * else than it is told, and a program that lacks an order, at the step where it happens.
 */
#include "experiments/cli/run/run_watch.h"

#include "tests/exec/jobs_testing.h"

enum { STEPS = 3, NONE = -1 };

/* Stands before the executor of every rank: a check, and a fault before or behind it. */
struct watched {
    struct tsr_executor base;
    struct tsr_executor *inner;
    struct job_rank *rank;
    struct tsr_run_check check;
    uint32_t seen;
    tsr_status checked[JOB_PROGRAMS]; /* by program */
    char text[JOB_TEXT];              /* of the first that was not TSR_OK */
};
static struct {
    int kind; /* in program `step`, not executed; NONE: all are */
    uint32_t step, k;
    bool told; /* the check sees what is not executed */
    struct watched ranks[JOB_RANKS];
} plan;

static tsr_status submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct watched *w = (struct watched *)x;
    if (w->rank->n_programs == 1 && w->seen == 0)
        tsr_run_check_tables(&w->check, tsr_engine_tables(w->rank->engine));
    bool in_step = w->rank->n_programs == plan.step + 1 && instr->kind == plan.kind;
    bool left_out = in_step && ++w->seen > plan.k && (plan.told ? w->seen == plan.k + 1 : true);
    if (!left_out || plan.told)
        TSR_TRY(w->check.base.ops->submit(&w->check.base, instr));
    return left_out ? TSR_OK : w->inner->ops->submit(w->inner, instr);
}

static tsr_status drain(struct tsr_executor *x)
{
    struct watched *w = (struct watched *)x;
    return w->inner->ops->drain(w->inner);
}

static tsr_status exchange(struct tsr_executor *x, const struct tsr_comm *comm, const void *in,
                           void *out, size_t bytes)
{
    struct watched *w = (struct watched *)x;
    return w->inner->ops->exchange(w->inner, comm, in, out, bytes);
}

static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                            .version = TSR_EXECUTOR_VERSION,
                                            .name = "watched",
                                            .submit = submit,
                                            .drain = drain,
                                            .exchange = exchange};

static struct tsr_executor *insert(struct job_rank *rank, struct tsr_executor *executor)
{
    struct watched *w = &plan.ranks[rank->rank];
    *w = (struct watched){.base = {.ops = &ops}, .inner = executor, .rank = rank};
    if (tsr_run_check_init(&w->check, rank->rank, rank->job->world, NULL) != TSR_OK)
        abort();
    return &w->base;
}

static void ran(struct job_rank *rank, uint32_t i)
{
    struct watched *w = &plan.ranks[rank->rank];
    w->checked[i] = tsr_run_check_step(&w->check, w->inner, i);
    if (w->checked[i] != TSR_OK && !w->text[0])
        snprintf(w->text, sizeof w->text, "%s", tsr_error_text());
}

static void run(const char *strategy, struct job_rank **ranks, struct strategies *s,
                struct tsr_job *job)
{
    static const struct job_config config = {
        .n_steps = STEPS, .keeps_hash = true, .hooks = {.executor = insert, .ran = ran}};
    strategies_open(s);
    strategies_job(s, strategy, job);
    job_run(job, &config, ranks);
}

static void done(struct job_rank *ranks, struct strategies *s, struct tsr_job *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        tsr_run_check_fini(&plan.ranks[r].check);
    job_close(ranks);
    tsr_job_close(job);
    strategies_close(s);
}

static void every_strategy__as_it_is__nothing_is_said(void **state)
{
    struct strategies names, s;
    struct tsr_job job;
    struct job_rank *ranks;
    (void)state;
    strategies_open(&names);
    plan.kind = NONE;
    const struct strategies_walk walk = strategies_walk(5, 1);
    for (size_t i = walk.first; i < names.file.n; i += walk.stride) {
        run(names.file.strategies[i].name, &ranks, &s, &job);
        const struct job_rank *failed = job_failure(ranks);
        if (failed)
            fail_msg("%s: %s", job.strategy->name, failed->text);
        for (uint32_t r = 0; r < job.world; r++)
            for (uint32_t p = 0; p <= STEPS; p++)
                if (plan.ranks[r].checked[p] != TSR_OK)
                    fail_msg("%s: %s", job.strategy->name, plan.ranks[r].text);
        done(ranks, &s, &job);
    }
    strategies_close(&names);
}

static void executor__leaves_out_a_kernel__the_step_is_named(void **state)
{
    struct strategies s;
    struct tsr_job job;
    struct job_rank *ranks;
    (void)state;
    plan.kind = TSR_OP;
    plan.step = 2;
    plan.k = 5;
    plan.told = true;
    run("fsdp", &ranks, &s, &job);
    for (uint32_t r = 0; r < job.world; r++) {
        const struct watched *w = &plan.ranks[r];
        assert_int_equal(w->checked[1], TSR_OK);
        assert_int_equal(w->checked[2], TSR_EDEFECT);
        assert_int_equal(strncmp(w->text, "--check: step 2: the streams did not do", 39), 0);
    }
    done(ranks, &s, &job);
}

static void program__without_waits__the_run_ends_with_a_finding(void **state)
{
    struct strategies s;
    struct tsr_job job;
    struct job_rank *ranks;
    (void)state;
    plan.kind = TSR_WAIT;
    plan.step = 1;
    plan.k = 0;
    plan.told = false;
    run("fsdp", &ranks, &s, &job);
    const struct job_rank *failed = job_failure(ranks);
    assert_non_null(failed);
    assert_int_equal(failed->status, TSR_EDEFECT);
    assert_non_null(strstr(failed->text, "early-use: iteration 0 #"));
    done(ranks, &s, &job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy__as_it_is__nothing_is_said),
        cmocka_unit_test(executor__leaves_out_a_kernel__the_step_is_named),
        cmocka_unit_test(program__without_waits__the_run_ends_with_a_finding),
    };
    return cmocka_run_group_tests_name("run --check", tests, NULL, NULL);
}
