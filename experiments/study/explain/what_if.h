/* what_if.h: how memory and time change with one, two or three keys set to other values: the table
 * of such changes, and their emissions. Nothing is estimated from another emission.
 */
#ifndef TSR_STUDY_WHAT_IF_H
#define TSR_STUDY_WHAT_IF_H

#include "experiments/study/config/experiment.h"
#include "experiments/study/explain/explain.h"
#include "experiments/study/job/job.h"

/* TSR_WHAT_IF_KEYS: of one what-if: more ranks beside two keys of a mesh and the cluster. */
enum { TSR_WHAT_IF_VALUE = 64, TSR_WHAT_IF_KEYS = 4, TSR_MAX_WHAT_IFS = 96, TSR_MAX_SETS_OF = 3 };

struct tsr_what_if {
    enum tsr_key_id dimension; /* what it is about: two of one dimension exclude each other */
    enum tsr_what_if_effect effect;
    struct tsr_variant variant;
    char values[TSR_WHAT_IF_KEYS]
               [TSR_WHAT_IF_VALUE]; /* what variant's values point to, where it was made */
    bool is_set;                    /* the strategy has it already */
    unsigned needs;                 /* software beyond the strategy's: tsr_needs_beyond() */
};

/* What one emission (or simulation) gave. Plain data: it goes through a pipe. */
struct tsr_what_if_result {
    int status; /* 0; else an exit status: 3 is out of memory, anything else cannot be set */
    uint64_t allocated, reserved; /* peaks of the steady iteration, as `compare` gives them */
    uint64_t needed;              /* on the card, as `compare` gives it */
    int fits;                     /* enum tsr_fits */
    uint64_t host, pinned;        /* of the process: pageable, page-locked; largest of the run */
    uint64_t node_host;           /* of the ranks of a node, the fullest */
    int host_verdict;             /* enum tsr_host_verdict */
    double step_s, exposed_s;     /* negative: not simulated */
    uint64_t tokens_per_rank;     /* of one iteration */
    char failure[256];
};

/* Adds key=value to the variant; the text of the value is copied to the next of `room` places. key:
 * a key's name, or what several of them begin with; borrowed. */
void tsr_variant_add(struct tsr_variant *variant, char (*values)[TSR_WHAT_IF_VALUE], size_t room,
                     const char *key, const char *value);

/* The candidates for this strategy in the order of the table; returns how many. Values point into
 * `out`. */
size_t tsr_what_if_list(const struct tsr_job *job, struct tsr_experiment *experiment,
                        struct tsr_what_if out[TSR_MAX_WHAT_IFS]);

/* Sets the keys of the other mesh: HSDP's replicas become shards; without replicas HSDP, with one
 * replica per node, else two. Returns false, and sets nothing, if the strategy can have no other
 * mesh. */
bool tsr_what_if_other_mesh(const struct tsr_job *job, struct tsr_what_if *what);

/* Both have the same values under the keys of the variant. */
bool tsr_what_if_equal(const struct tsr_variant *variant, const struct tsr_settings *a,
                       const struct tsr_settings *b);

/* Emits the strategy with each variant, in `jobs` processes; results[n] in order. `simulate`: the
 * time as well (needs a cluster; without one the time is unknown). Errors: of the machine only. */
tsr_status tsr_what_if_run(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                           const struct tsr_variant *const *variants, size_t n, uint64_t jobs,
                           bool simulate, struct tsr_what_if_result *results) TSR_MUST_USE;

#endif
