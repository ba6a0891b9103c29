/* nccl_memory.c: counts channels and connections of the communicators that programs use; the rule
 * and its sources are in the header. */
#include "sim/network/nccl_memory.h"

#include <stdlib.h>
#include <string.h>

#include "sim/network/tuner.h"

#define MIB (UINT64_C(1) << 20)

static const uint64_t RECEIVE_BYTES = 10 * MIB;
static const uint64_t SEND_INSIDE_BYTES = 2 * MIB, SEND_BETWEEN_BYTES = 10 * MIB;
enum { SWITCH_CHANNELS = 24, PCIE_CHANNELS = 2, CHANNELS_PER_NIC = 2, MAX_CHANNELS = 32 };

struct usage {
    bool rings, peers;
};

static bool is_collective(const struct tsr_instr *instr)
{
    return (instr->kind >= TSR_ALL_GATHER && instr->kind <= TSR_RECV) ||
           instr->kind == TSR_CUSTOM_COLLECTIVE;
}

/* What programs do with each communicator. */
static void note_usage(const struct tsr_program *const *programs, uint32_t n, struct usage *usage,
                       uint16_t n_comms)
{
    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < programs[i]->n_instrs; k++) {
            const struct tsr_instr *instr = &programs[i]->instrs[k];
            if (!is_collective(instr) || instr->comm >= n_comms)
                continue;
            if (tsr__coll_pattern(instr->kind) == TSR__RING)
                usage[instr->comm].rings = true;
            else
                usage[instr->comm].peers = true;
        }
}

/* Members of the group of rank 0 that share an NVLink domain (or node) with it. */
static uint32_t members_inside(const struct tsr_cluster *cluster, const struct tsr_comm *comm)
{
    uint32_t domain = cluster->nvlink_domain_gpus ? cluster->nvlink_domain_gpus : 1;
    uint32_t n = (domain + comm->stride - 1) / comm->stride;
    return n < comm->size ? n : comm->size;
}

/* 0: unknown. */
static uint32_t channels_of(const struct tsr_cluster *cluster, bool spans)
{
    bool known_switch = !strcmp(cluster->gpu.architecture, "Ampere") ||
                        !strcmp(cluster->gpu.architecture, "Hopper");
    if (spans) {
        uint32_t channels = CHANNELS_PER_NIC * cluster->nics_per_node;
        return channels < MAX_CHANNELS ? channels : MAX_CHANNELS;
    }
    if (cluster->intra == TSR_INTRA_PCIE)
        return PCIE_CHANNELS;
    return cluster->intra == TSR_INTRA_NVSWITCH && known_switch ? SWITCH_CHANNELS : 0;
}

/* The rings leave a node through its members in turn: the fullest one sends to another node on
 * every L-th channel. */
static uint64_t ring_bytes(const struct tsr_cluster *cluster, const struct tsr_comm *comm,
                           bool *known)
{
    uint32_t inside = members_inside(cluster, comm);
    bool spans = inside < comm->size;
    uint32_t channels = channels_of(cluster, spans);
    uint32_t leaving = spans ? (channels + inside - 1) / inside : 0;
    *known = *known && channels > 0;
    return channels * RECEIVE_BYTES + (channels - leaving) * SEND_INSIDE_BYTES +
           leaving * SEND_BETWEEN_BYTES;
}

tsr_status tsr_nccl_memory_of(const struct tsr_cluster *cluster,
                              const struct tsr_program *const *programs, uint32_t n,
                              struct tsr_nccl_memory *out)
{
    *out = (struct tsr_nccl_memory){.known = true};
    const struct tsr_tables *tables = n ? programs[0]->tables : NULL;
    if (!tables)
        return TSR_OK;
    struct usage *usage = calloc(tables->n_comms + 1U, sizeof *usage);
    if (!usage)
        return tsr_no_memory("communicators");
    note_usage(programs, n, usage, tables->n_comms);
    for (uint16_t i = 0; i < tables->n_comms; i++) {
        if (tables->comms[i].size < 2 || !(usage[i].rings || usage[i].peers))
            continue;
        out->n_comms++;
        if (usage[i].rings)
            out->bytes += ring_bytes(cluster, &tables->comms[i], &out->known);
        if (usage[i].peers)
            out->known = false;
    }
    free(usage);
    return TSR_OK;
}
