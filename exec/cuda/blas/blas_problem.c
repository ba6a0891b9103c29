/* blas_problem.c: a row-major product in cuBLASLt's terms. It is column-major: what lies as (rows,
 * columns) here is (columns, rows) there, so it computes out^T = op(b)^T op(a)^T, and its leading
 * dimensions are the distances of our rows. Descriptors are plain structures on the stack: nothing
 * is allocated, and no two threads share one.
 */
#include <string.h>

#include "exec/cuda/blas/blas_impl.h"

/* cuBLASLt's advice for Hopper. */
enum { MOST_WORKSPACE = 32 << 20 };

static cudaDataType_t type_of(uint8_t dtype)
{
    switch (dtype) {
    case TSR_F32:
        return CUDA_R_32F;
    case TSR_BF16:
        return CUDA_R_16BF;
    case TSR_F16:
        return CUDA_R_16F;
    default:
        return CUDA_R_64F;
    }
}

static bool has_types(const struct tsr_blas_gemm *g)
{
    bool half = g->dtype == TSR_BF16 || g->dtype == TSR_F16;
    if (!half && g->dtype != TSR_F32 && g->dtype != TSR_F64)
        return false;
    if (g->dtype_out != g->dtype && !(half && g->dtype_out == TSR_F32))
        return false;
    return !(g->dtype == TSR_F64 && g->bias);
}

/* The largest power of two, at most 256, that divides every address at which a matrix begins. */
static uint64_t alignment(const void *at, uint64_t step, uint64_t batch, uint64_t item)
{
    uint64_t bits = (uint64_t)(uintptr_t)at | 256;
    if (batch > 1)
        bits |= step * item;
    return bits & (~bits + 1);
}

static struct tsr_blas_key key_of(const struct tsr_blas *blas, const struct tsr_blas_problem *p,
                                  int n_sms)
{
    const struct tsr_blas_gemm *g = p->gemm;
    uint64_t item = tsr_dtype_bytes((tsr_dtype)g->dtype);
    uint64_t item_out = tsr_dtype_bytes((tsr_dtype)g->dtype_out);
    bool many = g->batch > 1;
    /* The epilogue reads the bias in the pieces in which it writes the result. */
    uint64_t of_bias = g->bias ? alignment(g->bias, 0, 1, item_out) : 256;
    unsigned flags = (g->transpose_a ? TSR_BLAS_TRANSPOSE_A : 0) |
                     (g->transpose_b ? TSR_BLAS_TRANSPOSE_B : 0) |
                     (g->beta != 0 ? TSR_BLAS_ADD : 0) | (g->bias ? TSR_BLAS_BIAS : 0) |
                     (blas->deterministic ? TSR_BLAS_DETERMINISTIC : 0);
    return (struct tsr_blas_key){
        .field = {[TSR_BLAS_M] = g->m,
                  [TSR_BLAS_N] = g->n,
                  [TSR_BLAS_K] = g->k,
                  [TSR_BLAS_BATCH] = g->batch,
                  [TSR_BLAS_FLAGS] = flags,
                  [TSR_BLAS_DTYPE] = g->dtype,
                  [TSR_BLAS_DTYPE_OUT] = g->dtype_out,
                  [TSR_BLAS_ROW_A] = g->row_a,
                  [TSR_BLAS_ROW_B] = g->row_b,
                  [TSR_BLAS_ROW_OUT] = g->row_out,
                  [TSR_BLAS_STEP_A] = many ? g->step_a : 0,
                  [TSR_BLAS_STEP_B] = many ? g->step_b : 0,
                  [TSR_BLAS_STEP_OUT] = many ? g->step_out : 0,
                  [TSR_BLAS_ALIGN_A] = alignment(g->a, g->step_a, g->batch, item),
                  [TSR_BLAS_ALIGN_B] = alignment(g->b, g->step_b, g->batch, item),
                  [TSR_BLAS_ALIGN_OUT] =
                      tsr_min_u64(alignment(g->out, g->step_out, g->batch, item_out), of_bias),
                  [TSR_BLAS_WORKSPACE] = p->workspace_bytes,
                  [TSR_BLAS_SMS] = n_sms < blas->gpu.n_sms ? (uint64_t)n_sms : 0}};
}

