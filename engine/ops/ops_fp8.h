/* ops_fp8.h: linear layers whose three products run in fp8 (FP8.md). Private to engine/. */
#ifndef TSR_OPS_FP8_H
#define TSR_OPS_FP8_H

#include "engine/ops/ops_common.h"

/* True for a linear layer of a block whose sizes are multiples of 16 (what the products need),
 * where the engine is asked for fp8 and x has 16 bits. */
bool tsr__is_fp8(const struct tsr_engine *e, const struct tsr_tensor *x,
                 const struct tsr_tensor *w);
/* True for the weight of such a layer, if it is to be gathered in fp8: it is of dtype F8 then. */
bool tsr__fp8_gathers(const struct tsr_engine *e, const struct tsr_param *p);
/* y = x w^T (+ b), w (out, in). Gradients in PyTorch's order: input, weight, bias. */
struct tsr_tensor *tsr__fp8_linear(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *w,
                                   struct tsr_tensor *b);
/* Refuses what the recipe does not run under: tensorwise scaling without the dialect `compile`,
 * delayed scaling with it. */
tsr_status tsr__check_fp8(const struct tsr_engine_config *config);

#endif
