/* calibrate_cmd.c: `tessera calibrate`: what was measured on a machine, or is in a log of nccl-
 * tests, in the forms that the simulator's fits read. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/calibrate/calibrate.h"
#include "experiments/cli/gpu/gpus.h"
#include "experiments/study/base/files.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/simulate/open.h"
#include "sim/base/files.h"
#include "sim/base/text_check.h"

/* ---- logs of nccl-tests ---------------------------------------------------------------------- */

/* What all_reduce_perf, all_gather_perf, ... printed, as a table. A log says its ranks ("#  Rank  0
 * ... on HOST device  0 [0x0f] NVIDIA H100 80GB HBM3") and a line per size: size, count, type,
 * reduction, root, then time (us), algbw and busbw (GB/s) and a count of wrong results, out of
 * place and in place. The collective is named by the log ("Collective test starting:
 * all_reduce_perf"), else by the name of its file, else by busbw over algbw. */

enum { MAX_LINE = 1024, MAX_HOSTS = 4096, HOST_BYTES = 64 };

struct point {
    double bytes, time_us, algbw, busbw; /* out of place; GB/s */
};

struct log {
    char collective[32]; /* as in nccl_busbw.csv */
    char gpu[96];        /* as the log says, without "NVIDIA" */
    uint32_t ranks, nodes;
    struct point *points; /* [n] */
    size_t n;
};

struct reader {
    const char *path;
    int line;
    struct log *log;
    size_t cap;
    char (*hosts)[HOST_BYTES]; /* [log->nodes] */
};

/* Words of programs and file names. */
static const struct {
    const char *word, *name;
} kinds[] = {{"all_reduce", "all_reduce"},         {"all_gather", "all_gather"},
             {"reduce_scatter", "reduce_scatter"}, {"alltoall", "all_to_all"},
             {"all_to_all", "all_to_all"},         {"broadcast", "broadcast"}};

static bool name_by(const char *text, struct log *log)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!strstr(text, kinds[i].word))
            continue;
        snprintf(log->collective, sizeof log->collective, "%s", kinds[i].name);
        return true;
    }
    return false;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static tsr_status add_host(struct reader *r, const char *host)
{
    struct log *log = r->log;
    for (uint32_t i = 0; i < log->nodes; i++)
        if (!strcmp(r->hosts[i], host))
            return TSR_OK;
    if (log->nodes == MAX_HOSTS)
        return tsr_fail(TSR_ECONFIG, "%s:%d: found more than %d hosts", r->path, r->line,
                        MAX_HOSTS);
    snprintf(r->hosts[log->nodes++], HOST_BYTES, "%s", host);
    return TSR_OK;
}

/* "#  Rank  0 Group  0 Pid 1234 on node1 device  0 [0x0f] NVIDIA H100 80GB HBM3" */
static tsr_status take_rank(struct reader *r, const char *text)
{
    static const char vendor[] = "NVIDIA ";
    char host[HOST_BYTES];
    const char *on = strstr(text, " on "), *bracket = strchr(text, ']');
    if (!on || !bracket || sscanf(on, " on %63s", host) != 1)
        return tsr_fail(TSR_ECONFIG,
                        "%s:%d: found a rank without host and device; allowed: \"# Rank N ... on "
                        "HOST device N [0x..] NAME\"",
                        r->path, r->line);
    const char *gpu = bracket + 1 + strspn(bracket + 1, " ");
    gpu += strncmp(gpu, vendor, sizeof vendor - 1) ? 0 : sizeof vendor - 1;
    if (strlen(gpu) >= sizeof r->log->gpu)
        return tsr_fail(TSR_ECONFIG,
                        "%s:%d: found a GPU with a name of %zu bytes, %.60s...; allowed: up to %zu",
                        r->path, r->line, strlen(gpu), gpu, sizeof r->log->gpu - 1);
    if (r->log->ranks && strcmp(gpu, r->log->gpu))
        return tsr_fail(TSR_ECONFIG, "%s:%d: found a %.60s beside a %.60s; allowed: equal GPUs",
                        r->path, r->line, gpu, r->log->gpu);
    snprintf(r->log->gpu, sizeof r->log->gpu, "%s", gpu);
    r->log->ranks++;
    return add_host(r, host);
}

