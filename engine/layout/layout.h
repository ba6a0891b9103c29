/* layout.h: how parameters are cut over ranks, for the engine's own folders: chunks of a dimension,
 * parts of the engine's mesh, what tensor parallelism uses of it, and the cut of a wrapped group.
 * Private to engine/; what others may ask is in dtensor.h, tensor_parallel.h and sharded_state.h.
 */
#ifndef TSR_ENGINE_LAYOUT_H
#define TSR_ENGINE_LAYOUT_H

#include "engine/graph/engine.h"
#include "engine/layout/tensor_parallel.h"

/* ---- chunks (dtensor.c) ---------------------------------------------------------------------- */

/* The chunk rule of section 2.2 exists here and nowhere else. */
struct tsr_chunk {
    uint64_t rows;  /* rows of every chunk, padding included: ceil(n / world) */
    uint64_t begin; /* first row of this rank, clamped */
    uint64_t count; /* real rows of this rank */
};
struct tsr_chunk tsr__chunk(uint64_t n, uint32_t world, uint32_t rank);

/* ---- meshes (tensor_parallel.c) -------------------------------------------------------------- */

/* What tensor parallelism uses of the engine's mesh. */
struct tsr_tp_use {
    uint32_t mesh_dims; /* bit i: it uses mesh dimension i */
    uint32_t size;      /* 0 or 1: the model's steps are not tensor-parallel */
    bool sequence;      /* activations between regions are cut along the sequence */
    uint16_t comm, stream;
};

/* Some dimensions of the engine's mesh, in the order in which they were named. */
struct tsr_submesh {
    int n_dims, dim[TSR_MAX_MESH]; /* dim -1: several dimensions flattened into one */
    uint32_t size[TSR_MAX_MESH], stride[TSR_MAX_MESH];
};
/* n 0: every dimension that no tensor parallelism uses. ValueError for an unknown or used name. */
tsr_status tsr__submesh(const struct tsr_engine *e, const char *const *names, int n,
                        struct tsr_submesh *out);
/* Appends the named dimensions, which must be neighbours in the mesh, as one. n 0: nothing. */
tsr_status tsr__submesh_add_flattened(const struct tsr_engine *e, const char *const *names, int n,
                                      struct tsr_submesh *out);

/* ---- where a parameter lies (tensor_parallel.c) ---------------------------------------------- */

/* How a wrapped group cuts a parameter; whoever wraps it says so (tsr_param.cut). */
struct tsr_param_cut {
    const char *group; /* its name */
    bool on_host;      /* shards lie in host memory */
    int shard_dim;     /* -1: replicated */
    int n;             /* mesh dimensions: those that replicate before that which shards */
    struct tsr_cut_dim {
        int mesh_dim; /* of the engine's mesh; -1: a mesh of the parameter's own */
        struct tsr_mesh_dim ranks;
        bool shards;
    } dims[2];
};
/* As tsr_param_dtensor(). */
tsr_status tsr__param_dtensor(const struct tsr_engine *e, const struct tsr_param *p,
                              struct tsr_param_dtensor *out);
bool tsr__tp_is_sharded(const struct tsr_param *p);
/* Refuses DTensor parameters that a group cannot shard, which replicates, too, if hsdp (section
 * 2.8). */
tsr_status tsr__check_dtensor_param(const struct tsr_param *p, bool hsdp);
/* On dimensions other than 0 every rank's part must divide evenly among `world` ranks. */
tsr_status tsr__check_dtensor_dim(const struct tsr_engine *e, const struct tsr_param *p,
                                  uint32_t world, int dim);

#endif
