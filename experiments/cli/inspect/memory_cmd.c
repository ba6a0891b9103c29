/* memory_cmd.c: `tessera memory FILE --strategy NAME`: what the device allocator holds, phase by
 * phase, in iterations 0 and 1 of a strategy: what a run of PyTorch is held against.
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine/tessera.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/inspect/memory_figures.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/build.h"
#include "experiments/study/model/trace_file.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/study.h"

enum { ITERATIONS = 2 };

/* Returns the keys that a training script sets beside written code, with their values as a file
 * has them. NULL: out of memory. The caller releases the object. */
static json_t *settings_json(const struct tsr_settings *s)
{
    json_t *all = json_object();
    char word[128];
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (tsr_keys[i].comes_from_script &&
            tsr_key_format(&tsr_keys[i], s, word, sizeof word) == TSR_OK)
            json_object_set_new(all, tsr_keys[i].name, json_string(word));
    return all;
}

/* A traced model has a file and a variant, which know what the program ran under. */
static void add_trace(const struct tsr_job *job, json_t *to)
{
    const struct tsr_traced_file *t = job->model.trace;
    if (!t)
        return;
    json_object_set_new(to, "trace", json_string(t->path));
    json_object_set_new(to, "variant", json_string(job->model.variant->name));
}

static tsr_status emit(const struct tsr_job *job, uint32_t rank, struct tsr_memory_figures *figures,
                       struct tsr_engine **engine)
{
    TSR_TRY(tsr_build(job, rank, &figures->base, engine));
    figures->engine = *engine;
    tsr_fsdp1_as_checked(*engine);
    TSR_TRY(tsr_engine_init_params(*engine));
    for (uint32_t i = 0; i < ITERATIONS; i++)
        TSR_TRY(tsr_step_run(*engine, i));
    tsr_memory_figures_end(figures);
    return TSR_OK;
}

static tsr_status play(const struct tsr_job *job, uint32_t rank, json_t **out)
{
    struct tsr_memory_figures figures;
    struct tsr_engine *engine = NULL;
    tsr_memory_figures_init(&figures);
    tsr_status status = emit(job, rank, &figures, &engine);
    if (status == TSR_OK) {
        *out = json_pack(
            "{s:s, s:I, s:I, s:o, s:o}", "strategy", job->strategy->name, "world",
            (json_int_t)job->world, "rank", (json_int_t)rank, "settings",
            settings_json(job->settings), "allocator",
            tsr_memory_figures_json(&figures, (uint32_t)job->settings->accum_steps, ITERATIONS));
        status = *out ? TSR_OK : tsr_no_memory(NULL);
        if (*out)
            add_trace(job, *out);
    }
    tsr_engine_destroy(engine);
    tsr_memory_figures_fini(&figures);
    return status;
}

static tsr_status play_study(struct tsr_study *study, const struct tsr_args *args, json_t **out)
{
    const struct tsr_strategy *one = NULL;
    if (!args->strategy) /* only a file with a single strategy needs no --strategy */
        TSR_TRY(tsr_experiment_find(&study->experiment, NULL, &one));
    TSR_TRY(tsr_study_build(study));
    const struct tsr_job *job = &study->jobs[0];
    if (args->rank >= job->world)
        return tsr_fail(TSR_ECONFIG,
                        "--rank: found %" PRIu64 "; allowed: 0 to %" PRIu32
                        ", the ranks of strategy %s",
                        args->rank, job->world - 1, job->strategy->name);
    return play(job, (uint32_t)args->rank, out);
}

static tsr_status play_strategy(const struct tsr_args *args, json_t **out)
{
    struct tsr_study *study = NULL;
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = play_study(study, args, out);
    tsr_study_close(study);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

tsr_status tsr_cmd_memory(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_json_output output = {args->out ? args->out : "standard output", NULL, JSON_COMPACT};
    json_t *result = NULL;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_prepare_file("--out", args->out));
    TSR_TRY(play_strategy(args, &result));
    output.value = result;
    tsr_status status = args->out ? tsr_write_output(args->out, tsr_json_write, &output)
                                  : tsr_json_write(stdout, &output);
    json_decref(result);
    return status;
}
