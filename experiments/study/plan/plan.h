/* plan.h: the search of `tessera plan` and what it finds.
 *
 * Of a few configurations is known, from their programs, what the model computes at least, what it
 * keeps at least, and what parameters and optimizer need at least (plan_bounds.c): that bounds all
 * others. Which may still be among the fastest or on the Pareto front are emitted, which says what
 * memory they need and gives a closer bound (tsr_sim_step_bound()), and, if that is not enough,
 * simulated. --exhaustive emits and simulates everything, and must find the same.
 *
 * Speed is time per token of a GPU: steps of other batch sizes can be compared. Memory is the
 * larger reserved peak of the first and the steady iteration.
 */
#ifndef TSR_STUDY_PLAN_H
#define TSR_STUDY_PLAN_H

#include "experiments/study/config/needs.h"
#include "experiments/study/job/job.h"
#include "experiments/study/plan/plan_eta.h"
#include "experiments/study/plan/plan_result.h"
#include "experiments/study/simulate/open.h"

struct tsr_plan;

/* ---- the space ------------------------------------------------------------------------------- */

/* The configurations that `tessera plan` searches: every combination of the values of
 * some keys, on top of one strategy of the experiment file.
 *
 * A configuration is what the program makes of the file with some --set more, so that the command
 * in the report repeats it exactly. */

enum { TSR_PLAN_MAX_POINTS = 262144 };

struct tsr_plan_value {
    const char *text;  /* YAML: "bf16", "[2, 4]" */
    const char *set;   /* "strategies.fsdp.precision.reduce=bf16" */
    bool is_base;      /* what the strategy has anyway: nothing to set */
    uint64_t size;     /* of batch and seq */
    size_t rank;       /* by size: 0 is the smallest of the axis */
    unsigned needs;    /* set of 1 << enum tsr_need: those that it has and the strategy has not */
    bool was_possible; /* some configuration with it could be built */
};

struct tsr_plan_axis {
    const char *key;
    const struct tsr_yaml_node *at; /* the list in the file; NULL: a default */
    bool is_size;                   /* batch, seq: more of it never needs less memory */
    bool is_api;
    bool moves_model, moves_state,
        moves_hooks;  /* does it change what plan_bounds.c knows of others? */
    unsigned readers; /* set of 1 << enum tsr_api: those that read the key */
    size_t base;      /* the value that the strategy has; 0 if it has none of them */
    size_t n;
    struct tsr_plan_value *values;
};

struct tsr_plan_space {
    bool is_default;
    unsigned api;     /* of the strategy */
    unsigned allowed; /* set of 1 << enum tsr_need: what configurations may need unmarked */
    size_t n_axes, n; /* n: combinations */
    struct tsr_plan_axis axes[TSR_PLAN_MAX_AXES];
};

/* The space of `plan.space`, or the default one for the strategy of `job`. Memory comes from the
 * experiment. Errors: TSR_ECONFIG with the place. */
tsr_status tsr_plan_space_read(struct tsr_experiment *experiment, const struct tsr_job *job,
                               struct tsr_plan_space *out) TSR_MUST_USE;
/* The documented default space (plan_default.c). */
tsr_status tsr_plan_space_default(struct tsr_experiment *experiment, const struct tsr_job *job,
                                  struct tsr_plan_space *out) TSR_MUST_USE;
/* Adds an axis of `n` values given as YAML; finds out which are those of the strategy. */
tsr_status tsr_plan_add_axis(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                             const char *key, const char *const *texts, size_t n,
                             struct tsr_plan_space *out) TSR_MUST_USE;
/* "strategies.fsdp.batch=4", or "batch=4" where the strategy has no value of its own: what --set
 * needs. NULL when out of memory. */
const char *tsr_plan_set(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                         const char *key, const char *text);

/* Which value of axis `k` combination `i` has; the last axis changes fastest. */
size_t tsr_plan_pick(const struct tsr_plan_space *space, size_t i, size_t k);
/* The combination that differs from `i` in axis `k` alone, with that value. */
size_t tsr_plan_with(const struct tsr_plan_space *space, size_t i, size_t k, size_t value);
/* True if combination `i` differs from another one only in keys that its API does not read. */
bool tsr_plan_repeats(const struct tsr_plan_space *space, size_t i);
/* The --set of combination `i`, without keys that its API does not read, at most TSR_PLAN_MAX_AXES;
 * returns how many. */
size_t tsr_plan_sets(const struct tsr_plan_space *space, size_t i, const char **out);
/* Does the default space leave combination `i` out, whose settings refuse each other? NULL: no; or
 * why. */
