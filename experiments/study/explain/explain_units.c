/* explain_units.c: which units hold unsharded parameters, and whether checkpointing releases what
 * it should: what each block keeps from forward, and what is left of it after backward.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/explain/explain.h"
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

static json_t *unit_rows(const struct units *u, const struct tsr_program *program)
{
    json_t *list = json_array();
    for (size_t i = 0; i <= u->n_modules; i++) {
        if (u->gathered[i] + u->unsharded[i] == 0)
            continue;
        const char *name = i < u->n_modules ? program->tables->modules[i] : "(no module)";
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "unit", *name ? name : "(root)",
                                              "unsharded_param_bytes", (json_int_t)u->unsharded[i],
                                              "all_gather_bytes", (json_int_t)u->gathered[i]));
    }
    return list;
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
    return tsr_fail(TSR_ENOMEM, "out of memory: units");
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
static void walk_units(struct units *u, const struct tsr_program *program,
                       const struct tsr_instr *const *live, size_t n_live, size_t peak,
                       json_t **at_peak)
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
            *at_peak = unit_rows(u, program);
    }
}

static tsr_status add_unsharded(const struct tsr_explained *e, size_t peak, json_t *out)
{
    struct tsr_memory *memory = NULL;
    const struct tsr_instr **live = NULL;
    size_t n_live = 0;
    struct units u = {0};
    json_t *rows = NULL;
    TSR_TRY(tsr_explain_memory_at(e, 0, &memory));
    tsr_status status = tsr_memory_live(memory, &live, &n_live);
    tsr_memory_destroy(memory);
    if (status == TSR_OK)
        status = units_init(&u, e);
    if (status == TSR_OK) {
        walk_units(&u, e->program, live, n_live, peak, &rows);
        json_t *most = tsr_explain_place(e->program, u.most_at);
        json_object_set_new(most, "bytes", json_integer((json_int_t)u.most));
        json_object_set_new(most, "units", json_integer((json_int_t)u.most_units));
        json_object_set_new(out, "unsharded",
                            json_pack("{s:o, s:o}", "at_peak", rows, "most", most));
    }
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
        return tsr_fail(TSR_ENOMEM, "out of memory: blocks");
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

static json_t *kept_row(const struct blocks *b, bool recomputed, const char *pattern)
{
    uint64_t bytes = 0, least = UINT64_MAX, most = 0;
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct block *block = &b->items[i];
        if (!block->runs || block->recomputed != recomputed)
            continue;
        n++;
        bytes += block->kept;
        least = tsr_min_u64(least, block->kept);
        most = tsr_max_u64(most, block->kept);
    }
    if (n == 0)
        return NULL;
    return json_pack("{s:s, s:b, s:I, s:I, s:I, s:I}", "owner", pattern, "recomputed", recomputed,
                     "blocks", (json_int_t)n, "bytes", (json_int_t)bytes, "smallest_block_bytes",
                     (json_int_t)least, "largest_block_bytes", (json_int_t)most);
}

static void put_checkpointing(const struct blocks *b, uint64_t forward, uint64_t backward,
                              json_t *out)
{
    json_t *rows = json_array();
    size_t n = 0, n_recomputed = 0;
    char pattern[256] = "";
    for (size_t i = 0; i < b->n; i++) {
        n += b->items[i].runs;
        n_recomputed += b->items[i].runs && b->items[i].recomputed;
        if (b->items[i].runs && !*pattern)
            tsr_owner_block_pattern(b->items[i].name, pattern, sizeof pattern);
    }
    for (int recomputed = 1; recomputed >= 0; recomputed--) {
        json_t *row = kept_row(b, recomputed, pattern);
        if (row)
            json_array_append_new(rows, row);
    }
    json_object_set_new(out, "checkpointing",
                        json_pack("{s:I, s:I, s:o, s:I, s:I}", "blocks", (json_int_t)n,
                                  "recomputed_blocks", (json_int_t)n_recomputed, "kept", rows,
                                  "activation_bytes_after_forward", (json_int_t)forward,
                                  "activation_bytes_after_backward", (json_int_t)backward));
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

static tsr_status add_checkpointing(const struct tsr_explained *e, json_t *out)
{
    struct tsr_memory *memory = NULL;
    const struct tsr_instr **live = NULL;
    struct blocks b;
    size_t forward, backward, n = 0;
    uint64_t after_forward = 0;
    find_ends(e->program, &forward, &backward);
    tsr_status status = blocks_init(&b, e->program->tables);
    if (status == TSR_OK)
        status = tsr_explain_memory_at(e, forward, &memory);
    if (status == TSR_OK) {
        after_forward = tsr_memory_level_of(memory).by_category[TSR_CAT_ACTIVATION];
        status = tsr_memory_live(memory, &live, &n);
    }
    if (status == TSR_OK) {
        mark_blocks(&b, e->program);
        take_kept(&b, e, live, n);
        status = tsr_memory_replay_part(memory, e->program, forward, backward);
    }
    if (status == TSR_OK) {
        uint64_t left = tsr_memory_level_of(memory).by_category[TSR_CAT_ACTIVATION];
        put_checkpointing(&b, after_forward, left, out);
    }
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

tsr_status tsr_explain_units(const struct tsr_explained *e, size_t peak, json_t *out)
{
    struct tsr_explained step = step_of(e);
    TSR_TRY(add_unsharded(e, peak, out));
    return add_checkpointing(&step, out);
}
