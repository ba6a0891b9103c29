/* goodput_cmd.c: `tessera goodput`: a month of a job that fails now and then, as a table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/base/files.h"
#include "experiments/study/goodput/goodput_page.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/open.h"
#include "experiments/study/study.h"
#include "sim/base/text.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

static json_t *outcome(const struct tsr_month *m, const struct tsr_goodput_input *in,
                       const struct tsr_goodput *g)
{
    double per_s = m->tokens_per_step / m->step_s;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "interval_s",
                     in->interval_s, "goodput", g->useful, "goodput_p5", g->useful_p5,
                     "goodput_p50", g->useful_p50, "goodput_p95", g->useful_p95, "lost_work",
                     g->lost, "checkpoint", g->checkpoint, "restart", g->restart, "failures",
                     g->failures, "checkpoints", g->checkpoints, "tokens",
                     g->useful * in->horizon_s * per_s);
}

static json_t *to_json(const struct tsr_month *m, const struct tsr_study_info *info)
{
    const struct tsr_goodput_input *in = &m->best_in;
    return json_pack(
        "{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:o, s:o, s:o}",
        "strategy", m->strategy, "world_size", (int)m->world, "nodes", (int)m->nodes, "step_time_s",
        m->step_s, "checkpoint_bytes", m->checkpoint_bytes, "checkpoint_stall_s", in->stall_s,
        "checkpoint_write_s", in->write_s, "restart_s", in->restart_s,
        "mean_time_between_failures_s", in->mtbf_s, "horizon_s", in->horizon_s, "runs",
        (int)in->runs, "flat_from_s", m->flat.from_s, "flat_to_s", m->flat.to_s, "asked",
        m->has_asked ? outcome(m, &m->asked, &m->got) : json_null(), "best",
        outcome(m, in, &m->best), "validated_error", tsr_validated_json(info));
}

enum { N_FIGURES = 8, WIDTH = 22 };

/* The cells of a column; times in hours, or days from 72 hours. */
static void put_column(const struct tsr_goodput *g, double horizon_s, char out[N_FIGURES][160])
{
    const double plain[] = {g->useful * 100, g->useful_p5 * 100, g->useful_p95 * 100};
    const double times[] = {g->lost, g->checkpoint, g->restart};
    const double counts[] = {g->failures, g->checkpoints};
    for (int i = 0; i < 3; i++)
        snprintf(out[i], sizeof *out, "%.2f", plain[i]);
    for (int i = 0; i < 3; i++)
        snprintf(out[3 + i], sizeof *out, "%s", tsr_hours(times[i] * horizon_s).text);
    for (int i = 0; i < 2; i++)
        snprintf(out[6 + i], sizeof *out, "%.2f", counts[i]);
}

static void put_table(FILE *out, const struct tsr_month *m)
{
    static const char *const names[N_FIGURES] = {
        "goodput %",   "p5 of the runs", "p95 of the runs", "work lost",
        "checkpoints", "restarts",       "failures",        "number of checkpoints"};
    char columns[2][N_FIGURES][160], heads[2][400];
    int n = 0;
    if (m->has_asked) {
        put_column(&m->got, m->asked.horizon_s, columns[n]);
        snprintf(heads[n++], sizeof *heads, "every %s", tsr_interval(m->asked.interval_s).text);
    }
    put_column(&m->best, m->best_in.horizon_s, columns[n]);
    snprintf(heads[n++], sizeof *heads, "best: every %s", tsr_interval(m->best_in.interval_s).text);
    fprintf(out, "| %-21s ", "");
    for (int c = 0; c < n; c++)
        fprintf(out, "| %*s ", WIDTH, heads[c]);
    fprintf(out, "|\n|:----------------------");
    for (int c = 0; c < n; c++)
        fprintf(out, "|-----------------------:");
    fprintf(out, "|\n");
    for (size_t i = 0; i < N_FIGURES; i++) {
        fprintf(out, "| %-21s ", names[i]);
        for (int c = 0; c < n; c++)
            fprintf(out, "| %*s ", WIDTH, columns[c][i]);
        fprintf(out, "|\n");
    }
    fprintf(out, "| as good within %g %%  ", 100 * TSR_FLAT_LOSS);
    if (n == 2)
        fprintf(out, "| %*s ", WIDTH, "");
    snprintf(heads[0], sizeof *heads, "%s to %s", tsr_interval(m->flat.from_s).text,
             tsr_interval(m->flat.to_s).text);
    fprintf(out, "| %*s |\n", WIDTH, heads[0]);
}

