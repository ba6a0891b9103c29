/* peak.h: the memory of one strategy, measured by emitting it and replaying its programs; no time
 * is simulated, so this is what searches use.
 */
#ifndef TSR_STUDY_PEAK_H
#define TSR_STUDY_PEAK_H

#include "experiments/study/job/emit.h"
#include "experiments/study/job/result.h"
#include "sim/cluster/cluster.h"

/* What a card certainly has for the allocator, NCCL and what is known of context and libraries,
 * bytes: what is usable, less what context and libraries may take beyond what is known of them. 0:
 * the device file does not say what is usable. A row fits (`fits` is 1) if its NCCL is known and it
 * needs no more than this. */
uint64_t tsr_card_budget(const struct tsr_gpu *gpu);

/* Fills the memory fields of a row (peaks in bytes, largest over the rank classes, also by
 * section; what is alive at the peak; host memory; context, libraries and NCCL; fits) from programs
 * that were emitted. */
tsr_status tsr_peak_of(const struct tsr_job *job, const struct tsr_emission *emission,
                       struct tsr_row *row) TSR_MUST_USE;

/* Emits a strategy and fills a row with its memory. A failure is also told by row->failure and
 * row->failure_status (TSR_EOOM: the allocator's limit was reached). */
tsr_status tsr_peak_measure(const struct tsr_job *job, struct tsr_row *row) TSR_MUST_USE;

#endif
