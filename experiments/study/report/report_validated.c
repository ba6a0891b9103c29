/* report_validated.c: how good the figures of a comparison are: where kernel and collective times
 * come from, and what the error was where somebody has measured (validated.h). */
#include "experiments/study/report/report_validated.h"

#include <string.h>

#include "experiments/study/report/validated.h"

/* "fully_shard on h100-sxm5-80g, one node" */
static void put_class(FILE *out, const struct tsr_validated *v)
{
    fprintf(out, "%s on %s, %s", v->api, v->gpu, v->many_nodes ? "more than one node" : "one node");
}

static void put_error(FILE *out, const struct tsr_validated *v)
{
    fputs("Validated error of time, ", out);
    put_class(out, v);
    if (v->rows == 0) {
        fputs(": this class of configuration was not validated.\n", out);
        return;
    }
    fprintf(out, ": median %.1f %%, 90 %% within %.1f %%, largest %.1f %% (", 100 * v->median,
            100 * v->p90, 100 * v->max);
    if (v->rows < TSR_VALIDATED_CLAIM)
        fprintf(out, "%u row%s of %s: too few to claim an error).\n", (unsigned)v->rows,
                v->rows == 1 ? "" : "s", v->source);
    else
        fprintf(out, "%u rows of %s).\n", (unsigned)v->rows, v->source);
}

void tsr__put_validated(FILE *out, const struct tsr_study_info *info)
{
    if (info->time_sources)
        fprintf(out, "Times come from %s.\n", info->time_sources);
    for (size_t i = 0; i < info->n_validated; i++)
        put_error(out, &info->validated[i]);
}

static json_t *class_json(const struct tsr_validated *v)
{
    json_t *class = json_pack("{s:s, s:s, s:s}", "api", v->api, "gpu", v->gpu, "nodes",
                              v->many_nodes ? "many" : "one");
    json_t *error = v->rows == 0
                        ? json_null()
                        : json_pack("{s:i, s:f, s:f, s:f, s:s, s:b}", "rows", (int)v->rows,
                                    "median", v->median, "p90", v->p90, "max", v->max, "source",
                                    v->source, "claimed", v->rows >= TSR_VALIDATED_CLAIM);
    if (class && json_object_set_new(class, "error", error) == 0)
        return class;
    json_decref(class);
    return NULL;
}

json_t *tsr__validated_json(const struct tsr_study_info *info)
{
    json_t *out = json_array();
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < info->n_validated; i++)
        ok = json_array_append_new(out, class_json(&info->validated[i])) == 0;
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}
