/* step.h: training steps, whole or in parts.
 */
#ifndef TSR_STEP_H
#define TSR_STEP_H

#include "engine/graph/step_config.h"

struct tsr_engine;
struct tsr_module;

tsr_status tsr_step_configure(struct tsr_engine *engine,
                              const struct tsr_step_config *config) TSR_MUST_USE;

/* Materialises the parameters (phase init). Call once, after wrapping and before the first step. */
tsr_status tsr_engine_init_params(struct tsr_engine *engine) TSR_MUST_USE;
/* One whole iteration: inputs, zero_grad, forward/loss/backward per micro-batch, clip, optimizer.
 */
tsr_status tsr_step_run(struct tsr_engine *engine, uint32_t iteration) TSR_MUST_USE;

/* The parts, for own schedules. `entry`: run this submodule instead of the root (NULL: the root).
 */
tsr_status tsr_step_begin(struct tsr_engine *engine,
                          uint32_t iteration) TSR_MUST_USE; /* inputs, zero_grad */
tsr_status tsr_step_forward(struct tsr_engine *engine, uint32_t micro, struct tsr_module *entry,
                            bool no_grad) TSR_MUST_USE;
tsr_status tsr_step_backward(struct tsr_engine *engine, const uint32_t *micros,
                             size_t n) TSR_MUST_USE;
tsr_status tsr_step_optimizer(struct tsr_engine *engine) TSR_MUST_USE; /* clip, optimizer */
tsr_status tsr_step_end(struct tsr_engine *engine) TSR_MUST_USE;       /* inputs are dropped */

#endif
