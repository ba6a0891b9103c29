/* trace_result.c: events, layout, process groups, buckets and values of the scenario as JSON. */

#include <math.h>
#include <string.h>

#include "tests/player/events/trace.h"

/* JSON has no such numbers. */
json_t *tsr_trace_number(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

/* ---- events ---------------------------------------------------------------------------------- */

static json_t *field_json(const struct tsr_field *f)
{
    switch (f->type) {
    case TSR_FIELD_NULL:
        return json_null();
    case TSR_FIELD_BOOL:
        return json_boolean(f->i);
    case TSR_FIELD_INT:
        return json_integer(f->i);
    case TSR_FIELD_DOUBLE:
        return json_real(f->d);
    case TSR_FIELD_STRING:
        return json_string(f->s);
    case TSR_FIELD_STRINGS:
    case TSR_FIELD_INTS:
        break;
    }
    json_t *list = json_array();
    for (int64_t i = 0; list && i < f->i; i++)
        json_array_append_new(list, f->type == TSR_FIELD_INTS ? json_integer(f->ints[i])
                                                              : json_string(f->strings[i]));
    return list;
}

void tsr_trace_event(void *user, const struct tsr_event *event)
{
    struct tsr_trace_lists *lists = user;
    json_t *object = json_object();
    int bad = json_object_set_new(object, "e", json_string(event->name));
    if (event->is_stream_event)
        bad |= json_object_set_new(object, "at",
                                   json_integer((json_int_t)json_array_size(lists->events)));
    for (int i = 0; i < event->n_fields; i++)
        bad |= json_object_set_new(object, event->fields[i].key, field_json(&event->fields[i]));
    bad |= json_array_append_new(event->is_stream_event ? lists->stream_events : lists->events,
                                 object);
    lists->failed |= bad != 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static json_t *shape_json(int n_dims, const uint64_t *shape)
{
    json_t *list = json_array();
    for (int i = 0; i < n_dims; i++)
        json_array_append_new(list, json_integer((json_int_t)shape[i]));
    return list;
}

static json_t *dtype_json(tsr_dtype dtype)
{
    return dtype == TSR_DTYPE_NONE ? json_null() : json_string(tsr_dtype_name(dtype));
}

static json_t *strings_json(const char *const *texts, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(texts[i]));
    return list;
}

/* Local shapes of all shard ranks, run-length coded. */
static json_t *local_json(struct tsr_engine *e, size_t i, const struct tsr_param_layout *p)
{
    json_t *runs = json_array();
    uint64_t last[TSR_MAX_DIMS] = {0}, shape[TSR_MAX_DIMS];
    json_int_t count = 0;
    uint32_t ranks = p->shard_dim < 0 ? 1 : tsr_shard_world(e);
    for (uint32_t r = 0; r <= ranks; r++) {
        if (r < ranks)
            tsr_param_local_shape(e, i, r, shape);
        if (count > 0 && (r == ranks || memcmp(shape, last, sizeof shape) != 0)) {
            json_t *run = json_array();
            json_array_append_new(run, json_integer(count));
            json_array_append_new(run, shape_json(p->n_dims, last));
            json_array_append_new(runs, run);
            count = 0;
        }
        memcpy(last, shape, sizeof last);
        count++;
    }
    return runs;
}

static json_t *param_json(struct tsr_engine *e, size_t i, bool with_dtypes)
{
    struct tsr_param_layout p = tsr_param_layout(e, i);
    json_t *o = json_object();
    json_object_set_new(o, "g", p.group ? json_string(p.group) : json_null());
    json_object_set_new(o, "shape", shape_json(p.n_dims, p.shape));
    json_object_set_new(o, "requires_grad", json_boolean(p.requires_grad));
    if (!p.group)
        return o;
    json_object_set_new(o, "shard_dim", p.shard_dim < 0 ? json_null() : json_integer(p.shard_dim));
    json_object_set_new(o, "local", local_json(e, i, &p));
    json_object_set_new(o, "padded", shape_json(p.n_dims, p.padded));
    json_object_set_new(o, "dtype", json_string(tsr_dtype_name(p.dtype)));
    if (with_dtypes && p.has_dtypes) {
        json_object_set_new(o, "param_dtype", dtype_json(p.param_dtype));
        json_object_set_new(o, "reduce_dtype", dtype_json(p.reduce_dtype));
    }
    if (p.n_aliases > 0)
        json_object_set_new(o, "aliases", strings_json(p.aliases, p.n_aliases));
    return o;
}

static json_t *group_json(struct tsr_engine *e, size_t i, bool with_all_gather)
{
    struct tsr_group_info g = tsr_group_info(e, i);
    json_t *o = json_object();
    json_object_set_new(o, "g", json_string(g.name));
    json_object_set_new(o, "modules", strings_json(g.modules, g.n_modules));
    json_object_set_new(o, "api", json_string(g.api));
    json_object_set_new(o, "params", strings_json(g.params, g.n_params));
    if (g.n_params == 0)
        return o;
    json_object_set_new(o, "shard_numel", json_integer((json_int_t)g.shard_numel));
    if (with_all_gather)
        json_object_set_new(o, "all_gather_out_numel",
                            g.all_gather_numel ? json_integer((json_int_t)g.all_gather_numel)
                                               : json_null());
    return o;
}

json_t *tsr_trace_layout(struct tsr_engine *e, bool with_dtypes, bool with_all_gather)
{
    json_t *groups = json_array(), *params = json_object(), *layout = json_object();
    for (size_t i = 0; i < tsr_n_groups(e); i++)
        json_array_append_new(groups, group_json(e, i, with_all_gather));
    for (size_t i = 0; i < tsr_n_param_layouts(e); i++)
        if (!tsr_param_layout(e, i).is_untied) /* the model lists it under its first name */
            json_object_set_new(params, tsr_param_layout(e, i).fqn, param_json(e, i, with_dtypes));
    json_object_set_new(layout, "groups", groups);
    json_object_set_new(layout, "params", params);
    return layout;
}

/* ---- process groups, buckets ----------------------------------------------------------------- */

static json_t *groups_of(const struct tsr_comm *comm, uint32_t world)
{
    json_t *groups = json_array();
    for (uint32_t r = 0; r < world; r++) {
        if (tsr_comm_index(comm, r) != 0) /* once per group, at its first member */
            continue;
        json_t *ranks = json_array();
        for (uint32_t i = 0; i < comm->size; i++)
            json_array_append_new(ranks, json_integer(tsr_comm_member(comm, r, i)));
        json_array_append_new(groups, ranks);
    }
    return groups;
}

static json_t *process_groups(const struct tsr_tables *tables)
{
    json_t *o = json_object();
    for (uint16_t c = 0; c < tables->n_comms; c++)
        json_object_set_new(o, tables->comms[c].name, groups_of(&tables->comms[c], tables->world));
    return o;
}

json_t *tsr_trace_buckets(struct tsr_engine *e)
{
    json_t *list = json_array();
    for (size_t i = 0; i < tsr_ddp_n_buckets(e); i++) {
        struct tsr_bucket_info b = tsr_ddp_bucket(e, i);
        if (!b.is_reduced)
            continue;
        json_t *o = json_object();
        json_object_set_new(o, "index", json_integer((json_int_t)b.index));
        json_object_set_new(o, "last", json_boolean(b.last));
        json_object_set_new(o, "numel", json_integer((json_int_t)b.numel));
        json_object_set_new(o, "bytes", json_integer((json_int_t)b.bytes));
        json_object_set_new(o, "params", strings_json(b.params, b.n_params));
        json_array_append_new(list, o);
    }
    return list;
}

void tsr_trace_add_run(json_t *result, const struct tsr_trace_run *run)
{
    if (run->buckets) {
        json_object_set(result, "buckets", run->buckets);
        return;
    }
    json_object_set_new(result, "process_groups", process_groups(tsr_engine_tables(run->e)));
    json_object_set_new(result, "layout", tsr_trace_layout(run->e, true, false));
    json_object_set(result, "events", run->lists.events);
    json_object_set(result, "stream_events", run->lists.stream_events);
}

/* ---- values ---------------------------------------------------------------------------------- */

json_t *tsr_trace_value(const struct tsr_yaml_node *node)
{
    bool flag;
    int64_t integer;
    double real;
    if (tsr_node_is_null(node))
        return json_null();
    if (node->kind == TSR_NODE_SEQ || node->kind == TSR_NODE_MAP) {
        bool map = node->kind == TSR_NODE_MAP;
        json_t *out = map ? json_object() : json_array();
        for (size_t i = 0; i < node->n; i++)
            if (map)
                json_object_set_new(out, node->items[i]->key, tsr_trace_value(node->items[i]));
            else
                json_array_append_new(out, tsr_trace_value(node->items[i]));
        return out;
    }
    if (tsr_node_bool(node, &flag))
        return json_boolean(flag);
    if (tsr_node_i64(node, &integer))
        return json_integer(integer);
    if (tsr_node_double(node, &real))
        return json_real(real);
    return json_string(node->text);
}
