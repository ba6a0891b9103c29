/* grid_elementwise_real.h: template of grid_elementwise.h. */
#include "exec/kernels/tensor/real.h"

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
    case TSR_EW_SIN:
        TSR_EACH(TSR_M(sin)(a[i]));
    case TSR_EW_GELU_ERF:
        TSR_EACH(a[i] * TSR_R(tsr_normal_cdf)(a[i]));
    default: /* TSR_EW_GELU_ERF_BACKWARD */
        TSR_EACH(a[i] * TSR_R(tsr_gelu_erf_slope)(b[i]));
    }
}
#undef TSR_EACH

/* True if the operands are as long as the output, so that no element is repeated. */
TSR_ANYWHERE bool TSR_R(tsr_are_alike)(const struct tsr_elementwise *e, unsigned n_in)
{
    bool alike = e->n_in == n_in && !e->per_row;
    TSR_UNROLL
    for (unsigned i = 0; i < n_in; i++)
        alike = alike && e->in[i].n >= e->out.n;
    return alike;
}

/* Block `block` of the output. `rare`: tsr_is_rare(e->op); `two`: two operands that are alike. */
TSR_ANYWHERE void TSR_R(tsr_apply_block)(const struct tsr_elementwise *e, bool rare, bool two,
                                         TSR_REAL c, uint64_t block)
{
    const struct tsr_elems *const both[2] = {&e->in[0], &e->in[1]};
    TSR_REAL in[3][TSR_BLOCK], out[TSR_BLOCK];
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

#if TSR_BLOCK == 8 && !TSR_REAL_F64
/* Functions of one operand of 16 bits whose words are all whole: from `begin` on pairs of blocks,
 * both on their way at once, and nothing looked up for each. The first block that is left. */
TSR_ANYWHERE uint64_t tsr_apply_pairs(const struct tsr_elementwise *e, float c, uint64_t begin,
                                      uint64_t step)
{
    uint64_t block = begin, whole = e->out.n / 8;
    if (!tsr_are_alike_f32(e, 1) || e->in[0].item != 2 || e->out.dtype != e->in[0].dtype ||
        !tsr_may_spread(&e->in[0], 0) || !tsr_may_spread(&e->out, 0))
        return block;
    for (; block + step < whole; block += 2 * step) {
        float in[3][8], out[8];
        uint32_t raw[2][4];
        tsr_get_words(e->in[0].data + 16 * block, raw[0]);
        tsr_get_words(e->in[0].data + 16 * (block + step), raw[1]);
        TSR_NO_UNROLL
        for (unsigned k = 0; k < 2; k++) { /* the code of all functions is there once */
            uint32_t word[4];
            TSR_UNROLL
            for (unsigned i = 0; i < 4; i++)
                word[i] = k ? raw[1][i] : raw[0][i];
            tsr_of_raw_f32(word, e->in[0].dtype, in[0]);
            tsr_apply_f32(e, 8, c, in, out);
            tsr_store_words_f32(e->out.data + 16 * (block + k * step), e->out.dtype, out);
        }
    }
    return block;
}
#endif

/* Over blocks of the output: tsr_grid_blocks(out.n). `rare`: tsr_is_rare(e->op), a constant. */
TSR_ANYWHERE void TSR_R(tsr_grid_apply)(const struct tsr_elementwise *e, bool rare, uint64_t begin,
                                        uint64_t step)
{
    TSR_REAL c = (TSR_REAL)(e->c_at ? *e->c_at : e->c);
    bool two = !rare && TSR_R(tsr_are_alike)(e, 2);
    uint64_t block = begin;
#if TSR_BLOCK == 8 && !TSR_REAL_F64
    if (!rare)
        block = tsr_apply_pairs(e, c, begin, step);
#endif
    TSR_NO_UNROLL
    for (; block < tsr_grid_blocks(e->out.n); block += step)
        TSR_R(tsr_apply_block)(e, rare, two, c, block);
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

/* ---- silu(gate) * up and its gradients ------------------------------------------------------- */

/* Over tsr_grid_blocks(gate.n). */
TSR_ANYWHERE void TSR_R(tsr_grid_swiglu)(const struct tsr_swiglu *k, uint64_t begin, uint64_t step)
{
    const struct tsr_elems *const from[2] = {&k->gate, &k->up};
    TSR_REAL x[2][TSR_BLOCK], *gate = x[0], *up = x[1];
    for (uint64_t block = begin; block < tsr_grid_blocks(k->gate.n); block += step) {
        uint64_t at = block * TSR_BLOCK, left = k->gate.n - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        const uint64_t all[2] = {at, at};
        TSR_R(tsr_load_several)(from, all, 2, n, x);
        TSR_LANES (i, n)
            up[i] *= TSR_R(tsr_silu)(gate[i]);
        TSR_R(tsr_store)(&k->out, at, n, up);
    }
}

/* All of a block is read before anything of it is written. */
TSR_ANYWHERE void TSR_R(tsr_grid_swiglu_backward)(const struct tsr_swiglu *k, uint64_t begin,
                                                  uint64_t step)
{
    const struct tsr_elems *const from[3] = {&k->g, &k->gate, &k->up};
    TSR_REAL x[3][TSR_BLOCK], *g = x[0], *gate = x[1], *up = x[2];
    for (uint64_t block = begin; block < tsr_grid_blocks(k->gate.n); block += step) {
        uint64_t at = block * TSR_BLOCK, left = k->gate.n - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        const uint64_t all[3] = {at, at, at};
        TSR_R(tsr_load_several)(from, all, 3, n, x);
        TSR_LANES (i, n) {
            TSR_REAL of_gate = g[i] * up[i] * TSR_R(tsr_silu_slope)(gate[i]);
            up[i] = g[i] * TSR_R(tsr_silu)(gate[i]);
            gate[i] = of_gate;
        }
        if (k->grad_gate.data)
            TSR_R(tsr_store)(&k->grad_gate, at, n, gate);
        if (k->grad_up.data)
            TSR_R(tsr_store)(&k->grad_up, at, n, up);
    }
}
