/* host_memory.c: host buffers at emission (the pinned cache) and in a replay (host_memory.h). */
#include "engine/graph/host_memory.h"

#include "engine/graph/walk.h"

/* A page-locked block of the cache; lives as long as the engine. */
struct tsr_pinned {
    uint32_t log2; /* 2^log2 bytes */
    uint32_t id;
    uint64_t last_use; /* number of the latest instruction that names it */
    struct tsr_pinned *next;
};

/* ---- emission -------------------------------------------------------------------------------- */

static uint32_t log2_ceil(uint64_t bytes)
{
    uint32_t log2 = 0;
    while (log2 < 63 && UINT64_C(1) << log2 < bytes)
        log2++;
    return log2;
}

void tsr__pinned_use(struct tsr_engine *e, const struct tsr_storage *s)
{
    if (s->pinned)
        s->pinned->last_use = ++e->emit.pinned.uses;
}

static void hand_back(struct tsr_engine *e, struct tsr_pinned *block)
{
    struct tsr_pinned **list = &e->emit.pinned.free[block->log2];
    block->next = *list;
    *list = block;
}

void tsr__pinned_settle(struct tsr_engine *e)
{
    e->emit.pinned.settled = e->emit.pinned.uses;
    while (e->emit.pinned.pending) {
        struct tsr_pinned *block = e->emit.pinned.pending;
        e->emit.pinned.pending = block->next;
        hand_back(e, block);
    }
}

static struct tsr_pinned *take_pinned(struct tsr_engine *e, uint64_t bytes)
{
    uint32_t log2 = log2_ceil(bytes);
    struct tsr_pinned *block = e->emit.pinned.free[log2];
    if (block) {
        e->emit.pinned.free[log2] = block->next;
        return block;
    }
    block = tsr_arena_alloc(&e->arena, sizeof *block);
    if (!block) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return NULL;
    }
    block->log2 = log2;
    block->id = ++e->emit.pinned.n_blocks;
    struct tsr_instr instr = {.kind = TSR_PIN,
                              .comm = UINT16_MAX,
                              .space = TSR_SPACE_PINNED,
                              .segment = block->id,
                              .bytes = bytes,
                              .block_bytes = UINT64_C(1) << log2};
    tsr__emit(e, &instr);
    return block;
}

static void emit_buffer(struct tsr_engine *e, uint8_t kind, const struct tsr_storage *s)
{
    struct tsr_instr instr = {.kind = kind,
                              .comm = UINT16_MAX,
                              .space = s->space,
                              .category = s->category,
                              .buffer = s->buffer,
                              .segment = s->pinned ? s->pinned->id : 0,
                              .bytes = s->bytes,
                              .block_bytes = s->pinned ? UINT64_C(1) << s->pinned->log2 : s->bytes};
    tsr__emit(e, &instr);
}

void tsr__host_alloc(struct tsr_engine *e, struct tsr_storage *s)
{
    TSR_CHECK(e->emit.n_operands == 0 && e->emit.n_kernel_args == 0);
    if (!tsr__ok(e) || s->bytes == 0)
        return;
    if (s->space == TSR_SPACE_PINNED) {
        s->pinned = take_pinned(e, s->bytes);
        if (!s->pinned)
            return;
    }
    s->counted = true;
    emit_buffer(e, TSR_HOST_ALLOC, s);
}

void tsr__host_free(struct tsr_engine *e, struct tsr_storage *s)
{
    if (!s->counted)
        return;
    s->counted = false;
    emit_buffer(e, TSR_HOST_FREE, s);
    if (!s->pinned)
        return;
    if (s->pinned->last_use <= e->emit.pinned.settled) {
        hand_back(e, s->pinned);
    } else {
        s->pinned->next = e->emit.pinned.pending;
        e->emit.pinned.pending = s->pinned;
    }
    s->pinned = NULL;
}

/* ---- digest ---------------------------------------------------------------------------------- */

static uint32_t walk_list(struct tsr_state_walk *w, const struct tsr_pinned *first)
{
    uint32_t n = 0;
    for (const struct tsr_pinned *block = first; block; block = block->next) {
        tsr__walk_u64(w, block->id);
        n++;
    }
    tsr__walk_u64(w, n);
    return n;
}

/* How far uses go beyond what is settled matters for blocks in use only: whether it does. */
void tsr__walk_pinned(struct tsr_state_walk *w)
{
    const struct tsr_engine *e = w->engine;
    uint32_t n = walk_list(w, e->emit.pinned.pending);
    for (size_t i = 0; i < sizeof e->emit.pinned.free / sizeof *e->emit.pinned.free; i++)
        n += walk_list(w, e->emit.pinned.free[i]);
    tsr__walk_u64(w, e->emit.pinned.n_blocks);
    tsr__walk_unknown(w, n + w->n_pinned != e->emit.pinned.n_blocks); /* one was not met */
}

void tsr__walk_pinned_block(struct tsr_state_walk *w, const struct tsr_pinned *block)
{
    w->n_pinned++;
    tsr__walk_u64(w, block->id);
    tsr__walk_u64(w, block->last_use <= w->engine->emit.pinned.settled);
}

/* ---- replay ---------------------------------------------------------------------------------- */

tsr_status tsr_host_apply(struct tsr_host_level *level, const struct tsr_instr *instr)
{
    uint64_t *bytes = instr->space == TSR_SPACE_PINNED ? &level->pinned : &level->host;
    if (instr->kind == TSR_PIN)
        level->held += instr->block_bytes;
    if (instr->kind == TSR_HOST_ALLOC)
        *bytes += instr->block_bytes;
    if (instr->kind != TSR_HOST_FREE)
        return TSR_OK;
    if (instr->block_bytes > *bytes)
        return tsr_fail(TSR_EASSERT, "%llu bytes of host memory are freed, %llu are there",
                        (unsigned long long)instr->block_bytes, (unsigned long long)*bytes);
    *bytes -= instr->block_bytes;
    return TSR_OK;
}

static uint64_t process_bytes(const struct tsr_host_level *level)
{
    return level->host + level->held;
}

static void keep_most(struct tsr_host_level *most, const struct tsr_host_level *level)
{
    most->host = tsr_max_u64(most->host, level->host);
    most->pinned = tsr_max_u64(most->pinned, level->pinned);
    most->held = tsr_max_u64(most->held, level->held);
}

tsr_status tsr_host_replay(struct tsr_host_level *level, const struct tsr_program *program,
                           struct tsr_host_peak *peak)
{
    *peak = (struct tsr_host_peak){.most = *level, .process = process_bytes(level)};
    for (size_t i = 0; i < program->n_instrs; i++) {
        TSR_TRY(tsr_host_apply(level, &program->instrs[i]));
        keep_most(&peak->most, level);
        if (process_bytes(level) > peak->process) {
            peak->process = process_bytes(level);
            peak->instr = i;
        }
    }
    peak->end = *level;
    return TSR_OK;
}
