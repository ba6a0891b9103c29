/* diff.h: two runs side by side: the levels of their memory, change by change, with the place in
 * the step where each change happened. A run is a strategy (emitted here), what `compare` left of
 * one (memory.csv), or a recording of PyTorch (a timeline of tests/golden-memory).
 */
#ifndef TSR_STUDY_DIFF_H
#define TSR_STUDY_DIFF_H

#include "engine/program/program.h"
#include "experiments/study/config/request.h"
#include "experiments/study/detail/report_overlap.h"

/* What no category is known of has one of its own here. */
enum { TSR_DIFF_UNKNOWN = TSR_N_CATEGORIES, TSR_DIFF_CATEGORIES };

/* The level after a change; the first point is the level at the start of the iteration. */
struct tsr_diff_point {
    const char *phase, *module, *hook, *operation; /* never NULL; "" where not known */
    uint16_t micro;
    uint64_t total, reserved;
    uint64_t by_category[TSR_DIFF_CATEGORIES];
};

/* What one kind of owner holds at the peak. */
struct tsr_diff_owner {
    uint8_t category;
    const char *name; /* "model.layers.*" */
    uint64_t bytes;
};

/* An allocation of a recorded run, and what is known of it. */
struct tsr_diff_block {
    uint64_t bytes;
    uint8_t category;  /* TSR_DIFF_UNKNOWN: not known */
    const char *owner; /* never NULL */
};

/* One side of a diff, whatever it was read from. Owns its lists. Points are in the order of time,
 * points[0] is the start of the iteration; owners are those of the moment of the peak. */
struct tsr_diff_run {
    char label[256];
    const char *kind; /* "strategy", "folder", "recording" or "snapshot" */
    bool has_owners;  /* memory.csv has categories only */
    struct tsr_diff_point *points;
    size_t n, cap, peak; /* peak: the first point of the maximum */
    struct tsr_diff_owner *owners;
    size_t n_owners, cap_owners;
    /* Of a strategy and a snapshot: the blocks that live at the start of the step, in the order of
     * their allocation; of a snapshot behind them those of the step. */
    struct tsr_diff_block *blocks;
    size_t n_blocks, cap_blocks, n_start;
    uint32_t *of_point; /* of a snapshot, [n]: the block that points[i], i > 0, is of */
    size_t found;       /* changes of a snapshot that are the other run's, too */
    bool has_overlap;   /* times are known: those of a simulation, or of a run */
    struct tsr_overlap_table overlap;
    struct tsr_arena arena; /* texts of the points and owners */
};

void tsr_diff_run_fini(struct tsr_diff_run *run);

/* ---- differences --------------------------------------------------------------------------- */

/* All differences are b minus a; [0] is a, [1] is b. Texts belong to the runs, or to the diff. */

/* Live at the start of the step or at the peaks; those that differ most first. */
struct tsr_diff_category {
    const char *category;
    uint64_t bytes[2];
};

struct tsr_diff_owned {
    const char *category, *owner;
    uint64_t bytes[2];
};

/* The first change of the step that is not the same in both. */
struct tsr_diff_change {
    bool there;           /* else the run has ended */
    size_t point;         /* of the run */
    const char *category; /* that moved most; "": none */
    int64_t bytes;
};

/* Where the gap between the levels opens and closes. */
struct tsr_diff_gap {
    const char *phase, *module; /* "model.layers.*" */
    uint16_t micro;
    size_t n; /* places */
    int64_t change;
};

struct tsr_diff_phase {
    const char *phase;
    uint16_t micro;
    bool in[2];
    uint64_t allocated[2], reserved[2]; /* peaks; 0 where the run does not have the phase */
};

/* Collectives of one kind and one pattern of names whose exposure is not the same; seconds. */
struct tsr_diff_exposure {
    uint8_t kind; /* enum tsr_overlap_kind */
    const char *name;
    size_t n[2];
    double exposed[2], why[2][TSR_N_EXPOSURES];
};

/* Owns all of it: tsr_diff_fini(). A recording merges micro-batches: where one side is a recording,
 * the points of both have micro-batch 0. */
struct tsr_diff {
    struct tsr_diff_run runs[2];
    struct tsr_arena arena;
    uint64_t peak_reserved[2];
    size_t n_start, n_peak, n_owners, n_gaps, n_phases, n_exposures;
    struct tsr_diff_category start[TSR_DIFF_CATEGORIES], peak[TSR_DIFF_CATEGORIES];
    bool parts; /* else every change of the step is the same */
    size_t part_at;
    struct tsr_diff_change part[2];
    bool has_owners; /* of both runs */
    struct tsr_diff_owned *owners;
    struct tsr_diff_gap *gaps; /* the widest first */
    struct tsr_diff_phase *phases;
    bool has_exposures;                  /* both runs have times */
    struct tsr_diff_exposure *exposures; /* the largest change first */
};
/* Fills all but the runs. The runs stay the caller's on failure. Errors: TSR_ENOMEM. */
tsr_status tsr_diff_runs(struct tsr_diff *diff) TSR_MUST_USE;
void tsr_diff_fini(struct tsr_diff *diff);

struct json_t; /* of jansson */

/* All of it as an object. NULL when out of memory. */
struct json_t *tsr_diff_json(const struct tsr_diff *diff);

#endif
