/* tensor_parallel.h: parameters that tensor parallelism shards, and FSDP over them (section 2.8).
 *
 * After a model is built and before it is wrapped, tsr_tensor_parallel() turns parameters into
 * DTensors on a dimension of the engine's mesh; wrapping then shards this rank's part over the
 * dimensions that its options name. tsr_tensor_parallel() alone gives layouts; steps are modelled
 * after tsr_tensor_parallel_model() (tsr_engine_init_params() says so).
 */
#ifndef TSR_ENGINE_TENSOR_PARALLEL_H
#define TSR_ENGINE_TENSOR_PARALLEL_H

#include "engine/graph/config.h"
#include "engine/layout/dtensor.h"

struct tsr_engine;

enum tsr_tp_kind {
    TSR_TP_COLWISE, /* linear: weight and bias dim 0; embedding: dim 1 */
    TSR_TP_ROWWISE, /* linear: weight dim 1, bias replicated; embedding: dim 0 */
    TSR_TP_SEQUENCE /* replicated */
};
/* "colwise", "rowwise", "sequence". False for anything else. */
bool tsr_tp_kind_parse(const char *name, enum tsr_tp_kind *out);

struct tsr_tp_style {
    const char *pattern; /* modules; the last match wins */
    enum tsr_tp_kind kind;
};

struct tsr_tp_options {
    const char *mesh_dim;    /* name of a dimension of the engine's mesh */
    const char *device_type; /* of that mesh; NULL: the engine's, "cuda" */
    size_t n_styles;
    const struct tsr_tp_style *styles;
};

/* Once per dimension; fully_shard takes at most two of them per parameter (R43). A parameter with
 * several places loses the others: they keep the whole tensor. NotImplementedError: a style for a
 * module that has no rule. ValueError: no such dimension, used already, a wrapped model. */
tsr_status tsr_tensor_parallel(struct tsr_engine *engine,
                               const struct tsr_tp_options *options) TSR_MUST_USE;

/* Tensor parallelism of a whole Llama-family model, with steps: Megatron's cuts, the vocabulary
 * of embedding, head and loss among them; sequence: activations between the cut regions are
 * divided along the sequence (torchtitan's plan). ValueError: a size that does not divide;
 * NotImplementedError: another family, or modules of transformers. */
tsr_status tsr_tensor_parallel_model(struct tsr_engine *engine, const char *mesh_dim,
                                     bool sequence) TSR_MUST_USE;

/* Where a parameter lies: on the mesh dimensions of its group, then on those of its tensor
 * parallelism. Ranks that differ elsewhere hold the same. */
struct tsr_param_dtensor {
    const char *fqn, *group; /* group NULL: not managed */
    tsr_dtype dtype;
    struct tsr_dtensor layout;  /* global shape, placements; the mesh as global ranks */
    int n_fsdp, n_tp;           /* mesh dimensions of each kind, in this order */
    int fsdp_dim;               /* that FSDP cuts; replicated: 0; not managed: -1 */
    int mesh_dim[TSR_MAX_MESH]; /* of the engine's mesh, for each; -1: a mesh of the parameter's own
                                 */
};
/* i as in tsr_param_layout(). */
tsr_status tsr_param_dtensor(struct tsr_engine *engine, size_t i,
                             struct tsr_param_dtensor *out) TSR_MUST_USE;
/* Local shape as the engine stores it: where tensor parallelism leaves a rank without elements, the
 * dimension that FSDP cuts is 0, too. */
void tsr_param_dtensor_local_shape(const struct tsr_param_dtensor *p, uint64_t rank,
                                   uint64_t *shape);

#endif
