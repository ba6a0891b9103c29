/* dtensor.c: how dimensions are cut: one cut (section 2.2, the only place with this arithmetic),
 * several in the order in which they were made, and where the pieces lie.
 */
#include "engine/layout/dtensor.h"

#include <stdlib.h>
#include <string.h>

#include "engine/layout/layout.h"

#define MAX_NUMEL (UINT64_C(1) << 60)

struct tsr_chunk tsr__chunk(uint64_t n, uint32_t world, uint32_t rank)
{
    struct tsr_chunk c = {.rows = tsr_ceil_div(n, world)};
    c.begin = tsr_min_u64(n, c.rows * rank);
    c.count = tsr_min_u64(c.rows, n - c.begin);
    return c;
}

void tsr_dtensor_mesh(struct tsr_dtensor *t, int n_mesh, const uint32_t *sizes)
{
    uint32_t stride = 1;
    t->n_mesh = n_mesh;
    for (int i = n_mesh - 1; i >= 0; i--) {
        t->mesh[i] = (struct tsr_mesh_dim){sizes[i], stride};
        stride *= sizes[i];
    }
}

static tsr_status check_placement(const struct tsr_dtensor *t, int i)
{
    const struct tsr_placement *p = &t->place[i];
    if (p->kind == TSR_PLACE_REPLICATE)
        return TSR_OK;
    if (p->kind != TSR_PLACE_SHARD && p->kind != TSR_PLACE_STRIDED_SHARD)
        return tsr_fail(TSR_EVALUE, "mesh dimension %d has no placement %d", i, (int)p->kind);
    if (p->dim < 0 || p->dim >= t->n_dims)
        return tsr_fail(TSR_EVALUE, "mesh dimension %d shards dim %d of a tensor of %d", i, p->dim,
                        t->n_dims);
    if (p->kind == TSR_PLACE_STRIDED_SHARD && p->split == 0)
        return tsr_fail(TSR_EVALUE, "mesh dimension %d has a strided shard with split factor 0", i);
    return TSR_OK;
}

tsr_status tsr_dtensor_check(const struct tsr_dtensor *t)
{
    uint64_t numel = 1, world = 1;
    if (t->n_dims < 0 || t->n_dims > TSR_DT_MAX_DIMS)
        return tsr_fail(TSR_EVALUE, "a tensor has 0 to %d dimensions, not %d", TSR_DT_MAX_DIMS,
                        t->n_dims);
    if (t->n_mesh < 0 || t->n_mesh > TSR_DT_MAX_MESH)
        return tsr_fail(TSR_EVALUE, "a mesh has up to %d dimensions, not %d", TSR_DT_MAX_MESH,
                        t->n_mesh);
    for (int i = 0; i < t->n_dims; i++)
        if (!tsr_mul_u64(numel, tsr_max_u64(t->shape[i], 1), &numel) || numel > MAX_NUMEL)
            return tsr_fail(TSR_EVALUE, "a tensor has at most 2^60 elements");
    for (int i = 0; i < t->n_mesh; i++) {
        if (t->mesh[i].size == 0 || t->mesh[i].stride == 0)
            return tsr_fail(TSR_EVALUE, "mesh dimension %d has size %u and stride %u", i,
                            t->mesh[i].size, t->mesh[i].stride);
        if (!tsr_mul_u64(world, t->mesh[i].size, &world) || world > UINT32_MAX)
            return tsr_fail(TSR_EVALUE, "a mesh has fewer than 2^32 ranks");
        TSR_TRY(check_placement(t, i));
    }
    return TSR_OK;
}

bool tsr_dtensor_equal(const struct tsr_dtensor *a, const struct tsr_dtensor *b)
{
    bool same = a->n_dims == b->n_dims && a->n_mesh == b->n_mesh;
    for (int i = 0; same && i < a->n_dims; i++)
        same = a->shape[i] == b->shape[i];
    for (int i = 0; same && i < a->n_mesh; i++) {
        const struct tsr_placement *p = &a->place[i], *q = &b->place[i];
        same = a->mesh[i].size == b->mesh[i].size && a->mesh[i].stride == b->mesh[i].stride &&
               p->kind == q->kind;
        if (same && p->kind != TSR_PLACE_REPLICATE)
            same = p->dim == q->dim && (p->kind == TSR_PLACE_SHARD || p->split == q->split);
    }
    return same;
}

