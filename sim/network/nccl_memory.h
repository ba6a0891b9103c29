/* nccl_memory.h: device memory of NCCL's communicators, which no allocator report shows.
 *
 * A communicator that is used connects its rings: per channel one buffer to receive into and one
 * to send from. Sizes are NCCL's defaults (src/include/device.h, src/init.cc, src/transport/p2p.cc
 * and net.cc at 2.24 to 2.27): a connection receives into 4 MiB (Simple, NCCL_BUFFSIZE) + 4,915,200
 * (LL128: 640 threads x 120 x 8 steps x 8 bytes) + 524,288 bytes (LL: 512 threads x 8 lines x 8
 * steps x 16 bytes) + a header, rounded up to the driver's granularity of 2 MiB: 10 MiB. A send
 * connection inside a node holds its header only, 2 MiB; one to another node holds the Simple and
 * LL128 buffers on the device: 10 MiB. NVIDIA/nccl#1685 lists just these two sizes, 10485760 and
 * 2097152.
 *
 * Channels: 24 between GPUs behind NVSwitch (logs of DGX A100, nccl-tests#100, and of Hopper,
 * nccl#1259); 2 per NIC of a node when the group spans nodes (nccl#1453: 16 with 8 NICs; nccl#1189:
 * 8 with 4); 2 over PCIe (nccl-tests#228). Other machines: unknown.
 *
 * Not counted, since it depends on choices that NCCL makes at run time: trees and NVLS buffers of
 * all-reduces, device code, and anything for SEND and RECV, of which the amount is unknown (#1685
 * saw 3.3 GB for an all-to-all over 8 GPUs).
 */
#ifndef TSR_SIM_NCCL_MEMORY_H
#define TSR_SIM_NCCL_MEMORY_H

#include "engine/program/program.h"
#include "sim/cluster/cluster.h"

struct tsr_nccl_memory {
    uint32_t n_comms; /* communicators of more than one rank that the programs use */
    uint64_t bytes;   /* of the fullest rank's device */
    bool known;       /* false: bytes is what is known of it */
};

/* From the collectives of n programs of one rank. Errors: TSR_ENOMEM. */
tsr_status tsr_nccl_memory_of(const struct tsr_cluster *cluster,
                              const struct tsr_program *const *programs, uint32_t n,
                              struct tsr_nccl_memory *out) TSR_MUST_USE;

#endif
