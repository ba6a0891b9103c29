/* run_host.c: see run_host.h. */
#include "run_host.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../exec/host_rank.h"
#include "../../exec/launch.h"
#include "../../exec/world_process.h"
#include "build.h"
#include "cmd.h"
#include "run_folder.h"
#include "run_job.h"

enum { MAX_THREADS = 256 };

static volatile sig_atomic_t stop_asked;

static void ask_to_stop(int signal)
{
    (void)signal;
    stop_asked = 1;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct rank {
    const struct tsr_run_job *run;
    const struct tsr_args *args;
    uint32_t rank;
    struct tsr_world *world; /* NULL: one rank */
    struct tsr_train_result result;
    tsr_status status;
    char text[512];
};

static tsr_status train_on(struct rank *r, struct tsr_train *train, struct tsr_executor *executor)
{
    struct tsr_engine *engine = NULL;
    TSR_TRY(tsr_build(&r->run->job, r->rank, executor, &engine));
    tsr_status status = tsr_train_run(train, engine, executor, &r->result);
    if (status != TSR_OK) {
        char path[4096], why[512];
        snprintf(why, sizeof why, "%s", tsr_error_text());
        snprintf(path, sizeof path, "%s/flight-rank-%u.json",
                 r->run->config.dir ? r->run->config.dir : ".", r->rank);
        if (r->world)
            r->world->ops->abort(r->world, why);
        if (r->run->config.dir)
            (void)!tsr_exec_write_flight_record(executor, tsr_engine_tables(engine), path, why);
        status = tsr_fail(status, "%s", why);
    }
    /* the executor's streams refer to the engine's names: they end first */
    (void)!executor->ops->drain(executor);
    executor->ops->destroy(executor);
    tsr_engine_destroy(engine);
    return status;
}

static tsr_status run_rank(struct rank *r)
{
    struct tsr_train_config config = r->run->config;
    struct tsr_train *train = NULL;
    struct tsr_executor *executor = NULL;
    config.world = r->world;
    config.rank = r->rank;
    config.data_rank = r->rank / (config.size / config.data_size);
    config.console = r->rank == 0 ? stdout : NULL;
    config.stop = &stop_asked;
    TSR_TRY(tsr_train_create(&config, &train));
    struct tsr_source source = tsr_train_source(train);
    const struct tsr_host_rank_config host = {.world = r->world,
                                              .source = &source,
                                              .serial = r->args->serial,
                                              .poison = r->args->check,
                                              .verify = r->args->verify};
    tsr_status status = tsr_host_rank_create(&host, &executor);
    if (status == TSR_OK)
        status = train_on(r, train, executor);
    tsr_train_destroy(train);
    return status;
}

static void *rank_main(void *user)
{
    struct rank *r = user;
    r->status = run_rank(r);
    if (r->status != TSR_OK) {
        snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
        if (r->world)
            r->world->ops->abort(r->world, r->text);
    }
    return NULL;
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

/* A mistake of the user's is no rank's. */
static tsr_status tell(const struct rank *r)
{
    bool mistake = tsr_exit_status(r->status) == TSR_EXIT_USER;
    return mistake ? tsr_fail(r->status, "%s", r->text)
                   : tsr_fail(r->status, "rank %u: %s", r->rank, r->text);
}

/* The rank that failed by itself says why; the others only lost it. */
static tsr_status first_failure(const struct rank *ranks, uint32_t n)
{
    const struct rank *first = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (ranks[i].status != TSR_OK && (!first || first->status == TSR_EPEER))
            first = &ranks[i];
    return first ? tell(first) : TSR_OK;
}

static tsr_status join_all(pthread_t *threads, struct rank *ranks, uint32_t n_started)
{
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    return first_failure(ranks, n_started);
}

static tsr_status run_threads(const struct tsr_run_job *run, const struct tsr_args *args,
                              double timeout, struct tsr_train_result *result)
{
    uint32_t n = run->job.world, started = 0;
    struct tsr_world *worlds[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    struct rank *ranks = calloc(n, sizeof *ranks);
    if (!ranks)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_status status = tsr_world_threads(n, timeout, worlds);
    if (status != TSR_OK) {
        free(ranks);
        return status;
    }
    for (; started < n; started++) {
        ranks[started] =
            (struct rank){.run = run, .args = args, .rank = started, .world = worlds[started]};
        if (pthread_create(&threads[started], NULL, rank_main, &ranks[started]) != 0) {
            worlds[0]->ops->abort(worlds[0], "a thread for a rank cannot be started");
            break;
        }
    }
    status = join_all(threads, ranks, started);
    if (status == TSR_OK && started < n)
        status = tsr_fail(TSR_EBACKEND, "a thread for rank %u cannot be started", started);
    *result = ranks[0].result;
    for (uint32_t i = 0; i < n; i++)
        worlds[i]->ops->destroy(worlds[i]);
    free(ranks);
    return status;
}

/* ---- ranks as processes ---------------------------------------------------------------------- */

static tsr_status run_process(const struct tsr_run_job *run, const struct tsr_args *args,
                              const struct tsr_launch *launch, double timeout,
                              struct tsr_train_result *result)
{
    if (launch->size != run->job.world)
        return tsr_fail(TSR_ECONFIG,
                        "%s started %u ranks; found a job of %u; allowed: as many (world, --ranks)",
                        launch->source, launch->size, run->job.world);
    struct rank rank = {.run = run, .args = args, .rank = launch->rank};
    TSR_TRY(tsr_world_processes(launch, timeout, args->transport ? args->transport : "auto",
                                &rank.world));
    rank_main(&rank);
    *result = rank.result;
    rank.world->ops->destroy(rank.world);
    return rank.status == TSR_OK ? TSR_OK : tell(&rank);
}

/* `tessera run ... --nproc N` starts itself N times without --nproc. */
static tsr_status spawn(const struct tsr_args *args, char *const *argv, int *success)
{
    char *words[TSR_MAX_SETS * 2 + 64], ranks[32];
    size_t n = 0;
    snprintf(ranks, sizeof ranks, "%llu", (unsigned long long)args->nproc);
    words[n++] = "/proc/self/exe";
    for (size_t i = 0; argv[i] && n < TSR_MAX_SETS * 2 + 60; i++) {
        if (!strcmp(argv[i], "--nproc")) {
            i += argv[i + 1] != NULL;
            continue;
        }
        if (strncmp(argv[i], "--nproc=", 8) != 0)
            words[n++] = argv[i];
    }
    words[n++] = "--ranks";
    words[n++] = ranks;
    words[n] = NULL;
    const struct tsr_spawn all = {.n = (uint32_t)args->nproc, .argv = words, .grace_s = 10};
    struct tsr_spawned end;
    TSR_TRY(tsr_launch_spawn(&all, &end));
    *success = end.exit_status;
    if (end.exit_status == TSR_EXIT_RETRY) /* other failures have told by themselves */
        fprintf(stderr, "tessera: %s\n", end.text);
    return TSR_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static tsr_status make_folder(const char *dir)
{
    if (!dir || mkdir(dir, 0777) == 0 || errno == EEXIST)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--out: %s: found a folder that cannot be made (%s)", dir,
                    strerror(errno));
}

static tsr_status run_all(const struct tsr_args *args, const struct tsr_launch *launch,
                          int *success)
{
    struct tsr_run_job run;
    struct tsr_train_result result = {0};
    double timeout = args->timeout ? (double)args->timeout : 300;
    tsr_status status = tsr_run_job_open(args, &run);
    if (status != TSR_OK && launch->rank > 0) { /* rank 0 finds the same and tells it */
        *success = tsr_exit_status(status);
        return TSR_OK;
    }
    TSR_TRY(status);
    status = make_folder(run.config.dir);
    if (status == TSR_OK && launch->rank == 0 && run.config.dir)
        status = tsr_run_folder_write(run.config.dir, &run.job, &run.config.hf);
    if (status == TSR_OK && launch->size > 1)
        status = run_process(&run, args, launch, timeout, &result);
    else if (status == TSR_OK && run.job.world > MAX_THREADS)
        status =
            tsr_fail(TSR_ECONFIG, "world: found %u ranks; allowed as threads: up to %d (--ranks)",
                     run.job.world, MAX_THREADS);
    else if (status == TSR_OK)
        status = run_threads(&run, args, timeout, &result);
    if (status == TSR_OK && launch->rank == 0 && result.stopped)
        fprintf(
            stderr, "tessera: stopped after step %llu%s%s\n", (unsigned long long)result.last_step,
            run.config.dir ? "; go on with --resume " : "", run.config.dir ? run.config.dir : "");
    tsr_run_job_close(&run);
    return status;
}

tsr_status tsr_run_on_host(const struct tsr_args *args, char *const *argv, int *success)
{
    struct tsr_launch launch;
    const struct sigaction action = {.sa_handler = ask_to_stop};
    if (args->verify && !args->serial)
        return tsr_fail(TSR_ECONFIG, "run: --verify-operands: found without --serial; allowed: "
                                     "with it");
    if (args->nproc && args->ranks)
        return tsr_fail(TSR_ECONFIG, "run: --nproc: found beside --ranks; allowed: one of them");
    if (args->nproc)
        return spawn(args, argv, success);
    TSR_TRY(tsr_launch_environment(&launch));
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return run_all(args, &launch, success);
}
