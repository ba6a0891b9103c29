/* validate_run.c: simulates one row of a published table, as `tessera sim` would.
 *
 * Micro-batches of a step are alike from the second on: the host has run ahead, streams are full,
 * the allocator has what it needs. So a step of n > SIMULATED micro-batches takes as long as one of
 * two, and n - 2 times what the third adds. tests/studies/validate.sh compares that with whole
 * steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/paths.h"
#include "experiments/study/job/build.h"
#include "experiments/study/job/job.h"
#include "experiments/study/report/validated_class.h"
#include "experiments/study/simulate/simulate.h"
#include "experiments/study/validate/validate.h"
#include "sim/predict.h"

enum { SIMULATED = 4, SHORT_STEP = 2, MAX_EXTRA_SETS = 2 };

/* An experiment that is made of sets alone. */
static const char empty_experiment[] = "{}\n";

/* Reads the experiment of a recipe with `steps` micro-batches; `model`: a file, or "". */
static tsr_status tsr_recipe_load(const struct tsr_recipe *recipe, const char *const *sets,
                                  size_t n_sets, const char *model, uint64_t steps,
                                  struct tsr_experiment *out)
{
    char path[1024], model_set[1100], steps_set[64];
    const char **all = calloc(recipe->n_sets + n_sets + MAX_EXTRA_SETS, sizeof(*all));
    size_t n = 0;
    if (!all)
        return tsr_no_memory(NULL);
    snprintf(model_set, sizeof model_set, "model.name=%s", model);
    snprintf(steps_set, sizeof steps_set, "accumulation.steps=%llu", (unsigned long long)steps);
    for (size_t i = 0; i < recipe->n_sets; i++)
        all[n++] = recipe->sets[i];
    if (*model)
        all[n++] = model_set;
    all[n++] = steps_set;
    for (size_t i = 0; i < n_sets; i++)
        all[n++] = sets[i];
    tsr_status status = tsr_temp_file(empty_experiment, ".json", path, sizeof path);
    if (status == TSR_OK) {
        status = tsr_experiment_load(path, all, n, out);
        tsr_file_remove(NULL, path);
    }
    free(all);
    return status;
}

struct measured_step {
    struct tsr_row row;
    struct tsr_measured_class class;
};

static tsr_status simulate(const struct tsr_experiment *experiment, struct measured_step *out)
{
    struct tsr_job job;
    TSR_TRY(tsr_job_open(experiment, &experiment->strategies[0], TSR_NEEDS_ALL, &job));
    tsr_status status;
    tsr_class_of(&job, &out->class);
    TSR_GOTO(done, tsr_build_check(&job));
    job.is_trial = true;
    TSR_GOTO(done, tsr_simulate(&job, NULL, NULL, &out->row));
    if (out->row.failure[0])
        status = tsr_fail(TSR_EOOM, "%s", out->row.failure);
done:
    tsr_job_close(&job);
    return status;
}

static tsr_status run_steps(const struct tsr_recipe *recipe, const char *const *sets, size_t n_sets,
                            const char *model, uint64_t steps, struct measured_step *out)
{
    struct tsr_experiment experiment;
    TSR_TRY(tsr_recipe_load(recipe, sets, n_sets, model, steps, &experiment));
    tsr_status status = simulate(&experiment, out);
    tsr_experiment_fini(&experiment);
    return status;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void fill(struct tsr_outcome *out, const struct measured_step *step)
{
    const struct tsr_row *row = &step->row;
    out->class = step->class;
    snprintf(out->gpu, sizeof out->gpu, "%s", step->class.gpu);
    out->world = row->world;
    out->step_s = row->steady.step_s;
    out->compute_s = row->steady.compute_s;
    out->comm_s = row->steady.comm_s;
    out->exposed_s = row->steady.exposed_s;
    out->tokens = (double)row->tokens_per_rank;
    out->flops = row->steady.flops;
    out->model_flops = row->steady.model_flops;
    out->mfu = row->mfu;
    out->reserved_bytes = larger((double)row->peak_reserved, (double)row->first_peak_reserved);
}

/* Adds n times what `longer` has more than `shorter`, a step of one micro-batch less. */
static void extend(struct tsr_outcome *out, const struct measured_step *shorter,
                   const struct measured_step *longer, double n)
{
    const struct tsr_row *a = &shorter->row, *b = &longer->row;
    double step_s = out->step_s + n * (b->steady.step_s - a->steady.step_s);
    double tokens = out->tokens + n * ((double)b->tokens_per_rank - (double)a->tokens_per_rank);
    out->compute_s += n * (b->steady.compute_s - a->steady.compute_s);
    out->comm_s += n * (b->steady.comm_s - a->steady.comm_s);
    out->exposed_s += n * (b->steady.exposed_s - a->steady.exposed_s);
    out->flops += n * (b->steady.flops - a->steady.flops);
    out->model_flops += n * (b->steady.model_flops - a->steady.model_flops);
    /* The time at the peak grows as the FLOP do. */
    if (out->mfu > 0 && step_s > 0)
        out->mfu =
            (out->mfu * out->step_s + n * (b->mfu * b->steady.step_s - a->mfu * a->steady.step_s)) /
            step_s;
    out->step_s = step_s;
    out->tokens = tokens;
    out->reserved_bytes = larger(out->reserved_bytes, (double)b->peak_reserved);
}

/* The model of a row is a file for a moment: a reason says "its model" instead of "PATH:1:35". */
static void name_model(const char *path, char *failure, size_t size)
{
    size_t n = strlen(path);
    char *at = n ? strstr(failure, path) : NULL;
    if (!at)
        return;
    char rest[256];
    n += strspn(at + n, ":0123456789");
    snprintf(rest, sizeof rest, "%s", at + n);
    snprintf(at, size - (size_t)(at - failure), "its model:%s", rest);
}

static tsr_status run(const struct tsr_recipe *recipe, const char *const *sets, size_t n_sets,
                      struct tsr_outcome *out)
{
    struct measured_step shorter = {0}, longer = {0};
    char model[1024] = "";
    bool whole = recipe->accumulation <= SIMULATED;
    if (recipe->model)
        TSR_TRY(tsr_temp_file(recipe->model, ".json", model, sizeof model));
    tsr_status status =
        run_steps(recipe, sets, n_sets, model, whole ? recipe->accumulation : SHORT_STEP, &shorter);
    if (status == TSR_OK && !whole)
        status = run_steps(recipe, sets, n_sets, model, SHORT_STEP + 1, &longer);
    if (*model)
        tsr_file_remove(NULL, model);
    if (status != TSR_OK) {
        snprintf(out->failure, sizeof out->failure, "%s", tsr_error_text());
        name_model(model, out->failure, sizeof out->failure);
        return status;
    }
    fill(out, &shorter);
    if (!whole)
        extend(out, &shorter, &longer, (double)(recipe->accumulation - SHORT_STEP));
    return TSR_OK;
}

tsr_status tsr_outcome_check_sets(const char *const *sets, size_t n_sets)
{
    static const char own[] = "--set ";
    struct tsr_recipe none = {.accumulation = 1};
    struct tsr_experiment experiment;
    tsr_status status = tsr_recipe_load(&none, sets, n_sets, "", 1, &experiment);
    if (status == TSR_OK)
        tsr_experiment_fini(&experiment);
    else if (status == TSR_EIO || status == TSR_ENOMEM || /* of the machine, not of a row */
             !strncmp(tsr_error_text(), own, sizeof own - 1))
        return status;
    return TSR_OK; /* what else an experiment needs is the row's */
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Rows of nccl-tests tables: one call on the row's machine. */

static const struct {
    const char *name;
    uint8_t kind;
} kinds[] = {{"all_reduce", TSR_ALL_REDUCE},
             {"all_gather", TSR_ALL_GATHER},
             {"reduce_scatter", TSR_REDUCE_SCATTER},
             {"all_to_all", TSR_ALL_TO_ALL},
             {"broadcast", TSR_BROADCAST}};

static tsr_status find_kind(const char *name, uint8_t *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kinds[i].name, name)) {
            *kind = kinds[i].kind;
            return TSR_OK;
        }
    return tsr_fail(TSR_ECONFIG, "the collective %s is not modelled", name);
}

