/* trace_tp.c: scenarios of kind `tp_layout`: FSDP over tensor-parallel parameters. */
#include <stdlib.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"
#include "experiments/cli/player/trace/trace_kinds.h"

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
        return tsr_fail(TSR_ENOMEM, "out of memory");
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
    json_object_set_new(o, "shape", tsr_sizes_json(t->n_dims, t->shape));
    json_object_set_new(o, "tp_placements",
                        p->n_tp ? tsr_placements_json(p->n_tp, t->place + p->n_fsdp) : json_null());
    json_object_set_new(o, "mesh_dims", dims);
    json_object_set_new(o, "placements", tsr_placements_json(t->n_mesh, t->place));
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
        json_t *o = json_object(), *runs = tsr_runs_json(&p.layout, rank);
        json_object_set_new(o, "local", tsr_sizes_json(p.layout.n_dims, local));
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
