/* capture.h: work that streams are given while they are captured becomes nodes of a graph. What
 * stream.c and memory.c ask of capture.c.
 */
#ifndef TSR_STANDIN_CAPTURE_H
#define TSR_STANDIN_CAPTURE_H

#include "tests/standin/standin.h"

/* Of a stream that is captured: after which nodes its next work comes. Of an event: after which
 * nodes it was recorded. */
struct tsr_standin_place {
    uint64_t capture; /* number of the capture; 0: not captured */
    size_t n, cap;
    uint32_t *after;
};

/* Appends a node. in_order: such nodes run in the order in which they were captured. */
cudaError_t tsr_standin_capture_work(struct tsr_standin_place *at, tsr_standin_fn run,
                                     const void *data, size_t bytes, bool in_order);
/* event := what comes after everything at `at`. */
cudaError_t tsr_standin_capture_record(struct tsr_standin_place *event,
                                       const struct tsr_standin_place *at);
/* The stream (captured, or joining) comes after the event. */
cudaError_t tsr_standin_capture_wait(struct tsr_standin_place *at,
                                     const struct tsr_standin_place *event, cudaStream_t stream);
/* What CUDA forbids while a stream is captured was tried: the capture is lost. */
cudaError_t tsr_standin_spoil(const struct tsr_standin_place *at, cudaError_t error);
/* Refused while this thread captures: allocations, waits for the device. (CUDA allows some of them
 * in its relaxed mode; what is replayed must not have needed them.) */
cudaError_t tsr_standin_uncaptured(void);
void tsr_standin_place_clear(struct tsr_standin_place *place);

/* Of stream.c. As tsr_standin_enqueue(), but it runs even after a failure, and never late. */
cudaError_t tsr_standin_enqueue_always(cudaStream_t stream, tsr_standin_fn run, const void *data,
                                       size_t bytes);
/* A node as a stream runs its work. */
int tsr_standin_run_node(tsr_standin_fn run, void *data);
struct tsr_standin_place *tsr_standin_place_of(cudaStream_t stream);

#endif
