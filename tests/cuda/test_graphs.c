/* test_graphs.c: steps that repeat run as CUDA graphs, and nobody can tell but by the number of
 * launches: losses, executed hashes and memory are those of the host and of launches one by one, in
 * whatever order a graph runs its nodes. And stream capture of the stand-in is as strict as CUDA's.
 */
#include <math.h>

#include "engine/replay/replay_impl.h"
#include "exec/cuda/device/cuda_device.h"
#include "exec/cuda/gpu/slow.h"
#include "tests/exec/jobs_testing.h"
#include "tests/standin/standin.h"

enum { STEPS = 10 };

/* ---- one rank on the stand-in ---------------------------------------------------------------- */

struct outcome {
    double losses[STEPS], norms[STEPS];
    uint64_t hashes[STEPS], peaks[STEPS];
    uint64_t graphs, launches; /* calls of CUDA */
    uint64_t slow;             /* ways that were slow */
    uint64_t replayed;
    tsr_status status;
    char text[JOB_TEXT];
};

struct how {
    bool direct, poison, nccl;
    unsigned allow_slow;
    bool error_left; /* by calls of CUDA before the run */
    uint32_t delay_us;
    uint64_t seed;
    const char *fails; /* an entry point; NULL: none */
    uint64_t nth;
};

static void open_job(const char *strategy, struct strategies *s, struct tsr_job *job)
{
    const char *const sets[] = {"world=1"};
    const struct tsr_strategy *found;
    snprintf(s->path, sizeof s->path, "%s/tests/exec/strategies.yaml", TSR_SOURCE_DIR);
    job_ok(tsr_experiment_load(s->path, sets, 1, &s->file));
    job_ok(tsr_experiment_find(&s->file, strategy, &found));
    job_ok(tsr_job_open(&s->file, found, TSR_MAY_LACK_CLUSTER, job));
    job->executes = true;
    assert_int_equal(job->world, 1);
}

/* The learning rate changes from step to step. */
static void set_scalars(struct tsr_executor *x, const struct tsr_job *job, uint32_t i)
{
    job_set_scalars(x, job, i + 1);
    tsr_exec_set_scalar(x, TSR_SCALAR_LR, 0.002 * (i + 1));
}

static tsr_status run_steps(struct job_rank *r, struct outcome *out)
{
    struct tsr_step_cache *cache = NULL;
    tsr_status status = tsr_engine_init_params(r->engine);
    if (status == TSR_OK) /* the hash is reset below */
        status = r->executor->ops->drain(r->executor);
    if (status == TSR_OK)
        status = tsr_step_cache_create(r->engine, &cache);
    for (uint32_t i = 0; i < STEPS && status == TSR_OK; i++) {
        test_exec_reset(r->executor, true);
        set_scalars(r->executor, r->job, i);
        status = tsr_step_run_cached(cache, i);
        if (status == TSR_OK)
            status = r->executor->ops->drain(r->executor);
        if (status != TSR_OK)
            break;
        out->losses[i] = r->losses[i][0];
        out->norms[i] = r->norms[i];
        out->hashes[i] = tsr_exec_hash(r->executor);
        out->peaks[i] = tsr_exec_memory(r->executor).peak_allocated;
    }
    if (cache)
        out->replayed = cache->stats.replayed;
    tsr_step_cache_destroy(cache);
    return status;
}

static uint64_t calls_of(const char *entry)
{
    const char *name;
    uint64_t calls;
    for (size_t i = 0; tsr_standin_called(i, &name, &calls); i++)
        if (!strcmp(name, entry))
            return calls;
    return 0;
}

/* NCCL's communicator of one rank. */
static struct tsr_comms *open_nccl(struct job_rank *r)
{
    struct tsr_comms *comms;
    job_ok(tsr_world_threads(1, 60, &r->world));
    const struct tsr_comms_config config = {.world = r->world, .timeout_s = 20, .force = true};
    job_ok(tsr_comms_nccl(&config, &comms));
    return comms;
}