static tsr_status load_cluster(const struct tsr_experiment *experiment,
                               const struct tsr_settings *s, struct tsr_cluster *out)
{
    char path[TSR_FILE_BYTES];
    if (!s->cluster)
        return tsr_fail(TSR_ECONFIG, "no rule names the machine");
    TSR_TRY(tsr_find_cluster(s->cluster, tsr_setting_at(s, TSR_K_CLUSTER_NAME), experiment->path,
                             path));
    TSR_TRY(tsr_cluster_load(path, tsr_cluster_folders(&(struct tsr_data_folders){.beside = ""}),
                             experiment->kernels, out));
    tsr_calibration_override(&out->gpu.calibration, s->calibration, "sim.calibration");
    return TSR_OK;
}

static tsr_status predict(const struct tsr_experiment *experiment, const struct tsr_recipe *recipe,
                          struct tsr_outcome *out)
{
    const struct tsr_settings *s = &experiment->strategies[0].settings;
    struct tsr_collective_query what = {.ranks = (uint32_t)recipe->collective.gpus,
                                        .nodes = (uint32_t)recipe->collective.nodes};
    struct tsr_cluster cluster;
    TSR_TRY(find_kind(recipe->collective.kind, &what.kind));
    TSR_TRY(load_cluster(experiment, s, &cluster));
    TSR_TRY(tsr_predict_collective(&cluster, &s->sim, &what, &recipe->collective.bytes, 1,
                                   &out->seconds));
    snprintf(out->gpu, sizeof out->gpu, "%s", cluster.gpu.name);
    out->world = what.ranks;
    if (out->seconds > 0)
        out->busbw =
            (double)recipe->collective.bytes * tsr_bus_factor(what.kind, what.ranks) / out->seconds;
    return TSR_OK;
}

/* Predicts the one call of a recipe with a collective. */
static tsr_status tsr_collective_outcome(const struct tsr_recipe *recipe, const char *const *sets,
                                         size_t n_sets, struct tsr_outcome *out)
{
    struct tsr_experiment experiment;
    TSR_TRY(tsr_recipe_load(recipe, sets, n_sets, "", 1, &experiment));
    tsr_status status = predict(&experiment, recipe, out);
    tsr_experiment_fini(&experiment);
    return status;
}

/* ---- a row ----------------------------------------------------------------------------------- */

void tsr_outcome_of(const struct tsr_rules *conditions, const struct tsr_recipe *recipe,
                    const char *const *sets, size_t n_sets, struct tsr_outcome *out)
{
    (void)conditions;
    memset(out, 0, sizeof(*out));
    tsr_status status = recipe->collective.kind ? tsr_collective_outcome(recipe, sets, n_sets, out)
                        : recipe->accumulation  ? run(recipe, sets, n_sets, out)
                                                : tsr_fail(TSR_ECONFIG, "no micro-batch");
    if (status != TSR_OK && !out->failure[0])
        snprintf(out->failure, sizeof out->failure, "%s", tsr_error_text());
}
