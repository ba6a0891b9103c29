/* ops_common.h: what the files of operations share: pieces that they are made of, and what the
 * engine keeps for them. Private to engine/.
 */
#ifndef TSR_ENGINE_OPS_COMMON_H
#define TSR_ENGINE_OPS_COMMON_H

#include <math.h>

#include "engine/graph/engine.h"
#include "engine/layout/layout.h"
#include "engine/ops/ops.h"

/* ---- state ----------------------------------------------------------------------------------- */

/* What operations and steps must know of the model; its family fills it in. */
struct tsr_model_info {
    bool int_input, loss_mse, shifts_labels;
    bool per_sequence; /* the result, and so the labels, have a row for each sequence */
    uint64_t vocab, in_dim, target_dim; /* 0: the loss has no target */
    double norm_eps, init_std;
    struct tsr_rope rope;
    const struct tsr_llama_config *llama; /* NULL: another family */
    bool head;         /* its last module can make the loss in chunks (tsr__head()) */
    bool by_iteration; /* what runs depends on the number of the iteration */
};
/* What operations keep from one call to the next.
 *
 * Invariant: add_norm.on only while a module with a fused sum is being called; a workspace is taken
 * by the first operation that needs it and never given back, as cuBLAS keeps its own. */
struct tsr_op_state {
    struct { /* a norm that is called with a sum (ops_fused.h) */
        bool on;
        struct tsr_tensor *addend, *sum; /* addend: borrowed */
    } add_norm;
    struct tsr_tensor *head_labels; /* for a head that makes the loss; borrowed; NULL: logits */
    uint64_t loss_chunks;           /* > 1: in how many it makes it */
    enum tsr_loss_kernel loss_kernel;
    bool workspace_main, workspace_autograd, lt_main, lt_autograd; /* taken already */
    struct tsr_storage *workspaces[8];
    size_t n_workspaces;
};

/* ---- pieces of operations -------------------------------------------------------------------- */

/* Gives up a node whose operation did not run; returns NULL for the caller to return. */
static inline struct tsr_tensor *tsr__op_abort(struct tsr_engine *e, struct tsr_node *node)
{
    tsr__node_release(e, node);
    return NULL;
}

/* The dtype of a result of two dtypes. */
tsr_dtype tsr__promote(uint8_t a, uint8_t b);

/* Keeps a result of the node's own operation: its storage, not the handle, or they would keep each
 * other. */
/* Saves the factors of a product: each only if the other one, so edge 0 or 1, takes a gradient. */
void tsr__node_save_factors(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *a,
                            struct tsr_tensor *b);
/* Returns a reference to factor 0 or 1, or NULL if it was not saved. */
struct tsr_tensor *tsr__node_factor(struct tsr_engine *e, struct tsr_node *node, int i);
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
/* Makes a view one of columns: rows of `width` elements that begin `pitch` apart, the first at
 * `offset`. Of a view that is one already: the same pitch, in it. */
void tsr__as_columns(struct tsr_tensor *view, uint64_t offset, uint64_t width, uint64_t pitch);
/* The dtype of the result of a norm with weight w, of parameter wp, and bias b (NULL: RMSNorm):
 * that of its input. */
tsr_dtype tsr__norm_dtype(struct tsr_engine *e, const struct tsr_tensor *x,
                          const struct tsr_tensor *w, const struct tsr_tensor *b,
                          const struct tsr_param *wp);
/* nn.RMSNorm where input and weight have two dtypes: eager PyTorch has no kernel for that. */
struct tsr_tensor *tsr__op_composite_rms_norm(struct tsr_engine *e, struct tsr_tensor *x,
                                              struct tsr_tensor *w);
/* x * rsqrt(mean(x^2) + eps) * w, as wide as the wider of x and w: the norm of the golden format's
 * trees, which is no nn.RMSNorm. */
struct tsr_tensor *tsr__op_promoting_rms_norm(struct tsr_engine *e, struct tsr_tensor *x,
                                              struct tsr_param *w);
/* tsr_op_rotary() with a result of `dtype`. */
struct tsr_tensor *tsr__op_rotary_as(struct tsr_engine *e, struct tsr_tensor *x, uint64_t seq,
                                     uint64_t head_dim, tsr_dtype dtype);
