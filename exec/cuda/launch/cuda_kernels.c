/* cuda_kernels.c: which function of the host launches a kernel of engine/ops/KERNELS.md on the GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/launch/cuda_launch.h"

/* Names whose function is the host's: it takes the operands, and tsr__run() launches code. In the
 * order of strcmp(). */
static const char *const shared[] = {
    "accumulate_grad",
    "accumulate_sharded_grad",
    "add",
    "add_eps",
    "add_into",
    "add_mask",
    "add_scalar",
    "all_gather_cast",
    "all_gather_copy_in",
    "arange",
    "bucket_cast",
    "bucket_to_grad",
    "cast",
    "cat",
    "cat_gradients",
    "chunk_cat",
    "clamp",
    "clone",
    "compress",
    "conjugate",
    "copy",
    "cos",
    "count_labels",
    "cross_entropy_backward",
    "decompress",
    "div",
    "div_by_world",
    "embedding",
    "expand_heads",
    "fill",
    "foreach_mul_clip",
    "foreach_norm",
    "fused_add_layer_norm",
    "fused_add_layer_norm_backward",
    "fused_add_rms_norm",
    "fused_add_rms_norm_backward",
    "fused_cross_entropy",
    "fused_rope",
    "fused_swiglu",
    "fused_swiglu_backward",
    "gelu",
    "gelu_backward",
    "gelu_erf",
    "gelu_erf_backward",
    "grad_cast",
    "grad_to_bucket",
    "grad_upcast",
    "host_add",
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
    "mul",
    "mul_scalar",
    "neg",
    "nll_backward_tp",
    "nll_gather",
    "nll_loss",
    "nll_loss_backward",
    "nll_loss_part",
    "nll_rows",
    "norm_power",
    "ones",
    "pad",
    "pad_backward",
    "param_cast",
    "param_copy",
    "pow",
    "reciprocal",
    "relu",
    "rms_norm",
    "rms_norm_backward",
    "root",
    "rotary",
    "rotary_backward",
    "rotary_table",
    "row_exp_sum",
    "row_max",
    "rsqrt",
    "scalar",
    "scale",
    "scale_input_grad",
    "scale_weight_grad",
    "silu",
    "silu_backward",
    "sin",
    "slice_backward",
    "softmax",
    "softmax_backward",
    "split_with_sizes_copy",
    "stack",
    "sub_scalar",
    "sum",
    "sum_bias_grad",
    "sum_heads",
    "sum_rows",
    "sum_weight_grad",
    "tanh",
    "tanh_backward",
    "threshold_backward",
    "total_norm",
    "tril",
    "used_map",
    "where",
};

/* The host's function, told where scalars lie when the kernel runs: they change from step to step.
 */
static tsr_status with_scalars(const struct tsr_kernel_call *call)
{
    struct tsr_kernel_call later = *call;
    later.scalars_at = tsr_cuda_context(call)->scalars;
    return tsr_host_kernel(call->work->name)(&later);
}

/* Names whose function is the GPU's own. In the order of strcmp(); a name that ends in * stands for
 * all that begin so. */
static const struct own {
    const char *name;
    tsr_kernel_fn fn;
} own[] = {
    {"add_decay", with_scalars},
    {"add_momentum", with_scalars},
    {"add_nesterov", with_scalars},
    {"add_sgd", with_scalars},
    {"addcdiv", with_scalars},
    {"addcmul_exp_avg_sq", with_scalars},
    {"addmm", tsr__cuda_mm},
    {"addmm_input_grad", tsr__cuda_mm},
    {"addmm_weight_grad", tsr__cuda_mm},
    {"bmm_grad_k", tsr__cuda_bmm},
    {"bmm_grad_p", tsr__cuda_bmm},
    {"bmm_grad_q", tsr__cuda_bmm},
    {"bmm_grad_v", tsr__cuda_bmm},
    {"bmm_scores", tsr__cuda_bmm},
    {"bmm_values", tsr__cuda_bmm},
    {"clone_momentum", with_scalars},
    {"d2h_*", tsr__cuda_copy},
    {"device_copy", tsr__cuda_copy},
    {"div_bias_correction", with_scalars},
    {"efficient_attention", tsr__cuda_attention},
    {"efficient_attention_backward", tsr__cuda_attention_backward},
    {"embedding_dense_backward", tsr__cuda_embedding_grad},
    {"flash_attention", tsr__cuda_attention},
    {"flash_attention_backward", tsr__cuda_attention_backward},
    {"foreach_add_decay", with_scalars},
    {"foreach_add_eps", with_scalars},
    {"foreach_add_momentum", with_scalars},
    {"foreach_add_nesterov", with_scalars},
    {"foreach_add_sgd", with_scalars},
    {"foreach_add_step", with_scalars},
    {"foreach_addcdiv", with_scalars},
    {"foreach_addcmul_exp_avg_sq", with_scalars},
    {"foreach_div_bias_correction", with_scalars},
    {"foreach_lerp_exp_avg", with_scalars},
    {"foreach_maximum", with_scalars},
    {"foreach_mul_exp_avg_sq", with_scalars},
    {"foreach_mul_momentum", with_scalars},
    {"foreach_mul_weight_decay", with_scalars},
    {"foreach_neg_grad", with_scalars},
    {"foreach_sqrt", with_scalars},
    {"fused_adamw", with_scalars},
    {"fused_sgd", with_scalars},
    {"fused_sgd_nesterov", with_scalars},
    {"h2d_*", tsr__cuda_copy},
    {"lerp_exp_avg", with_scalars},
    {"load_shard", tsr__cuda_copy},
    {"maximum", with_scalars},
    {"mm", tsr__cuda_mm},
    {"mm_input_grad", tsr__cuda_mm},
    {"mm_weight_grad", tsr__cuda_mm},
    {"mul_exp_avg_sq", with_scalars},
    {"mul_max_norm", with_scalars},
    {"mul_momentum", with_scalars},
    {"mul_weight_decay", with_scalars},
    {"neg_grad", with_scalars},
    {"pad_shard", tsr__cuda_copy},
    {"post_forward_slice", tsr__cuda_copy},
    {"reduce_scatter_copy", tsr__cuda_copy},
    {"save_shard", tsr__cuda_copy},
    {"sqrt", with_scalars},
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
