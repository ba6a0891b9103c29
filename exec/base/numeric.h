/* numeric.h: elements of every dtype as float and back, on the host and in CUDA code.
 *
 * bf16 and f16 are stored as 16 bits and rounded to nearest even; overflow gives infinity, a NaN
 * stays a NaN, f16 has subnormals (IEEE 754).
 */
#ifndef TSR_EXEC_NUMERIC_H
#define TSR_EXEC_NUMERIC_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TSR_ANYWHERE __host__ __device__ static inline
#else
#define TSR_ANYWHERE static inline
#endif

TSR_ANYWHERE uint32_t tsr_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TSR_ANYWHERE float tsr_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TSR_ANYWHERE uint64_t tsr_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TSR_ANYWHERE double tsr_bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TSR_ANYWHERE float tsr_from_bf16(uint16_t h)
{
    return tsr_bits_float((uint32_t)h << 16);
}

/* A GPU converts in one instruction; its NaN is 0x7fff. */
TSR_ANYWHERE uint16_t tsr_to_bf16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    uint32_t bits = tsr_float_bits(x);
    if ((bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000))
        return (uint16_t)(bits >> 16 | 0x40); /* a quiet NaN */
    return (uint16_t)((bits + UINT32_C(0x7fff) + (bits >> 16 & 1)) >> 16);
#endif
}

/* Two in one word, the first in its low half. */
TSR_ANYWHERE uint32_t tsr_to_bf16_pair(float first, float second)
{
#ifdef __CUDA_ARCH__
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return tsr_to_bf16(first) | (uint32_t)tsr_to_bf16(second) << 16;
#endif
}

TSR_ANYWHERE float tsr_from_f16(uint16_t h)
{
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(h));
    return wide;
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return tsr_bits_float(sign | UINT32_C(0x7f800000) | mantissa << 13);
    if (exponent != 0)
        return tsr_bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float x = (float)mantissa * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -x : x;
#endif
}

TSR_ANYWHERE uint16_t tsr_to_f16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    uint32_t bits = tsr_float_bits(x), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & UINT32_C(0x7fffffff);
    if (magnitude > UINT32_C(0x7f800000))
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= UINT32_C(0x477ff000)) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= UINT32_C(0x38800000)) { /* normal in f16 */
        uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return (uint16_t)(sign | ((rounded - (UINT32_C(112) << 23)) >> 13));
    }
    if (magnitude < UINT32_C(0x33000000)) /* below half of the least subnormal */
        return (uint16_t)sign;
    uint32_t shift = 126 - (magnitude >> 23), mantissa = (magnitude & 0x7fffff) | 0x800000;
    uint32_t half = UINT32_C(1) << (shift - 1), rest = mantissa & ((UINT32_C(1) << shift) - 1);
    uint32_t value = mantissa >> shift;
    value += rest > half || (rest == half && (value & 1));
    return (uint16_t)(sign | value);
#endif
}

#endif
