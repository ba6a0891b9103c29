/* ops.h: the operations that models are written in.
 *
 * Each allocates its results, emits its kernels, and, where a gradient is needed, makes a node
 * whose backward does the same. Inputs are borrowed; results are new references (tsr_release()).
 * NULL comes back once the engine has failed or a recomputation has stopped: operations take NULL
 * and do nothing, so model code needs no checks. Sizes, order and lifetimes follow eager PyTorch;
 * engine/ops/KERNELS.md says what each kernel computes.
 *
 * Shapes: T = tokens (batch x sequence), D = width, V = vocabulary, H heads, K key/value heads, d
 * head size. A tensor has T rows.
 */
#ifndef TSR_ENGINE_OPS_H
#define TSR_ENGINE_OPS_H

#include "engine/graph/module_tree.h"

/* ---- linear layers and tables ---------------------------------------------------------------- */

/* ids (T) -> (T, D) of w (V, D). */
struct tsr_tensor *tsr_op_embedding(struct tsr_engine *engine, struct tsr_tensor *ids,
                                    struct tsr_param *w);
/* x (T, in) -> (T, out), w (out, in). bias (out) may be NULL. */
struct tsr_tensor *tsr_op_linear(struct tsr_engine *engine, struct tsr_tensor *x,
                                 struct tsr_param *w, struct tsr_param *bias);
/* The same with w (in, out): GPT-2's Conv1D. */
struct tsr_tensor *tsr_op_conv1d(struct tsr_engine *engine, struct tsr_tensor *x,
                                 struct tsr_param *w, struct tsr_param *bias);

/* ---- norms: x (T, D), w and b (D); epsilon is the model's ------------------------------------ */

/* nn.RMSNorm: the result has the dtype of x. */
struct tsr_tensor *tsr_op_rms_norm(struct tsr_engine *engine, struct tsr_tensor *x,
                                   struct tsr_param *w);
/* RMSNorm of elementary operations in fp32. transformers: as its modules write it. */
struct tsr_tensor *tsr_op_hand_rms_norm(struct tsr_engine *engine, struct tsr_tensor *x,
                                        struct tsr_param *w, bool transformers);
struct tsr_tensor *tsr_op_layer_norm(struct tsr_engine *engine, struct tsr_tensor *x,
                                     struct tsr_param *w, struct tsr_param *b);

/* ---- attention ------------------------------------------------------------------------------- */

/* T = batch times seq; kv_heads divides heads. full: every query sees every key of its sequence;
 * else attention is causal. */
struct tsr_attention_shape {
    uint64_t batch, seq, heads, kv_heads, head_dim;
    bool full;
    double scale; /* of the scores; 0: 1 / sqrt(head_dim) */
};
/* Rotary embedding of x (T, heads d), in fp32, with the angles of positions 0 ... seq - 1; the
 * result has the dtype of x. */
struct tsr_tensor *tsr_op_rotary(struct tsr_engine *engine, struct tsr_tensor *x, uint64_t seq,
                                 uint64_t head_dim);
/* x (T, K d) -> (T, times K d), each head `times` times; a view if there is one head. */
struct tsr_tensor *tsr_op_repeat_heads(struct tsr_engine *engine, struct tsr_tensor *x,
                                       uint64_t times, uint64_t head_dim);
/* q (T, H d), k and v (T, K d), of one dtype -> (T, H d). weights (may be NULL): a new reference to
 * the attention weights where the variant makes them (eager attention), else NULL. */
struct tsr_tensor *tsr_op_attention(struct tsr_engine *engine, struct tsr_tensor *q,
                                    struct tsr_tensor *k, struct tsr_tensor *v,
                                    const struct tsr_attention_shape *shape,
                                    struct tsr_tensor **weights);
/* The result of attention in the order of tokens: a copy where a kernel leaves another order. */
struct tsr_tensor *tsr_op_contiguous(struct tsr_engine *engine, struct tsr_tensor *x);
/* A copy of x in memory of its own; its gradient is the same tensor. */
struct tsr_tensor *tsr_op_clone(struct tsr_engine *engine, struct tsr_tensor *x);
/* The same elements under another shape: an operation of the graph that computes nothing. */
struct tsr_tensor *tsr_op_view(struct tsr_engine *engine, struct tsr_tensor *x);
/* Views of x (T, q + 2 kv): out[0] its first q columns, out[1] and out[2] the next kv each. q_last:
 * the views are made in the order k, v, q (backward visits the latest first). */
