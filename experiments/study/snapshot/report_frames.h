/* report_frames.h: who an allocation belongs to, as the call stack of a memory snapshot: step,
 * phase, hook, module and its parents, operation, category. Equal texts, frames and stacks are
 * written once and referred to after that.
 */
#ifndef TSR_STUDY_REPORT_FRAMES_H
#define TSR_STUDY_REPORT_FRAMES_H

#include "engine/program/program.h"
#include "experiments/study/snapshot/report_pickle.h"

struct tsr__frames {
    struct tsr__pickle pickle;
    struct tsr_arena arena; /* keys */
    struct tsr__frame_key {
        const char *text; /* NULL: the slot is empty */
        uint32_t remembered;
    } * keys; /* open addressing; n_slots is a power of two */
    size_t n_slots, n_keys;
    bool failed; /* no memory left; what was written is of no use */
};

tsr_status tsr__frames_init(struct tsr__frames *frames, FILE *out) TSR_MUST_USE;
void tsr__frames_fini(struct tsr__frames *frames);

/* A text that occurs often: the names of keys, actions and states. */
void tsr__frames_text(struct tsr__frames *frames, const char *text);
/* The stack of an instruction of `program`: a list of frames, the innermost first. op: what the
 * memory is for ("mm"); NULL: unknown. */
void tsr__frames_stack(struct tsr__frames *frames, const struct tsr_program *program,
                       const struct tsr_instr *instr, const char *op);

#endif
