/* deferred.h: blocks that are given back later (record_stream): FSDP1 frees memory that another
 * stream than its own still uses. Private to engine/.
 *
 * PyTorch's caching allocator notes an event on the other stream at the free, and returns the block
 * to its pool when a later allocation finds that event over. The engine never asks whether
 * something is finished, so here a block returns when the host must know that its last use is over:
 * when it has waited for an event that comes after it (the rate limiter's, the batch of the next
 * iteration), or when it has launched so much since that event that CUDA's launch queue cannot hold
 * it any more. For the second the host waits for the event before it allocates, which takes no time
 * behind a queue of that depth and makes the order known to every executor. So blocks return as in
 * a run whose host is as far ahead as it can be; until then they count as allocated.
 */
#ifndef TSR_DEFERRED_H
#define TSR_DEFERRED_H

#include "engine/graph/graph.h"

struct tsr_deferral;
struct tsr_instr;

/* Begins to keep the clocks of streams and host; once, before anything is emitted to streams whose
 * frees are deferred. */
void tsr__deferral_begin(struct tsr_engine *e);
void tsr__deferral_end(struct tsr_engine *e);
/* What an instruction orders; called for each one that is emitted. */
void tsr__deferral_note(struct tsr_engine *e, const struct tsr_instr *instr);
/* The storage loses its block now, which returns to the pool when the host knows that what `stream`
 * has been given so far is over. */
void tsr__storage_unback_after(struct tsr_engine *e, struct tsr_storage *s, uint16_t stream);
/* Drops a reference; the block, if it was the last one, as above. */
void tsr__storage_release_after(struct tsr_engine *e, struct tsr_storage **s, uint16_t stream);
/* Returns the blocks that may return; before each allocation. */
void tsr__deferral_settle(struct tsr_engine *e);
/* The host waits for what was given back in the iteration before this one. It does so anyway: the
 * next iteration begins when this one's inputs are there. */
void tsr__deferral_end_iteration(struct tsr_engine *e);
/* The device is full: the host waits for everything, and all blocks return. False: there were none.
 */
bool tsr__deferral_flush(struct tsr_engine *e);

#endif
