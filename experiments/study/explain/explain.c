/* explain.c: finds the rank class and the instant of the peak, which units hold unsharded
 * parameters, and whether checkpointing releases what it should; puts the report together. */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/settings.h"
#include "experiments/study/explain/explain_parts.h"
#include "experiments/study/job/job.h"
#include "experiments/study/job/owner.h"

/* ---- unsharded parameters -------------------------------------------------------------------- */

/* Per module (the last entry: no module) the bytes of its gathered and unsharded parameters. */
struct units {
    size_t n_modules;
    uint64_t *gathered, *unsharded; /* [n_modules + 1] */
    uint32_t *owner_of;             /* [n_buffers]: module of a buffer that counts */
    uint64_t *bytes_of;
    uint8_t *category_of;
    size_t n_buffers, n_units;
    uint64_t total, most; /* bytes now; the most so far, and where */
    size_t most_at, most_units;
};

static bool counts(const struct tsr_instr *alloc)
{
    return alloc->category == TSR_CAT_ALL_GATHER || alloc->category == TSR_CAT_UNSHARDED_PARAM;
}

static void change(struct units *u, uint32_t buffer, bool add)
{
    uint32_t owner = u->owner_of[buffer];
    uint64_t *bytes = u->category_of[buffer] == TSR_CAT_ALL_GATHER ? u->gathered : u->unsharded;
    bool held = u->gathered[owner] + u->unsharded[owner] > 0;
    bytes[owner] += add ? u->bytes_of[buffer] : -u->bytes_of[buffer];
    u->total += add ? u->bytes_of[buffer] : -u->bytes_of[buffer];
    bool holds = u->gathered[owner] + u->unsharded[owner] > 0;
    u->n_units += (size_t)holds - (size_t)held;
}

static void take_alloc(struct units *u, const struct tsr_instr *alloc)
{
    if (!counts(alloc))
        return;
    u->owner_of[alloc->buffer] =
        alloc->origin.module < u->n_modules ? alloc->origin.module : (uint32_t)u->n_modules;
    u->bytes_of[alloc->buffer] = alloc->block_bytes;
    u->category_of[alloc->buffer] = alloc->category;
    change(u, alloc->buffer, true);
}

static tsr_status keep_units(const struct units *u, const struct tsr_program *program,
                             struct tsr_explanation *out)
{
    struct tsr_explain_unsharded *to = &out->unsharded;
    to->at_peak = tsr_arena_alloc(&out->arena, (u->n_units + 1) * sizeof *to->at_peak);
    if (!to->at_peak)
        return tsr_no_memory("units");
    for (size_t i = 0; i <= u->n_modules; i++) {
        if (u->gathered[i] + u->unsharded[i] == 0)
            continue;
        const char *name = i < u->n_modules ? program->tables->modules[i] : "(no module)";
        struct tsr_explain_unit unit = {.name =
                                            tsr_arena_strdup(&out->arena, *name ? name : "(root)"),
                                        .unsharded = u->unsharded[i],
                                        .gathered = u->gathered[i]};
        if (!unit.name)
            return tsr_no_memory("units");
        to->at_peak[to->n++] = unit;
    }
    return TSR_OK;
}

static tsr_status units_init(struct units *u, const struct tsr_explained *e)
{
    uint32_t last = 0;
    *u = (struct units){.n_modules = e->program->tables->n_modules};
    for (uint32_t k = 0; k <= e->iteration; k++) {
        const struct tsr_program *program = e->class->programs[k];
        for (size_t i = 0; i < program->n_instrs; i++)
            if (program->instrs[i].kind == TSR_ALLOC && program->instrs[i].buffer > last)
                last = program->instrs[i].buffer;
    }
    u->n_buffers = (size_t)last + 1;
    u->gathered = calloc(u->n_modules + 1, sizeof *u->gathered);
    u->unsharded = calloc(u->n_modules + 1, sizeof *u->unsharded);
    u->owner_of = calloc(u->n_buffers, sizeof *u->owner_of);
    u->bytes_of = calloc(u->n_buffers, sizeof *u->bytes_of);
    u->category_of = calloc(u->n_buffers, sizeof *u->category_of);
    if (u->gathered && u->unsharded && u->owner_of && u->bytes_of && u->category_of)
        return TSR_OK;
    return tsr_no_memory("units");
}

