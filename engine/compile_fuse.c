/* compile_fuse.c: one half of a compiled block as kernels, by the rules of Inductor (COMPILE.md).
 *
 * A pointwise result that nothing but fusible operations read is not stored: whoever reads it
 * computes it, from what it reads. It is stored where a library's kernel reads it, where it leaves
 * the half, or where several read it and it reads more than four tensors. What remains is put into
 * groups, in order: an operation joins the latest group that runs over the same elements, shares
 * data with it, and runs after everything that the operation needs. Sums over rows stand alone, or
 * join the reduction of rows that reads the same; either way a second kernel adds the partial sums.
 */
#include "compile.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_READS = 4, MAX_OPS = 512, MAX_LEAVES = 64, COLUMN_SPLITS = 32, ROWS_PER_PARTIAL = 16 };

struct group {
    uint8_t cls;
    uint64_t rows, columns, numel;
    uint32_t n_members, members[32]; /* operations, in order */
    uint32_t n_leaves, leaves[MAX_LEAVES]; /* what it reads from outside */
    bool merged;                           /* into another one */
};

struct fuse {
    struct tsr_engine *e;
    struct tsr_cplan *plan;
    struct tsr_cgraph *g;
    struct tsr_cschedule *out;
    bool backward;
    uint32_t order[MAX_OPS];
    size_t n_order;
    bool *listed;     /* by operation */
    bool *final;      /* by value: leaves this half */
    bool *ready;      /* by value: is there before this half */
    bool *stored;     /* by value */
    uint32_t *place;  /* by value: the group that makes it */
    struct group *groups;
    size_t n_groups;
};

static void too_large(struct fuse *f)
{
    TSR__RAISE(f->e, TSR_EUNSUPPORTED, "dialect compile: a block is too large to compile");
}

/* ---- which operations, in which order -------------------------------------------------------- */

static void list_op(struct fuse *f, uint32_t op)
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
    if (f->n_order == MAX_OPS)
        too_large(f);
    else
        f->order[f->n_order++] = op;
}

/* True for operations that something final depends on. */
static void mark_needed(struct fuse *f, bool *needed)
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
static void list_ops(struct fuse *f)
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

static bool is_inlined(const struct fuse *f, uint32_t v)
{
    const struct tsr_cvalue *value = &f->g->values[v];
    return value->kind == TSR_VALUE_RESULT && !f->ready[v] && !f->stored[v] &&
           f->g->ops[value->index].cls == TSR_CLASS_POINT;
}

static void add_leaf(struct fuse *f, uint32_t *leaves, uint32_t *n, uint32_t v)
{
    for (uint32_t i = 0; i < *n; i++)
        if (leaves[i] == v)
            return;
    if (*n == MAX_LEAVES)
        too_large(f);
    else
        leaves[(*n)++] = v;
}

/* Adds the stored values that an operation reads, through what it computes for itself. */
static void find_leaves(struct fuse *f, const struct tsr_cop *op, uint32_t *leaves, uint32_t *n)
{
    for (uint32_t k = 0; k < op->n_operands; k++) {
        uint32_t v = op->operands[k].value;
        if (op->operands[k].access != TSR_READ)
            continue;
        if (is_inlined(f, v))
            find_leaves(f, &f->g->ops[f->g->values[v].index], leaves, n);
        else
            add_leaf(f, leaves, n, v);
    }
}

static void find_stored(struct fuse *f)
{
    uint32_t leaves[MAX_LEAVES];
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
            f->stored[v] = op->cls != TSR_CLASS_POINT || called || f->final[v] ||
                           (users > 1 && n > MAX_READS);
        }
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static bool runs_alike(const struct group *g, const struct tsr_cop *op)
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

static bool has_leaf(const struct group *g, uint32_t v)
{
    for (uint32_t i = 0; i < g->n_leaves; i++)
        if (g->leaves[i] == v)
            return true;
    return false;
}

/* Everything that is read is there before group `at` runs, or made in it. shares: some of it is
 * read or made by the group. all: all of it is read. */
