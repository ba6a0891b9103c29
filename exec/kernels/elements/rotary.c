/* rotary.c: rotary embedding and its tables: pairs (cos, sin) of f32, a row of d / 2 pairs for
 * every position. The dtype of a table's operand does not matter.
 */
#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/grid/grid_rotary.h"

TSR_CODE(rotary, tsr_grid_rotary, struct tsr_rotaries);
TSR_CODE_OF_ONE(rotary_table, tsr_grid_rotary_table, struct tsr_rotary_table);
TSR_CODE_OF_ONE(conjugate, tsr_grid_conjugate, struct tsr_conjugate);

/* A table of f32, whatever its operand says: from what is read, or what is written. */
static tsr_status table_of(const struct tsr_kernel_call *call, unsigned slot, bool written,
                           struct tsr_elems *out)
{
    const struct tsr_view *view = tsr_slot(call, slot);
    if (!view)
        return tsr__defect(call, "slot %u: no operand", slot);
    if (!(view->access & (written ? TSR_WRITE : TSR_READ)) || view->width || view->pitch)
        return tsr__defect(call, "slot %u: no dense table that is %s", slot,
                           written ? "written" : "read");
    struct tsr_view table = *view;
    table.dtype = TSR_F32;
    return tsr__elems(call, &table, TSR_OPERAND_FLOAT, out);
}

static tsr_status scaling_of(const struct tsr_kernel_call *call, double a[4])
{
    static const double llama3[4] = {8, 1, 4, 8192};
    uint64_t kind = tsr__arg(call, 0);
    for (uint32_t i = 0; i < 4; i++)
        a[i] = call->work->n_args > i + 1 ? (double)call->work->args[i + 1] : llama3[i];
    bool wrong = kind == TSR_SCALING_LLAMA3 && (a[1] <= 0 || a[2] <= a[1]);
    if (kind > TSR_SCALING_LINEAR || a[0] <= 0 || wrong)
        return tsr__defect(call, "scaling %llu by %g, %g, %g, %g", (unsigned long long)kind, a[0],
                           a[1], a[2], a[3]);
    return TSR_OK;
}

/* Frequencies and angles are rounded to f32, as PyTorch's modules have them. */
tsr_status tsr__rotary_table(const struct tsr_kernel_call *call)
{
    uint64_t positions = call->work->dims[0], half = call->work->dims[1];
    struct tsr_rotary_table k = {.positions = positions, .half = half};
    k.scaling = (uint8_t)tsr__arg(call, 0);
    k.theta = call->work->constants[0];
    TSR_TRY(scaling_of(call, k.stretch));
    TSR_TRY(table_of(call, 0, true, &k.out));
    if (k.out.n != tsr__product3(positions, half, 2))
        return tsr__defect(call, "slot 0: %llu elements for %llu positions of %llu pairs",
                           (unsigned long long)k.out.n, (unsigned long long)positions,
                           (unsigned long long)half);
    return tsr__run_as(call, &code_rotary_table, false, &k, positions * half);
}

tsr_status tsr__conjugate(const struct tsr_kernel_call *call)
{
    struct tsr_elems table, out;
    uint64_t pairs = call->work->dims[0];
    TSR_TRY(table_of(call, 0, false, &table));
    TSR_TRY(table_of(call, 1, true, &out));
    if (table.n / 2 < pairs || out.n != tsr__product3(pairs, 2, 1))
        return tsr__defect(call, "slot 1: %llu elements for %llu pairs of %llu",
                           (unsigned long long)out.n, (unsigned long long)pairs,
                           (unsigned long long)table.n / 2);
    const struct tsr_conjugate k = {table, out, pairs};
    return tsr__run_as(call, &code_conjugate, false, &k, pairs);
}

/* What the operands of a rotation make of each other. */
static tsr_status check_rotation(const struct tsr_kernel_call *call, struct tsr_rotary *r)
{
    uint64_t token = tsr__product3(r->tokens, r->d, 1);
    if (r->d % 2 != 0 || r->seq == 0 || token == 0 || r->x.n % token != 0)
        return tsr__defect(call, "slot 0: %llu elements for %llu tokens of heads of %llu",
                           (unsigned long long)r->x.n, (unsigned long long)r->tokens,
                           (unsigned long long)r->d);
    r->heads = r->x.n / token;
    if (r->table.n < tsr__product3(tsr_min_u64(r->seq, r->tokens), r->d, 1))
        return tsr__defect(call, "slot 1: %llu elements for %llu positions of %llu pairs",
                           (unsigned long long)r->table.n, (unsigned long long)r->seq,
                           (unsigned long long)r->d / 2);
    return TSR_OK;
}

/* Blocks of all tensors. */
static tsr_status turn(const struct tsr_kernel_call *call, const struct tsr_rotaries *k, bool wide)
{
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < k->n; i++)
        blocks += tsr_rotary_blocks(&k->of[i]);
    return tsr__run_as(call, &code_rotary, wide, k, blocks * TSR_BLOCK);
}

static bool is_wide(const struct tsr_rotary *r)
{
    return r->x.dtype == TSR_F64 || r->out.dtype == TSR_F64;
}

/* `rotary` and `rotary_backward`, which differ in the table that they are given. */
tsr_status tsr__rotary(const struct tsr_kernel_call *call)
{
    struct tsr_rotaries k = {.n = 1};
    struct tsr_rotary *r = &k.of[0];
    TSR_TRY(tsr__need_args(call, 3));
    *r = (struct tsr_rotary){.tokens = call->work->dims[0], .seq = tsr__arg(call, 0)};
    r->d = tsr__arg(call, 1);
    r->halves = tsr__arg(call, 2) != 0;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &r->x));
    TSR_TRY(table_of(call, 1, false, &r->table));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, r->x.n, &r->out));
    TSR_TRY(check_rotation(call, r));
    return turn(call, &k, is_wide(r));
}

/* The tensors of the lists, all as `r` says, several in one launch; `run` false: only checks. */
static tsr_status turn_lists(const struct tsr_kernel_call *call, struct tsr_rotary r, bool run)
{
    uint32_t next_in = 0, next_out = 0, n = tsr__count(call, 0);
    struct tsr_rotaries k = {.n = 0};
    bool wide = false;
    for (uint32_t i = 0; i < n; i++) {
        TSR_TRY(tsr__take(call, 0, &next_in, TSR_READ, TSR_ANY_NUMBER, &r.x));
        TSR_TRY(tsr__take(call, 2, &next_out, TSR_WRITE, r.x.n, &r.out));
        TSR_TRY(check_rotation(call, &r));
        k.of[k.n++] = r;
        wide = wide || is_wide(&r);
        if (k.n < TSR_MAX_ROTARIES && i + 1 < n)
            continue;
        if (run)
            TSR_TRY(turn(call, &k, wide));
        k.n = 0;
    }
    return TSR_OK;
}

tsr_status tsr__fused_rope(const struct tsr_kernel_call *call)
{
    struct tsr_rotary r = {.tokens = call->work->dims[0], .seq = tsr__arg(call, 0)};
    r.d = tsr__arg(call, 1);
    r.halves = tsr__arg(call, 2) != 0;
    r.inverse = tsr__arg(call, 3) != 0;
    TSR_TRY(tsr__need_args(call, 4));
    TSR_TRY(table_of(call, 1, false, &r.table));
    if (tsr__count(call, 2) != tsr__count(call, 0))
        return tsr__defect(call, "slot 2: %u operands for %u", tsr__count(call, 2),
                           tsr__count(call, 0));
    TSR_TRY(turn_lists(call, r, false));
    return turn_lists(call, r, true);
}
