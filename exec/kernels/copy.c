/* copy.c: copies, casts and tensors one behind the other. */
#include "call.h"
#include "grid_copy.h"
#include "table.h"

/* Whole runs of bytes at once. The two may be the same place. */
static void move_bytes(const struct tsr_elems *from, uint64_t from_at, const struct tsr_elems *to,
                       uint64_t to_at, uint64_t n)
{
    while (n > 0) {
        uint64_t run = tsr_elems_run(from, from_at, tsr_elems_run(to, to_at, n));
        memmove(to->data + tsr_elems_place(to, to_at) * to->item,
                from->data + tsr_elems_place(from, from_at) * from->item, run * to->item);
        from_at += run;
        to_at += run;
        n -= run;
    }
}

/* Elements of one dtype are moved as they are, integers too. */
static void move(const struct tsr_elems *from, const struct tsr_elems *to, uint64_t to_at)
{
    if (from->dtype == to->dtype)
        move_bytes(from, 0, to, to_at, from->n);
    else if (from->dtype == TSR_F64 || to->dtype == TSR_F64 || from->dtype == TSR_I64 ||
             to->dtype == TSR_I64)
        tsr_move_f64(from, 0, to, to_at, from->n);
    else
        tsr_move_f32(from, 0, to, to_at, from->n);
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
    move(&from, &to, 0);
    return TSR_OK;
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
    if (tsr__is_wide(call))
        tsr_grid_elementwise_f64(&e, 0, 1);
    else
        tsr_grid_elementwise_f32(&e, 0, 1);
    return TSR_OK;
}

tsr_status tsr__copy_bytes(const struct tsr_kernel_call *call)
{
    struct tsr_elems from, to;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_BYTES, TSR_ANY_NUMBER, &from));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_BYTES, TSR_ANY_NUMBER, &to));
    move_bytes(&from, 0, &to, 0, tsr_min_u64(from.n, to.n));
    return TSR_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The sources one behind the other; first counted, then moved. */
static tsr_status join(const struct tsr_kernel_call *call, enum tsr_operand_kind kind)
{
    struct tsr_elems to, from;
    TSR_TRY(tsr__out(call, 1, kind, TSR_ANY_NUMBER, &to));
    for (int run_it = 0; run_it < 2; run_it++) {
        uint64_t at = 0;
        uint32_t next = 0;
        const struct tsr_view *view;
        while ((view = tsr__next(call, 0, &next))) {
            if (!(view->access & TSR_READ))
                return tsr__defect(call, "slot 0: is read, but not declared so");
            TSR_TRY(tsr__elems(call, view, kind, &from));
            if (from.n > to.n - at)
                return tsr__defect(call, "slot 1: %llu elements are too few for slot 0",
                                   (unsigned long long)to.n);
            if (run_it)
                move(&from, &to, at);
            at += from.n;
        }
        if (at != to.n)
            return tsr__defect(call, "slot 1: %llu elements instead of %llu",
                               (unsigned long long)to.n, (unsigned long long)at);
    }
    return TSR_OK;
}

tsr_status tsr__join(const struct tsr_kernel_call *call)
{
    return join(call, TSR_OPERAND_FLOAT);
}

tsr_status tsr__join_bytes(const struct tsr_kernel_call *call)
{
    return join(call, TSR_OPERAND_BYTES);
}

/* Integers of 32 bits, the low byte first. */
tsr_status tsr__used_map(const struct tsr_kernel_call *call)
{
    struct tsr_elems out;
    TSR_TRY(tsr__out(call, 0, TSR_OPERAND_BYTES, (uint64_t)call->work->n_args * 4, &out));
    for (uint64_t i = 0; i < out.n; i++)
        out.data[tsr_elems_place(&out, i)] = i % 4 == 0 && call->work->args[i / 4] != 0;
    return TSR_OK;
}
