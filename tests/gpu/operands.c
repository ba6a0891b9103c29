/* operands.c: see cuda/operands.h; on a real GPU. */
#include "tests/cuda/operands.h"

#include "exec/cuda/gpu/gpu.h"

void *tsr_operands_new(size_t bytes)
{
    void *memory = NULL;
    return cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) == cudaSuccess ? memory : NULL;
}

void tsr_operands_free(void *memory)
{
    (void)cudaFree(memory); /* an error of a kernel shows in the next tsr_operands_finish(), too */
}

tsr_status tsr_operands_finish(void)
{
    TSR_CUDA("a kernel under test", cudaDeviceSynchronize());
    return TSR_OK;
}
