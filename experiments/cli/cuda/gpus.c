/* gpus.c: the GPUs of `run`, `trace` and `calibrate`: their options, which GPU is whose, whether
 * the job fits on it, and the executors of its ranks.
 */
#include "experiments/cli/gpu/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/cuda/device/cuda_device.h"
#include "exec/cuda/gpu/slow.h"
#include "exec/launch/launch.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/cuda/calibrate_gpu.h"
#include "experiments/study/base/files.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/oom.h"
#include "experiments/study/simulate/simulate.h"

#define GIB ((double)(1 << 30))

enum { MOST_CTAS = 64 };

struct opened {
    struct tsr_gpus base;
    uint32_t n;   /* ranks of the job */
    bool threads; /* they are; else this process is one */
    bool shares;  /* all on one GPU */
    int first;    /* GPU of rank 0 of the threads, or of this process */
    struct tsr_loopback *loopback;
    char plans[4096]; /* folder; "": none */
    uint64_t unit;    /* see struct tsr_cuda_device_config */
    double timeout_s;
    bool force, deterministic, direct, serial, poison, plain_attention;
    unsigned allow_slow;          /* see struct tsr_slow */
    struct tsr_comms_config nccl; /* what --comm says of it */
};

/* ---- options --------------------------------------------------------------------------------- */

static bool is_loopback(const struct tsr_args *args)
{
    return args->comm && !strcmp(args->comm, "loopback");
}

static tsr_status refuse(const char *found)
{
    return tsr_fail(TSR_ECONFIG,
                    "run: --comm: found %s; allowed: nccl, loopback, or nccl: with a list of "
                    "zero-cta, windows, reduce-ctas=N (1 to %d)",
                    found, MOST_CTAS);
}

static bool take_count(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = value >= 1 && value <= MOST_CTAS ? (int)value : 0;
    return end != text && *end == 0 && *out > 0;
}

static tsr_status take_word(const char *word, struct tsr_comms_config *out)
{
    static const char count[] = "reduce-ctas=";
    if (!strcmp(word, "zero-cta"))
        out->zero_cta = true;
    else if (!strcmp(word, "windows"))
        out->windows = true;
    else if (strncmp(word, count, sizeof count - 1) != 0 ||
             !take_count(word + sizeof count - 1, &out->reduce_ctas))
        return refuse(word);
    return TSR_OK;
}

/* What --comm says of NCCL: NULL or "nccl" with ":" and a list of "zero-cta", "windows",
 * "reduce-ctas=N" behind it; or "loopback". Sets zero_cta, windows and reduce_ctas of *out.
 * TSR_ECONFIG: something else. */
static tsr_status nccl_options(const char *how, struct tsr_comms_config *out)
{
    char list[128], *next = NULL;
    if (!how || !strcmp(how, "nccl") || !strcmp(how, "loopback"))
        return TSR_OK;
    if (strncmp(how, "nccl:", 5) != 0 || strlen(how) - 5 >= sizeof list)
        return refuse(how);
    (void)snprintf(list, sizeof list, "%s", how + 5);
    char *word = strtok_r(list, ",", &next);
    if (!word)
        return refuse(how);
    for (; word; word = strtok_r(NULL, ",", &next))
        TSR_TRY(take_word(word, out));
    return TSR_OK;
}

/* TESSERA_ATTENTION=plain leaves cuDNN out, which tells its rounding from a defect of ours. */
static tsr_status read_attention(bool *plain)
{
    const char *found = getenv("TESSERA_ATTENTION");
    *plain = found && !strcmp(found, "plain");
    return !found || !*found || *plain
               ? TSR_OK
               : tsr_fail(TSR_ECONFIG, "TESSERA_ATTENTION: found %.64s; allowed: plain, or unset",
                          found);
}

