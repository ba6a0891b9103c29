/* tensor_real.h: template of tensor.h: runs of elements. */
#include "exec/kernels/tensor/real.h"

/* An integer from a real: towards zero; what does not fit gives 0. */
TSR_ANYWHERE int64_t TSR_R(tsr_whole)(TSR_REAL x)
{
    return x > -(TSR_REAL)9.2e18 && x < (TSR_REAL)9.2e18 ? (int64_t)x : 0;
}

TSR_ANYWHERE float TSR_R(tsr_to_narrow)(TSR_REAL x)
{
#if TSR_REAL_F64
    return tsr_odd_float(x);
#else
    return x;
#endif
}

/* n elements from p. */
TSR_ANYWHERE void TSR_R(tsr_load_run)(const void *p, unsigned dtype, unsigned n, TSR_REAL *out)
{
    const uint16_t *half = (const uint16_t *)p;
    switch (dtype) {
    case TSR_F32:
        TSR_EACH_OF (i, n)
            out[i] = (TSR_REAL)((const float *)p)[i];
        break;
    case TSR_BF16:
        TSR_EACH_OF (i, n)
            out[i] = (TSR_REAL)tsr_from_bf16(half[i]);
        break;
    case TSR_F16:
        TSR_EACH_OF (i, n)
            out[i] = (TSR_REAL)tsr_from_f16(half[i]);
        break;
    case TSR_F64:
        TSR_EACH_OF (i, n)
            out[i] = (TSR_REAL)((const double *)p)[i];
        break;
    case TSR_I64:
        TSR_EACH_OF (i, n)
            out[i] = (TSR_REAL)((const int64_t *)p)[i];
        break;
    default:
        TSR_EACH_OF (i, n)
            out[i] = (TSR_REAL)((const uint8_t *)p)[i];
    }
}

TSR_ANYWHERE void TSR_R(tsr_store_run)(void *p, unsigned dtype, unsigned n, const TSR_REAL *in)
{
    uint16_t *half = (uint16_t *)p;
    switch (dtype) {
    case TSR_F32:
        TSR_EACH_OF (i, n)
            ((float *)p)[i] = (float)in[i];
        break;
    case TSR_BF16:
        TSR_EACH_OF (i, n)
            half[i] = tsr_to_bf16(TSR_R(tsr_to_narrow)(in[i]));
        break;
    case TSR_F16:
        TSR_EACH_OF (i, n)
            half[i] = tsr_to_f16(TSR_R(tsr_to_narrow)(in[i]));
        break;
    case TSR_F64:
        TSR_EACH_OF (i, n)
            ((double *)p)[i] = (double)in[i];
        break;
    case TSR_I64:
        TSR_EACH_OF (i, n)
            ((int64_t *)p)[i] = TSR_R(tsr_whole)(in[i]);
        break;
    default:
        TSR_EACH_OF (i, n)
            ((uint8_t *)p)[i] = (uint8_t)TSR_R(tsr_whole)(in[i]);
    }
}

/* out[i] = x, for an i that is not known when code is compiled. */
TSR_ANYWHERE void TSR_R(tsr_put_lane)(TSR_REAL *out, unsigned i, TSR_REAL x)
{
#if TSR_BLOCK == 8
    TSR_UNROLL
    for (unsigned k = 0; k < 8; k++)
        out[k] = k == i ? x : out[k];
#else
    out[i] = x;
#endif
}

#if TSR_BLOCK == 8
/* Arrays have eight elements, and every index is
 * known when the loops are unrolled: they stay in registers. */

/* What tsr_get_raw() got. */
TSR_ANYWHERE void TSR_R(tsr_of_raw)(const uint32_t *w, unsigned dtype, TSR_REAL *out)
{
    switch (dtype) {
    case TSR_BF16:
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            out[2 * i] = (TSR_REAL)tsr_bits_float(w[i] << 16);
            out[2 * i + 1] = (TSR_REAL)tsr_bits_float(w[i] & UINT32_C(0xffff0000));
        }
        break;
    case TSR_F16:
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            out[2 * i] = (TSR_REAL)tsr_from_f16((uint16_t)w[i]);
            out[2 * i + 1] = (TSR_REAL)tsr_from_f16((uint16_t)(w[i] >> 16));
        }
        break;
    default: /* TSR_F32 */
        TSR_UNROLL
        for (unsigned i = 0; i < 8; i++)
            out[i] = (TSR_REAL)tsr_bits_float(w[i]);
    }
}

