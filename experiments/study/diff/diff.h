/* diff.h: two runs side by side: the levels of their memory, change by change, with the place in
 * the step where each change happened. A run is a strategy (emitted here), what `compare` left of
 * one (memory.csv), or a recording of PyTorch (a timeline of tests/golden-memory).
 */
#ifndef TSR_CLI_DIFF_H
#define TSR_CLI_DIFF_H

#include "engine/program/program.h"
#include "experiments/study/config/request.h"
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

void tsr_diff_run_fini(struct tsr_diff_run *run);

/* ---- both -------------------------------------------------------------------------------------
 */

struct json_t; /* of jansson */

/* Owns its runs: tsr_diff_fini(). A recording merges micro-batches: where one side is a recording,
 * the points of both have micro-batch 0. */
struct tsr_diff {
    struct tsr_diff_run a, b;
};
void tsr_diff_fini(struct tsr_diff *diff);

/* What differs, as an object. Errors: TSR_ENOMEM. */
tsr_status tsr_diff_report(const struct tsr_diff *diff, struct json_t **out) TSR_MUST_USE;
#endif
