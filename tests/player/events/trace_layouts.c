/* trace_layouts.c: scenarios about layout alone, in which no step runs: FSDP over tensor-parallel
 * parameters (`tp_layout`), the rule that assigns buckets (`bucket`), and the older tensor-parallel
 * extension (`chunk`).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ddp/bucket.h"
#include "engine/layout/dtensor.h"
#include "engine/layout/tensor_parallel.h"
#include "engine/layout/tp_extension.h"
#include "tests/player/events/trace.h"

/* ---- reading and writing that they share ----------------------------------------------------- */

static json_t *sizes_json(int n, const uint64_t *sizes)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)sizes[i]));
    return list;
}

static json_t *placement_json(const struct tsr_placement *p)
{
    switch (p->kind) {
    case TSR_PLACE_REPLICATE:
        return json_pack("[s]", "replicate");
    case TSR_PLACE_SHARD:
        return json_pack("[s, i]", "shard", p->dim);
    case TSR_PLACE_STRIDED_SHARD:
        break;
    }
    return json_pack("[s, i, I]", "strided_shard", p->dim, (json_int_t)p->split);
}

/* [["shard", 0], ["replicate"], ["strided_shard", 0, 2]] */
static json_t *placements_json(int n, const struct tsr_placement *placements)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, placement_json(&placements[i]));
    return list;
}

/* [[start, length], ...] of what the rank holds; NULL after a failure (tsr_error_text() says). */
static json_t *runs_json(const struct tsr_dtensor *t, uint64_t rank)
{
    struct tsr_runs runs;
    if (tsr_dtensor_runs(t, rank, &runs) != TSR_OK)
        return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < runs.n; i++)
        json_array_append_new(list, json_pack("[I, I]", (json_int_t)runs.items[i].start,
                                              (json_int_t)runs.items[i].length));
    tsr_runs_fini(&runs);
    return list;
}

/* Reads 1 to `room` sizes of at least `least`. Errors name the place. */
static tsr_status read_sizes(const struct tsr_yaml_node *map, const char *key, uint64_t least,
                             int room, uint64_t *sizes, int *n)
{
    const struct tsr_yaml_node *list = tsr_node_get(map, key);
    if (!list || list->kind != TSR_NODE_SEQ || list->n < 1 || list->n > (size_t)room)
        return tsr_node_error(list ? list : map, "%s: found %s; allowed: a list of 1 to %d sizes",
                              key, tsr_node_show(list), room);
    *n = (int)list->n;
    for (size_t i = 0; i < list->n; i++)
        if (!tsr_node_u64(list->items[i], &sizes[i]) || sizes[i] < least ||
            sizes[i] > UINT64_C(1) << 60)
            return tsr_node_error(list->items[i], "%s: found %s; allowed: %llu to 2^60", key,
                                  tsr_node_show(list->items[i]), (unsigned long long)least);
    return TSR_OK;
}

/* ---- tp_layout ------------------------------------------------------------------------------- */

static tsr_status read_style(const struct tsr_yaml_node *pair, struct tsr_tp_style *out)
{
    bool is_pair = pair->kind == TSR_NODE_SEQ && pair->n == 2;
    if (!is_pair || !tsr_tp_kind_parse(pair->items[1]->text, &out->kind))
        return tsr_node_error(
            pair, "tp: found %s; allowed: [MODULE PATTERN, colwise | rowwise | sequence]",
            is_pair ? tsr_node_show(pair->items[1]) : tsr_node_show(pair));
    out->pattern = pair->items[0]->text;
    return TSR_OK;
}

static tsr_status apply_styles(const struct tsr_scenario *s, struct tsr_engine *e)
{
    const struct tsr_yaml_node *list = tsr_node_get(s->doc.root, "tp");
    size_t n = list && list->kind == TSR_NODE_SEQ ? list->n : 0;
    struct tsr_tp_style *styles = calloc(n + 1, sizeof *styles);
    if (!styles)
        return tsr_no_memory(NULL);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = read_style(list->items[i], &styles[i]);
    struct tsr_tp_options options = {.mesh_dim = "tp", .n_styles = n, .styles = styles};
    if (status == TSR_OK && n > 0)
        status = tsr_tensor_parallel(e, &options);
    free(styles);
    return status;
}