/* Eight elements at p, a multiple of 16. */
TSR_ANYWHERE void TSR_R(tsr_load_words)(const unsigned char *p, unsigned dtype, TSR_REAL *out)
{
    uint32_t w[8];
    if (dtype != TSR_F64) {
        tsr_get_raw(p, dtype == TSR_F32 ? 4 : 2, w);
        TSR_R(tsr_of_raw)(w, dtype, out);
        return;
    }
    TSR_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        tsr_get_words(p + 16 * i, w);
        out[2 * i] = (TSR_REAL)tsr_bits_double((uint64_t)w[1] << 32 | w[0]);
        out[2 * i + 1] = (TSR_REAL)tsr_bits_double((uint64_t)w[3] << 32 | w[2]);
    }
}

TSR_ANYWHERE void TSR_R(tsr_store_words)(unsigned char *p, unsigned dtype, const TSR_REAL *in)
{
    uint32_t w[16];
    switch (dtype) {
    case TSR_F32:
        TSR_UNROLL
        for (unsigned i = 0; i < 8; i++)
            w[i] = tsr_float_bits((float)in[i]);
        tsr_put_words(p, w);
        tsr_put_words(p + 16, w + 4);
        break;
    case TSR_BF16:
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++)
            w[i] = tsr_to_bf16_pair(TSR_R(tsr_to_narrow)(in[2 * i]),
                                    TSR_R(tsr_to_narrow)(in[2 * i + 1]));
        tsr_put_words(p, w);
        break;
    case TSR_F16:
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++)
            w[i] = tsr_to_f16(TSR_R(tsr_to_narrow)(in[2 * i])) |
                   (uint32_t)tsr_to_f16(TSR_R(tsr_to_narrow)(in[2 * i + 1])) << 16;
        tsr_put_words(p, w);
        break;
    default: /* TSR_F64 */
        TSR_UNROLL
        for (unsigned i = 0; i < 8; i++) {
            uint64_t bits = tsr_double_bits((double)in[i]);
            w[2 * i] = (uint32_t)bits;
            w[2 * i + 1] = (uint32_t)(bits >> 32);
        }
        TSR_UNROLL
        for (unsigned i = 0; i < 4; i++)
            tsr_put_words(p + 16 * i, w + 4 * i);
    }
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_load_one)(const struct tsr_elems *e, uint64_t at)
{
    TSR_REAL value;
    TSR_R(tsr_load_run)(e->data + e->item * tsr_elems_place(e, at), e->dtype, 1, &value);
    return value;
}

/* n elements at p, one behind the other at any address; false: not of this dtype. What is rare goes
 * one by one, since the code of all cases is in every kernel as often as it loads. */
TSR_ANYWHERE bool TSR_R(tsr_load_near)(const unsigned char *p, unsigned dtype, unsigned n,
                                       TSR_REAL *out)
{
#if TSR_REAL_F64
    (void)p, (void)n, (void)out;
    return (void)dtype, false;
#else
    if (dtype == TSR_F32) {
        TSR_EACH_OF (i, n)
            out[i] = ((const float *)(const void *)p)[i];
        return true;
    }
    if (dtype != TSR_BF16 && dtype != TSR_F16)
        return false;
    uint32_t half[8];
    TSR_LANES (i, n)
        half[i] = i < n ? ((const uint16_t *)(const void *)p)[i] : 0;
    TSR_LANES (i, n)
        out[i] =
            dtype == TSR_BF16 ? tsr_from_bf16((uint16_t)half[i]) : tsr_from_f16((uint16_t)half[i]);
    return true;
#endif
}

