/* study.c: studies (study.h): all strategies of an experiment; one strategy (why memory peaks,
 * what communication is exposed, what failures cost); two runs; many configurations (plans,
 * published tables). */
#include "experiments/study/study.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/code/code.h"
#include "experiments/study/compare/measured.h"
#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/explain/what_if.h"
#include "experiments/study/html/html.h"
#include "experiments/study/job/job.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/simulate/simulate.h"
#include "experiments/study/validate/validate.h"
#include "sim/base/json_load.h"

tsr_status tsr_study_open(const struct tsr_study_request *request, struct tsr_study **out)
{
    *out = NULL;
    struct tsr_study *study = calloc(1, sizeof *study);
    if (!study)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_study_read(request, study);
    if (status == TSR_OK)
        *out = study;
    else
        free(study);
    return status;
}

void tsr_study_close(struct tsr_study *study)
{
    if (study)
        tsr_study_fini(study);
    free(study);
}

size_t tsr_study_n_strategies(const struct tsr_study *study)
{
    return study->experiment.n;
}

const char *tsr_study_strategy(const struct tsr_study *study, size_t i)
{
    return study->experiment.strategies[i].name;
}

/* What the keys of a cluster leave open, as comments behind the file: a strategy whose cluster
 * differs from that of the one before says it again. A cluster that cannot be read has none:
 * whoever runs the file hears of it. */
static tsr_status put_derived(FILE *out, const struct tsr_experiment *experiment)
{
    struct tsr_job *job = calloc(1, sizeof *job);
    char(*before)[sizeof job->cluster.derived[0]] = calloc(TSR_MAX_DERIVED, sizeof *before);
    tsr_status status = job && before ? TSR_OK : tsr_no_memory(NULL);
    for (size_t i = 0; i < experiment->n && status == TSR_OK; i++) {
        const struct tsr_strategy *s = &experiment->strategies[i];
        *job = (struct tsr_job){.experiment = experiment, .strategy = s, .settings = &s->settings};
        if (!tsr_has_cluster(&s->settings) || tsr_load_cluster(job) != TSR_OK ||
            !memcmp(before, job->cluster.derived, sizeof job->cluster.derived))
            continue;
        memcpy(before, job->cluster.derived, sizeof job->cluster.derived);
        for (uint32_t k = 0; k < job->cluster.n_derived; k++)
            fprintf(out, "%s%s%s%s# %s\n", k == 0 ? "# Not said of the cluster" : "",
                    k == 0 && i > 0 ? " of " : "", k == 0 && i > 0 ? s->name : "",
                    k == 0 ? ", and taken from elsewhere:\n" : "", job->cluster.derived[k]);
    }
    free(before);
    free(job);
    return status;
}

tsr_status tsr_study_print(struct tsr_study *study, char **out)
{
    char *file = NULL, *text = NULL;
    size_t n = 0;
    TSR_TRY(tsr_experiment_print(&study->experiment, &file));
    FILE *stream = open_memstream(&text, &n);
    if (!stream) {
        free(file);
        return tsr_no_memory(NULL);
    }
    fputs(file, stream);
    tsr_status status = put_derived(stream, &study->experiment);
    if (fclose(stream) != 0 && status == TSR_OK)
        status = tsr_no_memory(NULL);
    free(file);
    if (status == TSR_OK)
        *out = text;
    else
        free(text);
    return status;
}

tsr_status tsr_study_check(struct tsr_study *study)
{
    return tsr_study_build(study);
}

const struct tsr_study_info *tsr_study_info(const struct tsr_study *study)
{
    return study->jobs ? &study->info : NULL;
}

/* ---- all strategies ---------------------------------------------------------------------- */

tsr_status tsr_study_compare(struct tsr_study *study, const struct tsr_compare_options *options,
                             struct tsr_comparison *out)
{
    const char *dir = study->request.out;
    tsr_status status = TSR_OK;
    *out = (struct tsr_comparison){.n = 0};
    TSR_TRY(tsr_study_build(study));
    out->n = study->n;
    out->rows = calloc(study->n + 1, sizeof *out->rows);
    if (!out->rows)
        TSR_GOTO(failed, tsr_no_memory(NULL));
    struct tsr_row *run = options->measured ? &out->rows[out->n++] : NULL;
    if (run) {
        TSR_GOTO(failed, tsr_measured_load(options->measured, run));
        TSR_GOTO(failed, tsr_measured_is_alike(study, options->measured, run));
    }
    if (dir)
        TSR_GOTO(failed, tsr_prepare_out(dir));
    if (run && dir)
        TSR_GOTO(failed, tsr_measured_copy(options->measured, run, dir));
    TSR_GOTO(failed, tsr_pool_run(study, dir, options->jobs, NULL, out->rows));
    if (run)
        TSR_GOTO(failed, tsr_measured_check(study, run));
    return TSR_OK;
failed:
    tsr_comparison_fini(out);
    return status;
}

