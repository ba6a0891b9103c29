/* plan_eta.c: estimates the seconds that a search still takes (plan_eta.h).
 *
 * Its constants were fitted to eight searches (Llama-3.1-8B on 8 and 128 H100, also with 40 GiB and
 * with all software allowed, Qwen2.5-32B on 32 H100, GPT-2 XL on A100, Llama-3.2-1B on one H200, a
 * space of 72 configurations), whose rounds are kept in tests/studies/plan_eta.tsv. Of R
 * configurations that are open while bounds are learned about 19 R^0.315 are emitted in the end,
 * later 3.9 R^0.59; of W that wait for a simulation about 3.2 sqrt(W), later 4 sqrt(W), are
 * simulated, and of those that are emitted from then on one in ten.
 */
#include "experiments/study/plan/plan_eta.h"

#include <math.h>

/* A simulation costs about two emissions, until one was timed. */
static const double SIMULATION_COST = 2.0, SIMULATION_ITEMS = 0.5;
/* Simulations per emission, and how many emissions that prior knowledge weighs. */
static const double SIMULATED_SHARE = 0.1, SHARE_ITEMS = 600.0;
/* After so many items an older one counts half. */
static const double HALF_LIFE[TSR_PLAN_WORKS] = {64.0, 16.0};
static const double SHARE_HALF_LIFE = 60.0;
/* A round has at most so many items of each kind, most often (ROUND of plan_search.c): more
 * processes are idle. */
static const double IN_A_ROUND[TSR_PLAN_WORKS] = {8.0, 2.0};

void tsr_plan_eta_add(struct tsr_plan_eta *eta, enum tsr_plan_work work, bool learning, size_t n,
                      double seconds, size_t jobs)
{
    double count = (double)n, width = fmin(count, fmax((double)jobs, 1.0));
    double kept = exp2(-count / HALF_LIFE[work]);
    if (!n)
        return;
    eta->cost[work].items = eta->cost[work].items * kept + count;
    eta->cost[work].seconds = eta->cost[work].seconds * kept + seconds * width;
    eta->cost[work].at_a_time = eta->cost[work].at_a_time * kept + count * width;
    if (learning)
        return;
    if (work == TSR_PLAN_EMITS) {
        kept = exp2(-count / SHARE_HALF_LIFE);
        eta->emitted = eta->emitted * kept + count;
        eta->simulated *= kept;
    } else {
        eta->simulated += count;
    }
}

static double emissions(const struct tsr_plan_left *left)
{
    double open = (double)left->open;
    if (left->exhaustive || left->unbounded)
        return open;
    return fmin(open, left->learning ? 19.0 * pow(open, 0.315) : 3.9 * pow(open, 0.59));
}

static double simulations(const struct tsr_plan_eta *eta, const struct tsr_plan_left *left,
                          double emitted)
{
    double waiting = (double)left->waiting;
    double share = (eta->simulated + SIMULATED_SHARE * SHARE_ITEMS) / (eta->emitted + SHARE_ITEMS);
    if (left->exhaustive)
        return waiting + emitted;
    return fmin(waiting, (left->learning ? 3.2 : 4.0) * sqrt(waiting)) + fmin(share, 1.0) * emitted;
}

/* Returns how many items of a kind will run at a time. */
static double width_of(const struct tsr_plan_eta *eta, enum tsr_plan_work work, size_t jobs)
{
    double seen = eta->cost[work].items > 0.0 ? eta->cost[work].at_a_time / eta->cost[work].items
                                              : fmax((double)jobs, 1.0);
    return fmin(seen, IN_A_ROUND[work]);
}

double tsr_plan_eta_seconds(const struct tsr_plan_eta *eta, const struct tsr_plan_left *left,
                            size_t jobs)
{
    double n = emissions(left);
    if (eta->cost[TSR_PLAN_EMITS].items <= 0.0)
        return 0.0;
    double emission = eta->cost[TSR_PLAN_EMITS].seconds / eta->cost[TSR_PLAN_EMITS].items;
    double simulation =
        (eta->cost[TSR_PLAN_SIMULATES].seconds + SIMULATION_ITEMS * SIMULATION_COST * emission) /
        (eta->cost[TSR_PLAN_SIMULATES].items + SIMULATION_ITEMS);
    if (left->exhaustive)
        return (n * emission + simulations(eta, left, n) * simulation) / fmax((double)jobs, 1.0);
    return n * emission / width_of(eta, TSR_PLAN_EMITS, jobs) +
           simulations(eta, left, n) * simulation / width_of(eta, TSR_PLAN_SIMULATES, jobs);
}