/* A matrix that is stored in rows. */
static cublasStatus_t layout(cublasLtMatrixLayoutOpaque_t *out, uint8_t dtype, uint64_t rows,
                             uint64_t columns, uint64_t row, uint64_t batch, uint64_t step)
{
    int32_t count = (int32_t)batch;
    int64_t offset = (int64_t)step;
    cublasStatus_t result =
        cublasLtMatrixLayoutInit(out, type_of(dtype), columns, rows, (int64_t)row);
    if (result != CUBLAS_STATUS_SUCCESS || batch == 1)
        return result;
    result = cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                              sizeof count);
    if (result != CUBLAS_STATUS_SUCCESS)
        return result;
    return cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &offset, sizeof offset);
}

static cublasStatus_t layouts(struct tsr_blas_problem *p)
{
    const struct tsr_blas_gemm *g = p->gemm;
    cublasStatus_t result = layout(&p->a, g->dtype, g->transpose_a ? g->k : g->m,
                                   g->transpose_a ? g->m : g->k, g->row_a, g->batch, g->step_a);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = layout(&p->b, g->dtype, g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n,
                        g->row_b, g->batch, g->step_b);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = layout(&p->out, g->dtype_out, g->m, g->n, g->row_out, g->batch, g->step_out);
    return result;
}