void tsr_comparison_fini(struct tsr_comparison *comparison)
{
    free(comparison->rows);
    *comparison = (struct tsr_comparison){.n = 0};
}

tsr_status tsr_study_write(const struct tsr_study *study, const struct tsr_comparison *comparison)
{
    return tsr_study_files(study, study->request.out, comparison->rows, comparison->n);
}

tsr_status tsr_code_prepare(const char *format, const char *dir)
{
    enum tsr_code_format known;
    TSR_TRY(tsr_code_format_of(format, &known));
    return tsr_prepare_out(dir);
}

tsr_status tsr_study_code(const struct tsr_study *study, const struct tsr_comparison *comparison,
                          const char *format, const char *dir)
{
    struct tsr_code_folder folder = {.path = dir};
    TSR_TRY(tsr_code_format_of(format, &folder.format));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < study->n && status == TSR_OK; i++)
        status = tsr_code_write(&folder, study->jobs[i].strategy->name, study->experiment.given,
                                &study->jobs[i], &comparison->rows[i]);
    if (status == TSR_OK)
        status = tsr_code_finish(&folder);
    tsr_code_folder_fini(&folder);
    return status;
}

tsr_status tsr_study_jobs(struct tsr_study *study, struct tsr_tenants *out)
{
    TSR_TRY(tsr_study_build(study));
    TSR_TRY(tsr_tenants_read(study, out));
    tsr_status status = tsr_tenants_simulate(study, out);
    if (status != TSR_OK)
        tsr_tenants_fini(out);
    return status;
}

/* ---- explain ----------------------------------------------------------------------------- */

/* What is known of the times that `explain --time` simulates. */
static tsr_status describe_times(struct tsr_study *study, const struct tsr_job *job,
                                 struct tsr_explanation *out)
{
    struct tsr_study_info *info = &out->times;
    if (!study->measured)
        TSR_TRY(tsr_measured_open(study->experiment.path, &study->measured));
    study->experiment.measured = study->measured;
    TSR_TRY(tsr_time_sources(job, &out->arena, &info->time_sources));
    return tsr_validated_of(job, 1, &out->arena, &info->validated, &info->n_validated);
}

static tsr_status explain_peak(void *explanation, const struct tsr_job *job,
                               struct tsr_emission *emission, struct tsr_row *row)
{
    TSR_TRY(tsr_peak_of(job, emission, row));
    return tsr_explain(job, emission, row, explanation);
}

tsr_status tsr_study_explain(struct tsr_study *study, const struct tsr_reason_options *options,
                             struct tsr_explanation *out)
{
    const struct tsr_what_if_options what_if = {
        .jobs = options->jobs, .simulate = options->time, .sets = options->deep};
    const struct tsr_strategy *strategy = NULL;
    struct tsr_job job;
    struct tsr_row row;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr_experiment_find(&study->experiment, NULL, &strategy));
    TSR_TRY(tsr_job_open(&study->experiment, strategy,
                         options->time ? TSR_NEEDS_ALL : TSR_MAY_LACK_CLUSTER, &job));
    tsr_status status = tsr_with_programs(&job, &row, explain_peak, out);
    if (status == TSR_OK && !options->no_what_if)
        status = tsr_what_if(&study->experiment, &job, &what_if, out);
    if (status == TSR_OK && options->time)
        status = describe_times(study, &job, out);
    if (status == TSR_OK)
        tsr_tell_unread(&study->experiment, strategy);
    if (status != TSR_OK)
        tsr_explanation_fini(out);
    tsr_job_close(&job);
    return status;
}

/* ---- overlap ----------------------------------------------------------------------------- */

struct taken {
    const struct tsr_study_info *info;
    const char *out; /* where what report.html shows goes; NULL: nowhere */
    uint32_t rank;
    struct tsr_overlap_table *table;
};

static tsr_status take(void *user, const struct tsr_detail *detail)
{
    const struct taken *taken = user;
    if (taken->out)
        TSR_TRY(tsr_html_view_in(taken->out, taken->info, detail));
    return tsr_overlap_table_of(taken->info, detail, taken->table);
}

static tsr_status simulate(void *user, const struct tsr_job *job, struct tsr_emission *emission,
                           struct tsr_row *row)
{
    const struct taken *taken = user;
    return tsr_simulate_times(job, emission, row, taken->rank, take, user);
}

