/* test_fsdp1.c: the programs of api fsdp1 must do what PyTorch's FullyShardedDataParallel did: the
 * same hooks, allocations, stream waits, freed parameters, waits of the host, collectives, casts,
 * divisions and sums, with the same sizes and dtypes, on the same streams, in the same order. The
 * checker reads the programs on the way and finds nothing. So must the programs of the same model
 * that comes as a trace (golden-fsdp1/traces/), and of models that are not built in.
 *
 * tests/golden-fsdp1/README.md has the format of the recordings.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/check/check.h"
#include "engine/tessera.h"
#include "engine/traced/traced_model.h"
#include "experiments/study/model/trace_file.h"
#include "tests/conformance/golden_testing.h"

struct run {
    const json_t *scenario;
    struct tsr_recorder recorder;
    struct tsr_checker *checker;
    struct tsr_program step;
    struct tsr_engine *e;
    bool is_traced;
    struct tsr_traced_file trace;
    json_t *events;
    size_t n_free;
    uint32_t free_events[4096];
    uint16_t caller; /* stream that handed the next collective to NCCL's */
};

static void ok(tsr_status status)
{
    if (status != TSR_OK)
        fail_msg("%s: %s", tsr_status_class(status), tsr_error_text());
}

/* ---- the scenario ---------------------------------------------------------------------------- */

static uint64_t number(const struct run *r, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(r->scenario, key));
}

static bool flag(const struct run *r, const char *key)
{
    return json_is_true(json_object_get(r->scenario, key));
}

static const char *word(const struct run *r, const char *key)
{
    const char *text = json_string_value(json_object_get(r->scenario, key));
    return text ? text : "none";
}

static tsr_dtype dtype(const struct run *r, const char *key)
{
    const char *name = word(r, key);
    return !strcmp(name, "bf16") ? TSR_BF16 : !strcmp(name, "f32") ? TSR_F32 : TSR_DTYPE_NONE;
}

static void add_model(struct run *r)
{
    uint64_t w = number(r, "width"), inner = number(r, "inner"), v = number(r, "vocab");
    struct tsr_tree_node block[3] = {
        {.name = "up", .type = TSR_TREE_LINEAR, .in = w, .out = inner, .bias = true},
        {.name = "act", .type = TSR_TREE_GELU},
        {.name = "down", .type = TSR_TREE_LINEAR, .in = inner, .out = w, .bias = true}};
    struct tsr_tree_node nodes[16] = {
        {.name = "embed", .type = TSR_TREE_EMBEDDING, .in = v, .out = w}};
    char names[8][8];
    size_t n = 1;
    for (; n <= number(r, "blocks"); n++) {
        snprintf(names[n - 1], sizeof names[n - 1], "b%zu", n - 1);
        nodes[n] = (struct tsr_tree_node){.name = names[n - 1],
                                          .type = TSR_TREE_SEQ,
                                          .residual = true,
                                          .n_children = 3,
                                          .children = block};
    }
    nodes[n++] = (struct tsr_tree_node){.name = "norm", .type = TSR_TREE_LAYERNORM, .in = w};
    nodes[n++] = (struct tsr_tree_node){.name = "head", .type = TSR_TREE_LINEAR, .in = w, .out = v};
    struct tsr_tree_config config = {
        .root = {.type = TSR_TREE_SEQ, .n_children = n, .children = nodes}, .tokens = v};
    ok(tsr_model_tree(r->e, &config));
    if (flag(r, "tied"))
        ok(tsr_param_tie(r->e, "head.weight", "embed.weight"));
}

/* Returns whether the scenario names a model that is not built in. */
static bool is_other(const json_t *scenario)
{
    return json_object_get(scenario, "model") != NULL;
}

/* The trace of the scenario's model (tests/oracle/fsdp1/trace.py gives the names). */
static void add_trace(struct run *r)
{
    char path[512], model[64];
    snprintf(model, sizeof model, "%dx%d", (int)number(r, "blocks"), (int)number(r, "width"));
    snprintf(path, sizeof path, "%s/tests/golden-fsdp1/traces/%s-%s%s%s.trace", TSR_SOURCE_DIR,
             is_other(r->scenario) ? word(r, "model") : model,
             strcmp(word(r, "param"), "none") ? word(r, "param") : "f32",
             flag(r, "tied") ? "-tied" : "",
             strcmp(word(r, "checkpoint"), "none") ? "-checkpoint" : "");
    ok(tsr_traced_file_load(path, &r->trace));
    tsr_traced_file_choose(&r->trace, r->trace.variants);
    ok(tsr_model_traced(r->e, &r->trace.model));
}

