/* metrics.c: what a run says of its steps: JSON lines that a crash leaves whole, and lines for
 * people.
 */
#include "exec/train/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/base/files.h"
#include "sim/base/json_load.h"

enum { LINE_BYTES = 2048 };

struct tsr_metric_log {
    char *path;
    int fd;
    off_t end; /* of the last whole line */
    char remark[512];
};

struct tsr_step_record tsr_step_record_of(uint64_t step, double loss)
{
    return (struct tsr_step_record){.step = step,
                                    .loss = loss,
                                    .lr = NAN,
                                    .tokens = TSR_UNKNOWN,
                                    .tokens_per_second = NAN,
                                    .tflops = NAN,
                                    .mfu = NAN,
                                    .hfu = NAN,
                                    .memory_allocated = TSR_UNKNOWN,
                                    .memory_reserved = TSR_UNKNOWN,
                                    .memory_capacity = TSR_UNKNOWN,
                                    .step_s = NAN,
                                    .data_s = NAN,
                                    .host_s = NAN,
                                    .time_s = NAN,
                                    .skipped = TSR_UNKNOWN,
                                    .slow_paths = TSR_UNKNOWN};
}

static tsr_status failed(const struct tsr_metric_log *log, const char *what)
{
    return tsr_fail(TSR_EIO, "%s: cannot be %s: %s", log->path, what, strerror(errno));
}

/* ---- what is there already ------------------------------------------------------------------- */

/* The whole file, to be freed. */
static tsr_status read_all(const struct tsr_metric_log *log, uint64_t bytes, char **text)
{
    *text = malloc((size_t)bytes + 1);
    return *text ? tsr_file_read_at(log->fd, log->path, 0, *text, bytes) : tsr_no_memory(log->path);
}

/* The "step" of a line; false if it is not an object with one. */
static bool step_of(const char *line, size_t n, uint64_t *step)
{
    json_t *object = tsr_json_loadb(line, n, TSR_TEXT_VALUES, NULL);
    const json_t *value = json_object_get(object, "step"); /* NULL of anything but an object */
    bool good = json_is_integer(value) && json_integer_value(value) > 0;
    if (good)
        *step = (uint64_t)json_integer_value(value);
    json_decref(object);
    return good;
}

/* What is there: whole lines up to `kept`, the last of which is of step `last`; behind `whole` is a
 * line without its end. */
struct found {
    size_t kept, whole, n_lines;
    uint64_t last;
};

/* The part to keep: whole lines, up to the first of a later step. */
static tsr_status look(const struct tsr_metric_log *log, const char *text, size_t n,
                       uint64_t last_step, struct found *out)
{
    *out = (struct found){.kept = SIZE_MAX};
    for (const char *end; (end = memchr(text + out->whole, '\n', n - out->whole));) {
        uint64_t step = 0;
        out->n_lines++;
        if (!step_of(text + out->whole, (size_t)(end - text) - out->whole, &step))
            return tsr_fail(TSR_ECONFIG,
                            "%s:%zu: is not an object with a \"step\" from 1 on; allowed: metrics "
                            "of an earlier run, or no file",
                            log->path, out->n_lines);
        if (step > last_step && out->kept == SIZE_MAX)
            out->kept = out->whole;
        if (out->kept == SIZE_MAX)
            out->last = tsr_max_u64(out->last, step);
        out->whole = (size_t)(end - text) + 1;
    }
    out->kept = (size_t)tsr_min_u64(out->kept, out->whole);
    return TSR_OK;
}

/* Lines are on the disk before a checkpoint is complete: what is missing was lost since. */
static void remark(struct tsr_metric_log *log, const struct found *found, size_t n,
                   uint64_t last_step, uint64_t every)
{
    char cut[128] = "", gap[160] = "";
    if (found->whole < n)
        (void)snprintf(cut, sizeof cut, "line %zu was cut off (%zu bytes), and is dropped",
                       found->n_lines + 1, n - found->whole);
    if (every && found->last < last_step - last_step % every)
        (void)snprintf(gap, sizeof gap,
                       "no line of steps %" PRIu64 " to %" PRIu64 ": they were lost, and are not "
                       "computed again",
                       found->last + 1, last_step);
    if (*cut || *gap)
        (void)snprintf(log->remark, sizeof log->remark, "%s: %s%s%s", log->path, cut,
                       *cut && *gap ? "; " : "", gap);
}

static tsr_status take_over(struct tsr_metric_log *log, uint64_t bytes, uint64_t last_step,
                            uint64_t every)
{
    char *text = NULL;
    struct found found;
    tsr_status status = read_all(log, bytes, &text);
    if (status == TSR_OK)
        status = look(log, text, (size_t)bytes, last_step, &found);
    free(text);
    TSR_TRY(status);
    remark(log, &found, (size_t)bytes, last_step, every);
    log->end = (off_t)found.kept;
    if (ftruncate(log->fd, log->end) != 0)
        return failed(log, "cut to length");
    return TSR_OK;
}