tsr_status tsr_study_overlap(struct tsr_study *study, const struct tsr_reason_options *options,
                             struct tsr_overlap_result *out)
{
    const struct tsr_strategy *strategy = NULL;
    struct taken taken = {&study->info, study->request.out,
                          options->has_rank ? options->rank : TSR_SLOWEST_RANK, &out->table};
    struct tsr_row row;
    *out = (struct tsr_overlap_result){.has_changes = false};
    TSR_TRY(tsr_experiment_find(&study->experiment, NULL, &strategy));
    TSR_TRY(tsr_study_build(study));
    tsr_status status = tsr_with_programs(&study->jobs[0], &row, simulate, &taken);
    if (status == TSR_OK && study->request.out) {
        out->view = strdup(study->request.out);
        status = out->view ? TSR_OK : tsr_no_memory(NULL);
    }
    if (status == TSR_OK && !options->no_what_if)
        status = tsr_overlap_what_if(&study->experiment, &study->jobs[0], &row, options->jobs, out);
    if (status != TSR_OK)
        tsr_overlap_result_fini(out);
    return status;
}

/* ---- goodput ----------------------------------------------------------------------------- */

tsr_status tsr_study_goodput(struct tsr_study *study, struct tsr_month *out)
{
    TSR_TRY(tsr_study_build(study));
    if (study->n != 1)
        return tsr_fail(TSR_ECONFIG, "%s: --strategy: none given; allowed: the name of one of %zu",
                        study->experiment.path, study->n);
    return tsr_month_of(&study->jobs[0], out);
}

/* ---- two runs ---------------------------------------------------------------------------- */

/* Numbers of micro-batches on one side alone would only hide what is alike. */
static void merge_micros(struct tsr_diff_run *run)
{
    for (size_t i = 0; i < run->n; i++)
        run->points[i].micro = 0;
}

static bool is_recorded(const struct tsr_diff_run *run)
{
    return !strcmp(run->kind, "recording") || !strcmp(run->kind, "snapshot");
}

tsr_status tsr_study_diff(const struct tsr_study_request *a, const struct tsr_study_request *b,
                          struct tsr_diff *out)
{
    struct tsr_diff_run *runs = out->runs;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr_diff_load(a, &runs[0]));
    tsr_status status = tsr_diff_load(b, &runs[1]);
    if (status != TSR_OK) {
        tsr_diff_run_fini(&runs[0]);
        return status;
    }
    if (is_recorded(&runs[0]) || is_recorded(&runs[1])) {
        merge_micros(&runs[0]);
        merge_micros(&runs[1]);
    }
    status = tsr_diff_attribute(&runs[1], &runs[0]);
    if (status == TSR_OK)
        status = tsr_diff_attribute(&runs[0], &runs[1]);
    if (status == TSR_OK)
        status = tsr_diff_runs(out);
    if (status != TSR_OK)
        tsr_diff_fini(out);
    return status;
}

/* ---- plan -------------------------------------------------------------------------------- */

static tsr_status open_plan(struct tsr_study *study, const struct tsr_plan_options *options,
                            struct tsr_plan **out)
{
    *out = NULL;
    struct tsr_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_plan_open(study, options, plan);
    if (status != TSR_OK) {
        free(plan);
        return status;
    }
    if (study->request.out)
        status = tsr_prepare_out(study->request.out);
    if (status == TSR_OK)
        *out = plan;
    else
        tsr_plan_free(plan);
    return status;
}

static tsr_status search(struct tsr_plan *plan, const char *dir)
{
    TSR_TRY(tsr_plan_search(plan));
    TSR_TRY(tsr_plan_validate(plan));
    if (dir) {
        TSR_TRY(tsr_plan_write(plan, dir));
        TSR_TRY(tsr_plan_page(plan, dir));
    }
    return plan->n_shown || plan->counts.interrupted ? TSR_OK : tsr_plan_nothing_fits(plan);
}

tsr_status tsr_study_plan(struct tsr_study *study, const struct tsr_plan_options *options,
                          struct tsr_plan **out)
{
    struct tsr_plan *plan = NULL;
    *out = NULL;
    TSR_TRY(open_plan(study, options, &plan));
    tsr_status status = search(plan, study->request.out);
    if (status == TSR_OK)
        *out = plan;
    else
        tsr_plan_free(plan);
    return status;
}