static json_t *param_json(const struct tsr_scenario *s, const struct tsr_param_dtensor *p)
{
    const struct tsr_dtensor *t = &p->layout;
    json_t *o = json_object(), *dims = json_array();
    for (int i = 0; i < t->n_mesh; i++) {
        const char *name = p->mesh_dim[i] < 0 ? "" : s->mesh.name[p->mesh_dim[i]];
        json_array_append_new(dims, json_string(name));
    }
    json_object_set_new(o, "shape", sizes_json(t->n_dims, t->shape));
    json_object_set_new(o, "tp_placements",
                        p->n_tp ? placements_json(p->n_tp, t->place + p->n_fsdp) : json_null());
    json_object_set_new(o, "mesh_dims", dims);
    json_object_set_new(o, "placements", placements_json(t->n_mesh, t->place));
    return o;
}

static tsr_status rank_json(struct tsr_engine *e, uint32_t rank, json_t *ranks)
{
    json_t *params = json_object();
    json_array_append_new(ranks,
                          json_pack("{s:I, s:o}", "rank", (json_int_t)rank, "params", params));
    for (size_t i = 0; i < tsr_n_param_layouts(e); i++) {
        struct tsr_param_dtensor p;
        uint64_t local[TSR_DT_MAX_DIMS];
        TSR_TRY(tsr_param_dtensor(e, i, &p));
        tsr_param_dtensor_local_shape(&p, rank, local);
        json_t *o = json_object(), *runs = runs_json(&p.layout, rank);
        json_object_set_new(o, "local", sizes_json(p.layout.n_dims, local));
        json_object_set_new(o, "runs", runs);
        json_object_set_new(params, p.fqn, o);
        if (!runs)
            return TSR_ENOMEM;
    }
    return TSR_OK;
}

tsr_status tsr_trace_tp(const struct tsr_scenario *s, struct tsr_engine *e, json_t *result)
{
    json_t *params = json_object(), *ranks = json_array();
    uint32_t world = 1;
    json_object_set_new(result, "params", params);
    json_object_set_new(result, "ranks", ranks);
    TSR_TRY(apply_styles(s, e));
    TSR_TRY(tsr_scenario_wrap(s, e));
    for (size_t i = 0; i < tsr_n_param_layouts(e); i++) {
        struct tsr_param_dtensor p;
        TSR_TRY(tsr_param_dtensor(e, i, &p));
        json_object_set_new(params, p.fqn, param_json(s, &p));
    }
    for (int i = 0; i < s->mesh.n_dims; i++)
        world *= s->mesh.shape[i]; /* fits: an engine was made of it */
    if (world > 1u << 20)
        return tsr_node_error(tsr_node_get(s->doc.root, "mesh"),
                              "mesh: found %u ranks; allowed here: up to %u", world, 1u << 20);
    for (uint32_t r = 0; r < world; r++)
        TSR_TRY(rank_json(e, r, ranks));
    return TSR_OK;
}

/* ---- bucket ---------------------------------------------------------------------------------- */

static tsr_status read_item(const struct tsr_yaml_node *node, struct tsr_bucket_item *out)
{
    uint64_t shape[TSR_DT_MAX_DIMS];
    int n = 0;
    out->dtype = tsr_dtype_parse(tsr_text_or(node, "dtype", NULL));
    if (out->dtype == TSR_DTYPE_NONE)
        return tsr_node_error(node, "dtype: found %s; allowed: f32, bf16, f16, f64, i64, u8",
                              tsr_text_or(node, "dtype", "nothing"));
    const struct tsr_yaml_node *sizes = tsr_node_get(node, "shape");
    if (sizes && sizes->kind == TSR_NODE_SEQ && sizes->n > 0) /* else a scalar */
        TSR_TRY(read_sizes(node, "shape", 0, TSR_DT_MAX_DIMS, shape, &n));
    out->bytes = tsr_dtype_bytes(out->dtype);
    for (int i = 0; i < n; i++)
        if (!tsr_mul_u64(out->bytes, shape[i], &out->bytes))
            return tsr_node_error(node, "shape: the tensor does not fit into 64 bits");
    return TSR_OK;
}

static tsr_status add_plan(const struct tsr_bucket_plan *plan, json_t *o)
{
    json_t *buckets = json_array(), *limits = json_array();
    for (size_t b = 0; b < plan->n_buckets; b++) {
        json_t *items = json_array();
        for (size_t i = plan->first[b]; i < plan->first[b + 1]; i++)
            json_array_append_new(items, json_integer((json_int_t)plan->items[i]));
        json_array_append_new(buckets, items);
        json_array_append_new(limits, json_integer((json_int_t)plan->limits[b]));
    }
    bool bad = json_object_set_new(o, "buckets", buckets) != 0;
    bad |= json_object_set_new(o, "bucket_limits", limits) != 0;
    return bad ? tsr_no_memory(NULL) : TSR_OK;
}

