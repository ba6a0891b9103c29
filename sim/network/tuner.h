/* tuner.h: algorithm, protocol, latency and bytes of a collective, as NCCL's tuner has them.
 * Private to sim/.
 *
 * A collective of NCCL is priced as its own tuner does: latency of its steps plus bytes over
 * bandwidth, for every algorithm and protocol that the group can use; AUTO takes the least. The
 * latency is paid once, before the flows; the bytes become flows over the rings' edges (see
 * fabric.h), so that sharing of links is SimGrid's. What the tuner's constants miss is a few
 * calibrated numbers of the GPU type and of the network adapter (calibration.h, cluster.h).
 */
#ifndef TSR_SIM_TUNER_H
#define TSR_SIM_TUNER_H

#include "sim/cluster/cluster.h"
#include "sim/input/job.h"
#include "sim/network/algorithms/algorithm.h"
#include "sim/network/fabric.h"

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

/* `tuned`: bytes that the choice goes by, those of all calls of a launch; `bytes`: of this call.
 * More bandwidth never makes a collective slower. `inter`: for SEND and RECV, whether the peer is
 * elsewhere. A forced algorithm or protocol that the collective cannot use is left out of
 * consideration, as NCCL does. */
struct tsr__coll_choice tsr__coll_choose(const struct tsr__coll_model *model,
                                         const struct tsr__coll_group *group, uint8_t kind,
                                         uint64_t bytes, uint64_t tuned, bool inter);

/* Returns the buffers of a communicator that an algorithm needs: a set of TSR__NCCL_... */
unsigned tsr__coll_buffers(enum tsr_algorithm algorithm);

#endif
