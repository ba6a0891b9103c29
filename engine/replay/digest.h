/* digest.h: the digest of a state between two steps (graph/walk.h), and where its ids lie. Private
 * to the replay of steps.
 */
#ifndef TSR_DIGEST_H
#define TSR_DIGEST_H

#include "engine/graph/walk.h"

/* Between steps only. The arrays of *walk are used again if it comes from an earlier walk; begin
 * with {0}. Errors: TSR_ENOMEM. */
tsr_status tsr__walk_state(struct tsr_engine *e, struct tsr_state_walk *walk);

/* digest_wrap.c: states, groups and what they share; the reducer. */
void tsr__walk_wrapped(struct tsr_state_walk *w);

#endif
