/* user_emit.h: what hooks and collectives of a user may emit, on the stream that the engine has
 * chosen for them.
 *
 * None of these returns a status: with a NULL tensor, or once the engine has failed, they do
 * nothing, and the step returns the error. Offsets and sizes are bytes into a tensor.
 */
#ifndef TSR_ENGINE_USER_EMIT_H
#define TSR_ENGINE_USER_EMIT_H

#include "engine/program/base.h"

struct tsr_engine;
struct tsr_tensor;

/* A hook around reductions (fully_shard: R169; a bucket of the bucketed replicate: R212). `buffer`
 * is the reduced gradients or the bucket, borrowed; user: as it was registered. */
typedef void (*tsr_all_reduce_hook)(struct tsr_engine *engine, struct tsr_tensor *buffer,
                                    void *user);

/* ---- transfers ------------------------------------------------------------------------------- */

/* `bytes` from `offset` of the tensor to, or into it from, member `peer` of the communicator `comm`
 * (an index into tsr_tables.comms). */
void tsr_emit_send(struct tsr_engine *engine, struct tsr_tensor *tensor, uint64_t offset,
                   uint64_t bytes, uint16_t comm, uint32_t peer);
void tsr_emit_recv(struct tsr_engine *engine, struct tsr_tensor *tensor, uint64_t offset,
                   uint64_t bytes, uint16_t comm, uint32_t peer);
/* The transfers between these two are one launch. */
void tsr_emit_group_begin(struct tsr_engine *engine);
void tsr_emit_group_end(struct tsr_engine *engine);
/* Sums the tensor over the ranks of a communicator, in place. */
void tsr_emit_all_reduce(struct tsr_engine *engine, struct tsr_tensor *tensor, uint16_t comm);

/* ---- work on the device ---------------------------------------------------------------------- */

/* Copies inside the device. */
void tsr_emit_device_copy(struct tsr_engine *engine, struct tsr_tensor *to, uint64_t to_offset,
                          struct tsr_tensor *from, uint64_t from_offset, uint64_t bytes);
/* One kernel that reads and writes all of `buffer` and does `flops` FLOP. `name` is borrowed while
 * programs that have it live. */
void tsr_emit_user_op(struct tsr_engine *engine, struct tsr_tensor *buffer, const char *name,
                      double flops);

#endif
