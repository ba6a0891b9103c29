/* explain_host.c: what the fullest rank holds on its host at its peak, by category and owner. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/host_memory.h"
#include "experiments/study/explain/explain_parts.h"

/* Live host buffers by their number. */
struct buffers {
    const struct tsr_instr **of;
    size_t cap;
};

static tsr_status keep(struct buffers *b, const struct tsr_instr *instr)
{
    bool is_alloc = instr->kind == TSR_HOST_ALLOC;
    if (!is_alloc && instr->kind != TSR_HOST_FREE)
        return TSR_OK;
    if (instr->buffer >= b->cap) {
        size_t cap = 2 * ((size_t)instr->buffer + 64);
        const struct tsr_instr **grown = realloc(b->of, cap * sizeof *grown);
        if (!grown)
            return tsr_no_memory("buffers of the host");
        memset(grown + b->cap, 0, (cap - b->cap) * sizeof *grown);
        b->of = grown;
        b->cap = cap;
    }
    b->of[instr->buffer] = is_alloc ? instr : NULL;
    return TSR_OK;
}

/* Moves the live ones to the front; returns how many. */
static size_t gather(struct buffers *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->cap; i++)
        if (b->of[i])
            b->of[n++] = b->of[i];
    return n;
}

/* The level before program k of a class. */
static tsr_status level_before(const struct tsr_emitted_class *class, uint32_t k,
                               struct tsr_host_level *level)
{
    struct tsr_host_peak peak;
    *level = (struct tsr_host_level){0};
    for (uint32_t i = 0; i < k; i++)
        TSR_TRY(tsr_host_replay(level, class->programs[i], &peak));
    return TSR_OK;
}

/* Without a cluster no node was looked for: the fullest program of rank 0. */
static tsr_status find_program(const struct tsr_emission *emission, uint32_t *k)
{
    struct tsr_host_level level = {0};
    uint64_t most = 0;
    for (uint32_t i = 0; i < emission->n_iterations; i++) {
        struct tsr_host_peak peak;
        TSR_TRY(tsr_host_replay(&level, emission->classes[0].programs[i], &peak));
        if (peak.process <= most)
            continue;
        most = peak.process;
        *k = i;
    }
    return TSR_OK;
}

static tsr_status fill(const struct tsr_emitted_class *class, uint32_t k, struct buffers *b,
                       struct tsr_explanation *out)
{
    const struct tsr_program *program = class->programs[k];
    struct tsr_host_level level, at;
    struct tsr_host_peak peak;
    TSR_TRY(level_before(class, k, &level));
    at = level;
    TSR_TRY(tsr_host_replay(&at, program, &peak));
    for (uint32_t i = 0; i < k; i++)
        for (size_t j = 0; j < class->programs[i]->n_instrs; j++)
            TSR_TRY(keep(b, &class->programs[i]->instrs[j]));
    for (size_t j = 0; j <= peak.instr && j < program->n_instrs; j++) {
        TSR_TRY(tsr_host_apply(&level, &program->instrs[j]));
        TSR_TRY(keep(b, &program->instrs[j]));
    }
    out->host.cached = level.held - level.pinned;
    TSR_TRY(tsr_explain_place_of(program, peak.instr, &out->arena, &out->host.place));
    return tsr_explain_alive_of(b->of, gather(b), level.host + level.pinned, program, &out->arena,
                                &out->host.alive);
}

tsr_status tsr_explain_host_of(const struct tsr_emission *emission, struct tsr_explanation *out)
{
    const struct tsr_host_fit *node = &out->row.node_host;
    struct buffers buffers = {0};
    uint32_t k = node->program, class = 0;
    if (node->ranks)
        class = emission->class_of[node->rank];
    else
        TSR_TRY(find_program(emission, &k));
    out->host.rank = node->rank;
    tsr_status status = fill(&emission->classes[class], k, &buffers, out);
    free(buffers.of);
    return status;
}