static void wrap(struct run *r, const char *name, const struct tsr_fsdp1_options *options)
{
    struct tsr_module *m = tsr_module_find(r->e, name);
    assert_non_null(m);
    const char *checkpoint = word(r, "checkpoint");
    if (*name == 'b' && strcmp(checkpoint, "none") && !r->is_traced)
        ok(tsr_checkpoint(r->e, m, !strcmp(checkpoint, "outside"), true));
    ok(tsr_fsdp1(r->e, m, options));
}

static void wrap_all(struct run *r)
{
    const char *prefetch = word(r, "backward_prefetch"), *what = word(r, "wrap");
    struct tsr_fsdp1_options options = {
        .keep_after_forward = flag(r, "keep"),
        .mp = {.param = dtype(r, "param"), .reduce = dtype(r, "reduce")},
        .backward_prefetch = !strcmp(prefetch, "pre")    ? TSR_FSDP1_BACKWARD_PRE
                             : !strcmp(prefetch, "post") ? TSR_FSDP1_BACKWARD_POST
                                                         : TSR_FSDP1_NO_PREFETCH,
        .forward_prefetch = flag(r, "forward_prefetch"),
        .no_limit = !flag(r, "limit")};
    const json_t *units = json_object_get(r->scenario, "units");
    for (size_t i = 0; i < json_array_size(units); i++)
        wrap(r, json_string_value(json_array_get(units, i)), &options);
    for (uint64_t i = 0; strcmp(what, "root") && i < number(r, "blocks"); i++) {
        char name[8];
        snprintf(name, sizeof name, "b%d", (int)i);
        wrap(r, name, &options);
    }
    if (!strcmp(what, "all")) {
        wrap(r, "embed", &options);
        wrap(r, "norm", &options);
        wrap(r, "head", &options);
    }
    wrap(r, "", &options);
}

static struct tsr_mesh mesh_of(const struct run *r)
{
    const json_t *shape = json_object_get(r->scenario, "mesh");
    struct tsr_mesh mesh = {1, {(uint32_t)number(r, "world")}, {"shard"}};
    if (flag(r, "none"))
        mesh = (struct tsr_mesh){2, {(uint32_t)number(r, "world"), 1}, {"replicate", "shard"}};
    if (json_array_size(shape) == 2)
        mesh = (struct tsr_mesh){2,
                                 {(uint32_t)json_integer_value(json_array_get(shape, 0)),
                                  (uint32_t)json_integer_value(json_array_get(shape, 1))},
                                 {"replicate", "shard"}};
    return mesh;
}

static void open_run(struct run *r, const json_t *scenario, bool is_traced)
{
    *r = (struct run){.scenario = scenario, .is_traced = is_traced};
    tsr_recorder_init(&r->recorder, &r->step);
    struct tsr_engine_config config = {.mesh = mesh_of(r)};
    struct tsr_checker_config check = {.world = (uint32_t)number(r, "world")};
    ok(tsr_checker_create(&check, &r->checker));
    ok(tsr_checker_rank(r->checker, 0, NULL, &r->recorder.base, &config.executor));
    ok(tsr_engine_create(&config, &r->e));
    tsr_checker_set_tables(r->checker, 0, tsr_engine_tables(r->e));
    tsr_program_init(&r->step, tsr_engine_tables(r->e));
    if (is_traced)
        add_trace(r);
    else
        add_model(r);
    wrap_all(r);
    struct tsr_step_config step = {.batch = is_other(scenario) ? 1 : number(r, "batch"),
                                   .seq = is_other(scenario) ? 1 : number(r, "seq"),
                                   .n_micro = (uint32_t)number(r, "micro"),
                                   .optimizer = TSR_OPT_ADAMW_FOREACH,
                                   .clip = flag(r, "clip"),
                                   .accumulate = flag(r, "no_sync") ? TSR_ACCUM_NO_REDUCE
                                                                    : TSR_ACCUM_REDUCE_EACH};
    ok(tsr_step_configure(r->e, &step));
    ok(tsr_engine_init_params(r->e));
}

