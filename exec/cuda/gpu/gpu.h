/* gpu.h: a GPU as this process finds it (which one, whether it can be used, what it is), what a
 * launch needs of it, the events of a program on it, and ranges for a profiler.
 */
#ifndef TSR_EXEC_GPU_H
#define TSR_EXEC_GPU_H

#include <cuda_runtime_api.h>

#include "engine/program/base.h"
#include "engine/program/program.h"
#include "exec/kernels/call/kernel.h"

/* A GPU as the driver describes it; filled by tsr_gpu_open() and constant. free_memory is what was
 * free at that moment. */
struct tsr_cuda_gpu {
    int index; /* as CUDA counts the visible ones */
    char name[256];
    unsigned char uuid[16];
    int architecture; /* 80, 90, ...: 10 major + minor */
    int n_sms;
    uint64_t shared;              /* memory that a block may ask for, bytes */
    uint64_t memory, free_memory; /* bytes */
    int driver, runtime;          /* 13000 is 13.0 */
};

/* TSR_EBACKEND: no driver, a driver that is too old. Text: what was found and what is needed. */
tsr_status tsr_gpu_count(int *out) TSR_MUST_USE;
/* Makes GPU `index` the one of this thread. TSR_ECONFIG: there is no such one (the text says which
 * there are); TSR_EUNSUPPORTED: older than sm_80. */
tsr_status tsr_gpu_open(int index, struct tsr_cuda_gpu *out) TSR_MUST_USE;

/* ---- context --------------------------------------------------------------------------------- */

/* What a kernel of the GPU needs beside its operands: where it is launched, and the
 * libraries that it may call. call->context of every call on a CUDA device points to one. */

struct tsr_blas;           /* blas.h */
struct tsr_cuda_attention; /* attention.h */
struct tsr_slow;           /* slow.h */

/* What a kernel is launched with: one for each stream, made by the device, which owns all that it
 * points to. Its scratch belongs to the call that runs, and to the next one on that stream. */
struct tsr_cuda_context {
    cudaStream_t stream;
    uint16_t index;          /* of the stream in the program */
    int n_sms, architecture; /* multiprocessors that may be used; 80, 90, ... */
    uint64_t shared;         /* of a block, tsr_cuda_gpu.shared; 0: what all GPUs have */
    bool deterministic;      /* no result depends on the order of arrival */
    struct tsr_blas *blas;
    struct tsr_cuda_attention *attention;
    /* Memory of the stream for the time of one call: libraries' workspace, partial sums. */
    void *scratch;
    uint64_t scratch_bytes;
    /* More of it: between calls, and not while the stream is captured. What was scratch before
     * stays memory until the stream ends, since graphs may use it. NULL: there is no more. */
    tsr_status (*grow)(void *owner, uint16_t index, uint64_t bytes);
    void *owner; /* of grow() */
    /* The table of enum tsr_scalar in device memory, for launches that are captured in a graph and
     * run again with other values; NULL: call->scalars are the values. */
    const double *scalars;
    struct tsr_slow *slow; /* of the device; NULL: slow ways are neither counted nor refused */
};

static inline const struct tsr_cuda_context *tsr_cuda_context(const struct tsr_kernel_call *call)
{
    return (const struct tsr_cuda_context *)call->context;
}

/* A __global__ function of exec/cuda/kernels, which takes one structure by value. Its type there is
 * another: only its address counts. */
typedef void (*tsr_cuda_kernel)(void);

struct tsr_cuda_grid {
    unsigned blocks, threads; /* along x */
    unsigned rows;            /* blocks along y; 0: 1 */
    size_t shared;            /* dynamic shared memory, bytes */
};

/* Dynamic shared memory that a block may have on the GPU of the call, beside TSR_CUDA_OWN_SHARED
 * bytes that its kernel has anyway. */
enum { TSR_CUDA_OWN_SHARED = 4 << 10 };
uint64_t tsr_cuda_most_shared(const struct tsr_kernel_call *call);

/* Launches on the stream of the call. params: the kernel's structure; copied. TSR_EBACKEND: CUDA
 * says no; the text has the kernel's name in engine/ops/KERNELS.md. */
tsr_status tsr_cuda_launch(const struct tsr_kernel_call *call, tsr_cuda_kernel kernel,
                           struct tsr_cuda_grid grid, const void *params) TSR_MUST_USE;

/* tsr_launch_fn: runs code that the host has, too, as the GPU's kernel of that name
 * (launch_codes.c). */
