/* run_train.c: `tessera run --on host` and `--on cuda`: ranks as threads, or as the processes of a
 * launcher or of its own; signals; how a run ends.
 */
#include "experiments/cli/run/run.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "exec/kernels/call/kernel.h"
#include "exec/launch/launch.h"
#include "exec/world/world.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/study/report/report_text.h"
#include "sim/base/text.h"

/* Each is a handful of threads, and reserves addresses, of which a process has 128 TiB. */
enum { MAX_THREADS = 256 };

/* After a failure, for ranks that end by themselves; what is stuck does not. */
#define GRACE_S 3.0

static double timeout_of(const struct tsr_args *args)
{
    return args->timeout ? (double)args->timeout : 300;
}

static volatile sig_atomic_t stop_asked; /* the signal that asked; 0: none */

static void ask_to_stop(int signal)
{
    stop_asked = signal;
}

/* From the first step on: before there is a step a signal ends the program as it ends others. A
 * second signal does not wait for the step either. */
static void catch_stop(void)
{
    const struct sigaction stop = {.sa_handler = ask_to_stop,
                                   .sa_flags = SA_RESETHAND | SA_RESTART};
    struct sigaction now;
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler != SIG_IGN) /* nohup ignores it */
        sigaction(SIGHUP, &stop, NULL);
}

