/* elements_real.h: template of elements.h. */
#include "exec/kernels/tensor/real.h"

TSR_ANYWHERE TSR_REAL TSR_R(tsr_sigmoid)(TSR_REAL x)
{
    return TSR_R(tsr_ratio)(1, 1 + TSR_R(tsr_exp)(-x));
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_silu)(TSR_REAL x)
{
    return TSR_R(tsr_ratio)(x, 1 + TSR_R(tsr_exp)(-x));
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_silu_slope)(TSR_REAL x)
{
    TSR_REAL s = TSR_R(tsr_sigmoid)(x);
    return s * (1 + x * (1 - s));
}

/* 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2 u)), which loses no digits where tanh(u) is near -1. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_gelu_gate)(TSR_REAL x)
{
    const TSR_REAL twice = (TSR_REAL)1.5957691216057308; /* 2 sqrt(2 / pi) */
    return TSR_R(tsr_sigmoid)(twice * (x + (TSR_REAL)0.044715 * x * x * x));
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_gelu)(TSR_REAL x)
{
    return x * TSR_R(tsr_gelu_gate)(x);
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_gelu_slope)(TSR_REAL x)
{
    const TSR_REAL twice = (TSR_REAL)1.5957691216057308;
    TSR_REAL s = TSR_R(tsr_gelu_gate)(x);
    TSR_REAL slope = twice * (1 + (TSR_REAL)0.134145 * x * x);
    return s + x * s * (1 - s) * slope;
}

/* 0.5 (1 + erf(x / sqrt(2))), without losing digits where erf is near -1. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_normal_cdf)(TSR_REAL x)
{
    return (TSR_REAL)0.5 * TSR_M(erfc)(x * (TSR_REAL)-0.70710678118654752);
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_gelu_erf_slope)(TSR_REAL x)
{
    const TSR_REAL density = (TSR_REAL)0.39894228040143268; /* 1 / sqrt(2 pi) */
    return TSR_R(tsr_normal_cdf)(x) + x * density * TSR_M(exp)(x * x * (TSR_REAL)-0.5);
}

/* A NaN stays one. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_relu)(TSR_REAL x)
{
    return x < 0 ? 0 : x;
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_at_most_one)(TSR_REAL x)
{
    return x > 1 ? 1 : x;
}

/* Exponents that backward functions use are products: exact where pow() need not be. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_power)(TSR_REAL x, TSR_REAL exponent)
{
    if (exponent == 1)
        return x;
    if (exponent == 2)
        return x * x;
    if (exponent == 3)
        return x * x * x;
    return TSR_M(pow)(x, exponent);
}

/* (a, b) turned by an angle. */
TSR_ANYWHERE void TSR_R(tsr_turn)(TSR_REAL cosine, TSR_REAL sine, TSR_REAL *a, TSR_REAL *b)
{
    TSR_REAL x = *a, y = *b;
    *a = x * cosine - y * sine;
    *b = x * sine + y * cosine;
}

/* A row of the gradient of cross entropy, from the log-probability. */
TSR_ANYWHERE TSR_REAL TSR_R(tsr_cross_entropy_slope)(TSR_REAL log_p, bool is_label, TSR_REAL factor)
{
    return (TSR_R(tsr_exp)(log_p) - (is_label ? 1 : 0)) * factor;
}

/* ---- optimizers ------------------------------------------------------------------------------ */

/* Numbers of a step of AdamW that are the same for all elements. */
struct TSR_R(tsr_adamw) {
    TSR_REAL decay;       /* 1 - lr weight_decay */
    TSR_REAL lerp;        /* 1 - beta1 */
    TSR_REAL beta2, rest; /* rest = 1 - beta2 */
    TSR_REAL root;        /* sqrt(1 - beta2^step) */
    TSR_REAL eps, size;   /* size = lr / (1 - beta1^step) */
};

TSR_ANYWHERE TSR_REAL TSR_R(tsr_adamw_m)(const struct TSR_R(tsr_adamw) * k, TSR_REAL m, TSR_REAL g)
{
    return m + (g - m) * k->lerp;
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_adamw_v)(const struct TSR_R(tsr_adamw) * k, TSR_REAL v, TSR_REAL g)
{
    return v + g * g * k->rest;
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_adamw_t)(const struct TSR_R(tsr_adamw) * k, TSR_REAL v)
{
    return TSR_M(sqrt)(v) / k->root + k->eps;
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_adamw_p)(const struct TSR_R(tsr_adamw) * k, TSR_REAL p, TSR_REAL m,
                                         TSR_REAL t)
{
    return p - k->size * m / t;
}
