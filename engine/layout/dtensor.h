/* dtensor.h: how a tensor lies on a mesh: placements, what each rank holds, and back.
 *
 * Value structs and pure functions, for any number of dimensions and ranks. A tensor dimension that
 * several mesh dimensions shard is cut by the left one first, then by the right one. A strided
 * shard with split factor f was cut after shards to its right that made f pieces (section 2.8).
 * Every cut follows the ceil rule (section 2.2); sizes may be uneven.
 */
#ifndef TSR_ENGINE_DTENSOR_H
#define TSR_ENGINE_DTENSOR_H

#include "engine/program/base.h"

enum { TSR_DT_MAX_DIMS = 8, TSR_DT_MAX_MESH = 4 };

enum tsr_placement_kind { TSR_PLACE_REPLICATE, TSR_PLACE_SHARD, TSR_PLACE_STRIDED_SHARD };

struct tsr_placement {
    enum tsr_placement_kind kind;
    int dim;        /* shards */
    uint32_t split; /* strided shards: pieces that exist already on that dimension */
};

static inline struct tsr_placement tsr_replicate_placement(void)
{
    return (struct tsr_placement){TSR_PLACE_REPLICATE, 0, 1};
}
/* split > 1 makes it strided. */
static inline struct tsr_placement tsr_shard_placement(int dim, uint32_t split)
{
    return (struct tsr_placement){split > 1 ? TSR_PLACE_STRIDED_SHARD : TSR_PLACE_SHARD, dim,
                                  split > 1 ? split : 1};
}

/* A mesh dimension: the coordinate of global rank r on it is r / stride % size. Ranks that differ
 * elsewhere only hold the same. */
struct tsr_mesh_dim {
    uint32_t size, stride;
};

struct tsr_dtensor {
    int n_dims;
    uint64_t shape[TSR_DT_MAX_DIMS]; /* global */
    int n_mesh;
    struct tsr_mesh_dim mesh[TSR_DT_MAX_MESH];
    struct tsr_placement place[TSR_DT_MAX_MESH];
};

/* Sets the mesh: n_mesh dimensions of a row-major one. */
void tsr_dtensor_mesh(struct tsr_dtensor *t, int n_mesh, const uint32_t *sizes);
/* ValueError: too many dimensions, a size or stride of 0, a shard of a dimension that is not there,
 * a split factor of 0, more than 2^60 elements. What follows takes checked tensors only. */
tsr_status tsr_dtensor_check(const struct tsr_dtensor *t) TSR_MUST_USE;
/* The same shape, mesh and placements. */
bool tsr_dtensor_equal(const struct tsr_dtensor *a, const struct tsr_dtensor *b);
/* Elements of the global tensor. */
uint64_t tsr_dtensor_numel(const struct tsr_dtensor *t);

/* ---- what a rank holds ----------------------------------------------------------------------- */

/* shape: room for n_dims sizes. A rank without elements keeps the other dimensions. */
void tsr_dtensor_local_shape(const struct tsr_dtensor *t, uint64_t rank, uint64_t *shape);
uint64_t tsr_dtensor_local_numel(const struct tsr_dtensor *t, uint64_t rank);
/* True if the rank's part is one box (offset, size) of the global tensor; so it is for every
 * layout of FSDP with tensor parallelism. False: some dimension has gaps; see the runs. */
bool tsr_dtensor_box(const struct tsr_dtensor *t, uint64_t rank, uint64_t *offset, uint64_t *size);

struct tsr_shard_run {
    uint64_t start, length; /* flat indices into the global tensor, row-major */
};
struct tsr_runs {
    size_t n, cap;
    struct tsr_shard_run *items; /* freed by tsr_runs_fini() */
};
/* In local order, each as long as possible; none for a rank without elements. *out is given to
 * tsr_runs_fini(). Errors: TSR_ENOMEM. */
tsr_status tsr_dtensor_runs(const struct tsr_dtensor *t, uint64_t rank,
                            struct tsr_runs *out) TSR_MUST_USE;
/* Of one dimension alone: indices along it. False: out of memory. */
bool tsr_dtensor_dim_runs(const struct tsr_dtensor *t, int dim, uint64_t rank,
                          struct tsr_runs *out);
void tsr_runs_fini(struct tsr_runs *runs);

/* ---- moving data ----------------------------------------------------------------------------- */

/* Puts the rank's part into the global tensor. A full tensor is reconstructed by putting the parts
 * of all ranks (R45). bytes: of one element. Errors: TSR_ENOMEM. */
tsr_status tsr_dtensor_put(const struct tsr_dtensor *t, uint64_t rank, size_t bytes,
                           const void *local, void *global) TSR_MUST_USE;

/* ---- who holds an interval of one dimension -------------------------------------------------- */

/* A contiguous piece [start, start + length) of the dimension that lies with one set of
 * coordinates: coord[i] is set for mesh dimensions that shard this dimension, others are kept. */
struct tsr_holder {
    uint64_t start, length;
    uint64_t local_start, local_size; /* place in, and extent of, the holder's local dimension */
    uint32_t coord[TSR_DT_MAX_MESH];
};
typedef tsr_status (*tsr_holder_fn)(void *user, const struct tsr_holder *holder);
/* Calls fn for pieces that make up [start, start + length), in this order for layouts without
 * strided shards. Stops at the first failure and returns it. */
tsr_status tsr_dtensor_holders(const struct tsr_dtensor *t, int dim, uint64_t start,
                               uint64_t length, tsr_holder_fn fn, void *user) TSR_MUST_USE;

#endif
