/* jobs_testing.h: a strategy of strategies.yaml run by rank threads, step by step, with
 * what tests want to know of it: what was recorded, executed, lost and held in memory.
 */
#ifndef TSR_JOBS_TESTING_H
#define TSR_JOBS_TESTING_H

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/files/init.h"
#include "exec/kernels/grid/grid_initial.h"
#include "experiments/study/job/build.h"
#include "experiments/study/job/emit.h"
#include "tests/exec/devices_testing.h"
#include "tests/exec/executor_testing.h"
#include "tests/thorough.h"

enum { JOB_RANKS = 9, JOB_PROGRAMS = 12, JOB_MICROS = 4, JOB_TEXT = 512 };

#define job_ok(status)                        \
    do {                                      \
        if ((status) != TSR_OK)               \
            fail_msg("%s", tsr_error_text()); \
    } while (0)

/* ---- strategies ------------------------------------------------------------------------------ */

struct strategies {
    char path[4096]; /* the experiment refers to it */
    struct tsr_experiment file;
};

static inline void strategies_open(struct strategies *s)
{
    snprintf(s->path, sizeof s->path, "%s/tests/exec/strategies.yaml", TSR_SOURCE_DIR);
    job_ok(tsr_experiment_load(s->path, NULL, 0, &s->file));
    assert_true(s->file.n > 30);
}

/* The strategies that a test runs are first, first + stride, ...: every `full`th in the long form,
 * in the short one every `quick`th, and tests of GPUs others than those of the host. */
struct strategies_walk {
    size_t first, stride;
};

static inline struct strategies_walk strategies_walk(size_t quick, size_t full)
{
    struct strategies_walk w = {0, tests_strides(quick, full)};
#ifdef TSR_TEST_CUDA
    w.first = w.stride / 2;
#endif
    return w;
}

static inline void strategies_close(struct strategies *s)
{
    tsr_experiment_fini(&s->file);
}

