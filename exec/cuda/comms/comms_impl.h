/* comms_impl.h: what the kinds of communicators share: copies and sums on a stream. Private to
 * comms_*.c.
 */
#ifndef TSR_CUDA_COMMS_IMPL_H
#define TSR_CUDA_COMMS_IMPL_H

#include "exec/cuda/comms/comms.h"
#include "exec/cuda/kernels/grid/loopback.h"
#include "exec/world/collective.h"

/* Segments of one launch are copied beside each other: none is read where another is written.
 * `kind`: enum tsr_instr_kind, for words. Those without bytes, and onto themselves, are left out.
 */
tsr_status tsr__device_copy(const struct tsr_cuda_context *context, uint8_t kind,
                            const struct tsr_segment *segments, size_t n) TSR_MUST_USE;
/* tsr__reduce() on the stream. n_parts <= TSR_LOOPBACK_PARTS. */
tsr_status tsr__device_reduce(const struct tsr_cuda_context *context, uint8_t kind,
                              const struct tsr_reduction *how, const void *const *parts,
                              uint32_t n_parts, void *out, uint64_t n) TSR_MUST_USE;

/* The whole call of a communicator with one member. */
tsr_status tsr__device_alone(const struct tsr_cuda_context *context,
                             const struct tsr_collective *c) TSR_MUST_USE;

/* What the receives of `to` from member `from_member` take out of the messages of that member:
 * appends to segments[*n], which have room for n_to more. TSR_EDEFECT: they do not fit each other.
 */
tsr_status tsr__match_messages(const struct tsr_call *call, uint32_t from_member,
                               const struct tsr_message *from, size_t n_from, uint32_t to_member,
                               const struct tsr_message *to, size_t n_to,
                               struct tsr_segment *segments, size_t *n) TSR_MUST_USE;

#endif
