/* compile_fuse.c: one half of a compiled block as kernels, by the rules of Inductor (COMPILE.md).
 *
 * A pointwise result that nothing but fusible operations read is not stored: whoever reads it
 * computes it, from what it reads. It is stored where a library's kernel reads it, where it leaves
 * the half, or where several read it and it reads more than four tensors. What remains is put into
 * groups, in order: an operation joins the latest group that runs over the same elements, shares
 * data with it, and runs after everything that the operation needs. Sums over rows stand alone, or
 * join the reduction of many rows that reads the same; either way a second kernel adds the partial
 * sums.
 */
#include "engine/compile/compile.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_READS = 4 }; /* what several readers compute for themselves reads at most */
enum { MIN_MIXED = 5 << 20, MIN_MIXED_ROWS = 4096, MAX_MIXED_COLUMNS = 16 << 10 };

void tsr__fuse_too_large(struct tsr_fuse *f)
{
    TSR__RAISE(f->e, TSR_EUNSUPPORTED, "dialect compile: a block is too large to compile");
}

/* ---- which operations, in which order -------------------------------------------------------- */

static void list_op(struct tsr_fuse *f, uint32_t op)
{
    const struct tsr_cop *o = &f->g->ops[op];
    if (f->listed[op] || !tsr__ok(f->e))
        return;
    f->listed[op] = true;
    for (uint32_t k = 0; k < o->n_operands; k++) {
        const struct tsr_cvalue *v = &f->g->values[o->operands[k].value];
        if (o->operands[k].access == TSR_READ && v->kind == TSR_VALUE_RESULT &&
            !f->ready[o->operands[k].value])
            list_op(f, v->index);
    }
    if (f->n_order == TSR_FUSE_OPS)
        tsr__fuse_too_large(f);
    else
        f->order[f->n_order++] = op;
}

/* True for operations that something final depends on. */
static void mark_needed(struct tsr_fuse *f, bool *needed)
{
    for (size_t i = f->g->n_ops; i-- > 0;) {
        const struct tsr_cop *op = &f->g->ops[i];
        for (uint32_t k = 0; k < op->n_operands; k++)
            if (op->operands[k].access == TSR_WRITE && f->final[op->operands[k].value])
                needed[i] = true;
        for (uint32_t k = 0; needed[i] && k < op->n_operands; k++) {
            const struct tsr_cvalue *v = &f->g->values[op->operands[k].value];
            if (op->operands[k].access == TSR_READ && v->kind == TSR_VALUE_RESULT &&
                !f->ready[op->operands[k].value])
                needed[v->index] = true;
        }
    }
}

/* The traced order; the backward computes again what it needs just before it needs it. */
static void list_ops(struct tsr_fuse *f)
{
    bool *needed = tsr_arena_alloc(&f->e->arena, f->g->n_ops + 1);
    size_t first = f->backward ? f->g->n_forward : 0;
    size_t end = f->backward ? f->g->n_ops : f->g->n_forward;
    if (!needed)
        return;
    mark_needed(f, needed);
    for (size_t i = first; i < end; i++)
        if (needed[i])
            list_op(f, (uint32_t)i);
}

/* ---- what is stored -------------------------------------------------------------------------- */

bool tsr__fuse_is_inlined(const struct tsr_fuse *f, uint32_t v)
{
    const struct tsr_cvalue *value = &f->g->values[v];
    return value->kind == TSR_VALUE_RESULT && !f->ready[v] && !f->stored[v] &&
           f->g->ops[value->index].cls == TSR_CLASS_POINT;
}

static void add_leaf(struct tsr_fuse *f, uint32_t *leaves, uint32_t *n, uint32_t v)
{
    for (uint32_t i = 0; i < *n; i++)
        if (leaves[i] == v)
            return;
    if (*n == TSR_FUSE_LEAVES)
        tsr__fuse_too_large(f);
    else
        leaves[(*n)++] = v;
}

/* Adds the stored values that an operation reads, through what it computes for itself. */
static void find_leaves(struct tsr_fuse *f, const struct tsr_cop *op, uint32_t *leaves, uint32_t *n)
{
    for (uint32_t k = 0; k < op->n_operands; k++) {
        uint32_t v = op->operands[k].value;
        if (op->operands[k].access != TSR_READ)
            continue;
        if (tsr__fuse_is_inlined(f, v))
            find_leaves(f, &f->g->ops[f->g->values[v].index], leaves, n);
        else
            add_leaf(f, leaves, n, v);
    }
}

