/* libraries.c: cuBLAS and cuDNN as PyTorch calls them, and the first call of other libraries.
 *
 * Nothing is computed, handles are numbers. A call succeeds if the memory that it takes is known. A
 * library that asks for scratch in sizes that only it knows answers "not supported" to its first
 * call: PyTorch raises an error for that, and the tracer names module and operator. */
#include "standin.h"
#include <stdlib.h>
#include <string.h>

#define NUMBER_AT_2(name, number)             \
    EXPORT int name(void *handle, int *value) \
    {                                         \
        (void)handle;                         \
        *value = number;                      \
        return 0;                             \
    }

/* Defines a function that fails. The library's own one would follow a handle, which is a number
 * here. */
#define NOT_SUPPORTED(name, status) \
    EXPORT int name(void)           \
    {                               \
        return status;              \
    }

/* cuBLAS and cuBLASLt */
NEW_HANDLE(cublasCreate_v2)
NEW_HANDLE(cublasLtCreate)
NEW_HANDLE(cublasLtMatmulDescCreate)
NEW_HANDLE(cublasLtMatmulPreferenceCreate)
NEW_HANDLE(cublasLtMatrixLayoutCreate)
NUMBER_AT_2(cublasGetMathMode, 0)
NUMBER_AT_2(cublasGetPointerMode_v2, 0)
NOTHING(cublasDestroy_v2)
NOTHING(cublasSetStream_v2)
NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasSetMathMode)
NOTHING(cublasSetPointerMode_v2)
NOTHING(cublasGemmEx)
NOTHING(cublasGemmStridedBatchedEx)
NOTHING(cublasSgemm_v2)
NOTHING(cublasSgemmStridedBatched)
NOTHING(cublasSgemmEx)
NOTHING(cublasDgemm_v2)
NOTHING(cublasDgemmStridedBatched)
NOTHING(cublasCgemm_v2)
NOTHING(cublasCgemmStridedBatched)
NOTHING(cublasSgemv_v2)
NOTHING(cublasDgemv_v2)
NOTHING(cublasSdot_v2)
NOTHING(cublasDotEx)
/* Triangular systems take no scratch beside the handle's, which PyTorch allocates. */
NOTHING(cublasStrsm_v2)
NOTHING(cublasDtrsm_v2)
NOTHING(cublasCtrsm_v2)
NOTHING(cublasZtrsm_v2)
NOTHING(cublasStrsmBatched)
NOTHING(cublasDtrsmBatched)
NOTHING(cublasCtrsmBatched)
NOTHING(cublasZtrsmBatched)
NOTHING(cublasZgemm_v2)
NOTHING(cublasZgemmStridedBatched)
NOTHING(cublasCgemv_v2)
NOTHING(cublasZgemv_v2)
NOTHING(cublasDdot_v2)
NOTHING(cublasCdotu_v2)
NOTHING(cublasCdotc_v2)
NOTHING(cublasZdotu_v2)
NOTHING(cublasZdotc_v2)
enum { CUBLAS_NOT_SUPPORTED = 15 };
NOT_SUPPORTED(cublasSgetrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasDgetrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasCgetrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasZgetrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasSgetrsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasDgetrsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasCgetrsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasZgetrsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasSgeqrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasDgeqrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasCgeqrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasZgeqrfBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasSgelsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasDgelsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasCgelsBatched, CUBLAS_NOT_SUPPORTED)
NOT_SUPPORTED(cublasZgelsBatched, CUBLAS_NOT_SUPPORTED)
NOTHING(cublasLtMatmul)
NOTHING(cublasLtMatmulDescDestroy)
NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatmulPreferenceDestroy)
NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute)

/* One algorithm without workspace: zeros in a result structure of 96 bytes. */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                          void *d, void *preference, int wanted, void *results,
                                          int *found)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    (void)wanted;
    memset(results, 0, 96);
    *found = 1;
    return 0;
}

/* cuDNN: engines and plans that need TESSERA_STANDIN_CUDNN_WORKSPACE bytes of scratch, 0 by
 * default. */
enum { ENGINE_RESULTS = 202, PLAN_WORKSPACE = 402, ENGINE_COUNT = 802, TYPE_INT64 = 3 };

static int64_t workspace(void)
{
    const char *text = getenv("TESSERA_STANDIN_CUDNN_WORKSPACE");
    return text ? strtoll(text, NULL, 10) : 0;
}

