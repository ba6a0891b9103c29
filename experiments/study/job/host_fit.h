/* host_fit.h: whether the memory of a node's host suffices for the ranks that run on it.
 *
 * A rank holds pageable buffers and page-locked memory (engine/graph/host_memory.h); on a node
 * whose ranks are threads or processes without GPUs (TSR_INTRA_MEMORY), also what its allocator
 * reserves. A node holds what its ranks hold. Nothing keeps the hosts of ranks in step within a
 * program, so the maxima of its ranks count as simultaneous there; programs follow one another.
 * Rank r is on node r / gpus_per_node. All nodes of a cluster have the same memory.
 */
#ifndef TSR_STUDY_HOST_FIT_H
#define TSR_STUDY_HOST_FIT_H

#include "engine/program/base.h"

struct tsr_emission;
struct tsr_job;

/* UNKNOWN: the node file has no host.memory_bytes, or there is no cluster. */
enum tsr_host_verdict { TSR_HOST_UNKNOWN, TSR_HOST_FITS, TSR_HOST_TOO_SMALL };

/* The fullest node, bytes. Plain data. */
struct tsr_host_fit {
    int verdict;          /* enum tsr_host_verdict */
    uint64_t memory;      /* of a node; 0: unknown */
    uint64_t required;    /* the most that the ranks of a node hold; 0 without a cluster, too */
    uint64_t steady;      /* of them, the most in the steady iteration */
    uint64_t shortfall;   /* TOO_SMALL: required beyond memory */
    uint32_t node, ranks; /* the node that holds `required`, and its ranks */
    uint32_t rank;        /* of these the fullest */
    uint64_t rank_bytes;
    uint32_t program; /* index of the program in which that is */
    char section[16]; /* its name: "load", "step1"; "step": a later iteration */
};

/* What each rank class holds on the host in each program, at most. tsr_host_use_fini() frees it. */
struct tsr_host_use {
    uint32_t n_programs;
    uint64_t *bytes;  /* [class][n_programs] */
    uint32_t n_nodes; /* nodes that differ in the classes of their ranks; 0: there is no cluster */
    uint32_t *nodes;  /* [n_nodes] the first of each kind */
};

/* All zero bytes, to be filled in. On failure nothing is to be freed. Errors: TSR_ENOMEM. */
tsr_status tsr_host_use_init(const struct tsr_job *job, const struct tsr_emission *emission,
                             struct tsr_host_use *out) TSR_MUST_USE;
void tsr_host_use_fini(struct tsr_host_use *use);
/* Returns the most that the ranks of one node hold in program i, and in *node (may be NULL) which
 * node that is. 0 without a cluster. */
uint64_t tsr_host_of_node(const struct tsr_job *job, const struct tsr_emission *emission,
                          const struct tsr_host_use *use, uint32_t i, uint32_t *node);
/* Fills *out from what the ranks use. */
void tsr_host_fit_of(const struct tsr_job *job, const struct tsr_emission *emission,
                     const struct tsr_host_use *use, struct tsr_host_fit *out);

/* For files: "yes", "no", "unknown". For tables: "yes", "NO", "?". */
const char *tsr_host_word(int verdict);
const char *tsr_host_text(int verdict);

#endif
