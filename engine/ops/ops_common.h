/* ops_common.h: what the files of operations share. */
#ifndef TSR_OPS_COMMON_H
#define TSR_OPS_COMMON_H

#include "engine/graph/engine.h"
#include "engine/ops/scratch.h"

/* Gives up a node whose operation did not run; returns NULL for the caller to return. */
static inline struct tsr_tensor *tsr__op_abort(struct tsr_engine *e, struct tsr_node *node)
{
    tsr__node_release(e, node);
    return NULL;
}

/* Recomputes the checkpointed region of the node's first saved slot, if there is one. */
void tsr__node_touch(struct tsr_engine *e, struct tsr_node *node);

/* The dtype of a result of two dtypes. */
tsr_dtype tsr__promote(uint8_t a, uint8_t b);

/* Keeps a result of the node's own operation: its storage, not the handle, or they would keep each
 * other. */
void tsr__node_save_result(struct tsr_engine *e, struct tsr_node *node, const struct tsr_tensor *y);

/* An operation on one tensor whose result has its shape: one kernel, and a node. */
enum tsr_saves { TSR_SAVES_NOTHING, TSR_SAVES_INPUT, TSR_SAVES_RESULT };
struct tsr_tensor *tsr__op_unary(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                 tsr_dtype dtype, tsr_backward_fn backward, enum tsr_saves saves);
/* With a number: x c, x + c, x ^ c. The node keeps it (node->number). */
struct tsr_tensor *tsr__op_unary_by(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                    tsr_dtype dtype, tsr_backward_fn backward, enum tsr_saves saves,
                                    double number);
/* The same elements under another shape: no kernel. dims NULL: the shape of x. a: for the node. */
struct tsr_tensor *tsr__op_alias(struct tsr_engine *e, struct tsr_tensor *x, const char *name,
                                 const uint64_t *dims, tsr_backward_fn backward,
                                 const uint64_t a[TSR_MAX_DIMS]);
/* `to` of every `from` elements of x, from `offset` on: a view, with the head sizes of both. */
struct tsr_tensor *tsr__slice_heads(struct tsr_engine *e, struct tsr_tensor *x, uint64_t from,
                                    uint64_t to, uint64_t offset, enum tsr_layout layout);
void tsr__slice_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in);
/* Makes a view one of columns: rows of `width` elements that begin `pitch` apart, the first at
 * `offset`. Of a view that is one already: the same pitch, in it. */
void tsr__as_columns(struct tsr_tensor *view, uint64_t offset, uint64_t width, uint64_t pitch);
/* The dtype of the result of a norm with weight w, of parameter wp, and bias b (NULL: RMSNorm). */
tsr_dtype tsr__norm_dtype(struct tsr_engine *e, const struct tsr_tensor *x,
                          const struct tsr_tensor *w, const struct tsr_tensor *b,
                          const struct tsr_param *wp);
/* The table of angles as an operand: a buffer of the model, its first `seq` positions. */
void tsr__rotary_table_operand(struct tsr_engine *e, uint64_t seq, uint64_t head_dim);
/* Backward functions: the gradient itself; the gradient times a number. */
void tsr__backward_pass(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                        struct tsr_tensor **grad_in);
void tsr__backward_scale(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in);

/* One pointwise kernel from n inputs to `out`; does nothing when out is NULL. */
void tsr__emit_pointwise(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                         int n, struct tsr_tensor *out);
/* tsr_dtype_wide() of a tensor's; x may be NULL (after an error). */
static inline tsr_dtype tsr__wide(const struct tsr_tensor *x)
{
    return x ? tsr_dtype_wide((tsr_dtype)x->dtype) : TSR_F32;
}

/* The same with what else KERNELS.md says of it. */
struct tsr_pointwise {
    double constant;
    uint64_t per_row;       /* bit i: input i has one element a row of the output */
    uint64_t rows, columns; /* 0: those of the output */
    uint32_t n_args;
    uint64_t args[6];
};
void tsr__emit_pointwise_with(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                              int n, struct tsr_tensor *out, const struct tsr_pointwise *p);

/* out := a b (+ extra). Does nothing when one is NULL. */
struct tsr_matmul_shape {
    uint64_t mnk_batch[4]; /* m, n, k and how many such products */
    double scale;
    uint32_t n_args; /* KERNELS.md; borrowed */
    const uint64_t *args;
};
void tsr__emit_gemm(struct tsr_engine *e, const char *name, struct tsr_tensor *a,
                    struct tsr_tensor *b, struct tsr_tensor *extra, struct tsr_tensor *out,
                    const struct tsr_matmul_shape *gemm);

