/* report_kernels.c: what a profiler would call an instruction, and streams.csv. */
#include <inttypes.h>
#include <stdio.h>

#include "experiments/study/detail/report_detail.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"

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

/* ---- streams.csv ----------------------------------------------------------------------------- */

/* What every stream did in the steady iteration. */

static void put_work(FILE *out, const struct tsr__view *view, size_t i)
{
    const struct tsr_instr *instr = &view->program->instrs[i];
    char label[160], buffer[32];
    tsr__work_label(view->tables, instr, label, sizeof label);
    fprintf(out, "%s,%.9f,%.9f,%s,", view->tables->streams[instr->stream].name,
            view->spans[i].start - view->start, view->spans[i].end - view->start,
            tsr_instr_kind_name(instr->kind));
    tsr__put_csv(out, label);
    fputc(',', out);
    tsr__put_csv(out, tsr_owner_of(view->tables, &instr->origin, buffer));
    fprintf(out, ",%s,%u,", tsr_phase_name(instr->origin.phase), instr->origin.micro);
    uint64_t bytes = instr->bytes;
    if (instr->kind == TSR_OP && instr->work)
        bytes = instr->work->bytes_read + instr->work->bytes_written;
    fprintf(out, "%" PRIu64 ",", bytes);
    if (tsr__is_collective(instr))
        fprintf(out, "%.9f", view->exposed[i]);
    fputc('\n', out);
}

tsr_status tsr__write_streams(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "times in seconds of the steady step; bytes: of the big side of a "
                        "collective, moved by a kernel; exposed_s: of a collective while the "
                        "compute stream is idle");
    fputs("stream,start_s,end_s,kind,name,module,phase,micro_batch,bytes,exposed_s\n", out);
    for (uint16_t s = 0; s < view->tables->n_streams; s++) {
        for (size_t i = 0; i < view->program->n_instrs; i++) {
            const struct tsr_instr *instr = &view->program->instrs[i];
            if (instr->stream == s && tsr__is_busy_work(instr))
                put_work(out, view, i);
        }
    }
    return TSR_OK;
}