static void run_on_standin(const struct tsr_job *job, const struct how *how, struct outcome *out)
{
    struct tsr_standin_config config = tsr_standin_default();
    struct job_rank *r = calloc(1, sizeof *r);
    const struct tsr_source source = {
        .user = r, .init = job_init, .batch = job_batch, .report = job_report};
    assert_non_null(r);
    config.delay_us = how->delay_us;
    config.seed = how->seed;
    tsr_standin_configure(&config);
    struct tsr_comms *comms = how->nccl ? open_nccl(r) : NULL;
    const struct tsr_cuda_rank_config rank = {.comms = comms,
                                              .world = r->world,
                                              .source = &source,
                                              .direct = how->direct,
                                              .poison = how->poison,
                                              .allow_slow = how->allow_slow,
                                              .timeout_s = 20};
    *out = (struct outcome){.status = TSR_OK};
    r->job = job;
    if (how->error_left)
        assert_int_not_equal(cudaSetDevice(99), cudaSuccess);
    job_ok(tsr_cuda_rank_create(&rank, &r->executor, NULL));
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess); /* cuBLASLt would take it for its own */
    job_ok(tsr_build(job, 0, r->executor, &r->engine));
    tsr_exec_set_tables(r->executor, tsr_engine_tables(r->engine));
    if (how->fails)
        tsr_standin_fail(how->fails, how->nth, cudaErrorUnknown);
    out->status = run_steps(r, out);
    if (out->status == TSR_OK) /* nothing is left for cuBLASLt to find */
        assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    else
        snprintf(out->text, sizeof out->text, "%s", tsr_error_text());
    out->slow = tsr_exec_count_slow(r->executor);
    r->executor->ops->destroy(r->executor);
    tsr_engine_destroy(r->engine);
    if (r->world)
        r->world->ops->destroy(r->world);
    out->graphs = calls_of("cudaGraphLaunch");
    out->launches = calls_of("cudaLaunchKernel");
    assert_int_equal(tsr_standin_live(), 0);
    free(r);
}

static void run_on_host(const struct tsr_job *job, struct outcome *out)
{
    struct job_rank *r = calloc(1, sizeof *r);
    const struct job_config config = {.n_steps = STEPS};
    assert_non_null(r);
    *out = (struct outcome){.status = TSR_OK};
    r->job = job;
    r->config = &config;
    job_ok(tsr_world_threads(1, 60, &r->world));
    tsr_recorder_init(&r->recorder, &r->programs[0]);
    tsr_program_init(&r->programs[0], NULL);
    job_ok(job_make(r));
    job_ok(run_steps(r, out));
    r->executor->ops->destroy(r->executor);
    r->world->ops->destroy(r->world);
    tsr_program_fini(&r->programs[0]);
    tsr_engine_destroy(r->engine);
    free(r);
}

static void compare(const char *what, const struct outcome *a, const struct outcome *b)
{
    if (a->status != TSR_OK || b->status != TSR_OK)
        fail_msg("%s: %s%s", what, a->text, b->text);
    for (int i = 0; i < STEPS; i++) {
        if (a->losses[i] != b->losses[i] || a->norms[i] != b->norms[i])
            fail_msg("%s, step %d: loss %.9g and norm %.9g, not %.9g and %.9g", what, i,
                     b->losses[i], b->norms[i], a->losses[i], a->norms[i]);
        assert_int_equal(a->hashes[i], b->hashes[i]);
        assert_int_equal(a->peaks[i], b->peaks[i]);
    }
}

/* ---- tests of graphs ------------------------------------------------------------------------- */

/* Sanitizers are slow: every so many strategies, and fewer orders. */
#if defined(__SANITIZE_THREAD__)
enum { EVERY = 8, ORDERS = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { EVERY = 2, ORDERS = 2 };
#else
enum { EVERY = 1, ORDERS = 4 };
#endif

static const char *const strategies_with_graphs[] = {
    "fsdp", "keep", "checkpoint", "accumulate", "foreach", "mirror-one", "ddp", "bf16"};

static void graphs__every_strategy__as_one_by_one_and_as_the_host(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof strategies_with_graphs / sizeof *strategies_with_graphs;
         i += EVERY) {
        const char *name = strategies_with_graphs[i];
        struct strategies s;
        struct tsr_job job;
        struct outcome host, direct, graphs;
        open_job(name, &s, &job);
        run_on_host(&job, &host);
        run_on_standin(&job, &(struct how){.direct = true}, &direct);
        run_on_standin(&job, &(struct how){.delay_us = 20, .seed = 1 + i}, &graphs);
        printf("%-12s replayed %2llu, graphs %2llu\n", name, (unsigned long long)graphs.replayed,
               (unsigned long long)graphs.graphs);
        compare(name, &direct, &graphs);
        for (int k = 0; k < STEPS; k++)
            assert_true(fabs(host.losses[k] - graphs.losses[k]) <=
                        1e-3 * fabs(host.losses[k]) + 1e-6);
        assert_int_equal(direct.graphs, 0);
        assert_true(graphs.replayed > 0 && graphs.graphs >= graphs.replayed);
        tsr_job_close(&job);
        strategies_close(&s);
    }
}

