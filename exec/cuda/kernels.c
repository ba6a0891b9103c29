/* kernels.c: which function of the host launches a kernel of engine/KERNELS.md on the GPU. */
#include <stdlib.h>
#include <string.h>

#include "context.h"

/* Names whose function is the host's: it takes the operands, and tsr__run() launches code. In the
 * order of strcmp(). */
static const char *const shared[] = {
    "fused_add_layer_norm",
    "fused_add_layer_norm_backward",
    "fused_add_rms_norm",
    "fused_add_rms_norm_backward",
    "fused_swiglu",
    "fused_swiglu_backward",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "log_softmax_tp",
    "rms_norm",
    "rms_norm_backward",
    "row_exp_sum",
    "row_max",
    "softmax",
    "softmax_backward",
};

static int compare(const void *name, const void *entry)
{
    return strcmp((const char *)name, *(const char *const *)entry);
}

tsr_kernel_fn tsr_cuda_kernel_of(const char *name)
{
    if (bsearch(name, shared, sizeof shared / sizeof *shared, sizeof *shared, compare))
        return tsr_host_kernel(name);
    return NULL;
}
