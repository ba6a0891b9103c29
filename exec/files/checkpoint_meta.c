/* checkpoint_meta.c: meta.json, written and read (checkpoint_impl.h).
 *
 * It is read as any other file from outside: each field has its type and range.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/files/checkpoint_impl.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

#define META_FORMAT "tessera checkpoint"
/* Tensors of one shape and place share a layout: models have tens. Each new one is compared with
 * all. */
enum { META_VERSION = 1, MAX_LAYOUTS = 16384 };

/* ---- writing --------------------------------------------------------------------------------- */

static const char *const place_names[] = {[TSR_PLACE_REPLICATE] = "replicate",
                                          [TSR_PLACE_SHARD] = "shard",
                                          [TSR_PLACE_STRIDED_SHARD] = "strided_shard"};

static json_t *layout_json(const struct tsr_dtensor *t)
{
    json_t *shape = json_array(), *mesh = json_array(), *place = json_array();
    for (int i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    for (int i = 0; i < t->n_mesh; i++) {
        const struct tsr_placement *p = &t->place[i];
        const char *name = place_names[p->kind];
        json_array_append_new(
            mesh, json_pack("[I, I]", (json_int_t)t->mesh[i].size, (json_int_t)t->mesh[i].stride));
        json_array_append_new(place,
                              p->kind == TSR_PLACE_REPLICATE ? json_pack("[s]", name)
                              : p->kind == TSR_PLACE_SHARD
                                  ? json_pack("[s, i]", name, p->dim)
                                  : json_pack("[s, i, I]", name, p->dim, (json_int_t)p->split));
    }
    return json_pack("{s:o, s:o, s:o}", "shape", shape, "mesh", mesh, "place", place);
}

static json_t *entries_json(const struct tsr_checkpoint_layout *layout)
{
    json_t *all = json_array();
    for (size_t i = 0; i < layout->params->n; i++) {
        const struct tsr_state_entry *e = &layout->params->entries[i];
        json_t *entry = json_pack("{s:s, s:s?, s:s, s:I, s:I}", "fqn", e->fqn, "group", e->group,
                                  "dtype", tsr_dtype_name(e->dtype), "layout",
                                  (json_int_t)e->layout, "alias_of", (json_int_t)e->alias_of);
        if (entry && layout->stateless && layout->stateless[i])
            json_object_set_new(entry, "stateless", json_true());
        else if (entry && layout->steps && layout->steps[i] != TSR_STEPS_UNKNOWN)
            json_object_set_new(entry, "optimizer_step",
                                json_integer((json_int_t)layout->steps[i]));
        json_array_append_new(all, entry);
    }
    return all;
}

static json_t *scalars_json(const struct tsr_checkpoint_info *info)
{
    json_t *all = json_object();
    for (size_t i = 0; i < info->n_scalars; i++)
        json_object_set_new(all, info->scalars[i].name, json_real(info->scalars[i].value));
    return all;
}

/* 64 bits do not fit the integers of JSON readers. */
static json_t *hex(uint64_t value)
{
    return json_sprintf("%016" PRIx64, value);
}

static tsr_status check_info(const struct tsr_checkpoint_info *info)
{
    for (size_t i = 0; i < info->n_scalars; i++)
        if (!isfinite(info->scalars[i].value))
            return tsr_fail(TSR_EVALUE, "checkpoint: scalar %s is not finite",
                            info->scalars[i].name);
    if (info->data_position > INT64_MAX)
        return tsr_fail(TSR_EVALUE, "checkpoint: data position %llu; allowed: below 2^63",
                        (unsigned long long)info->data_position);
    return TSR_OK;
}

static json_t *meta_json(uint64_t step, const struct tsr_checkpoint_layout *layout,
                         const struct tsr_checkpoint_info *info, json_t *extra)
{
    const struct tsr_state_dict *params = layout->params;
    json_t *layouts = json_array();
    for (size_t i = 0; i < params->n_layouts; i++)
        json_array_append_new(layouts, layout_json(&params->layouts[i]));
    return json_pack("{s:s, s:i, s:I, s:I, s:o, s:o, s:I, s:o, s:O?, s:i, s:s, s:o, s:o}", "format",
                     META_FORMAT, "version", (int)META_VERSION, "step", (json_int_t)step, "world",
                     (json_int_t)params->world, "model_hash", hex(info->model_hash), "seed",
                     hex(info->seed), "data_position", (json_int_t)info->data_position, "scalars",
                     scalars_json(info), "extra", extra, "n_states", layout->n_states,
                     "state_dtype", tsr_dtype_name(layout->state_dtype), "layouts", layouts,
                     "entries", entries_json(layout));
}

tsr_status tsr__meta_write(uint64_t step, const struct tsr_checkpoint_layout *layout,
                           const struct tsr_checkpoint_info *info, char **out)
{
    json_error_t error;
    json_t *extra = NULL;
    TSR_TRY(check_info(info));
    if (layout->params->n_layouts > MAX_LAYOUTS)
        return tsr_fail(TSR_EVALUE, "checkpoint: %zu layouts; allowed: up to %d",
                        layout->params->n_layouts, MAX_LAYOUTS);
    if (info->extra) {
        extra = tsr_json_loadb(info->extra, strlen(info->extra), TSR_TEXT_VALUES, &error);
        if (!json_is_object(extra)) {
            json_decref(extra);
            return tsr_fail(TSR_EVALUE, "checkpoint: extra: not a JSON object%s%s",
                            extra ? "" : ": ", extra ? "" : tsr_show(error.text).text);
        }
    }
    json_t *meta = meta_json(step, layout, info, extra);
    *out = meta ? json_dumps(meta, JSON_INDENT(1)) : NULL;
    json_decref(meta);
    json_decref(extra);
    if (!*out)
        return tsr_fail(TSR_ENOMEM, "checkpoint: out of memory, or a name is not UTF-8");
    return TSR_OK;
}

/* ---- reading: fields ------------------------------------------------------------------------- */

struct reading {
    const char *path;
    struct tsr_meta *meta;
    struct tsr_dtensor *layouts;
    size_t n_layouts;
};

static tsr_status wrong(const struct reading *r, const char *key, const char *allowed)
{
    return tsr_fail(TSR_ECONFIG, "%s: %s: missing or not %s", r->path, key, allowed);
}

static tsr_status get_u64(const struct reading *r, const json_t *value, const char *key,
                          uint64_t most, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > most)
        return tsr_fail(TSR_ECONFIG, "%s: %s: missing or not an integer of 0 to %llu", r->path, key,
                        (unsigned long long)most);
    *out = (uint64_t)json_integer_value(value);
    return TSR_OK;
}

