/* plan_open.c: what a search starts from (the experiment without sweeps, one strategy, the
 * budget), and one configuration, emitted for its memory or simulated for its time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/build.h"
#include "experiments/study/job/job.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/simulate.h"

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
        return tsr_node_error(
            node, "plan: found %s; allowed: a mapping with keys budget_gib, space, allow",
            tsr_node_show(node));
    static const char *const keys[] = {"budget_gib", "space", "allow", NULL};
    for (size_t i = 0; i < node->n; i++) {
        size_t k = 0;
        while (keys[k] && strcmp(node->items[i]->key, keys[k]) != 0)
            k++;
        if (!keys[k])
            return tsr_unknown_key(node->items[i], "plan", keys);
    }
    return TSR_OK;
}

static tsr_status read_budget(struct tsr_plan *plan)
{
    const struct tsr_yaml_node *node = tsr_node_get(plan->experiment.doc.root, "plan");
    const struct tsr_yaml_node *budget = tsr_node_get(node, "budget_gib");
    double gib = 0;
    TSR_TRY(check_keys(node));
    plan->budget = tsr_fit_budget(&plan->job.cluster.gpu);
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

static tsr_status describe(struct tsr_plan *plan)
{
    struct tsr_arena *arena = &plan->experiment.doc.arena;
    struct tsr_study_info *info = &plan->info;
    *info = (struct tsr_study_info){.model_name = plan->job.model.name,
                                    .cluster_name = plan->job.cluster.name,
                                    .device_file = plan->job.cluster.gpu.path,
                                    .config_path = plan->experiment.path,
                                    .world = plan->job.world};
    TSR_TRY(tsr_time_sources(&plan->job, arena, &info->time_sources));
    TSR_TRY(tsr_measured_open(plan->experiment.path, &plan->measured));
    plan->experiment.measured = plan->measured;
    return tsr_validated_of(&plan->job, 1, arena, &info->validated, &info->n_validated);
}

tsr_status tsr_plan_validate(struct tsr_plan *plan)
{
    struct tsr_study_info *info = &plan->info;
    struct tsr_time_error *errors = calloc(plan->n_shown + 1, sizeof *errors);
    if (!errors)
        return tsr_no_memory(NULL);
    for (size_t k = 0; k < plan->n_shown; k++)
        errors[k] = plan->points[plan->shown[k]].m->row.time_error;
    tsr_status status =
        tsr_validated_group(plan->measured, errors, plan->n_shown, &plan->experiment.doc.arena,
                            &info->validated, &info->n_validated);
    free(errors);
    return status;
}

static tsr_status open_base(struct tsr_plan *plan)
{
    TSR_TRY(choose_strategy(plan));
    TSR_TRY(tsr_job_open(&plan->experiment, plan->base, TSR_NEEDS_ALL, &plan->job));
    tsr_status status = tsr_build_check(&plan->job);
    if (status == TSR_OK)
        status = read_budget(plan);
    if (status == TSR_OK)
        status = describe(plan);
    if (status != TSR_OK) {
        tsr_measured_close(plan->measured);
        tsr_job_close(&plan->job);
    }
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
    else
        tsr_tell_unread(&out->experiment, out->base);
    return status;
}

void tsr_plan_close(struct tsr_plan *plan)
{
    for (size_t i = 0; plan->points && i < plan->space.n; i++)
        free(plan->points[i].m);
    tsr_plan_bounds_destroy(plan->bounds);
    tsr_plan_past_destroy(plan->past);
    free(plan->points);
    free(plan->shown);
    tsr_job_close(&plan->job);
    tsr_experiment_fini(&plan->experiment);
    tsr_measured_close(plan->measured);
}

/* ---- figures of a row ------------------------------------------------------------------------ */

uint64_t tsr_plan_need(const struct tsr_row *row)
{
    return row->needed;
}

uint64_t tsr_plan_allocated(const struct tsr_row *row)
{
    return tsr_max_u64(row->peak_allocated, row->first_peak_allocated);
}

double tsr_plan_time(const struct tsr_row *row)
{
    return row->tokens_per_rank ? row->steady.step_s / (double)row->tokens_per_rank : 0;
}

/* ---- bound and key ----------------------------------------------------------------------- */

static tsr_status bound(const struct tsr_job *job, const struct tsr_emission *emission,
                        struct tsr_step_bound *out)
{
    const struct tsr_program *const **programs = calloc(emission->n_classes, sizeof *programs);
    if (!programs)
        return tsr_no_memory(NULL);
    for (uint32_t i = 0; i < emission->n_classes; i++)
        programs[i] = (const struct tsr_program *const *)emission->classes[i].programs;
    struct tsr_sim_job sim = {.world = emission->world,
                              .n_classes = emission->n_classes,
                              .n_iterations = emission->steady + 1,
                              .class_of = emission->class_of,
                              .programs = programs};
    tsr_status status = tsr_sim_step_bound(&job->cluster, &sim, &job->settings->sim, out);
    free(programs);
    return status;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return tsr_hash_bytes(hash, &value, sizeof value);
}

