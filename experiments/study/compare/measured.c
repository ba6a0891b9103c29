/* measured.c: see measured.h. */
#include "experiments/study/compare/measured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/folder.h"
#include "experiments/study/report/report_rows.h"
#include "experiments/study/report/report_text.h"

tsr_status tsr_measured_load(const char *run, const char *out, struct tsr_row *row)
{
    char path[4096], name[256], to[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/measured/summary.json", run);
    json_t *summary = json_load_file(path, 0, &error);
    const json_t *first = json_array_get(json_object_get(summary, "rows"), 0);
    if (!first) {
        json_decref(summary);
        return tsr_fail(TSR_ECONFIG,
                        "--measured: %s: found no profile (%s); allowed: the --out folder of "
                        "tessera run --profile",
                        path, summary ? "no rows" : error.text);
    }
    tsr__row_of_json(first, row);
    json_decref(summary);
    if (!out)
        return TSR_OK;
    tsr__folder_name(row->strategy, name, sizeof name);
    snprintf(path, sizeof path, "%s/measured/%s", run, name);
    snprintf(to, sizeof to, "%s/%s", out, name);
    if (tsr_folder_copy(path, to) == TSR_OK)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--measured: %s", tsr_error_text());
}