static tsr_status take_size(struct reader *r, const char *text)
{
    struct point p;
    char type[32], redop[32], wrong[32];
    double count;
    int root, n = sscanf(text, "%lf %lf %31s %31s %d %lf %lf %lf %31s", &p.bytes, &count, type,
                         redop, &root, &p.time_us, &p.algbw, &p.busbw, wrong);
    bool are_numbers = n == 9 && isfinite(p.bytes) && isfinite(p.time_us) && isfinite(p.algbw) &&
                       isfinite(p.busbw);
    if (!are_numbers || p.bytes < 0 || p.time_us < 0)
        return tsr_fail(TSR_ECONFIG,
                        "%s:%d: found \"%.60s\"; allowed: size, count, type, redop, root, time, "
                        "algbw, busbw, #wrong",
                        r->path, r->line, text + strspn(text, " "));
    if (strcmp(wrong, "0") != 0 && strcmp(wrong, "N/A") != 0)
        return tsr_fail(TSR_ECONFIG, "%s:%d: found %s wrong results; allowed: 0, or N/A", r->path,
                        r->line, wrong);
    if (p.bytes < 1 || p.time_us <= 0)
        return TSR_OK;
    return TSR_PUSH(r->log->points, r->log->n, r->cap, p) ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status take_line(struct reader *r, char *text)
{
    const char *start = text + strspn(text, " \t");
    struct tsr_text_flaw flaw;
    bool is_size = *start >= '0' && *start <= '9';
    text[strcspn(text, "\r\n")] = 0;
    if (!is_size && *start != '#') /* what mpirun and the job's script print */
        return TSR_OK;
    if (tsr_text_find_flaw(text, strlen(text), &flaw))
        return tsr_fail(TSR_ECONFIG, "%s:%d: %s", r->path, r->line, flaw.text);
    if (is_size)
        return take_size(r, text);
    const char *word = start + 1 + strspn(start + 1, " ");
    if (!strncmp(word, "Rank", 4))
        return take_rank(r, word);
    if (strstr(word, "_perf"))
        (void)name_by(word, r->log);
    return TSR_OK;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* The ratio tells an all-reduce from the others, no more. */
static tsr_status name_collective(struct reader *r)
{
    struct log *log = r->log;
    const char *slash = strrchr(r->path, '/');
    if (log->collective[0] || name_by(slash ? slash + 1 : r->path, log))
        return TSR_OK;
    const struct point *last = &log->points[log->n - 1];
    double n = log->ranks, ratio = last->algbw > 0 ? last->busbw / last->algbw : 0;
    if (n > 2 && fabs(ratio - 2 * (n - 1) / n) < 0.02) {
        snprintf(log->collective, sizeof log->collective, "all_reduce");
        return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG,
                    "%s: does not say which collective it is of; allowed: a line with "
                    "all_gather_perf, or that word in the name of the file",
                    r->path);
}

static tsr_status finish(struct reader *r)
{
    if (!r->log->ranks)
        return tsr_fail(TSR_ECONFIG, "%s: found no line \"# Rank\"; allowed: a log of nccl-tests",
                        r->path);
    if (!r->log->n)
        return tsr_fail(TSR_ECONFIG, "%s: found no line of a size; allowed: a log of nccl-tests",
                        r->path);
    return name_collective(r);
}

static tsr_status read_lines(struct reader *r, FILE *file)
{
    char text[MAX_LINE];
    for (bool begins = true; fgets(text, sizeof text, file);) {
        bool ends = strchr(text, '\n') != NULL;
        r->line += begins;
        if (begins) /* what a longer line goes on with is no line */
            TSR_TRY(take_line(r, text));
        begins = ends;
    }
    if (ferror(file))
        return tsr_fail(TSR_ECONFIG, "%s: %s", r->path, strerror(errno));
    return finish(r);
}

static void close_log(struct log *log)
{
    free(log->points);
    memset(log, 0, sizeof(*log));
}

/* Errors: TSR_ECONFIG with file and line (no ranks, no sizes, a line of another form, wrong
 * results, a collective that nothing names). On failure *out needs no close_log(). */
static tsr_status read_log(const char *path, struct log *out)
{
    struct reader r = {.path = path, .log = out};
    memset(out, 0, sizeof(*out));
    const char *why;
    FILE *file = tsr_file_stream(NULL, path, &why);
    if (!file)
        return tsr_fail(TSR_ECONFIG, "%s: cannot be opened: %s", path, why);
    r.hosts = calloc(MAX_HOSTS, sizeof(*r.hosts));
    tsr_status status = r.hosts ? read_lines(&r, file) : tsr_no_memory(NULL);
    fclose(file);
    free(r.hosts);
    if (status != TSR_OK)
        close_log(out);
    return status;
}

/* ---- what is written ------------------------------------------------------------------------- */

/* As CSV with the columns of nccl_busbw.csv: what `tessera validate` and the fit of collectives
 * read. `source`: the log, for the column source_path. */
static void print_log(FILE *out, const struct log *log, const char *source)
{
    fputs("collective,gpu,n_gpus,n_nodes,interconnect,nccl_or_stack,size_bytes,time_us,algbw_GBps,"
          "busbw_GBps,time_is,source_path\n",
          out);
    for (size_t i = 0; i < log->n; i++) {
        const struct point *p = &log->points[i];
        fprintf(out, "%s,", log->collective);
        tsr__put_csv(out, log->gpu);
        fprintf(out, ",%u,%u,,nccl-tests,%.0f,%.6g,%.6g,%.6g,measured,", log->ranks, log->nodes,
                p->bytes, p->time_us, p->algbw, p->busbw);
        tsr__put_csv(out, source);
        fputc('\n', out);
    }
}

struct import {
    const struct log *log;
    const char *source;
};

static tsr_status write_table(FILE *out, const void *user)
{
    const struct import *import = user;
    print_log(out, import->log, import->source);
    return TSR_OK;
}

/* Reads a log of nccl-tests and writes it to FILE `out` (NULL: stdout) as CSV. Errors: TSR_ECONFIG
 * with file and line. */
static tsr_status tsr_calibrate_import(const char *path, const char *out)
{
    struct log log;
    TSR_TRY(tsr_prepare_file("--out", out));
    TSR_TRY(read_log(path, &log));
    struct import import = {&log, path};
    tsr_status status =
        out ? tsr_write_output(out, write_table, &import) : write_table(stdout, &import);
    close_log(&log);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Collectives are timed for every number of ranks up to that; a node file has room for so many. */
enum { DEFAULT_RANKS = 8, MAX_RANKS = 10 };

/* A GPU is another program's, which takes the place of this one. */
static tsr_status find_device(const struct tsr_args *args, struct tsr_calibrated *out)
{
    if (!strcmp(args->on, "cuda")) {
        const struct tsr_gpu_ops *gpus;
        TSR_TRY(tsr_gpu_program(args->argv, &gpus));
        return gpus->calibrated(args, out);
    }
    if (strcmp(args->on, "host") != 0)
        return tsr_fail(TSR_ECONFIG, "calibrate: --on: found %s; allowed: host, cuda", args->on);
    if (args->comm || args->has_gpu)
        return tsr_fail(TSR_ECONFIG, "calibrate: %s: found with --on host; allowed: with --on cuda",
                        args->comm ? "--comm" : "--gpu");
    tsr_calibrated_host(out);
    return TSR_OK;
}

static tsr_status check_options(const struct tsr_usage *usage, const struct tsr_args *args)
{
    if (args->nccl_log)
        return tsr_fail(TSR_ECONFIG, "calibrate: found --on and --nccl-log; allowed: one of them");
    if (!args->out)
        return tsr_fail(TSR_ECONFIG,
                        "calibrate: --on: found no --out; allowed: tessera calibrate %s",
                        usage->synopsis);
    if (args->ranks > MAX_RANKS)
        return tsr_fail(TSR_ECONFIG, "calibrate: --ranks: found %llu; allowed: 1 to %d",
                        (unsigned long long)args->ranks, MAX_RANKS);
    return TSR_OK;
}

static tsr_status time_all(const struct tsr_calibrated *device, uint32_t ranks, const char *dir,
                           struct tsr_times *times)
{
    TSR_TRY(tsr_calibrate_kernels(device, times));
    TSR_TRY(tsr_calibrate_collectives(device, ranks, times));
    return tsr_calibrate_write(device, times, ranks, dir);
}

static tsr_status time_device(const struct tsr_usage *usage, const struct tsr_args *args)
{
    struct tsr_calibrated device;
    struct tsr_times times = {0};
    uint32_t ranks = args->ranks ? (uint32_t)args->ranks : DEFAULT_RANKS;
    TSR_TRY(check_options(usage, args));
    TSR_TRY(find_device(args, &device));
    if (args->ranks > device.ranks)
        return tsr_fail(TSR_ECONFIG,
                        "calibrate: --ranks: found %u; allowed: up to %u, a GPU for each, or "
                        "--comm loopback, where ranks share one",
                        ranks, device.ranks);
    TSR_TRY(tsr_prepare_out(args->out));
    ranks = ranks < device.ranks ? ranks : device.ranks;
    tsr_status status = time_all(&device, ranks, args->out, &times);
    tsr_times_fini(&times);
    return status;
}

tsr_status tsr_cmd_calibrate(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    if (args->file)
        return tsr_calibrate_trace(args);
    if (args->on)
        return time_device(usage, args);
    if (!args->nccl_log)
        return tsr_fail(TSR_ECONFIG, "calibrate: no log given; allowed: tessera calibrate %s",
                        usage->synopsis);
    return tsr_calibrate_import(args->nccl_log, args->out);
}
