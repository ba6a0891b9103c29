/* sharded_state.c: the state dict of an engine as layout: which keys, what each rank holds of them,
 * and what a rank reads to go from one layout to another.
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

/* ---- from one layout to another -------------------------------------------------------------- */

/* What a rank reads to go from one layout to another (sharded_state.h).
 *
 * Each dimension of the destination's part is divided by who holds it in the source; every
 * combination of such pieces is a box inside one source shard, copied row by row. */

struct piece {
    struct tsr_holder from;
    uint64_t to_start;
};

struct pieces {
    size_t n, cap;
    struct piece *items;
    uint64_t to_at; /* where the run being searched begins in the destination */
    uint64_t run_start;
};

struct reshard {
    const struct tsr_dtensor *from;
    int n_dims;
    unsigned bytes;
    uint32_t base; /* source rank that gives the coordinates of what is replicated */
    struct pieces dims[TSR_DT_MAX_DIMS];
    uint64_t to_shape[TSR_DT_MAX_DIMS];
    const struct piece *chosen[TSR_DT_MAX_DIMS];
    struct tsr_byte_range pending; /* bytes 0: none */
    tsr_byte_range_fn fn;
    void *user;
};

/* ---- pieces ---------------------------------------------------------------------------------- */

static tsr_status add_piece(void *user, const struct tsr_holder *holder)
{
    struct pieces *p = user;
    struct piece piece = {*holder, p->to_at + (holder->start - p->run_start)};
    if (!TSR_PUSH(p->items, p->n, p->cap, piece))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

static tsr_status find_pieces(struct reshard *r, const struct tsr_dtensor *to, uint32_t to_rank,
                              int dim)
{
    struct pieces *p = &r->dims[dim];
    struct tsr_runs runs;
    if (!tsr_dtensor_dim_runs(to, dim, to_rank, &runs)) {
        tsr_runs_fini(&runs);
        return tsr_no_memory(NULL);
    }
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < runs.n && status == TSR_OK; i++) {
        p->run_start = runs.items[i].start;
        status = tsr_dtensor_holders(r->from, dim, runs.items[i].start, runs.items[i].length,
                                     add_piece, p);
        p->to_at += runs.items[i].length;
    }
    r->to_shape[dim] = p->to_at;
    tsr_runs_fini(&runs);
    return status;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static tsr_status flush(struct reshard *r)
{
    struct tsr_byte_range range = r->pending;
    r->pending.bytes = 0;
    return range.bytes ? r->fn(r->user, &range) : TSR_OK;
}

static tsr_status emit(struct reshard *r, uint32_t rank, uint64_t from, uint64_t to, uint64_t bytes)
{
    struct tsr_byte_range *p = &r->pending;
    if (p->bytes && p->from_rank == rank && p->from_offset + p->bytes == from &&
        p->to_offset + p->bytes == to) {
        p->bytes += bytes;
        return TSR_OK;
    }
    TSR_TRY(flush(r));
    p->from_rank = rank;
    p->from_offset = from;
    p->to_offset = to;
    p->bytes = bytes;
    return TSR_OK;
}

static uint32_t source_rank(const struct reshard *r)
{
    uint64_t rank = r->base;
    for (int i = 0; i < r->from->n_mesh; i++) {
        const struct tsr_mesh_dim *m = &r->from->mesh[i];
        if (r->from->place[i].kind == TSR_PLACE_REPLICATE)
            continue;
        uint32_t coord = r->chosen[r->from->place[i].dim]->from.coord[i];
        rank += (uint64_t)coord * m->stride;
        rank -= (uint64_t)(r->base / m->stride % m->size) * m->stride;
    }
    return (uint32_t)rank;
}

struct box {
    uint32_t rank;
    int last; /* dimensions behind it are whole on both sides */
    uint64_t from_stride[TSR_DT_MAX_DIMS], to_stride[TSR_DT_MAX_DIMS];
};

static tsr_status copy_rows(struct reshard *r, const struct box *b, int dim, uint64_t from,
                            uint64_t to)
{
    const struct piece *p = r->chosen[dim];
    from += p->from.local_start * b->from_stride[dim];
    to += p->to_start * b->to_stride[dim];
    if (dim == b->last)
        return emit(r, b->rank, from, to, p->from.length * b->to_stride[dim]);
    for (uint64_t i = 0; i < p->from.length; i++)
        TSR_TRY(
            copy_rows(r, b, dim + 1, from + i * b->from_stride[dim], to + i * b->to_stride[dim]));
    return TSR_OK;
}

/* The box of the chosen pieces: strides in bytes, and how much of a row is contiguous. */
static tsr_status copy_box(struct reshard *r)
{
    struct box b = {.rank = source_rank(r)};
    uint64_t from = r->bytes, to = r->bytes;
    bool whole = true;
    b.last = r->n_dims - 1;
    for (int d = r->n_dims - 1; d >= 0; d--) {
        uint64_t local = r->chosen[d]->from.local_size;
        b.from_stride[d] = from;
        b.to_stride[d] = to;
        from *= local;
        to *= r->to_shape[d];
        whole = whole && r->chosen[d]->from.length == local && local == r->to_shape[d];
        if (whole && d > 0)
            b.last = d - 1;
    }
    return copy_rows(r, &b, 0, 0, 0);
}

static tsr_status choose(struct reshard *r, int dim)
{
    if (dim == r->n_dims)
        return copy_box(r);
    for (size_t i = 0; i < r->dims[dim].n; i++) {
        r->chosen[dim] = &r->dims[dim].items[i];
        TSR_TRY(choose(r, dim + 1));
    }
    return TSR_OK;
}

/* ---- a tensor ----------------------------------------------------------------------------------
 */

static tsr_status check_pair(const struct tsr_dtensor *from, uint32_t from_world,
                             const struct tsr_dtensor *to, unsigned bytes)
{
    bool same = from->n_dims == to->n_dims;
    TSR_TRY(tsr_dtensor_check(from));
    TSR_TRY(tsr_dtensor_check(to));
    for (int i = 0; same && i < to->n_dims; i++)
        same = from->shape[i] == to->shape[i];
    if (!same)
        return tsr_fail(TSR_EVALUE, "the global shapes differ");
    if (from_world == 0 || bytes == 0 || bytes > 8)
        return tsr_fail(TSR_EVALUE, "%u source ranks, elements of %u bytes", from_world, bytes);
    return TSR_OK;
}

static tsr_status reshard(struct reshard *r, const struct tsr_dtensor *to, uint32_t to_rank)
{
    if (r->n_dims == 0) {
        TSR_TRY(emit(r, r->base, 0, 0, r->bytes));
        return flush(r);
    }
    tsr_status status = TSR_OK;
    for (int d = 0; d < r->n_dims; d++)
        TSR_GOTO(out, find_pieces(r, to, to_rank, d));
    TSR_GOTO(out, choose(r, 0));
    status = flush(r);
out:
    for (int d = 0; d < r->n_dims; d++)
        free(r->dims[d].items);
    return status;
}

tsr_status tsr_reshard_tensor(const struct tsr_dtensor *from, uint32_t from_world,
                              const struct tsr_dtensor *to, uint32_t to_rank, unsigned bytes,
                              tsr_byte_range_fn fn, void *user)
{
    TSR_TRY(check_pair(from, from_world, to, bytes));
    struct reshard r = {.from = from,
                        .n_dims = to->n_dims,
                        .bytes = bytes,
                        .base = to_rank % from_world,
                        .pending = {.to_rank = to_rank},
                        .fn = fn,
                        .user = user};
    return reshard(&r, to, to_rank);
}