void tsr_op_split3(struct tsr_engine *engine, struct tsr_tensor *x, uint64_t q, uint64_t kv,
                   bool q_last, struct tsr_tensor *out[3]);

/* The same of x (T, 2 D): its halves. */
void tsr_op_split2(struct tsr_engine *engine, struct tsr_tensor *x, struct tsr_tensor *out[2]);

/* ---- an operation that is only priced -------------------------------------------------------- */

/* Figures of one row of the input. Of the simulator alone: no executor has a kernel for it. */
struct tsr_generic {
    const char *name;    /* of its kernels; borrowed while programs that have it live */
    uint64_t out;        /* columns of the result */
    bool per_sequence;   /* the result has a row for each sequence, not for each row of the input */
    double flops, bytes; /* forward; bytes 0: what is read and written once */
    double backward_flops, backward_bytes; /* bytes 0: as above */
    uint64_t saved_bytes;                  /* that forward makes and backward reads */
    bool saves_input;                      /* backward reads the input, too */
};
/* x (T, D) -> (T, out), in the dtype of x. w (may be NULL): read whole by each of the kernels; its
 * gradient is made in backward. */
struct tsr_tensor *tsr_op_generic(struct tsr_engine *engine, struct tsr_tensor *x,
                                  struct tsr_param *w, const struct tsr_generic *what);

/* ---- by element: the result has the shape of the (first) input ------------------------------- */

struct tsr_tensor *tsr_op_silu(struct tsr_engine *engine, struct tsr_tensor *x);
struct tsr_tensor *tsr_op_gelu(struct tsr_engine *engine, struct tsr_tensor *x);     /* tanh */
struct tsr_tensor *tsr_op_gelu_erf(struct tsr_engine *engine, struct tsr_tensor *x); /* exact */
struct tsr_tensor *tsr_op_relu(struct tsr_engine *engine, struct tsr_tensor *x);
struct tsr_tensor *tsr_op_mul(struct tsr_engine *engine, struct tsr_tensor *a,
                              struct tsr_tensor *b);
struct tsr_tensor *tsr_op_add(struct tsr_engine *engine, struct tsr_tensor *a,
                              struct tsr_tensor *b);
/* a (T, D) + b (sequence, D): positions, summed over the batch in backward. */
struct tsr_tensor *tsr_op_add_rows(struct tsr_engine *engine, struct tsr_tensor *a,
                                   struct tsr_tensor *b);
/* x itself if it has the dtype. */
struct tsr_tensor *tsr_op_cast(struct tsr_engine *engine, struct tsr_tensor *x, tsr_dtype dtype);
/* x times the mean of w. */
struct tsr_tensor *tsr_op_scale_by_mean(struct tsr_engine *engine, struct tsr_tensor *x,
                                        struct tsr_param *w);
/* 0 ... n - 1 as i64. */
struct tsr_tensor *tsr_op_arange(struct tsr_engine *engine, uint64_t n);

/* ---- losses: scalars in f32 ------------------------------------------------------------------ */

/* The mean over the tokens. logits (T, V), labels (T) i64. */
struct tsr_tensor *tsr_op_cross_entropy(struct tsr_engine *engine, struct tsr_tensor *logits,
                                        struct tsr_tensor *labels);
/* The loss of logits x w^T, made in `chunks` chunks of tokens with its gradients
 * (ops_chunked_loss.c). x (T, D), w (V, D) without bias. */
struct tsr_tensor *tsr_op_chunked_cross_entropy(struct tsr_engine *engine, struct tsr_tensor *x,
                                                struct tsr_param *w, struct tsr_tensor *labels,
                                                uint64_t chunks);
/* The mean of the squares of x. */
struct tsr_tensor *tsr_op_mean_square(struct tsr_engine *engine, struct tsr_tensor *x);

#endif
