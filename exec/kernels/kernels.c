/* kernels.c: the host's kernels by name. What each computes: engine/ops/KERNELS.md. */
#include <string.h>

#include "exec/kernels/call/kernel.h"
#include "exec/kernels/call/table.h"

struct entry {
    const char *name; /* one that ends in * stands for all that begin so */
    tsr_kernel_fn fn;
};

/* In the order of strcmp(): searched by halves. */
static const struct entry entries[] = {
    {"accumulate_grad", tsr__add_into},
    {"accumulate_sharded_grad", tsr__accumulate_list},
    {"add", tsr__elementwise},
    {"add_eps", tsr__small_scalar},
    {"add_into", tsr__add_into},
    {"add_mask", tsr__elementwise},
    {"add_scalar", tsr__elementwise},
    {"addcdiv", tsr__optimizer},
    {"addcmul_exp_avg_sq", tsr__optimizer},
    {"addmm", tsr__mm},
    {"addmm_input_grad", tsr__mm},
    {"addmm_weight_grad", tsr__mm},
    {"all_gather_cast", tsr__join},
    {"all_gather_copy_in", tsr__join_bytes},
    {"arange", tsr__elementwise},
    {"bmm_grad_k", tsr__bmm},
    {"bmm_grad_p", tsr__bmm},
    {"bmm_grad_q", tsr__bmm},
    {"bmm_grad_v", tsr__bmm},
    {"bmm_scores", tsr__bmm},
    {"bmm_values", tsr__bmm},
    {"bucket_to_grad", tsr__cast},
    {"cast", tsr__cast},
    {"cat", tsr__cat},
    {"cat_gradients", tsr__cat_gradients},
    {"chunk_cat", tsr__chunk_cat},
    {"clamp", tsr__small_scalar},
    {"clone", tsr__cast},
    {"compress", tsr__cast},
    {"conjugate", tsr__conjugate},
    {"copy", tsr__small_scalar},
    {"cos", tsr__elementwise},
    {"count_labels", tsr__count_labels},
    {"cross_entropy_backward", tsr__cross_entropy_backward},
    {"d2h_*", tsr__copy_bytes},
    {"decompress", tsr__cast},
    {"device_copy", tsr__copy_bytes},
    {"div", tsr__elementwise},
    {"div_bias_correction", tsr__optimizer},
    {"div_by_world", tsr__div_by_world},
    {"efficient_attention", tsr__attention},
    {"efficient_attention_backward", tsr__attention_backward},
    {"embedding", tsr__embedding},
    {"embedding_dense_backward", tsr__embedding_dense_backward},
    {"expand_heads", tsr__expand_heads},
    {"fill", tsr_host_fill},
    {"flash_attention", tsr__attention},
    {"flash_attention_backward", tsr__attention_backward},
    {"foreach_add_eps", tsr__optimizer},
    {"foreach_add_sgd", tsr__optimizer},
    {"foreach_addcdiv", tsr__optimizer},
    {"foreach_addcmul_exp_avg_sq", tsr__optimizer},
    {"foreach_div_bias_correction", tsr__optimizer},
    {"foreach_lerp_exp_avg", tsr__optimizer},
    {"foreach_momentum", tsr__optimizer},
    {"foreach_mul_clip", tsr__foreach_mul_clip},
    {"foreach_mul_exp_avg_sq", tsr__optimizer},
    {"foreach_mul_weight_decay", tsr__optimizer},
    {"foreach_nesterov", tsr__optimizer},
    {"foreach_norm", tsr__foreach_norm},
    {"foreach_sqrt", tsr__optimizer},
    {"fused_adamw", tsr__optimizer},
    {"fused_add_layer_norm", tsr__add_norm},
    {"fused_add_layer_norm_backward", tsr__add_norm_backward},
    {"fused_add_rms_norm", tsr__add_norm},
    {"fused_add_rms_norm_backward", tsr__add_norm_backward},
    {"fused_cross_entropy", tsr__fused_cross_entropy},
    {"fused_rope", tsr__fused_rope},
    {"fused_swiglu", tsr__swiglu},
    {"fused_swiglu_backward", tsr__swiglu_backward},
    {"gelu", tsr__elementwise},
    {"gelu_backward", tsr__elementwise},
    {"gelu_erf", tsr__elementwise},
    {"gelu_erf_backward", tsr__elementwise},
    {"grad_cast", tsr__cast},
    {"grad_to_bucket", tsr__grad_to_bucket},
    {"grad_upcast", tsr__cast},
    {"h2d_*", tsr__copy_bytes},
    {"host_add", tsr__add_into},
    {"layer_norm", tsr__norm},
    {"layer_norm_backward", tsr__norm_backward},
    {"lerp_exp_avg", tsr__optimizer},
    {"load_shard", tsr__copy_bytes},
    {"log_softmax", tsr__log_softmax},
    {"log_softmax_backward", tsr__log_softmax_backward},
    {"log_softmax_tp", tsr__log_softmax_tp},
    {"mean", tsr__row_sums},
    {"mean_all", tsr__mean_all},
    {"mm", tsr__mm},
    {"mm_input_grad", tsr__mm},
    {"mm_weight_grad", tsr__mm},
    {"mse", tsr__mse},
    {"mse_backward", tsr__mse_backward},
    {"mse_target", tsr__mse},
    {"mul", tsr__elementwise},
    {"mul_exp_avg_sq", tsr__optimizer},
    {"mul_max_norm", tsr__small_scalar},
    {"mul_scalar", tsr__elementwise},
    {"mul_weight_decay", tsr__optimizer},
    {"neg", tsr__elementwise},
    {"nll_backward_tp", tsr__nll_backward_tp},
    {"nll_gather", tsr__nll_gather},
    {"nll_loss", tsr__nll_loss},
    {"nll_loss_backward", tsr__nll_loss_backward},
    {"nll_loss_part", tsr__nll_loss_part},
    {"nll_rows", tsr__nll_rows},
    {"norm_power", tsr__norm_power},
    {"ones", tsr__elementwise},
    {"pad", tsr__place_heads},
    {"pad_backward", tsr__place_heads},
    {"pad_shard", tsr__copy_bytes},
    {"param_cast", tsr__cast},
    {"param_copy", tsr__cast},
    {"post_forward_slice", tsr__copy_bytes},
    {"pow", tsr__elementwise},
    {"reciprocal", tsr__small_scalar},
    {"reduce_scatter_copy", tsr__copy_bytes},
    {"relu", tsr__elementwise},
    {"rms_norm", tsr__norm},
    {"rms_norm_backward", tsr__norm_backward},
    {"root", tsr__small_scalar},
    {"rotary", tsr__rotary},
    {"rotary_backward", tsr__rotary},
    {"rotary_table", tsr__rotary_table},
    {"row_exp_sum", tsr__row_exp_sum},
    {"row_max", tsr__row_max},
    {"rsqrt", tsr__elementwise},
    {"save_shard", tsr__copy_bytes},
    {"scalar", tsr__elementwise},
    {"scale", tsr__elementwise},
    {"scale_input_grad", tsr__elementwise},
    {"scale_weight_grad", tsr__scale_weight_grad},
    {"silu", tsr__elementwise},
    {"silu_backward", tsr__elementwise},
    {"sin", tsr__elementwise},
    {"slice_backward", tsr__place_heads},
    {"softmax", tsr__softmax},
    {"softmax_backward", tsr__softmax_backward},
    {"split_with_sizes_copy", tsr__split_with_sizes_copy},
    {"sqrt", tsr__optimizer},
    {"stack", tsr__join},
    {"sub_scalar", tsr__elementwise},
    {"sum", tsr__row_sums},
    {"sum_bias_grad", tsr__column_sums},
    {"sum_heads", tsr__sum_heads},
    {"sum_rows", tsr__sum_rows},
    {"sum_weight_grad", tsr__column_sums},
    {"tanh", tsr__elementwise},
    {"tanh_backward", tsr__elementwise},
    {"threshold_backward", tsr__elementwise},
    {"total_norm", tsr__total_norm},
    {"tril", tsr__elementwise},
    {"used_map", tsr__used_map},
    {"where", tsr__elementwise},
};

enum { N_ENTRIES = sizeof entries / sizeof *entries };

/* As strcmp(); an entry that ends in * is equal to all names that begin so. */
static int compare(const char *name, const char *entry)
{
    size_t n = strlen(entry);
    return entry[n - 1] == '*' ? strncmp(name, entry, n - 1) : strcmp(name, entry);
}

tsr_kernel_fn tsr_host_kernel(const char *name)
{
    size_t begin = 0, end = N_ENTRIES;
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        int order = compare(name, entries[middle].name);
        if (order == 0)
            return entries[middle].fn;
        if (order < 0)
            end = middle;
        else
            begin = middle + 1;
    }
    return NULL;
}
