/* nccl_buffers.h: device memory of one NCCL communicator on one GPU, part by part. Private to sim/.
 *
 * The rules are those of NVIDIA/nccl as its source had them in 2025 (2.28; not read again release
 * by release), by the name of the file that has each. Other releases may differ: what holds this to
 * reality are the published figures in tests/sim/test_nccl_memory.c.
 *
 * init.cc, computeBuffSizes(): a connection has three buffers: LL 512 KiB (512 threads x 8 lines x
 * 8 steps x 16 bytes), LL128 4.69 MiB (640 x 120 x 8 x 8), Simple 4 MiB. Chunks of messages:
 * 512 KiB where all GPUs see each other by NVLink, 128 KiB over PCIe and between nodes.
 * transport/p2p.cc: inside a node the receiver has all three buffers, the sender a header; between
 * GPUs of Ampere by NVLink the receiver reads, and Simple lies with the sender. Each is rounded up
 * to 2 MiB: 10 and 2 MiB, with reads 6 and 6.
 * transport/net.cc: to another node the sender has LL128 and Simple on the device, the receiver all
 * three (GPUDirect RDMA): 10 and 10 MiB. Messages between nodes share one buffer per direction:
 * channels x 16 steps x chunk.
 * graph/rings, trees: a ring sends to the next member and receives from the one before, on every
 * channel. Trees are chains inside a node, so a member in the middle needs the other direction of
 * both ring edges too, the end of the chain one of them; between nodes two binary trees, in one of
 * which a node is inner (a parent, two children) and a leaf in the other.
 * transport/nvls.cc: NVLS has channels x 2 x 8 steps x 128 KiB for every member of the node. 16
 * channels on sm_90; 24 inside one domain and 32 beyond on sm_100.
 * transport.cc: PAT connects the members at distance 1, 2, 4 ... both ways, on every channel.
 * graph/paths.cc, ncclTopoComputeP2pChannels(): messages use that power of two of channels that is
 * not less than the collectives', and per pair of members two for each NVLink that a pair can fill,
 * as a power of two; 2 over PCIe; 2, then 1 with many members, where the group spans nodes.
 * channel.cc, init.cc, include/alloc.h: each channel has three small tables, each communicator two
 * more, NVLS one per channel and its credits: with cuMem (the default) every one takes 2 MiB.
 *
 * What is connected when (init.cc, runtimeConn): since 2.22 with cuMem an algorithm connects when a
 * collective first uses it. Before, or with NCCL_RUNTIME_CONNECT=0, all of it is made with the
 * communicator, and the shared send buffer of messages, too; small tables then share pages.
 */
#ifndef TSR_SIM_NCCL_BUFFERS_H
#define TSR_SIM_NCCL_BUFFERS_H

#include <stdbool.h>
#include <stdint.h>

#include "sim/network/algorithms/algorithm.h"

/* NCCL has no more (MAXCHANNELS). */
enum { TSR__NCCL_MAX_CHANNELS = 64 };

struct tsr__nccl_comm {
    uint32_t size;          /* members */
    uint32_t inside;        /* of them on one node, or in one NVLink domain; at least 1 */
    uint32_t channels;      /* of collectives */
    uint32_t nvls_channels; /* 0: the switch cannot multicast */
    uint32_t pair_links;    /* NVLinks that two members can fill; 0: they talk over PCIe */
    bool reads;             /* Ampere, by NVLink */
    bool at_init;           /* everything is connected with the communicator */
    bool ends_chains;       /* the member is the end of every tree's chain; false: the fullest */
    unsigned uses;          /* set of enum tsr__nccl_use */
    /* Members that messages (SEND, RECV, all-to-all) go to and come from. */
    uint32_t sends_inside, recvs_inside;
    bool messages_between;
};

/* Bytes. */
struct tsr__nccl_buffers {
    uint64_t tables, rings, trees, nvls, pat, messages;
};

struct tsr__nccl_buffers tsr__nccl_buffers_of(const struct tsr__nccl_comm *comm);
uint64_t tsr__nccl_buffers_sum(const struct tsr__nccl_buffers *buffers);

#endif