/* Everything that time and memory follow from. */
static tsr_status key_of(const struct tsr_job *job, struct tsr_emission *emission,
                         const struct tsr_row *row, uint64_t *out)
{
    char text[512];
    uint64_t hash = mix(TSR_HASH_INIT, emission->world);
    hash = tsr_hash_bytes(hash, emission->class_of, emission->world * sizeof *emission->class_of);
    for (uint32_t c = 0; c < emission->n_classes; c++)
        for (uint32_t i = 0; i < emission->n_iterations; i++)
            hash = mix(hash, tsr_emitted_hash(&emission->classes[c], i));
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        /* They give the program its times and are not in its hash. */
        const char *name = tsr_keys[i].name;
        bool priced = !strncmp(name, "sim.", 4) || !strncmp(name, "cluster.", 8) ||
                      !strcmp(name, "gpu") || !strcmp(name, "nodes") ||
                      !strcmp(name, "gpus_per_node");
        if (!priced)
            continue;
        TSR_TRY(tsr_key_format(&tsr_keys[i], job->settings, text, sizeof text));
        hash = tsr_hash_bytes(hash, text, strlen(text) + 1);
    }
    hash = mix(hash, row->tokens_per_rank);
    hash = mix(hash, row->peak_allocated);
    hash = mix(hash, row->peak_reserved);
    hash = mix(hash, row->needed);
    hash = mix(hash, row->first_peak_allocated);
    *out = mix(hash, row->first_peak_reserved);
    return TSR_OK;
}

struct levels {
    int64_t kept, saved, saved_at_loss, gathered_at_loss;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* What lives on the device, by category: `now` after an instruction. */
static void look(const int64_t *now, uint8_t phase, struct levels *out)
{
    out->kept = least(out->kept, now[TSR_CAT_SHARDED_PARAM] + now[TSR_CAT_OPT_STATE]);
    out->saved = most(out->saved, now[TSR_CAT_ACTIVATION]);
    if (phase != TSR_PHASE_LOSS)
        return;
    out->saved_at_loss = most(out->saved_at_loss, now[TSR_CAT_ACTIVATION]);
    out->gathered_at_loss = least(out->gathered_at_loss, now[TSR_CAT_UNSHARDED_PARAM]);
}

/* Of a class, in the steady iteration. */
static struct levels levels_of(const struct tsr_emitted_class *class, uint32_t steady)
{
    int64_t now[TSR_N_CATEGORIES] = {0};
    struct levels out = {INT64_MAX, 0, 0, INT64_MAX};
    for (uint32_t k = 0; k <= steady; k++) {
        const struct tsr_program *program = class->programs[k];
        for (size_t i = 0; i < program->n_instrs; i++) {
            const struct tsr_instr *instr = &program->instrs[i];
            if (instr->kind == TSR_ALLOC)
                now[instr->category] += (int64_t)instr->bytes;
            else if (instr->kind == TSR_FREE)
                now[instr->category] -= (int64_t)instr->bytes;
            else
                continue;
            if (k == steady)
                look(now, instr->origin.phase, &out);
        }
    }
    return out;
}

static uint64_t bytes_of(int64_t level)
{
    return level > 0 && level < INT64_MAX ? (uint64_t)level : 0;
}

/* At some moment a class holds the most activations of all, and at least what each keeps. */
static void find_levels(const struct tsr_emission *emission, struct tsr_plan_measure *out)
{
    struct levels all = {INT64_MAX, 0, 0, INT64_MAX};
    for (uint32_t c = 0; c < emission->n_classes; c++) {
        struct levels one = levels_of(&emission->classes[c], emission->steady);
        all.kept = least(all.kept, one.kept);
        all.saved = most(all.saved, one.saved);
        all.saved_at_loss = most(all.saved_at_loss, one.saved_at_loss);
        all.gathered_at_loss = least(all.gathered_at_loss, one.gathered_at_loss);
    }
    out->kept = bytes_of(all.kept);
    out->saved = bytes_of(all.saved);
    out->saved_at_loss = bytes_of(all.saved_at_loss);
    out->gathered_at_loss = bytes_of(all.gathered_at_loss);
}

static tsr_status emit(const struct tsr_job *job, bool with_bound, struct tsr_plan_measure *out)
{
    struct tsr_emission emission;
    TSR_TRY(tsr_emit(job, &emission));
    tsr_status status;
    TSR_GOTO(done, tsr_peak_of(job, &emission, &out->row));
    find_levels(&emission, out);
    if (with_bound)
        TSR_GOTO(done, bound(job, &emission, &out->bound));
    TSR_GOTO(done, key_of(job, &emission, &out->row, &out->key));
done:
    out->row.emit_s = emission.seconds;
    tsr_emission_fini(&emission);
    return status;
}

/* ---- a configuration --------------------------------------------------------------------- */

struct config {
    struct tsr_experiment experiment;
    struct tsr_job job;
};

static tsr_status load_changed(const struct tsr_plan *plan, const char *const *sets, size_t n,
                               struct tsr_experiment *out)
{
    struct tsr_study_request request = plan->request;
    const char **all = malloc((request.n_sets + 1 + n) * sizeof *all);
    size_t n_all = 0;
    if (!all)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < request.n_sets; i++)
        all[n_all++] = request.sets[i];
    all[n_all++] = "sweeps=null";
    for (size_t i = 0; i < n; i++)
        all[n_all++] = sets[i];
    request.sets = all;
    request.n_sets = n_all;
    tsr_status status = tsr_experiment_open(&request, out);
    free(all);
    return status;
}

