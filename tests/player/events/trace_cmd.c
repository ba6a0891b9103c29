/* trace_cmd.c: `tessera trace SCENARIO.json -o RESULT.json`: runs a recorded scenario on the engine
 * and writes what the engine did, in the format of the recorded results; with --executor host what
 * was computed, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/simulate/open.h"
#include "tests/player/events/trace.h"
#include "tests/player/player.h"

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
    struct tsr_json_output output = {out ? out : "standard output", result, JSON_INDENT(1)};
    bool has_mesh = strcmp(scenario.kind, "chunk") != 0 && strcmp(scenario.kind, "bucket") != 0;
    tsr_status status;
    TSR_GOTO(done, check_kind(&scenario));
    TSR_GOTO(done, tsr_scenario_check_keys(&scenario));
    if (has_mesh)
        TSR_GOTO(done, tsr_scenario_mesh(&scenario));
    json_object_set_new(result, "name", json_string(scenario.name));
    json_object_set_new(result, "kind", json_string(scenario.kind));
    TSR_GOTO(done, executor == RECORD ? trace_kind(&scenario, result)
                                      : compute(&scenario, path, out, gpus, result));
    TSR_GOTO(done, out ? tsr_write_output(out, tsr_json_write, &output)
                       : tsr_json_write(stdout, &output));

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

tsr_status tsr_player_trace(const struct tsr_usage *usage, struct tsr_args *args, int *success)
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

bool tsr_trace_has_race(const struct tsr_scenario *scenario)
{
    struct tsr_executor executor = {.ops = &forget_ops};
    struct tsr_trace_run run = {.scenario = scenario, .executor = &executor};
    bool any = false;
    if (tsr_trace_create(&run, 0) == TSR_OK && tsr_trace_train(&run) == TSR_OK)
        for (int race = 0; race < TSR_N_RACES; race++)
            any |= tsr_inherited_race(run.e, (enum tsr_race)race) != NULL;
    tsr_trace_fini(&run);
    return any;
}

/* ---- events of the driver -------------------------------------------------------------------- */

static void mark(struct tsr_trace_run *t, json_t *event)
{
    t->lists.failed |= json_array_append_new(t->lists.events, event) != 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

#define NO_INDEX UINT32_MAX /* a point that belongs to no iteration or micro-batch */

static bool applies(const struct tsr_yaml_node *at, const char *when, uint32_t iter, uint32_t micro)
{
    return !strcmp(tsr_text_or(at, "when", ""), when) && tsr_u64_or(at, "iter", iter) == iter &&
           tsr_u64_or(at, "micro", micro) == micro;
}

static tsr_status make_calls(struct tsr_trace_run *t, const char *when, uint32_t iter,
                             uint32_t micro)
{
    const struct tsr_yaml_node *calls = tsr_node_get(t->scenario->doc.root, "calls");
    for (size_t i = 0; calls && i < calls->n; i++) {
        const struct tsr_yaml_node *call = calls->items[i];
        if (!applies(tsr_node_get(call, "at"), when, iter, micro))
            continue;
        const struct tsr_yaml_node *args = tsr_node_get(call, "args");
        mark(t, json_pack("{s:s, s:s, s:s, s:o}", "e", "call", "fn", tsr_text_or(call, "fn", ""),
                          "module", tsr_text_or(call, "module", ""), "args",
                          args ? tsr_trace_value(args) : json_object()));
        const char *stage = t->stage;
        t->stage = "call";
        t->call = tsr_text_or(call, "fn", "");
        TSR_TRY(tsr_scenario_call(t->e, call, &t->lists));
        t->stage = stage;
    }
    return TSR_OK;
}

/* ---- an iteration ---------------------------------------------------------------------------- */

static bool is_no_grad(const struct tsr_yaml_node *train, uint32_t iter)
{
    const struct tsr_yaml_node *list = tsr_node_get(train, "no_grad_iters");
    uint64_t value;
    for (size_t i = 0; list && i < list->n; i++)
        if (tsr_node_u64(list->items[i], &value) && value == iter)
            return true;
    return false;
}

static tsr_status run_forward(struct tsr_trace_run *t, const struct tsr_yaml_node *train,
                              uint32_t iter, uint32_t micro)
{
    char key[16];
    struct tsr_module *entry = NULL;
    snprintf(key, sizeof key, "%u", iter);
    const struct tsr_yaml_node *at = tsr_node_get(tsr_node_get(train, "entry_at"), key);
    if (at)
        entry = tsr_module_find(t->e, at->text);
    TSR_TRY(make_calls(t, "before_forward", iter, micro));
    mark(t, json_pack("{s:s, s:i, s:i}", "e", "forward", "i", (int)iter, "micro", (int)micro));
    t->stage = "forward";
    TSR_TRY(tsr_step_forward(t->e, micro, entry, is_no_grad(train, iter)));
    return make_calls(t, "after_forward", iter, micro);
}

static tsr_status run_backward(struct tsr_trace_run *t, uint32_t iter, const uint32_t *micros,
                               size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(micros[i]));
    TSR_TRY(make_calls(t, "before_backward", iter, micros[0]));
    mark(t, json_pack("{s:s, s:i, s:o}", "e", "backward", "i", (int)iter, "micro", list));
    t->stage = "backward";
    TSR_TRY(tsr_step_backward(t->e, micros, n));
    if (t->buckets) {
        json_t *entry = json_pack("{s:i, s:i, s:o}", "iter", (int)iter, "micro", (int)micros[0],
                                  "buckets", tsr_trace_buckets(t->e));
        t->lists.failed |= json_array_append_new(t->buckets, entry) != 0;
    }
    return make_calls(t, "after_backward", iter, micros[0]);
}

