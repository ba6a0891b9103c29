/* run_rank.c: one rank of a run: its executor, who watches it, its training, and how it gives up.
 */
#include "experiments/cli/run/run.h"

#include <stdio.h>
#include <string.h>

#include "exec/host/host_device.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/run/run_watch.h"
#include "experiments/study/job/build.h"

/* Who sees the instructions before they are executed: the checker, then the profile. */
struct watchers {
    struct tsr_run_check check;
    struct tsr_run_profile profile;
    bool checks, profiles;
    struct tsr_executor *first; /* NULL: nobody */
};

static tsr_status watch(const struct tsr_run_rank *r, struct watchers *w)
{
    *w = (struct watchers){.checks = r->args->check, .profiles = r->args->profile && r->rank == 0};
    if (w->profiles) {
        uint32_t iterations = (uint32_t)r->run->job.settings->iterations;
        TSR_TRY(tsr_run_profile_init(&w->profile, iterations));
        w->first = &w->profile.base;
    }
    if (w->checks) {
        TSR_TRY(tsr_run_check_init(&w->check, r->rank, r->run->job.world, w->first));
        w->first = &w->check.base;
    }
    return TSR_OK;
}

static void unwatch(struct watchers *w)
{
    if (w->checks)
        tsr_run_check_fini(&w->check);
    if (w->profiles)
        tsr_run_profile_fini(&w->profile);
}

/* The other ranks are told first: they may be waiting. */
static void give_up(struct tsr_run_rank *r, tsr_status status, struct tsr_executor *executor,
                    const struct tsr_engine *engine)
{
    char path[4096];
    const char *dir = r->run->config.dir;
    snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
    if (r->world)
        r->world->ops->abort(r->world, status, r->text);
    snprintf(path, sizeof path, "%s/flight-rank-%u.json", dir ? dir : ".", r->rank);
    if (dir && tsr_exit_status(status) != TSR_EXIT_USER)
        (void)!tsr_exec_write_flight_record(executor, tsr_engine_tables(engine), path, r->text);
}

static tsr_status train_on(struct tsr_run_rank *r, struct tsr_train *train,
                           struct tsr_executor *executor, struct watchers *w)
{
    struct tsr_engine *engine = NULL;
    tsr_status status = tsr_build(&r->run->job, r->rank, executor, &engine);
    if (status != TSR_OK) {
        snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
        executor->ops->destroy(executor);
        return status;
    }
    if (w->checks)
        tsr_run_check_tables(&w->check, tsr_engine_tables(engine));
    status = tsr_train_run(train, engine, executor, &r->result);
    if (status != TSR_OK)
        give_up(r, status, executor, engine);
    if (status == TSR_OK && w->profiles)
        status = tsr_run_profile_write(&w->profile, &r->run->job, engine, r->run->config.dir,
                                       r->gpus ? r->gpus->name : NULL);
    /* the executor's streams refer to the engine's names: they end first */
    (void)!executor->ops->drain(executor);
    if (status == TSR_OK && r->device && r->rank == 0)
        r->gpus->ops->tell_memory(r->device, stderr);
    executor->ops->destroy(executor);
    tsr_engine_destroy(engine);
    return status;
}

static tsr_status make_executor(struct tsr_run_rank *r, struct tsr_train *train,
                                const struct watchers *w, struct tsr_executor **out)
{
    struct tsr_source source = tsr_train_source(train);
    if (r->gpus) {
        const struct tsr_gpu_rank gpu = {.rank = r->rank,
                                         .world = r->world,
                                         .source = &source,
                                         .watcher = w->first,
                                         .profile = w->profiles};
        return r->gpus->ops->rank(r->gpus, &gpu, out, &r->device);
    }
    const struct tsr_host_rank_config host = {.world = r->world,
                                              .source = &source,
                                              .serial = r->args->serial,
                                              .poison = r->args->check,
                                              .verify = r->args->verify,
                                              .profile = w->profiles,
                                              .watcher = w->first};
    return tsr_host_rank_create(&host, out);
}

static tsr_status execute(struct tsr_run_rank *r, struct tsr_train *train, struct watchers *w)
{
    struct tsr_executor *executor = NULL;
    TSR_TRY(make_executor(r, train, w, &executor));
    w->profile.of = executor;
    return train_on(r, train, executor, w);
}

/* Not before: what a refused resume leaves is the folder as it was. */
static tsr_status describe(const void *user)
{
    const struct tsr_run_job *run = user;
    return tsr_run_folder_write(run->config.dir, &run->job, &run->config.hf);
}

static tsr_status run_rank(struct tsr_run_rank *r)
{
    struct tsr_train_config config = r->run->config;
    struct tsr_train *train = NULL;
    struct watchers w;
    config.world = r->world;
    config.rank = r->rank;
    config.data_rank = r->rank / (config.size / config.data_size);
    config.console = r->rank == 0 ? stdout : NULL;
    config.notes = r->rank == 0 ? stderr : NULL;
    config.stop = r->stop;
    config.when_ready = config.dir && r->rank == 0 ? describe : NULL;
    config.when_ready_user = r->run;
    config.after_step = r->args->check ? tsr_run_check_step : NULL;
    config.after_step_user = &w.check;
    TSR_TRY(tsr_train_create(&config, &train));
    tsr_status status = watch(r, &w);
    if (status == TSR_OK)
        status = execute(r, train, &w);
    unwatch(&w);
    tsr_train_destroy(train);
    return status;
}

void *tsr_run_rank_main(void *user)
{
    struct tsr_run_rank *r = user;
    r->status = run_rank(r);
    if (r->status != TSR_OK) {
        if (!r->text[0]) /* what has ended since may have failed, too */
            snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
        if (r->world)
            r->world->ops->abort(r->world, r->status, r->text);
    }
    return NULL;
}
