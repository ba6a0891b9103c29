/* calibrate_write.c: collects samples by kernel, collective and instruction, and makes the files
 * of a calibration of them: a device, its kernels, a node of ranks and a cluster of that node,
 * in the forms of experiments/clusters. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "experiments/cli/calibrate/calibrate.h"
#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/base/literals.h"
#include "experiments/study/base/paths.h"
#include "sim/base/quantile.h"
#include "sim/base/text.h"
#include "sim/cluster/cluster.h"

/* ---- times ----------------------------------------------------------------------------------- */

static tsr_status add_seconds(struct tsr_durations *s, double seconds)
{
    return TSR_PUSH(s->items, s->n, s->cap, seconds) ? TSR_OK : tsr_no_memory("times");
}

/* 0 of none. Sorts the samples. */
static double median_of(struct tsr_durations *s)
{
    if (s->n == 0)
        return 0;
    tsr_sort_ascending(s->items, s->n);
    return tsr_quantile(s->items, s->n, 0.5);
}

void tsr_times_fini(struct tsr_times *t)
{
    for (size_t i = 0; i < t->n_kernels; i++)
        free(t->kernels[i].seconds.items);
    for (size_t i = 0; i < t->n_collectives; i++)
        free(t->collectives[i].seconds.items);
    for (size_t i = 0; i < TSR_N_ISSUE_TIMES; i++)
        free(t->host[i].items);
    free(t->kernels);
    free(t->collectives);
    *t = (struct tsr_times){0};
}

/* ---- times are added ------------------------------------------------------------------------- */

static struct tsr_kernel_times describe(const struct tsr_work *work)
{
    bool per_flop = (work->op == TSR_OP_GEMM || work->op == TSR_OP_ATTENTION ||
                     work->op == TSR_OP_ATTENTION_BWD) &&
                    work->flops > 0;
    struct tsr_kernel_times k = {
        .op = work->op,
        .dtype = work->dtype,
        .per_flop = per_flop,
        .work = per_flop ? work->flops : (double)work->bytes_read + (double)work->bytes_written};
    snprintf(k.name, sizeof k.name, "%s", work->name ? work->name : "");
    memcpy(k.dims, work->dims, sizeof k.dims);
    return k;
}

static bool same_case(const struct tsr_kernel_times *a, const struct tsr_kernel_times *b)
{
    return a->work == b->work && a->dtype == b->dtype &&
           !memcmp(a->dims, b->dims, sizeof a->dims) && !strcmp(a->name, b->name);
}

tsr_status tsr_times_kernel(struct tsr_times *t, const struct tsr_work *work, double seconds)
{
    const struct tsr_kernel_times mine = describe(work);
    size_t i = 0;
    if (!*mine.name || mine.work < 1 || seconds <= 0)
        return TSR_OK;
    while (i < t->n_kernels && !same_case(&t->kernels[i], &mine))
        i++;
    if (i == t->n_kernels && !TSR_PUSH(t->kernels, t->n_kernels, t->cap_kernels, mine))
        return tsr_no_memory("times");
    return add_seconds(&t->kernels[i].seconds, seconds);
}

tsr_status tsr_times_collective(struct tsr_times *t, const struct tsr_instr *instr, uint32_t ranks,
                                double seconds)
{
    const struct tsr_collective_times mine = {
        .kind = instr->kind, .ranks = ranks, .bytes = instr->bytes};
    size_t i = 0;
    if (seconds <= 0)
        return TSR_OK;
    while (i < t->n_collectives &&
           (t->collectives[i].kind != mine.kind || t->collectives[i].ranks != ranks ||
            t->collectives[i].bytes != mine.bytes))
        i++;
    if (i == t->n_collectives &&
        !TSR_PUSH(t->collectives, t->n_collectives, t->cap_collectives, mine))
        return tsr_no_memory("times");
    return add_seconds(&t->collectives[i].seconds, seconds);
}

