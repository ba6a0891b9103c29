/* overlap_page.c: report.html of an overlap: its collectives, sums, changes, and the step itself.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/study/html/html.h"
#include "experiments/study/overlap/overlap.h"

static json_t *totals_table(const struct tsr_overlap_table *overlap)
{
    static const struct tsr_html_column columns[] = {
        {"kind", "collectives", "text"},
        {"n", "number", "1"},
        {"bytes", "bytes", "wire"},
        {"seconds", "runs", "s"},
        {"hidden", "hidden", "s"},
        {"exposed", "exposed", "s"},
        {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("kinds", "Exposed communication by kind and reason", columns);
    for (int r = 0; r < TSR_N_EXPOSURES; r++)
        if (overlap->all.why[r] > 0)
            tsr_html_add_column(table, tsr_exposure_key(r), tsr_exposure_name(r), "s");
    for (int k = 0; k <= TSR_N_OVERLAP_KINDS; k++) {
        bool all = k == TSR_N_OVERLAP_KINDS;
        const struct tsr_overlap_total *t = all ? &overlap->all : &overlap->kinds[k];
        if (!t->n)
            continue;
        json_t *row =
            json_pack("[s, I, I, f, f, f]", all ? "all" : tsr_overlap_kind_name(k),
                      (json_int_t)t->n, (json_int_t)t->bytes, t->seconds, t->hidden, t->exposed);
        for (int r = 0; r < TSR_N_EXPOSURES; r++)
            if (overlap->all.why[r] > 0)
                json_array_append_new(row, tsr_html_number(t->why[r]));
        tsr_html_row(table, row);
    }
    return table;
}

static json_t *collectives_table(const struct tsr_overlap_table *overlap)
{
    static const struct tsr_html_column columns[] = {
        {"name", "collective", "text"},
        {"phase", "phase", "text"},
        {"comm", "communicator", "text"},
        {"bytes", "bytes", "wire"},
        {"issue", "launched", "s"},
        {"start", "start", "s"},
        {"end", "end", "s"},
        {"hidden", "hidden", "s"},
        {"exposed", "exposed", "s"},
        {"why", "mostly because", "text"},
        {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("collectives", "Collectives", columns);
    json_object_set_new(table, "sort", json_string("exposed")); /* the most exposed first */
    for (size_t i = 0; i < overlap->n; i++) {
        const struct tsr_overlap_row *r = &overlap->rows[i];
        tsr_html_row(table,
                     json_pack("[o, o, o, I, f, f, f, f, f, s]", tsr_html_text(r->name),
                               tsr_html_text(r->phase), tsr_html_text(r->comm),
                               (json_int_t)r->bytes, r->issue, r->start, r->end, r->hidden,
                               r->exposed, tsr_exposure_name(tsr_overlap_main_reason(r->why))));
    }
    return table;
}

static const char *effect_of(const struct tsr_overlap_change *change)
{
    static const char *const effects[] = {[TSR_OVERLAP_NONE] = "",
                                          [TSR_OVERLAP_NUMBERS] = "other numbers",
                                          [TSR_OVERLAP_BATCH] = "more tokens a step",
                                          [TSR_OVERLAP_IMAGINED] = "no setting: a bound"};
    return change->failed ? change->failure : effects[change->effect];
}

static json_t *changes_table(const struct tsr_overlap_result *overlap)
{
    static const struct tsr_html_column columns[] = {
        {"words", "change", "text"},   {"gain", "tokens/s more", "share"},
        {"step", "step", "s"},         {"exposed", "exposed", "s"},
        {"fits", "fits", "flag"},      {"sets", "setting", "text"},
        {"effect", "besides", "text"}, {NULL, NULL, NULL},
    };
    json_t *table = tsr_html_table("changes", "What would hide it: each change simulated", columns);
    for (size_t i = 0; i < overlap->n_changes; i++) {
        const struct tsr_overlap_change *c = &overlap->changes[i];
        char sets[TSR_OVERLAP_SETS * 130] = "";
        for (size_t k = 0; k < c->n_sets; k++) {
            size_t used = strlen(sets);
            snprintf(sets + used, sizeof sets - used, "%s%s", used ? " " : "", c->sets[k]);
        }
        bool known = !c->failed;
        tsr_html_row(table, json_pack("[o, o, o, o, o, o, o]", tsr_html_text(c->words),
                                      known ? tsr_html_number(c->gain) : json_null(),
                                      known ? tsr_html_number(c->step_s) : json_null(),
                                      known ? tsr_html_number(c->exposed_s) : json_null(),
                                      known && c->fits >= 0 ? json_boolean(c->fits) : json_null(),
                                      tsr_html_text(sets), tsr_html_text(effect_of(c))));
    }
    return table;
}

tsr_status tsr_overlap_page(const char *dir, const char *run, const struct tsr_study_info *info,
                            const struct tsr_overlap_result *overlap)
{
    const struct tsr_overlap_table *t = &overlap->table;
    const char *views[] = {overlap->view};
    json_t *command = tsr_html_command("overlap", info ? info->config_path : run,
                                       info ? info->sets : NULL, info ? info->n_sets : 0, NULL);
    json_t *page =
        tsr_html_page("overlap", t->title, t->measured ? "a measured step" : "a simulated step",
                      command, info ? info->resolved_yaml : NULL);
    tsr_html_say(page, "verdict",
                 "Step %.2f ms: compute %.2f ms, communication %.2f ms, of which %.2f ms are "
                 "exposed (%.1f %% of the step).",
                 t->step_s * 1e3, t->compute_s * 1e3, t->comm_s * 1e3, t->exposed_s * 1e3,
                 t->step_s > 0 ? 100 * t->exposed_s / t->step_s : 0.0);
    tsr_html_add(page, "tables", totals_table(t));
    if (overlap->has_changes)
        tsr_html_add(page, "tables", changes_table(overlap));
    tsr_html_add(page, "tables", collectives_table(t));
    tsr_html_say(page, "notes",
                 "Exposed: communication while the compute stream is idle, charged to one "
                 "collective at a time; launched, start, end: of the step.");
    tsr_html_say_errors(page, info);
    return tsr_html_write(dir, page, views, overlap->view ? 1 : 0);
}
