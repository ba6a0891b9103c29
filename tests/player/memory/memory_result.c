/* memory_result.c: JSON of a memory scenario. */
#include "tests/player/memory/memory_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

static const char *group_name(const struct tsr_memory_record *r, uint32_t group)
{
    const struct tsr_tables *tables = tsr_engine_tables(r->figures.engine);
    const char *name = group < tables->n_groups ? tables->groups[group] : "";
    return *name ? name : "(root)";
}

/* ---- groups ---------------------------------------------------------------------------------- */

static json_t *shape(const uint64_t *dims, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)dims[i]));
    return list;
}

/* A checkpointed block is wrapped first: its parameters are called after the wrapper. */
static json_t *param_name(const struct tsr_memory_scenario *s, const char *fqn)
{
    size_t prefix = tsr_memory_checkpointed_prefix(s, fqn);
    if (!prefix)
        return json_string(fqn);
    return json_sprintf("%.*s._checkpoint_wrapped_module%s", (int)prefix, fqn, fqn + prefix);
}

static json_t *param(const struct tsr_memory_scenario *s, struct tsr_engine *e, size_t i)
{
    struct tsr_param_layout p = tsr_param_layout(e, i);
    const struct tsr_mesh *mesh = &s->engine.mesh;
    uint32_t shard_rank = s->is_replicate ? 0 : s->engine.rank % mesh->shape[mesh->n_dims - 1];
    uint64_t local[TSR_MAX_DIMS];
    tsr_param_local_shape(e, i, shard_rank, local);
    json_t *row = json_pack("{s:o, s:o, s:o, s:o}", "fqn", param_name(s, p.fqn), "shape",
                            shape(p.shape, p.n_dims), "sharded", shape(local, p.n_dims),
                            "padded_sharded", shape(p.padded, p.n_dims));
    if (!p.requires_grad)
        json_object_set_new(row, "requires_grad", json_false());
    return row;
}

/* Index of a parameter, sought from `at` on: groups have theirs mostly in the model's order. */
static size_t find_param(struct tsr_engine *e, size_t n, size_t at, const char *fqn)
{
    for (size_t k = 0; k < n; k++, at++)
        if (!strcmp(tsr_param_layout(e, at % n).fqn, fqn))
            return at % n;
    return n;
}

json_t *tsr_memory_groups(const struct tsr_memory_scenario *s, struct tsr_engine *e)
{
    json_t *groups = json_array();
    size_t n = tsr_n_param_layouts(e), next = 0;
    for (size_t g = 0, n_groups = tsr_n_groups(e); g < n_groups; g++) {
        struct tsr_group_info info = tsr_group_info(e, g);
        if (info.n_params == 0)
            continue;
        json_t *params = json_array();
        for (size_t k = 0; k < info.n_params; k++) {
            size_t i = find_param(e, n, next, info.params[k]);
            if (i == n)
                continue;
            json_array_append_new(params, param(s, e, i));
            next = i + 1;
        }
        json_array_append_new(groups, json_pack("{s:s, s:o}", "fqn", info.name, "params", params));
    }
    return groups;
}

/* ---- categories and snapshots ---------------------------------------------------------------- */

enum { SHOWN_ITERATIONS = 2 }; /* 0 and the steady one */

static json_int_t number(uint64_t value)
{
    return (json_int_t)value;
}

static json_t *non_zero(const uint64_t by_category[TSR_N_CATEGORIES])
{
    json_t *map = json_object();
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        if (by_category[c])
            json_object_set_new(map, tsr_category_name(c), json_integer(number(by_category[c])));
    return map;
}

static json_t *category_peak(const struct tsr_memory_record *r, const struct tsr_category_peak *p)
{
    const struct tsr_tables *tables = tsr_engine_tables(r->figures.engine);
    const char *module = p->module < tables->n_modules ? tables->modules[p->module] : "";
    json_t *peak =
        json_pack("{s:i, s:I, s:o, s:s, s:s}", "iter", p->iteration, "peak_bytes", number(p->total),
                  "by_category", non_zero(p->by_category), "module", module, "op", p->op);
    if (p->phase != TSR_N_PHASES)
        json_object_set_new(peak, "phase", json_string(tsr_phase_name(p->phase)));
    return peak;
}

static json_t *categories(const struct tsr_memory_record *r)
{
    json_t *phases = json_array(), *iterations = json_array();
    for (size_t i = 0; i < r->n_peaks; i++) {
        const struct tsr_category_peak *p = &r->peaks[i];
        if (p->iteration < 0 || p->iteration >= SHOWN_ITERATIONS)
            continue;
        json_array_append_new(p->phase == TSR_N_PHASES ? iterations : phases, category_peak(r, p));
    }
    return json_pack("{s:o, s:o}", "iterations", iterations, "phases", phases);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(tsr_category_name(*(const int *)a), tsr_category_name(*(const int *)b));
}

/* Categories that some snapshot has, by name. */
static int columns(const struct tsr_memory_record *r, int order[TSR_N_CATEGORIES])
{
    int n = 0;
    for (int c = 0; c < TSR_N_CATEGORIES; c++) {
        bool occurs = false;
        for (size_t i = 0; i < r->n_markers && !occurs; i++)
            occurs = r->markers[i].by_category[c] != 0;
        if (occurs)
            order[n++] = c;
    }
    qsort(order, (size_t)n, sizeof *order, by_name);
    return n;
}

