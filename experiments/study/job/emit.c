/* emit.c: runs engines with the recorder until a step repeats itself. */
#include "experiments/study/job/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "experiments/study/base/listener.h"
#include "experiments/study/job/build.h"

enum { EXTRA_ITERATIONS = 5 }; /* beyond what the user asks for, before we give up */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- classes ----------------------------------------------------------------------------- */

/* An engine may be asked to issue before its first program has a place. */
static tsr_status open_class(const struct tsr_job *job, uint32_t rank,
                             struct tsr_emitted_class *class)
{
    class->rank = rank;
    class->programs[0] = malloc(sizeof(struct tsr_program));
    if (!class->programs[0])
        return tsr_no_memory(NULL);
    tsr_program_init(class->programs[0], NULL);
    class->programs[0]->iteration = -1;
    class->recorder = malloc(sizeof *class->recorder);
    if (!class->recorder)
        return tsr_no_memory(NULL);
    tsr_recorder_init(class->recorder, class->programs[0]);
    TSR_TRY(tsr_build(job, rank, &class->recorder->base, &class->engine));
    class->programs[0]->tables = tsr_engine_tables(class->engine);
    return TSR_OK;
}

static void close_class(struct tsr_emitted_class *class)
{
    for (size_t i = 0; i < TSR_MAX_ITERATIONS; i++) {
        if (class->programs[i])
            tsr_program_fini(class->programs[i]);
        free(class->programs[i]);
    }
    tsr_engine_destroy(class->engine);
    free(class->recorder);
}

void tsr_emission_fini(struct tsr_emission *emission)
{
    for (uint32_t i = 0; emission->classes && i < emission->n_classes; i++)
        close_class(&emission->classes[i]);
    free(emission->classes);
    free(emission->class_of);
    memset(emission, 0, sizeof(*emission));
}

static bool wants(const struct tsr_job *job, enum tsr_section section)
{
    return job->settings->phases >> section & 1;
}

bool tsr_rank_0_differs(const struct tsr_settings *s)
{
    return ((s->phases >> TSR_SECTION_LOAD & 1) && s->load != TSR_LOAD_SHARDED) ||
           ((s->phases >> TSR_SECTION_SAVE & 1) && !tsr_save_is_sharded((enum tsr_save)s->save));
}

/* Where rank 0 differs it is a class of its own. */
static void split_rank_0(const struct tsr_job *job, uint32_t *class_of, uint32_t *representative,
                         uint32_t *n)
{
    bool alone = tsr_rank_0_differs(job->settings);
    uint32_t first = job->world;
    for (uint32_t r = job->world - 1; alone && r > 0; r--)
        if (class_of[r] == class_of[0])
            first = r;
    if (first == job->world)
        return;
    representative[class_of[0]] = 0;
    representative[*n] = first;
    for (uint32_t r = first; r < job->world; r++)
        if (class_of[r] == class_of[0])
            class_of[r] = *n;
    ++*n;
}

/* Each class gets an engine of its own; which ranks do the same that of rank 0 says, which stands
 * for class 0. */
static tsr_status open_all(const struct tsr_job *job, struct tsr_emission *out)
{
    uint32_t *representative = calloc(job->world + 1UL, sizeof(*representative)), n = 0;
    struct tsr_emitted_class first = {0};
    out->class_of = calloc(job->world, sizeof(*out->class_of));
    tsr_status status;
    if (!representative || !out->class_of)
        TSR_GOTO(done, tsr_no_memory(NULL));
    TSR_GOTO(done, open_class(job, 0, &first));
    TSR_GOTO(done, tsr_engine_rank_classes(first.engine, out->class_of, representative, &n));
    split_rank_0(job, out->class_of, representative, &n);
    out->classes = calloc(n, sizeof(*out->classes));
    if (!out->classes)
        TSR_GOTO(done, tsr_no_memory(NULL));
    out->n_classes = n;
    out->classes[0] = first;
    first = (struct tsr_emitted_class){0};
    for (uint32_t i = 1; i < n; i++)
        TSR_GOTO(done, open_class(job, representative[i], &out->classes[i]));
done:
    close_class(&first);
    free(representative);
    return status;
}

static tsr_status open_one(const struct tsr_job *job, uint32_t rank, struct tsr_emission *out)
{
    out->class_of = calloc(job->world, sizeof(*out->class_of));
    out->classes = calloc(1, sizeof(*out->classes));
    if (!out->class_of || !out->classes)
        return tsr_no_memory(NULL);
    out->n_classes = 1;
    return open_class(job, rank, &out->classes[0]);
}

/* ---- iterations -------------------------------------------------------------------------- */

static tsr_status emit_init(struct tsr_emission *out)
{
    for (uint32_t i = 0; i < out->n_classes; i++)
        TSR_TRY(tsr_engine_init_params(out->classes[i].engine));
    out->n_iterations = 1;
    return TSR_OK;
}

