/* impl.h: the stand-in of the CUDA runtime: what its files share. */
#ifndef TSR_STANDIN_IMPL_H
#define TSR_STANDIN_IMPL_H

#include <stdatomic.h>

#include "tests/standin/standin.h"

/* Objects that exist; see tsr_standin_live(). */
extern _Atomic int64_t tsr_standin_objects;
/* The GPU of the calling thread. */
extern _Thread_local int tsr_standin_gpu;

/* The first error of some work; `error` 0: none yet. */
void tsr_standin_stick(int error);
void tsr_standin_unstick(void);

/* As TSR_STANDIN, of functions that return cudaError_t: a sticky error is returned, too. */
#define TSR_STANDIN_CUDA(entry)                            \
    do {                                                   \
        TSR_STANDIN(entry, cudaError_t);                   \
        if (tsr_standin_sticky() != cudaSuccess)           \
            return tsr_standin_note(tsr_standin_sticky()); \
    } while (0)
/* Keeps an error for cudaGetLastError() and returns it. */
cudaError_t tsr_standin_note(cudaError_t error);

/* Waits until all work of the stream is done. */
void tsr_standin_wait(cudaStream_t stream);
/* The entry points of the driver by name; NULL: unknown. */
void *tsr_standin_driver(const char *symbol);

#endif
