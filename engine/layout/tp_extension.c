/* tp_extension.c: the older extension for tensor parallelism under FSDP1; see tp_extension.h. */
#include "engine/layout/tp_extension.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layout/layout.h"

struct tsr_rank_group tsr_rank_group_of(struct tsr_mesh_dim dim, uint32_t rank, uint32_t *index)
{
    uint32_t i = rank / dim.stride % dim.size;
    if (index)
        *index = i;
    return (struct tsr_rank_group){rank - i * dim.stride, dim.size, dim.stride};
}

static void place(struct tsr_shard *shard, uint32_t rank, uint32_t device_rank,
                  struct tsr_shard_device device)
{
    if (!strcmp(device.type, "cpu"))
        snprintf(shard->placement, sizeof shard->placement, "rank:%u/cpu", rank);
    else
        snprintf(shard->placement, sizeof shard->placement, "rank:%u/%.16s:%u", rank, device.type,
                 device.per_node ? device_rank % device.per_node : 0);
}

/* ---- tensors --------------------------------------------------------------------------------- */

void tsr_sharded_tensor_free(struct tsr_sharded_tensor *t)
{
    if (!t)
        return;
    tsr_sharded_tensor_free(t->inner);
    free(t->shards);
    free(t);
}

static struct tsr_sharded_tensor *new_tensor(int n_dims, const uint64_t *size, size_t room)
{
    struct tsr_sharded_tensor *t = calloc(1, sizeof *t);
    struct tsr_shard *shards = calloc(room + 1, sizeof *shards);
    if (!t || !shards) {
        free(t);
        free(shards);
        return NULL;
    }
    t->n_dims = n_dims;
    t->shards = shards;
    for (int i = 0; i < n_dims; i++)
        t->size[i] = size[i];
    return t;
}

tsr_status tsr_ext_dtensor(const struct tsr_dtensor *spec, uint32_t rank,
                           struct tsr_ext_tensor *out)
{
    uint64_t stride = 1;
    TSR_TRY(tsr_dtensor_check(spec));
    *out = (struct tsr_ext_tensor){.n_dims = spec->n_dims, .is_dtensor = true, .spec = *spec};
    tsr_dtensor_local_shape(spec, rank, out->shape);
    for (int i = spec->n_dims - 1; i >= 0; i--) {
        out->stride[i] = stride;
        stride *= tsr_max_u64(spec->shape[i], 1);
    }
    return TSR_OK;
}

/* ---- flattening ------------------------------------------------------------------------------ */

bool tsr_ext_is_active(int n_mesh_dims, int n_root_dims)
{
    return n_mesh_dims > 0 && n_root_dims > n_mesh_dims;
}

void tsr_ext_pre_flatten(const struct tsr_ext_tensor *in, struct tsr_ext_tensor *out,
                         struct tsr_ext_spec *spec)
{
    *spec = (struct tsr_ext_spec){0};
    *out = *in;
    if (!in->is_dtensor)
        return;
    spec->recorded = true;
    spec->spec = in->spec;
    spec->requires_grad = in->requires_grad;
    memcpy(spec->stride, in->stride, sizeof spec->stride);
    *out = (struct tsr_ext_tensor){.n_dims = in->n_dims, .requires_grad = true};
    memcpy(out->shape, in->shape, sizeof out->shape);
}

void tsr_ext_post_unflatten(const struct tsr_ext_tensor *view, const struct tsr_ext_spec *spec,
                            const char *compute_stream, struct tsr_ext_tensor *out)
{
    *out = *view;
    if (!spec->recorded)
        return;
    out->is_dtensor = true;
    out->is_flattened = true;
    out->spec = spec->spec;
    memcpy(out->stride, spec->stride, sizeof out->stride);
    if (out->requires_grad)
        out->grad_wait = compute_stream ? compute_stream : "current";
}

/* ---- chunk_tensor ---------------------------------------------------------------------------- */

