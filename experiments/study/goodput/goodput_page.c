/* goodput_page.c: report.html of a month: the curve over intervals, the table, how to repeat it. */
#include <stdio.h>

#include "experiments/study/goodput/goodput_page.h"
#include "experiments/study/html/html.h"

static json_t *line(const char *name, int dashed)
{
    json_t *dash = dashed ? json_pack("[i, i]", 4, 4) : json_array();
    return json_pack("{s:o, s:o, s:b, s:[]}", "name", tsr_html_text(name), "dash", dash, "fits", 1,
                     "points");
}

static void add_point(json_t *line, double x, double y)
{
    json_array_append_new(json_object_get(line, "points"), json_pack("[f, f]", x, y));
}

static json_t *curve_plot(const struct tsr_month *m, const struct tsr_month_curve *curve)
{
    json_t *plot = tsr_html_plot("Work that counts, as a share of the time", "between checkpoints",
                                 "long_s", "goodput", "share");
    json_t *mean = line("mean of the runs", 0), *low = line("p5 and p95 of the runs", 1);
    json_t *high = line(NULL, 1), *lines = json_object_get(plot, "lines");
    for (size_t i = 0; i < curve->n; i++) {
        add_point(mean, curve->interval_s[i], curve->at[i].useful);
        add_point(low, curve->interval_s[i], curve->at[i].useful_p5);
        add_point(high, curve->interval_s[i], curve->at[i].useful_p95);
    }
    json_array_append_new(lines, mean);
    json_array_append_new(lines, low);
    json_array_append_new(lines, high);
    tsr_html_point(plot, m->best_in.interval_s, m->best.useful, "best", "good", false, true);
    if (m->has_asked)
        tsr_html_point(plot, m->asked.interval_s, m->got.useful, "asked", "soft", false, false);
    json_object_set_new(plot, "names",
                        json_pack("{s:s, s:s}", "good", "best", "soft", "asked for"));
    json_object_set_new(json_object_get(plot, "x"), "log", json_true());
    return plot;
}

static void add_row(json_t *table, const char *name, const struct tsr_goodput_input *in,
                    const struct tsr_goodput *g)
{
    const double s = in->horizon_s;
    tsr_html_row(table, json_pack("[s, f, f, f, f, f, f, f, f, f]", name, in->interval_s, g->useful,
                                  g->useful_p5, g->useful_p95, g->lost * s, g->checkpoint * s,
                                  g->restart * s, g->failures, g->checkpoints));
}

/* The unit of a column of times: the longer outcome's. */
static const char *time_unit(const struct tsr_month *m, double best, double got)
{
    double longest = best * m->best_in.horizon_s;
    if (m->has_asked && got * m->asked.horizon_s > longest)
        longest = got * m->asked.horizon_s;
    return longest < TSR_DAYS_FROM_S ? "hours" : "days";
}

static json_t *outcome_table(const struct tsr_month *m)
{
    const struct tsr_html_column columns[] = {
        {"which", "checkpoints", "text"},
        {"interval", "every", "long_s"},
        {"useful", "goodput", "share"},
        {"p5", "p5 of the runs", "share"},
        {"p95", "p95 of the runs", "share"},
        {"lost", "work lost", time_unit(m, m->best.lost, m->got.lost)},
        {"checkpoint", "checkpoints", time_unit(m, m->best.checkpoint, m->got.checkpoint)},
        {"restart", "restarts", time_unit(m, m->best.restart, m->got.restart)},
        {"failures", "failures", "figure"},
        {"n", "number of checkpoints", "figure"},
        {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("goodput", "The month", columns);
    if (m->has_asked)
        add_row(table, "asked for", &m->asked, &m->got);
    add_row(table, "best", &m->best_in, &m->best);
    return table;
}

tsr_status tsr_month_page(const struct tsr_month *m, const struct tsr_study_info *info,
                          const struct tsr_month_curve *curve, const char *dir)
{
    const struct tsr_goodput_input *in = &m->best_in;
    char subtitle[512];
    (void)snprintf(subtitle, sizeof subtitle, "%s on %s, strategy %s: %u x %s in %u nodes",
                   info->model_name, info->cluster_name, m->strategy, (unsigned)m->world,
                   info->gpu_name, (unsigned)m->nodes);
    json_t *page = tsr_html_page(
        "goodput", info->title, subtitle,
        tsr_html_command("goodput", info->config_path, info->sets, info->n_sets, NULL),
        info->resolved_yaml);
    tsr_html_say(page, "verdict",
                 "Best: a checkpoint every %s to %s, and %.1f %% of the time is work that "
                 "counts (at most %g %% less at the ends of that range).",
                 tsr_interval(m->flat.from_s).text, tsr_interval(m->flat.to_s).text,
                 100 * m->best.useful, 100 * TSR_FLAT_LOSS);
    tsr_html_add(page, "plots", curve_plot(m, curve));
    tsr_html_add(page, "tables", outcome_table(m));
    tsr_html_say(page, "notes",
                 "A failure every %s; a step of %.1f ms; a checkpoint of %.1f GB stops it for "
                 "%.1f s; a restart takes %.1f min; %.0f days, %u runs. Step and checkpoint times "
                 "are simulated, for the device file %s; the rest are the keys goodput.*.",
                 tsr_hours(in->mtbf_s).text, m->step_s * 1e3, m->checkpoint_bytes / 1e9,
                 in->stall_s, in->restart_s / 60, in->horizon_s / 86400, (unsigned)in->runs,
                 info->device_file);
    tsr_html_say_errors(page, info);
    return tsr_html_write(dir, page, NULL, 0);
}
