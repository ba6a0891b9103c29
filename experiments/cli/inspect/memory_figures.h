/* memory_figures.h: an executor that keeps the allocator's figures of a run, phase by phase: what
 * torch.cuda.memory_stats() says at the same places.
 *
 * Everything is derived from the instructions as they come; nothing runs.
 */
#ifndef TSR_CLI_MEMORY_FIGURES_H
#define TSR_CLI_MEMORY_FIGURES_H

#include <jansson.h>

#include "engine/tessera.h"

/* What the device allocator held: the largest and the last values of a phase, in bytes. */
struct tsr_phase_figures {
    int iteration;
    uint8_t phase;
    uint32_t micro;
    uint64_t peak_allocated, peak_requested, peak_reserved;
    uint64_t end_allocated, end_requested, end_reserved, retries;
};

/* A segment that the allocator has taken from the device. */
struct tsr_held_segment {
    uint32_t segment;
    uint16_t stream;
    bool is_small, is_known; /* is_known: something was allocated in it */
    uint64_t bytes;
};

/* The executor. It owns its lists; `engine` is borrowed and set before the first instruction. */
struct tsr_memory_figures {
    struct tsr_executor base;
    const struct tsr_engine *engine;
    struct tsr_phase_figures *phases;
    size_t n_phases, cap_phases;
    struct tsr_held_segment *segments; /* held now */
    size_t n_segments, cap_segments;
    bool has_phase; /* the last of `phases` has not ended */
    uint64_t allocated, requested, reserved;
};

void tsr_memory_figures_init(struct tsr_memory_figures *figures);
/* Takes one instruction. An executor that keeps more than this one calls it first. Errors:
 * TSR_ENOMEM. */
tsr_status tsr_memory_figures_submit(struct tsr_memory_figures *figures,
                                     const struct tsr_instr *instr) TSR_MUST_USE;
/* Ends the last phase. */
void tsr_memory_figures_end(struct tsr_memory_figures *figures);
void tsr_memory_figures_fini(struct tsr_memory_figures *figures);

/* ---- as JSON --------------------------------------------------------------------------------- */

/* The object "allocator" of the recordings (tests/golden-memory/README.md) for the first
 * `iterations` iterations of `n_micro` micro-batches: phases, segments at the end, iterations. A
 * new reference; NULL when out of memory. */
json_t *tsr_memory_figures_json(const struct tsr_memory_figures *figures, uint32_t n_micro,
                                uint64_t iterations);
/* The name of a phase; where micro-batches repeat it and there are several, it ends in the number
 * of one. Returns a constant text or `out`. */
const char *tsr_memory_phase_name(uint32_t n_micro, uint8_t phase, uint32_t micro, char *out,
                                  size_t size);
/* The name that recordings give to a stream of the engine. */
const char *tsr_memory_stream_name(const struct tsr_engine *engine, uint16_t stream);

#endif
