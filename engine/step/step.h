/* step.h: training steps, whole or in parts.
 *
 * After an error of a step (TSR_EOOM with the modelled device full: engine/graph/device_memory.h)
 * the engine can only be destroyed, or, in version 2.15, reset with tsr_reset_iter_state().
 */
#ifndef TSR_ENGINE_STEP_H
#define TSR_ENGINE_STEP_H

#include "engine/graph/step_config.h"

struct tsr_engine;
struct tsr_module;

/* The steps from now on; `config` is copied. Errors: TSR_EVALUE for sizes and numbers out of range,
 * or a loss that the model or the dialect cannot have. */
tsr_status tsr_step_configure(struct tsr_engine *engine,
                              const struct tsr_step_config *config) TSR_MUST_USE;
/* Materialises the parameters (phase init). Once, after wrapping and before the first step. Errors:
 * TSR_EVALUE without a model; what tsr_step_configure() refuses; TSR_EUNSUPPORTED or TSR_ENOTIMPL
 * for tensor parallelism of which only layouts are modelled; TSR_EOOM. */
tsr_status tsr_engine_init_params(struct tsr_engine *engine) TSR_MUST_USE;
/* One whole iteration: inputs, zero_grad, forward/loss/backward per micro-batch, clip, optimizer.
 * What the micro-batches before the last do is config.accumulate. */
tsr_status tsr_step_run(struct tsr_engine *engine, uint32_t iteration) TSR_MUST_USE;

/* ---- the parts, for own schedules ------------------------------------------------------------ */

/* The batches of all micro-batches go to the device; zero_grad. TSR_EVALUE before
 * tsr_engine_init_params(). */
tsr_status tsr_step_begin(struct tsr_engine *engine, uint32_t iteration) TSR_MUST_USE;
/* Forward and loss of micro-batch `micro` < n_micro (else TSR_EVALUE). entry: runs this submodule
 * in place of the root, with the mean square as loss (R88); NULL: the root. no_grad: the loss is
 * dropped, nothing is kept for backward. */
tsr_status tsr_step_forward(struct tsr_engine *engine, uint32_t micro, struct tsr_module *entry,
                            bool no_grad) TSR_MUST_USE;
/* One backward from the losses of n micro-batches, micros[0] ... micros[n - 1], whose forward was;
 * the losses are dropped after it. */
tsr_status tsr_step_backward(struct tsr_engine *engine, const uint32_t *micros,
                             size_t n) TSR_MUST_USE;
/* Clips, if configured, and runs the optimizer. */
tsr_status tsr_step_optimizer(struct tsr_engine *engine) TSR_MUST_USE;
/* Reports are delivered; inputs and losses are dropped. */
tsr_status tsr_step_end(struct tsr_engine *engine) TSR_MUST_USE;

#endif
