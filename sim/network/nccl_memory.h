/* nccl_memory.h: device memory of NCCL's communicators, which no allocator report shows.
 *
 * A communicator that is used has small tables, and buffers for what its collectives run as: rings,
 * trees, NVLS, PAT as the tuner chooses them (tuner.h), messages by their peers. What each of these
 * takes is in nccl_buffers.h, with its sources. Since NCCL 2.22 they are connected when they are
 * first used; `nccl_at_init` of the options: all with the communicator, as before.
 *
 * Channels, from published logs: 24 between GPUs behind NVSwitch (of DGX A100, nccl-tests#100, and
 * of Hopper, nccl#1259); 2 per NIC of a node when the group spans nodes (nccl#1453: 16 with 8 NICs;
 * nccl#1189: 8 with 4), at most 32; 2 over PCIe (nccl-tests#228). Of other machines only bounds are
 * known: those of Hopper (with direct links: 2) and the 64 that NCCL has at most.
 *
 * Not counted: device code and static memory of the library, which are the device file's
 * library_bytes; buffers of symmetric windows and of CollNet, which are off unless asked for.
 */
#ifndef TSR_SIM_NCCL_MEMORY_H
#define TSR_SIM_NCCL_MEMORY_H

#include "engine/program/program.h"
#include "sim/cluster/cluster.h"
#include "sim/input/job.h"

struct tsr_nccl_memory {
    uint32_t n_comms; /* communicators of more than one rank that the programs use */
    uint64_t bytes;   /* of the fullest rank's device, at least */
    uint64_t at_most; /* bytes: all is known */
};

/* From the collectives of n programs of one rank. Errors: TSR_ENOMEM. */
tsr_status tsr_nccl_memory_of(const struct tsr_cluster *cluster,
                              const struct tsr_sim_options *options,
                              const struct tsr_program *const *programs, uint32_t n,
                              struct tsr_nccl_memory *out) TSR_MUST_USE;

#endif
