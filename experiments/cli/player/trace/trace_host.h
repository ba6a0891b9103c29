/* trace_host.h: `tessera trace --executor host` (or cuda): all ranks of a recorded scenario as
 * threads that compute, on the host or on one GPU, from the scenario's parameters and data.
 */
#ifndef TSR_CLI_TRACE_HOST_H
#define TSR_CLI_TRACE_HOST_H

#include "experiments/cli/player/trace/trace_run.h"

/* Adds what rank 0 decided, and `loss`, `loss_per_rank`, `grad_norm` and `tensors.final` (a file
 * beside `out`). `path` is the scenario's file: its tensors lie beside its folder. */
tsr_status tsr_trace_on_host(const struct tsr_scenario *scenario, const char *path, const char *out,
                             bool on_gpu, json_t *result) TSR_MUST_USE;

/* trace_cmd.c: the keys of kinds train and ddp. */
void tsr_trace_add_run(json_t *result, const struct tsr_trace_run *run);

#endif
