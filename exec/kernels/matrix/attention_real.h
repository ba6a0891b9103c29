/* attention_real.h: template of attention.c. */
#include "exec/kernels/tensor/real.h"

/* Keys and values of a head, a block of queries, their scores. */
struct TSR_R(forward) {
    TSR_REAL *k, *v, *q, *scores, *memory;
};

static tsr_status TSR_R(open_forward)(const struct tsr_kernel_call *call,
                                      const struct tsr_attention_operands *a,
                                      struct TSR_R(forward) * w)
{
    uint64_t kv = a->keys * a->dim, q = TSR_QUERY_BLOCK * a->dim;
    w->memory = malloc((2 * kv + q + TSR_QUERY_BLOCK * a->keys + 1) * sizeof(TSR_REAL));
    if (!w->memory)
        return tsr__no_memory(call);
    w->k = w->memory;
    w->v = w->k + kv;
    w->q = w->v + kv;
    w->scores = w->q + q;
    return TSR_OK;
}

/* A row of `keys` scores, of which `seen` count, becomes weights; *lse: as stored. */
static void TSR_R(weights_of_row)(TSR_REAL *row, uint64_t seen, uint64_t keys, TSR_REAL *lse)
{
    TSR_REAL max = -(TSR_REAL)INFINITY;
    struct TSR_R(tsr_sum) sum = {{0}};
    for (uint64_t j = 0; j < seen; j++)
        max = row[j] > max ? row[j] : max;
    for (uint64_t j = 0; j < seen; j++)
        row[j] = TSR_R(tsr_exp)(row[j] - max);
    TSR_R(tsr_sum_add)(&sum, row, (unsigned)seen);
    double total = TSR_R(tsr_sum_total)(&sum);
    TSR_REAL factor = (TSR_REAL)(1 / total);
    for (uint64_t j = 0; j < seen; j++)
        row[j] *= factor;
    for (uint64_t j = seen; j < keys; j++)
        row[j] = 0;
    *lse = (TSR_REAL)((double)max + log(total));
}

/* Queries [i, i + n) of a head. */
static void TSR_R(forward_block)(const struct tsr_attention_operands *a,
                                 const struct TSR_R(forward) * w, uint64_t b, uint64_t h,
                                 uint64_t i, uint64_t n)
{
    uint64_t keys = tsr_attention_seen(a, i + n);
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_load)
    (&a->q, tsr_attention_row(a, a->heads, a->queries, b, h, i + r), a->dim, w->q + r * a->dim);
    struct tsr_gemm scores = {.tb = true, .m = n, .n = keys, .k = a->dim, .alpha = a->scale};
    scores.lda = scores.ldb = a->dim;
    scores.ldc = keys;
    TSR_R(tsr__gemm)(&scores, w->q, w->k, w->scores);
    for (uint64_t r = 0; r < n; r++) {
        TSR_REAL lse;
        TSR_R(weights_of_row)(w->scores + r * keys, tsr_attention_seen(a, i + r + 1), keys, &lse);
        TSR_R(tsr_store)(&a->lse, (b * a->heads + h) * a->lse_row + i + r, 1, &lse);
    }
    struct tsr_gemm values = {.m = n, .n = a->dim, .k = keys, .lda = keys, .alpha = 1};
    values.ldb = values.ldc = a->dim;
    TSR_R(tsr__gemm)(&values, w->scores, w->v, w->q);
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_store)
    (&a->out, tsr_attention_row(a, a->heads, a->queries, b, h, i + r), a->dim, w->q + r * a->dim);
}

