/* slow.h: ways of a run on a GPU that compute the same and take many times longer than the usual
 * one. Each is counted where it is taken, the run tells of them at its end, and in a job of 16
 * bits, which expects the speed of tensor cores, it is an error unless the user has allowed it by
 * name (--allow-slow).
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

/* The slow ways that the run of a device took; only the rank's host thread uses it. `is_half` is
 * set by the first product or attention of 16 bits. n counts launches and captures: what a graph
 * repeats is counted once. `first` says which it was, of the first of its kind. Zeros: none yet,
 * and none is allowed. */
struct tsr_slow {
    unsigned allowed; /* bits: 1 << enum tsr_slow_path */
    bool is_half;
    bool has_cudnn; /* the program was built with cuDNN, and it was not left out */
    uint64_t n[TSR_SLOW_PATHS];
    char first[TSR_SLOW_PATHS][160];
};

/* Counts one; `what` says which. TSR_EUNSUPPORTED: the job is of 16 bits, and the way is not
 * allowed. slow may be NULL: then everything is allowed and nothing is counted. */
tsr_status tsr_slow_take(struct tsr_slow *slow, enum tsr_slow_path path,
                         const char *what) TSR_MUST_USE;

/* Returns how many were taken, of all kinds. */
uint64_t tsr_slow_count(const struct tsr_slow *slow);

/* "" or one line of all that were taken. */
void tsr_slow_note(const struct tsr_slow *slow, char *out, size_t bytes);

/* Reads a list of names with commas between them: product, attention, graph, copy, scratch.
 * TSR_ECONFIG: another word. */
tsr_status tsr_slow_allow(const char *list, unsigned *allowed) TSR_MUST_USE;

#endif
