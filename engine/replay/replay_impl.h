/* replay_impl.h: what replay.c keeps: digests of states between two steps (digest.c, over the walk
 * of graph/walk.h) and steps with their numbers (kept_step.c). Private to the replay of steps.
 */
#ifndef TSR_ENGINE_REPLAY_IMPL_H
#define TSR_ENGINE_REPLAY_IMPL_H

#include "engine/graph/walk.h"
#include "engine/step/step.h"

/* Between steps only. The arrays of *walk are used again if it comes from an earlier walk; begin
 * with {0}. Errors: TSR_ENOMEM. */
tsr_status tsr__walk_state(struct tsr_engine *e, struct tsr_state_walk *walk);

/* ---- kept_step.c ----------------------------------------------------------------------------- */

/* Numbers of live buffers and events, by their numbers in the walk over a state, and the next ones
 * that are given. */
struct tsr__ids {
    size_t n_buffers, n_events, cap_buffers, cap_events;
    uint32_t *buffers, *events;
    uint32_t next_buffer, next_event;
};

/* A step that the executor has had, ready to be handed out again.
 *
 * Invariant: `codes` has one entry per number in the program, in the order of its instructions, an
 * instruction's own number before those of its operands; so whoever renumbers walks both at once.
 */
struct tsr__kept_step {
    struct tsr_program program;
    uint32_t first_buffer, first_event; /* the first numbers that it gave */
    uint32_t n_new_buffers, n_new_events;
    size_t n_codes, cap_codes;
    uint32_t *codes; /* of the numbers in the program, in order */
    /* of what is live after it, by number of the walk */
    size_t n_buffers, n_events;
    uint32_t *buffers, *events; /* codes */
};

/* Where the engine is; `walk` is of now. *ids is used again; begin with {0}. */
tsr_status tsr__ids_of(struct tsr__ids *ids, const struct tsr_state_walk *walk);
void tsr__ids_fini(struct tsr__ids *ids);

/* Runs a step and records it; tsr__keep_step() comes next. */
tsr_status tsr__record_step(struct tsr_engine *e, uint32_t iteration, struct tsr__kept_step *step);
/* Makes codes of the numbers of a step that was recorded between two states. False in *is_kept: it
 * names something that the walk has not met. */
tsr_status tsr__keep_step(struct tsr__kept_step *step, const struct tsr__ids *before,
                          const struct tsr_state_walk *after, bool *is_kept);
/* The program becomes that of a step that begins where `ids` are, and *after what is live then. */
tsr_status tsr__renumber_step(struct tsr__kept_step *step, const struct tsr__ids *ids,
                              uint32_t iteration, struct tsr__ids *after);
/* Runs a step and compares its instructions with the program's. */
tsr_status tsr__compare_step(struct tsr_engine *e, uint32_t iteration,
                             const struct tsr__kept_step *step, bool *is_same);
/* Runs a step whose instructions the executor has had: nobody gets them. */
tsr_status tsr__repeat_step(struct tsr_engine *e, uint32_t iteration);
void tsr__kept_step_fini(struct tsr__kept_step *step);

#endif