static const char *marker_kind(const struct tsr_memory_marker *m)
{
    static const char *const names[TSR_N_HOOKS][2] = {
        [TSR_HOOK_PRE_FORWARD] = {"after_pre_forward", "before_pre_forward"},
        [TSR_HOOK_POST_FORWARD] = {"after_post_forward", "before_post_forward"},
        [TSR_HOOK_PRE_BACKWARD] = {"after_pre_backward", "before_pre_backward"},
        [TSR_HOOK_POST_BACKWARD] = {"after_post_backward", "before_post_backward"}};
    if (m->is_phase)
        return "phase";
    return m->hook < TSR_N_HOOKS && names[m->hook][0] ? names[m->hook][m->begins] : "?";
}

static json_t *snapshot(const struct tsr_memory_record *r, const struct tsr_memory_marker *m,
                        const struct tsr_memory_scenario *s, const int *order, int n)
{
    char name[32];
    json_t *row = json_array();
    json_array_append_new(row, json_integer(m->iteration));
    json_array_append_new(row, json_string(marker_kind(m)));
    json_array_append_new(row, json_string(m->is_phase
                                               ? tsr_memory_phase_name(s->step.n_micro, m->phase,
                                                                       m->micro, name, sizeof name)
                                               : group_name(r, m->group)));
    json_array_append_new(row, json_integer(number(m->event)));
    json_array_append_new(row, json_integer(number(m->total)));
    for (int i = 0; i < n; i++)
        json_array_append_new(row, json_integer(number(m->by_category[order[i]])));
    return row;
}

static json_t *column_names(const int *order, int n)
{
    json_t *names = json_pack("[s, s, s, s, s]", "iter", "at", "name", "event", "total");
    for (int i = 0; i < n; i++)
        json_array_append_new(names, json_string(tsr_category_name(order[i])));
    return names;
}

bool tsr_memory_categories(json_t *result, const struct tsr_memory_scenario *s,
                           const struct tsr_memory_record *r)
{
    int order[TSR_N_CATEGORIES], n = columns(r, order);
    json_t *rows = json_array();
    for (size_t i = 0; i < r->n_markers; i++)
        if (r->markers[i].iteration < SHOWN_ITERATIONS)
            json_array_append_new(rows, snapshot(r, &r->markers[i], s, order, n));
    return json_object_set_new(result, "categories", categories(r)) == 0 &&
           json_object_set_new(result, "snapshot_columns", column_names(order, n)) == 0 &&
           json_object_set_new(result, "snapshots", rows) == 0;
}

/* ---- the time line --------------------------------------------------------------------------- */

struct table {
    json_t *list, *index;
};

static json_int_t entry(struct table *t, const char *text)
{
    json_t *known = json_object_get(t->index, text);
    if (known)
        return json_integer_value(known);
    json_int_t i = (json_int_t)json_array_size(t->list);
    json_array_append_new(t->list, json_string(text));
    json_object_set_new(t->index, text, json_integer(i));
    return i;
}

enum { CATEGORY, MODULE, PHASE, OP, STREAM, ACTION, N_TABLES };

static json_t *event_row(const struct tsr_memory_scenario *s, const struct tsr_memory_record *r,
                         const struct tsr_memory_event *ev, struct table t[N_TABLES])
{
    static const char *const actions[2][2] = {{"segment_alloc", "segment_free"},
                                              {"segment_map", "segment_unmap"}};
    const struct tsr_tables *tables = tsr_engine_tables(r->figures.engine);
    const char *module = ev->module < tables->n_modules ? tables->modules[ev->module] : "";
    json_t *row = json_array();
    json_array_append_new(row, json_integer(ev->kind));
    if (ev->kind == TSR_EVENT_SEGMENT)
        json_array_append_new(
            row,
            json_integer(entry(&t[ACTION],
                               actions[s->engine.allocator.expandable_segments][ev->is_release])));
    else
        json_array_append_new(row, json_integer(ev->id));
    if (ev->kind != TSR_EVENT_FREE) {
        json_array_append_new(row, json_integer(number(ev->bytes)));
        json_array_append_new(row, json_integer(number(ev->address)));
        json_array_append_new(
            row,
            json_integer(entry(&t[STREAM], tsr_memory_stream_name(r->figures.engine, ev->stream))));
    }
    if (ev->kind == TSR_EVENT_ALLOC)
        json_array_append_new(row,
                              json_integer(entry(&t[CATEGORY], tsr_category_name(ev->category))));
    json_array_append_new(row, json_integer(ev->iteration));
    json_array_append_new(row, json_integer(entry(&t[PHASE], tsr_phase_name(ev->phase))));
    json_array_append_new(row, json_integer(entry(&t[MODULE], module)));
    json_array_append_new(row,
                          json_integer(entry(&t[OP], ev->kind == TSR_EVENT_SEGMENT ? "" : ev->op)));
    return row;
}

json_t *tsr_memory_timeline(const struct tsr_memory_scenario *s, const struct tsr_memory_record *r)
{
    static const char *const names[N_TABLES] = {"category", "module", "phase",
                                                "op",       "stream", "segment_action"};
    struct table t[N_TABLES];
    json_t *tables = json_object(), *events = json_array();
    for (int i = 0; i < N_TABLES; i++) {
        t[i] = (struct table){json_array(), json_object()};
        json_object_set_new(tables, names[i], t[i].list);
    }
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i].iteration < SHOWN_ITERATIONS)
            json_array_append_new(events, event_row(s, r, &r->events[i], t));
    for (int i = 0; i < N_TABLES; i++)
        json_decref(t[i].index);
    return json_pack("{s:s, s:o, s:o}", "name", s->name, "tables", tables, "events", events);
}