static inline void strategies_job(const struct strategies *s, const char *name, struct tsr_job *job)
{
    const struct tsr_strategy *strategy;
    job_ok(tsr_experiment_find(&s->file, name, &strategy));
    job_ok(tsr_job_open(&s->file, strategy, TSR_MAY_LACK_CLUSTER, job));
    job->executes = true;
    assert_true(job->world <= JOB_RANKS);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct job_rank;

/* What a test may put between the parts of a rank; all may be NULL. */
struct job_hooks {
    void *user;
    /* A device that stands before `device`, and owns it. */
    struct tsr_device *(*device)(struct job_rank *rank, struct tsr_device *device);
    /* An executor that stands before `executor`, borrowed; has no destroy of its own. */
    struct tsr_executor *(*executor)(struct job_rank *rank, struct tsr_executor *executor);
    /* Program `i` (0: initialisation, then the steps) has run and is drained. */
    void (*ran)(struct job_rank *rank, uint32_t i);
};

struct job_config {
    uint32_t n_steps; /* programs after the initialisation */
    /* Bit i: program i is no step but a save, or the end of one (tsr_save_end()). */
    uint32_t saves, save_ends;
    uint32_t loads; /* likewise: reads parameters and states */
    enum tsr_save save;
    /* Of what is saved: write, lend and join; of what is loaded: read; NULL: there is nothing. */
    struct tsr_source sink;
    struct job_hooks hooks;
    uint32_t jitter_us;
    uint64_t jitter_seed;
    bool serial, poison, verify;
    bool same_batch; /* every iteration has that of the first */
    bool ahead;      /* the host does not wait between programs: no hashes, no `ran` */
    bool keeps_hash; /* the hash goes on from program to program */
    /* The batch is that of so many data ranks, one behind the other; 0: 1. */
    uint32_t stands_for;
    uint32_t vocab; /* tokens are below; 0: 48 */
};

struct job_rank {
    const struct tsr_job *job;
    const struct job_config *config;
    uint32_t rank;
    struct tsr_world *world;
    void *shared;                  /* of the ranks' devices */
    struct tsr_device *device;     /* behind the hook's */
    struct tsr_executor *executor; /* behind the hook's */
    struct tsr_executor *front;    /* what the engine submits to */
    struct tsr_engine *engine;
    struct tsr_recorder recorder;
    uint32_t n_programs;
    struct tsr_program programs[JOB_PROGRAMS]; /* as recorded beside the execution */
    uint64_t executed[JOB_PROGRAMS];           /* hashes */
    double losses[JOB_PROGRAMS][JOB_MICROS];   /* by iteration */
    double norms[JOB_PROGRAMS];
    void *saved; /* the test's own */
    tsr_status status;
    char text[JOB_TEXT];
};

static const uint64_t job_seed = 1;

static tsr_status job_init(void *user, const struct tsr_piece *piece, void *out)
{
    (void)user;
    return tsr_init_piece(job_seed, piece, 1, out);
}

/* The row of the job that is row `k` of a rank's micro-batch. */
static inline uint64_t job_row(const struct job_rank *r, uint32_t micro, uint64_t k)
{
    const struct tsr_settings *s = r->job->settings;
    uint64_t ranks = r->config && r->config->stands_for ? r->config->stands_for : 1;
    uint64_t batch = s->batch / ranks, data_rank = r->rank / s->tp * ranks + k / batch;
    return (data_rank * s->accum_steps + micro) * batch + k % batch;
}

/* Token i of a row follows from the row's place in the job; labels are the tokens after. */
static tsr_status job_batch(void *user, uint32_t iteration, uint32_t micro,
                            enum tsr_batch_part part, bool eval, tsr_dtype dtype, void *out,
                            uint64_t bytes)
{
    const struct job_rank *r = user;
    const struct tsr_settings *s = r->job->settings;
    uint64_t n = bytes / sizeof(int64_t);
    uint32_t vocab = r->config && r->config->vocab ? r->config->vocab : 48;
    int64_t *tokens = out;
    if (dtype != TSR_I64 || bytes % sizeof *tokens || eval)
        return tsr_fail(TSR_EDEFECT, "a batch that no model here has");
    for (uint64_t i = 0; i < n; i++) {
        uint64_t row = job_row(r, micro, i / s->seq);
        uint64_t at = i % s->seq + (part == TSR_BATCH_LABELS);
        const uint32_t key[2] = {7, r->config && r->config->same_batch ? 0 : iteration};
        const uint32_t counter[4] = {(uint32_t)at, (uint32_t)row, 0, 0};
        uint32_t words[4];
        tsr_philox(counter, key, words);
        tokens[i] = words[0] % vocab;
    }
    return TSR_OK;
}

static tsr_status job_report(void *user, uint32_t iteration, uint32_t micro, enum tsr_report what,
                             bool eval, double value)
{
    struct job_rank *r = user;
    if (eval || iteration >= JOB_PROGRAMS || micro >= JOB_MICROS)
        return tsr_fail(TSR_EDEFECT, "a report of iteration %u, micro-batch %u", iteration, micro);
    if (what == TSR_REPORT_LOSS)
        r->losses[iteration][micro] = value;
    else
        r->norms[iteration] = value;
    return TSR_OK;
}

static inline tsr_status job_make(struct job_rank *r)
{
    const struct job_config *c = r->config;
    const struct tsr_source source = {.user = r,
                                      .init = job_init,
                                      .init_seed = &job_seed,
                                      .batch = job_batch,
                                      .report = job_report,
                                      .read = c->sink.read,
                                      .write = c->sink.write,
                                      .lend = c->sink.lend,
                                      .join = c->sink.join};
    struct tsr_exec *exec = tsr_exec_new();
    if (!exec)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    TSR_TRY(tsr_kernels_init());
    const struct test_device device = {.world = r->world,
                                       .exec = exec,
                                       .shared = r->shared,
                                       .jitter_us = c->jitter_us,
                                       .jitter_seed = c->jitter_seed + 97 * r->rank,
                                       .serial = c->serial};
    struct tsr_exec_config x = {.world = r->world,
                                .source = &source,
                                .poison = c->poison,
                                .verify = c->verify,
                                .watcher = &r->recorder.base};
    tsr_status status = test_device_create(&device, &r->device);
    x.device = r->device;
    if (status == TSR_OK && c->hooks.device)
        x.device = c->hooks.device(r, r->device);
    r->executor = r->front = tsr_exec_start(exec, &x);
    TSR_TRY(status);
    if (c->hooks.executor)
        r->front = c->hooks.executor(r, r->executor);
    TSR_TRY(tsr_build(r->job, r->rank, r->front, &r->engine));
    tsr_exec_set_tables(r->executor, tsr_engine_tables(r->engine));
    return TSR_OK;
}

static inline void job_set_scalars(struct tsr_executor *x, const struct tsr_job *job, uint32_t step)
{
    const struct tsr_run_settings *t = &job->settings->run;
    const double values[TSR_N_SCALARS] = {[TSR_SCALAR_LR] = t->lr,
                                          [TSR_SCALAR_BETA1] = t->beta1,
                                          [TSR_SCALAR_BETA2] = t->beta2,
                                          [TSR_SCALAR_EPS] = t->eps,
                                          [TSR_SCALAR_WEIGHT_DECAY] = t->weight_decay,
                                          [TSR_SCALAR_MOMENTUM] = t->momentum,
                                          [TSR_SCALAR_STEP] = step,
                                          [TSR_SCALAR_MAX_NORM] = t->max_norm};
    for (int i = 0; i < TSR_N_SCALARS; i++)
        tsr_exec_set_scalar(x, (enum tsr_scalar)i, values[i]);
}

static inline tsr_status job_emit(struct job_rank *r, uint32_t i)
{
    if (i == 0)
        return tsr_engine_init_params(r->engine);
    if (r->config->saves >> i & 1)
        return tsr_save_run(r->engine, r->config->save);
    if (r->config->save_ends >> i & 1)
        return tsr_save_end(r->engine);
    if (r->config->loads >> i & 1)
        return tsr_load_run(r->engine, TSR_LOAD_SHARDED, true);
    return tsr_step_run(r->engine, i - 1);
}

static inline tsr_status job_run_program(struct job_rank *r, uint32_t i)
{
    struct tsr_program *program = &r->programs[i];
    tsr_program_init(program, tsr_engine_tables(r->engine));
    r->n_programs = i + 1;
    r->recorder.into = program;
    test_exec_reset(r->executor, !r->config->ahead && !r->config->keeps_hash);
    job_set_scalars(r->executor, r->job, i);
    TSR_TRY(job_emit(r, i));
    if (r->config->ahead)
        return TSR_OK;
    TSR_TRY(r->executor->ops->drain(r->executor));
    r->executed[i] = tsr_exec_hash(r->executor);
    if (r->config->hooks.ran)
        r->config->hooks.ran(r, i);
    return TSR_OK;
}

static inline tsr_status job_run_rank(struct job_rank *r)
{
    tsr_recorder_init(&r->recorder, &r->programs[0]);
    TSR_TRY(job_make(r));
    for (uint32_t i = 0; i <= r->config->n_steps; i++)
        TSR_TRY(job_run_program(r, i));
    return r->executor->ops->drain(r->executor);
}

static void *job_rank_main(void *user)
{
    struct job_rank *r = user;
    r->status = job_run_rank(r);
    if (r->status != TSR_OK) {
        snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
        r->world->ops->abort(r->world, r->status, r->text);
    }
    if (r->executor) /* before the engine, whose names its streams use */
        r->executor->ops->destroy(r->executor);
    return NULL;
}

/* Runs all ranks to their ends; what they return is in ranks[]. Close with job_close(). */
static inline void job_run(const struct tsr_job *job, const struct job_config *config,
                           struct job_rank **out)
{
    struct tsr_world *worlds[JOB_RANKS];
    pthread_t threads[JOB_RANKS];
    struct job_rank *ranks = calloc(job->world, sizeof *ranks);
    assert_non_null(ranks);
    assert_true(config->n_steps < JOB_PROGRAMS);
    void *shared;
    job_ok(tsr_world_threads(job->world, 60, worlds));
    job_ok(test_share(job->world, &shared));
    for (uint32_t i = 0; i < job->world; i++) {
        ranks[i].job = job;
        ranks[i].config = config;
        ranks[i].rank = i;
        ranks[i].world = worlds[i];
        ranks[i].shared = shared;
        assert_int_equal(pthread_create(&threads[i], NULL, job_rank_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < job->world; i++)
        pthread_join(threads[i], NULL);
    test_unshare(shared);
    for (uint32_t i = 0; i < job->world; i++)
        worlds[i]->ops->destroy(worlds[i]);
    *out = ranks;
}

static inline void job_close(struct job_rank *ranks)
{
    uint32_t world = ranks[0].job->world;
    for (uint32_t r = 0; r < world; r++) {
        for (uint32_t i = 0; i < ranks[r].n_programs; i++)
            tsr_program_fini(&ranks[r].programs[i]);
        tsr_engine_destroy(ranks[r].engine);
    }
    free(ranks);
}

/* The rank that failed by itself; NULL if none did. */
static inline const struct job_rank *job_failure(const struct job_rank *ranks)
{
    const struct job_rank *first = NULL;
    for (uint32_t r = 0; r < ranks[0].job->world; r++)
        if (ranks[r].status != TSR_OK && (!first || first->status == TSR_EPEER))
            first = &ranks[r];
    return first;
}

static inline void job_run_ok(const struct tsr_job *job, const struct job_config *config,
                              struct job_rank **out)
{
    job_run(job, config, out);
    const struct job_rank *failed = job_failure(*out);
    if (failed)
        fail_msg("%s: rank %u: %s", job->strategy->name, failed->rank, failed->text);
}

#endif
