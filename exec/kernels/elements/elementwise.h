/* elementwise.h: functions of elements for kernels that make their operands themselves. */
#ifndef TSR_KERNELS_ELEMENTWISE_H
#define TSR_KERNELS_ELEMENTWISE_H

#include "exec/kernels/call/call.h"
#include "exec/kernels/grid/grid_elementwise.h"

/* Runs `e` in f64 if `wide`. */
tsr_status tsr__run_elementwise(const struct tsr_kernel_call *call, const struct tsr_elementwise *e,
                                bool wide) TSR_MUST_USE;

#endif
