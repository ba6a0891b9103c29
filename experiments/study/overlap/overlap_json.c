/* overlap_json.c: the overlap of a step as a JSON object. */
#include <jansson.h>
#include <stdio.h>

#include "experiments/study/overlap/overlap.h"

static json_t *why_json(const double why[TSR_N_EXPOSURES])
{
    json_t *out = json_object();
    char key[64];
    for (int i = 0; i < TSR_N_EXPOSURES; i++) {
        snprintf(key, sizeof key, "%s_s", tsr_exposure_key(i));
        json_object_set_new(out, key, json_real(why[i]));
    }
    return out;
}

static json_t *total_json(const char *kind, const struct tsr_overlap_total *total)
{
    return json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "kind", kind, "collectives",
                     (json_int_t)total->n, "bytes", (json_int_t)total->bytes, "seconds",
                     total->seconds, "hidden_s", total->hidden, "exposed_s", total->exposed,
                     "beside_s", total->beside, "why", why_json(total->why));
}

static json_t *row_json(const struct tsr_overlap_row *row)
{
    enum tsr_exposure main = tsr_overlap_main_reason(row->why);
    json_t *out = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:I}", "kind", tsr_overlap_kind_key(row->kind), "name",
        row->name, "module", row->module, "phase", row->phase, "micro_batch", (int)row->micro,
        "stream", row->stream, "communicator", row->comm, "bytes", (json_int_t)row->bytes);
    if (!out)
        return NULL;
    json_object_set_new(out, "issue_s", json_real(row->issue));
    json_object_set_new(out, "start_s", json_real(row->start));
    json_object_set_new(out, "end_s", json_real(row->end));
    json_object_set_new(out, "hidden_s", json_real(row->hidden));
    json_object_set_new(out, "exposed_s", json_real(row->exposed));
    json_object_set_new(out, "beside_s", json_real(row->beside));
    json_object_set_new(
        out, "reason", main == TSR_N_EXPOSURES ? json_null() : json_string(tsr_exposure_key(main)));
    json_object_set_new(out, "why", why_json(row->why));
    return out;
}

static json_t *change_json(const struct tsr_overlap_change *change)
{
    static const char *const effects[] = {"none", "numbers", "batch", "imagined"};
    json_t *sets = json_array();
    for (size_t i = 0; i < change->n_sets; i++)
        json_array_append_new(sets, json_string(change->sets[i]));
    bool known = !change->failed;
    json_t *out =
        json_pack("{s:s, s:s, s:o, s:o}", "words", change->words, "effect", effects[change->effect],
                  "set", sets, "failure", known ? json_null() : json_string(change->failure));
    json_object_set_new(out, "step_s", known ? json_real(change->step_s) : json_null());
    json_object_set_new(out, "exposed_s", known ? json_real(change->exposed_s) : json_null());
    json_object_set_new(out, "gain_share", known ? json_real(change->gain) : json_null());
    json_object_set_new(out, "fits",
                        known && change->fits >= 0 ? json_boolean(change->fits) : json_null());
    return out;
}

static json_t *changes_json(const struct tsr_overlap_result *overlap)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < overlap->n_changes; i++)
        json_array_append_new(rows, change_json(&overlap->changes[i]));
    return json_pack("{s:f, s:f, s:I, s:o}", "step_s", overlap->step_s, "exposed_s",
                     overlap->exposed_s, "tokens_per_rank", (json_int_t)overlap->tokens_per_rank,
                     "rows", rows);
}

json_t *tsr_overlap_json(const char *run, const struct tsr_overlap_result *overlap)
{
    const struct tsr_overlap_table *table = &overlap->table;
    json_t *kinds = json_array(), *rows = json_array();
    for (int i = 0; i < TSR_N_OVERLAP_KINDS; i++)
        if (table->kinds[i].n)
            json_array_append_new(kinds, total_json(tsr_overlap_kind_key(i), &table->kinds[i]));
    for (size_t i = 0; i < table->n; i++)
        json_array_append_new(rows, row_json(&table->rows[i]));
    const struct {
        const char *key;
        double seconds;
    } times[] = {{"step_s", table->step_s},
                 {"compute_s", table->compute_s},
                 {"communication_s", table->comm_s},
                 {"exposed_s", table->exposed_s},
                 {"exposed_share", table->step_s > 0 ? table->exposed_s / table->step_s : 0.0},
                 {"host_bound_s", table->host_bound_s},
                 {"unlaunched_s", table->unlaunched_s}};
    json_t *out = json_pack("{s:s, s:s, s:b}", "run", run, "title", table->title, "measured",
                            table->measured);
    for (size_t i = 0; out && i < sizeof times / sizeof *times; i++)
        json_object_set_new(out, times[i].key, json_real(times[i].seconds));
    json_object_set_new(out, "total", total_json("all", &table->all));
    json_object_set_new(out, "kinds", kinds);
    json_object_set_new(out, "collectives", rows);
    if (overlap->has_changes)
        json_object_set_new(out, "what_if", changes_json(overlap));
    return out;
}