static void put_markdown(FILE *out, const struct tsr_month *m, const struct tsr_study_info *info)
{
    const struct tsr_goodput_input *in = &m->best_in;
    fprintf(out, "## %s\n\n%s on %s, strategy %s: %u x %s in %u nodes\n\n",
            tsr_show_line(info->title).text, tsr_show_line(info->model_name).text,
            tsr_show_line(info->cluster_name).text, tsr_show(m->strategy).text, m->world,
            tsr_show(info->gpu_name).text, m->nodes);
    fprintf(out,
            "A failure every %s (each node: every %s). A step of %.1f ms; a checkpoint of "
            "%.1f GB stops it for %.1f s",
            tsr_hours(in->mtbf_s).text, tsr_hours(m->node_mtbf_s).text, m->step_s * 1e3,
            m->checkpoint_bytes / 1e9, in->stall_s);
    if (in->write_s > 0)
        fprintf(out, " and is complete %.1f s later", in->write_s);
    fprintf(out, "; a restart takes %.1f min. %.0f days, mean of %u runs:\n\n", in->restart_s / 60,
            in->horizon_s / 86400, in->runs);
    put_table(out, m);
    fprintf(out,
            "\nGoodput: work that counts, as a share of the time. Step and checkpoint times are "
            "simulated, for the device file %s; failure rate, storage rate and restart time are "
            "the keys goodput.*.\n",
            info->device_file);
    tsr_put_validated(out, NULL, info);
}

static void put_csv(const struct tsr_month *m, const struct tsr_study_info *info)
{
    const struct tsr_goodput_input *ins[] = {&m->asked, &m->best_in};
    const struct tsr_goodput *gots[] = {&m->got, &m->best};
    printf("strategy,which,interval_s,goodput,goodput_p5,goodput_p50,goodput_p95,lost_work,"
           "checkpoint,restart,failures,checkpoints,step_time_s,checkpoint_bytes,flat_from_s,"
           "flat_to_s,time_error\n");
    for (int i = m->has_asked ? 0 : 1; i < 2; i++) {
        const struct tsr_goodput *g = gots[i];
        tsr__put_csv(stdout, m->strategy);
        printf(",%s,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.0f",
               i ? "best" : "asked", ins[i]->interval_s, g->useful, g->useful_p5, g->useful_p50,
               g->useful_p95, g->lost, g->checkpoint, g->restart, g->failures, g->checkpoints,
               m->step_s, m->checkpoint_bytes);
        if (i)
            printf(",%.9g,%.9g,", m->flat.from_s, m->flat.to_s);
        else
            printf(",,,"); /* an interval that was asked for has no range */
        tsr__put_csv(stdout,
                     info->n_validated ? tsr_time_error_word(&info->validated[0].first) : "");
        printf("\n");
    }
}

static tsr_status report(const struct tsr_args *args, const struct tsr_study *study,
                         const struct tsr_month *m)
{
    struct tsr_page page;
    TSR_TRY(tsr_page_begin(args, &page));
    tsr_status status = TSR_OK;
    if (!strcmp(args->format, "md"))
        put_markdown(page.out, m, tsr_study_info(study));
    else if (!strcmp(args->format, "csv"))
        put_csv(m, tsr_study_info(study));
    else
        status = tsr_put_json(stdout, to_json(m, tsr_study_info(study)));
    return tsr_page_end(&page, status);
}

/* ---- command ----------------------------------------------------------------------------- */

static tsr_status goodput(const struct tsr_args *args, struct tsr_study *study)
{
    struct tsr_month m;
    TSR_TRY(tsr_study_goodput(study, &m));
    TSR_TRY(report(args, study, &m));
    if (args->out)
        TSR_TRY(tsr_month_write(&m, tsr_study_info(study), args->out));
    tsr_study_notes(study);
    return TSR_OK;
}

tsr_status tsr_cmd_goodput(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_study *study = NULL;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_args_format(args, formats));
    if (args->n_sets == TSR_MAX_SETS)
        return tsr_fail(TSR_ECONFIG, "--set: found %d; allowed: up to %d", TSR_MAX_SETS,
                        TSR_MAX_SETS - 1);
    args->sets[args->n_sets++] = TSR_GOODPUT_PHASES;
    if (args->print_config)
        return tsr_print_config(args);
    if (args->out)
        TSR_TRY(tsr_prepare_out(args->out));
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = goodput(args, study);
    tsr_study_close(study);
    return status;
}