/* Chunks along dim 0; ranks beyond the number of chunks own nothing and have no entry (R250). */
static tsr_status chunk_plain(int n_dims, const uint64_t *size, uint32_t rank,
                              const struct tsr_rank_group *group, struct tsr_shard_device device,
                              struct tsr_sharded_tensor **out)
{
    if (n_dims < 1)
        return tsr_fail(TSR_ERUNTIME, "chunk expects at least a 1-dimensional tensor");
    if (group->size == 0 || group->stride == 0)
        return tsr_fail(TSR_EVALUE, "a group of %u ranks with stride %u", group->size,
                        group->stride);
    struct tsr_sharded_tensor *t = new_tensor(n_dims, size, group->size);
    if (!t)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < group->size; i++) {
        struct tsr_chunk c = tsr__chunk(size[0], group->size, i);
        uint32_t owner = group->first + i * group->stride;
        if (c.count == 0)
            break;
        struct tsr_shard *shard = &t->shards[t->n_shards++];
        memcpy(shard->size, t->size, sizeof shard->size);
        shard->offset[0] = c.begin;
        shard->size[0] = c.count;
        place(shard, owner, owner, device);
        if (owner == rank) {
            t->has_local = true;
            t->local = *shard;
        }
    }
    *out = t;
    return TSR_OK;
}

static tsr_status check_own_rank(uint32_t my_rank, const struct tsr_rank_group *group)
{
    char list[256];
    size_t used = 0;
    list[0] = '\0';
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t member = group->first + i * group->stride;
        if (member == my_rank)
            return TSR_OK;
        if (used < sizeof list)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%u", i ? ", " : "", member);
    }
    return tsr_fail(TSR_EVALUE, "Global rank %u does not exist in input process group: [%s]",
                    my_rank, list);
}

/* A sharded tensor that covers the whole and has one valid shard: entry 0 is placed on the own rank
 * inside the tensor-parallel group, all others on a scapegoat. */
static tsr_status synthesise(const struct tsr_ext_tensor *in, uint32_t rank,
                             struct tsr_shard_device device, struct tsr_sharded_tensor **out)
{
    const struct tsr_dtensor *spec = &in->spec;
    bool is_sharded = spec->place[0].kind != TSR_PLACE_REPLICATE;
    int dim = spec->place[0].dim;
    uint32_t mine, n = is_sharded ? spec->mesh[0].size : 1;
    struct tsr_rank_group group = tsr_rank_group_of(spec->mesh[0], rank, &mine);
    TSR_TRY(check_own_rank(mine, &group));
    struct tsr_sharded_tensor *t = new_tensor(spec->n_dims, spec->shape, n);
    if (!t)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_shard *shard = &t->shards[t->n_shards++];
        memcpy(shard->size, t->size, sizeof shard->size);
        if (is_sharded) {
            struct tsr_chunk c = tsr__chunk(spec->shape[dim], n, i);
            shard->offset[dim] = c.begin;
            shard->size[dim] = c.count;
        }
        place(shard, i == 0 ? mine : mine > 0 ? 0 : 1, rank, device);
    }
    t->requires_grad = in->requires_grad;
    t->has_local = true;
    t->local = t->shards[is_sharded ? mine : 0];
    place(&t->local, mine, rank, device);
    *out = t;
    return TSR_OK;
}

static struct tsr_sharded_tensor *copy_metadata(const struct tsr_sharded_tensor *in)
{
    struct tsr_sharded_tensor *t = new_tensor(in->n_dims, in->size, in->n_shards);
    if (!t)
        return NULL;
    t->n_shards = in->n_shards;
    if (in->n_shards)
        memcpy(t->shards, in->shards, in->n_shards * sizeof *t->shards);
    t->has_local = true;
    t->local = in->local;
    return t;
}

tsr_status tsr_ext_chunk_tensor(const struct tsr_ext_tensor *in, uint32_t rank,
                                const struct tsr_rank_group *fsdp, struct tsr_shard_device device,
                                struct tsr_sharded_tensor **out)
{
    struct tsr_sharded_tensor *inner, *outer = NULL;
    *out = NULL;
    if (!in->sharded && !in->is_dtensor)
        return chunk_plain(in->n_dims, in->shape, rank, fsdp, device, out);
    if (in->is_dtensor && in->spec.n_mesh != 1)
        return tsr_fail(TSR_EASSERT, "Only 1D DeviceMeshes currently handled, got %dD",
                        in->spec.n_mesh);
    if (in->sharded && (!in->sharded->has_local || in->sharded->inner))
        return tsr_fail(TSR_EASSERT, "chunk_tensor expects a ShardedTensor with one local shard");
    if (in->sharded) {
        TSR_TRY(
            chunk_plain(in->sharded->n_dims, in->sharded->local.size, rank, fsdp, device, &inner));
        outer = copy_metadata(in->sharded);
    } else {
        TSR_TRY(chunk_plain(in->n_dims, in->shape, rank, fsdp, device, &inner));
        tsr_status status = synthesise(in, rank, device, &outer);
        if (status != TSR_OK) {
            tsr_sharded_tensor_free(inner);
            return status;
        }
    }
    if (!outer) {
        tsr_sharded_tensor_free(inner);
        return tsr_no_memory(NULL);
    }
    outer->inner = inner;
    *out = outer;
    return TSR_OK;
}