static tsr_status open_config(const struct tsr_plan *plan, const char *const *sets, size_t n,
                              struct config *out)
{
    const struct tsr_strategy *strategy = NULL;
    TSR_TRY(load_changed(plan, sets, n, &out->experiment));
    out->experiment.measured = plan->measured;
    tsr_status status = tsr_experiment_find(&out->experiment, plan->base->name, &strategy);
    if (status == TSR_OK)
        status = tsr_job_open(&out->experiment, strategy, TSR_NEEDS_ALL, &out->job);
    if (status != TSR_OK)
        tsr_experiment_fini(&out->experiment);
    else if (plan->own_budget)
        out->job.budget_bytes = plan->budget;
    return status;
}

static void close_config(struct config *config)
{
    tsr_job_close(&config->job);
    tsr_experiment_fini(&config->experiment);
}

tsr_status tsr_plan_with_job(const struct tsr_plan *plan, const char *const *sets, size_t n,
                             tsr_status (*use)(const struct tsr_job *job, void *user), void *user)
{
    struct config config;
    TSR_TRY(open_config(plan, sets, n, &config));
    tsr_status status = use(&config.job, user);
    close_config(&config);
    return status;
}

/* Prints the strategy of the file and, behind it, the changed one of `config` as `name`. */
static tsr_status print_both(const struct tsr_plan *plan, struct config *config, const char *name,
                             char **out)
{
    struct tsr_experiment *e = &config->experiment;
    struct tsr_strategy both[2] = {*plan->base, *config->job.strategy};
    struct tsr_strategy *all = e->strategies;
    size_t n = e->n;
    both[1].name = both[1].base = name;
    e->strategies = both;
    e->n = 2;
    e->top = plan->experiment.top; /* without the changes, so that they stand in the strategy */
    tsr_status status = tsr_experiment_print(e, out);
    e->strategies = all;
    e->n = n;
    return status;
}

tsr_status tsr_plan_print(const struct tsr_plan *plan, size_t k, char **out)
{
    const char *sets[TSR_PLAN_MAX_AXES];
    size_t n = tsr_plan_sets(&plan->space, plan->shown[k], sets);
    struct config config;
    char name[160];
    snprintf(name, sizeof name, "%.128s-%zu", plan->base->name, k + 1);
    TSR_TRY(open_config(plan, sets, n, &config));
    tsr_status status = print_both(plan, &config, name, out);
    close_config(&config);
    return status;
}

tsr_status tsr_plan_measure(const struct tsr_plan *plan, const char *const *sets, size_t n,
                            bool with_bound, struct tsr_plan_measure *out)
{
    struct config config;
    memset(out, 0, sizeof(*out));
    tsr_status status = open_config(plan, sets, n, &config);
    if (status == TSR_OK) {
        tsr_row_begin(&out->row, &config.job);
        status = emit(&config.job, with_bound, out);
        close_config(&config);
    }
    if (status != TSR_OK)
        tsr_row_fail(&out->row, status);
    return status;
}

tsr_status tsr_plan_simulate(const struct tsr_plan *plan, const char *const *sets, size_t n,
                             struct tsr_row *out)
{
    struct config config;
    memset(out, 0, sizeof(*out));
    tsr_status status = open_config(plan, sets, n, &config);
    if (status == TSR_OK) {
        status = tsr_simulate(&config.job, NULL, NULL, out);
        close_config(&config);
    }
    if (status != TSR_OK)
        tsr_row_fail(out, status);
    return status;
}
