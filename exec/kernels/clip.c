/* clip.c: norms of gradients and their scaling. */
#include "call.h"
#include "list.h"
#include "rows.h"
#include "table.h"

static double squares(const struct tsr_elems *x)
{
    return x->dtype == TSR_F64 ? tsr_row_squares_f64(x, 0, x->n, 0)
                               : tsr_row_squares_f32(x, 0, x->n, 0);
}

static void store(const struct tsr_elems *out, uint64_t i, double value)
{
    tsr_store_f64(out, i, 1, &value);
}

/* Norms beyond the gradients are those of empty shards. */
tsr_status tsr__foreach_norm(const struct tsr_kernel_call *call)
{
    uint32_t gradients = tsr__count(call, 0), norms = tsr__count(call, 6);
    if (norms < gradients)
        return tsr__defect(call, "slot 6: %u norms of %u gradients", norms, gradients);
    for (int run = 0; run < 2; run++) {
        uint32_t next_g = 0, next_n = 0;
        for (uint32_t i = 0; i < norms; i++) {
            struct tsr_elems g = {.n = 0}, norm;
            if (i < gradients)
                TSR_TRY(tsr__take(call, 0, &next_g, TSR_READ, TSR_ANY_NUMBER, &g));
            TSR_TRY(tsr__take(call, 6, &next_n, TSR_WRITE, 1, &norm));
            if (run)
                store(&norm, 0, sqrt(squares(&g)));
        }
    }
    return TSR_OK;
}

/* Norms squared, to be summed over ranks of which args[i] hold the same piece. */
tsr_status tsr__norm_power(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, out;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, x.n, &out));
    if (call->work->n_args != x.n)
        return tsr__defect(call, "%u arguments for %llu norms", call->work->n_args,
                           (unsigned long long)x.n);
    for (uint64_t i = 0; i < x.n; i++) {
        double norm = tsr_load_one_f64(&x, i);
        store(&out, i, norm * norm / (double)call->work->args[i]);
    }
    return TSR_OK;
}

tsr_status tsr__total_norm(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, out;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, 1, &out));
    store(&out, 0, sqrt(squares(&x)));
    return TSR_OK;
}

/* Collects the gradients; l NULL: only checks them. */
static tsr_status gradients(const struct tsr_kernel_call *call, struct tsr_lists *l)
{
    uint32_t next = 0, n = tsr__count(call, 0);
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_elems g;
        TSR_TRY(tsr__take(call, 0, &next, TSR_READ_WRITE, TSR_ANY_NUMBER, &g));
        if (l)
            TSR_TRY(tsr__list_add(l, &g, &g, 0));
    }
    return TSR_OK;
}

tsr_status tsr__foreach_mul_clip(const struct tsr_kernel_call *call)
{
    struct tsr_lists l;
    tsr__list_begin(&l, call, TSR_LIST_SCALE);
    TSR_TRY(tsr__in(call, 5, TSR_OPERAND_FLOAT, 1, &l.elements.factor));
    TSR_TRY(gradients(call, NULL));
    TSR_TRY(gradients(call, &l));
    return tsr__list_end(&l);
}
