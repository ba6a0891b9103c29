/* goodput_files.c: what `tessera goodput --out` leaves behind (goodput_month.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "experiments/study/base/files.h"
#include "experiments/study/goodput/goodput_month.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"

enum { N_POINTS = 48 };

struct curve {
    const struct tsr_month *month;
    const struct tsr_study_info *info;
    double interval_s[N_POINTS];
    struct tsr_goodput at[N_POINTS];
};

/* A decade below and above the best interval, as far as intervals were tried. */
static tsr_status draw_curve(struct curve *c)
{
    const struct tsr_month *m = c->month;
    double low = fmax(m->low_s, m->best_in.interval_s / 16);
    double high = fmin(m->high_s, m->best_in.interval_s * 16);
    struct tsr_goodput_input in = m->best_in;
    in.runs = m->try_runs;
    for (int i = 0; i < N_POINTS; i++) {
        in.interval_s = c->interval_s[i] = low * pow(high / low, (double)i / (N_POINTS - 1));
        TSR_TRY(tsr_goodput_simulate(&in, &c->at[i]));
    }
    return TSR_OK;
}

static tsr_status write_curve(FILE *out, const void *user)
{
    const struct curve *c = user;
    tsr__put_provenance(out, c->info, c->month->strategy,
                        "shares of the time, by the work between two checkpoints");
    fputs("interval_s,useful,useful_p5,useful_p95,lost,checkpoint,restart\n", out);
    for (int i = 0; i < N_POINTS; i++) {
        const struct tsr_goodput *g = &c->at[i];
        fprintf(out, "%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g\n", c->interval_s[i], g->useful,
                g->useful_p5, g->useful_p95, g->lost, g->checkpoint, g->restart);
    }
    return TSR_OK;
}

static tsr_status write_frame(FILE *out, const void *user)
{
    const struct curve *c = user;
    const struct tsr_month *m = c->month;
    char head[512];
    snprintf(head, sizeof head, "%s · %s · %u GPUs · strategy %s", c->info->model_name,
             c->info->cluster_name, m->world, m->strategy);
    tsr__put_provenance(out, c->info, m->strategy,
                        "what the picture of goodput.csv says beside it");
    fputs("best_s,best,asked_s,asked,mtbf_s,stall_s,restart_s,days,head\n", out);
    fprintf(out, "%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,", m->best_in.interval_s, m->best.useful,
            m->has_asked ? m->asked.interval_s : 0.0, m->has_asked ? m->got.useful : 0.0,
            m->best_in.mtbf_s, m->best_in.stall_s, m->best_in.restart_s,
            m->best_in.horizon_s / 86400);
    tsr__put_plain(out, head);
    fputc('\n', out);
    return TSR_OK;
}

static tsr_status write_resolved(FILE *out, const void *user)
{
    const struct curve *c = user;
    fputs(c->info->resolved_yaml, out);
    return TSR_OK;
}

tsr_status tsr_month_write(const struct tsr_month *month, const struct tsr_study_info *info,
                           const char *dir)
{
    static const struct {
        const char *name;
        tsr_write_fn write;
    } files[] = {{"experiment.yaml", write_resolved},
                 {"goodput.csv", write_curve},
                 {"goodput-frame.csv", write_frame}};
    struct curve *c = calloc(1, sizeof *c);
    if (!c)
        return tsr_no_memory(NULL);
    c->month = month;
    c->info = info;
    tsr_status status = draw_curve(c);
    for (size_t i = 0; i < sizeof files / sizeof *files && status == TSR_OK; i++) {
        char *path = tsr_path_join(dir, files[i].name);
        status = path ? tsr_write_file(path, files[i].write, c) : TSR_ENOMEM;
        free(path);
    }
    free(c);
    return status == TSR_OK ? tsr_report_picture(dir, "goodput") : status;
}
