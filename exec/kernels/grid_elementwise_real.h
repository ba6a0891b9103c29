/* grid_elementwise_real.h: template of grid_elementwise.h. */
#include "real.h"

/* Elements [at, at + n) of an input that is repeated. */
TSR_ANYWHERE void TSR_R(tsr_load_repeated)(const struct tsr_elems *e, uint64_t at, unsigned n,
                                           TSR_REAL *out)
{
    if (e->n == 1) {
        TSR_REAL value = TSR_R(tsr_load_one)(e, 0);
        TSR_LANES (i, n)
            out[i] = value;
        return;
    }
    uint64_t from = at + n <= e->n ? at : at % e->n;
    if (from + n <= e->n) {
        TSR_R(tsr_load)(e, from, n, out);
        return;
    }
    TSR_NO_UNROLL
    for (unsigned i = 0; i < n; i++)
        TSR_R(tsr_put_lane)(out, i, TSR_R(tsr_load_one)(e, (at + i) % e->n));
}

/* The same of an input with one element a row. */
TSR_ANYWHERE void TSR_R(tsr_load_per_row)(const struct tsr_elems *e, uint64_t columns, uint64_t at,
                                          unsigned n, TSR_REAL *out)
{
    uint64_t row = at / columns;
    if ((at + n - 1) / columns == row) {
        TSR_REAL value = TSR_R(tsr_load_one)(e, row);
        TSR_LANES (i, n)
            out[i] = value;
        return;
    }
    TSR_NO_UNROLL
    for (unsigned i = 0; i < n; i++)
        TSR_R(tsr_put_lane)(out, i, TSR_R(tsr_load_one)(e, (at + i) / columns));
}

#define TSR_EACH(value)   \
    TSR_LANES (i, n)      \
        out[i] = (value); \
    return

/* Arithmetic with a number. */
TSR_ANYWHERE void TSR_R(tsr_apply_number)(unsigned op, unsigned n, TSR_REAL k, const TSR_REAL *a,
                                          TSR_REAL *out)
{
    switch (op) {
    case TSR_EW_MUL_BY:
        TSR_EACH(a[i] * k);
    case TSR_EW_ADD_TO:
        TSR_EACH(a[i] + k);
    case TSR_EW_SUB_FROM:
        TSR_EACH(a[i] - k);
    case TSR_EW_DIV_BY:
        TSR_EACH(a[i] / k);
    default: /* TSR_EW_COPY */
        TSR_EACH(a[i]);
    }
}

/* Functions of one element. */
TSR_ANYWHERE void TSR_R(tsr_apply_function)(unsigned op, unsigned n, const TSR_REAL *a,
                                            TSR_REAL *out)
{
    switch (op) {
    case TSR_EW_NEG:
        TSR_EACH(-a[i]);
    case TSR_EW_RSQRT:
        TSR_EACH(1 / TSR_M(sqrt)(a[i]));
    case TSR_EW_SILU:
        TSR_EACH(TSR_R(tsr_silu)(a[i]));
    case TSR_EW_RELU:
        TSR_EACH(TSR_R(tsr_relu)(a[i]));
    case TSR_EW_GELU:
        TSR_EACH(TSR_R(tsr_gelu)(a[i]));
    case TSR_EW_ROOT:
        TSR_EACH(TSR_M(sqrt)(a[i]));
    case TSR_EW_RECIPROCAL:
        TSR_EACH(1 / a[i]);
    default: /* TSR_EW_AT_MOST_ONE */
        TSR_EACH(TSR_R(tsr_at_most_one)(a[i]));
    }
}