static tsr_status open_file(struct tsr_metric_log *log, uint64_t last_step, uint64_t every)
{
    struct tsr_folder folder;
    const char *name, *why;
    uint64_t bytes = 0;
    if (tsr_folder_around(log->path, &folder, &name) != TSR_OK)
        return failed(log, "written");
    log->fd = tsr_file_open(&folder, name, TSR_OPEN_UPDATE, &bytes, &why);
    int error = errno;
    tsr_folder_close(&folder);
    if (log->fd >= 0)
        return take_over(log, bytes, last_step, every);
    if (error == EINVAL)
        return tsr_fail(TSR_ECONFIG, "%s: %s; allowed: a regular file, or none", log->path, why);
    return tsr_fail(TSR_EIO, "%s: cannot be written: %s", log->path, why);
}

tsr_status tsr_metric_log_open(const char *path, uint64_t last_step, uint64_t every,
                               struct tsr_metric_log **out)
{
    *out = NULL;
    struct tsr_metric_log *log = calloc(1, sizeof *log);
    if (log)
        log->path = strdup(path);
    if (!log || !log->path) {
        free(log);
        return tsr_no_memory(path);
    }
    log->fd = -1;
    tsr_status status = open_file(log, last_step, every);
    if (status != TSR_OK) {
        tsr_metric_log_close(log);
        return status;
    }
    *out = log;
    return TSR_OK;
}