static void units_fini(struct units *u)
{
    free(u->gathered);
    free(u->unsharded);
    free(u->owner_of);
    free(u->bytes_of);
    free(u->category_of);
}

/* What lives at the start, then every change; the rows of the peak on the way. */
static tsr_status walk_units(struct units *u, const struct tsr_program *program,
                             const struct tsr_instr *const *live, size_t n_live, size_t peak,
                             struct tsr_explanation *out)
{
    for (size_t i = 0; i < n_live; i++)
        take_alloc(u, live[i]);
    u->most = u->total;
    u->most_units = u->n_units;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->kind == TSR_ALLOC)
            take_alloc(u, instr);
        else if (instr->kind == TSR_FREE && u->bytes_of[instr->buffer])
            change(u, instr->buffer, false);
        if (u->total > u->most) {
            u->most = u->total;
            u->most_at = i;
            u->most_units = u->n_units;
        }
        if (i == peak)
            TSR_TRY(keep_units(u, program, out));
    }
    out->unsharded.most_bytes = u->most;
    out->unsharded.most_units = u->most_units;
    return tsr_explain_place_of(program, u->most_at, &out->arena, &out->unsharded.most);
}

static tsr_status add_unsharded(const struct tsr_explained *e, size_t peak,
                                struct tsr_explanation *out)
{
    struct tsr_memory *memory = NULL;
    const struct tsr_instr **live = NULL;
    size_t n_live = 0;
    struct units u = {0};
    TSR_TRY(tsr_explain_memory_at(e, 0, &memory));
    tsr_status status;
    TSR_GOTO(done, tsr_memory_live(memory, &live, &n_live));
    TSR_GOTO(done, units_init(&u, e));
    TSR_GOTO(done, walk_units(&u, e->program, live, n_live, peak, out));
done:
    tsr_memory_destroy(memory);
    free(live);
    units_fini(&u);
    return status;
}

/* ---- checkpointing --------------------------------------------------------------------------- */

struct block {
    const char *name; /* the FQN of a module in it, of which `length` bytes name the block */
    size_t length;
    bool runs, recomputed;
    uint64_t kept; /* activations alive at the end of forward */
};

struct blocks {
    struct block *items;
    size_t n;
    size_t *of_module; /* [n_modules]; SIZE_MAX: in no block */
};

static tsr_status blocks_init(struct blocks *b, const struct tsr_tables *tables)
{
    *b = (struct blocks){.items = calloc(tables->n_modules + 1, sizeof(struct block)),
                         .of_module = calloc(tables->n_modules + 1, sizeof(size_t))};
    if (!b->items || !b->of_module)
        return tsr_no_memory("blocks");
    for (uint32_t m = 0; m < tables->n_modules; m++) {
        const char *name = tables->modules[m];
        size_t length = tsr_owner_block_length(name), i = 0;
        b->of_module[m] = SIZE_MAX;
        if (!length)
            continue;
        while (i < b->n &&
               (b->items[i].length != length || strncmp(b->items[i].name, name, length) != 0))
            i++;
        if (i == b->n)
            b->items[b->n++] = (struct block){.name = name, .length = length};
        b->of_module[m] = i;
    }
    return TSR_OK;
}

static void blocks_fini(struct blocks *b)
{
    free(b->items);
    free(b->of_module);
}

static struct block *block_of(const struct blocks *b, const struct tsr_tables *tables,
                              const struct tsr_origin *origin)
{
    if (origin->module >= tables->n_modules || b->of_module[origin->module] == SIZE_MAX)
        return NULL;
    return &b->items[b->of_module[origin->module]];
}

/* [end of the first micro-batch's forward, end of the last backward). */
static void find_ends(const struct tsr_program *program, size_t *forward, size_t *backward)
{
    *forward = *backward = 0;
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_origin *origin = &program->instrs[i].origin;
        if (origin->phase == TSR_PHASE_FORWARD && origin->micro == 0)
            *forward = i + 1;
        if (origin->phase == TSR_PHASE_BACKWARD)
            *backward = i + 1;
    }
}

static void mark_blocks(const struct blocks *b, const struct tsr_program *program)
{
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        struct block *block = block_of(b, program->tables, &instr->origin);
        if (!block)
            continue;
        block->runs |= instr->origin.phase == TSR_PHASE_FORWARD;
        block->recomputed |= instr->kind == TSR_OP && instr->origin.recompute;
    }
}