tsr_status tsr_study_largest(struct tsr_study *study, const struct tsr_plan_options *options,
                             enum tsr_plan_size size, struct tsr_plan **plan,
                             struct tsr_plan_largest *out)
{
    TSR_TRY(open_plan(study, options, plan));
    tsr_status status = tsr_plan_solve(*plan, size, study->request.out, out);
    if (status == TSR_OK && study->request.out)
        status = tsr_plan_largest_page(*plan, out, study->request.out);
    if (status != TSR_OK) {
        tsr_plan_free(*plan);
        *plan = NULL;
    }
    return status;
}

size_t tsr_plan_n(const struct tsr_plan *plan)
{
    return plan->n_shown;
}

void tsr_plan_counts_of(const struct tsr_plan *plan, size_t *space, struct tsr_plan_counts *out)
{
    *space = plan->space.n - plan->counts.repeats;
    *out = plan->counts;
}

struct plan_code {
    struct tsr_code_folder folder;
    const struct tsr_plan *plan;
    size_t shown;
};

static tsr_status write_point(const struct tsr_job *job, void *user)
{
    struct plan_code *code = user;
    size_t i = code->plan->shown[code->shown];
    char name[160], words[TSR_PLAN_WORDS];
    snprintf(name, sizeof name, "%.128s_%zu", job->strategy->name, code->shown + 1);
    tsr_plan_words(&code->plan->space, i, words, sizeof words);
    const char *given = code->plan->experiment.given, *sweeps = "sweeps=null";
    struct tsr_code_text with = {.s = NULL};
    tsr_code_add(&with, "%s%s%s%s%s", given ? given : "", given ? ", " : "",
                 code->plan->had_sweeps ? sweeps : "", code->plan->had_sweeps ? ", " : "", words);
    tsr_status status = with.failed ? tsr_no_memory("a written strategy")
                                    : tsr_code_write(&code->folder, name, tsr_code_str(&with), job,
                                                     &code->plan->points[i].m->row);
    tsr_code_text_fini(&with);
    return status;
}

tsr_status tsr_plan_experiment(const struct tsr_plan *plan, size_t k, const char *path)
{
    char *text = NULL;
    TSR_TRY(tsr_plan_print(plan, k, &text));
    tsr_status status = tsr_write_output(path, tsr_put_text, text);
    free(text);
    return status;
}

tsr_status tsr_plan_code(const struct tsr_plan *plan, const char *format, const char *dir)
{
    struct plan_code code = {.folder = {.path = dir}, .plan = plan};
    TSR_TRY(tsr_code_format_of(format, &code.folder.format));
    tsr_status status = TSR_OK;
    for (; code.shown < plan->n_shown && status == TSR_OK; code.shown++) {
        const char *sets[TSR_PLAN_MAX_AXES];
        size_t n = tsr_plan_sets(&plan->space, plan->shown[code.shown], sets);
        status = tsr_plan_with_job(plan, sets, n, write_point, &code);
    }
    if (status == TSR_OK)
        status = tsr_code_finish(&code.folder);
    tsr_code_folder_fini(&code.folder);
    return status;
}

void tsr_plan_free(struct tsr_plan *plan)
{
    if (plan)
        tsr_plan_close(plan);
    free(plan);
}

/* ---- validate ---------------------------------------------------------------------------- */

/* A validation borrows its table and conditions: they live as long. */
struct whole {
    struct tsr_validation validation; /* first: what the caller has is this */
    struct tsr_table table;
    struct tsr_rules rules;
};

static tsr_status validate(const struct tsr_validate_options *options, struct whole *whole)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_table_open(options->table, options->strict, &whole->table));
    TSR_GOTO(no_rules, tsr_rules_open(options->conditions, &whole->rules));
    TSR_GOTO(failed, tsr_validate(&whole->table, &whole->rules, options->sets, options->n_sets,
                                  options->jobs, &whole->validation));
    return TSR_OK;
failed:
    tsr_rules_close(&whole->rules);
no_rules:
    tsr_table_close(&whole->table);
    return status;
}

tsr_status tsr_study_validate(const struct tsr_validate_options *options,
                              struct tsr_validation **out)
{
    *out = NULL;
    if (options->out)
        TSR_TRY(tsr_prepare_out(options->out));
    struct whole *whole = calloc(1, sizeof *whole);
    if (!whole)
        return tsr_no_memory(NULL);
    tsr_status status = validate(options, whole);
    if (status == TSR_OK)
        *out = &whole->validation;
    else
        free(whole);
    return status;
}

void tsr_study_validation_free(struct tsr_validation *validation)
{
    struct whole *whole = (struct whole *)validation;
    if (!whole)
        return;
    tsr_validation_fini(&whole->validation);
    tsr_rules_close(&whole->rules);
    tsr_table_close(&whole->table);
    free(whole);
}
