/* elements.h: what kernels compute for one element, on the host and in CUDA code, for floats and
 * for doubles (elements_real.h). No state, nothing but math.h.
 */
#ifndef TSR_EXEC_ELEMENTS_H
#define TSR_EXEC_ELEMENTS_H

#include <math.h>

#include "exec/base/numeric.h"

/* e^x in f32, within 2 units in the last place; no branches, so that compilers can vectorize it,
 * and the same on every host. x = n log 2 + r, e^r by a polynomial (Cephes), 2^n in two factors
 * because it may be beyond the exponents of a float. A GPU has instructions for it. */
TSR_ANYWHERE float tsr_exp_f32(float x)
{
#ifdef __CUDA_ARCH__
    return expf(x);
#else
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 2^23: the fraction is rounded away */
    float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t whole = tsr_float_bits(shifted) - UINT32_C(0x4b400000) + 1024; /* n + 1024 */
    uint32_t half = whole >> 1, rest = whole - half;
    return p * tsr_bits_float((half - 512 + 127) << 23) * tsr_bits_float((rest - 512 + 127) << 23);
#endif
}

/* 2^x within 2 units in the last place; on a GPU what is below 2^-126 is 0. */
TSR_ANYWHERE float tsr_exp2_f32(float x)
{
#ifdef __CUDA_ARCH__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return exp2f(x);
#endif
}

TSR_ANYWHERE double tsr_exp2_f64(double x)
{
    return exp2(x);
}

/* a / b within 2 units in the last place, for b below 2^126: of the denominators of sigmoids, which
 * are 1 or more, larger ones give 0 as they should. A third of the instructions of a division. */
TSR_ANYWHERE float tsr_ratio_f32(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

TSR_ANYWHERE double tsr_ratio_f64(double a, double b)
{
    return a / b;
}

TSR_ANYWHERE double tsr_exp_f64(double x)
{
    return exp(x);
}

/* x y, rounded: a GPU would make one operation of it and of what it is added to. */
TSR_ANYWHERE double tsr_rounded_product(double x, double y)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(x, y);
#else
    return x * y;
#endif
}

/* x^n by squares, the same on every machine. */
TSR_ANYWHERE double tsr_whole_power(double x, uint64_t n)
{
    double power = 1;
    for (; n > 0; n >>= 1, x = tsr_rounded_product(x, x))
        if (n & 1)
            power = tsr_rounded_product(power, x);
    return power;
}

/* The float next to x on the side of zero, with an odd last bit unless x is a float: rounding that
 * to fewer bits gives what rounding x itself gives. */
TSR_ANYWHERE float tsr_odd_float(double x)
{
    float near = (float)x;
    if (!(x == x) || (double)near == x)
        return near;
    uint32_t bits = tsr_float_bits(near);
    if (fabs((double)near) > fabs(x))
        bits--;
    return tsr_bits_float(bits | 1);
}

#define TSR_REAL_F64 0
#include "exec/kernels/tensor/elements_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/tensor/elements_real.h"
#undef TSR_REAL_F64

#endif