static tsr_status check(const struct tsr_args *args, bool threads)
{
    struct tsr_comms_config config;
    unsigned allowed;
    bool plain;
    TSR_TRY(nccl_options(args->comm, &config));
    TSR_TRY(read_attention(&plain));
    if (args->allow_slow)
        TSR_TRY(tsr_slow_allow(args->allow_slow, &allowed));
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

static tsr_status place_threads(struct opened *g, const struct tsr_args *args)
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
static tsr_status place_process(struct opened *g, const struct tsr_args *args,
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
        return tsr_no_memory(NULL);
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

/* ---- memory ---------------------------------------------------------------------------------- */

/* The same job on a card of which nothing but the allocator takes a part. */
static void put_on_card(const struct tsr_job *job, uint64_t bytes, struct tsr_settings *settings,
                        struct tsr_job *out)
{
    *settings = *job->settings;
    settings->alloc_limit = TSR_LIMIT_CARD;
    *out = *job;
    out->settings = settings;
    out->is_trial = true;
    out->cluster.gpu.visible_bytes = bytes;
    out->cluster.gpu.context_bytes = out->cluster.gpu.library_bytes = 0;
}

/* The request that fails, and what would fit; nothing where giving back what is cached is enough.
 */
static tsr_status find_request(const struct tsr_job *job, struct tsr_row *row)
{
    struct tsr_emission emission;
    tsr_row_begin(row, job);
    tsr_status status = tsr_emit_or_keep(job, &emission);
    if (status != TSR_OK && status != TSR_EOOM)
        return status;
    bool is_full = status == TSR_EOOM;
    status = is_full ? tsr_oom_report(job, &emission, NULL, row) : TSR_OK;
    tsr_emission_fini(&emission);
    if (status == TSR_OK && is_full)
        status = tsr_oom_remedy(job, row);
    return status;
}

/* What a rank has, and what it is predicted to take, in bytes. */
struct needs {
    uint64_t has, segments, scratch;
};

/* The job is larger than the GPU: emits it as on a card that has the rest for the allocator, up to
 * the request that does not fit. card: the GPU in words. Returns TSR_EOOM with one line, or what
 * went wrong on the way. */
static tsr_status out_of_memory(const struct tsr_job *job, const char *card,
                                const struct needs *needs)
{
    uint64_t left = needs->has > needs->scratch ? needs->has - needs->scratch : 1;
    char take[160];
    struct tsr_settings settings;
    struct tsr_job there;
    struct tsr_row row;
    snprintf(
        take, sizeof take,
        "%s has %.2f GiB free for a rank, predicted are %.2f GiB reserved and %.2f for cuBLASLt "
        "and cuDNN",
        card, (double)needs->has / TSR__GIB, (double)needs->segments / TSR__GIB,
        (double)needs->scratch / TSR__GIB);
    put_on_card(job, left, &settings, &there);
    TSR_TRY(find_request(&there, &row));
    if (!row.failure[0])
        return tsr_fail(TSR_EOOM,
                        "out of memory: %s; allocator.limit: card would give back what is cached",
                        take);
    return tsr_fail(TSR_EOOM, "%s; %s; %s", row.failure, take, row.remedy);
}

/* ---- opening --------------------------------------------------------------------------------- */

void tsr_gpu_plans(char *out, size_t size)
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

static tsr_status check_memory(const struct opened *g, const struct tsr_job *job,
                               struct needs *needs, const struct tsr_cuda_gpu *gpu)
{
    char card[300];
    needs->scratch = g->plain_attention ? 0 : needs->scratch; /* most of it is cuDNN's */
    needs->has = gpu->free_memory / (g->threads && g->shares ? g->n : 1);
    if (needs->segments + needs->scratch <= needs->has)
        return TSR_OK;
    snprintf(card, sizeof card, "GPU %d (%s)", gpu->index, gpu->name);
    return out_of_memory(job, card, needs);
}

static void tell(const struct opened *g, const struct tsr_cuda_gpu *gpu)
{
    fprintf(stderr, "tessera: GPU %d: %s, %.1f GiB, sm_%d; driver for CUDA %d.%d%s\n", gpu->index,
            gpu->name, (double)gpu->memory / GIB, gpu->architecture, gpu->driver / 1000,
            gpu->driver % 1000 / 10, g->loopback ? "; all ranks share it" : "");
}

/* Loading a kernel at its first launch may wait for what runs on the GPUs of this process, and a
 * collective that runs waits for the rank that loads: then all is loaded at the start. Before the
 * first call of CUDA. */
static void load_early(const struct opened *g, const struct tsr_args *args)
{
    if (g->threads && g->n > 1 && !is_loopback(args))
        (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static tsr_status open_here(struct opened *g, const struct tsr_args *args,
                            const struct tsr_launch *launch, const struct tsr_job *job,
                            struct needs *needs, struct tsr_cuda_gpu *gpu)
{
    load_early(g, args);
    if (g->threads)
        TSR_TRY(place_threads(g, args));
    else
        TSR_TRY(place_process(g, args, launch));
    TSR_TRY(tsr_gpu_open(g->first, gpu));
    TSR_TRY(check_memory(g, job, needs, gpu));
    return is_loopback(args) ? tsr_loopback_create(g->n, &g->loopback) : TSR_OK;
}

/* Expandable segments are given back in parts. */
static uint64_t unit_of(const struct tsr_allocator_config *a)
{
    uint64_t unit = a->large_segment_bytes ? a->large_segment_bytes : UINT64_C(20) << 20;
    return a->expandable_segments ? unit : 0;
}

static tsr_status set_options(struct opened *g, const struct tsr_args *args,
                              const struct tsr_job *job)
{
    g->n = job->world;
    g->unit = unit_of(&job->settings->allocator);
    g->timeout_s = args->timeout ? (double)args->timeout : 300;
    g->force = args->force_nccl;
    g->deterministic = args->deterministic;
    g->direct = args->graphs && !strcmp(args->graphs, "off");
    g->serial = args->serial;
    g->poison = args->check;
    if (args->allow_slow)
        TSR_TRY(tsr_slow_allow(args->allow_slow, &g->allow_slow));
    TSR_TRY(read_attention(&g->plain_attention));
    return nccl_options(args->comm, &g->nccl);
}

static const struct tsr_gpu_ops ops;

static void close_gpus(struct tsr_gpus *gpus)
{
    struct opened *g = (struct opened *)gpus;
    if (g && g->loopback)
        tsr_loopback_destroy(g->loopback);
    free(g);
}

static tsr_status open_gpus(const struct tsr_args *args, const struct tsr_launch *launch,
                            const struct tsr_job *job, uint64_t segments, uint64_t scratch,
                            struct tsr_world *world, struct tsr_gpus **out)
{
    struct needs needs = {.segments = segments, .scratch = scratch};
    struct tsr_cuda_gpu gpu;
    struct opened *g = calloc(1, sizeof *g);
    *out = NULL;
    tsr_status status = g ? TSR_OK : tsr_no_memory(NULL);
    if (g) {
        *g = (struct opened){.base = {.ops = &ops}, .threads = world == NULL};
        status = set_options(g, args, job);
        if (status == TSR_OK)
            status = open_here(g, args, launch, job, &needs, &gpu);
    }
    status = tsr_world_agree(world, status);
    if (status == TSR_OK && world)
        status = check_cards(world, &gpu);
    if (status != TSR_OK) {
        close_gpus(&g->base);
        return status;
    }
    tsr_gpu_plans(g->plans, sizeof g->plans);
    tsr_gpu_file_name(gpu.name, g->base.name);
    if (launch->rank == 0)
        tell(g, &gpu);
    *out = &g->base;
    return TSR_OK;
}

static tsr_status share(uint32_t n, struct tsr_gpus **out)
{
    struct opened *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return tsr_no_memory(NULL);
    *g = (struct opened){.base = {.ops = &ops},
                         .n = n,
                         .threads = true,
                         .shares = true,
                         .unit = UINT64_C(2) << 20,
                         .timeout_s = 60,
                         .deterministic = true,
                         .allow_slow = TSR_SLOW_ALL, /* numbers are looked at, not times */
                         .poison = true};
    tsr_status status = tsr_loopback_create(n, &g->loopback);
    if (status != TSR_OK) {
        close_gpus(&g->base);
        return status;
    }
    *out = &g->base;
    return TSR_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static tsr_status open_comms(const struct opened *g, struct tsr_world *world,
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

static tsr_status make_rank(struct tsr_gpus *gpus, const struct tsr_gpu_rank *r,
                            struct tsr_executor **out, struct tsr_device **device)
{
    const struct opened *g = (const struct opened *)gpus;
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
        .plain_attention = g->plain_attention,
        .allow_slow = g->allow_slow,
        .profile = r->profile,
        .stuck = end_program,
        .watcher = r->watcher};
    TSR_TRY(open_comms(g, r->world, &config.comms));
    return tsr_cuda_rank_create(&config, out, device);
}

static void tell_memory(const struct tsr_device *device, FILE *notes)
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

/* ---- the table ------------------------------------------------------------------------------- */

static const struct tsr_gpu_ops ops = {.kernels = tsr_cuda_device_ops,
                                       .check = check,
                                       .open = open_gpus,
                                       .share = share,
                                       .close = close_gpus,
                                       .rank = make_rank,
                                       .tell_memory = tell_memory,
                                       .calibrated = tsr_calibrated_cuda};

tsr_status tsr_gpu_program(char *const *argv, const struct tsr_gpu_ops **out)
{
    (void)argv; /* this is the program */
    *out = &ops;
    return TSR_OK;
}