static tsr_status get_hex(const struct reading *r, const json_t *value, const char *key,
                          uint64_t *out)
{
    const char *text = json_string_value(value);
    char *end = NULL;
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return wrong(r, key, "16 hexadecimal digits");
    *out = strtoull(text, &end, 16);
    return TSR_OK;
}

static tsr_status get_dtype(const struct reading *r, const json_t *value, const char *key,
                            bool none, tsr_dtype *out)
{
    const char *text = json_string_value(value);
    *out = text ? tsr_dtype_parse(text) : TSR_DTYPE_NONE;
    if (*out == TSR_DTYPE_NONE && !(none && text && !strcmp(text, "none")))
        return wrong(r, key, "a dtype");
    return TSR_OK;
}

/* ---- reading: layouts and entries ------------------------------------------------------------ */

static tsr_status read_place(const struct reading *r, const json_t *place, struct tsr_placement *p)
{
    const char *name = json_string_value(json_array_get(place, 0));
    uint64_t dim = 0, split = 1;
    int kind = 0;
    while (name && kind < 3 && strcmp(name, place_names[kind]) != 0)
        kind++;
    if (!name || kind == 3)
        return wrong(r, "layouts: place", "replicate, shard or strided_shard");
    if (kind != TSR_PLACE_REPLICATE)
        TSR_TRY(get_u64(r, json_array_get(place, 1), "layouts: place", TSR_DT_MAX_DIMS, &dim));
    if (kind == TSR_PLACE_STRIDED_SHARD)
        TSR_TRY(get_u64(r, json_array_get(place, 2), "layouts: place", UINT32_MAX, &split));
    *p = (struct tsr_placement){(enum tsr_placement_kind)kind, (int)dim, (uint32_t)split};
    return TSR_OK;
}

