/* report_annotations.h: the labels that PyTorch's profiler shows for the work of fully_shard
 * (R256), from the origin of the instructions. Two layers: the hook, and inside it the gather, the
 * copy-out or the reduction; of a gather for a later group the prefetch.
 */
#ifndef TSR_STUDY_REPORT_ANNOTATIONS_H
#define TSR_STUDY_REPORT_ANNOTATIONS_H

#include "experiments/study/job/result.h"

enum tsr__action {
    TSR__ACTION_NONE,
    TSR__ACTION_ALL_GATHER, /* casts, copy-in and the collective */
    TSR__ACTION_COPY_OUT,
    TSR__ACTION_REDUCE
};
enum tsr__action tsr__action_of(const struct tsr_instr *instr);

/* "FSDP::pre_forward (layers.3)"; false: the instruction is not a hook's. */
bool tsr__hook_label(const struct tsr_tables *tables, const struct tsr_instr *instr, char *out,
                     size_t size);
/* "FSDP::all_gather (layers.3)", "FSDP::backward_prefetch for layers.2"; hook_group: the group
 * whose hook runs. */
void tsr__action_label(const struct tsr_tables *tables, const struct tsr_instr *instr,
                       uint32_t hook_group, char *out, size_t size);

#endif
