/* nccl_options.h: what --comm says. */
#ifndef TSR_CLI_NCCL_OPTIONS_H
#define TSR_CLI_NCCL_OPTIONS_H

#include "exec/cuda/comms/comms.h"

/* `how`: NULL or "nccl" with ":" and a list of "zero-cta", "windows", "reduce-ctas=N" behind it; or
 * "loopback". Sets zero_cta, windows and reduce_ctas of *out. TSR_ECONFIG: something else. */
tsr_status tsr_nccl_options(const char *how, struct tsr_comms_config *out) TSR_MUST_USE;

#endif
