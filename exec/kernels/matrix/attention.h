/* attention.h: how both directions of attention take their operands. */
#ifndef TSR_EXEC_ATTENTION_H
#define TSR_EXEC_ATTENTION_H

#include "exec/kernels/call/call.h"
#include "exec/kernels/matrix/attention_operands.h"

/* Queries that the host works on at a time. */
enum { TSR_QUERY_BLOCK = 64 };

/* Sizes and operands; forward writes slots 3 and 4 and has no more. */
tsr_status tsr__attention_operands(const struct tsr_kernel_call *call, bool forward,
                                   struct tsr_attention_operands *a) TSR_MUST_USE;

#endif