/* The table of angles as an operand: a buffer of the model, its first `seq` positions. */
void tsr__rotary_table_operand(struct tsr_engine *e, uint64_t seq, uint64_t head_dim);
/* Returns a new reference to a gradient in the dtype of the input that it belongs to: that of a
 * promoted result is cast. */
struct tsr_tensor *tsr__grad_as(struct tsr_engine *e, struct tsr_tensor *g, tsr_dtype dtype);
/* Casts a gradient that a node's backward made to the dtype of its input, in place of *g. */
void tsr__cast_grad(struct tsr_engine *e, struct tsr_tensor **g, tsr_dtype dtype);
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

/* Padding around variable-length attention (ops_attention.c). The mask and what is found in it are
 * for all tokens of a micro-batch; results are new references. */
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

/* Returns the factor that attention multiplies its scores with. */
static inline double tsr__attention_scale(const struct tsr_attention_shape *s)
{
    return s->scale > 0 ? s->scale : 1 / sqrt((double)s->head_dim);
}

/* Attention by plain matrix products (ops_attention_math.c), q (T, H d), k and v (T, J d). */
/* mask NULL: causal, or none where the shape is full. */
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

/* Returns the bytes that a kernel reads of a tensor of `bytes` in `rows` rows if it goes over it
 * `passes` times: rows of more than 48 KiB are read as often. 0: one element a row moves a sector
 * of 32 bytes. */
uint64_t tsr__bytes_in_passes(uint64_t bytes, uint64_t rows, unsigned passes);

/* Emits a kernel of the loss that goes `passes` times over its first input; 0: it reads one element
 * a row, the log-probability of a label. PyTorch's log_softmax takes three passes over a row that
 * shared memory does not hold: it finds the largest element, sums exponentials, and writes
 * (cunn_SoftMaxForward, ATen/native/cuda/SoftMax.cu). */
enum { TSR_LOG_SOFTMAX_PASSES = 3, TSR_LOG_SOFTMAX_BACKWARD_PASSES = 2 };
void tsr__emit_loss_in_passes(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                              int n, struct tsr_tensor *const *out, int n_out, unsigned passes);
/* Emits the same kernel; `compiled` is true if a compiled region launches it. */
void tsr__emit_loss_of(struct tsr_engine *e, enum tsr_compiled compiled, const char *name,
                       struct tsr_tensor *const *in, int n, struct tsr_tensor *const *out,
                       int n_out, unsigned passes);

/* ---- ops_tp.c -------------------------------------------------------------------------------- */

/* Around the part of a block that tensor parallelism cuts; new references. Identity without it. */
struct tsr_tensor *tsr__tp_enter(struct tsr_engine *e, struct tsr_tensor *x);
struct tsr_tensor *tsr__tp_leave(struct tsr_engine *e, struct tsr_tensor *x);
/* All-reduce in place over the tensor-parallel ranks; nothing without tensor parallelism. */
void tsr__tp_reduce(struct tsr_engine *e, struct tsr_tensor *x, uint8_t reduce_op);
/* One collective over them, from `in` to `out`, which may be one; the compute stream waits. */
void tsr__tp_collective(struct tsr_engine *e, uint8_t kind, uint8_t reduce_op,
                        const struct tsr_tensor *in, const struct tsr_tensor *out);
void tsr__tp_reduce_partial(struct tsr_engine *e, const struct tsr_param *p,
                            struct tsr_tensor *grad);

/* ---- ops_chunked_loss.c ---------------------------------------------------------------------- */

/* The last module's forward: logits, or the loss where ops->head_labels are set. */
struct tsr_tensor *tsr__head(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x);
/* Refuses a loss in chunks of a model that has no such head. */
tsr_status tsr__check_chunked_loss(const struct tsr_engine *e);

/* ---- ops_compiled_loss.c ----------------------------------------------------------------------
 */

/* Returns the loss of tsr_op_cross_entropy() with the kernels and the memory of torch.compile. */
struct tsr_tensor *tsr__op_compiled_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                                  struct tsr_tensor *labels);
/* Emits the kernels of the compiled loss of `logits` (T, V). `out`: maximum and logarithm of the
 * sum of exponentials of each row, then the loss and the number of labels that count; the caller
 * releases all four. */
