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

tsr_status tsr_measured_load(const char *run, struct tsr_row *row)
{
    char path[4096];
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
    const char *gpu = json_string_value(json_object_get(summary, "gpu"));
    if (!row->device[0]) /* of a version that kept it with the study alone */
        snprintf(row->device, sizeof row->device, "%s", gpu ? gpu : "");
    json_decref(summary);
    return TSR_OK;
}

tsr_status tsr_measured_copy(const char *run, const struct tsr_row *row, const char *out)
{
    char path[4096], name[256], to[4096];
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

/* "h100" of "nvidia-h100-80gb-hbm3" and of "h100-sxm5-80g". */
static void model_of_gpu(const char *name, char out[64])
{
    const char *begin = !strncmp(name, "nvidia-", 7) ? name + 7 : name;
    snprintf(out, 64, "%.*s", (int)strcspn(begin, "-"), begin);
}

/* A calibrated device has the name of what it was made on; a device file that is shipped has one of
 * its own, which begins with the GPU's model. */
static bool is_same_device(const char *run, const char *simulated)
{
    char a[64], b[64];
    model_of_gpu(run, a);
    model_of_gpu(simulated, b);
    return !strcmp(run, simulated) ||
           (*a && !strcmp(a, b) && !strstr(run, "-pcie") == !strstr(simulated, "-pcie"));
}

static bool is_alike(const struct tsr_job *job, const struct tsr_row *row)
{
    return job->world == row->world && is_same_device(row->device, job->cluster.gpu.name);
}

tsr_status tsr_measured_is_alike(const struct tsr_study *study, const char *run,
                                 const struct tsr_row *row)
{
    const struct tsr_job *job = job_of(study, row->strategy), *first = job ? job : study->jobs;
    char how[160] = "";
    bool alike = job && is_alike(job, row);
    for (size_t i = 0; i < study->n && !job; i++)
        alike = alike || is_alike(&study->jobs[i], row);
    if (alike)
        return TSR_OK;
    if (!is_same_device(row->device, first->cluster.gpu.name))
        snprintf(
            how, sizeof how,
            "--set cluster=DIR/cluster-%.64s.json, which `tessera calibrate --on %s --out DIR` "
            "makes there%s",
            row->device, strcmp(row->device, TSR_HOST_DEVICE) ? "cuda" : "host",
            first->world == row->world ? "" : ", and ");
    if (first->world != row->world)
        snprintf(how + strlen(how), sizeof how - strlen(how), "--set world=%u",
                 (unsigned)row->world);
    return tsr_fail(TSR_ECONFIG,
                    "--measured: found %s, of %u ranks on %s, beside %s, simulated on %u x %s; "
                    "allowed: the machine of the run: %s",
                    run, (unsigned)row->world, *row->device ? row->device : "an unknown device",
                    first->strategy->name, (unsigned)first->world, first->cluster.gpu.name, how);
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
