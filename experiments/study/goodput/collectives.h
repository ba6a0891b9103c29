/* collectives.h: what collectives of some sizes take on a cluster: what nccl-tests would print. */
#ifndef TSR_STUDY_COLLECTIVES_H
#define TSR_STUDY_COLLECTIVES_H

#include "engine/program/base.h"

enum { TSR_COLLECTIVES_SIZES = 64, TSR_COLLECTIVES_KINDS = 5 };

/* all_reduce, all_gather, reduce_scatter, all_to_all, broadcast; then NULL. */
extern const char *const tsr_collectives_names[TSR_COLLECTIVES_KINDS + 1];

struct tsr_collectives_options {
    const char *cluster;     /* a name, "dgx-h100-2", or a path */
    const char *const *sets; /* [n_sets] "sim.intra_bw=1e11": keys over their defaults */
    size_t n_sets;
    uint64_t ranks;        /* from the first GPU on, node by node; 0: all GPUs of the cluster */
    unsigned kinds;        /* set of 1 << index of a name; 0: all */
    const uint64_t *bytes; /* [n_bytes] sizes, up to TSR_COLLECTIVES_SIZES; n_bytes 0: powers of two
                              from 1 KiB to 16 GiB */
    size_t n_bytes;
};

/* Plain data. */
struct tsr_collectives {
    char cluster[64], gpu[64];
    uint32_t ranks, nodes;
    unsigned kinds; /* those that were asked for */
    size_t n;
    uint64_t bytes[TSR_COLLECTIVES_SIZES];
    double seconds[TSR_COLLECTIVES_KINDS][TSR_COLLECTIVES_SIZES];
    double busbw[TSR_COLLECTIVES_KINDS][TSR_COLLECTIVES_SIZES]; /* bytes per second, as nccl-tests
                                                                   defines it */
    double ring_busbw; /* of the largest all-reduce as a ring; 0: it is one, or an algorithm was
                          asked for */
};

/* Errors: TSR_ECONFIG, those of a simulation. */
tsr_status tsr_collectives_predict(const struct tsr_collectives_options *options,
                                   struct tsr_collectives *out) TSR_MUST_USE;

#endif