const char *tsr_plan_excludes(const struct tsr_plan *plan, size_t i);
/* Set of 1 << enum tsr_need: what combination `i` needs and the strategy does not. */
unsigned tsr_plan_needs(const struct tsr_plan_space *space, size_t i);
/* "batch=4, checkpoint.every=full"; "as in the file" without changes. */
void tsr_plan_words(const struct tsr_plan_space *space, size_t i, char *out, size_t size);

/* ---- the search ------------------------------------------------------------------------------ */

enum tsr_plan_state {
    TSR_PLAN_NEW,
    TSR_PLAN_IMPOSSIBLE, /* the combination is refused: row.failure says why */
    TSR_PLAN_REPEATS,    /* another configuration but for keys that its API does not read */
    TSR_PLAN_TOO_LARGE,  /* not emitted: its tensors alone exceed the budget */
    TSR_PLAN_BEATEN,     /* not emitted: others are certainly faster, and smaller */
    TSR_PLAN_OOM,        /* the modelled allocator ran out of memory: row.failure */
    TSR_PLAN_EMITTED,    /* memory is known */
    TSR_PLAN_SIMULATED   /* time too */
};

/* What a child process finds out about a configuration; plain data. */
struct tsr_plan_measure {
    struct tsr_row row;
    struct tsr_step_bound bound;
    uint64_t kept;  /* bytes that parameters and optimizer hold all the time */
    uint64_t saved; /* bytes of activations at their most */
    uint64_t saved_at_loss, gathered_at_loss; /* of activations at their most, of whole parameters
                                                 at their least while the loss is computed */
    uint64_t key;                             /* equal: the same programs, memory and simulation */
};

/* A configuration. m->row has memory from TSR_PLAN_EMITTED on and times with TSR_PLAN_SIMULATED;
 * before, at most why it failed. m: NULL before it was tried. */
struct tsr_plan_point {
    enum tsr_plan_state state;
    struct tsr_plan_measure *m;
    uint64_t need; /* bytes: the larger reserved peak */
    bool fits, front;
    bool is_marked; /* it needs more than the strategy does, and that was not asked for */
    size_t changes; /* settings that differ from the strategy's */
    size_t like;    /* the configuration that stands for all with this key; its own index */
    size_t n_like;  /* configurations that this one stands for: equal programs, or equal figures */
};

/* A search. Owns experiment, job, space, points and shown; points[i] is configuration i of the
 * space, and `shown` are indices of points. */
struct tsr_plan {
    struct tsr_plan_options options;
    struct tsr_study_request request; /* of the study; borrowed */
    struct tsr_experiment experiment; /* without sweeps */
    bool had_sweeps;
    const struct tsr_strategy *base;
    struct tsr_job job; /* of the base */
    struct tsr_plan_space space;
    uint64_t budget;               /* bytes */
    bool own_budget;               /* given in the file, not the card's */
    struct tsr_plan_point *points; /* [space.n] */
    struct tsr_plan_bounds *bounds;
    struct tsr_plan_past *past; /* the search that this one resumes; NULL: none */
    struct tsr_plan_counts counts;
    struct tsr_plan_eta eta;    /* costs until the last batch of work ended */
    struct tsr_plan_left left;  /* before the current batch */
    size_t n_shown, *shown;     /* n_ranked without a mark, the fastest first, then the marked */
    size_t own;                 /* the configuration of the file; SIZE_MAX: not in the space */
    size_t n_ranked;            /* the fastest that are not marked, and their front */
    struct tsr_study_info info; /* of the base, for reports; its texts belong to the experiment */
    struct tsr_measured_classes *measured; /* owned; the experiments borrow it */
};

/* Says of the shown configurations, in the info for reports, what is known of the errors of their
 * times. Errors: TSR_ENOMEM. */
tsr_status tsr_plan_validate(struct tsr_plan *plan) TSR_MUST_USE;

/* Reads the experiment once more, without its sweeps (a plan has a space of its own), chooses the
 * strategy, reads the budget. On failure nothing is to be freed. */
tsr_status tsr_plan_open(const struct tsr_study *study, const struct tsr_plan_options *options,
                         struct tsr_plan *out) TSR_MUST_USE;
void tsr_plan_close(struct tsr_plan *plan);

/* Reads the space and fills points, counts and shown. Errors: TSR_ECONFIG (a value that no
 * combination can have), those of the machine. That nothing fits is none: n_shown is 0. */
tsr_status tsr_plan_search(struct tsr_plan *plan) TSR_MUST_USE;
/* One line: the smallest need that was found, and who has it. Returns TSR_EOOM. */
tsr_status tsr_plan_nothing_fits(const struct tsr_plan *plan);

/* ---- the order of configurations (plan_order.c) ---------------------------------------------- */

