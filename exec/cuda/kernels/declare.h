/* declare.h: the kernels of this folder as the host refers to them: by address. */
#ifndef TSR_EXEC_DECLARE_H
#define TSR_EXEC_DECLARE_H

#define TSR_DECLARE_CUDA(name) void tsr_cuda_##name(void)
#define TSR_DECLARE_CUDA_REALS(name) \
    TSR_DECLARE_CUDA(name##_f32);    \
    TSR_DECLARE_CUDA(name##_f64)
#define TSR_DECLARE_CUDA_TEAM(name) \
    TSR_DECLARE_CUDA_REALS(name);   \
    TSR_DECLARE_CUDA(name##_torn)

TSR_DECLARE_CUDA(fold_ends);
TSR_DECLARE_CUDA_REALS(column_ends);
TSR_DECLARE_CUDA_TEAM(column_parts);
TSR_DECLARE_CUDA(column_parts_narrow);
TSR_DECLARE_CUDA_REALS(cross_entropy_loss);
TSR_DECLARE_CUDA_TEAM(cross_entropy_rows);
TSR_DECLARE_CUDA_REALS(fold_parts);
TSR_DECLARE_CUDA_TEAM(log_p_backward);
TSR_DECLARE_CUDA_TEAM(log_softmax);
TSR_DECLARE_CUDA_TEAM(log_softmax_backward);
TSR_DECLARE_CUDA_TEAM(log_softmax_tp);
TSR_DECLARE_CUDA_REALS(mse_backward);
TSR_DECLARE_CUDA_REALS(nll);
TSR_DECLARE_CUDA_TEAM(nll_backward);
TSR_DECLARE_CUDA_REALS(nll_gather);
TSR_DECLARE_CUDA_TEAM(norm);
TSR_DECLARE_CUDA_TEAM(norm_backward);
TSR_DECLARE_CUDA(norm_gradients);
TSR_DECLARE_CUDA_REALS(norm_power);
TSR_DECLARE_CUDA_TEAM(row_exp_sum);
TSR_DECLARE_CUDA_TEAM(row_max);
TSR_DECLARE_CUDA_TEAM(row_sums);
TSR_DECLARE_CUDA_TEAM(softmax);
TSR_DECLARE_CUDA_TEAM(softmax_backward);
TSR_DECLARE_CUDA_REALS(cut_pieces);
TSR_DECLARE_CUDA_REALS(elementwise);
TSR_DECLARE_CUDA_REALS(embedding);
TSR_DECLARE_CUDA_REALS(embedding_grad);
TSR_DECLARE_CUDA_REALS(head_sums);
TSR_DECLARE_CUDA_REALS(list);
TSR_DECLARE_CUDA_REALS(optimizer);
TSR_DECLARE_CUDA_REALS(optimizer_fused);
TSR_DECLARE_CUDA_REALS(place);
TSR_DECLARE_CUDA_REALS(rare);
TSR_DECLARE_CUDA_REALS(rotary);
TSR_DECLARE_CUDA_REALS(swiglu);
TSR_DECLARE_CUDA_REALS(swiglu_backward);
TSR_DECLARE_CUDA_REALS(product);
TSR_DECLARE_CUDA_REALS(attention_forward);
TSR_DECLARE_CUDA_REALS(attention_queries);
TSR_DECLARE_CUDA_REALS(attention_keys);
TSR_DECLARE_CUDA(attention_padding);

/* graphs.c */
TSR_DECLARE_CUDA(scalars_write);

TSR_DECLARE_CUDA(conjugate);
TSR_DECLARE_CUDA(initial);
TSR_DECLARE_CUDA(join_words);
TSR_DECLARE_CUDA(move);
TSR_DECLARE_CUDA(rotary_table);
TSR_DECLARE_CUDA(used_map);

/* launch_copies.c: the gradient of an embedding */
TSR_DECLARE_CUDA(tokens_clear);
TSR_DECLARE_CUDA(tokens_count);
TSR_DECLARE_CUDA(tokens_gather);
TSR_DECLARE_CUDA(tokens_order);
TSR_DECLARE_CUDA(tokens_start);

/* comms.c */
TSR_DECLARE_CUDA(loopback_copy);
TSR_DECLARE_CUDA(loopback_sum_f32);
TSR_DECLARE_CUDA(loopback_sum_f64);
TSR_DECLARE_CUDA(loopback_sum_i64);

#endif
