/* report_json.c: a whole comparison as one JSON document (the rows come from report_rows.c), and
 * JSON to a stream.
 */
#include <jansson.h>
#include <stdio.h>

#include "experiments/study/base/json.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"

static bool add_study(json_t *out, const struct tsr_study_info *info)
{
    return json_object_set_new(out, "schema", json_string("tessera.compare")) == 0 &&
           json_object_set_new(out, "schema_version", json_integer(TSR__ROWS_SCHEMA)) == 0 &&
           json_object_set_new(out, "times",
                               json_string(info->measured ? "measured" : "simulated")) == 0 &&
           json_object_set_new(out, "title", tsr__text_json(info->title)) == 0 &&
           json_object_set_new(out, "experiment_file", tsr__text_json(info->config_path)) == 0 &&
           json_object_set_new(out, "model", tsr__text_json(info->model_name)) == 0 &&
           json_object_set_new(out, "cluster", tsr__text_json(info->cluster_name)) == 0 &&
           json_object_set_new(out, "gpu", tsr__text_json(info->gpu_name)) == 0 &&
           json_object_set_new(out, "device_file", tsr__text_json(info->device_file)) == 0 &&
           json_object_set_new(out, "time_sources", tsr__text_json(info->time_sources)) == 0 &&
           json_object_set_new(out, "validated_error", tsr_validated_json(info)) == 0 &&
           json_object_set_new(out, "world_size", json_integer(info->world)) == 0;
}

static bool add_versions(json_t *out)
{
    json_t *versions = json_object();
    return json_object_set_new(out, "versions", versions) == 0 &&
           json_object_set_new(versions, "tessera", json_string(tsr__version())) == 0 &&
           json_object_set_new(versions, "compiler", json_string(__VERSION__)) == 0
#ifdef TSR_SIMGRID_VERSION
           && json_object_set_new(versions, "simgrid", json_string(TSR_SIMGRID_VERSION)) == 0
#endif
        ;
}

json_t *tsr__rows_json(const struct tsr_study_info *info, const struct tsr_row *rows, size_t n,
                       bool full)
{
    json_t *out = json_object();
    json_t *list = json_array();
    bool ok = out && add_study(out, info);
    if (full)
        ok = ok && add_versions(out) &&
             json_object_set_new(out, "configuration_yaml", tsr__text_json(info->resolved_yaml)) ==
                 0;
    int best = tsr__best_row(rows, n);
    ok = ok &&
         json_object_set_new(out, "best_strategy",
                             best < 0 ? json_null() : tsr__text_json(rows[best].strategy)) == 0;
    for (size_t i = 0; ok && i < n; i++)
        ok = json_array_append_new(list, tsr__row_json(&rows[i])) == 0;
    ok = ok && json_object_set(out, "rows", list) == 0;
    json_decref(list);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

tsr_status tsr__put_json_value(FILE *out, const json_t *value)
{
    if (!value)
        return tsr_fail(TSR_ENOMEM, "no memory left for JSON, or a name in it is no UTF-8");
    if (tsr_json_dump(value, out, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) != 0 && !ferror(out))
        return tsr_fail(TSR_ENOMEM, "no memory left to write the comparison as JSON");
    fputc('\n', out);
    return TSR_OK;
}

tsr_status tsr_print_report(FILE *out, const json_t *report)
{
    if (tsr_json_dump(report, out, JSON_INDENT(2)) != 0 && !ferror(out))
        return tsr_no_memory("the report");
    fputc('\n', out);
    return TSR_OK;
}

tsr_status tsr_put_json(FILE *out, json_t *value)
{
    tsr_status status = tsr__put_json_value(out, value);
    json_decref(value);
    return status;
}
