/* compile_kernels.c: the groups of compile_fuse.c as kernels: what each reads and writes, how much
 * it computes, which input's memory a result takes, and when memory is given back.
 *
 * A group with sums over rows has a second kernel. The first leaves partial sums: one for every 16
 * rows where it reduces rows as well, else 32 (as Inductor's kernels do on shapes of this kind).
 */
#include "engine/compile/compile.h"

#include <string.h>

enum { COLUMN_SPLITS = 32, ROWS_PER_PARTIAL = 16 };

/* ---- kernels --------------------------------------------------------------------------------- */

static void add_operand(struct tsr_fuse *f, struct tsr_ckernel *k, struct tsr_coperand o)
{
    size_t cap = 0;
    for (uint32_t i = 0; i < k->n_operands; i++) {
        const struct tsr_coperand *p = &k->operands[i];
        if (p->value == o.value && p->access == o.access && p->offset == o.offset &&
            p->bytes == o.bytes && p->width == o.width && p->pitch == o.pitch)
            return;
    }
    if (k->n_operands == TSR_MAX_KERNEL_OPERANDS) {
        tsr__fuse_too_large(f);
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

static uint64_t bytes_of(const struct tsr_fuse *f, const struct tsr_ckernel *k, uint8_t access)
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

static struct tsr_coperand whole(const struct tsr_fuse *f, uint32_t v, uint8_t access)
{
    const struct tsr_cvalue *value = &f->g->values[v];
    return (struct tsr_coperand){.value = v,
                                 .access = access,
                                 .dtype = value->dtype,
                                 .slot = access == TSR_WRITE,
                                 .bytes = value->bytes};
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
static void add_body(struct tsr_fuse *f, struct tsr_ckernel *k, const struct tsr_cop *op,
                     char *name, uint32_t at)
{
    for (uint32_t i = 0; i < op->n_operands; i++) {
        struct tsr_coperand o = op->operands[i];
        if (o.access != TSR_READ)
            continue;
        o.slot = 0;
        if (tsr__fuse_is_inlined(f, o.value))
            add_body(f, k, &f->g->ops[f->g->values[o.value].index], name, at);
        else if (f->place[o.value] != at)
            add_operand(f, k, o);
    }
    k->work.flops += op->work.flops;
    add_name(name, 120, op->work.name);
}

static bool is_read_elsewhere(const struct tsr_fuse *f, uint32_t v, uint32_t at)
{
    for (uint32_t i = 0; i < f->n_groups; i++)
        if (i != at && !f->groups[i].merged && tsr__fuse_has_leaf(&f->groups[i], v))
            return true;
    return false;
}

static struct tsr_ckernel *new_kernel(struct tsr_fuse *f, const struct tsr_ckernel *like)
{
    if (!TSR__ARENA_PUSH(f->e, f->out->kernels, f->out->n, f->out->cap, *like))
        return NULL;
    return &f->out->kernels[f->out->n - 1];
}

static void emit_call(struct tsr_fuse *f, const struct tsr_cop *op)
{
    struct tsr_ckernel *k =
        new_kernel(f, &(struct tsr_ckernel){.work = op->work,
                                            .module = op->module,
                                            .recompute = f->backward && !op->backward,
                                            .takes_lt = op->takes_lt,
                                            .is_product = op->work.op == TSR_OP_GEMM,
                                            .collective = op->collective,
                                            .reduce_op = op->reduce_op,
                                            .group = TSR_NONE,
                                            .operands = op->operands,
                                            .n_operands = op->n_operands});
    if (k)
        k->work.compiled = TSR_COMPILED;
}

/* What the cost model takes a kernel for: a reduction of rows is a norm, unless it only looks for
 * the largest magnitudes on the way. */
static uint8_t kind_of(const struct tsr_fuse *f, const struct tsr_fuse_group *g, bool *again)
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
static void emit_sums(struct tsr_fuse *f, const struct tsr_ckernel *first, uint32_t partial,
                      const uint32_t *results, uint32_t n)
{
    struct tsr_ckernel kernel = {.work = {.op = TSR_OP_REDUCTION,
                                          .dtype = TSR_F32,
                                          .compiled = TSR_COMPILED,
                                          .name = "partial_sums"},
                                 .module = first->module,
                                 .group = TSR_NONE,
                                 .recompute = first->recompute};
    const struct tsr_cvalue *sums = &f->g->values[partial];
    uint64_t columns = first->work.dims[1];
    kernel.work.dims[0] = columns && n ? sums->bytes / (4 * columns * n) : 0;
    kernel.work.dims[1] = columns * n;
    kernel.work.flops = (double)sums->bytes / 4;
    add_operand(f, &kernel, whole(f, partial, TSR_READ));
    for (uint32_t i = 0; i < n; i++)
        add_operand(f, &kernel, whole(f, results[i], TSR_WRITE));
    kernel.work.bytes_read = sums->bytes;
    kernel.work.bytes_written = bytes_of(f, &kernel, TSR_WRITE);
    new_kernel(f, &kernel);
}

/* Partial sums of n results of sums over rows, f32. */
static uint32_t add_partial(struct tsr_fuse *f, const struct tsr_fuse_group *g, uint32_t n)
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

static void emit_group(struct tsr_fuse *f, uint32_t at)
{
    const struct tsr_fuse_group *g = &f->groups[at];
    char name[128] = "";
    struct tsr_ckernel k = {.module = f->g->ops[g->members[0]].module, .group = at};
    uint32_t sums[TSR_FUSE_MEMBERS], n_sums = 0;
    k.work.op = kind_of(f, g, &k.recompute);
    for (uint32_t i = 0; i < g->n_members; i++)
        add_body(f, &k, &f->g->ops[g->members[i]], name, at);
    for (uint32_t i = 0; i < g->n_members; i++) {
        const struct tsr_cop *op = &f->g->ops[g->members[i]];
        for (uint32_t j = 0; j < op->n_operands; j++) {
            uint32_t v = op->operands[j].value;
            if (op->operands[j].access != TSR_WRITE ||
                (!f->final[v] && !is_read_elsewhere(f, v, at)))
                continue;
            if (op->cls == TSR_CLASS_COLUMN && n_sums < TSR_FUSE_MEMBERS)
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
static bool is_owned(const struct tsr_fuse *f, uint32_t v)
{
    uint8_t kind = f->g->values[v].kind;
    return kind == TSR_VALUE_RESULT || (kind == TSR_VALUE_INPUT && f->backward);
}

static bool is_used_after(const struct tsr_fuse *f, size_t kernel, uint32_t v)
{
    for (size_t i = kernel + 1; i < f->out->n; i++)
        for (uint32_t k = 0; k < f->out->kernels[i].n_operands; k++)
            if (f->out->kernels[i].operands[k].value == v)
                return true;
    return false;
}

static bool reads_result(struct tsr_fuse *f, uint32_t op, uint32_t of)
{
    const struct tsr_cop *o = &f->g->ops[of];
    for (uint32_t k = 0; k < o->n_operands; k++)
        if (o->operands[k].access == TSR_WRITE && tsr__fuse_reads(f, op, o->operands[k].value))
            return true;
    return false;
}

/* Whether operation `op` needs what operation `from` of the same group makes, directly or not. */
static bool depends(struct tsr_fuse *f, const struct tsr_fuse_group *g, uint32_t op, uint32_t from)
{
    for (uint32_t i = 0; i < g->n_members; i++) {
        uint32_t member = g->members[i];
        if (member != op && reads_result(f, op, member) &&
            (member == from || depends(f, g, member, from)))
            return true;
    }
    return false;
}

/* Whether the operation that makes `out` is the last of its kernel to read `v`: the others are
 * those whose results it needs (PyTorch's decide_inplace_update, torch/_inductor/scheduler.py).
 * Sums over rows do not count: they read a row when the kernel has it, before its result is
 * written. */
static bool reads_last(struct tsr_fuse *f, uint32_t group, uint32_t out, uint32_t v)
{
    const struct tsr_fuse_group *g = &f->groups[group];
    uint32_t op = f->g->values[out].index;
    bool reads = op != TSR_NONE && tsr__fuse_reads(f, op, v);
    for (uint32_t i = 0; i < g->n_members && op != TSR_NONE; i++) {
        uint32_t member = g->members[i];
        uint8_t cls = f->g->ops[member].cls;
        if (member == op || cls == TSR_CLASS_COLUMN || !tsr__fuse_reads(f, member, v))
            continue;
        if (!depends(f, g, op, member))
            return false;
        reads |= cls == TSR_CLASS_ROW; /* the rows that it makes are computed where they are used */
    }
    return reads;
}

/* A result of a fused kernel takes the memory of an input of its size that nobody needs later: its
 * own results of this half and what was saved, but not the block's input or result. */
static uint32_t find_over(struct tsr_fuse *f, size_t kernel, const struct tsr_coperand *out,
                          const uint32_t *taken, uint32_t n_taken)
{
    const struct tsr_ckernel *k = &f->out->kernels[kernel];
    for (uint32_t i = 0; i < k->n_operands; i++) {
        uint32_t v = k->operands[i].value;
        const struct tsr_cvalue *value = &f->g->values[v];
        bool free = k->operands[i].access == TSR_READ && value->kind == TSR_VALUE_RESULT &&
                    v != f->g->result && !f->final[v] && k->operands[i].pitch == 0 &&
                    value->bytes == f->g->values[out->value].bytes &&
                    value->dtype == f->g->values[out->value].dtype &&
                    !is_used_after(f, kernel, v) && reads_last(f, k->group, out->value, v);
        for (uint32_t j = 0; j < n_taken; j++)
            free &= taken[j] != v;
        if (free)
            return v;
    }
    return TSR_NONE;
}

/* Memory of this half that nothing needs after the kernel. */
static bool is_spent(const struct tsr_fuse *f, size_t kernel, uint32_t v)
{
    return is_owned(f, v) && !f->final[v] && !is_used_after(f, kernel, v);
}

static void find_lifetimes(struct tsr_fuse *f, size_t kernel)
{
    struct tsr_ckernel *k = &f->out->kernels[kernel];
    k->over = tsr_arena_alloc(&f->e->arena, (k->n_operands + 1) * sizeof *k->over);
    k->dead = tsr_arena_alloc(&f->e->arena, (k->n_operands + 1) * sizeof *k->dead);
    uint32_t *taken = tsr_arena_alloc(&f->e->arena, (k->n_operands + 1) * sizeof *taken);
    uint32_t n_taken = 0;
    if (!k->over || !k->dead || !taken)
        return;
    bool fused = k->group != TSR_NONE;
    for (uint32_t i = 0; i < k->n_operands; i++) {
        k->over[i] = TSR_NONE;
        if (k->collective == TSR_ALL_REDUCE && k->operands[i].access == TSR_WRITE &&
            is_spent(f, kernel, k->operands[0].value))
            k->over[i] = k->operands[0].value;
        if (fused && k->operands[i].slot == 1 && k->operands[i].access == TSR_WRITE)
            k->over[i] = find_over(f, kernel, &k->operands[i], taken, n_taken);
        if (k->over[i] != TSR_NONE)
            taken[n_taken++] = k->over[i];
    }
    for (uint32_t i = 0; i < k->n_operands; i++) {
        uint32_t v = k->operands[i].value;
        bool dead = is_spent(f, kernel, v);
        for (uint32_t j = 0; j < n_taken; j++)
            dead &= taken[j] != v;
        for (uint32_t j = 0; j < k->n_dead; j++)
            dead &= k->dead[j] != v;
        if (dead)
            k->dead[k->n_dead++] = v;
    }
}

void tsr__fuse_kernels(struct tsr_fuse *f)
{
    for (uint32_t i = 0; i < f->n_groups && tsr__ok(f->e); i++) {
        const struct tsr_fuse_group *g = &f->groups[i];
        if (g->merged)
            continue;
        if (g->cls == TSR_CLASS_CALL)
            emit_call(f, &f->g->ops[g->members[0]]);
        else
            emit_group(f, i);
    }
    for (size_t i = 0; i < f->out->n && tsr__ok(f->e); i++)
        find_lifetimes(f, i);
    size_t first = 0;
    while (first < f->out->n && f->out->kernels[first].collective)
        first++;
    if (first < f->out->n)
        f->out->kernels[first].work.compiled = TSR_COMPILED_FIRST;
}