NEW_HANDLE(cudnnCreate)
NEW_HANDLE(cudnnCreateTensorDescriptor)
NEW_HANDLE(cudnnCreateActivationDescriptor)
NEW_HANDLE(cudnnCreateFilterDescriptor)
NOTHING(cudnnDestroy)
NOTHING(cudnnSetStream)
NOTHING(cudnnDestroyTensorDescriptor)
NOTHING(cudnnDestroyActivationDescriptor)
NOTHING(cudnnDestroyFilterDescriptor)
NOTHING(cudnnSetTensorNdDescriptor)
NOTHING(cudnnBackendDestroyDescriptor)
NOTHING(cudnnBackendSetAttribute)
NOTHING(cudnnBackendFinalize)
NOTHING(cudnnBackendExecute)
NOTHING(cudnnBatchNormalizationForwardTrainingEx)
NOTHING(cudnnBatchNormalizationBackwardEx)
NOTHING(cudnnBatchNormalizationForwardInference)

/* Sampling on a grid takes no scratch. Recurrent layers, CTC and the older convolutions do. */
NEW_HANDLE(cudnnCreateSpatialTransformerDescriptor)
NOTHING(cudnnDestroySpatialTransformerDescriptor)
NOTHING(cudnnSetSpatialTransformerNdDescriptor)
NOTHING(cudnnSpatialTfGridGeneratorForward)
NOTHING(cudnnSpatialTfGridGeneratorBackward)
NOTHING(cudnnSpatialTfSamplerForward)
NOTHING(cudnnSpatialTfSamplerBackward)
NOTHING(cudnnSetFilterNdDescriptor)
enum { CUDNN_NOT_SUPPORTED = 3000 };
NOT_SUPPORTED(cudnnCreateRNNDescriptor, CUDNN_NOT_SUPPORTED)
NOT_SUPPORTED(cudnnCreateRNNDataDescriptor, CUDNN_NOT_SUPPORTED)
NOT_SUPPORTED(cudnnCreateDropoutDescriptor, CUDNN_NOT_SUPPORTED)
NOT_SUPPORTED(cudnnDropoutGetStatesSize, CUDNN_NOT_SUPPORTED)
NOT_SUPPORTED(cudnnCreateCTCLossDescriptor, CUDNN_NOT_SUPPORTED)
NOT_SUPPORTED(cudnnCreateConvolutionDescriptor, CUDNN_NOT_SUPPORTED)
NOT_SUPPORTED(cudnnCreatePoolingDescriptor, CUDNN_NOT_SUPPORTED)

/* Libraries whose scratch is not known. */
NOT_SUPPORTED(cufftCreate, 16)
NOT_SUPPORTED(cusolverDnCreate, 9)
NOT_SUPPORTED(cusparseCreate, 10)
NOT_SUPPORTED(cusparseLtInit, 10)

EXPORT const char *cudnnGetErrorString(int status)
{
    return status == CUDNN_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                         : "error of the stand-in cuDNN";
}

EXPORT int cudnnBackendCreateDescriptor(int type, void **descriptor)
{
    (void)type;
    *descriptor = standin_handle();
    return 0;
}

EXPORT int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted,
                                    int64_t *count, void *values)
{
    (void)descriptor;
    int64_t answer = name == PLAN_WORKSPACE ? workspace() : name == ENGINE_COUNT ? 1 : 0;
    int number = type == TYPE_INT64 && wanted == 1 && name != ENGINE_RESULTS;
    if (count)
        *count = number || name == ENGINE_RESULTS ? 1 : 0;
    if (values && number)
        memcpy(values, &answer, sizeof answer);
    return 0;
}

/* Batch norm: scratch as above, no reserve. */
EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int mode, int ops,
                                                                    void *x, void *z, void *y,
                                                                    void *scale, void *activation,
                                                                    size_t *bytes)
{
    (void)h, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    *bytes = (size_t)workspace();
    return 0;
}

EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int mode, int ops, void *x,
                                                             void *y, void *dy, void *dz, void *dx,
                                                             void *scale, void *activation,
                                                             size_t *bytes)
{
    (void)h, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
    (void)activation;
    *bytes = (size_t)workspace();
    return 0;
}

EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int mode, int ops,
                                                                void *activation, void *x,
                                                                size_t *bytes)
{
    (void)h, (void)mode, (void)ops, (void)activation, (void)x;
    *bytes = 0;
    return 0;
}
