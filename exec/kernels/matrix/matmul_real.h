/* matmul_real.h: template of matmul.c. */
#include "exec/kernels/tensor/real.h"

/* ---- in memory ------------------------------------------------------------------------------- */

/* c = beta c, without reading it if beta is 0. */
static void TSR_R(scale_result)(const struct tsr_gemm *g, TSR_REAL *c)
{
    TSR_REAL beta = (TSR_REAL)g->beta;
    for (uint64_t i = 0; i < g->m; i++)
        for (uint64_t j = 0; j < g->n; j++)
            c[i * g->ldc + j] = g->beta == 0 ? 0 : beta * c[i * g->ldc + j];
}

/* Row i of c += alpha op(a) op(b). */
static void TSR_R(plain_row)(const struct tsr_gemm *g, uint64_t i, const TSR_REAL *a,
                             const TSR_REAL *b, TSR_REAL *c)
{
    TSR_REAL alpha = (TSR_REAL)g->alpha;
    uint64_t a_step = g->ta ? g->lda : 1;
    const TSR_REAL *row = a + (g->ta ? i : i * g->lda);
    if (g->tb) {
        for (uint64_t j = 0; j < g->n; j++) {
            TSR_REAL sum = 0;
            for (uint64_t p = 0; p < g->k; p++)
                sum += row[p * a_step] * b[j * g->ldb + p];
            c[j] += alpha * sum;
        }
        return;
    }
    for (uint64_t p = 0; p < g->k; p++) {
        TSR_REAL factor = alpha * row[p * a_step];
        for (uint64_t j = 0; j < g->n; j++)
            c[j] += factor * b[p * g->ldb + j];
    }
}

void TSR_R(tsr__gemm)(const struct tsr_gemm *g, const TSR_REAL *a, const TSR_REAL *b, TSR_REAL *c)
{
    if (g->m == 0 || g->n == 0)
        return;
    const struct tsr_host_blas *blas = tsr__blas();
    if (blas && g->k > 0 && fits_blas(g)) {
        int ta = g->ta ? TSR_BLAS_TRANSPOSED : TSR_BLAS_AS_IS;
        int tb = g->tb ? TSR_BLAS_TRANSPOSED : TSR_BLAS_AS_IS;
#if TSR_REAL_F64
        blas->dgemm(TSR_BLAS_ROW_MAJOR, ta, tb, (int)g->m, (int)g->n, (int)g->k, g->alpha, a,
                    (int)g->lda, b, (int)g->ldb, g->beta, c, (int)g->ldc);
#else
        blas->sgemm(TSR_BLAS_ROW_MAJOR, ta, tb, (int)g->m, (int)g->n, (int)g->k, (float)g->alpha, a,
                    (int)g->lda, b, (int)g->ldb, (float)g->beta, c, (int)g->ldc);
#endif
        return;
    }
    TSR_R(scale_result)(g, c);
    for (uint64_t i = 0; i < g->m; i++)
        TSR_R(plain_row)(g, i, a, b, c + i * g->ldc);
}

/* ---- of a linear layer ----------------------------------------------------------------------- */

/* A part of a matrix that is ready to be multiplied. */
struct TSR_R(panel) {
    TSR_REAL *own; /* NULL: in place */
    const TSR_REAL *at;
    uint64_t pitch, row, column; /* row UINT64_MAX: nothing is loaded */
};

struct TSR_R(multiplication) {
    struct matrix a, b, out;
    uint64_t m, n, k; /* of a panel */
    struct TSR_R(panel) pa, pb;
    TSR_REAL *result; /* NULL: in place */
};

static void TSR_R(load_panel)(const struct matrix *m, uint64_t row, uint64_t column, uint64_t rows,
                              uint64_t columns, struct TSR_R(panel) * p)
{
    if (m->pitch) {
        p->at = (const TSR_REAL *)m->elems->data + row * m->pitch + column;
        p->pitch = m->pitch;
        return;
    }
    p->pitch = columns;
    if (p->row == row && p->column == column)
        return;
    for (uint64_t r = 0; r < rows; r++)
        TSR_R(tsr_load)(m->elems, (row + r) * m->columns + column, columns, p->own + r * columns);
    p->at = p->own;
    p->row = row;
    p->column = column;
}

