/* fully_shard.h: fully_shard and the replicate on its machinery: options and calls (sections
 * 2, 5.1). What a wrapped module can be told afterwards: methods.h.
 */
#ifndef TSR_ENGINE_FULLY_SHARD_H
#define TSR_ENGINE_FULLY_SHARD_H

#include "engine/program/base.h"

struct tsr_engine;
struct tsr_module;

/* reshard_after_forward: not given (the root stays, R74), a bool (R75), or a group size (R47-R52).
 */
enum tsr_reshard_kind { TSR_RESHARD_DEFAULT, TSR_RESHARD_FALSE, TSR_RESHARD_TRUE, TSR_RESHARD_INT };

/* Mixed precision (R55-R70). */
struct tsr_mp_policy {
    tsr_dtype param, reduce, output; /* NONE = not set */
    bool no_cast_inputs;             /* cast_forward_inputs = False */
};
/* Where shards, their gradients and optimizer states live (R189-R194). */
enum tsr_offload { TSR_OFFLOAD_NONE, TSR_OFFLOAD_CPU, TSR_OFFLOAD_CPU_PINNED };

/* Which dimension of a parameter is cut (R33-R36). */
struct tsr_shard_dim {
    const char *pattern; /* parameter FQN */
    int dim;             /* negative counts from the end */
    bool replicate;      /* the placement function returns Replicate: an error */
};

/* 2.15: a mesh for some parameters (expert parallelism): shard groups of `size` ranks that lie
 * `stride` apart, and `replicas` such groups side by side that hold the same (1: none). */
struct tsr_param_mesh {
    const char *pattern;  /* parameter FQN */
    const void *identity; /* mesh infos with the same groups must be the same object (R53) */
    uint32_t size, stride, replicas, replica_stride;
};

/* Of one call; all zero: the defaults. Read during the call only. */
struct tsr_wrap_options {
    enum tsr_reshard_kind reshard;
    int64_t reshard_int;         /* TSR_RESHARD_INT: ranks of the smaller group */
    const char *reshard_invalid; /* text of a value that is neither bool nor integer: refused */
    struct tsr_mp_policy mp;
    enum tsr_offload offload;
    bool mirror; /* shards are kept in the compute dtype as well (OPTIONS.md); not with offload */
    bool direct; /* every parameter is gathered into its place (OPTIONS.md) */
    bool folds;  /* gradients stay sums; fused AdamW scales them (OPTIONS.md); not with offload */
    size_t n_shard_dims;
    const struct tsr_shard_dim *shard_dims; /* first match wins; none: dim 0 */
    size_t n_ignored;
    const char *const *ignored; /* parameter patterns */
    /* Names of the mesh dimensions to use, HSDP: replicate, then shard. None: all that no tensor
     * parallelism uses (engine/layout/tensor_parallel.h). */
    int n_mesh_dims;
    const char *const *mesh_dims;
    /* 2.15 only: */
    size_t n_param_meshes;
    const struct tsr_param_mesh *param_meshes; /* first match wins; none: the engine's mesh */
    size_t n_full_precision;
    const char *const *full_precision; /* parameters that mp.param does not cast */
    /* dp_mesh_dims (section 2.8): the engine's mesh is the whole mesh, every parameter a DTensor on
     * it, and these dimensions are data parallel. Several names become one dimension, so they must
     * be neighbours in the mesh. No shard names: fully_shard() behaves as replicate(). */
    int n_spmd_shard, n_spmd_replicate;
    const char *const *spmd_shard, *const *spmd_replicate;
};

/* One call of fully_shard(modules, ...): n > 1 modules form one group (R1-R24). Calls go bottom-up.
 * Uses the engine's mesh: 1-D shards, 2-D replicates over dim 0 and shards over dim 1 (R18).
 * `modules` is copied; options NULL: defaults. Errors are those of PyTorch (section 4.1); after one
 * the engine can only be destroyed. */
tsr_status tsr_fully_shard(struct tsr_engine *engine, struct tsr_module *const *modules, size_t n,
                           const struct tsr_wrap_options *options) TSR_MUST_USE;
/* replicate() on the FSDP machinery (section 5.1, R203-R206): each group's gradients are
 * all-reduced once. As above, on a 1-D mesh; reshard and shard_dims are ignored. */
tsr_status tsr_replicate(struct tsr_engine *engine, struct tsr_module *const *modules, size_t n,
                         const struct tsr_wrap_options *options) TSR_MUST_USE;

#endif
