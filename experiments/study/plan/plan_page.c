/* plan_page.c: report.html of a plan: what was found, everything that was tried, and commands. */
#include <stdio.h>
#include <stdlib.h>

#include "experiments/study/html/html.h"
#include "experiments/study/plan/plan.h"
#include "experiments/study/report/report_text.h"

/* Of configurations with the same figures one is drawn. What was emitted and not simulated is where
 * it would be at best. */
static json_t *points(const struct tsr_plan *plan)
{
    json_t *plot = tsr_html_plot("Every configuration that was tried", "memory needed", "bytes",
                                 "time per token and GPU", "token_s");
    for (size_t i = 0; i < plan->space.n; i++) {
        const struct tsr_plan_point *p = &plan->points[i];
        char words[TSR_PLAN_WORDS];
        bool simulated = p->state == TSR_PLAN_SIMULATED;
        if (!p->m || p->state < TSR_PLAN_EMITTED || p->like != i || !p->m->row.tokens_per_rank)
            continue;
        tsr_plan_words(&plan->space, i, words, sizeof words);
        tsr_html_point(plot, (double)p->need,
                       simulated ? tsr_plan_time(&p->m->row)
                                 : p->m->bound.step_s / (double)p->m->row.tokens_per_rank,
                       words,
                       !p->fits    ? "bad"
                       : simulated ? "good"
                                   : "soft",
                       p->front, plan->n_shown && plan->shown[0] == i);
    }
    json_object_set_new(plot, "names",
                        json_pack("{s:s, s:s, s:s}", "good", "simulated", "bad", "does not fit",
                                  "soft", "ruled out: at best here"));
    json_object_set_new(
        plot, "limit",
        json_pack("{s:I, s:o}", "x", (json_int_t)plan->budget, "name",
                  json_sprintf("%s: %.2f GiB", plan->own_budget ? "budget" : "budget of the card",
                               (double)plan->budget / TSR__GIB)));
    return plot;
}

static json_t *command_of(const struct tsr_plan *plan, size_t k)
{
    char *text = tsr_plan_command(plan, k);
    json_t *value = text ? tsr_html_text(text) : NULL;
    free(text);
    return value;
}