tsr_status tsr_cuda_launch_code(const struct tsr_kernel_call *call, const struct tsr_code *code,
                                bool wide, const void *params, uint64_t n);

/* The kernel of engine/ops/KERNELS.md by name; NULL: the GPU does not have it. It is the host's
 * function if all that this does is tsr__run(); else one of the GPU's own (cuda_kernels.c). */
tsr_kernel_fn tsr_cuda_kernel_of(const char *name);
tsr_status tsr_cuda_fill(const struct tsr_kernel_call *call);

/* TSR_EBACKEND with what CUDA says of `error` and what was tried; TSR_EOOM for out of memory;
 * TSR_EUNSUPPORTED for a GPU that this program was not built for. */
tsr_status tsr_cuda_error(cudaError_t error, const char *tried) TSR_MUST_USE;
#define TSR_CUDA(tried, call)                                \
    do {                                                     \
        cudaError_t tsr_cuda_result = (call);                \
        if (tsr_cuda_result != cudaSuccess)                  \
            return tsr_cuda_error(tsr_cuda_result, (tried)); \
    } while (0)

/* ---- events ---------------------------------------------------------------------------------- */

/* The events of a program on a GPU: their numbers only grow, CUDA's events are few and
 * used again. Private to the CUDA device. */

/* More than may be recorded and not done at one time without the host waiting. */
enum { TSR_CUDA_EVENTS = 1 << 13 };

struct tsr_cuda_event {
    uint32_t number; /* of the program; 0: none yet */
    bool done;       /* is known to be */
    cudaEvent_t event;
    cudaEvent_t shared; /* the end of the graph in which it was recorded; NULL: `event` is it */
    uint64_t launch;    /* of that graph; 0: none */
};

static inline cudaEvent_t tsr_cuda_event_of(const struct tsr_cuda_event *e)
{
    return e->shared ? e->shared : e->event;
}

struct tsr_cuda_events {
    struct tsr_cuda_event *slots; /* [TSR_CUDA_EVENTS] */
};

tsr_status tsr_cuda_events_create(struct tsr_cuda_events *events) TSR_MUST_USE;
void tsr_cuda_events_destroy(struct tsr_cuda_events *events);
/* The place of an event; it may still be an earlier one's. */
struct tsr_cuda_event *tsr_cuda_event_slot(struct tsr_cuda_events *events, uint32_t number);
/* The event, to be waited for. NULL in *out: it is done. TSR_EDEFECT: it was not recorded. */
tsr_status tsr_cuda_event_find(struct tsr_cuda_events *events, uint32_t number,
                               struct tsr_cuda_event **out) TSR_MUST_USE;

/* Events that measure time, made as they are needed and kept for the next one. */
struct tsr_cuda_timers {
    cudaEvent_t *free;
    size_t n_free, cap_free;
};
tsr_status tsr_cuda_timer_take(struct tsr_cuda_timers *timers, cudaEvent_t *out) TSR_MUST_USE;
/* Takes it over; one that cannot be kept is destroyed. */
void tsr_cuda_timer_give(struct tsr_cuda_timers *timers, cudaEvent_t event);
void tsr_cuda_timers_fini(struct tsr_cuda_timers *timers);

/* ---- ranges ---------------------------------------------------------------------------------- */

/* What the host submits, as NVTX ranges for a profiler (Nsight Systems): the phase, and
 * in it the module. Compiled in with TESSERA_NVTX; otherwise it costs nothing. */

/* Of the thread that submits. */
struct tsr_cuda_ranges {
    bool has_phase, has_module;
    uint8_t phase;
    uint32_t module;
};

#if TSR_NVTX
/* The instruction is submitted next. tables: NULL: modules have no names. */
void tsr_cuda_ranges_next(struct tsr_cuda_ranges *ranges, const struct tsr_tables *tables,
                          const struct tsr_origin *origin);
/* A whole graph is. */
void tsr_cuda_ranges_graph(struct tsr_cuda_ranges *ranges);
void tsr_cuda_ranges_end(struct tsr_cuda_ranges *ranges);
#else
static inline void tsr_cuda_ranges_next(struct tsr_cuda_ranges *ranges,
                                        const struct tsr_tables *tables,
                                        const struct tsr_origin *origin)
{
    (void)ranges;
    (void)tables;
    (void)origin;
}
static inline void tsr_cuda_ranges_graph(struct tsr_cuda_ranges *ranges)
{
    (void)ranges;
}
static inline void tsr_cuda_ranges_end(struct tsr_cuda_ranges *ranges)
{
    (void)ranges;
}
#endif

#endif