static void close_run(struct run *r)
{
    tsr_program_fini(&r->step);
    tsr_engine_destroy(r->e);
    tsr_checker_destroy(r->checker);
    if (r->is_traced)
        tsr_traced_file_fini(&r->trace);
    json_decref(r->events);
}

/* ---- a program as events --------------------------------------------------------------------- */

static const char *stream_name(const struct run *r, uint16_t stream)
{
    return r->step.tables->streams[stream].name;
}

/* The recordings were made on a CPU, where autograd does not go to the stream that views were made
 * on: what ran on `unshard` in backward without a hook of its own is on the default stream there.
 */
static const char *recorded_stream(const struct run *r, const struct tsr_instr *in)
{
    const char *name = stream_name(r, in->stream);
    bool is_autograd =
        in->origin.hook == TSR_HOOK_POST_BACKWARD || in->origin.hook == TSR_HOOK_NONE;
    return is_autograd && !strcmp(name, "unshard") ? "default" : name;
}

static bool is_nccl(const struct run *r, uint16_t stream)
{
    return !strncmp(stream_name(r, stream), "nccl", 4);
}

static void add(struct run *r, json_t *event)
{
    assert_non_null(event);
    json_array_append_new(r->events, event);
}

/* RECORD and WAIT in a row are wait_stream(); around NCCL's stream they are c10d's own. */
static void add_record(struct run *r, size_t i)
{
    const struct tsr_instr *in = &r->step.instrs[i], *next = in + 1;
    bool waits = i + 1 < r->step.n_instrs && next->kind == TSR_WAIT && next->event == in->event;
    if (waits && is_nccl(r, next->stream)) {
        r->caller = in->stream;
    } else if (in->origin.hook == TSR_HOOK_NONE) {
        return; /* autograd's own */
    } else if (waits && !is_nccl(r, in->stream)) {
        add(r,
            json_pack("[s, s, s]", "wait", stream_name(r, next->stream), recorded_stream(r, in)));
    } else if (!waits) {
        assert_in_range(r->n_free, 0, 4095);
        r->free_events[r->n_free++] = in->event;
        add(r, json_pack("[s, s]", "free", recorded_stream(r, in)));
    }
}

static void add_host_wait(struct run *r, const struct tsr_instr *in)
{
    size_t n = 0;
    while (n < r->n_free && r->free_events[n] != in->event)
        n++;
    if (in->origin.hook != TSR_HOOK_NONE)
        add(r, json_pack("[s, I]", "host_wait", (json_int_t)(n < r->n_free ? n + 1 : 0)));
}

static void add_mark(struct run *r, const struct tsr_instr *in)
{
    static const char *const names[TSR_N_MARKS] = {[TSR_MARK_PRE_FORWARD] = "pre_forward",
                                                   [TSR_MARK_POST_FORWARD] = "post_forward",
                                                   [TSR_MARK_PRE_BACKWARD] = "pre_backward",
                                                   [TSR_MARK_POST_BACKWARD] = "post_backward"};
    if (names[in->mark])
        add(r, json_pack("[s, s]", names[in->mark], r->step.tables->modules[in->origin.module]));
}

static void add_sized(struct run *r, const char *what, uint64_t bytes, uint8_t type,
                      const char *stream)
{
    uint64_t numel = bytes / tsr_dtype_bytes((tsr_dtype)type);
    add(r, json_pack("[s, I, s, s]", what, (json_int_t)numel, tsr_dtype_name((tsr_dtype)type),
                     stream));
}

static void add_work(struct run *r, const struct tsr_instr *in)
{
    static const char *const kernels[][2] = {
        {"div", "div"}, {"accumulate_sharded_grad", "add"}, {"cat_flat_grad", "cat"}};
    bool hooked = in->origin.hook != TSR_HOOK_NONE;
    if (in->kind == TSR_COPY && hooked)
        add_sized(r, "cast", in->bytes, in->dtype, stream_name(r, in->stream));
    for (size_t k = 0; in->kind == TSR_OP && k < 3; k++)
        if (!strcmp(in->work->name, kernels[k][0]) && (hooked || k == 2))
            add_sized(r, kernels[k][1], in->work->bytes_written, in->dtype, recorded_stream(r, in));
}