/* What waits says nothing of the host. */
tsr_status tsr_times_host(struct tsr_times *t, const struct tsr_instr *instr, double seconds)
{
    enum tsr_issue_time which;
    switch (instr->kind) {
    case TSR_OP:
    case TSR_COPY:
    case TSR_FILL:
        which = TSR_ISSUE_LAUNCH;
        break;
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
    case TSR_ALL_REDUCE:
        which = TSR_ISSUE_COLLECTIVE;
        break;
    case TSR_RECORD:
    case TSR_WAIT:
        which = TSR_ISSUE_EVENT;
        break;
    case TSR_ALLOC:
    case TSR_FREE:
        which = TSR_ISSUE_ALLOC;
        break;
    case TSR_SEGMENT_ALLOC:
        which = TSR_ISSUE_SEGMENT;
        break;
    default:
        return TSR_OK;
    }
    return seconds > 0 ? add_seconds(&t->host[which], seconds) : TSR_OK;
}

/* ---- times are used -------------------------------------------------------------------------- */

static int order(double a, double b)
{
    return (a > b) - (a < b);
}

static int by_kernel(const void *a, const void *b)
{
    const struct tsr_kernel_times *x = a, *y = b;
    int name = strcmp(x->name, y->name);
    if (name || x->dtype != y->dtype)
        return name ? name : order(x->dtype, y->dtype);
    return x->work != y->work ? order(x->work, y->work) : memcmp(x->dims, y->dims, sizeof x->dims);
}

static int by_collective(const void *a, const void *b)
{
    const struct tsr_collective_times *x = a, *y = b;
    if (x->kind != y->kind)
        return order(x->kind, y->kind);
    return x->ranks != y->ranks ? order(x->ranks, y->ranks)
                                : order((double)x->bytes, (double)y->bytes);
}

/* By name, dtype, work; collectives by kind, ranks, bytes. */
static void tsr_times_sort(struct tsr_times *t)
{
    if (t->n_kernels)
        qsort(t->kernels, t->n_kernels, sizeof *t->kernels, by_kernel);
    if (t->n_collectives)
        qsort(t->collectives, t->n_collectives, sizeof *t->collectives, by_collective);
}

/* The highest rate of the kernels in `dtype` (NONE: any) that are counted in FLOP (or bytes), per
 * second; 0: none. */
static double tsr_times_best_rate(const struct tsr_times *t, bool per_flop, tsr_dtype dtype)
{
    double best = 0;
    for (size_t i = 0; i < t->n_kernels; i++) {
        struct tsr_kernel_times *k = &t->kernels[i];
        double seconds = median_of(&k->seconds);
        bool counts = k->per_flop == per_flop && (!dtype || k->dtype == dtype);
        if (counts && k->work / seconds > best)
            best = k->work / seconds;
    }
    return best;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct files {
    const struct tsr_calibrated *device;
    struct tsr_times *times; /* sorted */
    uint32_t ranks;
    const char *dir;
    char source[320], words[120];
};

/* Numbers that a measurement has, no more. */
static json_t *number(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return json_real(strtod(text, NULL));
}

static json_t *or_null(double value)
{
    return value > 0 ? number(value) : json_null();
}

/* "measured in WHAT (GPU), tessera calibrate"; of this machine: "measured on NAME (2 processor
 * cores), DATE, tessera calibrate" */
static void set_source(struct files *f)
{
    char host[64] = "this machine", date[16] = "";
    if (f->device->source) {
        snprintf(f->source, sizeof f->source, "measured in %s (%s), tessera calibrate",
                 f->device->source, f->device->what);
        char what[44], source[44]; /* a description has room for both */
        tsr_text_show(what, sizeof what, f->device->what);
        tsr_text_show(source, sizeof source, f->device->source);
        snprintf(f->words, sizeof f->words, "%s, measured in %s", what, source);
        return;
    }
    time_t now = time(NULL);
    struct tm day;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "this machine");
    if (gmtime_r(&now, &day))
        (void)strftime(date, sizeof date, "%Y-%m-%d", &day);
    snprintf(f->source, sizeof f->source, "measured on %s (%s), %s, tessera calibrate", host,
             f->device->what, date);
    snprintf(f->words, sizeof f->words, "%.90s, measured %s", f->device->what, date);
}

static tsr_status print_json(FILE *out, const void *user)
{
    if (tsr_json_dump(user, out, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) != 0)
        return tsr_fail(TSR_EIO, "a calibration cannot be written");
    fputc('\n', out);
    return TSR_OK;
}

