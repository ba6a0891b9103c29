/* sums.c: sums and means of rows, of columns, of everything; norms of gradients and their
 * scaling.
 */
#include "exec/kernels/rows/sums.h"

#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"
#include "exec/kernels/elements/list.h"
#include "exec/kernels/tensor/rows.h"

#define TSR_REAL_F64 0
#include "exec/kernels/rows/sums_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/rows/sums_real.h"
#undef TSR_REAL_F64

TSR_CODE(row_sums, row_sums, struct tsr_row_sums);
TSR_CODE(column_sums, column_sums, struct tsr_column_sums);
TSR_CODE(fold, fold, struct tsr_fold);

/* `sum` and `mean`, by name. */
tsr_status tsr__row_sums(const struct tsr_kernel_call *call)
{
    struct tsr_row_sums k = {.shape = {.rows = call->work->dims[0], .columns = call->work->dims[1]},
                             .divisor = 1};
    if (strcmp(call->work->name, "mean") == 0)
        k.divisor = (double)k.shape.columns;
    uint64_t n = tsr__product3(k.shape.rows, k.shape.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, k.shape.rows, &k.out));
    return tsr__run(call, &code_row_sums, &k, k.shape.rows);
}

tsr_status tsr__sum_rows(const struct tsr_kernel_call *call)
{
    struct tsr_column_sums k = {.out = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.out));
    if (k.out.n ? k.x.n % k.out.n != 0 : k.x.n != 0)
        return tsr__defect(call, "slot 0: %llu elements are no rows of %llu",
                           (unsigned long long)k.x.n, (unsigned long long)k.out.n);
    k.shape.rows = k.out.n ? k.x.n / k.out.n : 0;
    k.shape.columns = k.out.n;
    return tsr__run(call, &code_column_sums, &k, k.shape.columns);
}

tsr_status tsr__column_sums(const struct tsr_kernel_call *call)
{
    struct tsr_column_sums k = {
        .shape = {.rows = call->work->dims[0], .columns = call->work->dims[1]}};
    uint64_t n = tsr__product3(k.shape.rows, k.shape.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, k.shape.columns, &k.out));
    return tsr__run(call, &code_column_sums, &k, k.shape.columns);
}

/* ---- of everything --------------------------------------------------------------------------- */

tsr_status tsr__mean_all(const struct tsr_kernel_call *call)
{
    struct tsr_fold k = {.op = TSR_FOLD_SUM};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.a));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, 1, &k.out));
    k.divisor = (double)k.a.n;
    return tsr__run(call, &code_fold, &k, k.a.n);
}

tsr_status tsr__scale_weight_grad(const struct tsr_kernel_call *call)
{
    struct tsr_fold k = {.op = TSR_FOLD_PRODUCTS};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.a));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.a.n, &k.b));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.out));
    k.divisor = (double)k.out.n;
    return tsr__run(call, &code_fold, &k, k.a.n);
}

tsr_status tsr__mse(const struct tsr_kernel_call *call)
{
    struct tsr_fold k = {.op = TSR_FOLD_SQUARES};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.a));
    if (strcmp(call->work->name, "mse_target") == 0)
        TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, k.a.n, &k.b));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, 1, &k.out));
    k.divisor = (double)k.a.n;
    return tsr__run(call, &code_fold, &k, k.a.n);
}

/* ---- norms of gradients, and their scaling --------------------------------------------------- */

/* Whatever the arithmetic of the call: in that of the gradient. */
static void norms(const struct tsr_norms *k, uint64_t begin, uint64_t step)
{
    for (uint64_t i = begin; i < k->n; i += step) {
        const struct tsr_elems *g = &k->g[i];
        double squares = g->dtype == TSR_F64 ? tsr_row_squares_f64(g, 0, g->n, 0)
                                             : tsr_row_squares_f32(g, 0, g->n, 0);
        double norm = sqrt(squares) * (double)k->scale[i];
        tsr_store_f64(&k->norm[i], 0, 1, &norm);
    }
}

static void norms_f32(const struct tsr_norms *k, uint64_t begin, uint64_t step)
{
    norms(k, begin, step);
}

static void norms_f64(const struct tsr_norms *k, uint64_t begin, uint64_t step)
{
    norms(k, begin, step);
}

TSR_CODE(norms, norms, struct tsr_norms);
TSR_CODE(norm_power, tsr_norm_power, struct tsr_norm_powers);

/* Norms beyond the gradients are those of empty shards. */
tsr_status tsr__foreach_norm(const struct tsr_kernel_call *call)
{
    uint32_t gradients = tsr__count(call, 0), n = tsr__count(call, 6);
    struct tsr_norms k = {.n = 0};
    if (n < gradients)
        return tsr__defect(call, "slot 6: %u norms of %u gradients", n, gradients);
    for (int run = 0; run < 2; run++) {
        uint32_t next_g = 0, next_n = 0;
        for (uint32_t i = 0; i < n; i++) {
            struct tsr_elems *g = &k.g[k.n];
            *g = (struct tsr_elems){.n = 0};
            k.scale[k.n] = tsr__gradient_scale(call, i);
            if (i < gradients)
                TSR_TRY(tsr__take(call, 0, &next_g, TSR_READ, TSR_ANY_NUMBER, g));
            TSR_TRY(tsr__take(call, 6, &next_n, TSR_WRITE, 1, &k.norm[k.n]));
            k.n++;
            if (k.n < TSR_NORMS && i + 1 < n)
                continue;
            if (run)
                TSR_TRY(tsr__run(call, &code_norms, &k, k.n));
            k.n = 0;
        }
    }
    return TSR_OK;
}

/* Norms squared, to be summed over ranks of which args[i] hold the same piece. */
tsr_status tsr__norm_power(const struct tsr_kernel_call *call)
{
    struct tsr_norm_powers k = {.n = 0};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.x));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, k.x.n, &k.out));
    if (call->work->n_args != k.x.n)
        return tsr__defect(call, "%u arguments for %llu norms", call->work->n_args,
                           (unsigned long long)k.x.n);
    for (; k.first < k.x.n; k.first += k.n) {
        k.n = (uint32_t)tsr_min_u64(k.x.n - k.first, TSR_NORM_POWERS);
        for (uint32_t i = 0; i < k.n; i++)
            k.divisor[i] = (uint32_t)call->work->args[k.first + i];
        TSR_TRY(tsr__run(call, &code_norm_power, &k, k.n));
    }
    return TSR_OK;
}

tsr_status tsr__total_norm(const struct tsr_kernel_call *call)
{
    struct tsr_norms k = {.n = 1, .scale = {1}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.g[0]));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, 1, &k.norm[0]));
    return tsr__run(call, &code_norms, &k, k.n);
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
