/* sums.h: what sums of rows, of columns, of everything and norms of lists take. */
#ifndef TSR_EXEC_SUMS_H
#define TSR_EXEC_SUMS_H

#include "exec/kernels/tensor/rows.h"

/* out[row] = sum of the row / divisor. */
struct tsr_row_sums {
    struct tsr_rows shape;
    double divisor;
    struct tsr_elems x, out;
};

/* out[column] = sum of the column. */
struct tsr_column_sums {
    struct tsr_rows shape;
    struct tsr_elems x, out;
};

enum tsr_fold_op {
    TSR_FOLD_SUM,      /* of a */
    TSR_FOLD_PRODUCTS, /* of a b */
    TSR_FOLD_SQUARES   /* of a - b; without b of a */
};

/* Every element of out = the sum over all elements / divisor. */
struct tsr_fold {
    uint8_t op; /* enum tsr_fold_op */
    double divisor;
    struct tsr_elems a, b, out; /* b: data NULL if there is none */
};

/* norm[i] = L2 norm of g[i] times scale[i]. */
enum { TSR_NORMS = 128 };
struct tsr_norms {
    uint32_t n; /* at most TSR_NORMS */
    float scale[TSR_NORMS];
    struct tsr_elems g[TSR_NORMS], norm[TSR_NORMS];
};

/* out[i] = x[i]^2 / divisor[i - first] for n elements from `first` on. */
enum { TSR_NORM_POWERS = 256 };
struct tsr_norm_powers {
    uint32_t n; /* at most TSR_NORM_POWERS */
    uint64_t first;
    struct tsr_elems x, out;
    uint32_t divisor[TSR_NORM_POWERS];
};

TSR_ANYWHERE void tsr_norm_power_f32(const struct tsr_norm_powers *k, uint64_t begin, uint64_t step)
{
    for (uint64_t i = begin; i < k->n; i += step) {
        double norm = (double)tsr_load_one_f32(&k->x, k->first + i);
        float power = (float)(norm * norm / (double)k->divisor[i]);
        tsr_store_f32(&k->out, k->first + i, 1, &power);
    }
}

TSR_ANYWHERE void tsr_norm_power_f64(const struct tsr_norm_powers *k, uint64_t begin, uint64_t step)
{
    for (uint64_t i = begin; i < k->n; i += step) {
        double norm = (double)tsr_load_one_f64(&k->x, k->first + i);
        double power = (double)(norm * norm / (double)k->divisor[i]);
        tsr_store_f64(&k->out, k->first + i, 1, &power);
    }
}

#endif