TSR_ANYWHERE bool TSR_R(tsr_store_near)(unsigned char *p, unsigned dtype, unsigned n,
                                        const TSR_REAL *in)
{
#if TSR_REAL_F64
    (void)p, (void)n, (void)in;
    return (void)dtype, false;
#else
    if (dtype == TSR_F32) {
        TSR_EACH_OF (i, n)
            ((float *)(void *)p)[i] = in[i];
        return true;
    }
    if (dtype != TSR_BF16 && dtype != TSR_F16)
        return false;
    TSR_EACH_OF (i, n)
        ((uint16_t *)(void *)p)[i] = dtype == TSR_BF16 ? tsr_to_bf16(in[i]) : tsr_to_f16(in[i]);
    return true;
#endif
}

/* Elements [at, at + n) of a tensor, n at most 8; zeros behind. */
TSR_ANYWHERE void TSR_R(tsr_load)(const struct tsr_elems *e, uint64_t at, uint64_t n, TSR_REAL *out)
{
    const unsigned char *p = tsr_elems_together(e, at, n);
    if (p && tsr_are_words(e, p, n)) {
        TSR_R(tsr_load_words)(p, e->dtype, out);
        return;
    }
    TSR_UNROLL
    for (unsigned i = 0; i < 8; i++)
        out[i] = 0;
    if (p && TSR_R(tsr_load_near)(p, e->dtype, (unsigned)n, out))
        return;
    TSR_NO_UNROLL
    for (unsigned i = 0; i < (unsigned)n; i++)
        TSR_R(tsr_put_lane)(out, i, TSR_R(tsr_load_one)(e, at + i));
}

TSR_ANYWHERE void TSR_R(tsr_store)(const struct tsr_elems *e, uint64_t at, uint64_t n,
                                   const TSR_REAL *in)
{
    unsigned char *p = tsr_elems_together(e, at, n);
    if (p && tsr_are_words(e, p, n)) {
        TSR_R(tsr_store_words)(p, e->dtype, in);
        return;
    }
    if (p && TSR_R(tsr_store_near)(p, e->dtype, (unsigned)n, in))
        return;
    TSR_NO_UNROLL
    for (unsigned i = 0; i < (unsigned)n; i++) {
        TSR_REAL x = in[0];
        TSR_UNROLL
        for (unsigned k = 1; k < 8; k++)
            x = k == i ? in[k] : x;
        TSR_R(tsr_store_run)(e->data + e->item * tsr_elems_place(e, at + i), e->dtype, 1, &x);
    }
}

/* Elements [at[k], at[k] + n) of several tensors: where all accesses are of whole words, all of
 * them are on their way before the first one is waited for. `several`, at most 4, is known when
 * loops are unrolled. */
TSR_ANYWHERE void TSR_R(tsr_load_several)(const struct tsr_elems *const *e, const uint64_t *at,
                                          unsigned several, uint64_t n, TSR_REAL (*out)[8])
{
    uint32_t raw[4][8];
    bool words = n == 8;
    TSR_UNROLL
    for (unsigned k = 0; k < several; k++)
        words = words && e[k]->width == 0 && e[k]->dtype != TSR_F64 && e[k]->n >= at[k] + 8 &&
                tsr_are_words(e[k], e[k]->data + e[k]->item * at[k], 8);
    if (!words) {
        TSR_UNROLL
        for (unsigned k = 0; k < several; k++)
            TSR_R(tsr_load)(e[k], at[k], n, out[k]);
        return;
    }
    TSR_UNROLL
    for (unsigned k = 0; k < several; k++)
        tsr_get_raw(e[k]->data + e[k]->item * at[k], e[k]->item, raw[k]);
    TSR_UNROLL
    for (unsigned k = 0; k < several; k++)
        TSR_R(tsr_of_raw)(raw[k], e[k]->dtype, out[k]);
}

