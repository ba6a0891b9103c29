/* custom_comm.h: collectives of one's own, and one that is shipped: the gather over two levels.
 */
#ifndef TSR_CUSTOM_COMM_H
#define TSR_CUSTOM_COMM_H

#include "engine/program/base.h"

struct tsr_engine;
struct tsr_tensor;

/* A collective of one's own (R195, R196). run() emits it on the current stream with the tsr_emit_
 * functions below: `in` is this rank's contribution, `out` the result; group size, own index and
 * communicator are in `call`. allocate() (may be NULL) is told of each buffer before it is made. */
struct tsr_custom_call {
    uint16_t comm; /* index into tsr_tables.comms */
    uint32_t size, index;
    uint8_t reduce_op; /* enum tsr_reduce_op; all-gather: NONE */
    double factor;     /* PREMUL_SUM */
};
struct tsr_custom_comm {
    const char *name;
    void (*run)(struct tsr_engine *e, struct tsr_tensor *out, struct tsr_tensor *in,
                const struct tsr_custom_call *call, void *user);
    void (*allocate)(struct tsr_engine *e, uint64_t numel, tsr_dtype dtype, void *user);
    void *user;
    bool is_pure; /* what they do depends on their arguments only: steps can be replayed (replay.h)
                   */
};

/* Shipped example: pieces cross the network between ranks with the same place in their nodes, then
 * spread inside the nodes. The caller owns `t` and keeps it while the engine lives. */
struct tsr_two_level {
    struct tsr_custom_comm comm; /* for tsr_set_custom_all_gather() */
    uint32_t local_ranks;        /* members of the communicator in one node, side by side */
};
void tsr_two_level_init(struct tsr_two_level *t, uint32_t local_ranks);
/* The same for every group that was wrapped; the engine owns it. */
tsr_status tsr_use_two_level_gather(struct tsr_engine *e, uint32_t gpus_per_node) TSR_MUST_USE;

#endif