uint64_t tsr_dtensor_numel(const struct tsr_dtensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* What a mesh dimension does to a tensor dimension: each of `split` pieces is cut into `parts`,
 * and part i is the concatenation of those of all pieces. */
struct cut {
    int mesh;
    uint32_t parts, split;
};

/* Cuts of dimension `dim` in the order in which they were made. A strided shard goes behind the
 * cuts to its right that made its pieces, so that its pieces are exactly theirs, also where sizes
 * are uneven; if there are none, it cuts pieces of its own. */
static int list_cuts(const struct tsr_dtensor *t, int dim, struct cut *cuts)
{
    int n = 0;
    for (int i = t->n_mesh - 1; i >= 0; i--) {
        const struct tsr_placement *p = &t->place[i];
        if (p->kind == TSR_PLACE_REPLICATE || p->dim != dim)
            continue;
        struct cut cut = {i, t->mesh[i].size, 1};
        int at = 0;
        if (p->kind == TSR_PLACE_STRIDED_SHARD) {
            uint64_t made = 1;
            while (at < n && made < p->split)
                made *= cuts[at++].parts;
            if (made != p->split) {
                at = 0;
                cut.split = p->split;
            }
        }
        memmove(cuts + at + 1, cuts + at, (size_t)(n - at) * sizeof *cuts);
        cuts[at] = cut;
        n++;
    }
    return n;
}

static uint32_t coordinate(const struct tsr_dtensor *t, int mesh, uint64_t rank)
{
    return (uint32_t)(rank / t->mesh[mesh].stride % t->mesh[mesh].size);
}

/* Extent of part i of a sequence of n: all pieces but the last have the same size. */
static uint64_t part_size(const struct cut *cut, uint64_t n, uint32_t i)
{
    uint64_t piece = tsr__chunk(n, cut->split, 0).rows;
    if (piece == 0)
        return 0;
    return n / piece * tsr__chunk(piece, cut->parts, i).count +
           tsr__chunk(n % piece, cut->parts, i).count;
}

/* The rank's part as one interval. False (and the size alone) if it is made of pieces. */
static bool interval(const struct tsr_dtensor *t, int dim, uint64_t rank, struct tsr_shard_run *out)
{
    struct cut cuts[TSR_DT_MAX_MESH];
    int n = list_cuts(t, dim, cuts);
    bool whole = true;
    *out = (struct tsr_shard_run){0, t->shape[dim]};
    for (int k = 0; k < n; k++) {
        uint32_t i = coordinate(t, cuts[k].mesh, rank);
        struct tsr_chunk c = tsr__chunk(out->length, cuts[k].parts, i);
        if (cuts[k].split > 1) {
            whole = false;
            c.count = part_size(&cuts[k], out->length, i);
        }
        out->start += c.begin;
        out->length = c.count;
    }
    return whole;
}

void tsr_dtensor_local_shape(const struct tsr_dtensor *t, uint64_t rank, uint64_t *shape)
{
    for (int d = 0; d < t->n_dims; d++) {
        struct tsr_shard_run run;
        interval(t, d, rank, &run);
        shape[d] = run.length;
    }
}

uint64_t tsr_dtensor_local_numel(const struct tsr_dtensor *t, uint64_t rank)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) {
        struct tsr_shard_run run;
        interval(t, d, rank, &run);
        n *= run.length;
    }
    return n;
}