static void graphs__nodes_in_other_orders__same_bits(void **state)
{
    struct strategies s;
    struct tsr_job job;
    struct outcome first, other;
    (void)state;
    open_job("fsdp", &s, &job);
    run_on_standin(&job, &(struct how){.seed = 1}, &first);
    for (uint64_t seed = 2; seed < 2 + ORDERS; seed++) {
        run_on_standin(&job, &(struct how){.seed = seed, .poison = true}, &other);
        compare("another order", &first, &other);
    }
    tsr_job_close(&job);
    strategies_close(&s);
}

/* NCCL's calls are captured, too, and its communicators go after the graphs. */
static void graphs__nccl__same_bits_and_it_ends(void **state)
{
    struct strategies s;
    struct tsr_job job;
    struct outcome direct, graphs;
    (void)state;
    open_job("ddp", &s, &job);
    run_on_standin(&job, &(struct how){.nccl = true, .direct = true}, &direct);
    run_on_standin(&job, &(struct how){.nccl = true, .seed = 3}, &graphs);
    compare("NCCL", &direct, &graphs);
    assert_true(graphs.graphs > 0 && calls_of("ncclAllReduce") > 0);
    tsr_job_close(&job);
    strategies_close(&s);
}

/* A job, and what launches one by one make of it. */
struct known {
    struct strategies s;
    struct tsr_job job;
    struct outcome direct;
};

static void open_known(struct known *k)
{
    open_job("fsdp", &k->s, &k->job);
    run_on_standin(&k->job, &(struct how){.direct = true}, &k->direct);
}

/* Returns how many slow ways were counted. */
static uint64_t run_as_known(struct known *k, const char *what, const struct how *how)
{
    struct outcome out;
    run_on_standin(&k->job, how, &out);
    compare(what, &k->direct, &out);
    return out.slow;
}

static void close_known(struct known *k)
{
    tsr_job_close(&k->job);
    strategies_close(&k->s);
}

/* What cannot be captured is launched one by one. */
static void graphs__capture_fails__run_goes_on(void **state)
{
    static const struct {
        const char *entry;
        uint64_t nth;
        bool poison;
    } cases[] = {{"cudaStreamBeginCapture", 1, false},
                 {"cudaStreamEndCapture", 1, false},
                 {"cudaGraphInstantiate", 1, false},
                 {"cudaGraphUpload", 1, false},
                 {"(captured)", 1, false},
                 {"(captured)", 2, true},
                 {"(captured)", 30, true}};
    struct known k;
    (void)state;
    open_known(&k);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct how how = {
            .fails = cases[i].entry, .nth = cases[i].nth, .poison = cases[i].poison};
        bool is_lost = strcmp(cases[i].entry, "cudaGraphUpload") != 0; /* the launch does it then */
        assert_int_equal(run_as_known(&k, cases[i].entry, &how), is_lost);
        assert_true(tsr_standin_failed());
    }
    close_known(&k);
}

/* A job of 16 bits expects graphs: it fails, unless the user has allowed to go on without. */
static void graphs__capture_fails_in_16_bits__refused_unless_allowed(void **state)
{
    struct strategies s;
    struct tsr_job job;
    struct outcome out;
    static const char *const entries[] = {"(captured)", "cudaStreamBeginCapture"};
    (void)state;
    open_job("mirror-one", &s, &job);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        struct how how = {.fails = entries[i], .nth = 1};
        run_on_standin(&job, &how, &out);
        assert_int_equal(out.status, TSR_EUNSUPPORTED);
        assert_non_null(strstr(out.text, "allowed: with --allow-slow graph"));
        how.allow_slow = 1u << TSR_SLOW_GRAPH;
        run_on_standin(&job, &how, &out);
        assert_int_equal(out.status, TSR_OK);
        assert_int_equal(out.slow, 1);
    }
    run_on_standin(&job, &(struct how){.direct = true}, &out); /* the user's wish is no slow way */
    assert_int_equal(out.status, TSR_OK);
    assert_int_equal(out.slow, 0);
    tsr_job_close(&job);
    strategies_close(&s);
}

