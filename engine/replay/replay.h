/* replay.h: steps without emission. A training step that begins in the state in which an earlier
 * one began has the program of that one, but for the numbers of buffers and events. A cache of
 * steps notices this, keeps the program, and hands it out again with the numbers that the engine
 * would have given: executors, checker and accounts see no difference.
 *
 * The state is told by a digest: allocator, live buffers, what wrapped modules and the optimizer
 * hold, the step's options. It cannot be told (0), and nothing is replayed, with a trace, FSDP1,
 * hooks and collectives of a user (but for those that say they are pure), gradients or graphs that
 * are kept from step to step, models that run other modules in some iterations, and garbage
 * collection in the allocator.
 *
 * A program is replayed after it has been emitted three times in the same state: the first time is
 * noticed, the second recorded, the third compared with the record, instruction by instruction.
 * States may follow each other in a cycle.
 */
#ifndef TSR_ENGINE_REPLAY_H
#define TSR_ENGINE_REPLAY_H

#include "engine/program/base.h"

struct tsr_engine;

struct tsr_step_cache;
/* For one engine; may be destroyed after it. Errors: TSR_ENOMEM. */
tsr_status tsr_step_cache_create(struct tsr_engine *engine,
                                 struct tsr_step_cache **out) TSR_MUST_USE;
void tsr_step_cache_destroy(struct tsr_step_cache *cache); /* NULL is fine */

/* As tsr_step_run(). The executor gets the instructions one by one, or, if it has the operation and
 * the step is replayed, the whole program at once (struct tsr_executor_ops, replay). After an error
 * the cache is not used again. */
tsr_status tsr_step_run_cached(struct tsr_step_cache *cache, uint32_t iteration) TSR_MUST_USE;

/* Before anything but the next step is done with the engine (an evaluation, a checkpoint, an
 * option): it may be some replayed steps behind, and catches up without executing them again.
 * Errors: TSR_EDEFECT if it was used, or what it does then is not what was replayed. */
tsr_status tsr_step_cache_settle(struct tsr_step_cache *cache) TSR_MUST_USE;

#endif
