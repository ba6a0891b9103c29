/* memory.h: the memory of a rank, replayed from its program in host issue order.
 *
 * Peaks are counted in issue order, which does not depend on time: it is what PyTorch's
 * max_memory_allocated() reports. Bytes are block bytes (what the allocator took) unless said.
 */
#ifndef TSR_ENGINE_MEMORY_H
#define TSR_ENGINE_MEMORY_H

#include "engine/program/program.h"

/* Carries the live buffers from one iteration to the next. */
struct tsr_memory;
/* Errors: TSR_ENOMEM. */
tsr_status tsr_memory_create(struct tsr_memory **out) TSR_MUST_USE;
void tsr_memory_destroy(struct tsr_memory *memory); /* NULL is fine */

struct tsr_memory_sample {
    size_t instr;       /* index in the program: state after this ALLOC or FREE */
    uint64_t total;     /* sum of by_category */
    uint64_t reserved;  /* device allocations held */
    uint64_t requested; /* what was asked for; total minus this was lost to rounding */
    uint64_t by_category[TSR_N_CATEGORIES];
};
typedef void (*tsr_memory_fn)(void *user, const struct tsr_memory_sample *sample);

struct tsr_memory_peak {
    uint64_t allocated, reserved; /* maxima over the iteration; the level at the start counts */
    uint64_t by_category[TSR_N_CATEGORIES]; /* at the first moment of the allocated maximum */
    size_t instr;                           /* of that moment */
    struct tsr_origin origin;               /* of the allocation that made it */
    uint64_t end_allocated;                 /* at the end of the iteration */
    uint64_t requested;                     /* most that was asked for at a time */
};
/* Replays one iteration after the ones replayed before; on_sample may be NULL. Errors: TSR_EASSERT
 * if a buffer is freed twice or without having been allocated; TSR_ENOMEM. */
tsr_status tsr_memory_replay(struct tsr_memory *memory, const struct tsr_program *program,
                             tsr_memory_fn on_sample, void *user,
                             struct tsr_memory_peak *peak) TSR_MUST_USE;

/* ---- beside the program -----------------------------------------------------------------------
 *
 * `tessera run --on cuda` keeps a workspace for cuBLASLt and cuDNN on each stream that computes.
 * The program has PyTorch's own workspaces, which are blocks of its allocator; these come in
 * addition. */

enum { TSR_WORKSPACE_STREAMS = 64 };
/* cuBLASLt's advice for Hopper; every stream with a product or an attention has as much. */
#define TSR_WORKSPACE_BYTES (UINT64_C(32) << 20)

/* Returns whether the operation calls one of them, as products and attention do; false for NULL. */
bool tsr_work_has_workspace(const struct tsr_work *work);

/* Bytes that the libraries need on the instruction's stream: TSR_WORKSPACE_BYTES, or what cuDNN's
 * attention backward asks for if that is more: with B sequences, H heads of size D, S queries and K
 * keys 4 B H S D (sums of the queries' gradient in f32), or 2 B H S K where the run is
 * deterministic. These are what its engines for Hopper have been read to need, and were seen on no
 * GPU yet. 0: the instruction calls no library. */
uint64_t tsr_workspace_of(const struct tsr_instr *instr, bool deterministic);

/* The workspaces that the streams of a rank keep after some instructions. Begin with {0}. */
struct tsr_workspaces {
    uint64_t stream[TSR_WORKSPACE_STREAMS]; /* bytes: the most of any instruction */
    uint64_t bytes;                         /* their sum */
};
/* Counts an instruction; nothing for a stream beyond the last one. */
void tsr_workspaces_take(struct tsr_workspaces *w, const struct tsr_instr *instr,
                         bool deterministic);

/* ---- what is alive at an instruction ---------------------------------------------------------
 * Stop with tsr_memory_replay_part(), then look. The parts of a program in order are together what
 * tsr_memory_replay() does. */

/* Replays the instructions from (included) to `to` (not included; at most program->n_instrs). */
tsr_status tsr_memory_replay_part(struct tsr_memory *memory, const struct tsr_program *program,
                                  size_t from, size_t to) TSR_MUST_USE;

struct tsr_memory_level {
    uint64_t total, reserved, requested; /* bytes, as in a sample */
    uint64_t by_category[TSR_N_CATEGORIES];
    size_t n_live;
};
/* After what was replayed so far. */
struct tsr_memory_level tsr_memory_level_of(const struct tsr_memory *memory);

/* The ALLOC of every live buffer, in order of buffer ids, which is the order of allocation: owner
 * (origin), requested and block bytes, stream, segment. *out is the caller's to free(); what it
 * points to belongs to the programs that were replayed, which must still be there. Errors:
 * TSR_ENOMEM. */
tsr_status tsr_memory_live(const struct tsr_memory *memory, const struct tsr_instr ***out,
                           size_t *n) TSR_MUST_USE;

/* A device allocation. used == 0: all of it is cached and empty_cache() would give it back;
 * otherwise bytes - used lie free between live blocks (PyTorch: inactive split). */
struct tsr_memory_segment {
    uint32_t segment;
    uint16_t stream; /* of the pool */
    uint64_t bytes;  /* with expandable segments: those that are mapped */
    uint64_t used;   /* block bytes of its live buffers */
};
/* In order of segment numbers; *out is the caller's to free(). Errors: TSR_ENOMEM. */
tsr_status tsr_memory_segments(const struct tsr_memory *memory, struct tsr_memory_segment **out,
                               size_t *n) TSR_MUST_USE;

#endif
