/* trace_chunk.c: scenarios of kind `chunk`: the older tensor-parallel extension. */
#include <stdlib.h>
#include <string.h>

#include "engine/layout/tp_extension.h"
#include "experiments/cli/player/trace/trace_kinds.h"

struct chunk_case {
    int n_dims, n_mesh;
    uint64_t shape[TSR_DT_MAX_DIMS];
    uint32_t mesh[TSR_DT_MAX_MESH], world;
    bool has_tp;
    int tp_dim;
    struct tsr_shard_device device;
};

/* ---- reading --------------------------------------------------------------------------------- */

static tsr_status read_tp_dim(const struct tsr_yaml_node *node, struct chunk_case *c)
{
    const struct tsr_yaml_node *dim = tsr_node_get(node, "tp_dim");
    int64_t value;
    if (tsr_node_is_null(dim))
        return TSR_OK;
    if (!tsr_node_i64(dim, &value) || value < -c->n_dims || value >= c->n_dims)
        return tsr_node_error(dim, "tp_dim: found %s; allowed: a dimension of the tensor",
                              tsr_node_show(dim));
    c->has_tp = true;
    c->tp_dim = (int)(value < 0 ? value + c->n_dims : value);
    return TSR_OK;
}

static tsr_status read_case(const struct tsr_yaml_node *node, struct chunk_case *c)
{
    uint64_t mesh[TSR_DT_MAX_MESH], world = 1;
    *c = (struct chunk_case){.device = {"cpu", (uint32_t)tsr_u64_or(node, "per_node", 8)}};
    TSR_TRY(tsr_sizes_read(node, "shape", 0, TSR_DT_MAX_DIMS, c->shape, &c->n_dims));
    if (tsr_node_get(node, "mesh"))
        TSR_TRY(tsr_sizes_read(node, "mesh", 1, TSR_DT_MAX_MESH, mesh, &c->n_mesh));
    for (int i = 0; i < c->n_mesh && world <= 1u << 20; i++) {
        c->mesh[i] = (uint32_t)mesh[i];
        world *= tsr_min_u64(mesh[i], UINT32_MAX);
    }
    if (c->n_mesh == 0)
        world = tsr_u64_or(node, "world", 0);
    if (world < 1 || world > 1u << 20)
        return tsr_node_error(node, "world: found %llu ranks; allowed: 1 to %u",
                              (unsigned long long)world, 1u << 20);
    c->world = (uint32_t)world;
    return read_tp_dim(node, c);
}

