/* reduce_order.c: sums in the order of the members, block by block. */
#include "exec/world/reduce_order.h"

#include "exec/base/numeric.h"

enum { BLOCK = 512 }; /* elements that are summed before the next: they stay in the first cache */

/* ---- one block of a part as numbers of the sum, and back ------------------------------------- */

static void load_f32(tsr_dtype dtype, const void *in, float *x, size_t n)
{
    const uint16_t *half = in;
    if (dtype == TSR_F32) {
        memcpy(x, in, n * sizeof *x);
    } else if (dtype == TSR_BF16) {
        for (size_t i = 0; i < n; i++)
            x[i] = tsr_from_bf16(half[i]);
    } else {
        for (size_t i = 0; i < n; i++)
            x[i] = tsr_from_f16(half[i]);
    }
}

static void store_f32(tsr_dtype dtype, const float *x, void *out, size_t n)
{
    uint16_t *half = out;
    if (dtype == TSR_F32) {
        memcpy(out, x, n * sizeof *x);
    } else if (dtype == TSR_BF16) {
        for (size_t i = 0; i < n; i++)
            half[i] = tsr_to_bf16(x[i]);
    } else {
        for (size_t i = 0; i < n; i++)
            half[i] = tsr_to_f16(x[i]);
    }
}

static void load_i64(tsr_dtype dtype, const void *in, int64_t *x, size_t n)
{
    const uint8_t *byte = in;
    if (dtype == TSR_I64)
        memcpy(x, in, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i++)
            x[i] = byte[i];
}

static void store_i64(tsr_dtype dtype, const int64_t *x, void *out, size_t n)
{
    uint8_t *byte = out;
    if (dtype == TSR_I64)
        memcpy(out, x, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i++)
            byte[i] = (uint8_t)x[i];
}

/* ---- the reductions -------------------------------------------------------------------------- */

/* Functions for f32 and f64: `sum` takes up another part, which is multiplied before. */
#define FLOAT_REDUCTION(type, suffix)                            \
    static void scale_##suffix(type *x, type factor, size_t n)   \
    {                                                            \
        for (size_t i = 0; i < n; i++)                           \
            x[i] *= factor;                                      \
    }                                                            \
    static void add_##suffix(type *sum, const type *x, size_t n) \
    {                                                            \
        for (size_t i = 0; i < n; i++)                           \
            sum[i] += x[i];                                      \
    }                                                            \
    static void max_##suffix(type *sum, const type *x, size_t n) \
    {                                                            \
        for (size_t i = 0; i < n; i++)                           \
            if (x[i] > sum[i] || x[i] != x[i])                   \
                sum[i] = x[i];                                   \
    }                                                            \
    static void divide_##suffix(type *sum, type by, size_t n)    \
    {                                                            \
        for (size_t i = 0; i < n; i++)                           \
            sum[i] /= by;                                        \
    }
FLOAT_REDUCTION(float, f32)
FLOAT_REDUCTION(double, f64)

static int64_t wrapped(uint64_t x)
{
    int64_t y;
    memcpy(&y, &x, sizeof y);
    return y;
}

static void take_i64(const struct tsr_reduction *how, int64_t *sum, const int64_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (how->op == TSR_REDUCE_MAX)
            sum[i] = x[i] > sum[i] ? x[i] : sum[i];
        else
            sum[i] = wrapped((uint64_t)sum[i] + (uint64_t)x[i]);
}

static const void *block_of(const void *part, uint64_t first, tsr_dtype dtype)
{
    return (const char *)part + first * tsr_dtype_bytes(dtype);
}

static void block_f32(const struct tsr_reduction *how, const void *const *parts, uint32_t n_parts,
                      void *out, uint64_t first, size_t n)
{
    float sum[BLOCK], x[BLOCK];
    for (uint32_t p = 0; p < n_parts; p++) {
        float *into = p ? x : sum;
        load_f32(how->dtype, block_of(parts[p], first, how->dtype), into, n);
        if (how->op == TSR_REDUCE_PREMUL_SUM)
            scale_f32(into, (float)how->factor, n);
        if (p && how->op == TSR_REDUCE_MAX)
            max_f32(sum, x, n);
        else if (p)
            add_f32(sum, x, n);
    }
    if (how->op == TSR_REDUCE_AVG)
        divide_f32(sum, (float)n_parts, n);
    store_f32(how->dtype, sum, (char *)out + first * tsr_dtype_bytes(how->dtype), n);
}

static void block_f64(const struct tsr_reduction *how, const void *const *parts, uint32_t n_parts,
                      void *out, uint64_t first, size_t n)
{
    double sum[BLOCK], x[BLOCK];
    for (uint32_t p = 0; p < n_parts; p++) {
        double *into = p ? x : sum;
        memcpy(into, block_of(parts[p], first, TSR_F64), n * sizeof *into);
        if (how->op == TSR_REDUCE_PREMUL_SUM)
            scale_f64(into, how->factor, n);
        if (p && how->op == TSR_REDUCE_MAX)
            max_f64(sum, x, n);
        else if (p)
            add_f64(sum, x, n);
    }
    if (how->op == TSR_REDUCE_AVG)
        divide_f64(sum, (double)n_parts, n);
    memcpy((char *)out + first * sizeof *sum, sum, n * sizeof *sum);
}

static void block_i64(const struct tsr_reduction *how, const void *const *parts, uint32_t n_parts,
                      void *out, uint64_t first, size_t n)
{
    int64_t sum[BLOCK], x[BLOCK];
    for (uint32_t p = 0; p < n_parts; p++) {
        int64_t *into = p ? x : sum;
        load_i64(how->dtype, block_of(parts[p], first, how->dtype), into, n);
        if (how->op == TSR_REDUCE_PREMUL_SUM)
            for (size_t i = 0; i < n; i++)
                into[i] = wrapped((uint64_t)into[i] * (uint64_t)(int64_t)how->factor);
        if (p)
            take_i64(how, sum, x, n);
    }
    for (size_t i = 0; how->op == TSR_REDUCE_AVG && n_parts > 1 && i < n; i++)
        sum[i] /= (int64_t)n_parts;
    store_i64(how->dtype, sum, (char *)out + first * tsr_dtype_bytes(how->dtype), n);
}

void tsr__reduce(const struct tsr_reduction *how, const void *const *parts, uint32_t n_parts,
                 void *out, uint64_t n)
{
    bool is_integer = how->dtype == TSR_I64 || how->dtype == TSR_U8;
    for (uint64_t first = 0; first < n; first += BLOCK) {
        size_t count = (size_t)tsr_min_u64(BLOCK, n - first);
        if (is_integer)
            block_i64(how, parts, n_parts, out, first, count);
        else if (how->dtype == TSR_F64)
            block_f64(how, parts, n_parts, out, first, count);
        else
            block_f32(how, parts, n_parts, out, first, count);
    }
}