/* Scalars of a stream that a capture is the first to use change from launch to launch, too. */
static void graphs__stream_used_first_in_a_capture__reads_the_table(void **state)
{
    struct tsr_standin_config config = tsr_standin_default();
    struct tsr_device *device;
    double scalars[TSR_N_SCALARS] = {0};
    float *memory;
    (void)state;
    tsr_standin_configure(&config);
    assert_int_equal(
        tsr_cuda_device_create(&(struct tsr_cuda_device_config){.timeout_s = 20}, &device), TSR_OK);
    assert_int_equal(cudaMalloc((void **)&memory, 2 * sizeof *memory), cudaSuccess);
    memory[0] = 2;
    const struct tsr_view views[] = {
        {.data = memory, .bytes = sizeof *memory, .dtype = TSR_F32, .access = TSR_READ},
        {.data = memory + 1,
         .bytes = sizeof *memory,
         .dtype = TSR_F32,
         .slot = 1,
         .access = TSR_WRITE}};
    const struct tsr_work work = {.name = "mul_max_norm", .op = TSR_OP_POINTWISE};
    const struct tsr_device_ops *ops = device->ops;
    const struct tsr_task task = {
        .kind = TSR_TASK_KERNEL,
        .kernel = ops->kernel(work.name),
        .call = {.work = &work, .n_views = 2, .views = views, .scalars = scalars}};
    job_ok(ops->graphs->capture_begin(device, 77));
    job_ok(ops->submit(device, 5, &task));
    job_ok(ops->graphs->capture_end(device, true));
    for (int i = 1; i <= 3; i++) {
        scalars[TSR_SCALAR_MAX_NORM] = i;
        job_ok(ops->graphs->run_begin(device, 77));
        job_ok(ops->graphs->run_end(device, scalars));
        job_ok(ops->drain(device));
        assert_true(memory[1] == 2.0f * (float)i);
    }
    ops->destroy(device);
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

static void graphs__error_left_before__is_not_the_runs(void **state)
{
    struct known k;
    (void)state;
    open_known(&k);
    (void)run_as_known(&k, "an error left", &(struct how){.error_left = true});
    close_known(&k);
}

static void graphs__launch_fails__run_fails(void **state)
{
    struct strategies s;
    struct tsr_job job;
    struct outcome out;
    (void)state;
    open_job("fsdp", &s, &job);
    run_on_standin(&job, &(struct how){.fails = "cudaGraphLaunch", .nth = 2}, &out);
    assert_int_equal(out.status, TSR_EBACKEND);
    assert_non_null(strstr(out.text, "a graph: CUDA says"));
    tsr_job_close(&job);
    strategies_close(&s);
}

/* ---- tests of capture ------------------------------------------------------------------------ */

struct streams {
    cudaStream_t a, b;
    cudaEvent_t fork, join;
    int *pinned;
};

static void open_streams(struct streams *s)
{
    const struct tsr_standin_config config = tsr_standin_default();
    tsr_standin_configure(&config);
    assert_int_equal(cudaStreamCreateWithFlags(&s->a, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&s->b, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming), 0);
    assert_int_equal(cudaEventCreateWithFlags(&s->join, cudaEventDisableTiming), 0);
    assert_int_equal(cudaHostAlloc((void **)&s->pinned, 64, cudaHostAllocDefault), 0);
}

static void close_streams(struct streams *s)
{
    (void)cudaEventDestroy(s->fork);
    (void)cudaEventDestroy(s->join);
    (void)cudaStreamDestroy(s->a);
    (void)cudaStreamDestroy(s->b);
    (void)cudaFreeHost(s->pinned);
    assert_int_equal(tsr_standin_live(), 0);
}

static int add_one(void *data)
{
    ++**(int **)data;
    return 0;
}

static int twice(void *data)
{
    **(int **)data *= 2;
    return 0;
}

/* a: +1, fork; b: x 2; join; a: +1. */
static cudaError_t capture_diamond(struct streams *s, bool forks, bool joins, cudaGraph_t *graph)
{
    assert_int_equal(cudaStreamBeginCapture(s->a, cudaStreamCaptureModeRelaxed), 0);
    assert_int_equal(tsr_standin_enqueue(s->a, add_one, &s->pinned, sizeof s->pinned), 0);
    if (forks) {
        assert_int_equal(cudaEventRecord(s->fork, s->a), 0);
        assert_int_equal(cudaStreamWaitEvent(s->b, s->fork, 0), 0);
        assert_int_equal(tsr_standin_enqueue(s->b, twice, &s->pinned, sizeof s->pinned), 0);
    }
    if (joins) {
        assert_int_equal(cudaEventRecord(s->join, s->b), 0);
        assert_int_equal(cudaStreamWaitEvent(s->a, s->join, 0), 0);
    }
    assert_int_equal(tsr_standin_enqueue(s->a, add_one, &s->pinned, sizeof s->pinned), 0);
    return cudaStreamEndCapture(s->a, graph);
}

static void capture__fork_and_join__runs_at_each_launch(void **state)
{
    struct streams s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n;
    (void)state;
    open_streams(&s);
    *s.pinned = 5;
    assert_int_equal(capture_diamond(&s, true, true, &graph), 0);
    assert_int_equal(cudaGraphGetNodes(graph, NULL, &n), 0);
    assert_int_equal(n, 3);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    assert_int_equal(cudaStreamSynchronize(s.a), 0);
    assert_int_equal(*s.pinned, 5); /* nothing ran yet */
    assert_int_equal(cudaGraphLaunch(exec, s.b), 0);
    assert_int_equal(cudaGraphLaunch(exec, s.b), 0);
    assert_int_equal(cudaGraphExecDestroy(exec), 0); /* on its way */
    assert_int_equal(cudaStreamSynchronize(s.b), 0);
    assert_int_equal(*s.pinned, 2 * (2 * 6 + 1 + 1) + 1);
    close_streams(&s);
}

static void capture__stream_does_not_join__refused(void **state)
{
    struct streams s;
    cudaGraph_t graph;
    (void)state;
    open_streams(&s);
    assert_int_equal(capture_diamond(&s, true, false, &graph), cudaErrorStreamCaptureUnjoined);
    assert_null(graph);
    assert_int_equal(tsr_standin_enqueue(s.b, add_one, &s.pinned, sizeof s.pinned), 0);
    assert_int_equal(cudaStreamSynchronize(s.b), 0); /* both are free again */
    assert_int_equal(cudaStreamSynchronize(s.a), 0);
    close_streams(&s);
}

static void capture__forbidden_calls__refused_and_capture_lost(void **state)
{
    struct streams s;
    cudaGraph_t graph;
    void *memory;
    (void)state;
    open_streams(&s);
    assert_int_equal(cudaEventRecord(s.join, s.b), 0); /* outside of the capture */
    assert_int_equal(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeRelaxed), 0);
    assert_int_equal(cudaStreamWaitEvent(s.a, s.join, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeRelaxed), 0);
    assert_int_equal(cudaMalloc(&memory, 64), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamSynchronize(s.a), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeRelaxed), 0);
    assert_int_equal(cudaEventRecord(s.fork, s.a), 0);
    assert_int_equal(cudaEventQuery(s.fork), cudaErrorCapturedEvent);
    assert_int_equal(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamWaitEvent(s.b, s.fork, 0), cudaErrorCapturedEvent);
    assert_int_equal(cudaEventRecord(s.fork, s.a), 0); /* an event like any other again */
    assert_int_equal(cudaStreamWaitEvent(s.b, s.fork, 0), 0);
    close_streams(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capture__fork_and_join__runs_at_each_launch),
        cmocka_unit_test(graphs__capture_fails_in_16_bits__refused_unless_allowed),
        cmocka_unit_test(capture__stream_does_not_join__refused),
        cmocka_unit_test(capture__forbidden_calls__refused_and_capture_lost),
        cmocka_unit_test(graphs__every_strategy__as_one_by_one_and_as_the_host),
        cmocka_unit_test(graphs__nodes_in_other_orders__same_bits),
        cmocka_unit_test(graphs__nccl__same_bits_and_it_ends),
        cmocka_unit_test(graphs__capture_fails__run_goes_on),
        cmocka_unit_test(graphs__stream_used_first_in_a_capture__reads_the_table),
        cmocka_unit_test(graphs__error_left_before__is_not_the_runs),
        cmocka_unit_test(graphs__launch_fails__run_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
