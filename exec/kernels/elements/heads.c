/* heads.c: tensors of heads that are repeated, summed, padded, cut and joined. All are seen as rows
 * of D elements, one for each head of each token.
 */
#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/grid/grid_copy.h"

TSR_CODE(place, tsr_grid_place, struct tsr_placing);
TSR_CODE(head_sums, tsr_grid_head_sums, struct tsr_head_sums);

static tsr_status place(const struct tsr_kernel_call *call, const struct tsr_placing *p)
{
    return tsr__run(call, &code_place, p, p->rows * tsr_placing_blocks(p) * TSR_BLOCK);
}

/* x (slot 0) in rows of `from_row`, out (slot 1) in as many times `times` rows of `to_row`. */
static tsr_status take_rows(const struct tsr_kernel_call *call, struct tsr_placing *p)
{
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &p->from));
    if (p->from_row == 0 || p->to_row == 0 || p->times == 0 || p->from.n % p->from_row != 0)
        return tsr__defect(call, "slot 0: %llu elements are no rows of %llu",
                           (unsigned long long)p->from.n, (unsigned long long)p->from_row);
    uint64_t rows = p->from.n / p->from_row;
    p->rows = tsr__product3(rows, p->times, 1);
    p->zeros = true;
    return tsr__out(call, 1, TSR_OPERAND_FLOAT, tsr__product3(rows, p->times, p->to_row), &p->to);
}

tsr_status tsr__expand_heads(const struct tsr_kernel_call *call)
{
    uint64_t d = tsr__arg(call, 1);
    struct tsr_placing p = {.from_row = d, .to_row = d, .keep = d, .times = tsr__arg(call, 0)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(take_rows(call, &p));
    return place(call, &p);
}

/* `pad`, `pad_backward`, `slice_backward`. */
tsr_status tsr__place_heads(const struct tsr_kernel_call *call)
{
    struct tsr_placing p = {.from_row = tsr__arg(call, 0),
                            .to_row = tsr__arg(call, 1),
                            .offset = tsr__arg(call, 2),
                            .times = 1};
    TSR_TRY(tsr__need_args(call, 2));
    bool cuts = strcmp(call->work->name, "slice_backward") != 0;
    p.keep = cuts ? tsr_min_u64(p.from_row, p.to_row) : p.from_row;
    if ((cuts && p.offset != 0) || p.keep > p.to_row || p.offset > p.to_row - p.keep)
        return tsr__defect(call, "%llu elements at %llu do not fit into %llu",
                           (unsigned long long)p.keep, (unsigned long long)p.offset,
                           (unsigned long long)p.to_row);
    TSR_TRY(take_rows(call, &p));
    return place(call, &p);
}

/* ---- parts side by side ---------------------------------------------------------------------- */

tsr_status tsr__cat(const struct tsr_kernel_call *call)
{
    struct tsr_elems a, b, out;
    uint64_t da = tsr__arg(call, 0), db = tsr__arg(call, 1);
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &a));
    if (da == 0 || a.n % da != 0)
        return tsr__defect(call, "slot 0: %llu elements are no rows of %llu",
                           (unsigned long long)a.n, (unsigned long long)da);
    uint64_t rows = a.n / da;
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, tsr__product3(rows, db, 1), &b));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, tsr__product3(rows, da + db, 1), &out));
    struct tsr_placing first = {a, out, rows, da, da + db, da, 0, 1, false};
    struct tsr_placing second = {b, out, rows, db, da + db, db, da, 1, false};
    TSR_TRY(place(call, &first));
    return place(call, &second);
}

/* The operands of the parts that are there; columns 0: a part that is not. */
static tsr_status parts(const struct tsr_kernel_call *call, const struct tsr_elems *out, bool run)
{
    uint64_t rows = call->work->dims[0], columns = call->work->dims[1], at = 0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < call->work->n_args; i++) {
        struct tsr_elems part;
        uint64_t n = call->work->args[i];
        if (n == 0)
            continue;
        TSR_TRY(tsr__take(call, 0, &next, TSR_READ, tsr__product3(rows, n, 1), &part));
        const struct tsr_placing p = {part, *out, rows, n, columns, n, at, 1, false};
        if (run)
            TSR_TRY(place(call, &p));
        at += n;
    }
    if (at != columns || tsr__next(call, 0, &next))
        return tsr__defect(call, "slot 0: parts of %llu columns for %llu", (unsigned long long)at,
                           (unsigned long long)columns);
    return TSR_OK;
}

tsr_status tsr__cat_gradients(const struct tsr_kernel_call *call)
{
    struct tsr_elems out;
    uint64_t n = tsr__product3(call->work->dims[0], call->work->dims[1], 1);
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, n, &out));
    TSR_TRY(parts(call, &out, false));
    return parts(call, &out, true);
}

/* ---- sums ------------------------------------------------------------------------------------ */

tsr_status tsr__sum_heads(const struct tsr_kernel_call *call)
{
    struct tsr_head_sums k = {.times = tsr__arg(call, 0), .d = tsr__arg(call, 1)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.out));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(k.out.n, k.times, 1), &k.g));
    if (k.d == 0 || k.times == 0 || k.out.n % k.d != 0)
        return tsr__defect(call, "slot 1: %llu elements are no rows of %llu",
                           (unsigned long long)k.out.n, (unsigned long long)k.d);
    uint64_t blocks = k.out.n / k.d * tsr_grid_blocks(k.d);
    return tsr__run(call, &code_head_sums, &k, blocks * TSR_BLOCK);
}