/* Memory that a kernel takes for itself; released with tsr_release(). NULL for 0 bytes. */
struct tsr_tensor *tsr__workspace(struct tsr_engine *e, uint64_t bytes);

/* out := sum of the rows of x (rows, columns), with the scratch of the two-pass reduction. */
void tsr__emit_column_sum(struct tsr_engine *e, const char *name, struct tsr_tensor *x,
                          struct tsr_tensor *out, uint64_t rows, uint64_t columns);

/* A change of shape: computes nothing, but its backward brings a gradient into token order
 * (tsr__in_token_order()). */
struct tsr_tensor *tsr__op_reshape(struct tsr_engine *e, struct tsr_tensor *x, bool strict);
/* g itself (a new reference), or a copy in the order of tokens; strict: also of transposed keys. */
struct tsr_tensor *tsr__in_token_order(struct tsr_engine *e, struct tsr_tensor *g, bool strict);
/* Fused dialect: the gradients of the first three inputs, if they are the parts of a split, as
 * columns of one new tensor, which then is the gradient of what was split. False: they are not. */
bool tsr__split_gradients(struct tsr_engine *e, const struct tsr_node *node,
                          struct tsr_tensor *out[3]);
/* copies: into new memory, else a view. layout: of the summed gradient. */
struct tsr_tensor *tsr__op_repeat(struct tsr_engine *e, struct tsr_tensor *x, uint64_t times,
                                  uint64_t head_dim, bool copies, enum tsr_layout layout);
/* The mean of (x - target)^2; target NULL: of x^2. */
struct tsr_tensor *tsr__mean_square(struct tsr_engine *e, struct tsr_tensor *x,
                                    struct tsr_tensor *target);

/* Padding around variable-length attention (ops_unpad.c). The mask and what is found in it are for
 * all tokens of a micro-batch; results are new references. */
struct tsr_unpadding {
    struct tsr_tensor *indices, *begins; /* of the kept tokens; of the sequences */
};
struct tsr_tensor *tsr__op_padding_mask(struct tsr_engine *e);
struct tsr_unpadding tsr__find_unpadding(struct tsr_engine *e, struct tsr_tensor *mask);
void tsr__unpadding_release(struct tsr_engine *e, struct tsr_unpadding *u);
struct tsr_tensor *tsr__op_unpad(struct tsr_engine *e, struct tsr_tensor *x,
                                 const struct tsr_unpadding *u);
struct tsr_tensor *tsr__op_pad(struct tsr_engine *e, struct tsr_tensor *x,
                               const struct tsr_unpadding *u);

/* Attention by plain matrix products (ops_attention_math.c), q (T, H d), k and v (T, J d). */
/* mask NULL: causal. */
struct tsr_tensor *tsr__math_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                       const struct tsr_attention_shape *s,
                                       struct tsr_tensor *mask);
/* As tsr_op_attention() with a mask of numbers (B, S, S), which is taken over. */
struct tsr_tensor *tsr__masked_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                         const struct tsr_attention_shape *s,
                                         struct tsr_tensor *mask);
struct tsr_tensor *tsr__eager_attention(struct tsr_engine *e, struct tsr_tensor *const qkv[3],
                                        const struct tsr_attention_shape *s,
                                        struct tsr_tensor **weights);

/* The workspaces that the first product of a thread takes, after its result. */
void tsr__take_workspace(struct tsr_engine *e, bool biased);

/* A kernel of the loss; does nothing without its first input or output. */
void tsr__emit_loss(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in, int n,
                    struct tsr_tensor *const *out, int n_out);

/* The same by a kernel that goes `passes` times over its first input: rows of more than 48 KiB are
 * read as often. 0: one element a row, the log-probability of a label. PyTorch's log_softmax looks
 * for the largest, sums exponentials, and writes (cunn_SoftMaxForward, ATen/native/cuda/SoftMax.cu;
 * shorter rows stay in shared memory). */
enum { TSR_LOG_SOFTMAX_PASSES = 3 };
void tsr__emit_loss_in_passes(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                              int n, struct tsr_tensor *const *out, int n_out, unsigned passes);

/* Selective checkpointing (checkpoint.c). An operation whose result a policy may keep asks first:
 * true if this one is kept. `product`: matrix products, of which every second one is kept; results
 * of attention kernels are always. */
bool tsr__selective_keeps(struct tsr_engine *e, bool product);
/* True while the kept results are to be taken instead of computed. */
bool tsr__selective_reuses(const struct tsr_engine *e);
void tsr__selective_put(struct tsr_engine *e, const struct tsr_tensor *result);
struct tsr_tensor *tsr__selective_take(struct tsr_engine *e);

#endif