static tsr_status TSR_R(attention)(const struct tsr_kernel_call *call)
{
    struct tsr_attention_operands a;
    struct TSR_R(forward) w = {.memory = NULL};
    TSR_TRY(tsr__attention_operands(call, true, &a));
    TSR_TRY(TSR_R(open_forward)(call, &a, &w));
    for (uint64_t bh = 0; bh < a.batch * a.heads; bh++) {
        uint64_t b = bh / a.heads, h = bh % a.heads, kv = h * a.kv_heads / a.heads;
        for (uint64_t t = 0; t < a.keys; t++) {
            uint64_t at = tsr_attention_row(&a, a.kv_heads, a.keys, b, kv, t);
            TSR_R(tsr_load)(&a.k, at, a.dim, w.k + t * a.dim);
            TSR_R(tsr_load)(&a.v, at, a.dim, w.v + t * a.dim);
        }
        for (uint64_t i = 0; i < a.queries; i += TSR_QUERY_BLOCK)
            TSR_R(forward_block)(&a, &w, b, h, i, tsr_min_u64(TSR_QUERY_BLOCK, a.queries - i));
        const TSR_REAL padding = (TSR_REAL)INFINITY;
        for (uint64_t i = a.queries; i < a.lse_row; i++)
            TSR_R(tsr_store)(&a.lse, bh * a.lse_row + i, 1, &padding);
    }
    free(w.memory);
    return TSR_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The gradients, a block of queries at a time: weights again from scores and lse; those of a
 * key/value head are summed over its query heads in order. */

/* Of a key/value head: keys, values and their gradients. Of a block of queries: q, gradient of the
 * result, weights p, gradient of the scores s. */
struct TSR_R(backward) {
    TSR_REAL *k, *v, *gk, *gv, *q, *g, *p, *s, *memory;
};

static tsr_status TSR_R(open_backward)(const struct tsr_kernel_call *call,
                                       const struct tsr_attention_operands *a,
                                       struct TSR_R(backward) * w)
{
    uint64_t kv = a->keys * a->dim, q = TSR_QUERY_BLOCK * a->dim, s = TSR_QUERY_BLOCK * a->keys;
    w->memory = malloc((4 * kv + 2 * q + 2 * s + 1) * sizeof(TSR_REAL));
    if (!w->memory)
        return tsr__no_memory(call);
    w->k = w->memory;
    w->v = w->k + kv;
    w->gk = w->v + kv;
    w->gv = w->gk + kv;
    w->q = w->gv + kv;
    w->g = w->q + q;
    w->p = w->g + q;
    w->s = w->p + s;
    return TSR_OK;
}

/* Row r of a block: p = exp(score - lse), s = p (s - sum(g out)); what is masked is 0. */
static void TSR_R(backward_row)(const struct tsr_attention_operands *a,
                                const struct TSR_R(backward) * w, uint64_t b, uint64_t h,
                                uint64_t i, uint64_t r, uint64_t keys)
{
    uint64_t at = tsr_attention_row(a, a->heads, a->queries, b, h, i + r);
    uint64_t seen = tsr_attention_seen(a, i + r + 1);
    TSR_REAL *p = w->p + r * keys, *s = w->s + r * keys;
    TSR_REAL delta = (TSR_REAL)TSR_R(tsr_row_dot)(&a->g, &a->out, at, a->dim);
    TSR_REAL lse = TSR_R(tsr_load_one)(&a->lse, (b * a->heads + h) * a->lse_row + i + r);
    for (uint64_t j = 0; j < seen; j++)
        p[j] = TSR_R(tsr_exp)(p[j] - lse);
    for (uint64_t j = 0; j < seen; j++)
        s[j] = p[j] * (s[j] - delta);
    for (uint64_t j = seen; j < keys; j++)
        p[j] = s[j] = 0;
}

/* Queries [i, i + n) of a head. */
static void TSR_R(backward_block)(const struct tsr_attention_operands *a,
                                  const struct TSR_R(backward) * w, uint64_t b, uint64_t h,
                                  uint64_t i, uint64_t n)
{
    uint64_t keys = tsr_attention_seen(a, i + n), d = a->dim;
    for (uint64_t r = 0; r < n; r++) {
        uint64_t at = tsr_attention_row(a, a->heads, a->queries, b, h, i + r);
        TSR_R(tsr_load)(&a->q, at, d, w->q + r * d);
        TSR_R(tsr_load)(&a->g, at, d, w->g + r * d);
    }
    struct tsr_gemm by_keys = {.tb = true, .m = n, .n = keys, .k = d, .lda = d, .ldb = d};
    by_keys.ldc = keys;
    by_keys.alpha = a->scale;
    TSR_R(tsr__gemm)(&by_keys, w->q, w->k, w->p);
    by_keys.alpha = 1;
    TSR_R(tsr__gemm)(&by_keys, w->g, w->v, w->s);
    for (uint64_t r = 0; r < n; r++)
        TSR_R(backward_row)(a, w, b, h, i, r, keys);
    struct tsr_gemm by_queries = {.ta = true, .m = keys, .n = d, .k = n, .lda = keys, .ldb = d};
    by_queries.ldc = d;
    by_queries.alpha = by_queries.beta = 1;
    TSR_R(tsr__gemm)(&by_queries, w->p, w->g, w->gv);
    by_queries.alpha = a->scale;
    TSR_R(tsr__gemm)(&by_queries, w->s, w->q, w->gk);
    struct tsr_gemm of_q = {.m = n, .n = d, .k = keys, .lda = keys, .ldb = d, .ldc = d};
    of_q.alpha = a->scale;
    TSR_R(tsr__gemm)(&of_q, w->s, w->k, w->q);
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_store)
    (&a->gq, tsr_attention_row(a, a->heads, a->queries, b, h, i + r), d, w->q + r * d);
}

static void TSR_R(backward_kv_head)(const struct tsr_attention_operands *a,
                                    const struct TSR_R(backward) * w, uint64_t b, uint64_t kv)
{
    uint64_t times = a->heads / a->kv_heads, d = a->dim;
    for (uint64_t t = 0; t < a->keys; t++) {
        uint64_t at = tsr_attention_row(a, a->kv_heads, a->keys, b, kv, t);
        TSR_R(tsr_load)(&a->k, at, d, w->k + t * d);
        TSR_R(tsr_load)(&a->v, at, d, w->v + t * d);
    }
    memset(w->gk, 0, a->keys * d * sizeof(TSR_REAL));
    memset(w->gv, 0, a->keys * d * sizeof(TSR_REAL));
    for (uint64_t h = kv * times; h < (kv + 1) * times; h++)
        for (uint64_t i = 0; i < a->queries; i += TSR_QUERY_BLOCK)
            TSR_R(backward_block)(a, w, b, h, i, tsr_min_u64(TSR_QUERY_BLOCK, a->queries - i));
    for (uint64_t t = 0; t < a->keys; t++) {
        uint64_t at = tsr_attention_row(a, a->kv_heads, a->keys, b, kv, t);
        TSR_R(tsr_store)(&a->gk, at, d, w->gk + t * d);
        TSR_R(tsr_store)(&a->gv, at, d, w->gv + t * d);
    }
}

static tsr_status TSR_R(attention_backward)(const struct tsr_kernel_call *call)
{
    struct tsr_attention_operands a;
    struct TSR_R(backward) w = {.memory = NULL};
    TSR_TRY(tsr__attention_operands(call, false, &a));
    TSR_TRY(TSR_R(open_backward)(call, &a, &w));
    for (uint64_t b = 0; b < a.batch; b++)
        for (uint64_t kv = 0; kv < a.kv_heads; kv++)
            TSR_R(backward_kv_head)(&a, &w, b, kv);
    free(w.memory);
    return TSR_OK;
}
