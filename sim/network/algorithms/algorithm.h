/* algorithm.h: an algorithm of NCCL as a row: which collectives it does, how often bytes hop, how
 * many cross the links, and what share of the rings' rate it reaches. One file for each; the tuner
 * (tuner.c) chooses by them. Private to sim/.
 *
 * Constants: experiments/clusters/nccl-tuner-constants.json, that is NVIDIA/nccl
 * src/graph/tuning.cc at commit 5067397c. They rank algorithms in NCCL; here they are also the
 * latencies and the bytes on the wire.
 *
 * What crosses the links, per GPU, of S bytes over n members, L on each of N nodes, is given per
 * unit share of the rings' edges: inside a node (L-1)/L of it passes a port, between nodes 1/L a
 * NIC.
 */
#ifndef TSR_SIM_ALGORITHM_H
#define TSR_SIM_ALGORITHM_H

#include "engine/program/program.h"
#include "sim/cluster/cluster.h"
#include "sim/input/job.h"

enum tsr__medium { TSR__INTRA, TSR__INTER }; /* inside an NVLink domain; between domains */
enum { TSR__N_PROTOCOLS = TSR_PROTO_SIMPLE + 1 };

/* How bytes travel. A collective is one of these patterns times a factor. */
enum tsr__pattern { TSR__RING, TSR__PAIRS, TSR__P2P, TSR__N_PATTERNS };

/* What is the same for every collective of a job. */
struct tsr__coll_model {
    enum tsr_algorithm algorithm; /* forced, or AUTO */
    enum tsr_protocol protocol;   /* the same */
    double latency_scale;
    double base_s;         /* of every collective, on top of the tuner's */
    double hop_s;          /* of every hop between nodes, on top of the tuner's */
    double fill_s[2];      /* see tuner.c; by medium, the wider one that the group has */
    double own_s_per_byte; /* of a rank's own part of the data */
    double nvls_share;     /* reachable over that of rings, through the switch; 0: no NVLS */
    double ll_rate;        /* bytes/s of the bus that LL reaches inside a node; 0: no limit */
    bool pcie;             /* inside a node they talk over PCIe */
    const struct tsr_cluster *timed; /* its collectives were timed; NULL: not */
};

/* A communicator as the tuner sees it. */
struct tsr__coll_group {
    uint32_t size;    /* members */
    uint32_t domains; /* NVLink domains (nodes) that they live in */
    /* Seconds per byte of the pattern alone on the fabric (largest share over capacity of a link),
     * by pattern and medium; 0: infinite bandwidth, or nothing crosses it. */
    double s_per_byte[TSR__N_PATTERNS][2];
};

/* The buffers of a communicator that an algorithm needs (nccl_buffers.h). */
enum tsr__nccl_use {
    TSR__NCCL_RINGS = 1,
    TSR__NCCL_TREES = 2,
    TSR__NCCL_NVLS = 4,
    TSR__NCCL_NVLS_TREES = 8,
    TSR__NCCL_PAT = 16
};

/* A collective of a group, in one protocol. */
struct tsr__question {
    const struct tsr__coll_model *model;
    const struct tsr__coll_group *group;
    uint8_t kind; /* enum tsr_instr_kind */
    bool inter;   /* SEND and RECV: the peer is elsewhere */
    enum tsr_algorithm algorithm;
    enum tsr_protocol protocol;
};

/* A function that is NULL: as the ring does. */
struct tsr__algorithm {
    /* Microseconds: once per collective, and per hop over each medium; by protocol. A base of -1:
     * the algorithm has no such protocol. */
    double base_us[TSR__N_PROTOCOLS], nvlink_us[TSR__N_PROTOCOLS], pci_us[TSR__N_PROTOCOLS],
        net_us[TSR__N_PROTOCOLS];
    double member_us; /* and per member of the group */
    bool takes_sms;   /* a kernel on the GPU moves the bytes */
    unsigned buffers; /* set of TSR__NCCL_... */
    /* Whether NCCL has it for this collective of this group; `forced`: it was asked for by name. */
    bool (*exists)(const struct tsr__question *q, bool forced);
    /* Hops over each medium, one after the other, of a collective along the ring. */
    void (*count_hops)(const struct tsr__question *q, double *intra, double *inter);
    /* Bytes by medium; `out` has those of the ring. */
    void (*count_bytes)(const struct tsr__question *q, double bytes, double out[2]);
    /* Share of the rings' rate that it reaches over a medium. */
    double (*reach)(const struct tsr__question *q, int medium, uint64_t bytes);
};

#define X(id, word, row) extern const struct tsr__algorithm tsr__algorithm_##row;
TSR_ALGORITHMS(X)
#undef X

/* Bytes on the wire per byte of data. LL sends a 4-byte flag with 4 bytes of data, LL128 8 bytes of
 * flag with 120. */
extern const double tsr__ring_wire[TSR__N_PROTOCOLS];
/* Bytes of a collective along the ring of n members, without flags. */
double tsr__ring_bytes(uint8_t kind, double n, double bytes);
enum tsr__pattern tsr__coll_pattern(uint8_t kind);

static inline double tsr__floor_log2(uint64_t value)
{
    double log = 0.0;
    for (; value >= 2; value /= 2)
        log += 1.0;
    return log;
}

static inline double tsr__local_members(const struct tsr__coll_group *group)
{
    return (double)group->size / group->domains;
}

static inline bool tsr__gathers_or_scatters(uint8_t kind)
{
    return kind == TSR_ALL_GATHER || kind == TSR_REDUCE_SCATTER;
}

#endif