/* A plain tensor, or the rank's part of one that the last mesh dimension shards. */
static tsr_status input_of(const struct chunk_case *c, uint32_t rank, struct tsr_ext_tensor *out)
{
    if (!c->has_tp) {
        *out = (struct tsr_ext_tensor){.n_dims = c->n_dims};
        memcpy(out->shape, c->shape, sizeof out->shape);
        return TSR_OK;
    }
    struct tsr_dtensor spec = {.n_dims = c->n_dims, .n_mesh = 1};
    memcpy(spec.shape, c->shape, sizeof spec.shape);
    spec.mesh[0] = (struct tsr_mesh_dim){c->mesh[c->n_mesh - 1], 1};
    spec.place[0] = tsr_shard_placement(c->tp_dim, 1);
    return tsr_ext_dtensor(&spec, rank, out);
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *box_json(int n, const struct tsr_shard *shard)
{
    return json_pack("[o, o]", tsr_sizes_json(n, shard->offset), tsr_sizes_json(n, shard->size));
}

static json_t *shards_json(const struct tsr_sharded_tensor *t)
{
    json_t *list = json_array();
    for (size_t i = 0; i < t->n_shards; i++) {
        json_t *shard = box_json(t->n_dims, &t->shards[i]);
        json_array_append_new(shard, json_string(t->shards[i].placement));
        json_array_append_new(list, shard);
    }
    return list;
}

/* ---- the functions --------------------------------------------------------------------------- */

static tsr_status chunk_tensor(const struct chunk_case *c, json_t *o)
{
    struct tsr_rank_group group = {0, c->world, 1};
    json_t *local = json_array();
    json_object_set_new(o, "local", local);
    for (uint32_t r = 0; r < c->world; r++) {
        struct tsr_ext_tensor in;
        struct tsr_sharded_tensor *t;
        TSR_TRY(input_of(c, r, &in));
        TSR_TRY(tsr_ext_chunk_tensor(&in, r, &group, c->device, &t));
        json_t *mine = json_array();
        if (t->has_local)
            json_array_append_new(mine, box_json(t->n_dims, &t->local));
        json_array_append_new(local, mine);
        if (r == 0)
            json_object_set_new(o, "shards", shards_json(t));
        tsr_sharded_tensor_free(t);
    }
    return TSR_OK;
}

static tsr_status chunk_nested(const struct chunk_case *c, uint32_t rank, json_t *o)
{
    struct tsr_mesh_dim outer = {c->mesh[0], c->mesh[c->n_mesh - 1]};
    struct tsr_rank_group fsdp = tsr_rank_group_of(outer, rank, NULL);
    struct tsr_ext_tensor in;
    struct tsr_sharded_tensor *t;
    TSR_TRY(input_of(c, rank, &in));
    TSR_TRY(tsr_ext_chunk_tensor(&in, rank, &fsdp, c->device, &t));
    json_object_set_new(o, "outer_size", tsr_sizes_json(t->n_dims, t->size));
    json_object_set_new(o, "outer", shards_json(t));
    json_object_set_new(o, "outer_local", box_json(t->n_dims, &t->local));
    json_object_set_new(o, "inner_size", tsr_sizes_json(t->inner->n_dims, t->inner->size));
    json_object_set_new(o, "inner", shards_json(t->inner));
    tsr_sharded_tensor_free(t);
    return TSR_OK;
}

static tsr_status chunk_dtensor(const struct chunk_case *c, uint32_t rank, json_t *o)
{
    struct tsr_ext_tensor in;
    struct tsr_dtensor t, gathered;
    uint64_t local[TSR_DT_MAX_DIMS];
    TSR_TRY(input_of(c, rank, &in));
    TSR_TRY(tsr_ext_chunk_dtensor(&in, c->n_mesh, c->mesh, &t));
    TSR_TRY(tsr_ext_all_gather_dtensor(&t, t.n_mesh, t.mesh, &gathered));
    tsr_dtensor_local_shape(&t, rank, local);
    json_t *runs = tsr_runs_json(&t, rank), *all = json_object();
    json_object_set_new(o, "placements", tsr_placements_json(t.n_mesh, t.place));
    json_object_set_new(o, "global", tsr_sizes_json(t.n_dims, t.shape));
    json_object_set_new(o, "local", tsr_sizes_json(t.n_dims, local));
    json_object_set_new(o, "runs", runs);
    tsr_dtensor_local_shape(&gathered, rank, local);
    json_t *all_runs = tsr_runs_json(&gathered, rank);
    json_object_set_new(all, "local", tsr_sizes_json(t.n_dims, local));
    json_object_set_new(all, "runs", all_runs);
    json_object_set_new(o, "all_gather", all);
    return runs && all_runs ? TSR_OK : TSR_ENOMEM;
}

/* A refusal is the result of that rank. */
static tsr_status each_rank(const struct chunk_case *c,
                            tsr_status (*fn)(const struct chunk_case *, uint32_t, json_t *),
                            json_t *o)
{
    json_t *ranks = json_array();
    json_object_set_new(o, "ranks", ranks);
    for (uint32_t r = 0; r < c->world; r++) {
        json_t *one = json_pack("{s:I}", "rank", (json_int_t)r);
        json_array_append_new(ranks, one);
        tsr_status status = fn(c, r, one);
        if (status < TSR_EVALUE || status > TSR_ETYPE) {
            TSR_TRY(status);
            continue;
        }
        json_object_set_new(one, "error", json_string(tsr_status_class(status)));
        json_object_set_new(one, "message", json_string(tsr_error_text()));
    }
    return TSR_OK;
}

static tsr_status run_case(const struct tsr_yaml_node *node, json_t *o)
{
    const char *fn = tsr_text_or(node, "fn", "nothing");
    struct chunk_case c;
    TSR_TRY(read_case(node, &c));
    if (!strcmp(fn, "chunk_tensor") && c.n_mesh == 0)
        return chunk_tensor(&c, o);
    if (!strcmp(fn, "chunk_tensor_2d") && c.n_mesh == 2 && c.has_tp)
        return each_rank(&c, chunk_nested, o);
    if (!strcmp(fn, "chunk_dtensor") && c.n_mesh > 0)
        return each_rank(&c, chunk_dtensor, o);
    return tsr_node_error(node,
                          "fn: found %s on a mesh of %d dimensions; allowed: chunk_tensor (with "
                          "world), chunk_tensor_2d (2, with tp_dim), chunk_dtensor",
                          fn, c.n_mesh);
}

tsr_status tsr_trace_chunk(const struct tsr_scenario *s, json_t *result)
{
    const struct tsr_yaml_node *cases = tsr_node_get(s->doc.root, "cases");
    json_t *list = json_array();
    json_object_set_new(result, "cases", list);
    for (size_t i = 0; cases && i < cases->n; i++) {
        json_t *o = tsr_case_json(cases->items[i]);
        json_array_append_new(list, o);
        TSR_TRY(run_case(cases->items[i], o));
    }
    return TSR_OK;
}