static json_t *shown(const struct tsr_plan *plan)
{
    static const struct tsr_html_column columns[] = {
        {"settings", "settings", "text"},
        {"rank", "#", "1"},
        {"step", "step", "s"},
        {"tokens", "tokens/s/GPU", "1/s"},
        {"mfu", "MFU", "share"},
        {"peak", "peak", "bytes"},
        {"needs", "needs", "bytes"},
        {"exposed", "exposed", "s"},
        {"front", "front", "flag"},
        {"alike", "alike", "1"},
        {"stack", "stack", "text"},
        {"command", "command", "text"},
        {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("plan", "The fastest that fit, and the front", columns);
    for (size_t k = 0; k < plan->n_shown; k++) {
        struct tsr_plan_row r;
        char needs[128];
        tsr_plan_row_of(plan, k, &r);
        tsr_needs_words(r.needs, needs, sizeof needs);
        tsr_html_row(table,
                     json_pack("[o, I, f, f, o, I, I, f, b, I, s, o]", tsr_html_text(r.settings),
                               (json_int_t)k + 1, r.step_s, r.tokens_per_s,
                               r.mfu >= 0 ? tsr_html_number(r.mfu) : json_null(),
                               (json_int_t)r.allocated, (json_int_t)r.needed, r.exposed_s,
                               (int)r.front, (json_int_t)r.alike, needs, command_of(plan, k)));
    }
    return table;
}

static void say(const struct tsr_plan *plan, json_t *page)
{
    const struct tsr_plan_counts *c = &plan->counts;
    if (plan->n_shown) {
        struct tsr_plan_row best;
        tsr_plan_row_of(plan, 0, &best);
        tsr_html_say(page, "verdict",
                     "Fastest that fits: %s: step %.2f ms, %.0f tokens/s/GPU, "
                     "needs %.2f of %.2f GiB.",
                     best.settings, best.step_s * 1e3, best.tokens_per_s,
                     (double)best.needed / TSR__GIB, (double)plan->budget / TSR__GIB);
    } else {
        tsr_html_say(page, "verdict", "Nothing fits.");
    }
    tsr_html_say(page, "notes",
                 "%zu configurations: %zu emitted, %zu of them different, %zu of these fit, %zu "
                 "simulated; %zu are not possible, %zu too large to be emitted.",
                 plan->space.n - c->repeats, c->emitted, c->distinct, c->fitting, c->simulated,
                 c->impossible, c->too_large);
    for (size_t k = 0; k < plan->n_shown; k++)
        if (plan->points[plan->shown[k]].m->row.mfu > 1) {
            tsr_html_say(page, "notes", "%s", TSR_MFU_OVER_PEAK);
            break;
        }
    tsr_html_say(page, "notes",
                 "Needs: reserved memory at its most, context, libraries and NCCL. Alike: other "
                 "configurations with the same figures. All times are simulated.");
    tsr_html_say_errors(page, &plan->info);
}

/* A page of a plan without its tables. NULL when out of memory. */
static json_t *begin(struct tsr_plan *plan, json_t *command)
{
    const struct tsr_job *job = &plan->job;
    char subtitle[512], *yaml = NULL;
    (void)snprintf(subtitle, sizeof subtitle, "%s on %s, %u GPUs, strategy %s with other settings",
                   job->model.name, job->cluster.name, (unsigned)job->world, plan->base->name);
    if (tsr_experiment_print(&plan->experiment, &yaml) != TSR_OK) {
        json_decref(command);
        return NULL;
    }
    json_t *page = tsr_html_page("plan", plan->experiment.title, subtitle, command, yaml);
    free(yaml);
    return page;
}

static json_t *plan_command(const struct tsr_plan *plan, const char *more)
{
    return tsr_html_command("plan", plan->experiment.path, plan->request.sets, plan->request.n_sets,
                            more);
}

tsr_status tsr_plan_page(struct tsr_plan *plan, const char *dir)
{
    json_t *page = begin(plan, plan_command(plan, NULL));
    say(plan, page);
    tsr_html_add(page, "plots", points(plan));
    tsr_html_add(page, "tables", shown(plan));
    json_object_set_new(page, "commands", json_array());
    for (size_t k = 0; k < plan->n_shown; k++)
        tsr_html_add(page, "commands", command_of(plan, k));
    return tsr_html_write(dir, page, NULL, 0);
}

/* ---- the largest size ------------------------------------------------------------------------ */

tsr_status tsr_plan_largest_page(struct tsr_plan *plan, const struct tsr_plan_largest *largest,
                                 const char *dir)
{
    char more[64];
    (void)snprintf(more, sizeof more, " --max %s", largest->what);
    json_t *page = begin(plan, plan_command(plan, more));
    const struct tsr_html_column columns[] = {
        {"value", largest->words, "1"}, {"needs", "needs", "bytes"}, {"fits", "fits", "flag"},
        {"failure", "why not", "text"}, {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("probes", "What was tried", columns);
    for (size_t i = 0; i < largest->n; i++) {
        const struct tsr_plan_probe *p = &largest->probes[i];
        tsr_html_row(table, json_pack("[I, o, b, o]", (json_int_t)p->value,
                                      p->known ? json_integer((json_int_t)tsr_plan_need(&p->row))
                                               : json_null(),
                                      (int)p->fits, tsr_html_text(p->row.failure)));
    }
    tsr_html_say(page, "verdict", "Largest %s that fits into %.2f GiB: %llu.", largest->words,
                 (double)largest->budget / TSR__GIB,
                 (unsigned long long)largest->probes[largest->best].value);
    tsr_html_add(page, "tables", table);
    return tsr_html_write(dir, page, NULL, 0);
}
