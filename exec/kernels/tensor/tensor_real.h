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
#include "exec/kernels/tensor/tensor_eight_real.h"
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
