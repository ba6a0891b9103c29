/* section.h: the sections of a run, in the order in which they happen. */
#ifndef TSR_STUDY_SECTION_H
#define TSR_STUDY_SECTION_H

enum tsr_section {
    TSR_SECTION_INIT,
    TSR_SECTION_LOAD,
    TSR_SECTION_STEP1, /* iteration 0 */
    TSR_SECTION_STEP2,
    TSR_SECTION_EVAL,
    TSR_SECTION_SAVE,
    TSR_N_SECTIONS
};
/* The words that users write and read, by enum tsr_section. */
#define TSR_SECTION_WORDS "init", "load", "step1", "step2", "eval", "save"

#endif
