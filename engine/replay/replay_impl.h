/* replay_impl.h: the digest of a state between two steps (graph/walk.h), as digest.c makes it for
 * replay.c. Private to the replay of steps.
 */
#ifndef TSR_ENGINE_REPLAY_IMPL_H
#define TSR_ENGINE_REPLAY_IMPL_H

#include "engine/graph/walk.h"
#include "engine/step/step.h"

/* Between steps only. The arrays of *walk are used again if it comes from an earlier walk; begin
 * with {0}. Errors: TSR_ENOMEM. */
tsr_status tsr__walk_state(struct tsr_engine *e, struct tsr_state_walk *walk);

#endif
