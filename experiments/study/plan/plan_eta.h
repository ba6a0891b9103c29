/* plan_eta.h: how many seconds a search still takes, from what it has done: arithmetic only, no
 * clock.
 *
 * Two kinds of work are counted apart, since their costs differ by up to a hundred: emissions and
 * simulations. How much of each is left is not known, because results rule out configurations; how
 * many are ruled out follows a rule that was measured (plan_eta.c).
 */
#ifndef TSR_STUDY_PLAN_ETA_H
#define TSR_STUDY_PLAN_ETA_H

#include <stdbool.h>
#include <stddef.h>

enum tsr_plan_work { TSR_PLAN_EMITS, TSR_PLAN_SIMULATES, TSR_PLAN_WORKS };

/* What a search has done so far. All zero at first; plain data, which may be copied. */
struct tsr_plan_eta {
    struct {
        double items, seconds; /* seconds of one process; what is older counts less */
        double at_a_time;      /* sum over items: how many ran at the same time, at most */
    } cost[TSR_PLAN_WORKS];
    double emitted, simulated; /* since the bounds are known; what is older counts less */
};

/* What may still be done at a moment. */
struct tsr_plan_left {
    size_t open;     /* not emitted, and not ruled out by what is known now */
    size_t waiting;  /* emitted and to be simulated, unless results rule them out */
    bool learning;   /* bounds are being learned, so that they rule out less than they will */
    bool unbounded;  /* bounds do not hold: each open configuration will be emitted */
    bool exhaustive; /* each one will be emitted and simulated */
};

/* Adds `n` items that took `seconds` of wall time, `jobs` at a time. */
void tsr_plan_eta_add(struct tsr_plan_eta *eta, enum tsr_plan_work work, bool learning, size_t n,
                      double seconds, size_t jobs);
/* Returns the seconds of wall time until the end, with `jobs` processes. 0 before the first item.
 */
double tsr_plan_eta_seconds(const struct tsr_plan_eta *eta, const struct tsr_plan_left *left,
                            size_t jobs);

#endif
