/* sharded_state.c: the state dict of an engine as layout: which keys, what each rank holds of them.
 */
#include "engine/layout/sharded_state.h"

#include <stdlib.h>
#include <string.h>

#include "engine/layout/layout.h"
#include "engine/layout/tensor_parallel.h"

void tsr_state_dict_init(struct tsr_state_dict *s, uint32_t world)
{
    *s = (struct tsr_state_dict){.world = world};
    tsr_arena_init(&s->names);
}

void tsr_state_dict_fini(struct tsr_state_dict *s)
{
    free(s->entries);
    free(s->layouts);
    tsr_arena_fini(&s->names);
    *s = (struct tsr_state_dict){0};
}

/* Models have a handful of different layouts: looking through them is cheap. */
static bool intern_layout(struct tsr_state_dict *s, const struct tsr_dtensor *layout, size_t *index)
{
    for (*index = 0; *index < s->n_layouts; ++*index)
        if (tsr_dtensor_equal(&s->layouts[*index], layout))
            return true;
    return TSR_PUSH(s->layouts, s->n_layouts, s->cap_layouts, *layout);
}

/* Groups are runs of entries: a name is copied once per run. */
static const char *copy_group(struct tsr_state_dict *s, const char *group)
{
    const char *last = s->n ? s->entries[s->n - 1].group : NULL;
    if (!group || (last && !strcmp(last, group)))
        return group ? last : NULL;
    return tsr_arena_strdup(&s->names, group);
}

tsr_status tsr_state_dict_add(struct tsr_state_dict *s, const char *fqn, const char *group,
                              tsr_dtype dtype, const struct tsr_dtensor *layout)
{
    uint64_t last = 0;
    TSR_TRY(tsr_dtensor_check(layout));
    for (int i = 0; i < layout->n_mesh; i++)
        last += (uint64_t)(layout->mesh[i].size - 1) * layout->mesh[i].stride;
    if (last >= s->world)
        return tsr_fail(TSR_EVALUE, "%s: its mesh has rank %llu, but there are %u ranks", fqn,
                        (unsigned long long)last, s->world);
    if (tsr_dtype_bytes(dtype) == 0)
        return tsr_fail(TSR_EVALUE, "%s has no dtype", fqn);
    struct tsr_state_entry entry = {.fqn = tsr_arena_strdup(&s->names, fqn),
                                    .group = copy_group(s, group),
                                    .dtype = dtype,
                                    .alias_of = s->n};
    if (!entry.fqn || (group && !entry.group) || !intern_layout(s, layout, &entry.layout) ||
        !TSR_PUSH(s->entries, s->n, s->cap, entry))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

/* ---- of an engine ---------------------------------------------------------------------------- */

struct collect {
    struct tsr_engine *e;
    const char *group;
    struct tsr_state_dict *out;
    size_t *first; /* by parameter id: its first entry + 1 */
};

static tsr_status add_place(struct collect *c, const struct tsr_place *place, const char *prefix)
{
    const struct tsr_param *p = place->param;
    struct tsr_state_dict *s = c->out;
    struct tsr_param_dtensor where;
    const char *fqn =
        *prefix ? tsr_arena_printf(&s->names, "%s.%s", prefix, place->name) : place->name;
    if (!fqn)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr__param_dtensor(c->e, p, &where));
    if (c->group && (!where.group || strcmp(where.group, c->group) != 0))
        return TSR_OK;
    TSR_TRY(tsr_state_dict_add(s, fqn, where.group, p->dtype, &where.layout));
    struct tsr_state_entry *entry = &s->entries[s->n - 1];
    entry->on_host = p->cut && p->cut->on_host;
    if (c->first[p->id])
        entry->alias_of = c->first[p->id] - 1;
    else
        c->first[p->id] = s->n;
    return TSR_OK;
}

/* Without de-duplication: a shared module has keys under each of its names. */
static tsr_status add_module(struct collect *c, const struct tsr_module *m, const char *prefix)
{
    for (size_t i = 0; i < m->n_params; i++)
        TSR_TRY(add_place(c, &m->params[i], prefix));
    for (size_t i = 0; i < m->n_children; i++) {
        const char *name = m->child_names[i];
        if (*prefix)
            name = tsr_arena_printf(&c->out->names, "%s.%s", prefix, name);
        if (!name)
            return tsr_no_memory(NULL);
        TSR_TRY(add_module(c, m->children[i], name));
    }
    return TSR_OK;
}

tsr_status tsr_state_dict_of(struct tsr_engine *e, const char *group, struct tsr_state_dict *out)
{
    struct collect c = {.e = e, .group = group, .out = out};
    tsr_state_dict_init(out, e->world);
    c.first = calloc(e->tree.n_params + 1, sizeof *c.first);
    tsr_status status = c.first ? TSR_OK : tsr_no_memory(NULL);
    if (status == TSR_OK && e->tree.root)
        status = add_module(&c, e->tree.root, "");
    free(c.first);
    if (status != TSR_OK)
        tsr_state_dict_fini(out);
    return status;
}

/* ---- questions ------------------------------------------------------------------------------- */

const struct tsr_state_entry *tsr_state_dict_find(const struct tsr_state_dict *s, const char *fqn)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->entries[i].fqn, fqn))
            return &s->entries[i];
    return NULL;
}