static tsr_status assign(const struct tsr_yaml_node *node, struct tsr_bucket_item *items, size_t n,
                         json_t *o)
{
    const struct tsr_yaml_node *tensors = tsr_node_get(node, "tensors");
    uint64_t limits[64];
    int n_limits;
    struct tsr_bucket_plan plan;
    TSR_TRY(read_sizes(node, "limits", 0, 64, limits, &n_limits));
    for (size_t i = 0; i < n; i++)
        TSR_TRY(read_item(tensors->items[i], &items[i]));
    TSR_TRY(tsr_bucket_assign(items, n, limits, (size_t)n_limits, &plan));
    tsr_status status = tsr_bucket_sort(&plan);
    if (status == TSR_OK)
        status = add_plan(&plan, o);
    tsr_bucket_plan_fini(&plan);
    return status;
}

tsr_status tsr_trace_bucket(const struct tsr_scenario *s, json_t *result)
{
    const struct tsr_yaml_node *cases = tsr_node_get(s->doc.root, "cases");
    json_t *list = json_array();
    json_object_set_new(result, "cases", list);
    for (size_t i = 0; cases && i < cases->n; i++) {
        const struct tsr_yaml_node *tensors = tsr_node_get(cases->items[i], "tensors");
        size_t n = tensors && tensors->kind == TSR_NODE_SEQ ? tensors->n : 0;
        struct tsr_bucket_item *items = calloc(n + 1, sizeof *items);
        json_t *o = tsr_trace_value(cases->items[i]);
        json_array_append_new(list, o);
        tsr_status status = items ? assign(cases->items[i], items, n, o) : tsr_no_memory(NULL);
        free(items);
        TSR_TRY(status);
    }
    return TSR_OK;
}

/* ---- chunk ----------------------------------------------------------------------------------- */

struct chunk_case {
    int n_dims, n_mesh;
    uint64_t shape[TSR_DT_MAX_DIMS];
    uint32_t mesh[TSR_DT_MAX_MESH], world;
    bool has_tp;
    int tp_dim;
    struct tsr_shard_device device;
};

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
    TSR_TRY(read_sizes(node, "shape", 0, TSR_DT_MAX_DIMS, c->shape, &c->n_dims));
    if (tsr_node_get(node, "mesh"))
        TSR_TRY(read_sizes(node, "mesh", 1, TSR_DT_MAX_MESH, mesh, &c->n_mesh));
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

static json_t *box_json(int n, const struct tsr_shard *shard)
{
    return json_pack("[o, o]", sizes_json(n, shard->offset), sizes_json(n, shard->size));
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
    json_object_set_new(o, "outer_size", sizes_json(t->n_dims, t->size));
    json_object_set_new(o, "outer", shards_json(t));
    json_object_set_new(o, "outer_local", box_json(t->n_dims, &t->local));
    json_object_set_new(o, "inner_size", sizes_json(t->inner->n_dims, t->inner->size));
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
    json_t *runs = runs_json(&t, rank), *all = json_object();
    json_object_set_new(o, "placements", placements_json(t.n_mesh, t.place));
    json_object_set_new(o, "global", sizes_json(t.n_dims, t.shape));
    json_object_set_new(o, "local", sizes_json(t.n_dims, local));
    json_object_set_new(o, "runs", runs);
    tsr_dtensor_local_shape(&gathered, rank, local);
    json_t *all_runs = runs_json(&gathered, rank);
    json_object_set_new(all, "local", sizes_json(t.n_dims, local));
    json_object_set_new(all, "runs", all_runs);
    json_object_set_new(o, "all_gather", all);
    return runs && all_runs ? TSR_OK : TSR_ENOMEM;
}

/* Into the flat parameter and out of it: what is recorded, what is flattened, and the tensor again
 * with the stream that its gradient is waited for on (R241, R242). */
