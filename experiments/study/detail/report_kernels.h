/* report_kernels.h: what a profiler would call an instruction. Tools that read Kineto's traces tell
 * communication by "nccl" in a kernel's name and compute by "gemm" or "flash".
 */
#ifndef TSR_CLI_REPORT_KERNELS_H
#define TSR_CLI_REPORT_KERNELS_H

#include "experiments/study/job/result.h"

/* "ncclDevKernel_AllGather_RING_LL(...)", "gemm_bf16_mm", "Memcpy DtoD (Device -> Device)". */
void tsr__kernel_name(const struct tsr_instr *instr, char *out, size_t size);
/* "kernel", "gpu_memcpy", "gpu_memset". */
const char *tsr__kernel_category(const struct tsr_instr *instr);
/* The call of the host that issues the instruction, "cudaLaunchKernel"; NULL: none worth showing.
 */
const char *tsr__host_call(const struct tsr_instr *instr);
/* "_allgather_base": c10d's name of a collective; NULL: none. */
const char *tsr__collective_name(const struct tsr_instr *instr);

#endif
