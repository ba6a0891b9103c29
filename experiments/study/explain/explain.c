/* explain.c: finds the rank class and the instant of the peak, and puts the report together. */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/settings.h"
#include "experiments/study/explain/explain_parts.h"
#include "experiments/study/job/job.h"
#include "experiments/study/job/owner.h"

/* Programs die with their emission: texts are copied. */
tsr_status tsr_explain_place_of(const struct tsr_program *program, size_t index,
                                struct tsr_arena *arena, struct tsr_explain_place *out)
{
    const struct tsr_instr *instr = &program->instrs[index];
    const struct tsr_origin *origin = &instr->origin;
    char buffer[32];
    const char *operation = "";
    if (instr->kind == TSR_ALLOC) {
        size_t work = tsr_work_of_alloc(program, index);
        operation = work < program->n_instrs ? tsr_work_name(&program->instrs[work]) : "";
    }
    *out = (struct tsr_explain_place){
        .phase = tsr_phase_name(origin->phase),
        .micro = origin->micro,
        .module = tsr_arena_strdup(arena, tsr_owner_of(program->tables, origin, buffer)),
        .hook = origin->hook == TSR_HOOK_NONE ? "" : tsr_hook_name(origin->hook),
        .operation = tsr_arena_strdup(arena, operation),
        .recompute = origin->recompute != 0,
        .instr = index};
    return out->module && out->operation ? TSR_OK : tsr_no_memory(NULL);
}

tsr_status tsr_explain_memory_at(const struct tsr_explained *e, size_t n_instrs,
                                 struct tsr_memory **out)
{
    tsr_status status = tsr_memory_create(out);
    for (uint32_t i = 0; i < e->iteration && status == TSR_OK; i++)
        status = tsr_memory_replay_part(*out, e->class->programs[i], 0, SIZE_MAX);
    if (status == TSR_OK)
        status = tsr_memory_replay_part(*out, e->program, 0, n_instrs);
    if (status != TSR_OK) {
        tsr_memory_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* ---- where the peak is ----------------------------------------------------------------------- */

struct peaks {
    struct tsr_memory_peak of[TSR_MAX_ITERATIONS];
};

static tsr_status replay_class(const struct tsr_emitted_class *class, uint32_t n,
                               struct peaks *peaks)
{
    struct tsr_memory *memory = NULL;
    TSR_TRY(tsr_memory_create(&memory));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < n && status == TSR_OK; i++)
        status = tsr_memory_replay(memory, class->programs[i], NULL, NULL, &peaks->of[i]);
    tsr_memory_destroy(memory);
    return status;
}

/* The steady iteration unless another one, or what is before or after them, goes higher. */
static uint32_t highest_of(const struct peaks *peaks, uint32_t steady, uint32_t n)
{
    uint32_t best = steady;
    for (uint32_t i = 0; i < n; i++)
        if (peaks->of[i].allocated > peaks->of[best].allocated)
            best = i;
    return best;
}

static tsr_status find_peak(const struct tsr_emission *emission, struct tsr_explained *e,
                            struct peaks *peaks)
{
    uint32_t n = emission->n_iterations;
    *e = (struct tsr_explained){.n_iterations = n, .emission = emission};
    for (uint32_t i = 0; i < emission->n_classes; i++) {
        struct peaks mine = {0};
        TSR_TRY(replay_class(&emission->classes[i], n, &mine));
        uint32_t at = highest_of(&mine, emission->steady, n);
        if (e->class && mine.of[at].allocated <= peaks->of[e->iteration].allocated)
            continue;
        *peaks = mine;
        e->class = &emission->classes[i];
        e->index = i;
        e->iteration = at;
    }
    e->program = e->class->programs[e->iteration];
    return TSR_OK;
}

/* ---- the report ------------------------------------------------------------------------------ */

static const char *iteration_name(const struct tsr_explained *e)
{
    enum tsr_section section = tsr_section_of(e->emission, e->iteration);
    if (e->iteration == e->emission->steady)
        return "steady";
    if (e->iteration == e->emission->first)
        return "first";
    return section < TSR_N_SECTIONS ? tsr_words_sections[section] : "early";
}

static tsr_status iteration_of(const struct tsr_explained *e, uint32_t i, const struct peaks *peaks,
                               struct tsr_arena *arena, struct tsr_explain_iteration *out)
{
    const struct tsr_program *program = e->class->programs[i];
    struct tsr_explained as = {
        .iteration = i, .n_iterations = e->n_iterations, .emission = e->emission};
    *out = (struct tsr_explain_iteration){.name = iteration_name(&as),
                                          .number = program->iteration,
                                          .allocated = peaks->of[i].allocated,
                                          .reserved = peaks->of[i].reserved};
    return tsr_explain_place_of(program, peaks->of[i].instr, arena, &out->place);
}

static tsr_status add_peak(const struct tsr_explained *e, const struct peaks *peaks,
                           struct tsr_explanation *out)
{
    const struct tsr_instr *instr = &e->program->instrs[peaks->of[e->iteration].instr];
    bool alloc = instr->kind == TSR_ALLOC;
    out->category = alloc ? tsr_category_name(instr->category) : "";
    out->requested = alloc ? instr->bytes : 0;
    out->rank = e->class->rank;
    out->class = e->index;
    out->n_classes = e->emission->n_classes;
    out->iterations = tsr_arena_alloc(&out->arena, (e->n_iterations + 1) * sizeof *out->iterations);
    if (!out->iterations)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < e->n_iterations; i++)
        TSR_TRY(iteration_of(e, i, peaks, &out->arena, &out->iterations[i]));
    out->n_iterations = e->n_iterations;
    out->peak = out->iterations[e->iteration];
    return TSR_OK;
}

