/* tp_extension.h: the older extension that let FSDP1 (flat parameters) run over tensor parallelism
 * (section 2.12, R241-R250): its six operations and the metadata rewrite, as functions over value
 * structs that describe tensors. No data moves here; what a rank holds is in the layouts.
 *
 * Boxes follow the ceil rule (R247), also where PyTorch 2.11 divides evenly.
 */
#ifndef TSR_ENGINE_TP_EXTENSION_H
#define TSR_ENGINE_TP_EXTENSION_H

#include "engine/layout/dtensor.h"

/* The ranks first, first + stride, ... */
struct tsr_rank_group {
    uint32_t first, size, stride;
};
/* The group of global rank `rank` along a mesh dimension, and its index in it. */
struct tsr_rank_group tsr_rank_group_of(struct tsr_mesh_dim dim, uint32_t rank, uint32_t *index);

/* Device of a shard: "cpu", or TYPE:(rank % per_node). */
struct tsr_shard_device {
    const char *type;
    uint32_t per_node;
};

/* ---- sharded tensors ------------------------------------------------------------------------- */

struct tsr_shard {
    uint64_t offset[TSR_DT_MAX_DIMS], size[TSR_DT_MAX_DIMS];
    char placement[48]; /* "rank:3/cuda:3" */
};

/* A tensor in shards of which a rank has at most one.
 *
 * Invariant: shards lie in order of their offsets and cover the tensor; `inner` has the size of
 * `local` where both are there (R246). */
struct tsr_sharded_tensor {
    int n_dims;
    uint64_t size[TSR_DT_MAX_DIMS];
    bool requires_grad;
    size_t n_shards;
    struct tsr_shard *shards; /* metadata of all; owned */
    bool has_local;
    struct tsr_shard local;           /* this rank's only shard */
    struct tsr_sharded_tensor *inner; /* the shard is itself a sharded tensor; owned; or NULL */
};
void tsr_sharded_tensor_free(struct tsr_sharded_tensor *t); /* NULL is fine */

/* A tensor as the extension sees it, on one rank. */
struct tsr_ext_tensor {
    int n_dims;
    uint64_t shape[TSR_DT_MAX_DIMS]; /* DTensors: of the local tensor */
    bool requires_grad;
    bool is_dtensor;
    struct tsr_dtensor spec;                  /* mesh, placements, global shape */
    uint64_t stride[TSR_DT_MAX_DIMS];         /* global, elements */
    const struct tsr_sharded_tensor *sharded; /* a ShardedTensor (borrowed); or NULL */
    bool is_flattened;                        /* was put back by post_unflatten */
    const char *grad_wait; /* stream on which its asynchronous gradient is waited for; or NULL */
};
/* The part of `rank` of a DTensor; strides are those of a contiguous tensor. */
tsr_status tsr_ext_dtensor(const struct tsr_dtensor *spec, uint32_t rank,
                           struct tsr_ext_tensor *out) TSR_MUST_USE;

/* ---- the extension --------------------------------------------------------------------------- */

/* FSDP1's mesh is a slice of a bigger root mesh (R249). */
bool tsr_ext_is_active(int n_mesh_dims, int n_root_dims);

/* What pre-flatten recorded for un-flattening. */
struct tsr_ext_spec {
    bool recorded; /* only for DTensors */
    struct tsr_dtensor spec;
    uint64_t stride[TSR_DT_MAX_DIMS];
    bool requires_grad;
};
/* The local tensor, which now requires grad, and the spec; a plain tensor stays as it is (R241). */
void tsr_ext_pre_flatten(const struct tsr_ext_tensor *in, struct tsr_ext_tensor *out,
                         struct tsr_ext_spec *spec);
/* The DTensor again, over the view that FSDP made (R242). compute_stream NULL: the current one. */
void tsr_ext_post_unflatten(const struct tsr_ext_tensor *view, const struct tsr_ext_spec *spec,
                            const char *compute_stream, struct tsr_ext_tensor *out);

/* Chunks along dim 0 over the FSDP group. Plain: the chunked tensor; DTensor (1-D mesh) and
 * ShardedTensor (one local shard): nested (R246, R250). AssertionError: another mesh or number of
 * shards. ValueError: the rank inside the tensor-parallel group, which is taken for a global rank,
 * does not exist in that group. *out is to be freed. */
tsr_status tsr_ext_chunk_tensor(const struct tsr_ext_tensor *in, uint32_t rank,
                                const struct tsr_rank_group *fsdp, struct tsr_shard_device device,
                                struct tsr_sharded_tensor **out) TSR_MUST_USE;

/* Layout on the root mesh (R243); n_mesh 0: there is none. RuntimeError below two dimensions. */
tsr_status tsr_ext_chunk_dtensor(const struct tsr_ext_tensor *in, int n_mesh,
                                 const uint32_t *root_mesh, struct tsr_dtensor *out) TSR_MUST_USE;

/* The tensor to load into and its local shard, one nesting level down if there is one (R248). */
const struct tsr_sharded_tensor *tsr_ext_pre_load(const struct tsr_sharded_tensor *t,
                                                  const struct tsr_shard **local);

/* Gathers every mesh dimension but the last (R245). AssertionError unless `parent` is the mesh of
 * the tensor. */
tsr_status tsr_ext_all_gather_dtensor(const struct tsr_dtensor *in, int n_parent,
                                      const struct tsr_mesh_dim *parent,
                                      struct tsr_dtensor *out) TSR_MUST_USE;

/* Where the chunks of a sharding spec lie. */
struct tsr_sharding_spec {
    bool is_chunk; /* other kinds of specs are left alone */
    int dim;
    size_t n;
    struct tsr_rank_device {
        uint32_t rank;
        char device[24];
    } * placements;
};
/* Optimizer state may have been moved to another device: the entry of `rank` then names `device`.
 * True if something had to change: *out is a copy with placements of its own, to be freed. */
tsr_status tsr_ext_rewrite_spec(const struct tsr_sharding_spec *in, uint32_t rank,
                                const char *device, bool *changed,
                                struct tsr_sharding_spec *out) TSR_MUST_USE;

#endif
