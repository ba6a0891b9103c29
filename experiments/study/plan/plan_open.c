/* plan_open.c: what a search starts from: the experiment without sweeps, one strategy, the budget.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/build.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/peak.h"

/* Sweeps multiply strategies for compare; a plan has a space of its own. */
static tsr_status load(const struct tsr_study *study, struct tsr_plan *plan)
{
    struct tsr_study_request request = plan->request;
    plan->had_sweeps = !tsr_node_is_null(tsr_node_get(study->experiment.doc.root, "sweeps"));
    if (!plan->had_sweeps)
        return tsr_experiment_open(&request, &plan->experiment);
    const char **sets = malloc((request.n_sets + 1) * sizeof *sets);
    if (!sets)
        return tsr_no_memory(NULL);
    if (request.n_sets)
        memcpy(sets, request.sets, request.n_sets * sizeof *sets);
    sets[request.n_sets] = "sweeps=null";
    request.sets = sets;
    request.n_sets++;
    tsr_status status = tsr_experiment_open(&request, &plan->experiment);
    free(sets);
    return status;
}

static tsr_status choose_strategy(struct tsr_plan *plan)
{
    const struct tsr_experiment *e = &plan->experiment;
    if (plan->options.strategy)
        return tsr_experiment_find(e, plan->options.strategy, &plan->base);
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

tsr_status tsr_plan_open(const struct tsr_study *study, const struct tsr_plan_options *options,
                         struct tsr_plan *out)
{
    *out = (struct tsr_plan){.options = *options, .request = study->request};
    TSR_TRY(load(study, out));
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
