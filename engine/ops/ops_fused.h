/* ops_fused.h: operations of the fused dialect (KERNELS.md, Fused), which plain models use in the
 * place of the eager ones. Private to engine/.
 *
 * They follow the rules of ops.h with one exception, which is said where it holds: an argument that
 * nobody but the caller and the graph know may be overwritten by the result. The graph is safe,
 * because what a node saves holds the memory, too; the caller has to let go of it afterwards.
 */
#ifndef TSR_ENGINE_OPS_FUSED_H
#define TSR_ENGINE_OPS_FUSED_H

#include "engine/ops/ops_common.h"

static inline bool tsr__is_fused(const struct tsr_engine *e)
{
    return e->config.dialect == TSR_DIALECT_FUSED;
}

/* Refuses the fused dialect beside the modules of transformers, which are operation by operation.
 */
tsr_status tsr__check_dialect(const struct tsr_engine *e, enum tsr_impl impl);

/* For a result shaped as t: t's memory if nobody knows it but `holders` references to t, and it is
 * dense, in the order of tokens; else new memory, of that category. A new reference. */
struct tsr_tensor *tsr__result_over(struct tsr_engine *e, struct tsr_tensor *t, int holders,
                                    enum tsr_category category);

/* What earlier consumers left at the node's edge: a product can add its own to it. A new reference;
 * NULL: nothing waits there, or it is somebody else's, too, or not `numel` elements of `dtype`. */
struct tsr_tensor *tsr__waiting_gradient(struct tsr_engine *e, const struct tsr_node *node,
                                         int edge, tsr_dtype dtype, uint64_t numel);

/* a + b; may be in the place of b. */
struct tsr_tensor *tsr__op_add_over(struct tsr_engine *e, struct tsr_tensor *a,
                                    struct tsr_tensor *b);

/* h = x + f(norm(x)), h + g(norm'(h)): a block of modules norm, f, norm', g. */
struct tsr_tensor *tsr__fused_block(struct tsr_engine *e, struct tsr_tensor *x,
                                    struct tsr_module *const part[4]);
/* For the forward of a norm's module: what a call with a sum (ops->add_norm) asks of it. bias NULL:
 * RMSNorm. */
struct tsr_tensor *tsr__op_add_norm(struct tsr_engine *e, struct tsr_tensor *a,
                                    struct tsr_param *weight, struct tsr_param *bias);

/* Turns queries and keys, in place if nobody else knows them; takes over both references and puts
 * the results there. */
void tsr__op_rotate(struct tsr_engine *e, struct tsr_tensor **q, struct tsr_tensor **k,
                    uint64_t seq, uint64_t head_dim);

/* silu(gate) * up; backward may write the gradients in the place of both. */
struct tsr_tensor *tsr__op_swiglu(struct tsr_engine *e, struct tsr_tensor *gate,
                                  struct tsr_tensor *up);

/* tsr_op_cross_entropy() whose gradient is made in forward, if it may be in the place of logits. */
struct tsr_tensor *tsr__op_fused_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels);
/* The same with flash-attn's kernels, outside of the fused dialect (ops_loss.c). */
struct tsr_tensor *tsr__op_flash_cross_entropy(struct tsr_engine *e, struct tsr_tensor *logits,
                                               struct tsr_tensor *labels);
/* (labels != ignore_index).sum(), for which booleans become integers first: one i64. */
struct tsr_tensor *tsr__op_count_labels(struct tsr_engine *e, struct tsr_tensor *labels);
/* The kernel of tsr__op_fused_cross_entropy(). loss := the sum over the rows of x divided by count;
 * gradient (NULL: none) may be x. */
void tsr__emit_cross_entropy(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *labels,
                             struct tsr_tensor *count, struct tsr_tensor *loss,
                             struct tsr_tensor *gradient);
/* gradient *= g, in place; nothing if g is 1. */
void tsr__scale_gradient(struct tsr_engine *e, struct tsr_tensor *gradient, struct tsr_tensor *g);

#endif
