/* graphs.h: stretches of a program as CUDA graphs (struct tsr_device_graphs of
 * exec/executor/device.h). Private to the CUDA device.
 *
 * A graph is captured on the program's first stream, from which the others fork, and which they
 * join at its end. It is launched there, too, after everything that the streams in it have been
 * given before; what comes later on them waits for it. Events that are recorded inside count as
 * done when the whole graph is. Values of enum tsr_scalar are read from a table in device memory,
 * which is written before each launch.
 */
#ifndef TSR_CUDA_GRAPHS_H
#define TSR_CUDA_GRAPHS_H

#include "exec/executor/device.h"

#include <cuda_runtime_api.h>

struct tsr_cuda_device;
struct tsr_cuda_stream;

enum {
    TSR_CUDA_GRAPHS = 24,  /* that are kept: a few states of a few stretches */
    TSR_CUDA_LAUNCHES = 64 /* whose ends are remembered one by one */
};

struct tsr_cuda_graph {
    uint64_t key, last_use;
    cudaGraphExec_t exec; /* NULL: it was refused */
    bool is_used;
    uint64_t tasks[64]; /* by stream */
};

/* An event that a captured stream has recorded, by its number in the program. */
struct tsr_cuda_captured {
    uint32_t number;
    cudaEvent_t event;
};

struct tsr_cuda_graphs {
    enum { TSR_CUDA_DIRECT, TSR_CUDA_CAPTURES, TSR_CUDA_RUNS } what;
    struct tsr_cuda_graph all[TSR_CUDA_GRAPHS], *now;
    uint64_t n_uses;
    double *scalars; /* on the device */
    cudaEvent_t fork;
    cudaEvent_t done[TSR_CUDA_LAUNCHES]; /* a ring: the end of a launch */
    uint64_t n_launches;
    /* of a capture; events are used again by the next one */
    size_t n_captured, cap_captured, n_events;
    struct tsr_cuda_captured *captured;
    bool has_joined[64]; /* by stream */
    char why[256];       /* the latest refusal */
};

extern const struct tsr_device_graphs tsr_cuda_device_graphs;

/* A task while `what` is not TSR_CUDA_DIRECT. */
tsr_status tsr__cuda_graph_task(struct tsr_cuda_device *d, struct tsr_cuda_stream *s,
                                const struct tsr_task *task) TSR_MUST_USE;
void tsr__cuda_graphs_close(struct tsr_cuda_device *d);

#endif
