/* ops_common.h: what the files of operations share. */
#ifndef TSR_OPS_COMMON_H
#define TSR_OPS_COMMON_H

#include "engine.h"

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

/* One pointwise kernel from n inputs to `out`; does nothing when out is NULL. */
void tsr__emit_pointwise(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                         int n, struct tsr_tensor *out);

#endif
