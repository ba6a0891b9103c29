/* check_job.c: what the schedule checker looks at in a job: initialisation, steps, and what comes
 * between them.
 */
#include "experiments/cli/inspect/check_run.h"
#include "experiments/study/job/build.h"
#include "experiments/study/job/emit.h"

static tsr_status open_rank(void *user, uint32_t rank, struct tsr_executor *executor,
                            struct tsr_engine **engine)
{
    const struct tsr_job *job = user;
    return tsr_build(job, rank, executor, engine);
}

/* What a run does between steps, whether or not the file names it as a phase to simulate. The save
 * comes right behind a step: behind an evaluation the host has waited for that step's end. */
static tsr_status emit_outside(const struct tsr_job *job, uint32_t rank,
                               struct tsr_checker *checker, struct tsr_engine *engine)
{
    tsr_checker_section(checker, rank, "save");
    TSR_TRY(tsr_save_run(engine, (enum tsr_save)job->settings->save));
    TSR_TRY(tsr_step_run(engine, TSR_CHECK_ITERATIONS));
    if (job->model.trace) /* of which only training steps are known */
        return TSR_OK;
    tsr_checker_section(checker, rank, "eval");
    TSR_TRY(tsr_eval_run(engine));
    return tsr_step_run(engine, TSR_CHECK_ITERATIONS + 1);
}

static tsr_status emit_rank(void *user, uint32_t rank, struct tsr_checker *checker,
                            struct tsr_engine *engine)
{
    const struct tsr_job *job = user;
    const struct tsr_settings *settings = job->settings;
    TSR_TRY(tsr_engine_init_params(engine));
    if (settings->phases >> TSR_SECTION_LOAD & 1) {
        tsr_checker_section(checker, rank, "load");
        TSR_TRY(tsr_load_run(engine, (enum tsr_load)settings->load, settings->load_optimizer));
    }
    for (uint32_t i = 0; i < TSR_CHECK_ITERATIONS; i++)
        TSR_TRY(tsr_step_run(engine, i));
    return emit_outside(job, rank, checker, engine);
}

static void close_rank(void *user, uint32_t rank, struct tsr_engine *engine)
{
    (void)user;
    (void)rank;
    tsr_engine_destroy(engine);
}

struct tsr_check_source tsr_check_job(const struct tsr_job *job)
{
    return (struct tsr_check_source){.user = (void *)job, /* which is only read */
                                     .world = job->world,
                                     .rank_0_alone = tsr_rank_0_differs(job->settings),
                                     .open = open_rank,
                                     .emit = emit_rank,
                                     .close = close_rank};
}
