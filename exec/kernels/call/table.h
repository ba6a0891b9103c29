/* table.h: the kernels of the host, one function for one or more names of engine/ops/KERNELS.md.
 * The table of names: exec/kernels/kernels.c.
 */
#ifndef TSR_EXEC_TABLE_H
#define TSR_EXEC_TABLE_H

#include "exec/kernels/call/kernel.h"

#define TSR_DECLARE_KERNEL(name) tsr_status tsr__##name(const struct tsr_kernel_call *call)

/* elementwise.c */
TSR_DECLARE_KERNEL(elementwise);
TSR_DECLARE_KERNEL(small_scalar); /* copy, root, add_eps, reciprocal, mul_max_norm, clamp */
TSR_DECLARE_KERNEL(add_into);
TSR_DECLARE_KERNEL(accumulate_list);
TSR_DECLARE_KERNEL(div_by_world);
TSR_DECLARE_KERNEL(swiglu);
TSR_DECLARE_KERNEL(swiglu_backward);
/* copy.c */
TSR_DECLARE_KERNEL(cast);
TSR_DECLARE_KERNEL(grad_to_bucket);
TSR_DECLARE_KERNEL(copy_bytes);
TSR_DECLARE_KERNEL(join);
TSR_DECLARE_KERNEL(join_bytes);
TSR_DECLARE_KERNEL(used_map);
/* sharding.c */
TSR_DECLARE_KERNEL(split_with_sizes_copy);
TSR_DECLARE_KERNEL(chunk_cat);
/* sums.c */
TSR_DECLARE_KERNEL(row_sums);
TSR_DECLARE_KERNEL(sum_rows);
TSR_DECLARE_KERNEL(column_sums);
TSR_DECLARE_KERNEL(mean_all);
TSR_DECLARE_KERNEL(scale_weight_grad);
/* matmul.c */
TSR_DECLARE_KERNEL(mm); /* and its gradients */
TSR_DECLARE_KERNEL(bmm);
/* norms.c */
TSR_DECLARE_KERNEL(norm);
TSR_DECLARE_KERNEL(norm_backward);
TSR_DECLARE_KERNEL(add_norm);
TSR_DECLARE_KERNEL(add_norm_backward);
/* attention.c */
TSR_DECLARE_KERNEL(attention);
TSR_DECLARE_KERNEL(attention_backward);
/* softmax.c */
TSR_DECLARE_KERNEL(softmax);
TSR_DECLARE_KERNEL(softmax_backward);
TSR_DECLARE_KERNEL(log_softmax);
TSR_DECLARE_KERNEL(log_softmax_backward);
TSR_DECLARE_KERNEL(row_max);
TSR_DECLARE_KERNEL(row_exp_sum);
TSR_DECLARE_KERNEL(log_softmax_tp);
/* heads.c */
TSR_DECLARE_KERNEL(expand_heads);
TSR_DECLARE_KERNEL(sum_heads);
TSR_DECLARE_KERNEL(place_heads);
TSR_DECLARE_KERNEL(cat);
TSR_DECLARE_KERNEL(cat_gradients);
/* rotary.c */
TSR_DECLARE_KERNEL(rotary_table);
TSR_DECLARE_KERNEL(rotary);
TSR_DECLARE_KERNEL(conjugate);
TSR_DECLARE_KERNEL(fused_rope);
/* embedding.c */
TSR_DECLARE_KERNEL(embedding);
TSR_DECLARE_KERNEL(embedding_dense_backward);
/* loss.c */
TSR_DECLARE_KERNEL(nll_loss);
TSR_DECLARE_KERNEL(nll_loss_part);
TSR_DECLARE_KERNEL(nll_loss_backward);
TSR_DECLARE_KERNEL(cross_entropy_backward);
TSR_DECLARE_KERNEL(fused_cross_entropy);
TSR_DECLARE_KERNEL(count_labels);
TSR_DECLARE_KERNEL(nll_gather);
TSR_DECLARE_KERNEL(nll_rows);
TSR_DECLARE_KERNEL(nll_backward_tp);
TSR_DECLARE_KERNEL(mse);
TSR_DECLARE_KERNEL(mse_backward);
/* optimizer.c, sums.c */
TSR_DECLARE_KERNEL(optimizer);
TSR_DECLARE_KERNEL(foreach_norm);
TSR_DECLARE_KERNEL(norm_power);
TSR_DECLARE_KERNEL(total_norm);
TSR_DECLARE_KERNEL(foreach_mul_clip);

#endif