bool tsr_dtensor_box(const struct tsr_dtensor *t, uint64_t rank, uint64_t *offset, uint64_t *size)
{
    bool whole = true;
    for (int d = 0; d < t->n_dims; d++) {
        struct tsr_shard_run run;
        whole &= interval(t, d, rank, &run);
        offset[d] = run.start;
        size[d] = run.length;
    }
    return whole;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static bool push_run(struct tsr_runs *runs, uint64_t start, uint64_t length)
{
    struct tsr_shard_run *last = runs->n ? &runs->items[runs->n - 1] : NULL;
    if (length == 0)
        return true;
    if (last && last->start + last->length == start) {
        last->length += length;
        return true;
    }
    struct tsr_shard_run run = {start, length};
    return TSR_PUSH(runs->items, runs->n, runs->cap, run);
}

void tsr_runs_fini(struct tsr_runs *runs)
{
    free(runs->items);
    *runs = (struct tsr_runs){0};
}

/* Appends positions [begin, begin + count) of a sequence of runs. */
static bool slice(const struct tsr_runs *in, uint64_t begin, uint64_t count, struct tsr_runs *out)
{
    uint64_t at = 0, end = begin + count;
    for (size_t i = 0; i < in->n && at < end; i++) {
        uint64_t from = tsr_max_u64(at, begin), to = tsr_min_u64(at + in->items[i].length, end);
        if (from < to && !push_run(out, in->items[i].start + (from - at), to - from))
            return false;
        at += in->items[i].length;
    }
    return true;
}

static bool cut_runs(const struct cut *cut, uint64_t n, uint32_t i, struct tsr_runs *runs)
{
    struct tsr_runs out = {0};
    bool ok = true;
    for (uint32_t j = 0; ok && j < cut->split; j++) {
        struct tsr_chunk piece = tsr__chunk(n, cut->split, j);
        struct tsr_chunk part = tsr__chunk(piece.count, cut->parts, i);
        if (piece.count == 0)
            break;
        ok = slice(runs, piece.begin + part.begin, part.count, &out);
    }
    tsr_runs_fini(runs);
    *runs = out;
    return ok;
}

bool tsr_dtensor_dim_runs(const struct tsr_dtensor *t, int dim, uint64_t rank, struct tsr_runs *out)
{
    struct cut cuts[TSR_DT_MAX_MESH];
    struct tsr_shard_run run;
    *out = (struct tsr_runs){0};
    if (interval(t, dim, rank, &run))
        return push_run(out, run.start, run.length);
    uint64_t size = t->shape[dim];
    int n = list_cuts(t, dim, cuts);
    bool ok = push_run(out, 0, size);
    for (int k = 0; ok && k < n; k++) {
        uint32_t i = coordinate(t, cuts[k].mesh, rank);
        ok = cut_runs(&cuts[k], size, i, out);
        size = part_size(&cuts[k], size, i);
    }
    return ok;
}

struct flatten {
    const struct tsr_dtensor *t;
    int last; /* dimensions behind it are whole */
    uint64_t stride[TSR_DT_MAX_DIMS];
    struct tsr_runs dims[TSR_DT_MAX_DIMS];
    struct tsr_runs *out;
};

static bool flatten_dim(const struct flatten *f, int dim, uint64_t base)
{
    const struct tsr_runs *runs = &f->dims[dim];
    for (size_t i = 0; i < runs->n; i++) {
        const struct tsr_shard_run *run = &runs->items[i];
        if (dim == f->last) {
            if (!push_run(f->out, base + run->start * f->stride[dim], run->length * f->stride[dim]))
                return false;
            continue;
        }
        for (uint64_t x = run->start; x < run->start + run->length; x++)
            if (!flatten_dim(f, dim + 1, base + x * f->stride[dim]))
                return false;
    }
    return true;
}

tsr_status tsr_dtensor_runs(const struct tsr_dtensor *t, uint64_t rank, struct tsr_runs *out)
{
    struct flatten f = {.t = t, .out = out};
    uint64_t stride = 1;
    bool ok = true;
    *out = (struct tsr_runs){0};
    for (int d = t->n_dims - 1; d >= 0; d--) {
        f.stride[d] = stride;
        stride *= t->shape[d];
    }
    for (int d = 0; ok && d < t->n_dims; d++) {
        ok = tsr_dtensor_dim_runs(t, d, rank, &f.dims[d]);
        bool is_whole = f.dims[d].n == 1 && f.dims[d].items[0].length == t->shape[d];
        if (!is_whole)
            f.last = d;
    }
    bool has_elements = tsr_dtensor_local_numel(t, rank) > 0;
    if (ok && has_elements)
        ok = t->n_dims ? flatten_dim(&f, 0, 0) : push_run(out, 0, 1);
    for (int d = 0; d < t->n_dims; d++)
        tsr_runs_fini(&f.dims[d]);
    if (ok)
        return TSR_OK;
    tsr_runs_fini(out);
    return tsr_no_memory(NULL);
}

tsr_status tsr_dtensor_put(const struct tsr_dtensor *t, uint64_t rank, size_t bytes,
                           const void *local, void *global)
{
    struct tsr_runs runs;
    size_t at = 0;
    TSR_TRY(tsr_dtensor_runs(t, rank, &runs));
    for (size_t i = 0; i < runs.n; i++) {
        size_t n = (size_t)runs.items[i].length * bytes;
        memcpy((char *)global + (size_t)runs.items[i].start * bytes, (const char *)local + at, n);
        at += n;
    }
    tsr_runs_fini(&runs);
    return TSR_OK;
}

/* ---- holders --------------------------------------------------------------------------------- */

struct search {
    struct cut cuts[TSR_DT_MAX_MESH];
    int n_cuts;
    struct tsr_holder holder;
    tsr_holder_fn fn;
    void *user;
};

/* A stretch of the sequence that is left after `level` cuts: of extent n, from position `at`, and
 * where its first element is in the tensor. */
struct stretch {
    uint64_t n, at, length, start;
};

static tsr_status descend(struct search *s, int level, struct stretch in);

/* The parts of piece j that overlap the stretch. */
static tsr_status descend_piece(struct search *s, int level, const struct stretch *in, uint32_t j)
{
    const struct cut *cut = &s->cuts[level];
    struct tsr_chunk piece = tsr__chunk(in->n, cut->split, j);
    uint64_t from = tsr_max_u64(in->at, piece.begin) - piece.begin;
    uint64_t to = tsr_min_u64(in->at + in->length, piece.begin + piece.count) - piece.begin;
    uint64_t rows = tsr__chunk(piece.count, cut->parts, 0).rows;
    while (from < to) {
        uint32_t i = (uint32_t)(from / rows);
        struct tsr_chunk part = tsr__chunk(piece.count, cut->parts, i);
        uint64_t end = tsr_min_u64(to, part.begin + part.count);
        uint64_t before = j * tsr__chunk(piece.rows, cut->parts, i).count;
        struct stretch next = {.n = part_size(cut, in->n, i),
                               .at = before + (from - part.begin),
                               .length = end - from,
                               .start = in->start + (piece.begin + from - in->at)};
        s->holder.coord[cut->mesh] = i;
        TSR_TRY(descend(s, level + 1, next));
        from = end;
    }
    return TSR_OK;
}

static tsr_status descend(struct search *s, int level, struct stretch in)
{
    if (level == s->n_cuts) {
        s->holder.start = in.start;
        s->holder.length = in.length;
        s->holder.local_start = in.at;
        s->holder.local_size = in.n;
        return s->fn(s->user, &s->holder);
    }
    uint64_t piece = tsr__chunk(in.n, s->cuts[level].split, 0).rows;
    for (uint64_t j = in.at / piece; j * piece < in.at + in.length; j++)
        TSR_TRY(descend_piece(s, level, &in, (uint32_t)j));
    return TSR_OK;
}

tsr_status tsr_dtensor_holders(const struct tsr_dtensor *t, int dim, uint64_t start,
                               uint64_t length, tsr_holder_fn fn, void *user)
{
    struct search s = {.fn = fn, .user = user};
    if (start > t->shape[dim] || length > t->shape[dim] - start)
        return tsr_fail(TSR_EVALUE, "[%llu, +%llu) is not inside a dimension of %llu",
                        (unsigned long long)start, (unsigned long long)length,
                        (unsigned long long)t->shape[dim]);
    s.n_cuts = list_cuts(t, dim, s.cuts);
    if (length == 0)
        return TSR_OK;
    return descend(&s, 0, (struct stretch){t->shape[dim], start, length, start});
}