static tsr_status read_layout(const struct reading *r, const json_t *layout, struct tsr_dtensor *t)
{
    const json_t *shape = json_object_get(layout, "shape"), *mesh = json_object_get(layout, "mesh");
    const json_t *place = json_object_get(layout, "place");
    if (!json_is_array(shape) || json_array_size(shape) > TSR_DT_MAX_DIMS || !json_is_array(mesh) ||
        json_array_size(mesh) > TSR_DT_MAX_MESH || json_array_size(place) != json_array_size(mesh))
        return wrong(r, "layouts", "shape, mesh and place of a tensor");
    *t = (struct tsr_dtensor){.n_dims = (int)json_array_size(shape),
                              .n_mesh = (int)json_array_size(mesh)};
    for (int i = 0; i < t->n_dims; i++)
        TSR_TRY(get_u64(r, json_array_get(shape, (size_t)i), "layouts: shape", INT64_MAX,
                        &t->shape[i]));
    for (int i = 0; i < t->n_mesh; i++) {
        const json_t *dim = json_array_get(mesh, (size_t)i);
        uint64_t size = 0, stride = 0;
        TSR_TRY(get_u64(r, json_array_get(dim, 0), "layouts: mesh", UINT32_MAX, &size));
        TSR_TRY(get_u64(r, json_array_get(dim, 1), "layouts: mesh", UINT32_MAX, &stride));
        t->mesh[i] = (struct tsr_mesh_dim){(uint32_t)size, (uint32_t)stride};
        TSR_TRY(read_place(r, json_array_get(place, (size_t)i), &t->place[i]));
    }
    tsr_status status = tsr_dtensor_check(t);
    if (status != TSR_OK)
        return tsr_fail(TSR_ECONFIG, "%s: layouts: %s", r->path, tsr_error_text());
    return TSR_OK;
}

static tsr_status read_entry(struct reading *r, const json_t *entry, size_t i)
{
    struct tsr_state_dict *s = &r->meta->params;
    const char *fqn = json_string_value(json_object_get(entry, "fqn"));
    const char *group = json_string_value(json_object_get(entry, "group"));
    uint64_t layout = 0, alias = 0;
    tsr_dtype dtype = TSR_DTYPE_NONE;
    if (!fqn)
        return wrong(r, "entries: fqn", "a name");
    TSR_TRY(get_dtype(r, json_object_get(entry, "dtype"), "entries: dtype", false, &dtype));
    TSR_TRY(get_u64(r, json_object_get(entry, "alias_of"), "entries: alias_of", i, &alias));
    TSR_TRY(get_u64(r, json_object_get(entry, "layout"), "entries: layout", INT32_MAX, &layout));
    if (layout >= r->n_layouts)
        return wrong(r, "entries: layout", "one of the layouts");
    tsr_status status = tsr_state_dict_add(s, fqn, group, dtype, &r->layouts[layout]);
    if (status != TSR_OK)
        return tsr_fail(status == TSR_EVALUE ? TSR_ECONFIG : status, "%s: entries: %s", r->path,
                        tsr_error_text());
    if (s->entries[alias].alias_of != alias && alias != i)
        return wrong(r, "entries: alias_of", "an entry of its own");
    s->entries[i].alias_of = (size_t)alias;
    r->meta->stateless[i] = json_is_true(json_object_get(entry, "stateless"));
    r->meta->steps[i] = TSR_STEPS_UNKNOWN;
    const json_t *steps = json_object_get(entry, "optimizer_step");
    return !steps ? TSR_OK
                  : get_u64(r, steps, "entries: optimizer_step", r->meta->step, &r->meta->steps[i]);
}

static tsr_status read_layouts(struct reading *r, const json_t *layouts)
{
    if (!json_is_array(layouts))
        return wrong(r, "layouts", "a list");
    r->n_layouts = json_array_size(layouts);
    if (r->n_layouts > MAX_LAYOUTS)
        return tsr_fail(TSR_ECONFIG, "%s: layouts: %zu; allowed: up to %d", r->path, r->n_layouts,
                        MAX_LAYOUTS);
    r->layouts = calloc(r->n_layouts + 1, sizeof *r->layouts);
    if (!r->layouts)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < r->n_layouts; i++)
        TSR_TRY(read_layout(r, json_array_get(layouts, i), &r->layouts[i]));
    return TSR_OK;
}

static tsr_status read_entries(struct reading *r, const json_t *entries)
{
    if (!json_is_array(entries))
        return wrong(r, "entries", "a list");
    size_t n = json_array_size(entries);
    r->meta->stateless = calloc(n + 1, sizeof *r->meta->stateless);
    r->meta->steps = calloc(n + 1, sizeof *r->meta->steps);
    if (!r->meta->stateless || !r->meta->steps)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++)
        TSR_TRY(read_entry(r, json_array_get(entries, i), i));
    return TSR_OK;
}

/* ---- reading: the rest ----------------------------------------------------------------------- */

