/* check_run.c: emits all ranks of a strategy or scenario into the schedule checker. */
#include "experiments/cli/inspect/check_run.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/build.h"
#include "experiments/study/job/emit.h"

static uint32_t world_of(const struct tsr_check_source *s)
{
    if (s->job)
        return s->job->world;
    const struct tsr_mesh *mesh = s->memory ? &s->memory->engine.mesh : &s->scenario->mesh;
    uint32_t world = 1;
    for (int i = 0; i < mesh->n_dims; i++)
        world *= mesh->shape[i];
    return world;
}

/* ---- one rank -------------------------------------------------------------------------------- */

struct emitter {
    const struct tsr_check_source *source;
    struct tsr_check_run *run;
    struct tsr_executor *executor;
    struct tsr_trace_run *trace; /* of this rank, for scenarios of recorded runs */
    uint32_t rank;
};

/* The rank's engine, ready to be run. */
static tsr_status open_engine(struct emitter *e)
{
    const struct tsr_check_source *s = e->source;
    struct tsr_engine **engine = &e->run->engines[e->rank];
    if (s->job)
        return tsr_build(s->job, e->rank, e->executor, engine);
    if (s->memory) {
        struct tsr_memory_scenario of_rank = *s->memory;
        of_rank.engine.rank = e->rank;
        return tsr_memory_scenario_build(&of_rank, e->executor, false, engine);
    }
    *e->trace =
        (struct tsr_trace_run){.scenario = s->scenario, .executor = e->executor, .stage = "wrap"};
    tsr_status status = tsr_trace_create(e->trace, e->rank);
    *engine = e->trace->e;
    return status;
}

static bool loads(const struct tsr_check_source *s)
{
    return s->job && (s->job->settings->phases >> TSR_SECTION_LOAD & 1);
}

static tsr_status emit_iterations(struct tsr_engine *engine, uint64_t n)
{
    for (uint32_t i = 0; i < n; i++)
        TSR_TRY(tsr_step_run(engine, i));
    return TSR_OK;
}

/* What a run does between steps, whether or not the file names it as a phase to simulate. The save
 * comes right behind a step: behind an evaluation the host has waited for that step's end. */
static tsr_status emit_outside(const struct emitter *e, struct tsr_engine *engine)
{
    struct tsr_checker *checker = e->run->checker;
    tsr_checker_section(checker, e->rank, "save");
    TSR_TRY(tsr_save_run(engine, (enum tsr_save)e->source->job->settings->save));
    TSR_TRY(tsr_step_run(engine, TSR_CHECK_ITERATIONS));
    if (e->source->job->model.trace) /* of which only training steps are known */
        return TSR_OK;
    tsr_checker_section(checker, e->rank, "eval");
    TSR_TRY(tsr_eval_run(engine));
    return tsr_step_run(engine, TSR_CHECK_ITERATIONS + 1);
}

static tsr_status emit_rank(struct emitter *e)
{
    const struct tsr_check_source *s = e->source;
    struct tsr_checker *checker = e->run->checker;
    struct tsr_engine *engine = e->run->engines[e->rank];
    if (s->scenario)
        return tsr_trace_train(e->trace);
    TSR_TRY(tsr_engine_init_params(engine));
    if (loads(s)) {
        tsr_checker_section(checker, e->rank, "load");
        TSR_TRY(tsr_load_run(engine, (enum tsr_load)s->job->settings->load,
                             s->job->settings->load_optimizer));
    }
    TSR_TRY(emit_iterations(engine, TSR_CHECK_ITERATIONS));
    return s->job ? emit_outside(e, engine) : TSR_OK;
}

static tsr_status check_rank(const struct tsr_check_source *source, struct tsr_check_run *run,
                             uint32_t rank)
{
    struct emitter e = {.source = source, .run = run, .trace = &run->traces[rank], .rank = rank};
    TSR_TRY(tsr_checker_rank(run->checker, rank, NULL, NULL, &e.executor));
    TSR_TRY(open_engine(&e));
    tsr_checker_set_tables(run->checker, rank, tsr_engine_tables(run->engines[rank]));
    return emit_rank(&e);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Ranks that do what an earlier one does. Rank 0's engine knows; what it says is in `class_of`. */
static tsr_status check_classes(const struct tsr_check_source *source, struct tsr_check_run *run,
                                uint32_t *class_of, uint32_t *first_of)
{
    uint32_t n = 0;
    bool rank_0_alone = source->job && tsr_rank_0_differs(source->job->settings);
    TSR_TRY(check_rank(source, run, 0));
    TSR_TRY(tsr_engine_rank_classes(run->engines[0], class_of, first_of, &n));
    for (uint32_t k = 0; k < n; k++)
        first_of[k] = run->world;
    if (!rank_0_alone)
        first_of[class_of[0]] = 0;
    for (uint32_t rank = 1; rank < run->world; rank++) {
        uint32_t *first = &first_of[class_of[rank]];
        if (*first == run->world) {
            *first = rank;
            TSR_TRY(check_rank(source, run, rank));
        } else {
            TSR_TRY(tsr_checker_same(run->checker, rank, *first));
        }
    }
    return TSR_OK;
}

static tsr_status check_all(const struct tsr_check_source *source, struct tsr_check_run *run)
{
    if (run->world <= TSR_CHECK_ALL_RANKS) {
        for (uint32_t rank = 0; rank < run->world; rank++)
            TSR_TRY(check_rank(source, run, rank));
        return TSR_OK;
    }
    uint32_t *class_of = calloc(run->world, sizeof *class_of);
    uint32_t *first_of = calloc(run->world, sizeof *first_of);
    tsr_status status =
        class_of && first_of ? check_classes(source, run, class_of, first_of) : tsr_no_memory(NULL);
    free(class_of);
    free(first_of);
    return status;
}

tsr_status tsr_check_run(const struct tsr_check_source *source, struct tsr_check_run *run)
{
    *run = (struct tsr_check_run){.world = world_of(source)};
    struct tsr_checker_config config = {.world = run->world};
    run->engines = calloc(run->world + 1UL, sizeof(*run->engines));
    run->traces = calloc(run->world + 1UL, sizeof(*run->traces));
    if (!run->engines || !run->traces)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr_checker_create(&config, &run->checker));
    TSR_TRY(check_all(source, run));
    return tsr_checker_finish(run->checker);
}

void tsr_check_run_close(struct tsr_check_run *run)
{
    tsr_checker_destroy(run->checker);
    for (uint32_t i = 0; run->engines && run->traces && i < run->world; i++)
        if (run->traces[i].scenario) /* which owns the engine */
            tsr_trace_fini(&run->traces[i]);
        else
            tsr_engine_destroy(run->engines[i]);
    free(run->engines);
    free(run->traces);
}
