/* copy.c: copies, casts and tensors one behind the other. */
#include "exec/kernels/call/table.h"
#include "exec/kernels/elements/list.h"
#include "exec/kernels/grid/grid_copy.h"

/* All of `from` to the beginning of `to`. */
static tsr_status copy(const struct tsr_kernel_call *call, const struct tsr_elems *from,
                       const struct tsr_elems *to)
{
    struct tsr_lists l;
    tsr__list_begin(&l, call, TSR_LIST_CAST);
    TSR_TRY(tsr__list_add(&l, from, to, 0));
    return tsr__list_end(&l);
}

/* Operands without a dtype are bytes. */
static enum tsr_operand_kind kind_of(const struct tsr_kernel_call *call, unsigned slot)
{
    const struct tsr_view *view = tsr_slot(call, slot);
    return view && view->dtype == TSR_DTYPE_NONE ? TSR_OPERAND_BYTES : TSR_OPERAND_ANY;
}

/* `clone` and `cast` are functions of elements too, whose argument may be repeated. */
static bool repeats(const struct tsr_kernel_call *call, const struct tsr_elems *to)
{
    const char *name = call->work->name;
    const struct tsr_view *view = tsr_slot(call, 0);
    struct tsr_elems from;
    if (strcmp(name, "clone") != 0 && strcmp(name, "cast") != 0)
        return false;
    return view && tsr__elems(call, view, TSR_OPERAND_ANY, &from) == TSR_OK && from.n != to->n;
}

tsr_status tsr__cast(const struct tsr_kernel_call *call)
{
    struct tsr_elems from, to;
    TSR_TRY(tsr__out(call, 1, kind_of(call, 1), TSR_ANY_NUMBER, &to));
    if (kind_of(call, 0) != kind_of(call, 1))
        return tsr__defect(call, "slot 0: only one of the operands has a dtype");
    if (repeats(call, &to))
        return tsr__elementwise(call);
    TSR_TRY(tsr__in(call, 0, kind_of(call, 0), to.n, &from));
    return copy(call, &from, &to);
}

tsr_status tsr__grad_to_bucket(const struct tsr_kernel_call *call)
{
    struct tsr_elementwise e = {.op = TSR_EW_CONSTANT};
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &e.out));
    if (tsr_slot(call, 0)) {
        e.op = TSR_EW_MUL_BY;
        e.n_in = 1;
        e.c = call->work->constants[0];
        TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, e.out.n, &e.in[0]));
    }
    return tsr__run_elementwise(call, &e, tsr__is_wide(call));
}

tsr_status tsr__copy_bytes(const struct tsr_kernel_call *call)
{
    struct tsr_elems from, to;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_BYTES, TSR_ANY_NUMBER, &from));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_BYTES, TSR_ANY_NUMBER, &to));
    from.n = to.n = tsr_min_u64(from.n, to.n);
    return copy(call, &from, &to);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Collects the sources one behind the other; l NULL: only checks them. */
static tsr_status sources(const struct tsr_kernel_call *call, enum tsr_operand_kind kind,
                          const struct tsr_elems *to, struct tsr_lists *l)
{
    uint64_t at = 0;
    uint32_t next = 0;
    const struct tsr_view *view;
    while ((view = tsr__next(call, 0, &next))) {
        struct tsr_elems from;
        if (!(view->access & TSR_READ))
            return tsr__defect(call, "slot 0: is read, but not declared so");
        TSR_TRY(tsr__elems(call, view, kind, &from));
        if (from.n > to->n - at)
            return tsr__defect(call, "slot 1: %llu elements are too few for slot 0",
                               (unsigned long long)to->n);
        if (l)
            TSR_TRY(tsr__list_add(l, &from, to, at));
        at += from.n;
    }
    if (at != to->n)
        return tsr__defect(call, "slot 1: %llu elements instead of %llu", (unsigned long long)to->n,
                           (unsigned long long)at);
    return TSR_OK;
}

static tsr_status join(const struct tsr_kernel_call *call, enum tsr_operand_kind kind)
{
    struct tsr_elems to;
    struct tsr_lists l;
    TSR_TRY(tsr__out(call, 1, kind, TSR_ANY_NUMBER, &to));
    TSR_TRY(sources(call, kind, &to, NULL));
    tsr__list_begin(&l, call, TSR_LIST_CAST);
    TSR_TRY(sources(call, kind, &to, &l));
    return tsr__list_end(&l);
}

tsr_status tsr__join(const struct tsr_kernel_call *call)
{
    return join(call, TSR_OPERAND_FLOAT);
}

tsr_status tsr__join_bytes(const struct tsr_kernel_call *call)
{
    return join(call, TSR_OPERAND_BYTES);
}

TSR_CODE_OF_ONE(used_map, tsr_grid_used_map, struct tsr_used_map);

tsr_status tsr__used_map(const struct tsr_kernel_call *call)
{
    uint32_t n = call->work->n_args;
    struct tsr_elems out;
    TSR_TRY(tsr__out(call, 0, TSR_OPERAND_BYTES, (uint64_t)n * 4, &out));
    for (uint32_t first = 0; first < n; first += TSR_USED_WORDS * 64) {
        struct tsr_used_map k = {.out = out, .first = 4 * (uint64_t)first};
        uint32_t here = (uint32_t)tsr_min_u64(n - first, TSR_USED_WORDS * 64);
        k.n = 4 * (uint64_t)here;
        for (uint32_t i = 0; i < here; i++)
            k.used[i / 64] |= (uint64_t)(call->work->args[first + i] != 0) << i % 64;
        TSR_TRY(tsr__run(call, &code_used_map, &k, k.n));
    }
    return TSR_OK;
}