/* Of several, and of none. */
TSR_ANYWHERE void TSR_R(tsr_apply)(const struct tsr_elementwise *e, unsigned n, TSR_REAL k,
                                   TSR_REAL (*in)[TSR_BLOCK], TSR_REAL *out)
{
    const TSR_REAL *a = in[0], *b = in[1];
    switch (e->op) {
    case TSR_EW_ADD:
        TSR_EACH(a[i] + b[i]);
    case TSR_EW_MUL:
        TSR_EACH(a[i] * b[i]);
    case TSR_EW_SILU_BACKWARD:
        TSR_EACH(a[i] * TSR_R(tsr_silu_slope)(b[i]));
    case TSR_EW_GELU_BACKWARD:
        TSR_EACH(a[i] * TSR_R(tsr_gelu_slope)(b[i]));
    case TSR_EW_THRESHOLD_BACKWARD:
        TSR_EACH(b[i] > 0 ? a[i] : 0);
    case TSR_EW_TANH_BACKWARD:
        TSR_EACH(a[i] * (1 - b[i] * b[i]));
    case TSR_EW_CONSTANT:
        TSR_EACH(k);
    default:
        if (e->op <= TSR_EW_DIV_BY)
            TSR_R(tsr_apply_number)(e->op, n, k, a, out);
        else
            TSR_R(tsr_apply_function)(e->op, n, a, out);
    }
}

/* tsr_is_rare(); `at` is the place of the first in the output. */
TSR_ANYWHERE void TSR_R(tsr_apply_rare)(const struct tsr_elementwise *e, uint64_t at, unsigned n,
                                        TSR_REAL k, TSR_REAL (*in)[TSR_BLOCK], TSR_REAL *out)
{
    const TSR_REAL *a = in[0], *b = in[1], *c = in[2];
    switch (e->op) {
    case TSR_EW_COUNT_UP:
        TSR_EACH((TSR_REAL)(at + i));
    case TSR_EW_WHERE:
        TSR_EACH(a[i] != 0 ? b[i] : c[i]);
    case TSR_EW_TRIL:
        TSR_EACH((at + i) % e->columns <= (at + i) / e->columns ? a[i] : 0);
    case TSR_EW_POW:
        TSR_EACH(TSR_R(tsr_power)(a[i], k));
    case TSR_EW_TANH:
        TSR_EACH(TSR_M(tanh)(a[i]));
    case TSR_EW_COS:
        TSR_EACH(TSR_M(cos)(a[i]));
    default: /* TSR_EW_SIN */
        TSR_EACH(TSR_M(sin)(a[i]));
    }
}
#undef TSR_EACH

/* Over blocks of the output: tsr_grid_blocks(out.n). `rare`: tsr_is_rare(e->op), a constant. */
TSR_ANYWHERE void TSR_R(tsr_grid_apply)(const struct tsr_elementwise *e, bool rare, uint64_t begin,
                                        uint64_t step)
{
    TSR_REAL in[3][TSR_BLOCK], out[TSR_BLOCK];
    TSR_REAL c = (TSR_REAL)(e->c_at ? *e->c_at : e->c);
    const struct tsr_elems *const both[2] = {&e->in[0], &e->in[1]};
    bool two =
        !rare && e->n_in == 2 && !e->per_row && e->in[0].n >= e->out.n && e->in[1].n >= e->out.n;
    for (uint64_t block = begin; block < tsr_grid_blocks(e->out.n); block += step) {
        uint64_t at = block * TSR_BLOCK, left = e->out.n - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        const uint64_t all[2] = {at, at};
        if (two)
            TSR_R(tsr_load_several)(both, all, 2, n, in);
        TSR_UNROLL
        for (unsigned i = 0; i < (rare ? 3 : 2); i++) {
            if (i >= e->n_in || two)
                continue;
            if (e->per_row >> i & 1)
                TSR_R(tsr_load_per_row)(&e->in[i], e->columns, at, n, in[i]);
            else
                TSR_R(tsr_load_repeated)(&e->in[i], at, n, in[i]);
        }
        if (rare)
            TSR_R(tsr_apply_rare)(e, at, n, c, in, out);
        else
            TSR_R(tsr_apply)(e, n, c, in, out);
        TSR_R(tsr_store)(&e->out, at, n, out);
    }
}

TSR_ANYWHERE void TSR_R(tsr_grid_elementwise)(const struct tsr_elementwise *e, uint64_t begin,
                                              uint64_t step)
{
    TSR_R(tsr_grid_apply)(e, false, begin, step);
}

TSR_ANYWHERE void TSR_R(tsr_grid_rare)(const struct tsr_elementwise *e, uint64_t begin,
                                       uint64_t step)
{
    TSR_R(tsr_grid_apply)(e, true, begin, step);
}
