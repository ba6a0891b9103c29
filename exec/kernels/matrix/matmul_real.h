/* matmul_real.h: template of matmul.c. */
#include "exec/kernels/tensor/real.h"

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
    bool wide = sizeof(TSR_REAL) == 8;
    struct TSR_R(multiplication) x = {.m = p->m, .n = p->n, .k = p->k};
    x.a = matrix_of(&p->a, p->ta ? p->k : p->m, p->ta ? p->m : p->k, wide);
    x.b = matrix_of(&p->b, p->tb ? p->n : p->k, p->tb ? p->k : p->n, wide);
    x.out = matrix_of(&p->out, p->m, p->n, wide);
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
