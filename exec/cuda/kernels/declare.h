/* declare.h: the kernels of this folder as the host refers to them: by address. */
#ifndef TSR_CUDA_KERNELS_DECLARE_H
#define TSR_CUDA_KERNELS_DECLARE_H

#define TSR_DECLARE_CUDA(name) void tsr_cuda_##name(void)
#define TSR_DECLARE_CUDA_REALS(name) \
    TSR_DECLARE_CUDA(name##_f32);    \
    TSR_DECLARE_CUDA(name##_f64)

TSR_DECLARE_CUDA_REALS(column_ends);
TSR_DECLARE_CUDA_REALS(column_parts);
TSR_DECLARE_CUDA_REALS(norm);
TSR_DECLARE_CUDA_REALS(norm_backward);
TSR_DECLARE_CUDA_REALS(log_softmax);
TSR_DECLARE_CUDA_REALS(log_softmax_backward);
TSR_DECLARE_CUDA_REALS(log_softmax_tp);
TSR_DECLARE_CUDA_REALS(row_exp_sum);
TSR_DECLARE_CUDA_REALS(row_max);
TSR_DECLARE_CUDA_REALS(softmax);
TSR_DECLARE_CUDA_REALS(softmax_backward);
TSR_DECLARE_CUDA_REALS(swiglu);
TSR_DECLARE_CUDA_REALS(swiglu_backward);
TSR_DECLARE_CUDA_REALS(product);
TSR_DECLARE_CUDA_REALS(attention_forward);
TSR_DECLARE_CUDA_REALS(attention_queries);
TSR_DECLARE_CUDA_REALS(attention_keys);
TSR_DECLARE_CUDA(attention_padding);

/* comms.c */
TSR_DECLARE_CUDA(loopback_copy);
TSR_DECLARE_CUDA(loopback_sum_f32);
TSR_DECLARE_CUDA(loopback_sum_f64);
TSR_DECLARE_CUDA(loopback_sum_i64);

#endif
