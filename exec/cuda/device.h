/* device.h: a GPU behind exec/device.h: streams with priorities, events, segments of device memory
 * at the program's addresses, pinned memory, collectives by comms.h.
 */
#ifndef TSR_CUDA_DEVICE_H
#define TSR_CUDA_DEVICE_H

#include "comms.h"
#include "exec/device.h"
#include "gpu.h"

struct tsr_cuda_device_config {
    int gpu; /* index */
    /* Borrowed until the engine's tables are known: priorities of streams. */
    const struct tsr_tables *(*tables)(void *user);
    struct tsr_comms *comms; /* owned by the device from here on; NULL: a world of one */
    const char *plans;       /* see struct tsr_blas_config */
    bool deterministic;
    double timeout_s;      /* of waits */
    bool serial;           /* every task is waited for: for finding which one fails */
    tsr_task_done_fn done; /* may be NULL */
    void *user;
};

tsr_status tsr_cuda_device_create(const struct tsr_cuda_device_config *config,
                                  struct tsr_device **out) TSR_MUST_USE;

#endif
