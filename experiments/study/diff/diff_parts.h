/* diff_parts.h: what a comparison of two runs is made of: loaders, alignment, overlap. */
#ifndef TSR_STUDY_DIFF_PARTS_H
#define TSR_STUDY_DIFF_PARTS_H

#include "experiments/study/diff/diff.h"

/* A strategy of the experiment of `request`, or what its path is besides: an operand of `tessera
 * diff`, FILE:STRATEGY, a folder, a recording. Errors: TSR_ECONFIG, and those of an emission. On
 * failure nothing is to be freed. */
tsr_status tsr_diff_load(const struct tsr_study_request *request,
                         struct tsr_diff_run *out) TSR_MUST_USE;

/* The loaders; `run` is empty but for its arena. */
tsr_status tsr_diff_load_folder(const char *path, struct tsr_diff_run *run) TSR_MUST_USE;
tsr_status tsr_diff_load_csv(const char *path, struct tsr_diff_run *run) TSR_MUST_USE;
tsr_status tsr_diff_load_recording(const char *path, struct tsr_diff_run *run) TSR_MUST_USE;

tsr_status tsr_diff_add_point(struct tsr_diff_run *run,
                              const struct tsr_diff_point *point) TSR_MUST_USE;
/* `module` as in a point; blocks are folded. */
tsr_status tsr_diff_add_owner(struct tsr_diff_run *run, uint8_t category, const char *module,
                              uint64_t bytes) TSR_MUST_USE;
/* Finds the peak; to be called when all points are there, before owners are added. */
void tsr_diff_find_peak(struct tsr_diff_run *run);
/* The place of a point without its hook and operation: its block, or its module outside of one. */
size_t tsr_diff_unit_length(const struct tsr_diff_point *point);

/* ---- alignment ----------------------------------------------------------------------------- */

/* Points [first, end) of one phase and unit, without the level at the start. */
struct tsr_diff_section {
    size_t first, end;
};
/* A section of a and the section of b that is the same place of the step; SIZE_MAX: there is none.
 */
struct tsr_diff_pair {
    size_t a, b;
};
struct tsr_diff_alignment {
    struct tsr_diff_section *sections[2];
    size_t n_sections[2];
    struct tsr_diff_pair *pairs; /* in the order of the step */
    size_t n;
};
/* Errors: TSR_ENOMEM. On failure nothing is to be freed. */
tsr_status tsr_diff_align(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                          struct tsr_diff_alignment *out) TSR_MUST_USE;
void tsr_diff_alignment_fini(struct tsr_diff_alignment *alignment);

/* ---- report -------------------------------------------------------------------------------- */

/* Fills the exposures, if both runs have times (diff_run.c). */
tsr_status tsr_diff_exposures(struct tsr_diff *diff) TSR_MUST_USE;

#endif
