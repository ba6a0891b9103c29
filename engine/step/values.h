/* values.h: where values lie, for those who look at what an executor computed.
 */
#ifndef TSR_VALUES_H
#define TSR_VALUES_H

#include "engine/program/program.h"

struct tsr_engine;

/* Where values lie, for those who look at what an executor computed (after a drain). */
struct tsr_values {
    uint32_t buffer;
    uint8_t space; /* enum tsr_space */
    tsr_dtype dtype;
    uint64_t offset, numel; /* bytes into the buffer; elements of this rank, without padding */
};
/* False: there is none. The loss of a micro-batch, between its forward and its backward. */
bool tsr_loss_values(const struct tsr_engine *engine, uint32_t micro, struct tsr_values *out);
enum tsr_param_part { TSR_PARAM_VALUE, TSR_PARAM_GRAD, TSR_PARAM_STATE0, TSR_PARAM_STATE1 };
/* Of parameter i of tsr_n_param_layouts(); its place in the whole: tsr_param_dtensor(). */
bool tsr_param_values(struct tsr_engine *engine, size_t i, enum tsr_param_part part,
                      struct tsr_values *out);

#endif