static tsr_status add_moment(const struct tsr_explained *e, size_t instr,
                             struct tsr_explanation *out)
{
    struct tsr_memory *memory = NULL;
    TSR_TRY(tsr_explain_memory_at(e, instr + 1, &memory));
    tsr_status status = tsr_explain_alive_at(memory, e->program, &out->arena, &out->alive);
    if (status == TSR_OK)
        status = tsr_explain_allocator_at(memory, e->program->tables, &out->arena, &out->allocator);
    tsr_memory_destroy(memory);
    return status;
}

static tsr_status add_head(const struct tsr_job *job, const struct tsr_row *row,
                           struct tsr_explanation *out)
{
    struct tsr_arena *arena = &out->arena;
    char words[160] = "";
    tsr_strategy_words(job->settings, words, sizeof words);
    out->file = tsr_arena_strdup(arena, job->experiment->path);
    out->strategy = tsr_arena_strdup(arena, job->strategy->name);
    out->summary = tsr_arena_strdup(arena, words);
    out->model = tsr_arena_strdup(arena, job->model.name);
    out->cluster = tsr_arena_strdup(arena, job->cluster.name);
    out->world = job->world;
    out->row = *row;
    return out->file && out->strategy && out->summary && out->model && out->cluster
               ? TSR_OK
               : tsr_no_memory(NULL);
}

tsr_status tsr_explain(const struct tsr_job *job, const struct tsr_emission *emission,
                       const struct tsr_row *row, struct tsr_explanation *out)
{
    struct tsr_explained e;
    struct peaks peaks = {0};
    *out = (struct tsr_explanation){.world = 0};
    tsr_arena_init(&out->arena);
    TSR_TRY(find_peak(emission, &e, &peaks));
    size_t peak = peaks.of[e.iteration].instr;
    TSR_TRY(add_head(job, row, out));
    TSR_TRY(add_peak(&e, &peaks, out));
    TSR_TRY(add_moment(&e, peak, out));
    TSR_TRY(tsr_explain_units(&e, peak, out));
    return tsr_explain_peaks(&e, peak, out);
}

void tsr_explanation_fini(struct tsr_explanation *explanation)
{
    tsr_arena_fini(&explanation->arena);
    memset(explanation, 0, sizeof *explanation);
}
