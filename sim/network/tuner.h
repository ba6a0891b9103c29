/* tuner.h: algorithm, protocol, latency and bytes of a collective, as NCCL's tuner has them.
 * Private to sim/.
 *
 * A collective of NCCL is priced as its own tuner does: latency of its steps plus bytes over
 * bandwidth, for every algorithm and protocol that the group can use; AUTO takes the least. The
 * latency is paid once, before the flows; the bytes become flows over the rings' edges (see
 * rings.h), so that sharing of links is SimGrid's. What the tuner's constants miss is a few
 * calibrated numbers of the GPU type and of the network adapter (calibration.h, cluster.h).
 */
#ifndef TSR_SIM_TUNER_H
#define TSR_SIM_TUNER_H

#include "sim/cluster/cluster.h"
#include "sim/input/job.h"
#include "sim/network/fabric.h"

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

struct tsr__coll_choice {
    enum tsr_algorithm algorithm;
    enum tsr_protocol protocol;
    double latency_s; /* paid once, before the flows */
    double sent[2];   /* bytes on the wire per unit of an edge's share, by medium */
    double bytes[2];  /* as many as would take as long at the links' rate */
    bool takes_sms;   /* a kernel on the GPU moves them */
};

void tsr__coll_model_init(struct tsr__coll_model *model, const struct tsr_cluster *cluster,
                          const struct tsr_sim_options *options);

enum tsr__pattern tsr__coll_pattern(uint8_t kind);

/* `tuned`: bytes that the choice goes by, those of all calls of a launch; `bytes`: of this call.
 * More bandwidth never makes a collective slower. `inter`: for SEND and RECV, whether the peer is
 * elsewhere. A forced algorithm or protocol that the collective cannot use is left out of
 * consideration, as NCCL does. */
struct tsr__coll_choice tsr__coll_choose(const struct tsr__coll_model *model,
                                         const struct tsr__coll_group *group, uint8_t kind,
                                         uint64_t bytes, uint64_t tuned, bool inter);

#endif