/* What an order needs to know of a configuration. Smaller is before. */
struct tsr_plan_place {
    double time; /* seconds per token, rounded */
    uint64_t need, allocated, key;
    size_t changes, index;
    bool is_new; /* nothing before it has the same figures */
    bool is_marked;
};

/* Six digits: what prefetching changes in the twelfth digit is no difference. Rounding is
 * monotonic, so a bound stays a bound. */
double tsr_plan_round(double seconds);
struct tsr_plan_place tsr_plan_place_of(const struct tsr_plan *plan, size_t i);
bool tsr_plan_same_figures(const struct tsr_plan_place *a, const struct tsr_plan_place *b);
/* For qsort(): by time, then by memory. Of equal figures those without a mark are before those with
 * one, and then those that change less. */
int tsr_plan_compare_places(const void *a, const void *b);
/* Lets one configuration, that with the fewest changes, stand for all emitted ones with equal keys,
 * and counts the others. places[space.n] is scratch. */
void tsr_plan_find_equals(struct tsr_plan *plan, struct tsr_plan_place *places);
/* Chooses what is shown of what was simulated and fits. Ranked first are the N fastest that are not
 * marked, and the front of these: each needs less memory than all that are faster. Behind them
 * come the marked of the N fastest of all. Of equal figures the first is shown. Sorts `done`. */
tsr_status tsr_plan_choose(struct tsr_plan *plan, struct tsr_plan_place *done,
                           size_t n) TSR_MUST_USE;

/* ---- what is known of configurations that were not emitted (plan_bounds.c) --------------------
 */

/* What configurations with the same values of some axes have in common, by the number of the one
 * with the first value of all other axes. Bounds hold for fully_shard only; of other strategies
 * nothing is known. */
struct tsr_plan_bounds {
    struct tsr_plan_model {
        bool known;
        double seconds, kernels_s, tokens; /* of a step; 0: nothing is promised */
        uint64_t saved, saved_at_loss;
    } * models; /* [space.n] */
    struct tsr_plan_kept {
        bool known, ends; /* ends: an iteration ends so that bounds hold (bound.c) */
        double optimizer_s, kernels_s;
        uint64_t bytes;
    } * states; /* [space.n] */
    struct tsr_plan_hooks {
        bool known;
        double kernels_s, wires_s;
        uint64_t gathered_at_loss;
    } * hooks; /* [space.n] */
};

tsr_status tsr_plan_bounds_create(struct tsr_plan *plan) TSR_MUST_USE;
void tsr_plan_bounds_destroy(struct tsr_plan_bounds *bounds);
/* Learns from a configuration that was emitted. */
void tsr_plan_learn(struct tsr_plan *plan, size_t i);
/* Whose model, state, hooks are unknown: by the number under which it will be known; SIZE_MAX: it
 * is known, or never will be. */
size_t tsr_plan_unknown_model(const struct tsr_plan *plan, size_t i);
size_t tsr_plan_unknown_state(const struct tsr_plan *plan, size_t i);
size_t tsr_plan_unknown_hooks(const struct tsr_plan *plan, size_t i);
/* Seconds that a step of configuration `i` takes at least, bytes that it needs at least; 0:
 * unknown. Of what was emitted: its own bound, and its need. */
double tsr_plan_least_step(const struct tsr_plan *plan, size_t i);
uint64_t tsr_plan_least_need(const struct tsr_plan *plan, size_t i);
/* The same from other configurations alone. */
double tsr_plan_learned_step(const struct tsr_plan *plan, size_t i);
uint64_t tsr_plan_learned_need(const struct tsr_plan *plan, size_t i);
/* Tokens of a step, of one GPU. */
double tsr_plan_tokens(const struct tsr_plan *plan, size_t i);

/* ---- work (plan_run.c) ----------------------------------------------------------------------- */

static inline bool tsr_plan_is_emitted(const struct tsr_plan_point *point)
{
    return point->state == TSR_PLAN_EMITTED || point->state == TSR_PLAN_SIMULATED;
}
/* Seconds of a clock that is not set back. */
double tsr_plan_now(void);
/* Emits, or simulates, `n` configurations, a few at a time; after an interruption some are as they
 * were. Errors: of the machine, and defects; what refuses or does not fit is told in its point. */
tsr_status tsr_plan_run(struct tsr_plan *plan, const size_t *items, size_t n,
                        bool simulates) TSR_MUST_USE;
/* Errors: TSR_ECONFIG, a value that no combination can have. */
tsr_status tsr_plan_check_values(struct tsr_plan *plan) TSR_MUST_USE;

/* ---- interrupted searches (plan_keep.c) -------------------------------------------------------
 */

