/* cublaslt.c: stand-in of cuBLASLt: descriptors are checked when a product is asked for, as the
 * real one checks them, and it is computed late, on the stream, in double. Algorithms have a
 * number, and belong to the problem that they were chosen for: with another one, or at addresses
 * that are less aligned than was promised, they are refused.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cublasLt.h>

#include "engine/program/base.h"
#include "exec/base/numeric.h"
#include "tests/standin/standin.h"

struct layout {
    cudaDataType_t type;
    int32_t count;
    uint64_t rows, columns;
    int64_t row, step;
};
struct desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose[2], sms, of_bias;
    uint32_t epilogue;
    const void *bias;
};
struct preference {
    uint64_t workspace;
    uint32_t reductions, align[4]; /* a, b, c, d */
};
struct algo {
    uint32_t number, align[4];
    uint64_t workspace, problem;
};

static int one_handle;
static _Atomic unsigned chosen;
static _Atomic unsigned slow;
static _Atomic size_t version = 130100;

unsigned tsr_standin_algorithm(void)
{
    return chosen;
}

void tsr_standin_slow_algorithms(unsigned below)
{
    slow = below;
}

void tsr_standin_cublaslt_version(size_t v)
{
    version = v;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    TSR_STANDIN(cublasLtCreate, cublasStatus_t);
    *out = (cublasLtHandle_t)&one_handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

size_t cublasLtGetVersion(void)
{
    return version;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_EXECUTION_FAILED";
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t out, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    TSR_STANDIN(cublasLtMatrixLayoutInit, cublasStatus_t);
    struct layout l = {type, 1, rows, cols, ld, 0};
    _Static_assert(sizeof l <= sizeof *out, "a layout fits");
    if (size != sizeof *out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(out, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void *value, size_t bytes)
{
    TSR_STANDIN(cublasLtMatrixLayoutSetAttribute, cublasStatus_t);
    struct layout l;
    memcpy(&l, layout, sizeof l);
    if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == 4)
        memcpy(&l.count, value, 4);
    else if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == 8)
        memcpy(&l.step, value, 8);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(layout, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t out, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    TSR_STANDIN(cublasLtMatmulDescInit, cublasStatus_t);
    struct desc d = {
        .compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .of_bias = -1};
    _Static_assert(sizeof d <= sizeof *out, "a description fits");
    if (size != sizeof *out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(out, &d, sizeof d);
    return CUBLAS_STATUS_SUCCESS;
}

/* Where an attribute of a product is kept; NULL: unknown, or of another size. */
static void *attribute(struct desc *d, cublasLtMatmulDescAttributes_t which, size_t bytes)
{
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return bytes == 4 ? &d->transpose[0] : NULL;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return bytes == 4 ? &d->transpose[1] : NULL;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return bytes == 4 ? &d->sms : NULL;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return bytes == 4 ? &d->epilogue : NULL;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return bytes == 4 ? &d->of_bias : NULL;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return bytes == sizeof d->bias ? &d->bias : NULL;
    default:
        return NULL;
    }
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    TSR_STANDIN(cublasLtMatmulDescSetAttribute, cublasStatus_t);
    struct desc d;
    memcpy(&d, desc, sizeof d);
    void *at = attribute(&d, which, bytes);
    if (!at)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(at, value, bytes);
    memcpy(desc, &d, sizeof d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t out, size_t size)
{
    TSR_STANDIN(cublasLtMatmulPreferenceInit, cublasStatus_t);
    struct preference p = {.reductions = CUBLASLT_REDUCTION_SCHEME_MASK,
                           .align = {256, 256, 256, 256}};
    _Static_assert(sizeof p <= sizeof *out, "a preference fits");
    if (size != sizeof *out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(out, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes)
{
    TSR_STANDIN(cublasLtMatmulPreferenceSetAttribute, cublasStatus_t);
    struct preference p;
    memcpy(&p, preference, sizeof p);
    bool align = which >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
                 which <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES;
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8)
        memcpy(&p.workspace, value, 8);
    else if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == 4)
        memcpy(&p.reductions, value, 4);
    else if (align && bytes == 4)
        memcpy(&p.align[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, 4);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(preference, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- problems -------------------------------------------------------------------------------- */

struct problem {
    struct desc desc;
    struct layout a, b, c, d;
};

static struct problem problem_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                 cublasLtMatrixLayout_t d)
{
    struct problem p;
    memset(&p, 0, sizeof p);
    memcpy(&p.desc, desc, sizeof p.desc);
    memcpy(&p.a, a, sizeof p.a);
    memcpy(&p.b, b, sizeof p.b);
    memcpy(&p.c, c, sizeof p.c);
    memcpy(&p.d, d, sizeof p.d);
    return p;
}

/* A number for the problem without the addresses in it. */
static uint64_t name_of(const struct problem *p)
{
    const struct desc *x = &p->desc;
    uint64_t hash = tsr_hash_bytes(1, &x->compute, sizeof x->compute);
    hash = tsr_hash_bytes(hash, x->transpose, sizeof x->transpose);
    hash = tsr_hash_bytes(hash, &x->epilogue, sizeof x->epilogue);
    const struct layout *all[] = {&p->a, &p->b, &p->c, &p->d};
    for (int i = 0; i < 4; i++) {
        const uint64_t numbers[] = {(uint64_t)all[i]->type, (uint64_t)all[i]->count,
                                    all[i]->rows,           all[i]->columns,
                                    (uint64_t)all[i]->row,  (uint64_t)all[i]->step};
        hash = tsr_hash_bytes(hash, numbers, sizeof numbers);
    }
    return hash;
}

static size_t item(cudaDataType_t type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

static bool is_layout(const struct layout *l)
{
    return l->rows > 0 && l->columns > 0 && l->row >= (int64_t)l->rows && l->count > 0 &&
           l->step >= 0;
}

static bool fits(const struct problem *p)
{
    bool ta = p->desc.transpose[0] == CUBLAS_OP_T, tb = p->desc.transpose[1] == CUBLAS_OP_T;
    const struct layout *a = &p->a, *b = &p->b, *c = &p->c, *d = &p->d;
    if (!is_layout(a) || !is_layout(b) || !is_layout(c) || !is_layout(d))
        return false;
    if (a->count != d->count || b->count != d->count || c->count != d->count)
        return false;
    /* results of a batch do not lie one on the other */
    if (d->count > 1 && (d->step == 0 || c->step == 0))
        return false;
    return (ta ? a->columns : a->rows) == d->rows && (tb ? b->rows : b->columns) == d->columns &&
           (ta ? a->rows : a->columns) == (tb ? b->columns : b->rows) && c->rows == d->rows &&
           c->columns == d->columns;
}

/* The table of types in the manual of cublasLtMatmul(). */
static bool is_supported(const struct problem *p)
{
    bool wide = p->a.type == CUDA_R_64F, half = p->a.type == CUDA_R_16F || p->a.type == CUDA_R_16BF;
    bool bias = p->desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (p->a.type != p->b.type || p->c.type != p->d.type)
        return false;
    if (p->desc.compute != (wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F) ||
        p->desc.scale != (wide ? CUDA_R_64F : CUDA_R_32F))
        return false;
    if (p->d.type != p->a.type && !(half && p->d.type == CUDA_R_32F))
        return false;
    return !bias || (!wide && (p->desc.of_bias == -1 || p->desc.of_bias == (int32_t)p->d.type));
}

/* Three algorithms: without a workspace; with parts along k that are added at the end; with parts
 * that are added in place. */
static bool offers(const struct preference *q, uint32_t number)
{
    static const uint64_t workspace[] = {0, 4096, 64};
    static const uint32_t reduction[] = {0, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                         CUBLASLT_REDUCTION_SCHEME_INPLACE};
    return workspace[number] <= q->workspace &&
           (reduction[number] == 0 || (q->reductions & reduction[number]));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *n)
{
    TSR_STANDIN(cublasLtMatmulAlgoGetHeuristic, cublasStatus_t);
    struct problem p = problem_of(desc, a, b, c, d);
    struct preference q;
    memcpy(&q, preference, sizeof q);
    *n = 0;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!fits(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_supported(&p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint32_t number = 0; number < 3 && *n < most; number++) {
        if (!offers(&q, number))
            continue;
        struct algo algo = {.number = number,
                            .workspace = number == 0   ? 0
                                         : number == 1 ? 4096
                                                       : 64,
                            .problem = name_of(&p)};
        memcpy(algo.align, q.align, sizeof algo.align);
        _Static_assert(sizeof algo <= sizeof out->algo, "an algorithm fits");
        memset(&out[*n], 0, sizeof *out);
        memcpy(&out[*n].algo, &algo, sizeof algo);
        out[*n].workspaceSize = algo.workspace;
        out[(*n)++].state = CUBLAS_STATUS_SUCCESS;
    }
    return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    TSR_STANDIN(cublasLtMatmulAlgoCheck, cublasStatus_t);
    struct problem p = problem_of(desc, a, b, c, d);
    struct algo x;
    memcpy(&x, algo, sizeof x);
    if (!handle || !fits(&p) || x.number > 2 || x.problem != name_of(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    result->workspaceSize = x.workspace;
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products -------------------------------------------------------------------------------- */

struct product {
    struct problem problem;
    double alpha, beta;
    const unsigned char *a, *b, *c;
    unsigned char *d;
};

static double load(const unsigned char *at, cudaDataType_t type, uint64_t i)
{
    uint16_t half;
    float f;
    double x;
    memcpy(type == CUDA_R_64F   ? (void *)&x
           : type == CUDA_R_32F ? (void *)&f
                                : (void *)&half,
           at + i * item(type), item(type));
    return type == CUDA_R_64F    ? x
           : type == CUDA_R_32F  ? (double)f
           : type == CUDA_R_16BF ? (double)tsr_from_bf16(half)
                                 : (double)tsr_from_f16(half);
}

static void store(unsigned char *at, cudaDataType_t type, uint64_t i, double x)
{
    float f = (float)x;
    uint16_t half = type == CUDA_R_16BF ? tsr_to_bf16(f) : tsr_to_f16(f);
    memcpy(at + i * item(type),
           type == CUDA_R_64F   ? (const void *)&x
           : type == CUDA_R_32F ? (const void *)&f
                                : (const void *)&half,
           item(type));
}

/* op(x) of one of the batch in rows of its own; NULL: out of memory. */
static double *unpacked(const unsigned char *at, const struct layout *l, int64_t of, bool transpose)
{
    double *x = malloc(l->rows * l->columns * sizeof *x);
    for (uint64_t c = 0; x && c < l->columns; c++)
        for (uint64_t r = 0; r < l->rows; r++)
            x[transpose ? c * l->rows + r : r * l->columns + c] =
                load(at, l->type, (uint64_t)(of * l->step + (int64_t)c * l->row) + r);
    return x;
}

/* row += x[0 ... n - 1] times rows of b, each sum in the order of the rows: the bits are those of
 * one row after the other. */
static void add_rows(double *restrict row, const double *x, const double *restrict b, uint64_t n,
                     uint64_t columns)
{
    uint64_t q = 0;
    for (; q + 4 <= n; q += 4) {
        const double *r = b + q * columns;
        for (uint64_t j = 0; j < columns; j++)
            row[j] = row[j] + x[q] * r[j] + x[q + 1] * r[columns + j] +
                     x[q + 2] * r[2 * columns + j] + x[q + 3] * r[3 * columns + j];
    }
    for (; q < n; q++)
        for (uint64_t j = 0; j < columns; j++)
            row[j] += x[q] * b[q * columns + j];
}

static void multiply(const struct product *p, int64_t of, const double *a, const double *b,
                     double *row)
{
    const struct layout *d = &p->problem.d, *c = &p->problem.c;
    bool ta = p->problem.desc.transpose[0] == CUBLAS_OP_T;
    uint64_t k = ta ? p->problem.a.rows : p->problem.a.columns;
    const unsigned char *bias =
        p->problem.desc.epilogue == CUBLASLT_EPILOGUE_BIAS ? p->problem.desc.bias : NULL;
    for (uint64_t i = 0; i < d->rows; i++) {
        memset(row, 0, d->columns * sizeof *row);
        add_rows(row, a + i * k, b, k, d->columns);
        for (uint64_t j = 0; j < d->columns; j++) {
            double x = p->alpha * row[j] + (bias ? load(bias, d->type, i) : 0);
            if (p->beta != 0)
                x += p->beta *
                     load(p->c, c->type, (uint64_t)(of * c->step + (int64_t)j * c->row) + i);
            store(p->d, d->type, (uint64_t)(of * d->step + (int64_t)j * d->row) + i, x);
        }
    }
}

static int run(void *data)
{
    const struct product *p = data;
    const struct problem *q = &p->problem;
    double *row = malloc(q->d.columns * sizeof *row);
    bool ok = row != NULL;
    for (int64_t of = 0; of < q->d.count && ok; of++) {
        double *a = unpacked(p->a, &q->a, of, q->desc.transpose[0] == CUBLAS_OP_T);
        double *b = unpacked(p->b, &q->b, of, q->desc.transpose[1] == CUBLAS_OP_T);
        ok = a && b;
        if (ok)
            multiply(p, of, a, b, row);
        free(a);
        free(b);
    }
    free(row);
    return ok ? 0 : (int)cudaErrorMemoryAllocation;
}

static int run_slowly(void *data)
{
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    return run(data);
}

static bool is_aligned(const struct product *p, const struct algo *algo)
{
    const uintptr_t at[] = {(uintptr_t)p->a, (uintptr_t)p->b, (uintptr_t)p->c, (uintptr_t)p->d};
    const struct layout *l[] = {&p->problem.a, &p->problem.b, &p->problem.c, &p->problem.d};
    for (int i = 0; i < 4; i++) {
        uint64_t step = l[i]->count > 1 ? (uint64_t)l[i]->step * item(l[i]->type) : 0;
        if (algo->align[i] == 0 || at[i] % algo->align[i] || step % algo->align[i])
            return false;
    }
    bool bias = p->problem.desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
    return !bias || (uintptr_t)p->problem.desc.bias % algo->align[3] == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t of_a, const void *b,
                              cublasLtMatrixLayout_t of_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t of_c, void *d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    TSR_STANDIN(cublasLtMatmul, cublasStatus_t);
    struct product p = {
        .problem = problem_of(desc, of_a, of_b, of_c, of_d), .a = a, .b = b, .c = c, .d = d};
    struct algo x;
    memcpy(&x, algo, sizeof x);
    bool wide = p.problem.desc.scale == CUDA_R_64F;
    p.alpha = wide ? *(const double *)alpha : (double)*(const float *)alpha;
    p.beta = wide ? *(const double *)beta : (double)*(const float *)beta;
    bool bias = p.problem.desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (tsr_standin_left_error())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!handle || !fits(&p.problem) || x.problem != name_of(&p.problem) || !is_aligned(&p, &x) ||
        (bias && !p.problem.desc.bias) || (uintptr_t)workspace % 16)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (x.workspace > bytes || (x.workspace && !workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    chosen = x.number;
    return tsr_standin_enqueue(stream, x.number < slow ? run_slowly : run, &p, sizeof p) ==
                   cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
