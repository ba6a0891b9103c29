/* slow.h: slow paths of a run on a GPU: they compute the same as the usual ones and take many times
 * longer. Each is counted where it is taken, and the run prints the counts at its end. A job of 16
 * bits expects the speed of tensor cores: there a slow path is an error unless the user has allowed
 * it by name (--allow-slow).
 */
#ifndef TSR_EXEC_CUDA_SLOW_H
#define TSR_EXEC_CUDA_SLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/program/base.h"

enum tsr_slow_path {
    TSR_SLOW_PRODUCT, /* cuBLASLt has no algorithm for a matrix product: a plain kernel computes it
                       */
    TSR_SLOW_ATTENTION, /* cuDNN has no plan for an attention: plain kernels compute it */
    TSR_SLOW_GRAPH, /* a stretch of a step cannot be captured: its tasks are launched one by one */
    TSR_SLOW_COPY,  /* a copy from or to host memory that is not pinned: the driver copies it twice
                     */
    TSR_SLOW_SCRATCH, /* a library's workspace does not fit: plain kernels compute it */
    TSR_SLOW_PATHS
};
#define TSR_SLOW_ALL ((1u << TSR_SLOW_PATHS) - 1)

/* The slow paths that the run of a device took. Only the rank's host thread uses it. All zeros:
 * none was taken, and none is allowed. is_half is set by the first product or attention of 16 bits.
 * n counts launches and captures: work that a graph repeats is counted once. first: describes the
 * first of each kind. */
struct tsr_slow {
    unsigned allowed; /* bits: 1 << enum tsr_slow_path */
    bool is_half;
    bool has_cudnn; /* the program was built with cuDNN, and it was not left out */
    uint64_t n[TSR_SLOW_PATHS];
    char first[TSR_SLOW_PATHS][160];
};

/* Counts a slow path that `what` describes. TSR_EUNSUPPORTED: the job is of 16 bits, and the path
 * is not allowed. slow may be NULL: then everything is allowed and nothing is counted. */
tsr_status tsr_slow_take(struct tsr_slow *slow, enum tsr_slow_path path,
                         const char *what) TSR_MUST_USE;

/* Returns how many were taken, of all kinds. */
uint64_t tsr_slow_count(const struct tsr_slow *slow);

/* Writes one line about all paths that were taken; "" for none. */
void tsr_slow_note(const struct tsr_slow *slow, char *out, size_t bytes);

/* Reads a list of names with commas between them: product, attention, graph, copy, scratch.
 * TSR_ECONFIG: another word. */
tsr_status tsr_slow_allow(const char *list, unsigned *allowed) TSR_MUST_USE;

#endif
