/* report_kernels.c: what a profiler would call an instruction. */
#include "experiments/study/detail/report_detail.h"

#include <stdio.h>

/* NCCL compiles one ring kernel per collective and type; its name says LL and Sum whatever protocol
 * and operator run inside (src/device/generate.py, best_kernel()). */
#define NCCL_ARGS "(ncclDevKernelArgsStorage<4096ul>)"

static const char *nccl_type(int dtype)
{
    return dtype == TSR_DTYPE_NONE ? "u8" : tsr_dtype_name((tsr_dtype)dtype);
}

static const char *copy_name(const struct tsr_instr *instr)
{
    static const char *const names[3][3] = {
        [TSR_SPACE_DEVICE] = {"Memcpy DtoD (Device -> Device)", "Memcpy DtoH (Device -> Pageable)",
                              "Memcpy DtoH (Device -> Pinned)"},
        [TSR_SPACE_HOST] = {"Memcpy HtoD (Pageable -> Device)", "Memcpy HtoH", "Memcpy HtoH"},
        [TSR_SPACE_PINNED] = {"Memcpy HtoD (Pinned -> Device)", "Memcpy HtoH", "Memcpy HtoH"},
    };
    int from = TSR_SPACE_DEVICE, to = TSR_SPACE_DEVICE;
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        int space = instr->operands[i].space <= TSR_SPACE_PINNED ? instr->operands[i].space : 0;
        if (instr->operands[i].access & TSR_WRITE)
            to = space;
        else
            from = space;
    }
    return names[from][to];
}

static const char *op_prefix(int op)
{
    switch (op) {
    case TSR_OP_GEMM:
        return "gemm";
    case TSR_OP_ATTENTION:
        return "flash_fwd";
    case TSR_OP_ATTENTION_BWD:
        return "flash_bwd";
    default:
        return "elementwise";
    }
}

void tsr__kernel_name(const struct tsr_instr *instr, char *out, size_t size)
{
    const char *type = nccl_type(instr->dtype);
    switch (instr->kind) {
    case TSR_ALL_GATHER:
        (void)snprintf(out, size, "ncclDevKernel_AllGather_RING_LL" NCCL_ARGS);
        return;
    case TSR_REDUCE_SCATTER:
        (void)snprintf(out, size, "ncclDevKernel_ReduceScatter_Sum_%s_RING_LL" NCCL_ARGS, type);
        return;
    case TSR_ALL_REDUCE:
        (void)snprintf(out, size, "ncclDevKernel_AllReduce_Sum_%s_RING_LL" NCCL_ARGS, type);
        return;
    case TSR_BROADCAST:
        (void)snprintf(out, size, "ncclDevKernel_Broadcast_RING_LL" NCCL_ARGS);
        return;
    case TSR_ALL_TO_ALL:
    case TSR_SEND:
    case TSR_RECV:
        (void)snprintf(out, size, "ncclDevKernel_SendRecv" NCCL_ARGS);
        return;
    case TSR_CUSTOM_COLLECTIVE:
        (void)snprintf(out, size, "ncclDevKernel_Custom_%s",
                       instr->work && instr->work->name ? instr->work->name : "collective");
        return;
    case TSR_COPY:
        (void)snprintf(out, size, "%s", copy_name(instr));
        return;
    case TSR_FILL:
        (void)snprintf(out, size, "Memset (Device)");
        return;
    default:
        break;
    }
    const struct tsr_work *work = instr->work;
    if (!work) {
        (void)snprintf(out, size, "%s", tsr_instr_kind_name(instr->kind));
        return;
    }
    (void)snprintf(out, size, "%s_%s_%s", op_prefix(work->op), nccl_type(work->dtype),
                   work->name ? work->name : tsr_op_kind_name(work->op));
}

const char *tsr__kernel_category(const struct tsr_instr *instr)
{
    if (instr->kind == TSR_COPY)
        return "gpu_memcpy";
    return instr->kind == TSR_FILL ? "gpu_memset" : "kernel";
}

const char *tsr__host_call(const struct tsr_instr *instr)
{
    static const char *const calls[TSR_N_INSTR_KINDS] = {
        [TSR_SEGMENT_ALLOC] = "cudaMalloc",
        [TSR_SEGMENT_FREE] = "cudaFree",
        [TSR_PIN] = "cudaHostAlloc",
        [TSR_COPY] = "cudaMemcpyAsync",
        [TSR_FILL] = "cudaMemsetAsync",
        [TSR_OP] = "cudaLaunchKernel",
        [TSR_ALL_GATHER] = "ncclAllGather",
        [TSR_REDUCE_SCATTER] = "ncclReduceScatter",
        [TSR_ALL_REDUCE] = "ncclAllReduce",
        [TSR_BROADCAST] = "ncclBroadcast",
        [TSR_ALL_TO_ALL] = "ncclAllToAll",
        [TSR_SEND] = "ncclSend",
        [TSR_RECV] = "ncclRecv",
        [TSR_CUSTOM_COLLECTIVE] = "custom collective",
        [TSR_COMM_CREATE] = "ncclCommInitRank",
        [TSR_RECORD] = "cudaEventRecord",
        [TSR_WAIT] = "cudaStreamWaitEvent",
        [TSR_HOST_WAIT] = "cudaEventSynchronize",
        [TSR_HOST_READ] = "cudaStreamSynchronize",
        [TSR_HOST_OP] = "host work",
    };
    return instr->kind < TSR_N_INSTR_KINDS ? calls[instr->kind] : NULL;
}

const char *tsr__collective_name(const struct tsr_instr *instr)
{
    switch (instr->kind) {
    case TSR_ALL_GATHER:
        return "_allgather_base";
    case TSR_REDUCE_SCATTER:
        return "_reduce_scatter_base";
    case TSR_ALL_REDUCE:
        return "allreduce";
    case TSR_BROADCAST:
        return "broadcast";
    case TSR_ALL_TO_ALL:
        return "all_to_all";
    case TSR_SEND:
        return "send";
    case TSR_RECV:
        return "recv";
    default:
        return NULL;
    }
}