static bool is_served(const struct fuse *f, const uint32_t *leaves, uint32_t n, uint32_t at,
                      bool *shares, bool *all)
{
    *shares = false;
    *all = true;
    for (uint32_t i = 0; i < n; i++) {
        bool made_here = f->place[leaves[i]] == at;
        if (f->place[leaves[i]] != TSR_NONE && f->place[leaves[i]] > at)
            return false;
        *shares |= made_here || has_leaf(&f->groups[at], leaves[i]);
        *all &= has_leaf(&f->groups[at], leaves[i]);
    }
    return true;
}

static uint32_t find_group(struct fuse *f, const struct tsr_cop *op, const uint32_t *leaves,
                           uint32_t n)
{
    for (size_t i = f->n_groups; i-- > 0 && op->cls != TSR_CLASS_CALL;) {
        const struct group *g = &f->groups[i];
        bool shares, all;
        if (!runs_alike(g, op) || g->n_members == 32 ||
            !is_served(f, leaves, n, (uint32_t)i, &shares, &all))
            continue;
        if (op->cls == TSR_CLASS_COLUMN ? all : shares)
            return (uint32_t)i;
    }
    return TSR_NONE;
}

static void join(struct fuse *f, uint32_t at, uint32_t index, const uint32_t *leaves, uint32_t n)
{
    struct group *g = &f->groups[at];
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

static void make_groups(struct fuse *f)
{
    for (size_t i = 0; i < f->n_order && tsr__ok(f->e); i++) {
        uint32_t index = f->order[i], leaves[MAX_LEAVES], n = 0;
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
static void merge_columns(struct fuse *f)
{
    for (uint32_t i = 0; i < f->n_groups; i++) {
        struct group *a = &f->groups[i];
        for (uint32_t j = i + 1; j < f->n_groups && a->cls == TSR_CLASS_COLUMN && !a->merged; j++) {
            struct group *b = &f->groups[j];
            bool shares, all;
            if (b->cls != TSR_CLASS_ROW || b->rows != a->rows || b->columns != a->columns ||
                a->n_members + b->n_members > 32 ||
                !is_served(f, a->leaves, a->n_leaves, j, &shares, &all) || !all)
                continue;
            a->merged = true;
            for (uint32_t k = 0; k < a->n_members; k++)
                join(f, j, a->members[k], a->leaves, 0);
        }
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void add_operand(struct fuse *f, struct tsr_ckernel *k, struct tsr_coperand o)
{
    size_t cap = 0;
    for (uint32_t i = 0; i < k->n_operands; i++) {
        const struct tsr_coperand *p = &k->operands[i];
        if (p->value == o.value && p->access == o.access && p->offset == o.offset &&
            p->bytes == o.bytes && p->width == o.width && p->pitch == o.pitch)
            return;
    }
    if (k->n_operands == TSR_MAX_KERNEL_OPERANDS) {
        too_large(f);
        return;
    }
    cap = k->n_operands < 4 ? 0 : k->n_operands; /* powers of two are full */
    if (k->n_operands == 0 || (cap && (cap & (cap - 1)) == 0)) {
        size_t room = k->n_operands ? 2 * (size_t)k->n_operands : 4;
        struct tsr_coperand *more = tsr_arena_alloc(&f->e->arena, room * sizeof *more);
        if (!more) {
            TSR__RAISE(f->e, TSR_ENOMEM, "out of memory while compiling a block");
            return;
        }
        if (k->n_operands)
            memcpy(more, k->operands, k->n_operands * sizeof *more);
        k->operands = more;
    }
    k->operands[k->n_operands++] = o;
}

/* Bytes that an operand's rows hold. */
static uint64_t content(const struct tsr_coperand *o)
{
    uint64_t row = tsr_min_u64(o->width, o->pitch);
    return o->pitch ? tsr_ceil_div(o->bytes, o->pitch) * row : o->bytes;
}

static uint64_t bytes_of(const struct fuse *f, const struct tsr_ckernel *k, uint8_t access)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < k->n_operands; i++) {
        uint64_t of_value = 0;
        bool first = true;
        for (uint32_t j = 0; j < k->n_operands; j++) {
            if (k->operands[j].value != k->operands[i].value || k->operands[j].access != access)
                continue;
            first &= j >= i;
            of_value += content(&k->operands[j]);
        }
        if (first && k->operands[i].access == access)
            sum += tsr_min_u64(of_value, f->g->values[k->operands[i].value].bytes);
    }
    return sum;
}

static struct tsr_coperand whole(const struct fuse *f, uint32_t v, uint8_t access)
{
    const struct tsr_cvalue *value = &f->g->values[v];
    return (struct tsr_coperand){.value = v, .access = access, .dtype = value->dtype,
                                 .slot = access == TSR_WRITE, .bytes = value->bytes};
}

static void add_name(char *name, size_t size, const char *part)
{
    size_t n = strlen(name), m = part ? strlen(part) : 0;
    for (const char *at = name; m && (at = strstr(at, part)) != NULL; at += m)
        if ((at == name || at[-1] == '+') && (at[m] == '+' || !at[m]))
            return;
    if (m == 0 || n + m + 2 > size)
        return;
    if (n)
        name[n++] = '+';
    memcpy(name + n, part, m + 1);
}

/* What an operation reads and computes, with what it computes for itself. */
static void add_body(struct fuse *f, struct tsr_ckernel *k, const struct tsr_cop *op, char *name,
                     uint32_t at)
{
    for (uint32_t i = 0; i < op->n_operands; i++) {
        struct tsr_coperand o = op->operands[i];
        if (o.access != TSR_READ)
            continue;
        o.slot = 0;
        if (is_inlined(f, o.value))
            add_body(f, k, &f->g->ops[f->g->values[o.value].index], name, at);
        else if (f->place[o.value] != at)
            add_operand(f, k, o);
    }
    k->work.flops += op->work.flops;
    add_name(name, 120, op->work.name);
}

static bool is_read_elsewhere(const struct fuse *f, uint32_t v, uint32_t at)
{
    for (uint32_t i = 0; i < f->n_groups; i++)
        if (i != at && !f->groups[i].merged && has_leaf(&f->groups[i], v))
            return true;
    return false;
}

static struct tsr_ckernel *new_kernel(struct fuse *f, const struct tsr_ckernel *like)
{
    if (!TSR__ARENA_PUSH(f->e, f->out->kernels, f->out->n, f->out->cap, *like))
        return NULL;
    return &f->out->kernels[f->out->n - 1];
}

static void emit_call(struct fuse *f, const struct tsr_cop *op)
{
    struct tsr_ckernel *k =
        new_kernel(f, &(struct tsr_ckernel){.work = op->work,
                                            .module = op->module,
                                            .recompute = f->backward && !op->backward,
                                            .takes_lt = op->takes_lt,
                                            .is_product = op->work.op == TSR_OP_GEMM,
                                            .operands = op->operands,
                                            .n_operands = op->n_operands});
    if (k)
        k->work.compiled = TSR_COMPILED;
}

/* What the cost model takes a kernel for: a reduction of rows is a norm, unless it only looks for
 * the largest magnitudes on the way. */
static uint8_t kind_of(const struct fuse *f, const struct group *g, bool *again)
{
    bool backward = false, softmax = false, norm = false;
    *again = f->backward;
    for (uint32_t i = 0; i < g->n_members; i++) {
        const struct tsr_cop *op = &f->g->ops[g->members[i]];
        bool looks = op->work.op == TSR_OP_REDUCTION; /* amax_rows */
        norm |= op->cls == TSR_CLASS_ROW && !looks;
        backward |= op->backward && op->cls == TSR_CLASS_ROW && !looks;
        softmax |= op->work.op == TSR_OP_SOFTMAX;
        *again &= !op->backward;
    }
    if (g->cls == TSR_CLASS_POINT)
        return TSR_OP_POINTWISE;
    if (softmax)
        return TSR_OP_SOFTMAX;
    if (!norm)
        return TSR_OP_REDUCTION;
    return backward ? TSR_OP_NORM_BWD : TSR_OP_NORM;
}

/* The second kernel of sums over rows: adds up the partial sums of `n` results. */
static void emit_sums(struct fuse *f, const struct tsr_ckernel *first, uint32_t partial,
                      const uint32_t *results, uint32_t n)
{
    struct tsr_ckernel kernel = {.work = {.op = TSR_OP_REDUCTION,
                                          .dtype = TSR_F32,
                                          .compiled = TSR_COMPILED,
                                          .name = "partial_sums"},
                                 .module = first->module,
                                 .recompute = first->recompute};
    const struct tsr_cvalue *sums = &f->g->values[partial];
    uint64_t columns = first->work.dims[1];
    kernel.work.dims[0] = columns && n ? sums->bytes / (4 * columns * n) : 0;
    kernel.work.dims[1] = columns * n;
    kernel.work.flops = (double)(sums->bytes / 4);
    add_operand(f, &kernel, whole(f, partial, TSR_READ));
    for (uint32_t i = 0; i < n; i++)
        add_operand(f, &kernel, whole(f, results[i], TSR_WRITE));
    kernel.work.bytes_read = sums->bytes;
    kernel.work.bytes_written = bytes_of(f, &kernel, TSR_WRITE);
    new_kernel(f, &kernel);
}

/* Partial sums of n results of sums over rows, f32. */
static uint32_t add_partial(struct fuse *f, const struct group *g, uint32_t n)
{
    uint64_t splits = g->cls == TSR_CLASS_COLUMN ? tsr_min_u64(COLUMN_SPLITS, g->rows)
                                                 : tsr_ceil_div(g->rows, ROWS_PER_PARTIAL);
    struct tsr_cvalue value = {.kind = TSR_VALUE_RESULT,
                               .dtype = TSR_F32,
                               .index = TSR_NONE,
                               .bytes = 4 * n * splits * g->columns};
    struct tsr_cgraph *graph = f->g;
    if (!TSR__ARENA_PUSH(f->e, graph->values, graph->n_values, graph->cap_values, value))
        return TSR_NONE;
    return (uint32_t)graph->n_values - 1;
}

static void emit_group(struct fuse *f, uint32_t at)
{
    const struct group *g = &f->groups[at];
    char name[128] = "";
    struct tsr_ckernel k = {.module = f->g->ops[g->members[0]].module};
    uint32_t sums[32], n_sums = 0;
    k.work.op = kind_of(f, g, &k.recompute);
    for (uint32_t i = 0; i < g->n_members; i++)
        add_body(f, &k, &f->g->ops[g->members[i]], name, at);
    for (uint32_t i = 0; i < g->n_members; i++) {
        const struct tsr_cop *op = &f->g->ops[g->members[i]];
        for (uint32_t j = 0; j < op->n_operands; j++) {
            uint32_t v = op->operands[j].value;
            if (op->operands[j].access != TSR_WRITE || (!f->final[v] && !is_read_elsewhere(f, v, at)))
                continue;
            if (op->cls == TSR_CLASS_COLUMN && n_sums < 32)
                sums[n_sums++] = v;
            else
                add_operand(f, &k, whole(f, v, TSR_WRITE));
            if (k.work.dtype == TSR_DTYPE_NONE)
                k.work.dtype = f->g->values[v].dtype;
        }
    }
    uint32_t partial = n_sums ? add_partial(f, g, n_sums) : TSR_NONE;
    if (partial != TSR_NONE)
        add_operand(f, &k, whole(f, partial, TSR_WRITE));
    k.work.name = tsr_arena_strdup(&f->e->arena, name);
    k.work.compiled = TSR_COMPILED;
    k.work.bytes_read = bytes_of(f, &k, TSR_READ);
    k.work.bytes_written = bytes_of(f, &k, TSR_WRITE);
    const struct tsr_cop *last = &f->g->ops[g->members[g->n_members - 1]];
    k.work.dims[0] = g->cls == TSR_CLASS_POINT ? last->work.dims[0] : g->rows;
    k.work.dims[1] = g->cls == TSR_CLASS_POINT ? last->work.dims[1] : g->columns;
    new_kernel(f, &k);
    if (partial != TSR_NONE)
        emit_sums(f, &k, partial, sums, n_sums);
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

/* Memory that this half holds and may give up: results, and what the forward saved. */
static bool is_owned(const struct fuse *f, uint32_t v)
{
    uint8_t kind = f->g->values[v].kind;
    return kind == TSR_VALUE_RESULT || (kind == TSR_VALUE_INPUT && f->backward);
}

static bool is_used_after(const struct fuse *f, size_t kernel, uint32_t v)
{
    for (size_t i = kernel + 1; i < f->out->n; i++)
        for (uint32_t k = 0; k < f->out->kernels[i].n_operands; k++)
            if (f->out->kernels[i].operands[k].value == v)
                return true;
    return false;
}

/* A result of a fused kernel takes the memory of an input of its size that nobody needs later: its
 * own results of this half and what was saved, but not the block's input or result. */
static uint32_t find_over(const struct fuse *f, size_t kernel, const struct tsr_coperand *out,
                          const uint32_t *taken, uint32_t n_taken)
{
    const struct tsr_ckernel *k = &f->out->kernels[kernel];
    for (uint32_t i = 0; i < k->n_operands; i++) {
        uint32_t v = k->operands[i].value;
        const struct tsr_cvalue *value = &f->g->values[v];
        bool free = k->operands[i].access == TSR_READ && value->kind == TSR_VALUE_RESULT &&
                    v != f->g->result && !f->final[v] && k->operands[i].pitch == 0 &&
                    value->bytes == f->g->values[out->value].bytes &&
                    value->dtype == f->g->values[out->value].dtype && !is_used_after(f, kernel, v);
        for (uint32_t j = 0; j < n_taken; j++)
            free &= taken[j] != v;
        if (free)
            return v;
    }
    return TSR_NONE;
}

static void find_lifetimes(struct fuse *f, size_t kernel)
{
    struct tsr_ckernel *k = &f->out->kernels[kernel];
    k->over = tsr_arena_alloc(&f->e->arena, (k->n_operands + 1) * sizeof *k->over);
    k->dead = tsr_arena_alloc(&f->e->arena, (k->n_operands + 1) * sizeof *k->dead);
    uint32_t *taken = tsr_arena_alloc(&f->e->arena, (k->n_operands + 1) * sizeof *taken);
    uint32_t n_taken = 0;
    if (!k->over || !k->dead || !taken)
        return;
    bool fused = k->work.op != TSR_OP_GEMM && k->work.op != TSR_OP_ATTENTION &&
                 k->work.op != TSR_OP_ATTENTION_BWD;
    for (uint32_t i = 0; i < k->n_operands; i++) {
        k->over[i] = TSR_NONE;
        if (fused && k->operands[i].slot == 1 && k->operands[i].access == TSR_WRITE)
            k->over[i] = find_over(f, kernel, &k->operands[i], taken, n_taken);
        if (k->over[i] != TSR_NONE)
            taken[n_taken++] = k->over[i];
    }
    for (uint32_t i = 0; i < k->n_operands; i++) {
        uint32_t v = k->operands[i].value;
        bool dead = is_owned(f, v) && !f->final[v] && !is_used_after(f, kernel, v);
        for (uint32_t j = 0; j < n_taken; j++)
            dead &= taken[j] != v;
        for (uint32_t j = 0; j < k->n_dead; j++)
            dead &= k->dead[j] != v;
        if (dead)
            k->dead[k->n_dead++] = v;
    }
}

/* ---- a half ---------------------------------------------------------------------------------- */

static void mark_ends(struct fuse *f)
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

static bool allocate(struct fuse *f)
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
    struct fuse f = {.e = e,
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
    for (uint32_t i = 0; i < f.n_groups && tsr__ok(e); i++) {
        const struct group *g = &f.groups[i];
        if (g->merged)
            continue;
        if (g->cls == TSR_CLASS_CALL)
            emit_call(&f, &f.g->ops[g->members[0]]);
        else
            emit_group(&f, i);
    }
    for (size_t i = 0; i < f.out->n && tsr__ok(e); i++)
        find_lifetimes(&f, i);
    if (f.out->n)
        f.out->kernels[0].work.compiled = TSR_COMPILED_FIRST;
    free(f.groups);
}