static tsr_status emit_part(const struct tsr_settings *s, struct tsr_engine *engine, int iteration)
{
    switch (iteration) {
    case TSR_PROGRAM_LOAD:
        return tsr_load_run(engine, (enum tsr_load)s->load, s->load_optimizer);
    case TSR_PROGRAM_EVAL:
        return tsr_eval_run(engine);
    case TSR_PROGRAM_SAVE:
        return tsr_save_run(engine, (enum tsr_save)s->save);
    default:
        return tsr_step_run(engine, (uint32_t)iteration);
    }
}

/* The next program of every class: an iteration, or load, eval, save. */
static tsr_status emit_program(const struct tsr_job *job, struct tsr_emission *out, int iteration)
{
    uint32_t k = out->n_iterations;
    for (uint32_t i = 0; i < out->n_classes; i++) {
        struct tsr_emitted_class *class = &out->classes[i];
        struct tsr_program *program = malloc(sizeof(*program));
        if (!program)
            return tsr_no_memory(NULL);
        tsr_program_init(program, tsr_engine_tables(class->engine));
        program->iteration = iteration;
        class->programs[k] = program;
        class->recorder->into = program;
        TSR_TRY(emit_part(job->settings, class->engine, iteration));
    }
    out->n_iterations = k + 1;
    return TSR_OK;
}

static tsr_status emit_iteration(const struct tsr_job *job, struct tsr_emission *out)
{
    TSR_TRY(emit_program(job, out, (int)(out->n_iterations - out->first)));
    out->steady = out->n_iterations - 1;
    return TSR_OK;
}

/* A save; where it goes on beside the next step, that step, too. */
static tsr_status emit_save(const struct tsr_job *job, struct tsr_emission *out)
{
    TSR_TRY(emit_program(job, out, TSR_PROGRAM_SAVE));
    if (job->settings->save != TSR_SAVE_SHARDED_ASYNC)
        return TSR_OK;
    return emit_program(job, out, (int)(out->steady + 1 - out->first));
}

uint64_t tsr_emitted_hash(struct tsr_emitted_class *class, uint32_t k)
{
    if (!class->hashes[k])
        class->hashes[k] = tsr_program_hash(class->programs[k]);
    return class->hashes[k];
}

/* Do the last two iterations of every class have the same program, and the same addresses? */
static void compare_last(const struct tsr_emission *out, bool *same_program, bool *same_offsets)
{
    uint32_t k = out->n_iterations - 1;
    *same_program = *same_offsets = true;
    for (uint32_t i = 0; i < out->n_classes; i++) {
        const struct tsr_program *last = out->classes[i].programs[k];
        const struct tsr_program *before = out->classes[i].programs[k - 1];
        *same_program = *same_program && tsr_emitted_hash(&out->classes[i], k) ==
                                             tsr_emitted_hash(&out->classes[i], k - 1);
        *same_offsets =
            *same_offsets && tsr_program_offsets_hash(last) == tsr_program_offsets_hash(before);
    }
}

static tsr_status emit_steps(const struct tsr_job *job, struct tsr_emission *out)
{
    uint32_t least = (uint32_t)job->settings->iterations, most = least + EXTRA_ITERATIONS, n = 0;
    bool same_program = false, same_offsets = false;
    while (n < most && !(same_program && same_offsets)) {
        TSR_TRY(emit_iteration(job, out));
        if (++n >= least)
            compare_last(out, &same_program, &same_offsets);
    }
    /* Addresses may take turns for ever. Time and memory follow from the program alone. */
    if (!same_program && !job->is_trial)
        tsr_tell(
            "note: strategy %s: no two successive iterations were alike; the last of %u is shown",
            job->strategy->name, n);
    return TSR_OK;
}

static tsr_status emit_all(const struct tsr_job *job, uint32_t until, struct tsr_emission *out)
{
    TSR_TRY(emit_init(out));
    if (until == TSR_UNTIL_INIT)
        return TSR_OK;
    if (wants(job, TSR_SECTION_LOAD) || until == TSR_UNTIL_LOAD)
        TSR_TRY(emit_program(job, out, TSR_PROGRAM_LOAD));
    if (until == TSR_UNTIL_LOAD)
        return TSR_OK;
    out->first = out->n_iterations;
    if (until < TSR_UNTIL_LOAD) {
        for (uint32_t i = 0; i < until; i++)
            TSR_TRY(emit_iteration(job, out));
        return TSR_OK;
    }
    TSR_TRY(emit_steps(job, out));
    if (wants(job, TSR_SECTION_EVAL) || until == TSR_UNTIL_EVAL)
        TSR_TRY(emit_program(job, out, TSR_PROGRAM_EVAL));
    if (until == TSR_UNTIL_EVAL)
        return TSR_OK;
    if (until == TSR_UNTIL_SAVE)
        return emit_program(job, out, TSR_PROGRAM_SAVE);
    return wants(job, TSR_SECTION_SAVE) ? emit_save(job, out) : TSR_OK;
}

