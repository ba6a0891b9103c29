/* explain.h: what a rank's memory is made of at its peak, and what other settings would make of it.
 * Everything is read from emitted programs and their replay. Bytes are block bytes (what the
 * allocator took) unless "requested".
 */
#ifndef TSR_STUDY_EXPLAIN_H
#define TSR_STUDY_EXPLAIN_H

#include "engine/program/memory.h"
#include "experiments/study/job/result.h"

struct tsr_job;
struct tsr_emission;
struct tsr_experiment;
struct json_t; /* of jansson */

/* ---- the peak ------------------------------------------------------------------------------ */

/* Where an instruction is in the step. Texts are never NULL. */
struct tsr_explain_place {
    const char *phase;     /* "backward" */
    unsigned micro;        /* micro-batch, from 0 */
    const char *module;    /* "model.layers.31.mlp", "(root)", "optimizer" */
    const char *hook;      /* "pre_backward"; "": none */
    const char *operation; /* what an allocation is for, "mm"; "": no allocation */
    bool recompute;
    size_t instr; /* index in the program */
};

/* One iteration, or what is before or after the steps. */
struct tsr_explain_iteration {
    struct tsr_explain_place place; /* of its peak */
    const char *name;               /* "first", "steady", "early", "init", "save", ... */
    int number;                     /* negative: no step */
    uint64_t allocated, reserved;
};

/* Live buffers of one category that differ only in the number of their block. */
struct tsr_explain_owner {
    const char *category, *owner; /* "Parameter", "model.layers.*" */
    const char *phase;            /* that allocated them */
    bool earlier, recomputed;     /* in an earlier iteration; while recomputing */
    size_t n_owners, n_buffers;
    uint64_t bytes, smallest, largest; /* smallest and largest owner */
};

struct tsr_explain_category {
    const char *category;
    uint64_t bytes;
    size_t n_buffers;
    double share; /* of all that is alive, 0 to 1 */
};

/* What is alive at one moment; the largest first. */
struct tsr_explain_alive {
    uint64_t bytes;
    size_t n_buffers, n_categories, n_owners, n_modules;
    struct tsr_explain_category categories[TSR_N_CATEGORIES];
    struct tsr_explain_owner *owners;  /* by block */
    struct tsr_explain_owner *modules; /* activations by module */
};

/* The allocator's segments of one stream. */
struct tsr_explain_pool {
    const char *stream;
    size_t n_segments, n_cached;
    uint64_t reserved, allocated, cached, inactive; /* cached: segments that are free as a whole;
                                                       inactive: free in segments that are in use */
};

/* The allocator at the peak, bytes. allocated = requested + rounding; cached and inactive are sums
 * over the pools; a stream without segments has no pool. */
struct tsr_explain_allocator {
    uint64_t requested, rounding, allocated, cached, inactive, reserved;
    size_t n_pools;
    struct tsr_explain_pool *pools;
};

/* The fullest rank of the fullest node, when it holds most on its host. */
struct tsr_explain_host {
    uint32_t rank;
    struct tsr_explain_place place;
    struct tsr_explain_alive alive; /* buffers, pinned ones with their rounding */
    uint64_t cached;                /* page-locked memory that no buffer uses */
};

struct tsr_explain_unit {
    const char *name;
    uint64_t unsharded, gathered; /* parameters; buffers of all-gathers */
};

/* Units that hold unsharded parameters: at the peak, and at the moment with most of them. */
struct tsr_explain_unsharded {
    size_t n;
    struct tsr_explain_unit *at_peak;
    struct tsr_explain_place most;
    uint64_t most_bytes;
    size_t most_units;
};

/* What blocks keep from forward to backward: of those that are recomputed, and of the others. */
struct tsr_explain_kept {
    const char *owner; /* "model.layers.*" */
    bool recomputed;
    size_t n_blocks;
    uint64_t bytes, smallest, largest; /* of a block */
};

struct tsr_explain_checkpointing {
    size_t n_blocks, n_recomputed, n_kept;
    struct tsr_explain_kept kept[2];
    uint64_t after_forward, after_backward; /* activations that are alive then */
};

struct tsr_explain_phase {
    struct tsr_explain_place place;
    uint64_t allocated, reserved;
    bool at_start; /* nothing in the phase went above the level at its start */
};

/* A local maximum below the peak. */
struct tsr_explain_maximum {
    struct tsr_explain_place place;
    uint64_t allocated, reserved;
    struct tsr_explain_alive alive;
};

