/* memory_figures.c: the allocator's figures of a run, from its instructions. */
#include "experiments/cli/inspect/memory_figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- phases ---------------------------------------------------------------------------------- */

static struct tsr_phase_figures *running_phase(struct tsr_memory_figures *f)
{
    return f->has_phase ? &f->phases[f->n_phases - 1] : NULL;
}

void tsr_memory_figures_end(struct tsr_memory_figures *f)
{
    struct tsr_phase_figures *phase = running_phase(f);
    if (!phase)
        return;
    phase->end_allocated = f->allocated;
    phase->end_requested = f->requested;
    phase->end_reserved = f->reserved;
    phase->retries = tsr_engine_memory(f->engine).n_alloc_retries;
    f->has_phase = false;
}

static tsr_status begin_phase(struct tsr_memory_figures *f, const struct tsr_instr *instr)
{
    struct tsr_phase_figures phase = {.iteration = instr->origin.iteration,
                                      .phase = instr->origin.phase,
                                      .micro = instr->value,
                                      .peak_allocated = f->allocated,
                                      .peak_requested = f->requested,
                                      .peak_reserved = f->reserved};
    if (instr->mark == TSR_MARK_DROPPED)
        f->allocated -= instr->block_bytes;
    if (instr->mark != TSR_MARK_PHASE || instr->origin.phase == TSR_PHASE_INIT)
        return TSR_OK;
    tsr_memory_figures_end(f);
    if (!TSR_PUSH(f->phases, f->n_phases, f->cap_phases, phase))
        return tsr_no_memory(NULL);
    f->has_phase = true;
    return TSR_OK;
}

/* The phase before an instruction counts the level that it left. */
static void raise_phase(struct tsr_memory_figures *f)
{
    struct tsr_phase_figures *phase = running_phase(f);
    if (!phase)
        return;
    phase->peak_allocated = tsr_max_u64(phase->peak_allocated, f->allocated);
    phase->peak_requested = tsr_max_u64(phase->peak_requested, f->requested);
    phase->peak_reserved = tsr_max_u64(phase->peak_reserved, f->reserved);
}

/* ---- instructions ---------------------------------------------------------------------------- */

static struct tsr_held_segment *held(struct tsr_memory_figures *f, uint32_t segment)
{
    for (size_t i = f->n_segments; i-- > 0;)
        if (f->segments[i].segment == segment)
            return &f->segments[i];
    return NULL;
}

/* The first block of a segment tells whether the segment serves small ones. */
static void on_block(struct tsr_memory_figures *f, const struct tsr_instr *instr)
{
    bool alloc = instr->kind == TSR_ALLOC;
    struct tsr_held_segment *segment = alloc ? held(f, instr->segment) : NULL;
    if (alloc || instr->value == 0)
        f->allocated += alloc ? instr->block_bytes : -instr->block_bytes;
    f->requested += alloc ? instr->bytes : -instr->bytes;
    raise_phase(f);
    if (segment && !segment->is_known) {
        segment->is_known = true;
        segment->is_small = instr->bytes <= 1 << 20;
    }
}

static tsr_status on_segment(struct tsr_memory_figures *f, const struct tsr_instr *instr)
{
    bool alloc = instr->kind == TSR_SEGMENT_ALLOC;
    struct tsr_held_segment *segment = held(f, instr->segment);
    struct tsr_held_segment fresh = {.segment = instr->segment, .stream = instr->stream};
    f->reserved += alloc ? instr->bytes : -instr->bytes;
    raise_phase(f);
    if (!segment) {
        if (!TSR_PUSH(f->segments, f->n_segments, f->cap_segments, fresh))
            return tsr_no_memory(NULL);
        segment = &f->segments[f->n_segments - 1];
    }
    segment->bytes += alloc ? instr->bytes : -instr->bytes;
    if (segment->bytes == 0)
        *segment = f->segments[--f->n_segments];
    return TSR_OK;
}

tsr_status tsr_memory_figures_submit(struct tsr_memory_figures *f, const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_MARK:
        return begin_phase(f, instr);
    case TSR_ALLOC:
    case TSR_FREE:
        on_block(f, instr);
        return TSR_OK;
    case TSR_SEGMENT_ALLOC:
    case TSR_SEGMENT_FREE:
        return on_segment(f, instr);
    default:
        return TSR_OK;
    }
}

static tsr_status submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    return tsr_memory_figures_submit((struct tsr_memory_figures *)x, instr);
}

static const struct tsr_executor_ops figures_ops = {.size = sizeof(struct tsr_executor_ops),
                                                    .version = TSR_EXECUTOR_VERSION,
                                                    .name = "memory",
                                                    .submit = submit};

void tsr_memory_figures_init(struct tsr_memory_figures *f)
{
    *f = (struct tsr_memory_figures){.base = {.ops = &figures_ops}};
}

void tsr_memory_figures_fini(struct tsr_memory_figures *f)
{
    free(f->phases);
    free(f->segments);
    tsr_memory_figures_init(f);
}

