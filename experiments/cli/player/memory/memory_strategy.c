/* memory_strategy.c: a strategy of an experiment file, emitted for its memory alone. */
#include "experiments/cli/player/memory/memory_strategy.h"

#include <inttypes.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/player/memory/memory_record.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/build.h"
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

/* Of a traced model: the file and its variant, which know what the program ran under. */
static void add_trace(const struct tsr_job *job, json_t *to)
{
    const struct tsr_traced_file *t = job->model.trace;
    if (!t)
        return;
    json_object_set_new(to, "trace", json_string(t->path));
    json_object_set_new(to, "variant", json_string(job->model.variant->name));
}

static tsr_status emit(const struct tsr_job *job, uint32_t rank, struct tsr_memory_record *record,
                       struct tsr_engine **engine)
{
    TSR_TRY(tsr_build(job, rank, &record->base, engine));
    record->engine = *engine;
    TSR_TRY(tsr_engine_init_params(*engine));
    for (uint32_t i = 0; i < ITERATIONS; i++)
        TSR_TRY(tsr_step_run(*engine, i));
    return tsr_memory_record_end(record);
}

static tsr_status play(const struct tsr_job *job, uint32_t rank, json_t **out)
{
    /* What names of phases and numbers of iterations come from. */
    const struct tsr_memory_scenario shape = {.step.n_micro = (uint32_t)job->settings->accum_steps,
                                              .iterations = ITERATIONS};
    struct tsr_memory_record record;
    struct tsr_engine *engine = NULL;
    tsr_memory_record_init(&record);
    tsr_status status = emit(job, rank, &record, &engine);
    if (status == TSR_OK) {
        *out = json_pack("{s:s, s:I, s:I, s:o, s:o}", "strategy", job->strategy->name, "world",
                         (json_int_t)job->world, "rank", (json_int_t)rank, "settings",
                         settings_json(job->settings), "allocator",
                         tsr_memory_allocator(&shape, &record));
        status = *out ? TSR_OK : tsr_no_memory(NULL);
        if (*out)
            add_trace(job, *out);
    }
    tsr_engine_destroy(engine);
    tsr_memory_record_fini(&record);
    return status;
}

static tsr_status play_study(struct tsr_study *study, const struct tsr_args *args, json_t **out)
{
    TSR_TRY(tsr_study_build(study));
    const struct tsr_job *job = &study->jobs[0];
    if (args->rank >= job->world)
        return tsr_fail(TSR_ECONFIG,
                        "--rank: found %" PRIu64 "; allowed: 0 to %" PRIu32
                        ", the ranks of strategy %s",
                        args->rank, job->world - 1, job->strategy->name);
    return play(job, (uint32_t)args->rank, out);
}

tsr_status tsr_memory_of_strategy(const struct tsr_args *args, json_t **out)
{
    struct tsr_study *study = NULL;
    *out = NULL;
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = play_study(study, args, out);
    tsr_study_close(study);
    return status;
}
