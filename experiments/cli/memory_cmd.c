/* memory_cmd.c: `tessera memory SCENARIO.json`: what a recorded memory scenario takes, predicted.
 *
 * A recording is made of two runs: PyTorch as it is gives the allocator's figures, and PyTorch
 * while every operation is recorded gives categories, snapshots and the time line; they differ by a
 * few allocations. So the scenario is emitted twice.
 */
#include <errno.h>
#include <string.h>

#include "args.h"
#include "cmd.h"
#include "memory_fit.h"
#include "memory_result.h"
#include "memory_run.h"
#include "report_file.h"

struct output {
    const char *name; /* for messages */
    const json_t *value;
};

static tsr_status write_json(FILE *stream, const void *user)
{
    const struct output *o = user;
    if (json_dumpf(o->value, stream, JSON_COMPACT) != 0 || fputc('\n', stream) == EOF)
        return tsr_fail(TSR_EIO, "%s: the result cannot be written: %s", o->name, strerror(errno));
    return TSR_OK;
}

static tsr_status write_result(const char *path, const json_t *value)
{
    struct output output = {path ? path : "standard output", value};
    return path ? tsr_write_file(path, write_json, &output) : write_json(stdout, &output);
}

static tsr_status report(const struct tsr_memory_scenario *s, const struct tsr_args *args,
                         const struct tsr_memory_run *plain, const struct tsr_memory_run *recorded)
{
    json_t *result = json_object();
    bool ok =
        result && json_object_set_new(result, "name", json_string(s->name)) == 0 &&
        json_object_set(result, "scenario", s->object) == 0 &&
        json_object_set_new(result, "groups", tsr_memory_groups(s, plain->engine)) == 0 &&
        json_object_set_new(result, "allocator", tsr_memory_allocator(s, &plain->record)) == 0 &&
        tsr_memory_categories(result, s, &recorded->record);
    tsr_status status = ok ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory");
    json_t *timeline = NULL;
    if (ok && args->timeline && !(timeline = tsr_memory_timeline(s, &recorded->record)))
        status = tsr_fail(TSR_ENOMEM, "out of memory");
    if (status == TSR_OK && timeline)
        status = write_result(args->timeline, timeline);
    if (status == TSR_OK)
        status = write_result(args->out, result);
    json_decref(timeline);
    json_decref(result);
    return status;
}

static tsr_status run_scenario(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_memory_scenario s;
    struct tsr_memory_run plain = {0}, recorded = {0};
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(tsr_memory_scenario_load(args->file, &s));
    tsr_status status = tsr_memory_run(&s, false, &plain);
    if (status == TSR_OK)
        status = tsr_memory_run(&s, true, &recorded);
    if (status == TSR_OK)
        status = report(&s, args, &plain, &recorded);
    else if (status == TSR_EOOM)
        status = tsr_memory_say_what_fits(&s);
    else if (status != TSR_ENOMEM)
        status = tsr_fail(TSR_ECONFIG, "%s: %s", args->file, tsr_error_text());
    tsr_memory_run_close(&plain);
    tsr_memory_run_close(&recorded);
    tsr_memory_scenario_fini(&s);
    return status;
}

int tsr_cmd_memory(int argc, char **argv)
{
    return tsr_command("memory", argc, argv, run_scenario);
}