/* ---- as JSON --------------------------------------------------------------------------------- */

const char *tsr_memory_phase_name(uint32_t n_micro, uint8_t phase, uint32_t micro, char *out,
                                  size_t size)
{
    bool numbered = phase == TSR_PHASE_FORWARD || phase == TSR_PHASE_LOSS ||
                    phase == TSR_PHASE_BACKWARD || phase == TSR_PHASE_METRICS;
    if (!numbered || n_micro == 1)
        return tsr_phase_name(phase);
    snprintf(out, size, "%s%u", tsr_phase_name(phase), micro);
    return out;
}

const char *tsr_memory_stream_name(const struct tsr_engine *engine, uint16_t stream)
{
    const struct tsr_tables *tables = tsr_engine_tables(engine);
    const char *name = stream < tables->n_streams ? tables->streams[stream].name : "";
    return strcmp(name, "copy_in") ? name : "all_gather_copy_in";
}

static json_int_t number(uint64_t value)
{
    return (json_int_t)value;
}

static json_t *phase_json(uint32_t n_micro, const struct tsr_phase_figures *p)
{
    char name[32];
    return json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "iter", p->iteration, "phase",
                     tsr_memory_phase_name(n_micro, p->phase, p->micro, name, sizeof name),
                     "peak_allocated", number(p->peak_allocated), "peak_requested",
                     number(p->peak_requested), "peak_reserved", number(p->peak_reserved),
                     "end_allocated", number(p->end_allocated), "end_requested",
                     number(p->end_requested), "end_reserved", number(p->end_reserved),
                     "num_alloc_retries", number(p->retries));
}

static json_t *iteration_json(const struct tsr_memory_figures *f, int iteration)
{
    uint64_t allocated = 0, requested = 0, reserved = 0;
    for (size_t i = 0; i < f->n_phases; i++) {
        const struct tsr_phase_figures *p = &f->phases[i];
        if (p->iteration != iteration)
            continue;
        allocated = tsr_max_u64(allocated, p->peak_allocated);
        requested = tsr_max_u64(requested, p->peak_requested);
        reserved = tsr_max_u64(reserved, p->peak_reserved);
    }
    return json_pack("{s:i, s:I, s:I, s:I}", "iter", iteration, "peak_allocated", number(allocated),
                     "peak_requested", number(requested), "peak_reserved", number(reserved));
}

/* Segments go by stream, in the order of the streams' handles in PyTorch, then by kind and size. */
static int stream_rank(uint16_t stream, const struct tsr_tables *tables)
{
    static const int ranks[] = {
        [TSR_ROLE_COMPUTE] = 0,    [TSR_ROLE_ALL_REDUCE] = 1,     [TSR_ROLE_COPY_IN] = 2,
        [TSR_ROLE_ALL_GATHER] = 3, [TSR_ROLE_REDUCE_SCATTER] = 4, [TSR_ROLE_USER] = 5,
        [TSR_ROLE_COPY_OUT] = 6};
    return stream < tables->n_streams ? ranks[tables->streams[stream].role] : 7;
}

static bool comes_before(const struct tsr_held_segment *a, const struct tsr_held_segment *b,
                         const struct tsr_tables *tables)
{
    int ra = stream_rank(a->stream, tables), rb = stream_rank(b->stream, tables);
    if (ra != rb)
        return ra < rb;
    if (a->is_small != b->is_small)
        return b->is_small; /* "large" < "small" */
    return a->bytes < b->bytes;
}

static json_t *segments_json(const struct tsr_memory_figures *f)
{
    const struct tsr_tables *tables = tsr_engine_tables(f->engine);
    json_t *list = json_array();
    bool *done = calloc(f->n_segments + 1, sizeof(*done));
    for (size_t n = 0; done && n < f->n_segments; n++) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i < f->n_segments; i++)
            if (!done[i] &&
                (best == SIZE_MAX || comes_before(&f->segments[i], &f->segments[best], tables)))
                best = i;
        const struct tsr_held_segment *s = &f->segments[best];
        done[best] = true;
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I}", "kind", s->is_small ? "small" : "large",
                                        "stream", tsr_memory_stream_name(f->engine, s->stream),
                                        "bytes", number(s->bytes)));
    }
    free(done);
    return list;
}

json_t *tsr_memory_figures_json(const struct tsr_memory_figures *f, uint32_t n_micro,
                                uint64_t iterations)
{
    json_t *phases = json_array(), *rows = json_array();
    for (size_t i = 0; i < f->n_phases; i++)
        json_array_append_new(phases, phase_json(n_micro, &f->phases[i]));
    for (uint64_t i = 0; i < iterations; i++)
        json_array_append_new(rows, iteration_json(f, (int)i));
    return json_pack("{s:o, s:o, s:o}", "phases", phases, "segments_at_end", segments_json(f),
                     "iterations", rows);
}
