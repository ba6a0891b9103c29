/* run_gpu.c: the program with GPUs; see ../run_gpu.h. */
#include "experiments/cli/run/run_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/cuda/device/cuda_rank.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/cuda/nccl_options.h"
#include "experiments/cli/run/oom_gpu.h"
#include "experiments/study/base/out_file.h"

#define GIB ((double)(1 << 30))

struct tsr_run_gpu {
    uint32_t n;   /* ranks of the job */
    bool threads; /* they are; else this process is one */
    bool shares;  /* all on one GPU */
    int first;    /* GPU of rank 0 of the threads, or of this process */
    struct tsr_loopback *loopback;
    char plans[4096]; /* folder; "": none */
    uint64_t unit;    /* see struct tsr_cuda_device_config */
    double timeout_s;
    bool force, deterministic, direct, serial, poison;
    struct tsr_comms_config nccl; /* what --comm says of it */
};

tsr_status tsr_run_gpu_program(char *const *argv)
{
    (void)argv;
    return TSR_OK;
}

const struct tsr_device_ops *tsr_run_gpu_kernels(void)
{
    return tsr_cuda_device_ops();
}

/* ---- options --------------------------------------------------------------------------------- */

static bool is_loopback(const struct tsr_args *args)
{
    return args->comm && !strcmp(args->comm, "loopback");
}

tsr_status tsr_run_gpu_check(const struct tsr_args *args, bool threads)
{
    struct tsr_comms_config config;
    TSR_TRY(tsr_nccl_options(args->comm, &config));
    if (args->graphs && strcmp(args->graphs, "on") != 0 && strcmp(args->graphs, "off") != 0)
        return tsr_fail(TSR_ECONFIG, "run: --graphs: found %s; allowed: on, off", args->graphs);
    if (is_loopback(args) && !threads)
        return tsr_fail(TSR_ECONFIG, "run: --comm: found loopback with ranks that are processes; "
                                     "allowed: with ranks that are threads (--ranks)");
    if (is_loopback(args) && args->force_nccl)
        return tsr_fail(TSR_ECONFIG,
                        "run: --force-nccl: found with --comm loopback; allowed: without it");
    if (args->verify)
        return tsr_fail(TSR_ECONFIG,
                        "run: --verify-operands: found with --on cuda; allowed: with --on host");
    return TSR_OK;
}

/* ---- which GPU is whose ---------------------------------------------------------------------- */

static tsr_status place_threads(struct tsr_run_gpu *g, const struct tsr_args *args)
{
    uint32_t n = g->n;
    int count;
    TSR_TRY(tsr_gpu_count(&count));
    g->shares = is_loopback(args) || n == 1;
    if (args->has_gpu && !g->shares)
        return tsr_fail(TSR_ECONFIG,
                        "run: --gpu: found %llu for %u ranks; allowed: for one rank, or with "
                        "--comm loopback, where ranks share a GPU",
                        (unsigned long long)args->gpu, n);
    if (!g->shares && n > (uint32_t)count)
        return tsr_fail(TSR_ECONFIG,
                        "world: found %u ranks and %d GPU%s; allowed: a GPU for each rank, or "
                        "--comm loopback, where ranks share one",
                        n, count, count == 1 ? "" : "s");
    g->first = args->has_gpu ? (int)args->gpu : 0;
    return TSR_OK;
}

/* A launcher may let each process see only its own. */
static tsr_status place_process(struct tsr_run_gpu *g, const struct tsr_args *args,
                                const struct tsr_launch *launch)
{
    int count;
    TSR_TRY(tsr_gpu_count(&count));
    g->first = count == 1 ? 0 : (int)launch->local_rank;
    if (args->has_gpu)
        g->first = (int)args->gpu;
    return TSR_OK;
}

/* Of one rank, as the others see it. */
struct card {
    uint64_t machine;
    unsigned char uuid[16];
};

static tsr_status compare_cards(const struct card *cards, uint32_t n)
{
    for (uint32_t b = 1; b < n; b++)
        for (uint32_t a = 0; a < b; a++)
            if (memcmp(&cards[a], &cards[b], sizeof *cards) == 0)
                return tsr_fail(TSR_ECONFIG,
                                "GPU: found ranks %u and %u on one; allowed: a GPU for each rank "
                                "(--gpu, or fewer ranks), or threads with --comm loopback",
                                a, b);
    return TSR_OK;
}

