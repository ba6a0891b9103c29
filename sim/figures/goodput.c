/* goodput.c: the events of a long run one after the other, and the search for its best interval. */
#include "sim/figures/goodput.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/quantile.h"
#include "sim/input/conditions.h"

enum phase { WORK, STALL, DOWN };

struct run {
    const struct tsr_goodput_input *in;
    uint64_t number, n_failures, n_checkpoints;
    double now, next_failure;
    enum phase phase;
    double phase_end;
    double since;   /* work since the last checkpoint began */
    double at_risk; /* work that no complete checkpoint has */
    double written; /* when the checkpoint on its way is complete; INFINITY: there is none */
    double covers;  /* work that it has */
    double time[DOWN + 1], lost;
};

static double until_failure(struct run *r)
{
    return -r->in->mtbf_s * log(tsr_uniform(r->in->seed, r->number, r->n_failures++));
}

static void begin_work(struct run *r)
{
    r->phase = WORK;
    r->phase_end = r->now + (r->in->interval_s - r->since);
}

static void fail(struct run *r)
{
    r->lost += r->at_risk;
    r->time[WORK] -= r->at_risk;
    r->at_risk = r->since = 0.0;
    r->written = (double)INFINITY;
    r->phase = DOWN;
    r->phase_end = r->now + r->in->restart_s;
    r->next_failure = r->now + until_failure(r);
}

static void complete(struct run *r, double covers)
{
    r->n_checkpoints++;
    r->at_risk -= covers;
    r->written = (double)INFINITY;
}

/* Adds the cycles of work and checkpoint up to the next failure without walking through them,
 * except for the last two, whose ends rounding could exchange with the failure. Called at the end
 * of a stall: from here on all cycles are alike. The first leaves its own work at risk while its
 * checkpoint is written. */
static void skip_cycles(struct run *r)
{
    const struct tsr_goodput_input *in = r->in;
    double stall = fmax(in->write_s - in->interval_s, 0.0) + in->stall_s;
    double cycle = in->interval_s + stall;
    double n = floor((fmin(r->next_failure, in->horizon_s) - r->now) / cycle) - 2.0;
    if (!(n >= 1.0))
        return;
    r->now += n * cycle;
    r->time[WORK] += n * in->interval_s;
    r->time[STALL] += n * stall;
    r->n_checkpoints += (uint64_t)n;
    if (in->write_s > 0.0) {
        r->at_risk = r->covers = in->interval_s;
        r->written = r->now + in->write_s;
    }
}

static void end_phase(struct run *r)
{
    if (r->phase == WORK) {
        double free = isinf(r->written) ? r->now : r->written;
        r->phase = STALL;
        r->phase_end = free + r->in->stall_s;
        return;
    }
    if (r->phase == STALL) {
        r->since = 0.0;
        r->covers = r->at_risk;
        if (r->in->write_s > 0.0)
            r->written = r->now + r->in->write_s;
        else
            complete(r, r->covers);
        skip_cycles(r);
    }
    begin_work(r);
}

static void one_run(struct run *r)
{
    double end = r->in->horizon_s;
    r->written = (double)INFINITY;
    r->next_failure = until_failure(r);
    begin_work(r);
    while (r->now < end) {
        double next = fmin(fmin(r->phase_end, r->written), fmin(r->next_failure, end));
        double dt = next - r->now;
        r->time[r->phase] += dt;
        if (r->phase == WORK) {
            r->since += dt;
            r->at_risk += dt;
        }
        r->now = next;
        if (next >= end)
            break;
        if (next == r->next_failure)
            fail(r);
        else if (next == r->written)
            complete(r, r->covers);
        else
            end_phase(r);
    }
}

static tsr_status check(const struct tsr_goodput_input *in)
{
    bool ok = in->mtbf_s > 0.0 && in->interval_s > 0.0 && in->horizon_s > 0.0 && in->runs > 0 &&
              in->stall_s >= 0.0 && in->write_s >= 0.0 && in->restart_s >= 0.0 &&
              isfinite(in->stall_s + in->write_s + in->restart_s + in->horizon_s);
    /* Bounds the events of a run. */
    ok = ok && in->horizon_s / fmin(in->interval_s, in->mtbf_s) < 1e7;
    return ok ? TSR_OK
              : tsr_fail(TSR_EVALUE,
                         "goodput: found %g s between failures, %g s of work between checkpoints "
                         "over %g s; allowed: above 0, and fewer than 1e7 of them",
                         in->mtbf_s, in->interval_s, in->horizon_s);
}