static void add_collective(struct run *r, const struct tsr_instr *in)
{
    const char *name = in->kind == TSR_ALL_GATHER       ? "all_gather"
                       : in->kind == TSR_REDUCE_SCATTER ? "reduce_scatter"
                                                        : "all_reduce";
    uint16_t stream = is_nccl(r, in->stream) ? r->caller : in->stream;
    add_sized(r, name, in->bytes, in->dtype, stream_name(r, stream));
    json_array_append_new(json_array_get(r->events, json_array_size(r->events) - 1),
                          json_integer(r->step.tables->comms[in->comm].size));
}

/* Of unsharded parameters and cast shards; both have the dtype of computation. */
static void add_alloc(struct run *r, const struct tsr_instr *in)
{
    tsr_dtype type = dtype(r, "param") != TSR_DTYPE_NONE ? dtype(r, "param") : TSR_F32;
    if (in->category == TSR_CAT_ALL_GATHER || in->category == TSR_CAT_ALL_GATHER_INPUT ||
        in->category == TSR_CAT_UNSHARDED_PARAM)
        add_sized(r, "alloc", in->bytes, (uint8_t)type, stream_name(r, in->stream));
}

static void add_event(struct run *r, size_t i)
{
    const struct tsr_instr *in = &r->step.instrs[i];
    switch (in->kind) {
    case TSR_ALLOC:
        add_alloc(r, in);
        break;
    case TSR_RECORD:
        add_record(r, i);
        break;
    case TSR_HOST_WAIT:
        add_host_wait(r, in);
        break;
    case TSR_MARK:
        add_mark(r, in);
        break;
    case TSR_COPY:
    case TSR_OP:
        add_work(r, in);
        break;
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
        add_collective(r, in);
        break;
    default:
        break;
    }
}

static void program_events(struct run *r)
{
    json_decref(r->events);
    r->events = json_array();
    for (size_t i = 0; i < r->step.n_instrs; i++)
        add_event(r, i);
    const struct tsr_tables *tables = r->step.tables;
    tsr_program_fini(&r->step);
    tsr_program_init(&r->step, tables);
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* A collective of one rank is none here. */
static json_t *recorded(const json_t *events)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        if (json_array_size(event) < 5 || json_integer_value(json_array_get(event, 4)) > 1)
            json_array_append(out, event);
    }
    return out;
}

static void evaluate(struct run *r)
{
    ok(tsr_step_begin(r->e, 0));
    ok(tsr_step_forward(r->e, 0, NULL, true));
    ok(tsr_step_end(r->e));
}

static int check(const char *name, const json_t *gold, bool is_traced)
{
    struct run r;
    const json_t *iterations = json_object_get(gold, "iterations");
    int bad = 0;
    open_run(&r, json_object_get(gold, "scenario"), is_traced);
    if (flag(&r, "eval_first"))
        evaluate(&r);
    program_events(&r); /* what was freed so far counts */
    for (size_t i = 0; i < json_array_size(iterations); i++) {
        ok(tsr_step_run(r.e, (uint32_t)i));
        program_events(&r);
        json_t *want = recorded(json_array_get(iterations, i));
        if (!same(want, r.events)) {
            char key[64];
            snprintf(key, sizeof key, "iteration %zu%s", i, is_traced ? ", traced" : "");
            print_difference(name, key, want, r.events);
            bad++;
        }
        json_decref(want);
    }
    ok(tsr_checker_finish(r.checker));
    for (size_t i = 0; i < tsr_checker_n_findings(r.checker); i++, bad++)
        fprintf(stderr, "%s: %s\n", name, tsr_checker_finding(r.checker, i)->headline);
    close_run(&r);
    return bad;
}

static void test_recordings(void **state)
{
    (void)state;
    const char *folder = TSR_SOURCE_DIR "/tests/golden-fsdp1";
    int bad = 0, n = 0, n_traced = 0, n_others = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));) {
        size_t length = strlen(d->d_name);
        if (length < 5 || strcmp(d->d_name + length - 5, ".json"))
            continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        json_t *gold = json_load_file(path, 0, NULL);
        assert_non_null(gold);
        const json_t *scenario = json_object_get(gold, "scenario");
        if (!is_other(scenario))
            bad += check(d->d_name, gold, false) != 0;
        n++;
        if (!json_is_true(json_object_get(scenario, "eval_first"))) { /* which no trace has */
            bad += check(d->d_name, gold, true) != 0;
            n_traced++;
            n_others += is_other(scenario);
        }
        json_decref(gold);
    }
    closedir(dir);
    assert_true(n >= 37 && n_traced >= 36 && n_others >= 12);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recordings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
