/* report_detail.h: the writers of one strategy's files, called by tsr_report_detail(). */
#ifndef TSR_STUDY_REPORT_DETAIL_H
#define TSR_STUDY_REPORT_DETAIL_H

#include "experiments/study/detail/report_view.h"

#include <stdio.h>

/* Memory of an iteration in issue order. samples[0] is the level at its start (instr 0); then one
 * per ALLOC and FREE. */
struct tsr__curve {
    struct tsr_memory_sample *samples;
    size_t n, cap;
    bool occurs[TSR_N_CATEGORIES]; /* not always 0 */
    struct tsr_memory_peak peak;
    bool failed; /* out of memory while it grew */
};
/* Replays the program up to `iteration`. Errors: those of tsr_memory_replay(). */
tsr_status tsr__curve_init(struct tsr__curve *curve, const struct tsr_detail *detail,
                           uint32_t iteration) TSR_MUST_USE;
void tsr__curve_fini(struct tsr__curve *curve);

/* What a writer of a file gets. */
struct tsr__page {
    const struct tsr_study_info *info;
    const struct tsr__view *view;
    const struct tsr__curve *curve;
    const struct tsr__in_use *in_use;
};

/* "Llama-3.1-8B · dgx-h100-1 · 8 GPUs · fsdp": the head of a picture. */
void tsr__put_title(FILE *out, const struct tsr__page *page);

/* Each has the type tsr_write_fn and takes a struct tsr__page. */
tsr_status tsr__write_memory(FILE *out, const void *page);
tsr_status tsr__write_memory_plot(FILE *out, const void *page);
tsr_status tsr__write_in_use_plot(FILE *out, const void *page);
tsr_status tsr__write_phases(FILE *out, const void *page);
tsr_status tsr__write_peak(FILE *out, const void *page);
tsr_status tsr__write_streams(FILE *out, const void *page);
tsr_status tsr__write_timeline(FILE *out, const void *page);
/* Of a detail with sections to show (report_run.c). */
tsr_status tsr__write_run(FILE *out, const void *page);
tsr_status tsr__write_run_plot(FILE *out, const void *page);
tsr_status tsr__write_run_peaks(FILE *out, const void *page);

/* The trace shows n iterations one after the other: pages of the same strategy. */
struct tsr__pages {
    const struct tsr__page *pages;
    size_t n;
};
tsr_status tsr__write_trace(FILE *out, const void *pages);

/* ---- names of a profiler (report_kernels.c) ------------------------------------------------ */
/* What it would call an instruction. Tools that read Kineto's traces tell communication by "nccl"
 * in a kernel's name and compute by "gemm" or "flash". */

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
