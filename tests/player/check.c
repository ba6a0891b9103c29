/* check.c: `tessera check SCENARIO.json`: the schedule checker over a recorded scenario. */
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/inspect/check_run.h"
#include "sim/base/json_load.h"
#include "tests/player/events/trace.h"
#include "tests/player/memory/memory_scenario.h"
#include "tests/player/player.h"

static uint32_t world_of(const struct tsr_mesh *mesh)
{
    uint32_t world = 1;
    for (int i = 0; i < mesh->n_dims; i++)
        world *= mesh->shape[i];
    return world;
}

/* ---- scenarios of events --------------------------------------------------------------------- */

/* The runs own the engines. */
struct recorded {
    const struct tsr_scenario *scenario;
    struct tsr_trace_run *runs; /* [world] */
};

static tsr_status open_run(void *user, uint32_t rank, struct tsr_executor *executor,
                           struct tsr_engine **engine)
{
    struct recorded *r = user;
    r->runs[rank] =
        (struct tsr_trace_run){.scenario = r->scenario, .executor = executor, .stage = "wrap"};
    tsr_status status = tsr_trace_create(&r->runs[rank], rank);
    *engine = r->runs[rank].e;
    return status;
}

static tsr_status emit_run(void *user, uint32_t rank, struct tsr_checker *checker,
                           struct tsr_engine *engine)
{
    struct recorded *r = user;
    (void)checker;
    (void)engine;
    return tsr_trace_train(&r->runs[rank]);
}

static void close_run(void *user, uint32_t rank, struct tsr_engine *engine)
{
    struct recorded *r = user;
    (void)engine;
    tsr_trace_fini(&r->runs[rank]);
}

static tsr_status check_events(const struct tsr_scenario *s, struct tsr_check_verdict *verdict)
{
    const uint32_t world = world_of(&s->mesh);
    struct recorded recorded = {s, calloc(world + 1UL, sizeof(struct tsr_trace_run))};
    const struct tsr_check_source source = {
        .user = &recorded, .world = world, .open = open_run, .emit = emit_run, .close = close_run};
    tsr_status status =
        recorded.runs ? tsr_check_print(s->name, &source, verdict) : tsr_no_memory(NULL);
    free(recorded.runs);
    return status;
}

static tsr_status check_events_file(const char *path, struct tsr_check_verdict *verdict)
{
    struct tsr_scenario s;
    TSR_TRY(tsr_scenario_load(path, &s));
    tsr_status status;
    if (strcmp(s.kind, "train") != 0 && strcmp(s.kind, "ddp") != 0)
        TSR_GOTO(done, tsr_node_error(
                           tsr_node_get(s.doc.root, "kind"),
                           "kind: found %s; allowed: train, ddp (the others run no step)", s.kind));
    TSR_GOTO(done, tsr_scenario_mesh(&s));
    TSR_GOTO(done, check_events(&s, verdict));

done:
    tsr_scenario_fini(&s);
    return status;
}

/* ---- scenarios of memory --------------------------------------------------------------------- */

static tsr_status open_memory(void *user, uint32_t rank, struct tsr_executor *executor,
                              struct tsr_engine **engine)
{
    struct tsr_memory_scenario of_rank = *(const struct tsr_memory_scenario *)user;
    of_rank.engine.rank = rank;
    return tsr_memory_scenario_build(&of_rank, executor, false, engine);
}

static tsr_status emit_memory(void *user, uint32_t rank, struct tsr_checker *checker,
                              struct tsr_engine *engine)
{
    (void)user;
    (void)rank;
    (void)checker;
    TSR_TRY(tsr_engine_init_params(engine));
    for (uint32_t i = 0; i < TSR_CHECK_ITERATIONS; i++)
        TSR_TRY(tsr_step_run(engine, i));
    return TSR_OK;
}

static void close_memory(void *user, uint32_t rank, struct tsr_engine *engine)
{
    (void)user;
    (void)rank;
    tsr_engine_destroy(engine);
}

static tsr_status check_memory_file(const char *path, struct tsr_check_verdict *verdict)
{
    struct tsr_memory_scenario s;
    TSR_TRY(tsr_memory_scenario_load(path, NULL, &s));
    const struct tsr_check_source source = {.user = &s,
                                            .world = world_of(&s.engine.mesh),
                                            .open = open_memory,
                                            .emit = emit_memory,
                                            .close = close_memory};
    tsr_status status = tsr_check_print(s.name, &source, verdict);
    tsr_memory_scenario_fini(&s);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Scenarios of events have a kind. */
static bool has_kind(const char *path)
{
    json_t *file;
    bool has = tsr_json_load(path, TSR_TEXT_VALUES, &file) == TSR_OK &&
               json_is_string(json_object_get(file, "kind"));
    json_decref(file);
    return has;
}

static bool is_json(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".json");
}

tsr_status tsr_player_check(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_check_verdict verdict = {0};
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!is_json(args->file))
        return tsr_cmd_check(usage, args, success);
    if (args->strategy || args->n_sets || args->print_config)
        return tsr_fail(TSR_ECONFIG,
                        "%s: found a scenario and --strategy, --set or --print-config; allowed: "
                        "these with an experiment file",
                        args->file);
    TSR_TRY(has_kind(args->file) ? check_events_file(args->file, &verdict)
                                 : check_memory_file(args->file, &verdict));
    return tsr_check_end(args->file, &verdict);
}
