/* metrics.c: writes JSON lines that a crash leaves whole. */
#include "exec/train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

struct tsr_metric_log {
    char *path;
    int fd;
    off_t end; /* of the last whole line */
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
                                    .skipped = TSR_UNKNOWN};
}

static tsr_status failed(const struct tsr_metric_log *log, const char *what)
{
    return tsr_fail(TSR_EIO, "%s: cannot be %s: %s", log->path, what, strerror(errno));
}

/* ---- what is there already ------------------------------------------------------------------- */

/* The whole file, to be freed. */
static tsr_status read_all(const struct tsr_metric_log *log, char **text, size_t *n)
{
    struct stat info;
    *text = NULL;
    *n = 0;
    if (fstat(log->fd, &info) != 0)
        return failed(log, "read");
    if (!S_ISREG(info.st_mode))
        return tsr_fail(TSR_ECONFIG, "%s: is not a regular file", log->path);
    *text = malloc((size_t)info.st_size + 1);
    if (!*text)
        return tsr_no_memory(log->path);
    while (*n < (size_t)info.st_size) {
        ssize_t got = pread(log->fd, *text + *n, (size_t)info.st_size - *n, (off_t)*n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(log, "read");
        if (got == 0)
            break;
        *n += (size_t)got;
    }
    return TSR_OK;
}

/* The "step" of a line; false if it is not an object with one. */
static bool step_of(const char *line, size_t n, uint64_t *step)
{
    json_t *object = json_loadb(line, n, 0, NULL);
    const json_t *value = json_object_get(object, "step"); /* NULL of anything but an object */
    bool good = json_is_integer(value) && json_integer_value(value) > 0;
    if (good)
        *step = (uint64_t)json_integer_value(value);
    json_decref(object);
    return good;
}

/* The length of the part to keep: whole lines, up to the first of a later step. */
static tsr_status kept_length(const struct tsr_metric_log *log, const char *text, size_t n,
                              uint64_t last_step, off_t *kept)
{
    size_t at = 0, cut = n, line = 0;
    while (at < n) {
        const char *newline = memchr(text + at, '\n', n - at);
        if (!newline) {
            cut = tsr_min_u64(cut, at);
            break;
        }
        uint64_t step = 0;
        line++;
        if (!step_of(text + at, (size_t)(newline - text) - at, &step))
            return tsr_fail(TSR_ECONFIG,
                            "%s:%zu: is not an object with a \"step\" from 1 on; allowed: metrics "
                            "of an earlier run, or no file",
                            log->path, line);
        if (step > last_step)
            cut = tsr_min_u64(cut, at);
        at = (size_t)(newline - text) + 1;
    }
    *kept = (off_t)cut;
    return TSR_OK;
}

static tsr_status take_over(struct tsr_metric_log *log, uint64_t last_step)
{
    char *text;
    size_t n;
    tsr_status status = read_all(log, &text, &n);
    if (status == TSR_OK)
        status = kept_length(log, text, n, last_step, &log->end);
    free(text);
    TSR_TRY(status);
    if (ftruncate(log->fd, log->end) != 0)
        return failed(log, "cut to length");
    return TSR_OK;
}

tsr_status tsr_metric_log_open(const char *path, uint64_t last_step, struct tsr_metric_log **out)
{
    *out = NULL;
    struct tsr_metric_log *log = calloc(1, sizeof *log);
    if (log)
        log->path = strdup(path);
    if (!log || !log->path) {
        free(log);
        return tsr_no_memory(path);
    }
    log->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    tsr_status status = log->fd < 0 ? failed(log, "written") : take_over(log, last_step);
    if (status != TSR_OK) {
        tsr_metric_log_close(log);
        return status;
    }
    *out = log;
    return TSR_OK;
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
    return append(log, json_pack("{sI so so so so so so so so so so so sb so so so so so}", "step",
                                 (json_int_t)r->step, "loss", real_or_text(r->loss), "grad_norm",
                                 r->has_grad_norm ? real_or_text(r->grad_norm) : json_null(), "lr",
                                 real_or_null(r->lr), "tokens", integer_or_null(r->tokens),
                                 "tokens_per_second", real_or_null(r->tokens_per_second), "tflops",
                                 real_or_null(r->tflops), "mfu", real_or_null(r->mfu), "hfu",
                                 real_or_null(r->hfu), "memory_allocated_bytes",
                                 integer_or_null(r->memory_allocated), "memory_reserved_bytes",
                                 integer_or_null(r->memory_reserved), "memory_capacity_bytes",
                                 integer_or_null(r->memory_capacity), "modelled_device",
                                 r->modelled_device, "step_s", real_or_null(r->step_s), "data_s",
                                 real_or_null(r->data_s), "host_s", real_or_null(r->host_s),
                                 "time_s", real_or_null(r->time_s), "skipped_updates",
                                 integer_or_null(r->skipped)));
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
