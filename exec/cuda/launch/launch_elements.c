/* kernels_elements.c: kernels of elements whose numbers change from step to step. */
#include "exec/cuda/launch/cuda_kernels.h"

tsr_status tsr__cuda_with_scalars(const struct tsr_kernel_call *call)
{
    struct tsr_kernel_call later = *call;
    later.scalars_at = tsr_cuda_context(call)->scalars;
    return tsr_host_kernel(call->work->name)(&later);
}