static tsr_status flatten(const struct chunk_case *c, uint32_t rank, json_t *o)
{
    struct tsr_ext_tensor in, flat, again;
    struct tsr_ext_spec spec;
    TSR_TRY(input_of(c, rank, &in));
    tsr_ext_pre_flatten(&in, &flat, &spec);
    tsr_ext_post_unflatten(&flat, &spec, NULL, &again);
    json_object_set_new(o, "recorded", json_boolean(spec.recorded));
    json_object_set_new(o, "flattened", sizes_json(flat.n_dims, flat.shape));
    json_object_set_new(o, "requires_grad", json_boolean(flat.requires_grad));
    if (!again.is_dtensor)
        return TSR_OK;
    json_object_set_new(o, "global", sizes_json(again.spec.n_dims, again.spec.shape));
    json_object_set_new(o, "stride", sizes_json(again.spec.n_dims, again.stride));
    json_object_set_new(o, "placements", placements_json(again.spec.n_mesh, again.spec.place));
    json_object_set_new(o, "grad_wait", json_string(again.grad_wait));
    return TSR_OK;
}

/* What loading a state dict fills: the tensor one level down, and this rank's shard (R248). */
static tsr_status pre_load(const struct chunk_case *c, uint32_t rank, json_t *o)
{
    struct tsr_mesh_dim outer = {c->mesh[0], c->mesh[c->n_mesh - 1]};
    struct tsr_rank_group fsdp = tsr_rank_group_of(outer, rank, NULL);
    struct tsr_ext_tensor in;
    struct tsr_sharded_tensor *t;
    const struct tsr_shard *local;
    TSR_TRY(input_of(c, rank, &in));
    TSR_TRY(tsr_ext_chunk_tensor(&in, rank, &fsdp, c->device, &t));
    const struct tsr_sharded_tensor *into = tsr_ext_pre_load(t, &local);
    json_object_set_new(o, "size", sizes_json(into->n_dims, into->size));
    json_object_set_new(o, "local", local ? box_json(into->n_dims, local) : json_null());
    tsr_sharded_tensor_free(t);
    return TSR_OK;
}

/* A rank whose optimizer state went to the host: where the metadata say that chunks lie. */
static tsr_status move_to_host(const struct chunk_case *c, uint32_t rank, json_t *o)
{
    struct tsr_rank_device *places = calloc(c->world, sizeof *places);
    struct tsr_sharding_spec in = {true, 0, c->world, places}, out;
    json_t *list = json_array();
    bool changed;
    json_object_set_new(o, "placements", list);
    if (!places)
        return tsr_no_memory(NULL);
    for (uint32_t r = 0; r < c->world; r++) {
        places[r].rank = r;
        snprintf(places[r].device, sizeof places[r].device, "cuda:%u", r);
    }
    tsr_status status = tsr_ext_rewrite_spec(&in, rank, c->device.type, &changed, &out);
    for (size_t i = 0; status == TSR_OK && i < out.n; i++)
        json_array_append_new(list, json_string(out.placements[i].device));
    if (status == TSR_OK && changed)
        free(out.placements);
    free(places);
    return status;
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
    if (!strcmp(fn, "flatten") && c.n_mesh > 0) {
        /* FSDP's mesh is what tensor parallelism leaves of it (R249) */
        bool active = tsr_ext_is_active(c.n_mesh - c.has_tp, c.n_mesh);
        json_object_set_new(o, "active", json_boolean(active));
        return each_rank(&c, flatten, o);
    }
    if (!strcmp(fn, "pre_load") && c.n_mesh == 2 && c.has_tp)
        return each_rank(&c, pre_load, o);
    if (!strcmp(fn, "move_to_host") && c.n_mesh == 0)
        return each_rank(&c, move_to_host, o);
    return tsr_node_error(node,
                          "fn: found %s on a mesh of %d dimensions; allowed: chunk_tensor and "
                          "move_to_host (with world), chunk_tensor_2d and pre_load (2, with "
                          "tp_dim), chunk_dtensor, flatten",
                          fn, c.n_mesh);
}

tsr_status tsr_trace_chunk(const struct tsr_scenario *s, json_t *result)
{
    const struct tsr_yaml_node *cases = tsr_node_get(s->doc.root, "cases");
    json_t *list = json_array();
    json_object_set_new(result, "cases", list);
    for (size_t i = 0; cases && i < cases->n; i++) {
        json_t *o = tsr_trace_value(cases->items[i]);
        json_array_append_new(list, o);
        TSR_TRY(run_case(cases->items[i], o));
    }
    return TSR_OK;
}