/* Takes `root`. */
static tsr_status write_json(const struct files *f, const char *kind, json_t *root)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%s.json", f->dir, kind, f->device->name);
    tsr_status status = root ? tsr_write_output(path, print_json, root) : tsr_no_memory(path);
    json_decref(root);
    return status;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static json_t *run_of(struct tsr_kernel_times *k)
{
    json_t *run = json_array();
    size_t n = TSR_MAX_DIMS;
    while (n > 0 && k->dims[n - 1] == 0)
        n--;
    json_array_append_new(run, number(k->work));
    json_array_append_new(run, number(median_of(&k->seconds) * 1e6));
    for (size_t i = 0; i < n; i++)
        json_array_append_new(run, json_integer((json_int_t)k->dims[i]));
    return run;
}

static bool same_kernel(const struct tsr_kernel_times *a, const struct tsr_kernel_times *b)
{
    return a->dtype == b->dtype && !strcmp(a->name, b->name);
}

static json_t *list_of_kernels(const struct files *f, size_t *n_runs)
{
    json_t *list = json_array(), *runs = NULL;
    struct tsr_times *t = f->times;
    *n_runs = 0;
    for (size_t i = 0; i < t->n_kernels; i++, ++*n_runs) {
        struct tsr_kernel_times *k = &t->kernels[i];
        if (i == 0 || !same_kernel(&t->kernels[i - 1], k)) {
            json_t *kernel = json_pack("{s:s, s:s, s:s, s:s, s:[]}", "kernel", k->name, "dtype",
                                       tsr_dtype_name((tsr_dtype)k->dtype), "per",
                                       k->per_flop ? "flop" : "byte", "source", f->source, "runs");
            runs = json_object_get(kernel, "runs");
            json_array_append_new(list, kernel);
        }
        json_array_append_new(runs, run_of(k));
    }
    return list;
}

static tsr_status write_kernels(const struct files *f)
{
    size_t n_runs;
    char text[160];
    json_t *list = list_of_kernels(f, &n_runs);
    size_t n = json_array_size(list);
    snprintf(text, sizeof text, "every kernel by its name: %zu of them in %zu runs, medians", n,
             n_runs);
    if (n > TSR_KERNEL_NAMES || n_runs > TSR_KERNEL_RUNS) {
        json_decref(list);
        return tsr_fail(TSR_EDEFECT,
                        "calibrate: found %zu kernels in %zu runs; a table has at most %d and %d",
                        n, n_runs, TSR_KERNEL_NAMES, TSR_KERNEL_RUNS);
    }
    return write_json(f, "kernels",
                      json_pack("{s:s, s:s, s:s, s:s, s:o}", "kind", "kernels", "name",
                                f->device->name, "gpu", f->device->name, "description", text,
                                "measured", list));
}

/* ---- the device ------------------------------------------------------------------------------ */

static double memory_bytes(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

static json_t *host_times(const struct files *f)
{
    static const char *const keys[TSR_N_ISSUE_TIMES] = {"launch_s", "collective_s", "event_s",
                                                        "alloc_s", "segment_s"};
    json_t *host = json_pack("{s:s}", "source", f->source);
    for (int i = 0; i < TSR_N_ISSUE_TIMES; i++)
        json_object_set_new(host, keys[i], or_null(median_of(&f->times->host[i])));
    return host;
}

/* Rates of what has no run of its own: the best of those that were measured. */
static tsr_status write_device(const struct files *f)
{
    const struct tsr_times *t = f->times;
    double bytes_per_s = tsr_times_best_rate(t, false, TSR_DTYPE_NONE);
    double any = tsr_times_best_rate(t, true, TSR_DTYPE_NONE);
    double f32 = tsr_times_best_rate(t, true, TSR_F32);
    if (f32 <= 0 && f->device->source) /* a trace of bf16 has norms in f32, no products */
        f32 = any;
    json_t *peaks =
        json_pack("{s:o, s:o, s:n, s:n, s:o, s:o}", "bf16", or_null(any), "fp16", or_null(any),
                  "fp8", "tf32", "fp32", or_null(f32), "fp64", or_null(any));
    json_t *bytes = f->device->memory ? json_integer((json_int_t)f->device->memory) : json_null();
    json_t *memory = json_pack("{s:o, s:o}", "visible_bytes", bytes, "bandwidth_bytes_per_s",
                               or_null(bytes_per_s));
    json_t *units = f->device->units ? json_integer(f->device->units) : json_null();
    return write_json(f, "gpu",
                      json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:n, s:{s:o}, s:[s], "
                                "s:o}",
                                "kind", "gpu", "name", f->device->name, "description", f->words,
                                "source", f->source, "architecture", f->device->family, "sm_count",
                                units, "memory", memory, "peak_dense_flop_per_s", peaks, "nvlink",
                                "pcie", "bandwidth_bytes_per_s_per_direction", or_null(bytes_per_s),
                                "kernels", f->device->name, "host", host_times(f)));
}

