/* snapshot_places.h: where in a step an event of a memory snapshot happened, and what it is, as far
 * as its stack and the annotations of PyTorch around it say.
 */
#ifndef TSR_STUDY_SNAPSHOT_PLACES_H
#define TSR_STUDY_SNAPSHOT_PLACES_H

#include "experiments/study/diff/diff.h"
#include "experiments/study/snapshot/unpickle.h"

/* Walks along the events in the order of time. Texts live as long as the pickle, or `arena`. */
struct tsr_snapshot_walk {
    struct tsr_arena *arena;
    struct tsr_pickle_value **annotations;
    size_t n_annotations, next;
    const char *phase, *module; /* of the moment */
    bool named;                 /* there are annotations of fully_shard: they say the phases */
    bool in_optimizer;
    uint32_t steps; /* steps of the optimizer that have ended */
};

struct tsr_snapshot_place {
    const char *phase, *module, *operation; /* never NULL; "" where not known */
    uint8_t category;                       /* TSR_DIFF_UNKNOWN: the stack does not say */
    uint32_t step;                          /* steps of the optimizer that ended before */
    bool own;                               /* the stack is one of `compare` */
};

/* `root`: the snapshot. */
void tsr_snapshot_walk_begin(const struct tsr_pickle_value *root, struct tsr_arena *arena,
                             struct tsr_snapshot_walk *out);
/* Of the next event. Its stack says where it is only if it allocates: that of a free is the stack
 * of the allocation. Errors: TSR_ENOMEM. */
tsr_status tsr_snapshot_place(struct tsr_snapshot_walk *walk, const struct tsr_pickle_value *event,
                              bool allocates, struct tsr_snapshot_place *out) TSR_MUST_USE;

#endif