enum { TSR_LOSS_MAX, TSR_LOSS_LOG, TSR_LOSS_VALUE, TSR_LOSS_COUNT, TSR_LOSS_RESULTS };
void tsr__compiled_loss(struct tsr_engine *e, struct tsr_tensor *logits, struct tsr_tensor *labels,
                        struct tsr_tensor *out[TSR_LOSS_RESULTS]);
/* Writes the gradient of the logits, in their dtype, into `gradient`. `made`: what
 * tsr__compiled_loss() made; g: the gradient of the loss. */
void tsr__compiled_loss_backward(struct tsr_engine *e, struct tsr_tensor *logits,
                                 struct tsr_tensor *labels, struct tsr_tensor *const *made,
                                 struct tsr_tensor *g, struct tsr_tensor *gradient);

/* ---- ops_fp8.c: linear layers whose three products run in fp8 (FP8.md) ------------------------
 */

/* True for a linear layer of a block whose sizes are multiples of 16 (what the products need),
 * where the engine is asked for fp8 and x has 16 bits. */
bool tsr__is_fp8(const struct tsr_engine *e, const struct tsr_tensor *x,
                 const struct tsr_tensor *w);
/* True for the weight of such a layer, if it is to be gathered in fp8: it is of dtype F8 then. */
bool tsr__fp8_gathers(const struct tsr_engine *e, const struct tsr_param *p);
/* y = x w^T (+ b), w (out, in). Gradients in PyTorch's order: input, weight, bias. */
struct tsr_tensor *tsr__fp8_linear(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *w,
                                   struct tsr_tensor *b);
/* Refuses what the recipe does not run under: tensorwise scaling without the dialect `compile`,
 * delayed scaling with it. */
tsr_status tsr__check_fp8(const struct tsr_engine_config *config);

/* ---- scratch.c: bytes that library kernels take for themselves while they run ------------------
 * *
 *
 * Each is what PyTorch 2.11's host code asks the allocator for on a part with 132 multiprocessors
 * of 2048 threads (sm_90): documented choices of the libraries, not fitted numbers. Formulas:
 * golden-memory/operators.md, sections 6, 7, 9 and 11.
 */

enum {
    TSR_MULTIPROCESSORS = 132,
    TSR_CUBLAS_WORKSPACE = 33554432,  /* per cuBLAS handle and stream */
    TSR_CUBLASLT_WORKSPACE = 1048576, /* per thread that runs a biased product */
    TSR_SORTED_TOKENS = 3072          /* more tokens: the embedding's backward sorts them */
};

/* Reduction of an [n_in, out] matrix to [out] with fp32 accumulation (bias gradients): partial sums
 * and semaphores; both 0 where one pass is enough. */
struct tsr_column_sum {
    uint64_t partial, semaphores;
};
struct tsr_column_sum tsr__column_sum_scratch(uint64_t n_in, uint64_t out);

/* Into how many pieces flash attention cuts the keys to fill the device; 1: no scratch. */
uint64_t tsr__flash_splits(uint64_t batch, uint64_t heads, uint64_t seq, uint64_t head_dim);

/* Head size as flash attention's fp32 accumulators have it. */
uint64_t tsr__flash_head_dim(uint64_t head_dim);

/* The dQ accumulator of the memory-efficient backward; `wide`: fp32 inputs. */
uint64_t tsr__efficient_accumulator(uint64_t batch, uint64_t heads, uint64_t seq, uint64_t head_dim,
                                    bool wide);

/* Temporaries of cub's radix sort, scan and selection as the embedding's backward calls them. */
uint64_t tsr__sort_scratch(uint64_t tokens);
uint64_t tsr__scan_scratch(uint64_t n);
uint64_t tsr__unique_scratch(uint64_t tokens);

/* Into how many blocks of rows the backward of a norm sums the gradients of its weights first; 0:
 * in one step. */
uint64_t tsr__norm_row_blocks(uint64_t rows, uint64_t columns);

#endif
