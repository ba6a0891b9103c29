/* predict.h: how long one collective takes on a cluster that does nothing else, as nccl-tests
 * measures it: calls one after the other, the host always ahead.
 */
#ifndef TSR_SIM_PREDICT_H
#define TSR_SIM_PREDICT_H

#include "sim/sim.h"

struct tsr_collective_query {
    uint8_t kind;          /* TSR_ALL_REDUCE, TSR_ALL_GATHER, ... (enum tsr_instr_kind) */
    uint32_t ranks, nodes; /* members, evenly on so many nodes: all GPUs of each, one of each, or
                              some of a single one */
};

/* Seconds of `n` calls of the given sizes (bytes of the whole buffer: an all-gather's output, a
 * reduce-scatter's input). Each size is a program of one collective that is simulated like every
 * other. Of the options, host costs do not count. Errors: TSR_ECONFIG for a group that the cluster
 * does not have, and as tsr_sim_run(). */
tsr_status tsr_predict_collective(const struct tsr_cluster *cluster,
                                  const struct tsr_sim_options *options,
                                  const struct tsr_collective_query *collective,
                                  const uint64_t *bytes, uint32_t n, double *seconds) TSR_MUST_USE;

/* Bus bandwidth over size per time, as nccl-tests defines it: 2(n-1)/n for an all-reduce, (n-1)/n
 * for all-gather, reduce-scatter and all-to-all, 1 for a broadcast. */
double tsr_bus_factor(uint8_t kind, uint32_t ranks);

#endif
