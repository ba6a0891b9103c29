/* blas_tune.c: which algorithm: the library's candidates, timed on the real operands. */
#include "exec/cuda/blas/blas_impl.h"

#include <string.h>

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
