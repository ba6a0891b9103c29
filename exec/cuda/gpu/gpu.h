/* gpu.h: a GPU as this process finds it: which one, whether it can be used, what it is. */
#ifndef TSR_CUDA_GPU_H
#define TSR_CUDA_GPU_H

#include "exec/kernels/call/kernel.h"

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

#endif