/* Reads what an interrupted search of the same question left, if options.resume asks for it.
 * Errors: TSR_ECONFIG: there is nothing, or it belongs to another question. */
tsr_status tsr_plan_resume(struct tsr_plan *plan) TSR_MUST_USE;
void tsr_plan_past_destroy(struct tsr_plan_past *past);
/* What that search knew of configuration `i`; NULL: nothing. */
const struct tsr_plan_measure *tsr_plan_kept_of(const struct tsr_plan *plan, size_t i,
                                                bool simulated);
/* After an interruption all that is known is left in options.dir; after the end of a search nothing
 * is. */
tsr_status tsr_plan_keep(const struct tsr_plan *plan) TSR_MUST_USE;

/* plan_open.c: the file with `n` more --set, in this process. Errors are told in the row too. */
tsr_status tsr_plan_measure(const struct tsr_plan *plan, const char *const *sets, size_t n,
                            bool with_bound, struct tsr_plan_measure *out) TSR_MUST_USE;
tsr_status tsr_plan_simulate(const struct tsr_plan *plan, const char *const *sets, size_t n,
                             struct tsr_row *out) TSR_MUST_USE;
/* Opens the file with `n` more --set, and shows its job to `use`. */
tsr_status tsr_plan_with_job(const struct tsr_plan *plan, const char *const *sets, size_t n,
                             tsr_status (*use)(const struct tsr_job *job, void *user),
                             void *user) TSR_MUST_USE;
/* The k-th that is shown as an experiment file: the strategy of the search and, as "STRATEGY-RANK",
 * what was found. *out is to be freed. */
tsr_status tsr_plan_print(const struct tsr_plan *plan, size_t k, char **out) TSR_MUST_USE;
uint64_t tsr_plan_need(const struct tsr_row *row);
/* Only the memory of a node's host is too small: the GPU has enough, or may have. */
static inline bool tsr_plan_lacks_host(const struct tsr_row *row)
{
    return row->node_host.verdict == TSR_HOST_TOO_SMALL && row->fit.verdict != TSR_FITS_NO;
}

uint64_t tsr_plan_allocated(const struct tsr_row *row); /* the larger allocated peak */

/* Seconds per token of a GPU. */
double tsr_plan_time(const struct tsr_row *row);

/* plan_report.c: "tessera SUBCOMMAND FILE --strategy NAME --set ...", for a shell: what the file
 * says, changed by `sets`; without the end of the line. */
void tsr_plan_put_command(FILE *out, const struct tsr_plan *plan, const char *subcommand,
                          const char *const *sets, size_t n);
/* Prints the command about the k-th configuration that is shown. */
void tsr_plan_put_shown_command(FILE *out, const struct tsr_plan *plan, const char *subcommand,
                                size_t k);
/* Returns the command that simulates the k-th again, to be freed; NULL when out of memory. */
char *tsr_plan_command(const struct tsr_plan *plan, size_t k);
/* `format`: md, wide (with every row and column), csv or json. For people `notes` gets what
 * explains the report; `view` may be NULL for programs. */
tsr_status tsr_plan_report(FILE *out, FILE *notes, const struct tsr_plan *plan, const char *format,
                           const struct tsr_plan_view *view) TSR_MUST_USE;
/* plan_screen.c: the report for people; `wide`: every row and column. Explanations go to `notes`.
 */
void tsr_plan_put_screen(FILE *out, FILE *notes, const struct tsr_plan *plan, bool wide,
                         const struct tsr_plan_view *view);
/* plan_files.c: plan.csv, summary.json and the picture in a folder. */
tsr_status tsr_plan_write(const struct tsr_plan *plan, const char *dir) TSR_MUST_USE;

/* plan_max.c: solves for the largest batch, seq or number of layers. That none fits is TSR_EOOM,
 * with one line; with `dir` the probes are left in its max.csv in any case. */
tsr_status tsr_plan_solve(struct tsr_plan *plan, enum tsr_plan_size size, const char *dir,
                          struct tsr_plan_largest *out) TSR_MUST_USE;
/* plan_max.c: md, csv or json. */
tsr_status tsr_plan_largest_report(FILE *out, struct tsr_plan *plan,
                                   const struct tsr_plan_largest *largest,
                                   const char *format) TSR_MUST_USE;

/* plan_page.c: write DIR/report.html, of a search and of a largest size. */
tsr_status tsr_plan_page(struct tsr_plan *plan, const char *dir) TSR_MUST_USE;
tsr_status tsr_plan_largest_page(struct tsr_plan *plan, const struct tsr_plan_largest *largest,
                                 const char *dir) TSR_MUST_USE;

#endif