const char *tsr_metric_log_remark(const struct tsr_metric_log *log)
{
    return log->remark;
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *real_or_text(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static json_t *integer_or_null(uint64_t value)
{
    return value == TSR_UNKNOWN ? json_null() : json_integer((json_int_t)value);
}

/* Writes the object as one line, and gives it up. */
static tsr_status append(struct tsr_metric_log *log, json_t *object)
{
    char line[LINE_BYTES];
    size_t flags = JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9);
    size_t n = object ? json_dumpb(object, line, sizeof line - 1, flags) : 0;
    json_decref(object);
    if (n == 0)
        return tsr_no_memory(log->path);
    TSR_CHECK(n < sizeof line);
    line[n++] = '\n';
    ssize_t done = write(log->fd, line, n);
    if (done == (ssize_t)n) {
        log->end += (off_t)n;
        return TSR_OK;
    }
    if (done >= 0)
        errno = ENOSPC; /* a regular file takes all, unless the disk is full */
    tsr_status status = failed(log, "written");
    if (done > 0 && ftruncate(log->fd, log->end) != 0) /* the next opening drops it */
        return tsr_fail(TSR_EIO, "%s: cannot be written, and ends in half a line: %s", log->path,
                        strerror(errno));
    return status;
}

tsr_status tsr_metric_log_step(struct tsr_metric_log *log, const struct tsr_step_record *r)
{
    return append(
        log,
        json_pack("{sI so so so so so so so so so so so sb so so so so so so}", "step",
                  (json_int_t)r->step, "loss", real_or_text(r->loss), "grad_norm",
                  r->has_grad_norm ? real_or_text(r->grad_norm) : json_null(), "lr",
                  real_or_null(r->lr), "tokens", integer_or_null(r->tokens), "tokens_per_second",
                  real_or_null(r->tokens_per_second), "tflops", real_or_null(r->tflops), "mfu",
                  real_or_null(r->mfu), "hfu", real_or_null(r->hfu), "memory_allocated_bytes",
                  integer_or_null(r->memory_allocated), "memory_reserved_bytes",
                  integer_or_null(r->memory_reserved), "memory_capacity_bytes",
                  integer_or_null(r->memory_capacity), "modelled_device", r->modelled_device,
                  "step_s", real_or_null(r->step_s), "data_s", real_or_null(r->data_s), "host_s",
                  real_or_null(r->host_s), "time_s", real_or_null(r->time_s), "skipped_updates",
                  integer_or_null(r->skipped), "slow_paths", integer_or_null(r->slow_paths)));
}

tsr_status tsr_metric_log_eval(struct tsr_metric_log *log, uint64_t step, double loss,
                               uint64_t tokens)
{
    return append(log, json_pack("{sI so so}", "step", (json_int_t)step, "eval_loss",
                                 real_or_text(loss), "eval_tokens", integer_or_null(tokens)));
}

tsr_status tsr_metric_log_sync(struct tsr_metric_log *log)
{
    return fdatasync(log->fd) == 0 ? TSR_OK : failed(log, "written");
}

void tsr_metric_log_close(struct tsr_metric_log *log)
{
    if (!log)
        return;
    if (log->fd >= 0)
        (void)close(log->fd);
    free(log->path);
    free(log);
}

/* ---- torchtitan's line for a step ------------------------------------------------------------ */

enum { FIELD_BYTES = 96 };

static const char red[] = "\033[31m", green[] = "\033[32m", yellow[] = "\033[33m",
                  blue[] = "\033[34m", magenta[] = "\033[35m", cyan[] = "\033[36m",
                  turquoise[] = "\033[96m", reset[] = "\033[39m";

bool tsr_console_has_colour(FILE *out)
{
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if (no_colour && *no_colour)
        return false;
    if (terminal && strcmp(terminal, "dumb") == 0)
        return false;
    return isatty(fileno(out)) == 1;
}

/* Commas after thousands: 1234567 is 1,234,567. */
static void with_commas(uint64_t value, char out[FIELD_BYTES])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

/* Rates and shares are never negative, and stay far below 2^63. */
static bool is_known(double value)
{
    return value >= 0 && value < 0x1p63;
}

/* With commas and two decimals, as Python's format ",.2f". */
static void format_tflops(double value, char out[FIELD_BYTES])
{
    (void)snprintf(out, FIELD_BYTES, "n/a");
    if (!is_known(value))
        return;
    char decimals[FIELD_BYTES];
    (void)snprintf(decimals, sizeof decimals, "%.2f", value);
    char *point = strchr(decimals, '.');
    TSR_CHECK(point);
    with_commas(strtoull(decimals, NULL, 10), out);
    (void)snprintf(out + strlen(out), FIELD_BYTES - strlen(out), "%s", point);
}

static void format_tps(double value, char out[FIELD_BYTES])
{
    (void)snprintf(out, FIELD_BYTES, "n/a");
    if (is_known(value))
        with_commas((uint64_t)llround(value), out);
}

static void format_memory(const struct tsr_step_record *r, char out[FIELD_BYTES])
{
    if (r->memory_reserved == TSR_UNKNOWN) {
        (void)snprintf(out, FIELD_BYTES, "n/a");
        return;
    }
    double gib = (double)r->memory_reserved / 0x1p30;
    const char *of = r->modelled_device ? " of the modelled device" : "";
    if (r->memory_capacity == TSR_UNKNOWN || r->memory_capacity == 0)
        (void)snprintf(out, FIELD_BYTES, "%5.2fGiB", gib);
    else
        (void)snprintf(out, FIELD_BYTES, "%5.2fGiB(%.2f%%%s)", gib,
                       100 * (double)r->memory_reserved / (double)r->memory_capacity, of);
}

static tsr_status finish(FILE *out, int written)
{
    if (written < 0 || fflush(out) != 0)
        return tsr_fail(TSR_EIO, "the line of a step cannot be written: %s", strerror(errno));
    return TSR_OK;
}

/* The code, or nothing. */
static const char *code(bool colour, const char *sequence)
{
    return colour ? sequence : "";
}

/* Writes a loss or a norm; printf() would give a NaN the sign of its bits. */
static void format_value(double value, char out[FIELD_BYTES])
{
    if (isnan(value))
        (void)snprintf(out, FIELD_BYTES, "%7s", "nan");
    else
        (void)snprintf(out, FIELD_BYTES, "%7.4f", value);
}

tsr_status tsr_console_step(FILE *out, bool colour, const struct tsr_step_record *r)
{
    char norm[FIELD_BYTES] = "n/a", memory[FIELD_BYTES], tps[FIELD_BYTES], tflops[FIELD_BYTES];
    char mfu[FIELD_BYTES] = "n/a", loss[FIELD_BYTES];
    format_value(r->loss, loss);
    if (r->has_grad_norm)
        format_value(r->grad_norm, norm);
    if (is_known(r->mfu))
        (void)snprintf(mfu, sizeof mfu, "%.2f%%", 100 * r->mfu);
    format_memory(r, memory);
    format_tps(r->tokens_per_second, tps);
    format_tflops(r->tflops, tflops);
    int n = fprintf(out,
                    "%sstep: %2" PRIu64 "  %sloss: %s  %sgrad_norm: %s  %smemory: %s  "
                    "%stps: %s  %stflops: %s  %smfu: %s%s\n",
                    code(colour, red), r->step, code(colour, green), loss, code(colour, yellow),
                    norm, code(colour, turquoise), memory, code(colour, blue), tps,
                    code(colour, cyan), tflops, code(colour, magenta), mfu, code(colour, reset));
    return finish(out, n);
}

tsr_status tsr_console_eval(FILE *out, bool colour, uint64_t step, double loss,
                            double tokens_per_second)
{
    char tps[FIELD_BYTES], text[FIELD_BYTES];
    format_value(loss, text);
    format_tps(tokens_per_second, tps);
    int n = fprintf(out, "%svalidate step: %2" PRIu64 "  %sloss: %s  %stps: %s%s\n",
                    code(colour, yellow), step, code(colour, green), text, code(colour, blue), tps,
                    code(colour, reset));
    return finish(out, n);
}