/* ---- node and cluster ------------------------------------------------------------------------ */

static json_t *list_of_collectives(const struct files *f)
{
    json_t *list = json_array(), *runs = NULL;
    struct tsr_times *t = f->times;
    for (size_t i = 0; i < t->n_collectives; i++) {
        struct tsr_collective_times *c = &t->collectives[i];
        if (i == 0 || c[-1].kind != c->kind || c[-1].ranks != c->ranks) {
            json_t *item = json_pack("{s:s, s:i, s:s, s:[]}", "kind", tsr_instr_kind_name(c->kind),
                                     "ranks", (int)c->ranks, "source", f->source, "runs");
            runs = json_object_get(item, "runs");
            json_array_append_new(list, item);
        }
        json_t *run = json_array();
        json_array_append_new(run, json_integer((json_int_t)c->bytes));
        json_array_append_new(run, number(median_of(&c->seconds) * 1e6));
        json_array_append_new(runs, run);
    }
    return list;
}

/* Of what has no run of its own: the rate of the largest all-gather, on each link of a ring. */
static double link_rate(const struct files *f)
{
    double best = 0;
    for (size_t i = 0; i < f->times->n_collectives; i++) {
        struct tsr_collective_times *c = &f->times->collectives[i];
        double seconds = median_of(&c->seconds), share = (c->ranks - 1.0) / c->ranks;
        if (c->kind == TSR_ALL_GATHER && seconds > 0)
            best = fmax(best, (double)c->bytes * share / seconds);
    }
    return best;
}

static tsr_status write_node(const struct files *f)
{
    const struct tsr_calibrated *d = f->device;
    bool shares = d->shared || d->cores;
    json_t *intra = json_pack("{s:s, s:o}", "type",
                              f->ranks == 1 ? "none"
                              : shares      ? "shared_memory"
                                            : "nvswitch",
                              "bandwidth_bytes_per_s_per_gpu_per_direction", or_null(link_rate(f)));
    json_t *host = json_pack("{s:s}", "source", f->source);
    if (!d->source)
        json_object_set_new(host, "memory_bytes", json_integer((json_int_t)memory_bytes()));
    if (shares)
        json_object_set_new(host, "cores", number(d->shared ? 1 : f->times->effective_cores));
    if (d->cores)
        json_object_set_new(host, "processor_cores", json_integer(d->cores));
    return write_json(f, "node",
                      json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:n, s:o, s:o}", "kind", "node",
                                "name", f->device->name, "description", f->words, "gpu",
                                f->device->name, "gpus_per_node", (int)f->ranks, "intra_node",
                                intra, "nics", "host", host, "collectives",
                                list_of_collectives(f)));
}

static tsr_status write_cluster(const struct files *f)
{
    return write_json(f, "cluster",
                      json_pack("{s:s, s:s, s:s, s:s, s:i, s:{s:s}}", "kind", "cluster", "name",
                                f->device->name, "description", f->words, "node", f->device->name,
                                "nodes", 1, "topology", "type", "single_node"));
}

/* Says on stderr what was written, and the command that takes it. */
static void tell_use(const struct files *f)
{
    char path[TSR_FILE_BYTES], key[TSR_FILE_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s/cluster-%s.json", f->dir, f->device->name);
    (void)snprintf(key, sizeof key, "cluster=%s", path);
    fprintf(stderr, "tessera: wrote %s and what it names; tessera compare FILE --set ",
            tsr_show_line(path).text);
    tsr__put_word(stderr, key);
    fputc('\n', stderr);
}

tsr_status tsr_calibrate_write(const struct tsr_calibrated *device, struct tsr_times *times,
                               uint32_t ranks, const char *dir)
{
    struct files f = {.device = device, .times = times, .ranks = ranks, .dir = dir};
    tsr_times_sort(times);
    set_source(&f);
    TSR_TRY(write_kernels(&f));
    TSR_TRY(write_device(&f));
    TSR_TRY(write_node(&f));
    TSR_TRY(write_cluster(&f));
    tell_use(&f);
    return TSR_OK;
}