/* As what the signal does to programs that know nothing of it: the shell stops its script, too. */
static void end_by(int number)
{
    fflush(stdout);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static bool is_mistake(tsr_status status)
{
    return tsr_exit_status(status) == TSR_EXIT_USER;
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

/* A rank that ran out of memory: its own words (which may name another rank), and what was
 * predicted.
 */
static tsr_status tell_memory(uint32_t rank, const char *text, uint64_t predicted)
{
    char who[32] = "";
    if (strncmp(text, "rank ", 5) != 0)
        snprintf(who, sizeof who, "rank %" PRIu32 ": ", rank);
    return tsr_fail(TSR_EOOM,
                    "%s%s; predicted were %.2f GiB of segments for a rank (tessera explain says "
                    "for what, tessera plan what fits)",
                    who, text, (double)predicted / TSR__GIB);
}

/* A mistake of the user's is no rank's; other faults name their rank, if not already another's. */
static tsr_status tell(const struct tsr_run_rank *r)
{
    bool named = is_mistake(r->status) || !strncmp(r->text, "rank ", 5);
    if (r->status == TSR_EOOM)
        return tell_memory(r->rank, r->text, r->run->device_bytes);
    return named ? tsr_fail(r->status, "%s", r->text)
                 : tsr_fail(r->status, "rank %u: %s", r->rank, r->text);
}

/* The rank that failed by itself says why; the others only heard of it. */
static tsr_status first_failure(const struct tsr_run_rank *ranks, uint32_t n)
{
    const struct tsr_run_rank *first = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (ranks[i].status != TSR_OK && (!first || !strncmp(first->text, "rank ", 5)))
            first = &ranks[i];
    return first ? tell(first) : TSR_OK;
}

static tsr_status join_all(pthread_t *threads, struct tsr_run_rank *ranks, uint32_t n_started)
{
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    return first_failure(ranks, n_started);
}

static tsr_status run_threads(const struct tsr_run_job *run, const struct tsr_args *args,
                              struct tsr_gpus *gpus, struct tsr_train_result *result)
{
    uint32_t n = run->job.world, started = 0;
    struct tsr_world *worlds[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    struct tsr_run_rank *ranks = calloc(n, sizeof *ranks);
    if (!ranks)
        return tsr_no_memory(NULL);
    tsr_status status = tsr_world_threads(n, timeout_of(args), worlds);
    if (status != TSR_OK) {
        free(ranks);
        return status;
    }
    catch_stop();
    for (; started < n; started++) {
        ranks[started] = (struct tsr_run_rank){.run = run,
                                               .args = args,
                                               .stop = &stop_asked,
                                               .gpus = gpus,
                                               .rank = started,
                                               .world = worlds[started]};
        if (pthread_create(&threads[started], NULL, tsr_run_rank_main, &ranks[started]) != 0) {
            worlds[0]->ops->abort(worlds[0], TSR_EBACKEND, "a thread for a rank cannot be started");
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

static tsr_status open_world(const struct tsr_args *args, const struct tsr_launch *launch,
                             struct tsr_world **out)
{
    const char *transport = args->transport ? args->transport : "auto";
    if (!strcmp(transport, "mpi"))
        return tsr_world_mpi(launch, timeout_of(args), out);
    return tsr_world_processes(launch, timeout_of(args), transport, out);
}

static tsr_status train_in(const struct tsr_args *args, const struct tsr_gpu_ops *ops,
                           const struct tsr_launch *launch, struct tsr_world *world,
                           struct tsr_run *run)
{
    struct tsr_gpus *gpus = NULL;
    TSR_TRY(tsr_run_prepare(args, ops, launch, world, run));
    if (ops)
        TSR_TRY(ops->open(args, launch, &run->job.job, run->job.device_bytes,
                          run->job.scratch_bytes, world, &gpus));
    struct tsr_run_rank rank = {.run = &run->job,
                                .args = args,
                                .stop = &stop_asked,
                                .rank = launch->rank,
                                .world = world,
                                .gpus = gpus};
    catch_stop();
    tsr_run_rank_main(&rank);
    run->result = rank.result;
    if (ops)
        ops->close(gpus);
    return rank.status == TSR_OK ? TSR_OK : tell(&rank);
}

/* All ranks end with the same mistake of the user's: rank 0 says it. */
static tsr_status run_process(const struct tsr_args *args, const struct tsr_gpu_ops *ops,
                              const struct tsr_launch *launch, struct tsr_run *run, int *success)
{
    struct tsr_world *world = NULL;
    TSR_TRY(open_world(args, launch, &world));
    tsr_status status = train_in(args, ops, launch, world, run);
    world->ops->destroy(world);
    if (status == TSR_EPEER && stop_asked && run->result.last_step == 0)
        end_by((int)stop_asked); /* the peers were interrupted before they had begun */
    if (launch->rank == 0 || !is_mistake(status))
        return status;
    *success = tsr_exit_status(status);
    return TSR_OK;
}

/* `tessera run ... --nproc N` starts itself N times without --nproc. */
static tsr_status spawn(const struct tsr_args *args, int *success)
{
    char *const *argv = args->argv;
    char *words[TSR_MAX_SETS * 2 + 64], ranks[32];
    size_t n = 0;
    snprintf(ranks, sizeof ranks, "%llu", (unsigned long long)args->nproc);
    words[n++] = "/proc/self/exe";
    size_t i = 0;
    for (; argv[i] && n < TSR_MAX_SETS * 2 + 60; i++) {
        if (!strcmp(argv[i], "--nproc")) {
            i += argv[i + 1] != NULL;
            continue;
        }
        if (strncmp(argv[i], "--nproc=", 8) != 0)
            words[n++] = argv[i];
    }
    if (argv[i])
        return tsr_fail(TSR_ECONFIG, "run: found more than %d words; allowed with --nproc: fewer",
                        TSR_MAX_SETS * 2);
    words[n++] = "--ranks";
    words[n++] = ranks;
    words[n] = NULL;
    const struct tsr_spawn all = {.n = (uint32_t)args->nproc, .argv = words, .grace_s = GRACE_S};
    struct tsr_spawned end;
    (void)signal(SIGCHLD,
                 SIG_DFL); /* whoever started this may ignore it: no rank would be seen to end */
    TSR_TRY(tsr_launch_spawn(&all, &end));
    *success = end.exit_status;
    if (end.interrupted) {
        fputs("tessera: interrupted; checkpoints that were complete stay as they were\n", stderr);
        end_by(end.forwarded);
    }
    if (end.exit_status == TSR_EXIT_RETRY) /* other failures have told by themselves */
        fprintf(stderr, "tessera: %s\n", tsr_show_line(end.text).text);
    return TSR_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static tsr_status run_alone(const struct tsr_args *args, const struct tsr_gpu_ops *ops,
                            const struct tsr_launch *launch, struct tsr_run *run)
{
    TSR_TRY(tsr_run_prepare(args, ops, launch, NULL, run));
    if (run->job.job.world > MAX_THREADS)
        return tsr_fail(TSR_ECONFIG,
                        "world: found %u ranks; allowed as threads: up to %d (--ranks)",
                        run->job.job.world, MAX_THREADS);
    struct tsr_gpus *gpus = NULL;
    if (ops)
        TSR_TRY(ops->open(args, launch, &run->job.job, run->job.device_bytes,
                          run->job.scratch_bytes, NULL, &gpus));
    tsr_status status = run_threads(&run->job, args, gpus, &run->result);
    if (ops)
        ops->close(gpus);
    return status;
}

static tsr_status run_all(const struct tsr_args *args, const struct tsr_gpu_ops *ops,
                          const struct tsr_launch *launch, int *success)
{
    struct tsr_run run = {.lock = -1};
    bool alone = launch->size == 1;
    tsr_status status =
        alone ? run_alone(args, ops, launch, &run) : run_process(args, ops, launch, &run, success);
    const char *dir = run.job.config.dir;
    if (status == TSR_OK && launch->rank == 0 && run.result.stopped)
        fprintf(stderr, "tessera: stopped after step %llu%s%s\n",
                (unsigned long long)run.result.last_step, dir ? "; go on with --resume " : "",
                dir ? tsr_show_line(dir).text : "; nothing is saved without --out");
    tsr_run_close(&run);
    return status;
}

static tsr_status check_options(const struct tsr_args *args)
{
    static const char *const transports[] = {"auto", "shm", "tcp", "mpi"};
    bool known = !args->transport;
    for (size_t i = 0; i < sizeof transports / sizeof *transports && !known; i++)
        known = !strcmp(args->transport, transports[i]);
    if (!known)
        return tsr_fail(TSR_ECONFIG, "run: --transport: found %s; allowed: auto, shm, tcp, mpi",
                        args->transport);
    if (args->verify && !args->serial)
        return tsr_fail(TSR_ECONFIG, "run: --verify-operands: found without --serial; allowed: "
                                     "with it");
    if (args->profile && !args->out && !args->resume)
        return tsr_fail(TSR_ECONFIG, "run: --profile: found without --out; allowed: with it");
    if (args->nproc && args->ranks)
        return tsr_fail(TSR_ECONFIG, "run: --nproc: found beside --ranks; allowed: one of them");
    return TSR_OK;
}

/* Said before anything starts: libraries that run out of addresses say nothing, or wait for ever.
 */
static tsr_status check_addresses(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return TSR_OK;
    return tsr_fail(TSR_EBACKEND,
                    "found a limit of %llu KiB on addresses (ulimit -v); allowed: unlimited, since "
                    "every rank reserves a TiB of them, of which it fills what it needs",
                    (unsigned long long)limit.rlim_cur >> 10);
}

/* Every file of data stays open: as many as the system allows, not as the shell suggests. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* Of each process of a job, and of the one that starts them: each knows all others, and rank 0
 * twice. */
static tsr_status check_descriptors(uint64_t ranks)
{
    struct rlimit limit;
    uint64_t needed = 2 * ranks + 16;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return TSR_OK;
    return tsr_fail(TSR_EBACKEND,
                    "found a limit of %llu open files (ulimit -n); allowed for %llu ranks: at "
                    "least %llu",
                    (unsigned long long)limit.rlim_cur, (unsigned long long)ranks,
                    (unsigned long long)needed);
}

tsr_status tsr_run_train(const struct tsr_args *args, const struct tsr_gpu_ops *gpus, int *success)
{
    struct tsr_launch launch;
    TSR_TRY(check_options(args));
    TSR_TRY(check_addresses());
    raise_descriptors();
    TSR_TRY(tsr_kernels_init()); /* also where ranks are started: a mistake is said once */
    if (args->nproc && gpus)     /* or each of them would say it */
        TSR_TRY(gpus->check(args, false));
    if (args->nproc) {
        TSR_TRY(check_descriptors(args->nproc));
        return spawn(args, success);
    }
    TSR_TRY(tsr_launch_environment(&launch));
    if (launch.size > 1)
        TSR_TRY(check_descriptors(launch.size));
    if (gpus)
        TSR_TRY(gpus->check(args, launch.size == 1));
    (void)signal(SIGPIPE, SIG_IGN); /* a reader of stdout that is gone is an error of a write */
    return run_all(args, gpus, &launch, success);
}
