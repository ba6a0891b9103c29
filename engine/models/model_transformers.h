/* model_transformers.h: what the modules of the transformers library do otherwise than plain ones:
 * position ids, attention masks, rotary tables, GELU in pieces (operators.md, section 16). Private
 * to the models.
 */
#ifndef TSR_MODEL_TRANSFORMERS_H
#define TSR_MODEL_TRANSFORMERS_H

#include "engine/graph/engine.h"

/* Position ids of one sequence; a new reference. */
struct tsr_tensor *tsr__hf_positions(struct tsr_engine *e);

/* What every block gets beside the hidden states: engine->args. A checkpointed call keeps it. */
enum { TSR_ARG_MASK, TSR_ARG_COS, TSR_ARG_SIN, TSR_ARG_POSITIONS };

/* Looks whether sequences are packed (the result is read on the host) and makes the mask if so. */
struct tsr_tensor *tsr__hf_mask(struct tsr_engine *e, bool packed);
/* Cosines and sines of all positions in the dtype of the hidden states. */
void tsr__hf_rotary_tables(struct tsr_engine *e, uint64_t head_dim, tsr_dtype dtype,
                           struct tsr_tensor **cosines, struct tsr_tensor **sines);
/* x * cos + rotate_half(x) * sin; x (T, heads d). */
struct tsr_tensor *tsr__hf_rotary(struct tsr_engine *e, struct tsr_tensor *x, uint64_t heads);
/* Scaled dot product attention with the mask of engine->args, or causal without one. */
struct tsr_tensor *tsr__hf_attention(struct tsr_engine *e, struct tsr_tensor *q,
                                     struct tsr_tensor *k, struct tsr_tensor *v,
                                     const struct tsr_attention_shape *s);
/* 0.5 x (1 + tanh(c (x + 0.044715 x^3))), operation by operation. */
struct tsr_tensor *tsr__hf_gelu(struct tsr_engine *e, struct tsr_tensor *x);

#endif
