/* transfer.h: values that are copied or set outside of operators: between host and device, zeros,
 * initial values. Private to engine/.
 */
#ifndef TSR_ENGINE_TRANSFER_H
#define TSR_ENGINE_TRANSFER_H

#include "engine/graph/engine.h"

/* The host waits for the stream, as copies do that touch pageable memory, and those that were not
 * asked to be asynchronous. */
void tsr__host_waits(struct tsr_engine *e);
/* Work on the host with the operands collected so far. */
void tsr__host_work(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t read,
                    uint64_t written);
/* `bytes` at `offset` of a storage to the begin of another one; blocks if pageable memory is part.
 */
void tsr__transfer(struct tsr_engine *e, const struct tsr_storage *from, uint64_t offset,
                   const struct tsr_storage *to, uint64_t bytes, tsr_dtype dtype, const char *name);
/* The storage becomes zeros. */
void tsr__fill(struct tsr_engine *e, const struct tsr_storage *s);

/* module.to(device) of a whole parameter that was built on the host. */
void tsr__param_to_device(struct tsr_engine *e, struct tsr_param *p, enum tsr_category category);

/* Args that say which piece of a parameter this rank holds; what and name: KERNELS.md. */
void tsr__piece_args(struct tsr_engine *e, const struct tsr_param *p, unsigned what, uint64_t name);
uint64_t tsr__param_hash(const struct tsr_param *p);
/* Writes the initial values of what this rank holds of the parameter, the first `bytes` of s; what
 * is behind them, padding, is 0. A copy that a broken tie left has the values of the parameter that
 * it was. */
void tsr__init_values(struct tsr_engine *e, const struct tsr_param *p, struct tsr_storage *s,
                      uint64_t bytes);

#endif
