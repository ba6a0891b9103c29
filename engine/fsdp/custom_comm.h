/* custom_comm.h: collectives of one's own in place of all-gather and reduce-scatter (R195, R196),
 * and one that is shipped: the all-gather over two levels. tsr_set_custom_all_gather() of
 * methods.h takes them.
 */
#ifndef TSR_ENGINE_CUSTOM_COMM_H
#define TSR_ENGINE_CUSTOM_COMM_H

#include "engine/program/base.h"

struct tsr_engine;
struct tsr_tensor;

/* What a collective is asked for. */
struct tsr_custom_call {
    uint16_t comm;        /* index into tsr_tables.comms */
    uint32_t size, index; /* of the group of ranks; this rank's place in it */
    uint8_t reduce_op;    /* enum tsr_reduce_op; all-gather: NONE */
    double factor;        /* PREMUL_SUM */
};
struct tsr_custom_comm {
    const char *name;
    /* Emits the collective on the current stream with the functions of user_emit.h: `in` is this
     * rank's contribution, `out` the result, both borrowed. */
    void (*run)(struct tsr_engine *engine, struct tsr_tensor *out, struct tsr_tensor *in,
                const struct tsr_custom_call *call, void *user);
    /* Is told of each buffer, of `numel` elements, before it is made. May be NULL. */
    void (*allocate)(struct tsr_engine *engine, uint64_t numel, tsr_dtype dtype, void *user);
    void *user;
    bool is_pure; /* what they do depends on their arguments only: steps can be replayed (replay.h)
                   */
};

/* Shipped example: pieces cross the network between ranks with the same place in their nodes, then
 * spread inside the nodes. The caller owns `two_level`, does not move it, and keeps it while the
 * engine lives. */
struct tsr_two_level {
    struct tsr_custom_comm comm; /* for tsr_set_custom_all_gather() */
    uint32_t local_ranks;        /* members of the communicator in one node, side by side */
};
void tsr_two_level_init(struct tsr_two_level *two_level, uint32_t local_ranks);
/* The same for every group that was wrapped; the engine owns it. Errors: TSR_EVALUE for a
 * replicated module, TSR_ENOMEM. */
tsr_status tsr_use_two_level_gather(struct tsr_engine *engine, uint32_t gpus_per_node) TSR_MUST_USE;

#endif
