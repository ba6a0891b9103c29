/* plan_files.c: what `tessera plan --out` leaves behind: plan.csv has every configuration with what
 * became of it, plan-front.csv the Pareto front, summary.json what was printed; plan.svg and .png
 * draw the first two.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

static const char *const state_words[] = {[TSR_PLAN_NEW] = "new",
                                          [TSR_PLAN_IMPOSSIBLE] = "impossible",
                                          [TSR_PLAN_TOO_LARGE] = "too large",
                                          [TSR_PLAN_OOM] = "out of memory",
                                          [TSR_PLAN_EMITTED] = "emitted",
                                          [TSR_PLAN_SIMULATED] = "simulated"};

/* Words of the settings for a field that a plot script takes apart: no commas; those between
 * settings become a wider gap, those inside values semicolons. */
static void put_words(FILE *out, const struct tsr_plan *plan, size_t i)
{
    char words[512];
    int depth = 0;
    tsr_plan_words(&plan->space, i, words, sizeof words);
    for (char *c = words; *c; c++) {
        depth += strchr("[{", *c) ? 1 : strchr("]}", *c) ? -1 : 0;
        if (*c == ',')
            *c = depth > 0 ? ';' : ' ';
    }
    tsr__put_plain(out, words);
}

static void put_head(FILE *out, const struct tsr_plan *plan, const char *columns)
{
    const struct tsr_study_info info = {.model_name = plan->job.model.name,
                                        .cluster_name = plan->job.cluster.name,
                                        .device_file = plan->job.cluster.gpu.path,
                                        .config_path = plan->experiment.path,
                                        .world = plan->job.world};
    tsr__put_provenance(out, &info, plan->base->name, columns);
}

static void put_point(FILE *out, const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    const struct tsr_row *row = &point->m.row;
    bool emitted = point->state >= TSR_PLAN_EMITTED;
    fprintf(out, "%zu,", i);
    put_words(out, plan, i);
    fprintf(out, ",%s,", state_words[point->state]);
    if (emitted)
        fprintf(out, "%zu,%s,%s,%" PRIu64 ",%" PRIu64 ",", point->like, point->fits ? "yes" : "no",
                point->front ? "yes" : "no", tsr_plan_allocated(row), point->need);
    else
        fputs(",no,no,,,", out);
    if (emitted && row->tokens_per_rank)
        fprintf(out, "%.9g", point->m.bound_s / (double)row->tokens_per_rank);
    fputc(',', out);
    if (point->state == TSR_PLAN_SIMULATED)
        fprintf(out, "%.9g,%.9g", tsr_plan_time(row), row->steady.step_s);
    else
        fputc(',', out);
    fputc(',', out);
    tsr__put_plain(out, row->failure);
    fputc('\n', out);
}

static tsr_status write_points(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    put_head(out, plan,
             "every configuration; what became of it; the one that has the same programs; figures "
             "of what was emitted (bytes, bound) and simulated (seconds)");
    fputs("configuration,settings,state,alike_to,fits,front,peak_allocated_bytes,"
          "needed_bytes,least_time_per_token_s,time_per_token_s,step_time_s,failure\n",
          out);
    for (size_t i = 0; i < plan->space.n; i++)
        put_point(out, plan, i);
    return TSR_OK;
}

static tsr_status write_front(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    put_head(out, plan, "the Pareto front of those that fit, by memory");
    fputs("rank,settings,needed_bytes,time_per_token_s\n", out);
    for (size_t k = plan->n_shown; k-- > 0;) { /* from small and slow to large and fast */
        const struct tsr_plan_point *point = &plan->points[plan->shown[k]];
        if (!point->front)
            continue;
        fprintf(out, "%zu,", k + 1);
        put_words(out, plan, plan->shown[k]);
        fprintf(out, ",%" PRIu64 ",%.9g\n", point->need, tsr_plan_time(&point->m.row));
    }
    return TSR_OK;
}

static tsr_status write_frame(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    char head[512];
    snprintf(head, sizeof head, "%s · %s · %" PRIu32 " GPUs · strategy %s", plan->job.model.name,
             plan->job.cluster.name, plan->job.world, plan->base->name);
    put_head(out, plan, "what the picture of plan.csv says beside it");
    fputs("budget_bytes,is_card,configurations,emitted,simulated,head\n", out);
    fprintf(out, "%" PRIu64 ",%d,%zu,%zu,%zu,", plan->budget, !plan->own_budget, plan->space.n,
            plan->counts.emitted, plan->counts.simulated);
    tsr__put_plain(out, head);
    fputc('\n', out);
    return TSR_OK;
}

static tsr_status write_json(FILE *out, const void *user)
{
    return tsr_plan_put_json(out, user);
}

tsr_status tsr_plan_write(const struct tsr_plan *plan, const char *dir)
{
    static const struct {
        const char *name;
        tsr_write_fn write;
    } files[] = {{"plan.csv", write_points},
                 {"plan-front.csv", write_front},
                 {"plan-frame.csv", write_frame},
                 {"summary.json", write_json}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = tsr_path_join(dir, files[i].name);
        if (!path)
            return TSR_ENOMEM;
        tsr_status status = tsr_write_file(path, files[i].write, plan);
        free(path);
        TSR_TRY(status);
    }
    return plan->n_shown ? tsr_report_picture(dir, "plan") : TSR_OK;
}
