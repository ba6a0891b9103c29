/* diff.h: two runs side by side: the levels of their memory, change by change, with the place in
 * the step where each change happened. A run is a strategy (emitted here), what `compare` left of
 * one (memory.csv), or a recording of PyTorch (a timeline of tests/golden-memory).
 */
#ifndef TSR_CLI_DIFF_H
#define TSR_CLI_DIFF_H

#include <jansson.h>
#include <stdio.h>

#include "engine/program/program.h"
#include "experiments/study/detail/report_overlap.h"

/* The level after a change; the first point is the level at the start of the iteration. */
struct tsr_diff_point {
    const char *phase, *module, *hook, *operation; /* never NULL; "" where not known */
    uint16_t micro;
    uint64_t total, reserved;
    uint64_t by_category[TSR_N_CATEGORIES];
};

/* What one kind of owner holds at the peak. */
struct tsr_diff_owner {
    uint8_t category;
    const char *name; /* "model.layers.*" */
    uint64_t bytes;
};

struct tsr_diff_run {
    char label[256];
    const char *kind; /* "strategy", "folder" or "recording" */
    bool has_owners;  /* memory.csv has categories only */
    struct tsr_diff_point *points;
    size_t n, cap, peak; /* peak: the first point of the maximum */
    struct tsr_diff_owner *owners;
    size_t n_owners, cap_owners;
    bool has_overlap; /* times are known: those of a simulation, or of a run */
    struct tsr_overlap_table overlap;
    struct tsr_arena arena; /* texts of the points and owners */
};

/* `text` is an operand of `tessera diff`; `sets` as after --set. Errors: TSR_ECONFIG, and those of
 * an emission. On failure nothing is to be freed. */
tsr_status tsr_diff_load(const char *text, const char *const *sets, size_t n_sets,
                         struct tsr_diff_run *out) TSR_MUST_USE;
void tsr_diff_run_fini(struct tsr_diff_run *run);

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

/* ---- alignment --------------------------------------------------------------------------------
 */

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

/* ---- report -----------------------------------------------------------------------------------
 */

tsr_status tsr_diff_report(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                           json_t **out) TSR_MUST_USE;
/* Collectives whose exposure is not the same; null if a run has no times (diff_overlap.c). */
tsr_status tsr_diff_overlap(const struct tsr_diff_run *a, const struct tsr_diff_run *b,
                            json_t **out) TSR_MUST_USE;
void tsr_diff_print_overlap(FILE *out, const json_t *overlap, size_t top);
void tsr_diff_print(FILE *out, const json_t *report, size_t top);

#endif
