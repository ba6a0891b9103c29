/* kernels.c: which function of the host launches a kernel of engine/KERNELS.md on the GPU. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

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

/* Names whose function is the GPU's own. In the order of strcmp(); a name that ends in * stands for
 * all that begin so. */
static const struct own {
    const char *name;
    tsr_kernel_fn fn;
} own[] = {
    {"addmm", tsr__cuda_mm},
    {"addmm_weight_grad", tsr__cuda_mm},
    {"bmm_grad_k", tsr__cuda_bmm},
    {"bmm_grad_p", tsr__cuda_bmm},
    {"bmm_grad_q", tsr__cuda_bmm},
    {"bmm_grad_v", tsr__cuda_bmm},
    {"bmm_scores", tsr__cuda_bmm},
    {"bmm_values", tsr__cuda_bmm},
    {"d2h_*", tsr__cuda_copy},
    {"device_copy", tsr__cuda_copy},
    {"efficient_attention", tsr__cuda_attention},
    {"efficient_attention_backward", tsr__cuda_attention_backward},
    {"flash_attention", tsr__cuda_attention},
    {"flash_attention_backward", tsr__cuda_attention_backward},
    {"h2d_*", tsr__cuda_copy},
    {"load_shard", tsr__cuda_copy},
    {"mm", tsr__cuda_mm},
    {"mm_input_grad", tsr__cuda_mm},
    {"mm_weight_grad", tsr__cuda_mm},
    {"pad_shard", tsr__cuda_copy},
    {"post_forward_slice", tsr__cuda_copy},
    {"reduce_scatter_copy", tsr__cuda_copy},
    {"save_shard", tsr__cuda_copy},
};

static int compare(const void *name, const void *entry)
{
    return strcmp((const char *)name, *(const char *const *)entry);
}

static int compare_own(const void *name, const void *entry)
{
    const char *own_name = ((const struct own *)entry)->name;
    size_t n = strlen(own_name);
    return own_name[n - 1] == '*' ? strncmp((const char *)name, own_name, n - 1)
                                  : strcmp((const char *)name, own_name);
}

tsr_kernel_fn tsr_cuda_kernel_of(const char *name)
{
    if (bsearch(name, shared, sizeof shared / sizeof *shared, sizeof *shared, compare))
        return tsr_host_kernel(name);
    const struct own *e = bsearch(name, own, sizeof own / sizeof *own, sizeof *own, compare_own);
    return e ? e->fn : NULL;
}
