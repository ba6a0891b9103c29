/* bmm_real.h: template of bmm.c. */
#include "real.h"

/* Memory of one head: all of a tensor in token order, a block of one, a block of scores. */
struct TSR_R(head) {
    TSR_REAL *all, *block, *scores, *memory;
};

static tsr_status TSR_R(open_head)(const struct tsr_kernel_call *call, const struct shape *s,
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
static uint64_t TSR_R(token)(const struct shape *s, uint64_t bh, uint64_t i)
{
    return (((bh / s->heads) * s->seq + i) * s->heads + bh % s->heads) * s->dim;
}

static void TSR_R(load_tokens)(const struct shape *s, const struct tsr_elems *x, uint64_t bh,
                               uint64_t i, uint64_t n, TSR_REAL *out)
{
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_load)(x, TSR_R(token)(s, bh, i + r), s->dim, out + r * s->dim);
}

static void TSR_R(store_tokens)(const struct shape *s, const struct tsr_elems *x, uint64_t bh,
                                uint64_t i, uint64_t n, const TSR_REAL *in)
{
    for (uint64_t r = 0; r < n; r++)
        TSR_R(tsr_store)(x, TSR_R(token)(s, bh, i + r), s->dim, in + r * s->dim);
}

static tsr_status TSR_R(bmm_outer)(const struct tsr_kernel_call *call)
{
    struct shape s;
    struct tsr_elems x, y, out;
    struct TSR_R(head) h = {.memory = NULL};
    TSR_TRY(shape_of(call, strcmp(call->work->name, "bmm_scores") == 0, &s));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, s.tokens, &x));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, s.tokens, &y));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, s.scores, &out));
    TSR_TRY(TSR_R(open_head)(call, &s, &h));
    struct tsr_gemm g = {.tb = true, .n = s.seq, .k = s.dim, .alpha = s.alpha};
    g.lda = g.ldb = s.dim;
    g.ldc = s.seq;
    for (uint64_t bh = 0; bh < s.batch * s.heads; bh++) {
        TSR_R(load_tokens)(&s, &y, bh, 0, s.seq, h.all);
        for (uint64_t i = 0; i < s.seq; i += BLOCK) {
            g.m = tsr_min_u64(BLOCK, s.seq - i);
            TSR_R(load_tokens)(&s, &x, bh, i, g.m, h.block);
            TSR_R(tsr__gemm)(&g, h.block, h.all, h.scores);
            TSR_R(tsr_store)(&out, (bh * s.seq + i) * s.seq, g.m * s.seq, h.scores);
        }
    }
    free(h.memory);
    return TSR_OK;
}

static tsr_status TSR_R(bmm_apply)(const struct tsr_kernel_call *call)
{
    struct shape s;
    struct tsr_elems p, y, out;
    struct TSR_R(head) h = {.memory = NULL};
    TSR_TRY(shape_of(call, strcmp(call->work->name, "bmm_grad_q") == 0, &s));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, s.scores, &p));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, s.tokens, &y));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, s.tokens, &out));
    TSR_TRY(TSR_R(open_head)(call, &s, &h));
    struct tsr_gemm g = {.n = s.dim, .k = s.seq, .lda = s.seq, .alpha = s.alpha};
    g.ldb = g.ldc = s.dim;
    for (uint64_t bh = 0; bh < s.batch * s.heads; bh++) {
        TSR_R(load_tokens)(&s, &y, bh, 0, s.seq, h.all);
        for (uint64_t i = 0; i < s.seq; i += BLOCK) {
            g.m = tsr_min_u64(BLOCK, s.seq - i);
            TSR_R(tsr_load)(&p, (bh * s.seq + i) * s.seq, g.m * s.seq, h.scores);
            TSR_R(tsr__gemm)(&g, h.scores, h.all, h.block);
            TSR_R(store_tokens)(&s, &out, bh, i, g.m, h.block);
        }
    }
    free(h.memory);
    return TSR_OK;
}

/* The scores are slot 0 of grad_k, slot 1 of grad_v. */
static tsr_status TSR_R(bmm_transposed)(const struct tsr_kernel_call *call)
{
    struct shape s;
    struct tsr_elems p, x, out;
    struct TSR_R(head) h = {.memory = NULL};
    bool keys = strcmp(call->work->name, "bmm_grad_k") == 0;
    TSR_TRY(shape_of(call, keys, &s));
    TSR_TRY(tsr__in(call, keys ? 0 : 1, TSR_OPERAND_FLOAT, s.scores, &p));
    TSR_TRY(tsr__in(call, keys ? 1 : 0, TSR_OPERAND_FLOAT, s.tokens, &x));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, s.tokens, &out));
    TSR_TRY(TSR_R(open_head)(call, &s, &h));
    struct tsr_gemm g = {.ta = true, .m = s.seq, .n = s.dim, .lda = s.seq, .alpha = s.alpha};
    g.ldb = g.ldc = s.dim;
    for (uint64_t bh = 0; bh < s.batch * s.heads; bh++) {
        for (uint64_t i = 0; i < s.seq; i += BLOCK) {
            g.k = tsr_min_u64(BLOCK, s.seq - i);
            g.beta = i > 0;
            TSR_R(tsr_load)(&p, (bh * s.seq + i) * s.seq, g.k * s.seq, h.scores);
            TSR_R(load_tokens)(&s, &x, bh, i, g.k, h.block);
            TSR_R(tsr__gemm)(&g, h.scores, h.block, h.all);
        }
        TSR_R(store_tokens)(&s, &out, bh, 0, s.seq, h.all);
    }
    free(h.memory);
    return TSR_OK;
}
