/* cuda_device.h: a GPU behind exec/executor/device.h: streams with priorities, events, segments of
 * device memory at the program's addresses, pinned memory, collectives by comms.h.
 */
#ifndef TSR_EXEC_CUDA_DEVICE_H
#define TSR_EXEC_CUDA_DEVICE_H

#include "exec/cuda/comms/comms.h"
#include "exec/cuda/comms/watchdog.h"
#include "exec/cuda/gpu/gpu.h"
#include "exec/executor/device.h"
#include "exec/executor/executor.h"

/* Copied by tsr_cuda_device_create(), which owns `comms` from then on, also when it fails. */
struct tsr_cuda_device_config {
    int gpu; /* index */
    /* The engine's, with the priorities of streams, when a stream is first used; NULL: not known.
     * May be NULL. */
    const struct tsr_tables *(*tables)(void *user);
    uint64_t unit;           /* of memory that is given back; see tsr_cuda_space_init() */
    struct tsr_comms *comms; /* owned by the device from here on; NULL: a world of one */
    const char *plans;       /* see struct tsr_blas_config */
    bool tune, deterministic;
    double timeout_s; /* a device on which nothing moves for so long is lost; 0: never */
    /* The host thread hangs after the ranks have lost each other: for a program that ends then. May
     * be NULL. `user` is that of the functions below. */
    tsr_watchdog_fn stuck;
    bool direct;          /* every task is launched by itself: no graphs */
    bool serial;          /* every task is waited for: for finding which one fails */
    bool plain_attention; /* by our own kernels, though there is cuDNN */
    unsigned allow_slow;  /* bits: see struct tsr_slow */
    /* Is told of a task when the device has taken it over, without times: a stream runs its tasks
     * in order, and the first that fails is the last. May be NULL. */
    tsr_task_done_fn done;
    tsr_task_times_fn times; /* later, when set_timing() asked for them; may be NULL */
    void *user;              /* of the three functions */
};

tsr_status tsr_cuda_device_create(const struct tsr_cuda_device_config *config,
                                  struct tsr_device **out) TSR_MUST_USE;

/* What every CUDA device has: its kernels can be asked for without one. */
const struct tsr_device_ops *tsr_cuda_device_ops(void);

/* Memory of the GPU as the device holds it, in bytes. */
struct tsr_cuda_memory {
    uint64_t mapped, peak; /* segments of the program; the most */
    uint64_t library;      /* scratch of streams, outside of the program's accounts */
    uint64_t used, total;  /* of the whole GPU, by all who use it */
};
tsr_status tsr_cuda_device_memory(const struct tsr_device *device,
                                  struct tsr_cuda_memory *out) TSR_MUST_USE;
/* What a user should know after the first step, in one line; "": nothing. */
void tsr_cuda_device_note(const struct tsr_device *device, char *out, size_t n);
/* What the communicators are, in a line for notes; "": nothing to say. */
void tsr_cuda_device_comms(const struct tsr_device *device, char *text, size_t bytes);

/* ---- one rank: a device with an executor on it ----------------------------------------------- */

/* What a device and the executor on it are made of: the fields of struct tsr_cuda_device_config
 * and struct tsr_exec_config that a rank chooses. */
struct tsr_cuda_rank_config {
    struct tsr_world *world; /* borrowed; NULL: a world of one */
    const struct tsr_source *source;
    size_t n_kernels;
    const struct tsr_user_kernel *kernels; /* they launch on call->context, see gpu.h */
    int gpu;
    uint64_t unit;           /* see struct tsr_cuda_device_config */
    struct tsr_comms *comms; /* taken over, also on failure; NULL: a world of one */
    const char *plans;       /* of matrix products: see struct tsr_blas_config; borrowed */
    double timeout_s;
    bool tune, deterministic, direct, serial, poison, profile, plain_attention;
    unsigned allow_slow;          /* see struct tsr_slow */
    tsr_watchdog_fn stuck;        /* see struct tsr_cuda_device_config; without `user` */
    struct tsr_executor *watcher; /* borrowed; NULL: none */
};

/* Destroyed through its ops, by the thread that made it. *device: the executor's, borrowed; may be
 * NULL. Errors: those of tsr_gpu_open(). */
tsr_status tsr_cuda_rank_create(const struct tsr_cuda_rank_config *config,
                                struct tsr_executor **out, struct tsr_device **device) TSR_MUST_USE;

#endif
