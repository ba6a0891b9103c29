/* plan_cmd.c: `tessera plan`: the fastest strategies that fit, or the largest size that does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/job/build.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/peak.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

/* ---- opening ----------------------------------------------------------------------------- */

/* Sweeps multiply strategies for compare; a plan has a space of its own. */
static tsr_status load(struct tsr_plan *plan)
{
    const struct tsr_args *args = plan->args;
    const char *sets[TSR_MAX_SETS + 1];
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &plan->experiment));
    plan->had_sweeps = !tsr_node_is_null(tsr_node_get(plan->experiment.doc.root, "sweeps"));
    if (!plan->had_sweeps)
        return TSR_OK;
    tsr_experiment_fini(&plan->experiment);
    memcpy(sets, args->sets, args->n_sets * sizeof *sets);
    sets[args->n_sets] = "sweeps=null";
    return tsr_experiment_load(args->file, sets, args->n_sets + 1, &plan->experiment);
}

static tsr_status choose_strategy(struct tsr_plan *plan)
{
    const struct tsr_experiment *e = &plan->experiment;
    if (plan->args->strategy)
        return tsr_experiment_find(e, plan->args->strategy, &plan->base);
    plan->base = &e->strategies[0];
    for (size_t i = e->n; i-- > 0;)
        if (e->strategies[i].settings.api == TSR_API_FULLY_SHARD)
            plan->base = &e->strategies[i];
    return TSR_OK;
}

static tsr_status check_keys(const struct tsr_yaml_node *node)
{
    if (tsr_node_is_null(node))
        return TSR_OK;
    if (node->kind != TSR_NODE_MAP)
        return tsr_node_error(node,
                              "plan: found %s; allowed: a mapping with keys budget_gib, space",
                              tsr_node_show(node));
    for (size_t i = 0; i < node->n; i++)
        if (strcmp(node->items[i]->key, "budget_gib") != 0 &&
            strcmp(node->items[i]->key, "space") != 0)
            return tsr_node_error(node->items[i],
                                  "unknown key \"plan.%s\"; allowed: budget_gib, space",
                                  node->items[i]->key);
    return TSR_OK;
}

static tsr_status read_budget(struct tsr_plan *plan)
{
    const struct tsr_yaml_node *node = tsr_node_get(plan->experiment.doc.root, "plan");
    const struct tsr_yaml_node *budget = tsr_node_get(node, "budget_gib");
    double gib = 0;
    TSR_TRY(check_keys(node));
    plan->budget = tsr_card_budget(&plan->job.cluster.gpu);
    if (tsr_node_is_null(budget)) {
        if (plan->job.cluster.gpu.visible_bytes)
            return TSR_OK;
        return tsr_fail(TSR_ECONFIG,
                        "%s: has no key \"plan.budget_gib\", and %s does not say how many bytes of "
                        "the card are usable (null); allowed: a number of GiB",
                        plan->experiment.path, plan->job.cluster.gpu.path);
    }
    if (!tsr_node_double(budget, &gib) || !isfinite(gib) || gib <= 0 || gib > 1048576)
        return tsr_node_error(budget,
                              "plan.budget_gib: found %s; allowed: a number above 0, up to 1048576",
                              tsr_node_show(budget));
    plan->budget = (uint64_t)(gib * TSR__GIB);
    plan->own_budget = true;
    return TSR_OK;
}

static tsr_status open_base(struct tsr_plan *plan)
{
    TSR_TRY(choose_strategy(plan));
    TSR_TRY(tsr_job_open(&plan->experiment, plan->base, TSR_NEEDS_ALL, &plan->job));
    tsr_status status = tsr_build_check(&plan->job);
    if (status == TSR_OK)
        status = read_budget(plan);
    if (status != TSR_OK)
        tsr_job_close(&plan->job);
    return status;
}

tsr_status tsr_plan_open(const struct tsr_args *args, struct tsr_plan *out)
{
    memset(out, 0, sizeof(*out));
    out->args = args;
    TSR_TRY(load(out));
    tsr_status status = open_base(out);
    if (status != TSR_OK)
        tsr_experiment_fini(&out->experiment);
    return status;
}

void tsr_plan_close(struct tsr_plan *plan)
{
    free(plan->points);
    free(plan->shown);
    tsr_job_close(&plan->job);
    tsr_experiment_fini(&plan->experiment);
}

/* ---- the command ------------------------------------------------------------------------- */

static void note(const struct tsr_plan *plan)
{
    const struct tsr_plan_counts *c = &plan->counts;
    fprintf(stderr,
            "tessera: note: %zu configurations: %zu emitted in %.2f s, %zu simulated in %.2f s\n",
            plan->space.n, c->emitted, c->emit_s, c->simulated, c->sim_s);
}

static tsr_status search(struct tsr_plan *plan)
{
    TSR_TRY(tsr_plan_search(plan));
    if (plan->args->out)
        TSR_TRY(tsr_plan_write(plan));
    if (!plan->n_shown)
        return tsr_plan_nothing_fits(plan);
    TSR_TRY(tsr_plan_report(stdout, plan));
    TSR_TRY(tsr_flush(stdout, "standard output"));
    note(plan);
    return TSR_OK;
}

static tsr_status check_args(const struct tsr_usage *usage, struct tsr_args *args)
{
    static const char *const words[] = {"batch", "seq", "layers"};
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->max && args->exhaustive)
        return tsr_fail(TSR_ECONFIG, "plan: found --exhaustive beside --max; allowed: one of them");
    for (size_t i = 0; i < 3; i++)
        if (!args->max || !strcmp(args->max, words[i]))
            return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--max: found %s; allowed: batch, seq or layers", args->max);
}

tsr_status tsr_cmd_plan(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    struct tsr_plan plan;
    TSR_TRY(check_args(usage, args));
    TSR_TRY(tsr_plan_open(args, &plan));
    tsr_status status = args->out ? tsr_prepare_out(args->out) : TSR_OK;
    if (status == TSR_OK)
        status = args->max ? tsr_plan_max(&plan) : search(&plan);
    tsr_plan_close(&plan);
    return status;
}