static tsr_status read_scalars(struct reading *r, json_t *scalars)
{
    const char *key;
    json_t *value;
    struct tsr_meta *m = r->meta;
    if (!json_is_object(scalars))
        return wrong(r, "scalars", "an object of numbers");
    m->scalars = calloc(json_object_size(scalars) + 1, sizeof *m->scalars);
    if (!m->scalars)
        return tsr_no_memory(NULL);
    json_object_foreach(scalars, key, value)
    {
        struct tsr_checkpoint_scalar *s = &m->scalars[m->info.n_scalars++];
        if (!json_is_number(value))
            return wrong(r, "scalars", "an object of numbers");
        s->value = json_number_value(value);
        s->name = tsr_arena_strdup(&m->text, key);
        if (!s->name)
            return tsr_no_memory(NULL);
    }
    m->info.scalars = m->scalars;
    return TSR_OK;
}

static tsr_status read_info(struct reading *r, const json_t *root)
{
    struct tsr_checkpoint_info *info = &r->meta->info;
    const json_t *extra = json_object_get(root, "extra");
    TSR_TRY(get_hex(r, json_object_get(root, "model_hash"), "model_hash", &info->model_hash));
    TSR_TRY(get_hex(r, json_object_get(root, "seed"), "seed", &info->seed));
    TSR_TRY(get_u64(r, json_object_get(root, "data_position"), "data_position", INT64_MAX,
                    &info->data_position));
    TSR_TRY(read_scalars(r, json_object_get(root, "scalars")));
    if (!json_is_object(extra))
        return TSR_OK;
    char *text = json_dumps(extra, JSON_COMPACT);
    info->extra = text ? tsr_arena_strdup(&r->meta->text, text) : NULL;
    free(text);
    return info->extra ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status read_head(struct reading *r, const json_t *root)
{
    struct tsr_meta *m = r->meta;
    const char *format = json_string_value(json_object_get(root, "format"));
    uint64_t version = 0, world = 0, n_states = 0;
    if (!format || strcmp(format, META_FORMAT) != 0)
        return wrong(r, "format", "\"" META_FORMAT "\"");
    TSR_TRY(get_u64(r, json_object_get(root, "version"), "version", INT32_MAX, &version));
    if (version != META_VERSION)
        return tsr_fail(TSR_ECONFIG, "%s: version: %llu; this build reads %d", r->path,
                        (unsigned long long)version, META_VERSION);
    TSR_TRY(get_u64(r, json_object_get(root, "step"), "step", INT64_MAX, &m->step));
    TSR_TRY(get_u64(r, json_object_get(root, "world"), "world", UINT32_MAX, &world));
    TSR_TRY(get_u64(r, json_object_get(root, "n_states"), "n_states", TSR_N_PARTS - 1, &n_states));
    TSR_TRY(get_dtype(r, json_object_get(root, "state_dtype"), "state_dtype", true,
                      &m->layout.state_dtype));
    m->params.world = (uint32_t)world;
    m->layout.n_states = (int)n_states;
    return TSR_OK;
}

static tsr_status read_all(struct reading *r, const json_t *root)
{
    TSR_TRY(read_head(r, root));
    TSR_TRY(read_info(r, root));
    TSR_TRY(read_layouts(r, json_object_get(root, "layouts")));
    return read_entries(r, json_object_get(root, "entries"));
}

tsr_status tsr__meta_read(const char *path, const char *text, size_t n, struct tsr_meta *out)
{
    struct reading r = {.path = path, .meta = out};
    json_error_t error;
    *out = (struct tsr_meta){0};
    tsr_state_dict_init(&out->params, 0);
    tsr_arena_init(&out->text);
    json_t *root = tsr_json_loadb(text, n, TSR_TEXT_MANY_VALUES, &error);
    tsr_status status = root ? read_all(&r, root)
                             : tsr_fail(TSR_ECONFIG, "%s: %s", path, tsr_show(error.text).text);
    json_decref(root);
    free(r.layouts);
    if (status == TSR_OK) {
        out->layout.params = &out->params;
        out->layout.stateless = out->stateless;
        out->layout.steps = out->steps;
    } else {
        tsr__meta_fini(out);
    }
    return status;
}

void tsr__meta_fini(struct tsr_meta *m)
{
    tsr_state_dict_fini(&m->params);
    tsr_arena_fini(&m->text);
    free(m->stateless);
    free(m->steps);
    free(m->scalars);
    *m = (struct tsr_meta){0};
}