/* n copies of a value from `at` on. */
TSR_ANYWHERE void TSR_R(tsr_store_same)(const struct tsr_elems *e, uint64_t at, uint64_t n,
                                        TSR_REAL value)
{
    TSR_REAL same[8];
    TSR_UNROLL
    for (unsigned i = 0; i < 8; i++)
        same[i] = value;
    for (uint64_t part; n > 0; n -= part, at += part) {
        part = n < 8 ? n : 8;
        TSR_R(tsr_store)(e, at, part, same);
    }
}
#else

/* Elements [at, at + n) of a tensor. */
TSR_ANYWHERE void TSR_R(tsr_load)(const struct tsr_elems *e, uint64_t at, uint64_t n, TSR_REAL *out)
{
    while (n > 0) {
        unsigned run = (unsigned)tsr_elems_run(e, at, n < 1u << 30 ? n : 1u << 30);
        TSR_R(tsr_load_run)(e->data + e->item * tsr_elems_place(e, at), e->dtype, run, out);
        at += run;
        out += run;
        n -= run;
    }
}

TSR_ANYWHERE void TSR_R(tsr_store)(const struct tsr_elems *e, uint64_t at, uint64_t n,
                                   const TSR_REAL *in)
{
    while (n > 0) {
        unsigned run = (unsigned)tsr_elems_run(e, at, n < 1u << 30 ? n : 1u << 30);
        TSR_R(tsr_store_run)(e->data + e->item * tsr_elems_place(e, at), e->dtype, run, in);
        at += run;
        in += run;
        n -= run;
    }
}

TSR_ANYWHERE void TSR_R(tsr_load_several)(const struct tsr_elems *const *e, const uint64_t *at,
                                          unsigned several, uint64_t n, TSR_REAL (*out)[TSR_BLOCK])
{
    for (unsigned k = 0; k < several; k++)
        TSR_R(tsr_load)(e[k], at[k], n, out[k]);
}

TSR_ANYWHERE TSR_REAL TSR_R(tsr_load_one)(const struct tsr_elems *e, uint64_t at)
{
    TSR_REAL value;
    TSR_R(tsr_load)(e, at, 1, &value);
    return value;
}

/* n copies of a value from `at` on. */
TSR_ANYWHERE void TSR_R(tsr_store_same)(const struct tsr_elems *e, uint64_t at, uint64_t n,
                                        TSR_REAL value)
{
    TSR_REAL same[TSR_BLOCK];
    for (unsigned i = 0; i < TSR_BLOCK && i < n; i++)
        same[i] = value;
    while (n > 0) {
        uint64_t part = n < TSR_BLOCK ? n : TSR_BLOCK;
        TSR_R(tsr_store)(e, at, part, same);
        at += part;
        n -= part;
    }
}
#endif

/* ---- sums ------------------------------------------------------------------------------------ */
/* Carried in f64, in eight lanes: the order depends on the number of elements only. */

struct TSR_R(tsr_sum) {
    double lane[8];
};

TSR_ANYWHERE void TSR_R(tsr_sum_add)(struct TSR_R(tsr_sum) * s, const TSR_REAL *x, unsigned n)
{
    unsigned i = 0;
    for (; i + 8 <= n; i += 8)
        for (unsigned l = 0; l < 8; l++)
            s->lane[l] += (double)x[i + l];
    for (unsigned l = 0; i < n; i++, l++)
        s->lane[l] += (double)x[i];
}

TSR_ANYWHERE void TSR_R(tsr_sum_add_product)(struct TSR_R(tsr_sum) * s, const TSR_REAL *x,
                                             const TSR_REAL *y, unsigned n)
{
    unsigned i = 0;
    for (; i + 8 <= n; i += 8)
        for (unsigned l = 0; l < 8; l++)
            s->lane[l] += (double)x[i + l] * (double)y[i + l];
    for (unsigned l = 0; i < n; i++, l++)
        s->lane[l] += (double)x[i] * (double)y[i];
}

TSR_ANYWHERE double TSR_R(tsr_sum_total)(const struct TSR_R(tsr_sum) * s)
{
    const double *l = s->lane;
    return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}