/* Runs "F0", "B0" or "BS" (one backward of all pending losses). */
static tsr_status run_item(struct tsr_trace_run *t, const struct tsr_yaml_node *train,
                           uint32_t iter, const char *item, uint32_t *pending, size_t *n_pending)
{
    uint32_t micro = (uint32_t)strtoul(item + 1, NULL, 10);
    if (item[0] == 'F') {
        TSR_TRY(run_forward(t, train, iter, micro));
        pending[(*n_pending)++] = micro;
        return TSR_OK;
    }
    if (is_no_grad(train, iter))
        return TSR_OK;
    size_t n = *n_pending;
    if (!strcmp(item, "BS")) {
        *n_pending = 0;
        return run_backward(t, iter, pending, n);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (pending[i] != micro)
            pending[kept++] = pending[i];
    *n_pending = kept;
    return run_backward(t, iter, &micro, 1);
}

static tsr_status run_schedule(struct tsr_trace_run *t, const struct tsr_yaml_node *train,
                               uint32_t iter)
{
    const struct tsr_yaml_node *schedule = tsr_node_get(train, "schedule");
    uint32_t n_micro = (uint32_t)tsr_u64_or(train, "micro", 1), pending[128];
    size_t n_pending = 0;
    char item[16];
    for (size_t i = 0; schedule && i < schedule->n; i++)
        TSR_TRY(run_item(t, train, iter, schedule->items[i]->text, pending, &n_pending));
    for (uint32_t m = 0; !schedule && m < n_micro; m++) {
        snprintf(item, sizeof item, "F%u", m);
        TSR_TRY(run_item(t, train, iter, item, pending, &n_pending));
        item[0] = 'B';
        TSR_TRY(run_item(t, train, iter, item, pending, &n_pending));
    }
    return TSR_OK;
}

static tsr_status run_iteration(struct tsr_trace_run *t, const struct tsr_yaml_node *train,
                                uint32_t iter)
{
    mark(t, json_pack("{s:s, s:i}", "e", "iter", "i", (int)iter));
    TSR_TRY(tsr_step_begin(t->e, iter));
    TSR_TRY(run_schedule(t, train, iter));
    if (!is_no_grad(train, iter)) {
        mark(t, json_pack("{s:s, s:i}", "e", "optim_step", "i", (int)iter));
        if (t->probe)
            TSR_TRY(t->probe->gradients(t->probe->user, iter));
        TSR_TRY(tsr_step_optimizer(t->e));
    }
    TSR_TRY(make_calls(t, "after_step", iter, NO_INDEX));
    return tsr_step_end(t->e);
}

/* ---- one rank -------------------------------------------------------------------------------- */

tsr_status tsr_trace_create(struct tsr_trace_run *t, uint32_t rank)
{
    const char *kind = tsr_text_or(tsr_node_get(t->scenario->doc.root, "model"), "kind", "");
    struct tsr_trace_sink sink = {tsr_trace_event, &t->lists};
    struct tsr_engine_config config = {.mesh = t->scenario->mesh,
                                       .rank = rank,
                                       .executor = t->executor,
                                       .trace = &sink,
                                       .attention = strcmp(kind, "tree") ? TSR_ATTENTION_EAGER
                                                                         : TSR_SDPA_FLASH};
    t->stage = "wrap";
    t->lists.events = json_array();
    t->lists.stream_events = json_array();
    if (!t->lists.events || !t->lists.stream_events)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr_scenario_version(t->scenario, &config.version));
    TSR_TRY(tsr_engine_create(&config, &t->e));
    return tsr_scenario_model(t->scenario, t->e);
}

tsr_status tsr_trace_train(struct tsr_trace_run *t)
{
    const struct tsr_yaml_node *train = tsr_node_get(t->scenario->doc.root, "train");
    uint32_t iters = (uint32_t)tsr_u64_or(train, "iters", 1);
    t->stage = "wrap";
    if (!strcmp(t->scenario->kind, "ddp")) {
        TSR_TRY(tsr_scenario_ddp(t->scenario, t->e));
        t->buckets = json_array();
    } else {
        TSR_TRY(tsr_scenario_wrap(t->scenario, t->e));
    }
    TSR_TRY(tsr_scenario_step(t->scenario, t->e));
    TSR_TRY(tsr_engine_init_params(t->e));
    if (t->probe)
        TSR_TRY(t->probe->ready(t->probe->user));
    TSR_TRY(make_calls(t, "after_wrap", NO_INDEX, NO_INDEX));
    t->stage = "forward";
    for (uint32_t i = 0; i < iters; i++)
        TSR_TRY(run_iteration(t, train, i));
    return t->lists.failed ? tsr_no_memory(NULL) : TSR_OK;
}

void tsr_trace_fini(struct tsr_trace_run *t)
{
    json_decref(t->lists.events);
    json_decref(t->lists.stream_events);
    json_decref(t->buckets);
    tsr_engine_destroy(t->e);
}
