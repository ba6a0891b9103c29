/* user_emit.h: what hooks and collectives of a user may emit.
 */
#ifndef TSR_USER_EMIT_H
#define TSR_USER_EMIT_H

#include "engine/program/base.h"

struct tsr_engine;
struct tsr_tensor;

typedef void (*tsr_all_reduce_hook)(struct tsr_engine *engine, struct tsr_tensor *buffer,
                                    void *user);

/* For custom collectives: `bytes` from `offset` of a tensor to or from member `peer` of the
 * communicator; what stands between group_begin and group_end is one launch. */
void tsr_emit_send(struct tsr_engine *e, struct tsr_tensor *t, uint64_t offset, uint64_t bytes,
                   uint16_t comm, uint32_t peer);
void tsr_emit_recv(struct tsr_engine *e, struct tsr_tensor *t, uint64_t offset, uint64_t bytes,
                   uint16_t comm, uint32_t peer);
/* Sums `t` over the ranks of a communicator, in place, on the current stream. */
void tsr_emit_all_reduce(struct tsr_engine *e, struct tsr_tensor *t, uint16_t comm);
void tsr_emit_group_begin(struct tsr_engine *e);
void tsr_emit_group_end(struct tsr_engine *e);
/* Copies inside the device. */
void tsr_emit_device_copy(struct tsr_engine *e, struct tsr_tensor *to, uint64_t to_offset,
                          struct tsr_tensor *from, uint64_t from_offset, uint64_t bytes);

/* For hooks: emits one kernel that reads and writes `buffer` on the hook's stream. */
void tsr_emit_user_op(struct tsr_engine *engine, struct tsr_tensor *buffer, const char *name,
                      double flops);

#endif
