/* nccl_log.c: reads a log of nccl-tests (nccl_log.h). */
#include "experiments/cli/calibrate/nccl_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/report/report_text.h"

enum { MAX_LINE = 1024, MAX_HOSTS = 4096, HOST_BYTES = 64 };

struct reader {
    const char *path;
    int line;
    struct tsr_nccl_log *log;
    size_t cap;
    char (*hosts)[HOST_BYTES]; /* [log->nodes] */
};

/* Words of programs and file names. */
static const struct {
    const char *word, *name;
} kinds[] = {{"all_reduce", "all_reduce"},         {"all_gather", "all_gather"},
             {"reduce_scatter", "reduce_scatter"}, {"alltoall", "all_to_all"},
             {"all_to_all", "all_to_all"},         {"broadcast", "broadcast"}};

static bool name_by(const char *text, struct tsr_nccl_log *log)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!strstr(text, kinds[i].word))
            continue;
        snprintf(log->collective, sizeof log->collective, "%s", kinds[i].name);
        return true;
    }
    return false;
}

/* ---- lines ------------------------------------------------------------------------------- */

static tsr_status add_host(struct reader *r, const char *host)
{
    struct tsr_nccl_log *log = r->log;
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
    if (r->log->ranks && strcmp(gpu, r->log->gpu))
        return tsr_fail(TSR_ECONFIG, "%s:%d: found a %.60s beside a %.60s; allowed: equal GPUs",
                        r->path, r->line, gpu, r->log->gpu);
    snprintf(r->log->gpu, sizeof r->log->gpu, "%s", gpu);
    r->log->ranks++;
    return add_host(r, host);
}

static tsr_status take_size(struct reader *r, const char *text)
{
    struct tsr_nccl_point p;
    char type[32], redop[32], wrong[32];
    double count;
    int root, n = sscanf(text, "%lf %lf %31s %31s %d %lf %lf %lf %31s", &p.bytes, &count, type,
                         redop, &root, &p.time_us, &p.algbw, &p.busbw, wrong);
    if (n != 9 || p.bytes < 0 || p.time_us < 0)
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
    text[strcspn(text, "\r\n")] = 0;
    if (*start >= '0' && *start <= '9')
        return take_size(r, text);
    if (*start != '#') /* what mpirun and the job's script print */
        return TSR_OK;
    const char *word = start + 1 + strspn(start + 1, " ");
    if (!strncmp(word, "Rank", 4))
        return take_rank(r, word);
    if (strstr(word, "_perf"))
        (void)name_by(word, r->log);
    return TSR_OK;
}

/* ---- the log ----------------------------------------------------------------------------- */

/* The ratio tells an all-reduce from the others, no more. */
static tsr_status name_collective(struct reader *r)
{
    struct tsr_nccl_log *log = r->log;
    const char *slash = strrchr(r->path, '/');
    if (log->collective[0] || name_by(slash ? slash + 1 : r->path, log))
        return TSR_OK;
    const struct tsr_nccl_point *last = &log->points[log->n - 1];
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
    while (fgets(text, sizeof text, file)) {
        r->line++;
        TSR_TRY(take_line(r, text));
    }
    if (ferror(file))
        return tsr_fail(TSR_ECONFIG, "%s: %s", r->path, strerror(errno));
    return finish(r);
}

tsr_status tsr_nccl_log_read(const char *path, struct tsr_nccl_log *out)
{
    struct reader r = {.path = path, .log = out};
    memset(out, 0, sizeof(*out));
    FILE *file = fopen(path, "r");
    if (!file)
        return tsr_fail(TSR_ECONFIG, "%s: cannot be opened: %s", path, strerror(errno));
    r.hosts = calloc(MAX_HOSTS, sizeof(*r.hosts));
    tsr_status status = r.hosts ? read_lines(&r, file) : tsr_no_memory(NULL);
    fclose(file);
    free(r.hosts);
    if (status != TSR_OK)
        tsr_nccl_log_fini(out);
    return status;
}

void tsr_nccl_log_fini(struct tsr_nccl_log *log)
{
    free(log->points);
    memset(log, 0, sizeof(*log));
}

void tsr_nccl_log_print(FILE *out, const struct tsr_nccl_log *log, const char *source)
{
    fputs("collective,gpu,n_gpus,n_nodes,interconnect,nccl_or_stack,size_bytes,time_us,algbw_GBps,"
          "busbw_GBps,time_is,source_path\n",
          out);
    for (size_t i = 0; i < log->n; i++) {
        const struct tsr_nccl_point *p = &log->points[i];
        fprintf(out, "%s,", log->collective);
        tsr__put_csv(out, log->gpu);
        fprintf(out, ",%u,%u,,nccl-tests,%.0f,%.6g,%.6g,%.6g,measured,", log->ranks, log->nodes,
                p->bytes, p->time_us, p->algbw, p->busbw);
        tsr__put_csv(out, source);
        fputc('\n', out);
    }
}
