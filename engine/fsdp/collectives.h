/* collectives.h: what is planned of a gather and of a reduction before anything is emitted, and
 * what the files that emit their parts share. Private to engine/fsdp:
 *
 *   all_gather.c     copy-in and collective
 *   copy_out.c       from the gathered buffer to the parameters
 *   direct.c         gathers without copies: when their memory is free again
 *   reduce.c         copy-in, reduce-scatter, all-reduce, hook
 *   sharded_grad.c   from the reduced buffer to the gradients
 */
#ifndef TSR_ENGINE_COLLECTIVES_H
#define TSR_ENGINE_COLLECTIVES_H

#include "engine/fsdp/fsdp.h"

/* ---- all_gather.c ---------------------------------------------------------------------------- */

struct tsr__gather {
    uint32_t size, rank; /* of the communicator: the shard group or the smaller one */
    uint16_t comm;
    bool from_slice;       /* from SHARDED_POST_FORWARD */
    uint64_t elems, bytes; /* one rank's contribution */
    tsr_dtype dtype;       /* U8 when the group mixes dtypes */
};

static inline tsr_dtype tsr__gather_dtype(const struct tsr_fsdp_param *p)
{
    return p->param_dtype != TSR_DTYPE_NONE ? p->param_dtype : p->orig_dtype;
}

/* Over the shard group, or the smaller one if the group is resharded to it. */
struct tsr__gather tsr__plan_gather(struct tsr_engine *e, struct tsr_group *g);
/* One rank's contribution of a parameter in bytes; dtype: of its elements, U8 if they differ. */
uint64_t tsr__input_bytes(const struct tsr_group *g, const struct tsr__gather *a,
                          const struct tsr_fsdp_param *p, tsr_dtype *dtype);
/* What the parameter's extension sends; returned is the number of inputs. */
int tsr__extension_inputs(const struct tsr_fsdp_param *p, struct tsr_gather_input out[4]);
/* An offloaded shard comes over in its original dtype and is cast on the device (R191). A new
 * reference. */
struct tsr_storage *tsr__h2d_input(struct tsr_engine *e, struct tsr_fsdp_param *p);

/* ---- copy_out.c, direct.c -------------------------------------------------------------------- */

/* The unsharded parameter exists and is backed by memory of the current stream. */
void tsr__ensure_unsharded(struct tsr_engine *e, struct tsr_group *g, struct tsr_fsdp_param *p);
/* Memory for what `stream` is about to gather. */
void tsr__direct_prepare(struct tsr_engine *e, struct tsr_group *g, uint16_t stream);

/* ---- reduce.c, sharded_grad.c ---------------------------------------------------------------- */

/* How a sum becomes a mean: factors before and after it, or what the collectives do. */
struct tsr__divide {
    double pre, post, premul;
    uint8_t rs_op, ar_op;
};

/* One reduction of a group.
 *
 * Invariant: the gradients of `items` are taken over, and gone when it ends. `output` and `result`
 * each hold a reference, also where they are one storage (no cast); the one of `input` goes to the
 * comm context until the reduce-scatter is over (W9), or, in place, is that of `output`. */
struct tsr__reduction {
    struct tsr_reduce_item *items;
    size_t n;
    uint64_t elems; /* S': padded elements of one rank */
    tsr_dtype grad, reduce, orig;
    struct tsr__divide divide;
    struct tsr_storage *input, *output, *result; /* result: what becomes the gradients */
    struct tsr_storage *partial;                 /* of earlier micro-batches; a local variable */
    uint16_t post_stream;
    bool all_reduces; /* DDP-kind */
};

/* Divides all of the storage; nothing for 0 and 1. */
void tsr__emit_scale(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype, double divisor);
/* From the reduced buffer to the gradients, on r->post_stream, and what follows them: hooks, the
 * event that the end of backward waits for. */
void tsr__post_reduce(struct tsr_engine *e, struct tsr_group *g, struct tsr__reduction *r);

#endif
