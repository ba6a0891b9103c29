/* values.h: where parameters, gradients and optimizer states lie, for those who look at
 * what an executor computed, after a drain.
 */
#ifndef TSR_ENGINE_VALUES_H
#define TSR_ENGINE_VALUES_H

#include "engine/program/program.h"

struct tsr_engine;

/* A range of a buffer. */
struct tsr_values {
    uint32_t buffer; /* as in struct tsr_operand */
    uint8_t space;   /* enum tsr_space */
    tsr_dtype dtype;
    uint64_t offset; /* bytes into the buffer */
    uint64_t numel;  /* elements of this rank, without padding */
};

enum tsr_param_part {
    TSR_PARAM_VALUE,
    TSR_PARAM_GRAD,
    TSR_PARAM_STATE0,
    TSR_PARAM_STATE1,
    TSR_PARAM_STATE2
};
/* Of parameter i < tsr_n_param_layouts() (engine/inspect.h); its place in the whole:
 * tsr_param_dtensor(). False if there is no such parameter or part, or nothing of it on this rank.
 */
bool tsr_param_values(struct tsr_engine *engine, size_t i, enum tsr_param_part part,
                      struct tsr_values *out);

/* Steps of the optimizer in which parameter i had a gradient, as PyTorch counts them for each; 0:
 * none yet, so that it has no states. */
uint64_t tsr_param_steps(struct tsr_engine *engine, size_t i);
/* Before tsr_load_run(): how many the optimizer has made, then those of each parameter, no more;
 * 0: what is loaded has no states of it. Without them all parameters are loaded with states, and
 * steps count from 1. */
void tsr_set_optimizer_steps(struct tsr_engine *engine, uint64_t steps);
void tsr_param_set_steps(struct tsr_engine *engine, size_t i, uint64_t steps);

#endif
