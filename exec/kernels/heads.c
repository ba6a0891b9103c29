/* heads.c: tensors of heads that are repeated, summed, padded, cut and joined. All are seen as rows
 * of D elements, one for each head of each token.
 */
#include "call.h"
#include "grid_copy.h"
#include "table.h"

/* Rows of one length become rows of another: row r of `to` gets [0, keep) of row r / times of
 * `from` at `offset`, and zeros elsewhere. */
struct placing {
    uint64_t from_row, to_row, keep, offset, times;
    struct tsr_elems from, to;
};

static void move(const struct tsr_elems *from, uint64_t from_at, const struct tsr_elems *to,
                 uint64_t to_at, uint64_t n)
{
    if (from->dtype == TSR_F64 || to->dtype == TSR_F64)
        tsr_move_f64(from, from_at, to, to_at, n);
    else
        tsr_move_f32(from, from_at, to, to_at, n);
}

static void zero(const struct tsr_elems *to, uint64_t at, uint64_t n)
{
    tsr_store_same_f32(to, at, n, 0);
}

static void place(const struct placing *p)
{
    uint64_t rows = p->to_row ? p->to.n / p->to_row : 0, end = p->offset + p->keep;
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t at = row * p->to_row;
        zero(&p->to, at, p->offset);
        move(&p->from, row / p->times * p->from_row, &p->to, at + p->offset, p->keep);
        zero(&p->to, at + end, p->to_row - end);
    }
}

/* x (slot 0) in rows of `from_row`, out (slot 1) in as many times `times` rows of `to_row`. */
static tsr_status take_rows(const struct tsr_kernel_call *call, struct placing *p)
{
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &p->from));
    if (p->from_row == 0 || p->to_row == 0 || p->times == 0 || p->from.n % p->from_row != 0)
        return tsr__defect(call, "slot 0: %llu elements are no rows of %llu",
                           (unsigned long long)p->from.n, (unsigned long long)p->from_row);
    uint64_t rows = p->from.n / p->from_row;
    return tsr__out(call, 1, TSR_OPERAND_FLOAT, tsr__product3(rows, p->times, p->to_row), &p->to);
}

tsr_status tsr__expand_heads(const struct tsr_kernel_call *call)
{
    uint64_t d = tsr__arg(call, 1);
    struct placing p = {.from_row = d, .to_row = d, .keep = d, .times = tsr__arg(call, 0)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(take_rows(call, &p));
    place(&p);
    return TSR_OK;
}

/* `pad`, `pad_backward`, `slice_backward`. */
tsr_status tsr__place_heads(const struct tsr_kernel_call *call)
{
    struct placing p = {.from_row = tsr__arg(call, 0),
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
    place(&p);
    return TSR_OK;
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
    for (uint64_t row = 0; row < rows; row++) {
        move(&a, row * da, &out, row * (da + db), da);
        move(&b, row * db, &out, row * (da + db) + da, db);
    }
    return TSR_OK;
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
        for (uint64_t row = 0; row < rows && run; row++)
            move(&part, row * n, out, row * columns + at, n);
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

#define TSR_REAL_F64 0
#include "heads_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "heads_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(sum_heads)
