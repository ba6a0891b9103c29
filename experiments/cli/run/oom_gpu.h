/* oom_gpu.h: a job that is larger than the GPU that it shall run on: who asks for how much, what
 * was predicted, what would fit.
 */
#ifndef TSR_CLI_OOM_GPU_H
#define TSR_CLI_OOM_GPU_H

#include "experiments/study/job/job.h"

/* Emits the job as on a card that has `bytes` left for the allocator, up to the request that does
 * not fit. card: the GPU in words; predicted: bytes that a rank's segments take without a limit.
 * Returns TSR_EOOM with one line, or what went wrong on the way. */
tsr_status tsr_oom_on_gpu(const struct tsr_job *job, const char *card, uint64_t bytes,
                          uint64_t predicted) TSR_MUST_USE;

/* After TSR_EOOM of a rank that ran: its own words (which may name another rank), and what was
 * predicted. Always TSR_EOOM. */
tsr_status tsr_oom_while_running(uint32_t rank, const char *text, uint64_t predicted) TSR_MUST_USE;

#endif
