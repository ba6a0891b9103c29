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

/* A pickle of torch.cuda.memory._dump_snapshot(), compressed or not (diff_snapshot.c). */
tsr_status tsr_diff_load_snapshot(const char *path, struct tsr_diff_run *run) TSR_MUST_USE;

/* Says of the changes and blocks of a snapshot what they are, by those of the other run in the same
 * order: sizes, and whether they come or go (diff_attribute.c). A run without blocks is left as it
 * is. Errors: TSR_ENOMEM. */
tsr_status tsr_diff_attribute(const struct tsr_diff_run *known,
                              struct tsr_diff_run *snapshot) TSR_MUST_USE;
/* The levels of the categories, the peak and its owners, from a snapshot's blocks. */
tsr_status tsr_diff_count_blocks(struct tsr_diff_run *snapshot) TSR_MUST_USE;

const char *tsr_diff_category_name(int category);

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

/* The longest common subsequence of two sequences, in windows, so that long ones take linear time:
 * match[i]: the place in b of a's item i; SIZE_MAX: none. Errors: TSR_ENOMEM. */
tsr_status tsr_diff_match(const int64_t *a, size_t n, const int64_t *b, size_t m,
                          size_t *match) TSR_MUST_USE;

/* ---- report -------------------------------------------------------------------------------- */

/* Fills the exposures, if both runs have times (diff_run.c). */
tsr_status tsr_diff_exposures(struct tsr_diff *diff) TSR_MUST_USE;

#endif