bool tsr__fuse_reads(struct tsr_fuse *f, uint32_t op, uint32_t value)
{
    uint32_t leaves[TSR_FUSE_LEAVES], n = 0;
    find_leaves(f, &f->g->ops[op], leaves, &n);
    for (uint32_t i = 0; i < n; i++)
        if (leaves[i] == value)
            return true;
    return false;
}

static void find_stored(struct tsr_fuse *f)
{
    uint32_t leaves[TSR_FUSE_LEAVES];
    for (size_t i = 0; i < f->n_order && tsr__ok(f->e); i++) {
        const struct tsr_cop *op = &f->g->ops[f->order[i]];
        for (uint32_t k = 0; k < op->n_operands; k++) {
            uint32_t v = op->operands[k].value, users = 0, n = 0;
            bool called = false;
            if (op->operands[k].access != TSR_WRITE)
                continue;
            for (size_t j = i + 1; j < f->n_order; j++) {
                const struct tsr_cop *user = &f->g->ops[f->order[j]];
                bool reads = tsr__reads(user, v);
                users += reads;
                called |= reads && user->cls == TSR_CLASS_CALL;
            }
            find_leaves(f, op, leaves, &n);
            f->stored[v] =
                op->cls != TSR_CLASS_POINT || called || f->final[v] || (users > 1 && n > MAX_READS);
        }
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static bool runs_alike(const struct tsr_fuse_group *g, const struct tsr_cop *op)
{
    uint64_t all = g->rows * g->columns;
    switch (op->cls) {
    case TSR_CLASS_POINT:
        if (g->cls == TSR_CLASS_POINT)
            return op->numel == g->numel;
        return g->cls == TSR_CLASS_ROW && (op->numel == all || op->numel == g->rows);
    case TSR_CLASS_ROW:
        if (g->cls == TSR_CLASS_POINT)
            return op->rows * op->columns == g->numel;
        return g->cls == TSR_CLASS_ROW && op->rows == g->rows && op->columns == g->columns;
    case TSR_CLASS_COLUMN:
        return (g->cls == TSR_CLASS_ROW || g->cls == TSR_CLASS_COLUMN) && op->rows == g->rows &&
               op->columns == g->columns;
    default:
        return false;
    }
}

bool tsr__fuse_has_leaf(const struct tsr_fuse_group *g, uint32_t v)
{
    for (uint32_t i = 0; i < g->n_leaves; i++)
        if (g->leaves[i] == v)
            return true;
    return false;
}

/* Everything that is read is there before group `at` runs, or made in it. shares: some of it is
 * read or made by the group. all: all of it is read. */
static bool is_served(const struct tsr_fuse *f, const uint32_t *leaves, uint32_t n, uint32_t at,
                      bool *shares, bool *all)
{
    *shares = false;
    *all = true;
    for (uint32_t i = 0; i < n; i++) {
        bool made_here = f->place[leaves[i]] == at;
        if (f->place[leaves[i]] != TSR_NONE && f->place[leaves[i]] > at)
            return false;
        *shares |= made_here || tsr__fuse_has_leaf(&f->groups[at], leaves[i]);
        *all &= tsr__fuse_has_leaf(&f->groups[at], leaves[i]);
    }
    return true;
}

/* Whether sums over rows run beside the reduction of the rows: not where a cache holds the rows,
 * and only with many rows to split (MixOrderReduction.can_fuse, torch/_inductor/scheduler.py). */
static bool takes_columns(const struct tsr_fuse_group *g)
{
    return g->cls == TSR_CLASS_COLUMN ||
           (g->rows * g->columns >= MIN_MIXED && g->rows >= MIN_MIXED_ROWS &&
            g->rows >= 2 * g->columns && g->columns <= MAX_MIXED_COLUMNS);
}

static uint32_t find_group(struct tsr_fuse *f, const struct tsr_cop *op, const uint32_t *leaves,
                           uint32_t n)
{
    for (size_t i = f->n_groups; i-- > 0 && op->cls != TSR_CLASS_CALL;) {
        const struct tsr_fuse_group *g = &f->groups[i];
        bool shares, all;
        if (!runs_alike(g, op) || g->n_members == TSR_FUSE_MEMBERS ||
            !is_served(f, leaves, n, (uint32_t)i, &shares, &all))
            continue;
        if (op->cls == TSR_CLASS_COLUMN ? all && takes_columns(g) : shares)
            return (uint32_t)i;
    }
    return TSR_NONE;
}

static void join(struct tsr_fuse *f, uint32_t at, uint32_t index, const uint32_t *leaves,
                 uint32_t n)
{
    struct tsr_fuse_group *g = &f->groups[at];
    const struct tsr_cop *op = &f->g->ops[index];
    if (g->n_members == 0 || (op->cls == TSR_CLASS_ROW && g->cls == TSR_CLASS_POINT)) {
        g->cls = op->cls;
        g->rows = op->rows;
        g->columns = op->columns;
        g->numel = op->numel;
    }
    g->members[g->n_members++] = index;
    for (uint32_t i = 0; i < n; i++)
        if (f->place[leaves[i]] != at)
            add_leaf(f, g->leaves, &g->n_leaves, leaves[i]);
    for (uint32_t k = 0; k < op->n_operands; k++)
        if (op->operands[k].access == TSR_WRITE)
            f->place[op->operands[k].value] = at;
}

static void make_groups(struct tsr_fuse *f)
{
    for (size_t i = 0; i < f->n_order && tsr__ok(f->e); i++) {
        uint32_t index = f->order[i], leaves[TSR_FUSE_LEAVES], n = 0;
        const struct tsr_cop *op = &f->g->ops[index];
        bool stored = op->cls != TSR_CLASS_POINT;
        for (uint32_t k = 0; k < op->n_operands; k++)
            stored |= op->operands[k].access == TSR_WRITE && f->stored[op->operands[k].value];
        if (!stored)
            continue;
        find_leaves(f, op, leaves, &n);
        uint32_t at = find_group(f, op, leaves, n);
        if (at == TSR_NONE)
            at = (uint32_t)f->n_groups++;
        join(f, at, index, leaves, n);
    }
}

/* A sum over rows that came first joins the later reduction that reads the same. */
static void merge_columns(struct tsr_fuse *f)
{
    for (uint32_t i = 0; i < f->n_groups; i++) {
        struct tsr_fuse_group *a = &f->groups[i];
        for (uint32_t j = i + 1; j < f->n_groups && a->cls == TSR_CLASS_COLUMN && !a->merged; j++) {
            struct tsr_fuse_group *b = &f->groups[j];
            bool shares, all;
            if (b->cls != TSR_CLASS_ROW || b->rows != a->rows || b->columns != a->columns ||
                a->n_members + b->n_members > TSR_FUSE_MEMBERS ||
                !is_served(f, a->leaves, a->n_leaves, j, &shares, &all) || !all)
                continue;
            a->merged = true;
            for (uint32_t k = 0; k < a->n_members; k++)
                join(f, j, a->members[k], a->leaves, 0);
        }
    }
}

/* ---- a half ---------------------------------------------------------------------------------- */

static void mark_ends(struct tsr_fuse *f)
{
    const struct tsr_cplan *plan = f->plan;
    for (size_t i = 0; i < plan->n_saved; i++)
        (f->backward ? f->ready : f->final)[plan->saved[i]] = true;
    if (!f->backward) {
        f->final[f->g->result] = true;
        return;
    }
    if (f->g->input_grad != TSR_NONE)
        f->final[f->g->input_grad] = true;
    for (size_t i = 0; i < f->g->n_params; i++)
        if (f->g->param_grads[i] != TSR_NONE)
            f->final[f->g->param_grads[i]] = true;
}

static bool allocate(struct tsr_fuse *f)
{
    struct tsr_arena *arena = &f->e->arena;
    /* room for the partial sums that groups add */
    size_t n = 2 * f->g->n_values + 1, ops = f->g->n_ops + 1;
    f->listed = tsr_arena_alloc(arena, ops);
    f->final = tsr_arena_alloc(arena, n);
    f->ready = tsr_arena_alloc(arena, n);
    f->stored = tsr_arena_alloc(arena, n);
    f->place = tsr_arena_alloc(arena, n * sizeof *f->place);
    f->groups = calloc(ops, sizeof *f->groups);
    if (!f->listed || !f->final || !f->ready || !f->stored || !f->place || !f->groups) {
        TSR__RAISE(f->e, TSR_ENOMEM, "out of memory while compiling a block");
        return false;
    }
    memset(f->place, 0xff, n * sizeof *f->place);
    return true;
}

void tsr__fuse(struct tsr_engine *e, struct tsr_cplan *plan, bool backward)
{
    struct tsr_fuse f = {.e = e,
                         .plan = plan,
                         .g = &plan->graph,
                         .backward = backward,
                         .out = backward ? &plan->backward : &plan->forward};
    if (!tsr__ok(e) || !allocate(&f))
        return;
    mark_ends(&f);
    list_ops(&f);
    find_stored(&f);
    make_groups(&f);
    merge_columns(&f);
    tsr__fuse_kernels(&f);
    free(f.groups);
}