static void add_kept(const struct blocks *b, bool recomputed, const char *pattern,
                     struct tsr_explain_checkpointing *out)
{
    struct tsr_explain_kept kept = {
        .owner = pattern, .recomputed = recomputed, .smallest = UINT64_MAX};
    for (size_t i = 0; i < b->n; i++) {
        const struct block *block = &b->items[i];
        if (!block->runs || block->recomputed != recomputed)
            continue;
        kept.n_blocks++;
        kept.bytes += block->kept;
        kept.smallest = tsr_min_u64(kept.smallest, block->kept);
        kept.largest = tsr_max_u64(kept.largest, block->kept);
    }
    if (kept.n_blocks)
        out->kept[out->n_kept++] = kept;
}

static tsr_status sum_blocks(const struct blocks *b, struct tsr_explanation *to)
{
    struct tsr_explain_checkpointing *out = &to->checkpointing;
    char pattern[256] = "";
    for (size_t i = 0; i < b->n; i++) {
        out->n_blocks += b->items[i].runs;
        out->n_recomputed += b->items[i].runs && b->items[i].recomputed;
        if (b->items[i].runs && !*pattern)
            tsr_owner_block_pattern(b->items[i].name, pattern, sizeof pattern);
    }
    const char *owner = tsr_arena_strdup(&to->arena, pattern);
    if (!owner)
        return tsr_no_memory("blocks");
    add_kept(b, true, owner, out);
    add_kept(b, false, owner, out);
    return TSR_OK;
}

static void take_kept(const struct blocks *b, const struct tsr_explained *e,
                      const struct tsr_instr *const *live, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct block *block = block_of(b, e->program->tables, &live[i]->origin);
        if (block && live[i]->category == TSR_CAT_ACTIVATION)
            block->kept += live[i]->block_bytes;
    }
}

static tsr_status add_checkpointing(const struct tsr_explained *e, struct tsr_explanation *out)
{
    struct tsr_memory *memory = NULL;
    const struct tsr_instr **live = NULL;
    struct blocks b;
    size_t forward, backward, n = 0;
    tsr_status status = TSR_OK;
    find_ends(e->program, &forward, &backward);
    TSR_GOTO(done, blocks_init(&b, e->program->tables));
    TSR_GOTO(done, tsr_explain_memory_at(e, forward, &memory));
    TSR_GOTO(done, tsr_memory_live(memory, &live, &n));
    out->checkpointing.after_forward = tsr_memory_level_of(memory).by_category[TSR_CAT_ACTIVATION];
    mark_blocks(&b, e->program);
    take_kept(&b, e, live, n);
    TSR_GOTO(done, tsr_memory_replay_part(memory, e->program, forward, backward));
    out->checkpointing.after_backward = tsr_memory_level_of(memory).by_category[TSR_CAT_ACTIVATION];
    TSR_GOTO(done, sum_blocks(&b, out));
done:
    free(live);
    tsr_memory_destroy(memory);
    blocks_fini(&b);
    return status;
}

/* Only a step has a backward: of a peak outside of one, the steady step tells. */
static struct tsr_explained step_of(const struct tsr_explained *e)
{
    struct tsr_explained step = *e;
    if (e->program->iteration < 0) {
        step.iteration = e->emission->steady;
        step.program = e->class->programs[step.iteration];
    }
    return step;
}

/* `unsharded` and `checkpointing`. */
static tsr_status tsr_explain_units(const struct tsr_explained *e, size_t peak,
                                    struct tsr_explanation *out)
{
    struct tsr_explained step = step_of(e);
    TSR_TRY(add_unsharded(e, peak, out));
    return add_checkpointing(&step, out);
}

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
    tsr_status status;
    TSR_TRY(tsr_memory_create(out));
    for (uint32_t i = 0; i < e->iteration; i++)
        TSR_GOTO(failed, tsr_memory_replay_part(*out, e->class->programs[i], 0, SIZE_MAX));
    TSR_GOTO(failed, tsr_memory_replay_part(*out, e->program, 0, n_instrs));
    return TSR_OK;
failed:
    tsr_memory_destroy(*out);
    *out = NULL;
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
    TSR_TRY(tsr_explain_host_of(emission, out));
    return tsr_explain_peaks(&e, peak, out);
}

void tsr_explanation_fini(struct tsr_explanation *explanation)
{
    tsr_arena_fini(&explanation->arena);
    memset(explanation, 0, sizeof *explanation);
}