static tsr_status check_cards(struct tsr_world *world, const struct tsr_cuda_gpu *gpu)
{
    char name[256] = "";
    struct card mine, *all = calloc(world->size, sizeof *all);
    if (!all)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    memset(&mine, 0, sizeof mine);
    (void)!gethostname(name, sizeof name - 1);
    mine.machine = tsr_hash_bytes(TSR_HASH_INIT, name, strlen(name));
    memcpy(mine.uuid, gpu->uuid, sizeof mine.uuid);
    tsr_status status = world->ops->exchange(world, &mine, all, sizeof mine);
    if (status == TSR_OK)
        status = tsr_world_agree(world, compare_cards(all, world->size));
    free(all);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

void tsr_run_gpu_plans(char *out, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    out[0] = 0;
    if (cache && cache[0] == '/')
        snprintf(out, size, "%s/tessera", cache);
    else if (home && home[0] == '/')
        snprintf(out, size, "%s/.cache/tessera", home);
    if (out[0] && tsr_make_folder(out) != TSR_OK)
        out[0] = 0; /* they are made anew each time */
}

static tsr_status check_memory(const struct tsr_run_gpu *g, const struct tsr_run_job *run,
                               const struct tsr_cuda_gpu *gpu)
{
    uint64_t n = g->threads && g->shares ? g->n : 1, has = gpu->free_memory / n;
    char card[300];
    if (run->device_bytes <= has)
        return TSR_OK;
    snprintf(card, sizeof card, "GPU %d (%s)", gpu->index, gpu->name);
    return tsr_oom_on_gpu(&run->job, card, has, run->device_bytes);
}

static void tell(const struct tsr_run_gpu *g, const struct tsr_cuda_gpu *gpu)
{
    fprintf(stderr, "tessera: GPU %d: %s, %.1f GiB, sm_%d; driver for CUDA %d.%d%s\n", gpu->index,
            gpu->name, (double)gpu->memory / GIB, gpu->architecture, gpu->driver / 1000,
            gpu->driver % 1000 / 10, g->loopback ? "; all ranks share it" : "");
}

/* Loading a kernel at its first launch may wait for what runs on the GPUs of this process, and a
 * collective that runs waits for the rank that loads: then all is loaded at the start. Before the
 * first call of CUDA. */
static void load_early(const struct tsr_run_gpu *g, const struct tsr_args *args)
{
    if (g->threads && g->n > 1 && !is_loopback(args))
        (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static tsr_status open_here(struct tsr_run_gpu *g, const struct tsr_args *args,
                            const struct tsr_launch *launch, const struct tsr_run_job *run,
                            struct tsr_cuda_gpu *gpu)
{
    load_early(g, args);
    if (g->threads)
        TSR_TRY(place_threads(g, args));
    else
        TSR_TRY(place_process(g, args, launch));
    TSR_TRY(tsr_gpu_open(g->first, gpu));
    TSR_TRY(check_memory(g, run, gpu));
    return is_loopback(args) ? tsr_loopback_create(g->n, &g->loopback) : TSR_OK;
}

/* Expandable segments are given back in parts. */
static uint64_t unit_of(const struct tsr_allocator_config *a)
{
    uint64_t unit = a->large_segment_bytes ? a->large_segment_bytes : UINT64_C(20) << 20;
    return a->expandable_segments ? unit : 0;
}

static tsr_status set_options(struct tsr_run_gpu *g, const struct tsr_args *args,
                              const struct tsr_run_job *run)
{
    g->n = run->job.world;
    g->unit = unit_of(&run->job.settings->allocator);
    g->timeout_s = args->timeout ? (double)args->timeout : 300;
    g->force = args->force_nccl;
    g->deterministic = args->deterministic;
    g->direct = args->graphs && !strcmp(args->graphs, "off");
    g->serial = args->serial;
    g->poison = args->check;
    return tsr_nccl_options(args->comm, &g->nccl);
}

tsr_status tsr_run_gpu_open(const struct tsr_args *args, const struct tsr_launch *launch,
                            const struct tsr_run_job *run, struct tsr_world *world,
                            struct tsr_run_gpu **out)
{
    struct tsr_cuda_gpu gpu;
    struct tsr_run_gpu *g = calloc(1, sizeof *g);
    *out = NULL;
    tsr_status status = g ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory");
    if (g) {
        g->threads = world == NULL;
        status = set_options(g, args, run);
        if (status == TSR_OK)
            status = open_here(g, args, launch, run, &gpu);
    }
    status = tsr_world_agree(world, status);
    if (status == TSR_OK && world)
        status = check_cards(world, &gpu);
    if (status != TSR_OK) {
        tsr_run_gpu_close(g);
        return status;
    }
    tsr_run_gpu_plans(g->plans, sizeof g->plans);
    if (launch->rank == 0)
        tell(g, &gpu);
    *out = g;
    return TSR_OK;
}

tsr_status tsr_run_gpu_share(uint32_t n, struct tsr_run_gpu **out)
{
    struct tsr_run_gpu *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    *g = (struct tsr_run_gpu){.n = n,
                              .threads = true,
                              .shares = true,
                              .unit = UINT64_C(2) << 20,
                              .timeout_s = 60,
                              .deterministic = true,
                              .poison = true};
    tsr_status status = tsr_loopback_create(n, &g->loopback);
    if (status != TSR_OK)
        tsr_run_gpu_close(g);
    else
        *out = g;
    return status;
}

void tsr_run_gpu_close(struct tsr_run_gpu *g)
{
    if (g && g->loopback)
        tsr_loopback_destroy(g->loopback);
    free(g);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static tsr_status open_comms(const struct tsr_run_gpu *g, struct tsr_world *world,
                             struct tsr_comms **out)
{
    struct tsr_comms_config config = g->nccl;
    config.world = world;
    config.timeout_s = g->timeout_s;
    config.force = g->force;
    config.deterministic = g->deterministic;
    *out = NULL;
    if (g->loopback)
        return tsr_comms_loopback(g->loopback, &config, out);
    if (world && (world->size > 1 || g->force))
        return tsr_comms_nccl(&config, out);
    return TSR_OK;
}

/* The rank's thread is in a call of a library that does not end. */
static void end_program(void *user, tsr_status status, const char *why)
{
    (void)user;
    _exit(tsr_finish(tsr_fail(status, "%s", why), 0));
}

tsr_status tsr_run_gpu_rank(struct tsr_run_gpu *g, const struct tsr_run_gpu_rank *r,
                            struct tsr_executor **out, struct tsr_device **device)
{
    struct tsr_cuda_rank_config config = {
        .world = r->world,
        .source = r->source,
        .gpu = g->first + (g->threads && !g->shares ? (int)r->rank : 0),
        .unit = g->unit,
        .plans = g->plans[0] ? g->plans : NULL,
        .timeout_s = 1.5 * g->timeout_s + 10, /* the communicators know more: they are first */
        .tune = !g->deterministic,            /* the fastest differs from run to run */
        .deterministic = g->deterministic,
        .direct = g->direct,
        .serial = g->serial,
        .poison = g->poison,
        .profile = r->profile,
        .stuck = end_program,
        .watcher = r->watcher};
    TSR_TRY(open_comms(g, r->world, &config.comms));
    return tsr_cuda_rank_create(&config, out, device);
}

void tsr_run_gpu_tell_memory(const struct tsr_device *device, FILE *notes)
{
    struct tsr_cuda_memory m;
    char comms[256];
    if (!notes || tsr_cuda_device_memory(device, &m) != TSR_OK)
        return;
    fprintf(notes,
            "tessera: GPU memory: %.2f GiB of segments at most, %.2f GiB of scratch; %.2f of %.2f "
            "GiB in use by all\n",
            (double)m.peak / GIB, (double)m.library / GIB, (double)m.used / GIB,
            (double)m.total / GIB);
    tsr_cuda_device_comms(device, comms, sizeof comms);
    if (comms[0])
        fprintf(notes, "tessera: %s\n", comms);
    char note[1024];
    tsr_cuda_device_note(device, note, sizeof note);
    if (note[0])
        fprintf(notes, "tessera: %s\n", note);
}
