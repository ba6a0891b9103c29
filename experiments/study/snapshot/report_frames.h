/* report_frames.h: who a piece of work belongs to: an allocation, as the call stack of a memory
 * snapshot (step, phase, hook, module and its parents, operation, category; equal texts, frames
 * and stacks are written once and referred to after that), and a kernel, as the labels of a
 * profiler. */
#ifndef TSR_STUDY_REPORT_FRAMES_H
#define TSR_STUDY_REPORT_FRAMES_H

#include "engine/program/map.h"
#include "engine/program/program.h"
#include "experiments/study/job/result.h"
#include "experiments/study/snapshot/report_pickle.h"

/* A pickle that is being written and what it remembers: each text, frame and stack once. Owns keys
 * and arena; the file is the caller's. */
struct tsr__frames {
    struct tsr__pickle pickle;
    struct tsr_arena arena; /* keys */
    struct tsr__frame_key {
        const char *text;
        uint32_t remembered;
        uint32_t next; /* of the same hash; TSR_MAP_NONE: the last */
    } * keys;
    size_t n_keys, cap_keys;
    struct tsr_map first; /* hashes of texts to the latest key of each */
    bool failed;          /* no memory left; what was written is of no use */
};

void tsr__frames_init(struct tsr__frames *frames, FILE *out);
void tsr__frames_fini(struct tsr__frames *frames);

/* A text that occurs often: the names of keys, actions and states. */
void tsr__frames_text(struct tsr__frames *frames, const char *text);
/* The stack of an instruction of `program`: a list of frames, the innermost first. op: what the
 * memory is for ("mm"); NULL: unknown. */
void tsr__frames_stack(struct tsr__frames *frames, const struct tsr_program *program,
                       const struct tsr_instr *instr, const char *op);

/* ---- labels of a profiler -------------------------------------------------------------------- */

/* The labels that PyTorch's profiler shows for the work of fully_shard
 * (R256), from the origin of the instructions. Two layers: the hook, and inside it the gather, the
 * copy-out or the reduction; of a gather for a later group the prefetch. */

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