enum { TSR_EXPLAIN_MAXIMA = 8 };

/* ---- what if ------------------------------------------------------------------------------- */

enum { TSR_MAX_CHANGED_KEYS = 8 };

/* What a change does to the training itself. */
enum tsr_what_if_effect {
    TSR_EFFECT_NONE,    /* same numbers, same GPUs */
    TSR_EFFECT_NUMBERS, /* other precision or another optimizer */
    TSR_EFFECT_GPUS     /* needs other hardware */
};

/* The strategy with some keys set to other values, emitted. The figures are those of the steady
 * iteration, as a comparison gives them, and 0 if it failed. */
struct tsr_what_if_row {
    size_t n_sets;
    const char *sets[TSR_MAX_CHANGED_KEYS]; /* "precision.reduce=bf16" */
    enum tsr_what_if_effect effect;
    unsigned needs; /* set of enum tsr_need: software that the strategy does not use already */
    bool already_set;
    bool failed, out_of_memory; /* why: failure */
    const char *failure;
    uint64_t allocated, reserved, needed, host, pinned;
    uint64_t node_host;                      /* of the ranks of a node; 0 without a cluster */
    int host_verdict;                        /* enum tsr_host_verdict */
    int fits;                                /* enum tsr_fits */
    int64_t saves_allocated, saves_reserved; /* negative: it takes more */
    uint64_t tokens; /* of one GPU and step; 0: not known: by time per token rows are compared */
    double step_s;   /* seconds; negative: not simulated */
};

/* Combinations of what-ifs that save. */
struct tsr_what_if_sets {
    size_t possible, emitted;
    bool has_best, has_same;
    struct tsr_what_if_row best; /* lowest allocated peak, then reserved */
    struct tsr_what_if_row same; /* the best that changes neither numbers nor hardware */
};

struct tsr_what_ifs {
    struct tsr_what_if_row base; /* nothing is changed */
    size_t n;
    struct tsr_what_if_row *rows; /* one change each; the one that saves most first */
    struct tsr_what_if_sets pairs, triples;
    size_t n_useful, n_emitted; /* changes that save; emissions in all */
};

/* ---- all of it ----------------------------------------------------------------------------- */

/* Owns all that it points to: tsr_explanation_fini(). */
struct tsr_explanation {
    struct tsr_arena arena;
    const char *file, *strategy, *summary, *model, *cluster; /* cluster "": none */
    uint32_t world;
    struct tsr_row row; /* memory only; what the card and the host must hold; sections */
    /* The peak: of the rank class and the iteration that go highest. */
    struct tsr_explain_iteration peak;
    const char *category; /* of the allocation that made it; "": the level at the start */
    uint64_t requested;   /* by it */
    uint32_t rank, class, n_classes;
    size_t n_iterations, n_phases, n_next;
    struct tsr_explain_iteration *iterations;
    struct tsr_explain_alive alive;
    struct tsr_explain_allocator allocator;
    struct tsr_explain_host host;
    struct tsr_explain_unsharded unsharded;
    struct tsr_explain_checkpointing checkpointing;
    struct tsr_explain_phase *phases;
    struct tsr_explain_maximum next[TSR_EXPLAIN_MAXIMA];
    struct tsr_study_info times; /* where simulated times come from, and what is known of their
                                    errors; without sources if nothing was simulated */
    bool has_what_if;            /* it was asked for */
    struct tsr_what_ifs what_if;
};

/* Fills all but what_if; `row` has the memory of the strategy (tsr_peak_of()). On failure, too,
 * *out is to be freed. Errors: TSR_ENOMEM. */
tsr_status tsr_explain(const struct tsr_job *job, const struct tsr_emission *emission,
                       const struct tsr_row *row, struct tsr_explanation *out) TSR_MUST_USE;
struct tsr_what_if_options {
    uint64_t jobs; /* emissions at a time */
    bool simulate; /* single ones have a time, too */
    bool sets;     /* pairs and triples of those that save, too: ten times as many emissions */
};
/* Fills what_if. Every figure is a full emission of the changed strategy. */
tsr_status tsr_what_if(struct tsr_experiment *experiment, const struct tsr_job *job,
                       const struct tsr_what_if_options *options,
                       struct tsr_explanation *out) TSR_MUST_USE;
void tsr_explanation_fini(struct tsr_explanation *explanation);

/* All of it as an object. NULL when out of memory. */
struct json_t *tsr_explain_json(const struct tsr_explanation *explanation);

#endif