enum tsr_section tsr_section_of(const struct tsr_emission *emission, uint32_t i)
{
    switch (emission->classes[0].programs[i]->iteration) {
    case TSR_PROGRAM_INIT:
        return TSR_SECTION_INIT;
    case TSR_PROGRAM_LOAD:
        return TSR_SECTION_LOAD;
    case TSR_PROGRAM_EVAL:
        return TSR_SECTION_EVAL;
    case TSR_PROGRAM_SAVE:
        return TSR_SECTION_SAVE;
    case 0:
        return TSR_SECTION_STEP1;
    case 1:
        return TSR_SECTION_STEP2;
    default:
        return TSR_N_SECTIONS;
    }
}

double tsr_section_added(const struct tsr_emission *emission, const double *end, uint32_t i,
                         double step_s)
{
    double begin = i > 0 ? end[i - 1] : 0;
    bool beside = tsr_section_of(emission, i) == TSR_SECTION_SAVE && i + 1 < emission->n_iterations;
    return beside ? end[i + 1] - begin - step_s : end[i] - begin;
}

static tsr_status emit(const struct tsr_job *job, bool one, uint32_t rank, uint32_t until,
                       struct tsr_emission *out)
{
    double start = now();
    memset(out, 0, sizeof(*out));
    out->world = job->world;
    tsr_status status = one ? open_one(job, rank, out) : open_all(job, out);
    if (status == TSR_OK)
        status = emit_all(job, until, out);
    out->seconds = now() - start;
    return status;
}

static tsr_status emit_or_nothing(const struct tsr_job *job, bool one, uint32_t rank, uint32_t last,
                                  struct tsr_emission *out)
{
    tsr_status status = emit(job, one, rank, last, out);
    if (status != TSR_OK)
        tsr_emission_fini(out);
    return status;
}

/* allocator.limit: card. What NCCL takes follows from the programs, which do not depend on the
 * limit as far as that goes: rank 0 is emitted without one. */
static tsr_status set_limit(struct tsr_job *job)
{
    struct tsr_job free = *job;
    struct tsr_emission emission;
    bool has_card = job->settings->alloc_limit == TSR_LIMIT_CARD && !job->limit_bytes;
    if (!has_card || !*job->cluster.name || !job->cluster.gpu.visible_bytes)
        return TSR_OK;
    free.limit_bytes = TSR_UNLIMITED;
    free.is_trial = true;
    TSR_TRY(emit_or_nothing(&free, true, 0, TSR_UNTIL_STEADY, &emission));
    tsr_status status = tsr_fit_limit(&free, &emission, &job->limit_bytes);
    if (status == TSR_OK && !job->limit_bytes)
        status = tsr_fail(TSR_EOOM, "the card has no memory left beside its context and NCCL");
    tsr_emission_fini(&emission);
    return status;
}

tsr_status tsr_emit_or_keep(const struct tsr_job *job, struct tsr_emission *out)
{
    struct tsr_job limited = *job;
    memset(out, 0, sizeof *out);
    TSR_TRY(set_limit(&limited));
    tsr_status status = emit(&limited, false, 0, TSR_UNTIL_STEADY, out);
    if (status == TSR_OK && !job->limit_bytes)
        status = tsr_fit_emission(job, out);
    if (status != TSR_OK && status != TSR_EOOM)
        tsr_emission_fini(out);
    return status;
}

tsr_status tsr_emit(const struct tsr_job *job, struct tsr_emission *out)
{
    tsr_status status = tsr_emit_or_keep(job, out);
    if (status != TSR_OK)
        tsr_emission_fini(out);
    return status;
}

tsr_status tsr_emit_rank(const struct tsr_job *job, uint32_t rank, uint32_t until,
                         struct tsr_emission *out)
{
    return emit_or_nothing(job, true, rank, until, out);
}

/* ---- for the simulator ----------------------------------------------------------------------- */

tsr_status tsr_sim_job_of(const struct tsr_emission *emission, struct tsr_sim_job *out)
{
    const struct tsr_program *const **programs =
        calloc(emission->n_classes + 1u, sizeof(*programs));
    *out = (struct tsr_sim_job){0};
    if (!programs)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < emission->n_classes; i++)
        programs[i] = (const struct tsr_program *const *)emission->classes[i].programs;
    *out = (struct tsr_sim_job){.world = emission->world,
                                .n_classes = emission->n_classes,
                                .n_iterations = emission->n_iterations,
                                .class_of = emission->class_of,
                                .programs = programs};
    return TSR_OK;
}

void tsr_sim_job_fini(struct tsr_sim_job *job)
{
    free((void *)job->programs);
    *job = (struct tsr_sim_job){0};
}

tsr_status tsr_at_sim_key(const struct tsr_job *job, tsr_status status)
{
    char name[64];
    const char *text = tsr_error_text();
    snprintf(name, sizeof name, "sim.%.*s", (int)strcspn(text, ":"), text);
    size_t key = tsr_key_find(name);
    const struct tsr_yaml_node *at = key < TSR_N_KEYS ? tsr_setting_at(job->settings, key) : NULL;
    return at ? tsr_node_wrap_error(at, status, "sim") : status;
}
