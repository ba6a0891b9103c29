/* trace_cmd.c: `tessera trace SCENARIO.json -o RESULT.json`: runs a recorded scenario on the engine
 * and writes what the engine did, in the format of the recorded results; with --executor host what
 * was computed, too.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/player/trace/trace.h"
#include "experiments/study/base/files.h"
#include "experiments/study/simulate/open.h"

/* Takes every instruction and forgets it: only decisions are asked for here. */
static tsr_status forget(struct tsr_executor *x, const struct tsr_instr *instr)
{
    (void)x;
    (void)instr;
    return TSR_OK;
}

static const struct tsr_executor_ops forget_ops = {.size = sizeof(struct tsr_executor_ops),
                                                   .version = TSR_EXECUTOR_VERSION,
                                                   .name = "forget",
                                                   .submit = forget};

/* ---- a scenario ------------------------------------------------------------------------------ */

static void add_error(json_t *result, const struct tsr_trace_run *run, tsr_status status)
{
    char stage[160];
    const char *message = tsr_error_text();
    bool call = !strcmp(run->stage, "call");
    snprintf(stage, sizeof stage, "%s%s%s", run->stage, call ? " " : "", call ? run->call : "");
    json_object_set_new(result, "error",
                        json_pack("{s:s, s:s, s:s}", "class", tsr_status_class(status), "stage",
                                  stage, "message", message));
}

static tsr_status trace_run(struct tsr_trace_run *run, json_t *result)
{
    const char *kind = run->scenario->kind;
    TSR_TRY(tsr_trace_create(run, 0));
    if (!strcmp(kind, "tp_layout"))
        return tsr_trace_tp(run->scenario, run->e, result);
    if (!strcmp(kind, "layout")) {
        TSR_TRY(tsr_scenario_wrap(run->scenario, run->e));
        json_object_set_new(result, "layout", tsr_trace_layout(run->e, false, true));
        return TSR_OK;
    }
    tsr_status status = tsr_trace_train(run);
    if (!strcmp(kind, "error")) {
        bool is_expected = status >= TSR_EVALUE && status <= TSR_ETYPE;
        if (is_expected)
            add_error(result, run, status);
        return is_expected ? TSR_OK : status;
    }
    TSR_TRY(status);
    tsr_trace_add_run(result, run);
    return TSR_OK;
}

static tsr_status trace_kind(const struct tsr_scenario *scenario, json_t *result)
{
    struct tsr_executor executor = {.ops = &forget_ops};
    struct tsr_trace_run run = {.scenario = scenario, .executor = &executor};
    if (!strcmp(scenario->kind, "chunk"))
        return tsr_trace_chunk(scenario, result);
    if (!strcmp(scenario->kind, "bucket"))
        return tsr_trace_bucket(scenario, result);
    tsr_status status = trace_run(&run, result);
    tsr_trace_fini(&run);
    return status;
}

static tsr_status check_kind(const struct tsr_scenario *s)
{
    static const char *const known[] = {"train", "error",     "layout", "ddp",
                                        "chunk", "tp_layout", "bucket"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(s->kind, known[i]))
            return TSR_OK;
    return tsr_node_error(tsr_node_get(s->doc.root, "kind"),
                          "kind: found %s; allowed: " TSR_TRACE_KINDS, s->kind);
}

struct output {
    const char *name; /* for messages */
    const json_t *result;
};

static tsr_status write_json(FILE *stream, const void *user)
{
    const struct output *o = user;
    if (json_dumpf(o->result, stream, JSON_INDENT(1)) != 0 || fputc('\n', stream) == EOF)
        return tsr_fail(TSR_EIO, "%s: the result cannot be written: %s", o->name, strerror(errno));
    return TSR_OK;
}

enum executor { RECORD, HOST, CUDA };

/* Where the run's tensors go: beside the result. */
static tsr_status compute(const struct tsr_scenario *scenario, const char *path, const char *out,
                          const struct tsr_gpu_ops *gpus, json_t *result)
{
    bool runs = !strcmp(scenario->kind, "train") || !strcmp(scenario->kind, "ddp");
    if (!runs)
        return tsr_node_error(tsr_node_get(scenario->doc.root, "kind"),
                              "kind: found %s; allowed with --executor host or cuda: train, ddp",
                              scenario->kind);
    if (!out)
        return tsr_fail(TSR_ECONFIG,
                        "--executor host or cuda writes tensors beside the result: give -o");
    return tsr_trace_on_host(scenario, path, out, gpus, result);
}

static tsr_status trace_file(const char *path, const char *out, enum executor executor,
                             const struct tsr_gpu_ops *gpus)
{
    struct tsr_scenario scenario;
    TSR_TRY(tsr_scenario_load(path, &scenario));
    json_t *result = json_object();
    struct output output = {out ? out : "standard output", result};
    bool has_mesh = strcmp(scenario.kind, "chunk") != 0 && strcmp(scenario.kind, "bucket") != 0;
    tsr_status status;
    TSR_GOTO(done, check_kind(&scenario));
    if (has_mesh)
        TSR_GOTO(done, tsr_scenario_mesh(&scenario));
    json_object_set_new(result, "name", json_string(scenario.name));
    json_object_set_new(result, "kind", json_string(scenario.kind));
    TSR_GOTO(done, executor == RECORD ? trace_kind(&scenario, result)
                                      : compute(&scenario, path, out, gpus, result));
    TSR_GOTO(done, out ? tsr_write_file(out, write_json, &output) : write_json(stdout, &output));

done:
    json_decref(result);
    tsr_scenario_fini(&scenario);
    return status;
}

static tsr_status executor_of(const struct tsr_args *args, enum executor *out)
{
    static const char *const names[] = {[RECORD] = "record", [HOST] = "host", [CUDA] = "cuda"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        *out = (enum executor)i;
        if (!strcmp(args->executor ? args->executor : "record", names[i]))
            return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG, "--executor: found %s; allowed: record, host, cuda",
                    args->executor);
}

tsr_status tsr_cmd_trace(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    enum executor executor;
    TSR_TRY(executor_of(args, &executor));
    const struct tsr_gpu_ops *gpus = NULL;
    if (executor == CUDA)
        TSR_TRY(tsr_gpu_program(args->argv, &gpus));
    TSR_TRY(tsr_prepare_file("--out", args->out));
    return trace_file(args->file, args->out, executor, gpus);
}
