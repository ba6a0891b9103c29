/* loopback.cu: copies and sums between ranks that share a GPU. Sums are those of
 * exec/world/reduce_order.c, bit for bit: in the order of the ranks, products and sums rounded each
 * for itself (no fused multiply-add), the result rounded once to its type.
 */
#include "exec/cuda/kernels/code.h"

#include "engine/program/program.h"
#include "exec/base/numeric.h"
#include "exec/cuda/kernels/grid/loopback.h"

#ifdef __CUDA_ARCH__
#define EXACT_MUL_F32(x, y) __fmul_rn(x, y)
#define EXACT_ADD_F32(x, y) __fadd_rn(x, y)
#define EXACT_DIV_F32(x, y) __fdiv_rn(x, y)
#define EXACT_MUL_F64(x, y) __dmul_rn(x, y)
#define EXACT_ADD_F64(x, y) __dadd_rn(x, y)
#define EXACT_DIV_F64(x, y) __ddiv_rn(x, y)
#else
#define EXACT_MUL_F32(x, y) ((x) * (y))
#define EXACT_ADD_F32(x, y) ((x) + (y))
#define EXACT_DIV_F32(x, y) ((x) / (y))
#define EXACT_MUL_F64(x, y) ((x) * (y))
#define EXACT_ADD_F64(x, y) ((x) + (y))
#define EXACT_DIV_F64(x, y) ((x) / (y))
#endif

/* 16 bytes in one access. */
struct __attribute__((aligned(16))) sixteen {
    uint32_t word[4];
};

TSR_DEVICE struct sixteen load16(const void *p, uint64_t i)
{
    struct sixteen x;
#ifdef __CUDACC__
    x = ((const struct sixteen *)p)[i];
#else
    memcpy(&x, (const char *)p + 16 * i, sizeof x);
#endif
    return x;
}