/* What the product is added to. */
static void TSR_R(begin_result)(const struct tsr_product *p, uint64_t i, uint64_t j, uint64_t m,
                                uint64_t n, TSR_REAL *c, uint64_t pitch)
{
    for (uint64_t r = 0; r < m && p->bias.data; r++)
        TSR_R(tsr_load)(&p->bias, j, n, c + r * pitch);
    for (uint64_t r = 0; r < m && p->into.data; r++)
        TSR_R(tsr_load)(&p->into, (i + r) * p->n + j, n, c + r * pitch);
}

/* Rows [i, i + m), columns [j, j + n) of the result. */
static void TSR_R(result_panel)(const struct tsr_product *p, struct TSR_R(multiplication) * x,
                                uint64_t i, uint64_t j, uint64_t m, uint64_t n)
{
    TSR_REAL *c = x->result;
    struct tsr_gemm g = {.ta = p->ta, .tb = p->tb, .m = m, .n = n, .ldc = n, .alpha = 1};
    if (!c) {
        g.ldc = x->out.pitch;
        c = (TSR_REAL *)p->out.data + i * g.ldc + j;
    }
    if (p->bias.data || p->into.data) {
        g.beta = 1;
        TSR_R(begin_result)(p, i, j, m, n, c, g.ldc);
    }
    for (uint64_t q = 0; q < p->k || q == 0; q += x->k) {
        g.k = tsr_min_u64(x->k, p->k - q);
        TSR_R(load_panel)
        (&x->a, p->ta ? q : i, p->ta ? i : q, p->ta ? g.k : m, p->ta ? m : g.k, &x->pa);
        TSR_R(load_panel)
        (&x->b, p->tb ? j : q, p->tb ? q : j, p->tb ? n : g.k, p->tb ? g.k : n, &x->pb);
        g.lda = x->pa.pitch;
        g.ldb = x->pb.pitch;
        TSR_R(tsr__gemm)(&g, x->pa.at, x->pb.at, c);
        g.beta = 1;
    }
    for (uint64_t r = 0; r < m && x->result; r++)
        TSR_R(tsr_store)(&p->out, (i + r) * p->n + j, n, c + r * g.ldc);
}

/* False: out of memory. What was allocated is in x. */
static bool TSR_R(allocate)(struct TSR_R(multiplication) * x)
{
    if (!x->a.pitch)
        x->pa.own = malloc((x->m * x->k + 1) * sizeof(TSR_REAL));
    if (!x->b.pitch)
        x->pb.own = malloc((x->k * x->n + 1) * sizeof(TSR_REAL));
    if (!x->out.pitch)
        x->result = malloc((x->m * x->n + 1) * sizeof(TSR_REAL));
    return (x->a.pitch || x->pa.own) && (x->b.pitch || x->pb.own) && (x->out.pitch || x->result);
}

static tsr_status TSR_R(multiply)(const struct tsr_kernel_call *call, const struct tsr_product *p)
{
    uint8_t real = sizeof(TSR_REAL) == 8 ? TSR_F64 : TSR_F32;
    struct TSR_R(multiplication) x = {.m = p->m, .n = p->n, .k = p->k};
    x.a = matrix_of(&p->a, p->ta ? p->k : p->m, p->ta ? p->m : p->k, real);
    x.b = matrix_of(&p->b, p->tb ? p->n : p->k, p->tb ? p->k : p->n, real);
    x.out = matrix_of(&p->out, p->m, p->n, real);
    x.k = tsr_max_u64(x.k, 1);
    x.pa.row = x.pb.row = UINT64_MAX;
    if (!x.a.pitch || !x.b.pitch || !x.out.pitch) {
        x.m = tsr_min_u64(x.m, PANEL);
        x.n = tsr_min_u64(x.n, PANEL);
        x.k = tsr_min_u64(x.k, PANEL);
    }
    bool ok = TSR_R(allocate)(&x);
    for (uint64_t i = 0; ok && i < p->m; i += x.m)
        for (uint64_t j = 0; j < p->n; j += x.n)
            TSR_R(result_panel)
    (p, &x, i, j, tsr_min_u64(x.m, p->m - i), tsr_min_u64(x.n, p->n - j));
    free(x.pa.own);
    free(x.pb.own);
    free(x.result);
    return ok ? TSR_OK : tsr__no_memory(call);
}

/* ---- batched --------------------------------------------------------------------------------- */

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