tsr_status tsr_goodput_simulate(const struct tsr_goodput_input *in, struct tsr_goodput *out)
{
    *out = (struct tsr_goodput){0};
    TSR_TRY(check(in));
    double *useful = calloc(in->runs, sizeof *useful);
    if (!useful)
        return tsr_no_memory("goodput");
    for (uint32_t i = 0; i < in->runs; i++) {
        struct run r = {.in = in, .number = i};
        double share = 1.0 / in->horizon_s / in->runs;
        one_run(&r);
        useful[i] = r.time[WORK] / in->horizon_s;
        out->useful += r.time[WORK] * share;
        out->lost += r.lost * share;
        out->checkpoint += r.time[STALL] * share;
        out->restart += r.time[DOWN] * share;
        out->failures += (double)(r.n_failures - 1) / in->runs;
        out->checkpoints += (double)r.n_checkpoints / in->runs;
    }
    tsr_sort_ascending(useful, in->runs);
    out->useful_p5 = tsr_quantile(useful, in->runs, 0.05);
    out->useful_p50 = tsr_quantile(useful, in->runs, 0.50);
    out->useful_p95 = tsr_quantile(useful, in->runs, 0.95);
    free(useful);
    return TSR_OK;
}

static tsr_status try_interval(const struct tsr_goodput_input *input, double interval,
                               double *best_s, struct tsr_goodput *best)
{
    struct tsr_goodput_input in = *input;
    struct tsr_goodput got;
    in.interval_s = interval;
    TSR_TRY(tsr_goodput_simulate(&in, &got));
    if (*best_s <= 0.0 || got.useful > best->useful) {
        *best_s = interval;
        *best = got;
    }
    return TSR_OK;
}

/* A coarse grid, equal in ratio, then a fine one around its best point. */
tsr_status tsr_goodput_best(const struct tsr_goodput_input *input, double low, double high,
                            double *interval_s, struct tsr_goodput *out)
{
    enum { COARSE = 24, FINE = 24 };
    *interval_s = 0.0;
    *out = (struct tsr_goodput){0};
    if (!(low > 0.0 && high >= low))
        return tsr_fail(TSR_EVALUE, "goodput: found intervals from %g to %g s", low, high);
    double ratio = pow(high / low, 1.0 / COARSE);
    for (int i = 0; i <= COARSE; i++)
        TSR_TRY(try_interval(input, low * pow(ratio, i), interval_s, out));
    double centre = *interval_s;
    for (int i = 1; i < FINE; i++) {
        double around = centre * pow(ratio, 2.0 * i / FINE - 1.0);
        if (around >= low && around <= high)
            TSR_TRY(try_interval(input, around, interval_s, out));
    }
    return TSR_OK;
}

/* The last interval on the way from `inside` to `end` that is worth `least`. */
static tsr_status walk(const struct tsr_goodput_input *input, double end, double least,
                       double *inside)
{
    struct tsr_goodput_input in = *input;
    struct tsr_goodput got;
    double outside = end;
    in.interval_s = end;
    TSR_TRY(tsr_goodput_simulate(&in, &got));
    if (got.useful >= least) {
        *inside = end;
        return TSR_OK;
    }
    while (fabs(log(outside / *inside)) > 0.01) {
        in.interval_s = sqrt(*inside * outside);
        TSR_TRY(tsr_goodput_simulate(&in, &got));
        *(got.useful >= least ? inside : &outside) = in.interval_s;
    }
    return TSR_OK;
}

tsr_status tsr_goodput_flat(const struct tsr_goodput_input *in, double low, double high,
                            double loss, struct tsr_goodput_range *out)
{
    struct tsr_goodput best;
    *out = (struct tsr_goodput_range){in->interval_s, in->interval_s};
    if (!(low > 0.0 && in->interval_s >= low && in->interval_s <= high && loss >= 0.0))
        return tsr_fail(TSR_EVALUE,
                        "goodput: found an interval of %g s, %g less useful work; "
                        "allowed: %g to %g s, 0 or more",
                        in->interval_s, loss, low, high);
    TSR_TRY(tsr_goodput_simulate(in, &best));
    TSR_TRY(walk(in, low, best.useful - loss, &out->from_s));
    return walk(in, high, best.useful - loss, &out->to_s);
}
