/* overlap_json.c: the overlap of a step as a JSON object. */
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

json_t *tsr_overlap_json(const char *run, const struct tsr_overlap_table *table)
{
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
    return out;
}
