/* model_parts.h: what the model families have in common: modules, those of transformers among
 * them, checks of sizes, and what is said of a model once it is built. Private to the models.
 */
#ifndef TSR_ENGINE_MODEL_PARTS_H
#define TSR_ENGINE_MODEL_PARTS_H

#include "engine/models/models.h"
#include "engine/ops/ops_common.h"

/* Forwards of modules without an `impl`: their parameters are weight, bias (that of a linear layer
 * may be absent). */
void tsr__embedding_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                            struct tsr_tensor *in, struct tsr_tensor **out);
void tsr__layer_norm_forward(struct tsr_engine *e, struct tsr_module *m, void *impl,
                             struct tsr_tensor *in, struct tsr_tensor **out);

/* a + f(norm(a)) */
struct tsr_tensor *tsr__residual(struct tsr_engine *e, struct tsr_tensor *a,
                                 struct tsr_module *norm, struct tsr_module *f);

/* A module with a weight of that shape and, if it is not 0, a bias of so many elements. */
struct tsr_module *tsr__add_weighted(struct tsr_engine *e, struct tsr_module *parent,
                                     const char *name, const char *type, tsr_forward_fn forward,
                                     int n_dims, const uint64_t *shape, uint64_t bias);
struct tsr_module *tsr__add_linear(struct tsr_engine *e, struct tsr_module *parent,
                                   const char *name, uint64_t in, uint64_t out, bool bias);
/* The head of a language model: the embedding's weight, or (`own`, of that shape) one of its own.
 */
struct tsr_module *tsr__add_head(struct tsr_engine *e, struct tsr_module *parent, const char *name,
                                 struct tsr_module *embedding, const uint64_t *own);

/* Before a model is built: sizes are 1 to 2^40, there are at most 100,000 layers, and the engine
 * has no model yet. Errors: TSR_EVALUE. */
tsr_status tsr__check_model(const struct tsr_engine *e, const uint64_t *sizes, size_t n,
                            uint64_t layers) TSR_MUST_USE;
/* A width that is cut into heads. Errors: TSR_EVALUE. */
tsr_status tsr__check_heads(uint64_t width, uint64_t heads) TSR_MUST_USE;

/* Of a tree: every module takes what the one before it gives, in each list of what runs.
 * *per_sequence: the result has a row for each sequence (model_tree_check.c). Errors: TSR_EVALUE
 * with both modules. */
tsr_status tsr__check_tree(const struct tsr_tree_config *config, bool *per_sequence) TSR_MUST_USE;

/* Epsilon of norms and standard deviation of initial matrices; 0: the usual ones. */
void tsr__model_numbers(struct tsr_engine *e, double norm_eps, double init_std);
/* The model takes tokens and gives logits. */
void tsr__is_language_model(struct tsr_engine *e, uint64_t vocab, double norm_eps, double init_std);

/* ---- what modules of the transformers library do otherwise than plain ones
 * (operators.md, section 16) ------------------------------------------------------------------- */

/* Position ids of one sequence; a new reference. */
struct tsr_tensor *tsr__hf_positions(struct tsr_engine *e);

/* Further arguments of modules with has_args: engine->autograd.args. A checkpointed call keeps
 * them; the pre-forward of a wrapped module casts the tables. */
enum { TSR_ARG_MASK, TSR_ARG_COS, TSR_ARG_SIN, TSR_ARG_POSITIONS };

/* Looks whether sequences are packed (the result is read on the host) and makes the mask if so. */
struct tsr_tensor *tsr__hf_mask(struct tsr_engine *e, bool packed);
/* Cosines and sines of all positions in the dtype of the hidden states. */
void tsr__hf_rotary_tables(struct tsr_engine *e, uint64_t head_dim, tsr_dtype dtype,
                           struct tsr_tensor **cosines, struct tsr_tensor **sines);
/* x * cos + rotate_half(x) * sin; x (T, heads d). */
struct tsr_tensor *tsr__hf_rotary(struct tsr_engine *e, struct tsr_tensor *x, uint64_t heads);
/* Scaled dot product attention with the mask of engine->autograd.args, or causal without one. */
struct tsr_tensor *tsr__hf_attention(struct tsr_engine *e, struct tsr_tensor *q,
                                     struct tsr_tensor *k, struct tsr_tensor *v,
                                     const struct tsr_attention_shape *s);
/* by_hand: gelu_new of elementary operations. */
struct tsr_tensor *tsr__activate(struct tsr_engine *e, struct tsr_tensor *x,
                                 enum tsr_activation act, bool by_hand);

#endif
