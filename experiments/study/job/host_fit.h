/* host_fit.h: whether the memory of a node's host suffices for the ranks that run on it.
 *
 * A rank holds pageable buffers and page-locked memory (engine/graph/host_memory.h); on a node
 * whose ranks are threads or processes without GPUs (TSR_INTRA_MEMORY), also what its allocator
 * reserves. A node holds what its ranks hold at a time. Ranks are in step as long as their programs
 * allocate and free alike; from where they differ up to the next collective nothing keeps their
 * hosts in step, so the maxima of the ranks count as simultaneous there. Rank r is on node
 * r / gpus_per_node. All nodes of a cluster have the same memory.
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
    uint64_t required;    /* the most that the ranks of a node and the dataset hold; 0 without a
                             cluster, too */
    uint64_t dataset;     /* of them, what the dataset holds (data.host_gib) */
    uint64_t steady;      /* of them, the most in the steady iteration */
    uint64_t shortfall;   /* TOO_SMALL: required beyond memory */
    uint32_t node, ranks; /* the node that holds `required`, and its ranks */
    uint32_t rank;        /* of these the fullest */
    uint64_t rank_bytes;
    uint32_t program; /* index of the program in which that is */
    char section[16]; /* its name: "load", "step1"; "step": a later iteration */
};

/* The most bytes that each host holds during each program of an emission. tsr_host_use_fini() frees
 * it.
 */
struct tsr_host_use {
    uint32_t n_programs;
    uint64_t *bytes; /* [class][n_programs] of a rank */
    struct tsr_host_sum {
        uint64_t bytes;
        uint32_t node;
    } * nodes; /* [n_programs] the fullest node; all zero without a cluster */
};

/* Replays the programs of all rank classes. On failure nothing is to be freed. Errors: TSR_ENOMEM;
 * TSR_EASSERT: a program frees what is not there. */
tsr_status tsr_host_use_of(const struct tsr_job *job, const struct tsr_emission *emission,
                           struct tsr_host_use *out) TSR_MUST_USE;
void tsr_host_use_fini(struct tsr_host_use *use);
/* Fills *out from what the ranks use. */
void tsr_host_fit_of(const struct tsr_job *job, const struct tsr_emission *emission,
                     const struct tsr_host_use *use, struct tsr_host_fit *out);

/* For files: "yes", "no", "unknown". For tables: "yes", "NO", "?". */
const char *tsr_host_word(int verdict);
const char *tsr_host_text(int verdict);

#endif