TSR_DEVICE void store16(void *p, uint64_t i, struct sixteen x)
{
#ifdef __CUDACC__
    ((struct sixteen *)p)[i] = x;
#else
    memcpy((char *)p + 16 * i, &x, sizeof x);
#endif
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Four loads are on their way before the first store. */
TSR_DEVICE void copy16(void *to, const void *from, uint64_t n)
{
    uint64_t i = tsr_begin(), step = tsr_step();
    for (; i + 3 * step < n; i += 4 * step) {
        struct sixteen x[4];
        for (int j = 0; j < 4; j++)
            x[j] = load16(from, i + (uint64_t)j * step);
        for (int j = 0; j < 4; j++)
            store16(to, i + (uint64_t)j * step, x[j]);
    }
    for (; i < n; i += step)
        store16(to, i, load16(from, i));
}

TSR_GRID_KERNEL(tsr_cuda_loopback_copy, struct tsr_loopback_copy)
{
    const struct tsr_segment *s = &k.segments[tsr_block_y()];
    unsigned bits = (unsigned)((uintptr_t)s->from | (uintptr_t)s->to);
    uint64_t done = 0;
    if (bits % 16 == 0) {
        copy16(s->to, s->from, s->bytes / 16);
        done = s->bytes / 16 * 16;
    } else if (bits % 4 == 0) {
        for (uint64_t i = tsr_begin(); i < s->bytes / 4; i += tsr_step())
            ((uint32_t *)s->to)[i] = ((const uint32_t *)s->from)[i];
        done = s->bytes / 4 * 4;
    }
    for (uint64_t i = done + tsr_begin(); i < s->bytes; i += tsr_step())
        ((unsigned char *)s->to)[i] = ((const unsigned char *)s->from)[i];
}

/* ---- sums in f32 ----------------------------------------------------------------------------- */

TSR_DEVICE float one_f32(const void *p, unsigned dtype, uint64_t i)
{
    if (dtype == TSR_F32)
        return ((const float *)p)[i];
    uint16_t half = ((const uint16_t *)p)[i];
    return dtype == TSR_BF16 ? tsr_from_bf16(half) : tsr_from_f16(half);
}

TSR_DEVICE uint16_t half_of(float x, unsigned dtype)
{
    return dtype == TSR_BF16 ? tsr_to_bf16(x) : tsr_to_f16(x);
}

/* Eight elements. */
TSR_DEVICE void load8(const void *p, unsigned dtype, uint64_t i, float *x)
{
    if (dtype == TSR_F32) {
        struct sixteen a = load16(p, 2 * i), b = load16(p, 2 * i + 1);
        for (int j = 0; j < 4; j++) {
            x[j] = tsr_bits_float(a.word[j]);
            x[4 + j] = tsr_bits_float(b.word[j]);
        }
        return;
    }
    struct sixteen a = load16(p, i);
    for (int j = 0; j < 4; j++) {
        uint16_t low = (uint16_t)a.word[j], high = (uint16_t)(a.word[j] >> 16);
        x[2 * j] = dtype == TSR_BF16 ? tsr_from_bf16(low) : tsr_from_f16(low);
        x[2 * j + 1] = dtype == TSR_BF16 ? tsr_from_bf16(high) : tsr_from_f16(high);
    }
}

TSR_DEVICE void store8(void *p, unsigned dtype, uint64_t i, const float *x)
{
    struct sixteen a, b;
    for (int j = 0; j < 4; j++) {
        a.word[j] = dtype == TSR_F32
                        ? tsr_float_bits(x[j])
                        : half_of(x[2 * j], dtype) | (uint32_t)half_of(x[2 * j + 1], dtype) << 16;
        b.word[j] = tsr_float_bits(x[4 + j]);
    }
    store16(p, dtype == TSR_F32 ? 2 * i : i, a);
    if (dtype == TSR_F32)
        store16(p, 2 * i + 1, b);
}

/* TAKE: another part; FINISH: after the last. */
#define REDUCTION(type, suffix, MUL, ADD, DIV)                                                    \
    TSR_DEVICE type take_##suffix(const struct tsr_loopback_sum *k, bool first, type sum, type x) \
    {                                                                                             \
        if (k->op == TSR_REDUCE_PREMUL_SUM)                                                       \
            x = MUL(x, (type)k->factor);                                                          \
        if (first)                                                                                \
            return x;                                                                             \
        if (k->op == TSR_REDUCE_MAX)                                                              \
            return x > sum || x != x ? x : sum;                                                   \
        return ADD(sum, x);                                                                       \
    }                                                                                             \
    TSR_DEVICE type finish_##suffix(const struct tsr_loopback_sum *k, type sum)                   \
    {                                                                                             \
        return k->op == TSR_REDUCE_AVG ? DIV(sum, (type)k->n_parts) : sum;                        \
    }
REDUCTION(float, f32, EXACT_MUL_F32, EXACT_ADD_F32, EXACT_DIV_F32)
REDUCTION(double, f64, EXACT_MUL_F64, EXACT_ADD_F64, EXACT_DIV_F64)

TSR_DEVICE void sum_one(const struct tsr_loopback_sum *k, uint64_t i)
{
    float sum = 0;
    for (uint32_t p = 0; p < k->n_parts; p++)
        sum = take_f32(k, p == 0, sum, one_f32(k->parts[p], k->dtype, i));
    sum = finish_f32(k, sum);
    if (k->dtype == TSR_F32)
        ((float *)k->out)[i] = sum;
    else
        ((uint16_t *)k->out)[i] = half_of(sum, k->dtype);
}

TSR_GRID_KERNEL(tsr_cuda_loopback_sum_f32, struct tsr_loopback_sum)
{
    uint64_t eights = k.aligned ? k.n / 8 : 0;
    for (uint64_t i = tsr_begin(); i < eights; i += tsr_step()) {
        float sum[8], x[8];
        for (uint32_t p = 0; p < k.n_parts; p++) {
            load8(k.parts[p], k.dtype, i, x);
            for (int j = 0; j < 8; j++)
                sum[j] = take_f32(&k, p == 0, p == 0 ? 0 : sum[j], x[j]);
        }
        for (int j = 0; j < 8; j++)
            sum[j] = finish_f32(&k, sum[j]);
        store8(k.out, k.dtype, i, sum);
    }
    for (uint64_t i = 8 * eights + tsr_begin(); i < k.n; i += tsr_step())
        sum_one(&k, i);
}

/* ---- sums in f64 and of integers ------------------------------------------------------------- */

TSR_GRID_KERNEL(tsr_cuda_loopback_sum_f64, struct tsr_loopback_sum)
{
    for (uint64_t i = tsr_begin(); i < k.n; i += tsr_step()) {
        double sum = 0;
        for (uint32_t p = 0; p < k.n_parts; p++)
            sum = take_f64(&k, p == 0, sum, ((const double *)k.parts[p])[i]);
        ((double *)k.out)[i] = finish_f64(&k, sum);
    }
}

/* Integers wrap: sums and products are those of unsigned ones. */
TSR_DEVICE uint64_t take_i64(const struct tsr_loopback_sum *k, bool first, uint64_t sum, uint64_t x)
{
    if (k->op == TSR_REDUCE_PREMUL_SUM)
        x *= (uint64_t)(int64_t)k->factor;
    if (first)
        return x;
    if (k->op == TSR_REDUCE_MAX)
        return (int64_t)x > (int64_t)sum ? x : sum;
    return sum + x;
}

TSR_GRID_KERNEL(tsr_cuda_loopback_sum_i64, struct tsr_loopback_sum)
{
    for (uint64_t i = tsr_begin(); i < k.n; i += tsr_step()) {
        uint64_t sum = 0;
        for (uint32_t p = 0; p < k.n_parts; p++)
            sum = take_i64(&k, p == 0, sum,
                           k.dtype == TSR_I64 ? ((const uint64_t *)k.parts[p])[i]
                                              : ((const uint8_t *)k.parts[p])[i]);
        if (k.op == TSR_REDUCE_AVG && k.n_parts > 1)
            sum = (uint64_t)((int64_t)sum / (int64_t)k.n_parts);
        if (k.dtype == TSR_I64)
            ((uint64_t *)k.out)[i] = sum;
        else
            ((uint8_t *)k.out)[i] = (uint8_t)sum;
    }
}
