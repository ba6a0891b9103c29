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