const struct tsr_sharded_tensor *tsr_ext_pre_load(const struct tsr_sharded_tensor *t,
                                                  const struct tsr_shard **local)
{
    if (t->has_local && t->inner)
        t = t->inner;
    *local = t->has_local ? &t->local : NULL;
    return t;
}

/* ---- chunk_dtensor, all_gather_dtensor ------------------------------------------------------- */

tsr_status tsr_ext_chunk_dtensor(const struct tsr_ext_tensor *in, int n_mesh,
                                 const uint32_t *root_mesh, struct tsr_dtensor *out)
{
    if (n_mesh <= 0)
        return tsr_fail(TSR_ERUNTIME, "No parent device_mesh is found for FSDP device_mesh.");
    if (n_mesh < 2)
        return tsr_fail(TSR_ERUNTIME,
                        "Found parent device_mesh of ndim=%d, but meshes must be at least 2D.",
                        n_mesh);
    if (n_mesh > TSR_DT_MAX_MESH)
        return tsr_fail(TSR_EVALUE, "a mesh has up to %d dimensions, not %d", TSR_DT_MAX_MESH,
                        n_mesh);
    const struct tsr_dtensor *spec = &in->spec;
    struct tsr_dtensor t = {.n_dims = in->n_dims};
    memcpy(t.shape, in->is_dtensor ? spec->shape : in->shape, sizeof t.shape);
    tsr_dtensor_mesh(&t, n_mesh, root_mesh);
    for (int i = 0; i < n_mesh; i++)
        t.place[i] = tsr_replicate_placement();
    t.place[in->is_dtensor ? n_mesh - 2 : 0] = tsr_shard_placement(0, 1);
    if (in->is_dtensor && spec->n_mesh > 0)
        t.place[n_mesh - 1] = spec->place[spec->n_mesh - 1];
    TSR_TRY(tsr_dtensor_check(&t));
    *out = t;
    return TSR_OK;
}

tsr_status tsr_ext_all_gather_dtensor(const struct tsr_dtensor *in, int n_parent,
                                      const struct tsr_mesh_dim *parent, struct tsr_dtensor *out)
{
    bool same = n_parent == in->n_mesh;
    for (int i = 0; same && i < n_parent; i++)
        same = parent[i].size == in->mesh[i].size && parent[i].stride == in->mesh[i].stride;
    if (!same)
        return tsr_fail(TSR_EASSERT,
                        "all_gather_dtensor: the parent mesh (%d dimensions) is not the mesh of "
                        "the tensor (%d dimensions)",
                        n_parent, in->n_mesh);
    struct tsr_dtensor t = *in;
    for (int i = 0; i + 1 < t.n_mesh; i++)
        t.place[i] = tsr_replicate_placement();
    *out = t;
    return TSR_OK;
}

/* ---- metadata rewrite ------------------------------------------------------------------------ */

tsr_status tsr_ext_rewrite_spec(const struct tsr_sharding_spec *in, uint32_t rank,
                                const char *device, bool *changed, struct tsr_sharding_spec *out)
{
    *changed = false;
    *out = *in;
    for (size_t i = 0; in->is_chunk && i < in->n; i++)
        *changed |= in->placements[i].rank == rank && strcmp(in->placements[i].device, device) != 0;
    if (!*changed)
        return TSR_OK;
    out->placements = malloc(in->n * sizeof *out->placements);
    if (!out->placements) {
        *changed = false;
        return tsr_no_memory(NULL);
    }
    memcpy(out->placements, in->placements, in->n * sizeof *out->placements);
    for (size_t i = 0; i < out->n; i++)
        if (out->placements[i].rank == rank)
            snprintf(out->placements[i].device, sizeof out->placements[i].device, "%s", device);
    return TSR_OK;
}
