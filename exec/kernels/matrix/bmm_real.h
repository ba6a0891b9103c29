/* bmm_real.h: template of bmm.c. */
#include "exec/kernels/tensor/real.h"

/* Memory of one head: all of a tensor in token order, a block of one, a block of scores. */
struct TSR_R(head) {
    TSR_REAL *all, *block, *scores, *memory;
};

static tsr_status TSR_R(open_head)(const struct tsr_kernel_call *call, const struct tsr_bmm *s,
                                   struct TSR_R(head) * h)
{
    uint64_t all = s->seq * s->dim, block = BLOCK * s->dim;
    h->memory = malloc((all + block + BLOCK * s->seq + 1) * sizeof(TSR_REAL));
    if (!h->memory)
        return tsr__no_memory(call);
    h->all = h->memory;
    h->block = h->all + all;
    h->scores = h->block + block;
    return TSR_OK;
}

/* Tokens [i, i + n) of head bh = batch * heads + head. */
static uint64_t TSR_R(token)(const struct tsr_bmm *s, uint64_t bh, uint64_t i)
{
    return (((bh / s->heads) * s->seq + i) * s->heads + bh % s->heads) * s->dim;
}

static void TSR_R(load_tokens)(const struct tsr_bmm *s, const struct tsr_elems *x, uint64_t bh,
                               uint64_t i, uint64_t n, TSR_REAL *out)
{
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_load)(x, TSR_R(token)(s, bh, i + r), s->dim, out + r * s->dim);
}

static void TSR_R(store_tokens)(const struct tsr_bmm *s, const struct tsr_elems *x, uint64_t bh,
                                uint64_t i, uint64_t n, const TSR_REAL *in)
{
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_store)(x, TSR_R(token)(s, bh, i + r), s->dim, in + r * s->dim);
}

static void TSR_R(bmm_outer)(const struct tsr_bmm *s, const struct TSR_R(head) * h, uint64_t bh)
{
    struct tsr_gemm g = {.tb = true, .n = s->seq, .k = s->dim, .alpha = s->alpha};
    g.lda = g.ldb = s->dim;
    g.ldc = s->seq;
    TSR_R(load_tokens)(s, &s->b, bh, 0, s->seq, h->all);
    for (uint64_t i = 0; i < s->seq; i += BLOCK) {
        g.m = tsr_min_u64(BLOCK, s->seq - i);
        TSR_R(load_tokens)(s, &s->a, bh, i, g.m, h->block);
        TSR_R(tsr__gemm)(&g, h->block, h->all, h->scores);
        TSR_R(tsr_store)(&s->out, (bh * s->seq + i) * s->seq, g.m * s->seq, h->scores);
    }
}

static void TSR_R(bmm_apply)(const struct tsr_bmm *s, const struct TSR_R(head) * h, uint64_t bh)
{
    struct tsr_gemm g = {.n = s->dim, .k = s->seq, .lda = s->seq, .alpha = s->alpha};
    g.ldb = g.ldc = s->dim;
    TSR_R(load_tokens)(s, &s->b, bh, 0, s->seq, h->all);
    for (uint64_t i = 0; i < s->seq; i += BLOCK) {
        g.m = tsr_min_u64(BLOCK, s->seq - i);
        TSR_R(tsr_load)(&s->a, (bh * s->seq + i) * s->seq, g.m * s->seq, h->scores);
        TSR_R(tsr__gemm)(&g, h->scores, h->all, h->block);
        TSR_R(store_tokens)(s, &s->out, bh, i, g.m, h->block);
    }
}

static void TSR_R(bmm_transposed)(const struct tsr_bmm *s, const struct TSR_R(head) * h,
                                  uint64_t bh)
{
    struct tsr_gemm g = {.ta = true, .m = s->seq, .n = s->dim, .lda = s->seq, .alpha = s->alpha};
    g.ldb = g.ldc = s->dim;
    for (uint64_t i = 0; i < s->seq; i += BLOCK) {
        g.k = tsr_min_u64(BLOCK, s->seq - i);
        g.beta = i > 0;
        TSR_R(tsr_load)(&s->a, (bh * s->seq + i) * s->seq, g.k * s->seq, h->scores);
        TSR_R(load_tokens)(s, &s->b, bh, i, g.k, h->block);
        TSR_R(tsr__gemm)(&g, h->scores, h->block, h->all);
    }
    TSR_R(store_tokens)(s, &s->out, bh, 0, s->seq, h->all);
}

static tsr_status TSR_R(bmm)(const struct tsr_kernel_call *call, const struct tsr_bmm *s)
{
    struct TSR_R(head) h = {.memory = NULL};
    TSR_TRY(TSR_R(open_head)(call, s, &h));
    for (uint64_t bh = 0; bh < s->batch * s->heads; bh++) {
        if (s->form == TSR_BMM_OUTER)
            TSR_R(bmm_outer)(s, &h, bh);
        else if (s->form == TSR_BMM_APPLY)
            TSR_R(bmm_apply)(s, &h, bh);
        else
            TSR_R(bmm_transposed)(s, &h, bh);
    }
    free(h.memory);
    return TSR_OK;
}
