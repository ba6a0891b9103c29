/* replay_impl.h: what replay.c keeps: digests of states between two steps (digest.c, over the walk
 * of graph/walk.h) and steps with their numbers (kept_step.c). Private to the replay of steps.
 */
#ifndef TSR_ENGINE_REPLAY_IMPL_H
#define TSR_ENGINE_REPLAY_IMPL_H

#include "engine/graph/walk.h"
#include "engine/replay/replay.h"
#include "engine/step/step.h"

/* Between steps only. walk->digest is 0 if the state cannot be told (replay.h). Equal digests of
 * one engine: tsr_step_run() emits programs with equal hashes and equal offsets, and leaves states
 * with equal digests. The arrays of *walk are used again if it comes from an earlier walk; begin
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

/* ---- replay.c -------------------------------------------------------------------------------- */

enum { TSR__KEPT_STEPS = 12, TSR__MOST_AHEAD = TSR__KEPT_STEPS }; /* states that are kept */

/* What is known of the state with this digest.
 *
 * Invariant: `step` and `next` hold while it is RECORDED or PROVEN. */
struct tsr__step_entry {
    uint64_t digest; /* 0: free */
    uint64_t next;   /* digest of the state after the step */
    uint64_t last_use;
    enum { TSR__SEEN, TSR__RECORDED, TSR__PROVEN, TSR__REFUSED } what;
    struct tsr__kept_step step;
};

/* Invariant: `digest` and `ids` are of the state that the next step begins in, which the engine is
 * itself in while `n_ahead` is 0. Otherwise it is where `real` says, and has the steps `ahead` to
 * make up for. */
struct tsr_step_cache {
    struct tsr_engine *engine;
    struct tsr_state_walk walk; /* of the engine, as it is */
    struct tsr__ids ids, after; /* of the state that the next step begins in; scratch */
    uint64_t digest;            /* of it */
    uint32_t n_ahead, ahead[TSR__MOST_AHEAD]; /* iterations that the engine has not made */
    uint64_t real;                            /* its digest before them */
    struct tsr__step_entry entries[TSR__KEPT_STEPS];
    struct {
        uint64_t emitted, replayed; /* steps */
        uint64_t refused;           /* programs that did not come out the same: never replayed */
    } stats;
    uint64_t n_steps;
};

#endif
