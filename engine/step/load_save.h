/* load_save.h: loading, evaluating, saving: sections of a run between two iterations, after
 * tsr_engine_init_params(). What each does is instructions of phase load, eval or save.
 *
 * Errors of all: TSR_EVALUE before tsr_engine_init_params(); TSR_EUNSUPPORTED for full state dicts
 * of tensor-parallel models; TSR_EOOM. Rank 0 has more to do with full ones: its program is its
 * own.
 */
#ifndef TSR_ENGINE_LOAD_SAVE_H
#define TSR_ENGINE_LOAD_SAVE_H

#include "engine/program/base.h"

struct tsr_engine;

enum tsr_load {
    TSR_LOAD_SHARDED,   /* each rank reads its shards to the host and copies them in */
    TSR_LOAD_FULL_RANK0 /* rank 0 has everything on the host and broadcasts tensor by tensor */
};
/* Reads the parameters. optimizer: its states, too; they are made first, as by a step with zero
 * gradients. */
tsr_status tsr_load_run(struct tsr_engine *engine, enum tsr_load how, bool optimizer) TSR_MUST_USE;
/* A forward with its loss, without gradients, of one micro-batch. Sharded gradients of the last
 * step stay. */
tsr_status tsr_eval_run(struct tsr_engine *engine) TSR_MUST_USE;

enum tsr_save {
    TSR_SAVE_SHARDED,     /* each rank copies its shards through pinned memory and writes them */
    TSR_SAVE_FULL_RANK0,  /* tensors are gathered on every device; rank 0 keeps them on the host */
    TSR_SAVE_FULL_DEVICE, /* as before, but every rank keeps all of them on its device */
    /* Each rank copies its shards to pinned memory beside the next step, and they are written
     * after it (OPTIONS.md). */
    TSR_SAVE_SHARDED_ASYNC
};
static inline bool tsr_save_is_sharded(enum tsr_save how)
{
    return how == TSR_SAVE_SHARDED || how == TSR_SAVE_SHARDED_ASYNC;
}
/* Writes parameters and optimizer states. A save that is still going on is ended first. */
tsr_status tsr_save_run(struct tsr_engine *engine, enum tsr_save how) TSR_MUST_USE;
/* Of TSR_SAVE_SHARDED_ASYNC: the step is still to come whose end hands the copies over. */
bool tsr_save_is_copying(const struct tsr_engine *engine);
/* Waits until what is being saved is written, and gives the copies' memory back; the next save does
 * so, too. Nothing if nothing is being saved. */
tsr_status tsr_save_end(struct tsr_engine *engine) TSR_MUST_USE;

#endif