/* Sums in f32 for all but f64; not in TF32, which has ten bits. */
static cublasStatus_t operation(struct tsr_blas_problem *p)
{
    const struct tsr_blas_gemm *g = p->gemm;
    bool wide = g->dtype == TSR_F64;
    const int32_t first = g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t second = g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t sms = (int32_t)p->key.field[TSR_BLAS_SMS];
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t of_bias = (int32_t)type_of(g->dtype_out);
    const struct {
        bool wanted;
        cublasLtMatmulDescAttributes_t which;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {true, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first},
        {true, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second},
        {sms != 0, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof sms},
        {g->bias != NULL, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue},
        {g->bias != NULL, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &of_bias, sizeof of_bias},
        {g->bias != NULL, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias},
    };
    cublasStatus_t result = cublasLtMatmulDescInit(
        &p->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (result == CUBLAS_STATUS_SUCCESS && attributes[i].wanted)
            result = cublasLtMatmulDescSetAttribute(&p->desc, attributes[i].which,
                                                    attributes[i].value, attributes[i].bytes);
    return result;
}

static union tsr_blas_factor factor(const struct tsr_blas_gemm *g, double x)
{
    union tsr_blas_factor f;
    if (g->dtype == TSR_F64)
        f.f64 = x;
    else
        f.f32 = (float)x;
    return f;
}

tsr_status tsr__blas_describe(const struct tsr_blas *blas, const struct tsr_cuda_context *context,
                              const struct tsr_blas_gemm *gemm, struct tsr_blas_problem *out)
{
    if (!has_types(gemm) || gemm->batch > INT32_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "matrix product: cuBLASLt has no %s from %s",
                        tsr_dtype_name((tsr_dtype)gemm->dtype_out),
                        tsr_dtype_name((tsr_dtype)gemm->dtype));
    /* The workspace begins where every kernel likes it, and is of one size, however much scratch
     * others have asked for: plans depend on it. */
    uint64_t skip = (256 - (uintptr_t)context->scratch % 256) % 256;
    bool any = context->scratch && context->scratch_bytes > skip;
    memset(out, 0, sizeof *out);
    out->gemm = gemm;
    out->stream = context->stream;
    out->workspace = any ? (unsigned char *)context->scratch + skip : NULL;
    out->workspace_bytes = any ? tsr_min_u64(context->scratch_bytes - skip, MOST_WORKSPACE) : 0;
    out->alpha = factor(gemm, gemm->alpha);
    out->beta = factor(gemm, gemm->beta);
    out->key = key_of(blas, out, context->n_sms);
    cublasStatus_t result = layouts(out);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = operation(out);
    if (result == CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    return tsr_fail(TSR_EBACKEND, "matrix product: cuBLASLt takes no description: %s",
                    cublasLtGetStatusString(result));
}

cublasStatus_t tsr__blas_launch(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                                const cublasLtMatmulAlgo_t *algo, void *result)
{
    const struct tsr_blas_gemm *g = p->gemm;
    return cublasLtMatmul(blas->handle, &p->desc, &p->alpha, g->b, &p->b, g->a, &p->a, &p->beta,
                          g->out, &p->out, result, &p->out, algo, p->workspace, p->workspace_bytes,
                          p->stream);
}

/* ---- which algorithm ------------------------------------------------------------------------- */

/* Which algorithm: the library's candidates, timed on the real operands. */

enum { CANDIDATES = 16, ROUNDS = 3 };

/* Parts of a sum along k are added in f32, rounded once at the end; and with `deterministic` in a
 * fixed order. In place, they are added as they come, in the type of the result. */
static uint32_t reductions(const struct tsr_blas *blas, const struct tsr_blas_gemm *g)
{
    bool exact = g->dtype_out == TSR_F32 || g->dtype_out == TSR_F64;
    return exact && !blas->deterministic ? CUBLASLT_REDUCTION_SCHEME_MASK
                                         : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* The library's candidates, best first. */
static tsr_status candidates(const struct tsr_blas *blas, struct tsr_blas_problem *p, int most,
                             cublasLtMatmulHeuristicResult_t *out, int *n)
{
    const uint64_t *key = p->key.field;
    const uint32_t mask = reductions(blas, p->gemm);
    const uint32_t align_a = (uint32_t)key[TSR_BLAS_ALIGN_A],
                   align_b = (uint32_t)key[TSR_BLAS_ALIGN_B],
                   align_out = (uint32_t)key[TSR_BLAS_ALIGN_OUT];
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p->workspace_bytes, sizeof p->workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_b, sizeof align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_a, sizeof align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_out, sizeof align_out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_out, sizeof align_out},
    };
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasStatus_t result = cublasLtMatmulPreferenceInit(&preference);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (result == CUBLAS_STATUS_SUCCESS)
            result = cublasLtMatmulPreferenceSetAttribute(&preference, attributes[i].which,
                                                          attributes[i].value, attributes[i].bytes);
    *n = 0;
    if (result == CUBLAS_STATUS_SUCCESS)
        result = cublasLtMatmulAlgoGetHeuristic(blas->handle, &p->desc, &p->b, &p->a, &p->out,
                                                &p->out, &preference, most, out, n);
    if (result == CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    *n = 0;
    if (result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_INVALID_VALUE)
        return TSR_OK; /* it has none */
    return tsr_fail(TSR_EBACKEND, "matrix product: cuBLASLt has no algorithms: %s",
                    cublasLtGetStatusString(result));
}

/* ---- timing ---------------------------------------------------------------------------------- */

struct clock {
    cudaEvent_t begin, end;
    void *result;  /* where candidates write */
    bool separate; /* it is not the product's own, which candidates would add to again and again */
};

/* Bytes that the result spans. */
static uint64_t span_of(const struct tsr_blas_gemm *g)
{
    uint64_t last = (g->m - 1) * g->row_out + g->n + (g->batch - 1) * g->step_out;
    return last * tsr_dtype_bytes((tsr_dtype)g->dtype_out);
}

/* False: no memory, or CUDA fails; then there is no timing. */
static bool open_clock(const struct tsr_blas_problem *p, struct clock *c)
{
    *c = (struct clock){.result = p->gemm->out, .separate = p->gemm->beta != 0};
    if (c->separate && cudaMalloc(&c->result, span_of(p->gemm)) != cudaSuccess) {
        c->result = NULL;
        (void)cudaGetLastError();
        return false;
    }
    if (cudaEventCreateWithFlags(&c->begin, cudaEventDefault) != cudaSuccess)
        c->begin = NULL;
    if (cudaEventCreateWithFlags(&c->end, cudaEventDefault) != cudaSuccess)
        c->end = NULL;
    return c->begin && c->end;
}

static void close_clock(const struct tsr_blas_problem *p, const struct clock *c)
{
    if (c->separate && c->result) /* a failed candidate may still write there */
        (void)cudaStreamSynchronize(p->stream);
    if (c->begin)
        (void)cudaEventDestroy(c->begin);
    if (c->end)
        (void)cudaEventDestroy(c->end);
    if (c->separate && c->result)
        (void)cudaFree(c->result);
    (void)cudaGetLastError(); /* of a candidate that failed */
}

/* Milliseconds of one run, with the cache cold; negative: the candidate fails. */
static float time_once(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                       const struct clock *c, const cublasLtMatmulAlgo_t *algo)
{
    float ms = -1;
    if (p->workspace && cudaMemsetAsync(p->workspace, 0, p->workspace_bytes, p->stream))
        return -1;
    if (cudaEventRecord(c->begin, p->stream) ||
        tsr__blas_launch(blas, p, algo, c->result) != CUBLAS_STATUS_SUCCESS ||
        cudaEventRecord(c->end, p->stream) || cudaEventSynchronize(c->end) ||
        cudaEventElapsedTime(&ms, c->begin, c->end))
        return -1;
    return ms;
}

/* The best of some rounds; one that is far behind is not run again. The first run is not counted:
 * it loads the kernel. */
static float time_candidate(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                            const struct clock *c, const cublasLtMatmulAlgo_t *algo, float best)
{
    float least = -1;
    if (time_once(blas, p, c, algo) < 0)
        return -1;
    for (int round = 0; round < ROUNDS; round++) {
        float ms = time_once(blas, p, c, algo);
        if (ms < 0)
            return -1;
        least = least < 0 || ms < least ? ms : least;
        if (best >= 0 && least > 1.5f * best)
            break;
    }
    return least;
}

/* True if one was timed; it goes to `out`. */
static bool time_all(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                     const cublasLtMatmulHeuristicResult_t *results, int n,
                     struct tsr_blas_plan *out)
{
    struct clock clock;
    float best = -1;
    bool open = open_clock(p, &clock);
    for (int i = 0; i < n && open; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS ||
            results[i].workspaceSize > p->workspace_bytes)
            continue;
        float ms = time_candidate(blas, p, &clock, &results[i].algo, best);
        if (ms >= 0 && (best < 0 || ms < best)) {
            best = ms;
            out->algo = results[i].algo;
        }
    }
    close_clock(p, &clock);
    out->microseconds = (double)best * 1000;
    return best >= 0;
}

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
}

tsr_status tsr__blas_plan(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                          struct tsr_blas_plan *out)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    bool timed = blas->tune && !is_captured(p->stream);
    int n;
    memset(results, 0, sizeof results);
    *out = (struct tsr_blas_plan){.key = p->key, .origin = TSR_BLAS_NONE};
    TSR_TRY(candidates(blas, p, timed ? CANDIDATES : 1, results, &n));
    if (n == 0 || results[0].state != CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    out->algo = results[0].algo;
    out->origin = TSR_BLAS_FIRST;
    if (timed && time_all(blas, p, results, n, out))
        out->origin = TSR_BLAS_TIMED;
    return TSR_OK;
}

bool tsr__blas_check(const struct tsr_blas *blas, struct tsr_blas_problem *p,
                     const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof result);
    return cublasLtMatmulAlgoCheck(blas->handle, &p->desc, &p->b, &p->a, &p->out, &p->out, algo,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= p->workspace_bytes;
}
