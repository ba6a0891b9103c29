/* plan_files.c: what `tessera plan --out` leaves behind (plan.h): plan.csv has every configuration
 * with what became of it, plan-front.csv the Pareto front, summary.json what was printed; plan.svg
 * and plan.png draw the first two. */
#include <inttypes.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"

static const char *const state_words[] = {
    [TSR_PLAN_NEW] = "new",         [TSR_PLAN_IMPOSSIBLE] = "impossible",
    [TSR_PLAN_REPEATS] = "repeats", [TSR_PLAN_TOO_LARGE] = "too large",
    [TSR_PLAN_BEATEN] = "beaten",   [TSR_PLAN_OOM] = "out of memory",
    [TSR_PLAN_EMITTED] = "emitted", [TSR_PLAN_SIMULATED] = "simulated"};

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

static void put_head(FILE *out, const struct tsr_plan *plan, const char *file_columns)
{
    tsr__put_provenance(out, &plan->info, plan->base->name, file_columns);
}

/* The allocator's retries are known of what was simulated. */
static const char *fits_word(const struct tsr_plan_point *point, const struct tsr_row *row)
{
    bool known = point->state == TSR_PLAN_SIMULATED && point->fits;
    return known ? tsr_fits_word(row->fits) : point->fits ? "yes" : "no";
}

static void put_point(FILE *out, const struct tsr_plan *plan, size_t i)
{
    const struct tsr_plan_point *point = &plan->points[i];
    static const struct tsr_row none;
    const struct tsr_row *row = point->m ? &point->m->row : &none;
    bool emitted = point->state >= TSR_PLAN_EMITTED;
    fprintf(out, "%zu,", i);
    put_words(out, plan, i);
    fprintf(out, ",%s,", state_words[point->state]);
    if (emitted)
        fprintf(out, "%zu,%s,%s,%" PRIu64 ",%" PRIu64 ",", point->like, fits_word(point, row),
                point->front ? "yes" : "no", tsr_plan_allocated(row), point->need);
    else
        fputs(",no,no,,,", out);
    if (emitted && row->tokens_per_rank)
        fprintf(out, "%.9g", point->m->bound.step_s / (double)row->tokens_per_rank);
    fputc(',', out);
    if (point->state == TSR_PLAN_SIMULATED)
        fprintf(out, "%.9g,%.9g,", tsr_plan_time(row), row->steady.step_s);
    else
        fputs(",,", out);
    if (emitted)
        fprintf(out, "%s,%" PRIu64, tsr_host_word(row->node_host.verdict), row->node_host.required);
    else
        fputc(',', out);
    fputc(',', out);
    tsr__put_plain(out, row->failure);
    fputc(',', out);
    unsigned needs = tsr_plan_needs(&plan->space, i);
    for (unsigned k = 0, n = 0; k < TSR_N_NEEDS; k++)
        if (needs >> k & 1)
            fprintf(out, "%s%s", n++ ? " " : "", tsr_words_need[k]);
    fputs(point->is_marked ? ",yes," : ",no,", out);
    tsr__put_plain(out,
                   point->state == TSR_PLAN_SIMULATED ? tsr_time_error_word(&row->time_error) : "");
    fputc('\n', out);
}

static tsr_status write_points(FILE *out, const void *user)
{
    const struct tsr_plan *plan = user;
    put_head(out, plan,
             "every configuration; what became of it; the one that has the same programs; figures "
             "of what was emitted (bytes, bound) and simulated (seconds)");
    fputs("configuration,settings,state,alike_to,fits,front,peak_allocated_bytes,"
          "needed_bytes,least_time_per_token_s,time_per_token_s,step_time_s,host_verdict,"
          "host_required_bytes_per_node,failure,needs,marked,time_error\n",
          out);
    for (size_t i = 0; i < plan->space.n; i++)
        if (plan->points[i].state != TSR_PLAN_REPEATS)
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
        fprintf(out, ",%" PRIu64 ",%.9g\n", point->need, tsr_plan_time(&point->m->row));
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
    fprintf(out, "%" PRIu64 ",%d,%zu,%zu,%zu,", plan->budget, !plan->own_budget,
            plan->space.n - plan->counts.repeats, plan->counts.emitted, plan->counts.simulated);
    tsr__put_plain(out, head);
    fputc('\n', out);
    return TSR_OK;
}

static tsr_status write_json(FILE *out, const void *user)
{
    return tsr_plan_report(out, NULL, user, "json", NULL);
}

tsr_status tsr_plan_write(const struct tsr_plan *plan, const char *dir)
{
    static const struct tsr_named_write files[] = {{"plan.csv", write_points},
                                                   {"plan-front.csv", write_front},
                                                   {"plan-frame.csv", write_frame},
                                                   {"summary.json", write_json}};
    TSR_TRY(tsr_write_each(dir, files, sizeof files / sizeof *files, plan));
    return plan->n_shown ? tsr_report_picture(dir, "plan") : TSR_OK;
}
