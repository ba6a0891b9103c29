/* explain.c: finds the rank class and the instant of the peak, and puts the report together. */
#include "experiments/study/explain/explain.h"
#include "experiments/study/config/keys_words.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/owner.h"

json_t *tsr_explain_place(const struct tsr_program *program, size_t alloc)
{
    const struct tsr_instr *instr = &program->instrs[alloc];
    const struct tsr_origin *origin = &instr->origin;
    char buffer[32];
    const char *operation = "";
    if (instr->kind == TSR_ALLOC) {
        size_t work = tsr_work_of_alloc(program, alloc);
        operation = work < program->n_instrs ? tsr_work_name(&program->instrs[work]) : "";
    }
    return json_pack(
        "{s:s, s:i, s:s, s:s, s:b, s:s, s:I}", "phase", tsr_phase_name(origin->phase),
        "micro_batch", origin->micro, "module", tsr_owner_of(program->tables, origin, buffer),
        "hook", origin->hook == TSR_HOOK_NONE ? "" : tsr_hook_name(origin->hook), "recompute",
        origin->recompute != 0, "operation", operation, "instruction", (json_int_t)alloc);
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

static json_t *peak_json(const struct tsr_emission *emission, const struct tsr_explained *e,
                         const struct tsr_memory_peak *peak)
{
    json_t *out = tsr_explain_place(e->program, peak->instr);
    const struct tsr_instr *instr = &e->program->instrs[peak->instr];
    bool alloc = instr->kind == TSR_ALLOC;
    json_object_set_new(out, "iteration", json_string(iteration_name(e)));
    json_object_set_new(out, "iteration_number", json_integer(e->program->iteration));
    json_object_set_new(out, "category",
                        json_string(alloc ? tsr_category_name(instr->category) : ""));
    json_object_set_new(out, "requested_bytes", json_integer(alloc ? (json_int_t)instr->bytes : 0));
    json_object_set_new(out, "allocated_bytes", json_integer((json_int_t)peak->allocated));
    json_object_set_new(out, "reserved_bytes", json_integer((json_int_t)peak->reserved));
    json_object_set_new(out, "rank", json_integer(e->class->rank));
    json_object_set_new(out, "rank_class", json_integer(e->index));
    json_object_set_new(out, "rank_classes", json_integer(emission->n_classes));
    return out;
}

static json_t *iterations_json(const struct tsr_explained *e, const struct peaks *peaks)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < e->n_iterations; i++) {
        const struct tsr_program *program = e->class->programs[i];
        json_t *row = tsr_explain_place(program, peaks->of[i].instr);
        struct tsr_explained as = {
            .iteration = i, .n_iterations = e->n_iterations, .emission = e->emission};
        json_object_set_new(row, "iteration", json_string(iteration_name(&as)));
        json_object_set_new(row, "iteration_number", json_integer(program->iteration));
        json_object_set_new(row, "allocated_bytes",
                            json_integer((json_int_t)peaks->of[i].allocated));
        json_object_set_new(row, "reserved_bytes", json_integer((json_int_t)peaks->of[i].reserved));
        json_array_append_new(list, row);
    }
    return list;
}

static tsr_status add_moment(const struct tsr_explained *e, size_t instr, json_t *out)
{
    struct tsr_memory *memory = NULL;
    json_t *alive = NULL, *allocator = NULL;
    TSR_TRY(tsr_explain_memory_at(e, instr + 1, &memory));
    tsr_status status = tsr_explain_alive(memory, e->program, &alive);
    if (status == TSR_OK)
        status = tsr_explain_allocator(memory, e->program->tables, &allocator);
    tsr_memory_destroy(memory);
    json_object_set_new(out, "alive", alive);
    json_object_set_new(out, "allocator", allocator);
    return status;
}

static json_t *known(uint64_t bytes)
{
    return bytes ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *unless_negative(int64_t bytes)
{
    return bytes >= 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* Everything that the card must hold, as in the tables of `compare`. */
static json_t *card_json(const struct tsr_row *row)
{
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:I, s:o, s:o}", "most_reserved_bytes",
        (json_int_t)row->most_reserved, "context_bytes", unless_negative(row->context_bytes),
        "library_bytes", unless_negative(row->library_bytes), "nccl_bytes",
        unless_negative(row->nccl_bytes), "needed_bytes", (json_int_t)row->needed, "usable_bytes",
        known(row->usable_bytes), "fits", row->fits < 0 ? json_null() : json_boolean(row->fits));
}

/* The most that the process of a rank takes on the host. */
static json_t *host_json(const struct tsr_row *row)
{
    return json_pack("{s:I, s:I}", "host_bytes", (json_int_t)row->host_bytes, "pinned_bytes",
                     (json_int_t)row->pinned_bytes);
}

/* The parts of the run that `phases` names. */
static json_t *sections_json(const struct tsr_row *row)
{
    json_t *list = json_array();
    for (int i = 0; i < TSR_N_SECTIONS; i++) {
        const struct tsr_section_peak *s = &row->sections[i];
        if (!(row->show_sections >> i & 1) || !s->there)
            continue;
        json_array_append_new(
            list,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:s}", "section", tsr_words_sections[i],
                      "allocated_bytes", (json_int_t)s->allocated, "reserved_bytes",
                      (json_int_t)s->reserved, "host_bytes", (json_int_t)s->host, "pinned_bytes",
                      (json_int_t)s->pinned, "phase", s->phase, "module", s->module));
    }
    return list;
}

static void add_head(const struct tsr_job *job, json_t *out)
{
    char words[160] = "";
    tsr_strategy_words(job->settings, words, sizeof words);
    json_object_set_new(out, "file", json_string(job->experiment->path));
    json_object_set_new(out, "strategy", json_string(job->strategy->name));
    json_object_set_new(out, "summary", json_string(words));
    json_object_set_new(out, "model", json_string(job->model.name));
    json_object_set_new(out, "cluster", json_string(job->cluster.name));
    json_object_set_new(out, "world", json_integer(job->world));
}

tsr_status tsr_explain(const struct tsr_job *job, const struct tsr_emission *emission,
                       const struct tsr_row *row, json_t *out)
{
    struct tsr_explained e;
    struct peaks peaks = {0};
    TSR_TRY(find_peak(emission, &e, &peaks));
    const struct tsr_memory_peak *peak = &peaks.of[e.iteration];
    add_head(job, out);
    json_object_set_new(out, "peak", peak_json(emission, &e, peak));
    json_object_set_new(out, "card", card_json(row));
    json_object_set_new(out, "host", host_json(row));
    if (row->show_sections)
        json_object_set_new(out, "sections", sections_json(row));
    json_object_set_new(out, "iterations", iterations_json(&e, &peaks));
    TSR_TRY(add_moment(&e, peak->instr, out));
    TSR_TRY(tsr_explain_units(&e, peak->instr, out));
    return tsr_explain_peaks(&e, peak->instr, out);
}
