/* kernels.c: which function of the host launches a kernel of engine/KERNELS.md on the GPU. */
#include <stdlib.h>
#include <string.h>

#include "context.h"

/* Names whose function is the host's: it takes the operands, and tsr__run() launches code. In the
 * order of strcmp(). */
static const char *const shared[] = {
    "count_labels",
    "cross_entropy_backward",
    "foreach_norm",
    "fused_add_layer_norm",
    "fused_add_layer_norm_backward",
    "fused_add_rms_norm",
    "fused_add_rms_norm_backward",
    "fused_cross_entropy",
    "fused_swiglu",
    "fused_swiglu_backward",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "log_softmax_tp",
    "mean",
    "mean_all",
    "mse",
    "mse_backward",
    "mse_target",
    "nll_backward_tp",
    "nll_gather",
    "nll_loss",
    "nll_loss_backward",
    "nll_loss_part",
    "nll_rows",
    "norm_power",
    "rms_norm",
    "rms_norm_backward",
    "row_exp_sum",
    "row_max",
    "scale_weight_grad",
    "softmax",
    "softmax_backward",
    "sum",
    "sum_bias_grad",
    "sum_rows",
    "sum_weight_grad",
    "total_norm",
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
