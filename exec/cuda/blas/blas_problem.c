/* blas_problem.c: a row-major product in cuBLASLt's terms. It is column-major: what lies as (rows,
 * columns) here is (columns, rows) there, so it computes out^T = op(b)^T op(a)^T, and its leading
 * dimensions are the distances of our rows. Descriptors are plain structures on the stack: nothing
 * is allocated, and no two threads share one.
 */
#include "exec/cuda/blas/blas_impl.h"

#include <string.h>

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
