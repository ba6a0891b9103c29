/* memory_cmd.c: `tessera memory SCENARIO.json`: what a recorded memory scenario takes, predicted.
 *
 * A recording is made of two runs: PyTorch as it is gives the allocator's figures, and PyTorch
 * while every operation is recorded gives categories, snapshots and the time line; they differ by a
 * few allocations. So the scenario is emitted twice.
 */
#include <errno.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/player/memory/memory_fit.h"
#include "experiments/cli/player/memory/memory_result.h"
#include "experiments/cli/player/memory/memory_run.h"
#include "experiments/study/base/out_file.h"
#include "experiments/study/simulate/open.h"

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

/* A file under its temporary name, complete but for tsr_outfile_commit(); or standard output. */
static tsr_status write_part(const char *path, const json_t *value, struct tsr_outfile *file)
{
    struct output output = {path ? path : "standard output", value};
    TSR_TRY(write_json(path ? file->stream : stdout, &output));
    return tsr_flush(path ? file->stream : stdout, output.name);
}

/* The result, then the time line; both or neither of the files. */
static tsr_status write_both(const struct tsr_args *args, const json_t *result,
                             const json_t *timeline)
{
    struct tsr_outfile out = {NULL, NULL, NULL}, line = {NULL, NULL, NULL};
    tsr_status status = args->out ? tsr_outfile_open(args->out, &out) : TSR_OK;
    if (status == TSR_OK && timeline)
        status = tsr_outfile_open(args->timeline, &line);
    if (status == TSR_OK)
        status = write_part(args->out, result, &out);
    if (status == TSR_OK && timeline)
        status = write_part(args->timeline, timeline, &line);
    if (status == TSR_OK && args->out)
        status = tsr_outfile_commit(&out);
    if (status == TSR_OK && timeline)
        status = tsr_outfile_commit(&line);
    tsr_outfile_abort(&out);
    tsr_outfile_abort(&line);
    return status;
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
    if (status == TSR_OK)
        status = write_both(args, result, timeline);
    json_decref(timeline);
    json_decref(result);
    return status;
}

static tsr_status check_outputs(const struct tsr_args *args)
{
    if (!args->out || !args->timeline || strcmp(args->out, args->timeline) != 0)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "memory: found %s for --out and for --timeline; allowed: two different files",
                    args->out);
}

static tsr_status run_scenario(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_memory_scenario s;
    struct tsr_memory_run plain = {0}, recorded = {0};
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    TSR_TRY(check_outputs(args));
    TSR_TRY(tsr_prepare_file("--out", args->out));
    TSR_TRY(tsr_prepare_file("--timeline", args->timeline));
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
