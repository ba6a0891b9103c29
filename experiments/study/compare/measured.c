/* measured.c: reads the row of a profiled run, and compares its program with the simulated one
 * (measured.h). */
#include "experiments/study/compare/measured.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/job/emit.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "sim/base/json_load.h"
#include "sim/base/text.h"

#define SUFFIX "-measured" /* of the strategy's name in a profile */

tsr_status tsr_measured_load(const char *run, const char *out, struct tsr_row *row)
{
    char path[4096], name[256], to[4096];
    json_t *summary;
    snprintf(path, sizeof path, "%s/measured/summary.json", run);
    tsr_status status = tsr_json_load(path, TSR_TEXT_VALUES, &summary);
    const json_t *first = json_array_get(json_object_get(summary, "rows"), 0);
    if (!first) {
        json_decref(summary);
        return tsr_fail(TSR_ECONFIG,
                        "--measured: %s: found no profile (%s); allowed: the --out folder of "
                        "tessera run --profile",
                        path, status == TSR_OK ? "no rows" : tsr_error_text());
    }
    tsr__row_of_json(first, row);
    row->measured = true;
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

static const struct tsr_job *job_of(const struct tsr_study *study, const char *measured)
{
    size_t n = strlen(measured), tail = strlen(SUFFIX);
    if (n < tail || strcmp(measured + n - tail, SUFFIX) != 0)
        return NULL;
    for (size_t i = 0; i < study->n; i++) {
        const char *name = study->jobs[i].strategy->name;
        if (strlen(name) == n - tail && !strncmp(name, measured, n - tail))
            return &study->jobs[i];
    }
    return NULL;
}

tsr_status tsr_measured_check(const struct tsr_study *study, const struct tsr_row *row)
{
    const struct tsr_job *job = job_of(study, row->strategy);
    struct tsr_emission emission;
    if (!job)
        return TSR_OK;
    struct tsr_job executed = *job;
    executed.executes = true;
    tsr_status status = tsr_emit_rank(&executed, 0, TSR_UNTIL_STEADY, &emission);
    if (status == TSR_EOOM) /* of the modelled GPU, which the host of the run is not */
        return TSR_OK;
    TSR_TRY(status);
    const struct tsr_program *step = emission.classes[0].programs[emission.steady];
    uint64_t hash = tsr_program_hash(step);
    if (hash == row->program_hash)
        tsr_tell("note: %s ran what is simulated: both program hashes are %016" PRIx64
                 ", of a step whose loss and norm go to the host",
                 tsr_show(row->strategy).text, hash);
    else
        tsr_tell("note: %s ran another program (hash %016" PRIx64 ", %" PRIu64
                 " instructions) than this file's strategy (%016" PRIx64
                 ", %zu): other keys, ranks or versions",
                 tsr_show(row->strategy).text, row->program_hash, row->n_instructions, hash,
                 step->n_instrs);
    tsr_emission_fini(&emission);
    return TSR_OK;
}
