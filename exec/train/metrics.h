/* metrics.h: what a run says about its steps: lines for people, and JSON lines, one object a line.
 *
 *   {"step": 1, "loss": 8.1, "grad_norm": 1.4, "lr": 0.0003, "tokens": 8192, ...}
 *   {"step": 100, "eval_loss": 3.2, "eval_tokens": 65536}
 *
 * Steps count from 1. A figure that is not known is null; a loss or norm that is not finite is the
 * string "nan", "inf" or "-inf", since JSON has no such numbers. Reals have 9 digits, which give an
 * f32 back bit for bit.
 *
 * A line is written by one write(), and a last line without its end is dropped when the file is
 * opened again: after a crash the file has whole lines only. What was dropped, and what is missing,
 * is said (tsr_metric_log_remark()).
 */
#ifndef TSR_EXEC_METRICS_H
#define TSR_EXEC_METRICS_H

#include <math.h>
#include <stdio.h>

#include "engine/program/base.h"

/* NAN in a double, TSR_UNKNOWN in an integer: not known. Not for the loss, which always is, and the
 * norm, which has a flag: these may be NaN in earnest. */
#define TSR_UNKNOWN UINT64_MAX

/* A line of metrics: figures of one step as one rank sees them. */
struct tsr_step_record {
    uint64_t step;
    double loss;
    bool has_grad_norm;
    double grad_norm; /* before clipping */
    double lr;
    uint64_t tokens;          /* of the whole job since its first step */
    double tokens_per_second; /* of one rank */
    double tflops;            /* model TFLOP/s of one rank */
    double mfu, hfu;          /* of the card's peak, 0 to 1; recomputation counts in hfu only */
    uint64_t memory_allocated, memory_reserved; /* bytes: peaks of this rank */
    uint64_t memory_capacity;                   /* bytes of the device */
    bool modelled_device; /* memory is that of the device in the plan, not of this host */
    double step_s;        /* duration of the step */
    double data_s;        /* of it, waiting for the batch */
    double host_s;        /* of it, the host's own work: all but waiting for the device */
    double time_s;        /* since the job began */
    uint64_t skipped;     /* updates left out so far, as the gradient was not finite */
    uint64_t
        slow_paths; /* tasks of this rank so far that took a way many times slower than usual */
};

/* All figures unknown but the step and the loss. */
struct tsr_step_record tsr_step_record_of(uint64_t step, double loss);

struct tsr_metric_log;

/* Opens `path` for appending; creates it if there is none. Of what is there the lines up to
 * `last_step` stay (0: none, a new run), what is behind the first later one is cut off.
 * `every`: there should be a line for each multiple of it up to last_step; 0: nothing is expected.
 * Errors: TSR_EIO; TSR_ENOMEM; TSR_ECONFIG if there is a whole line that is no such object (the
 * file is left alone), or if it is no regular file (a symbolic link is not followed). */
tsr_status tsr_metric_log_open(const char *path, uint64_t last_step, uint64_t every,
                               struct tsr_metric_log **out) TSR_MUST_USE;
/* One line on what was wrong with the file: its last line was cut off, steps are missing. "": all
 * is well. */
const char *tsr_metric_log_remark(const struct tsr_metric_log *log);
/* Appends a line. TSR_EIO: it could not be written whole, and the file ends as before. */
tsr_status tsr_metric_log_step(struct tsr_metric_log *log,
                               const struct tsr_step_record *record) TSR_MUST_USE;
tsr_status tsr_metric_log_eval(struct tsr_metric_log *log, uint64_t step, double loss,
                               uint64_t tokens) TSR_MUST_USE;
/* Returns when all lines are on the disk: to be called before a checkpoint is declared complete. */
tsr_status tsr_metric_log_sync(struct tsr_metric_log *log) TSR_MUST_USE;
void tsr_metric_log_close(struct tsr_metric_log *log); /* NULL is allowed */

/* ---- lines for people ------------------------------------------------------------------------ */

/* Lines for people about steps, with torchtitan's keys, so that scripts that read its
 * output read ours:
 *
 *   step:  1  loss:  8.1309  grad_norm:  1.4027  memory:  1.20GiB(3.04%)  tps: 1,234  ...
 *   validate step:  1  loss:  8.1309  tps: 1,234
 *
 * where ... is `tflops: 0.12  mfu: 1.23%` on the same line.
 *
 * tps is tokens per second of one rank, memory the peak reserved. What is not known is n/a. Memory
 * of a device that is not there is marked: 1.20GiB(3.04% of the modelled device). */

/* Whether lines to `out` may have colours: it is a terminal, TERM is not "dumb", and NO_COLOR is
 * not set or empty (no-color.org). */
bool tsr_console_has_colour(FILE *out);

/* Writes the line of a step and flushes it. The stream stays the caller's. TSR_EIO: could not. */
tsr_status tsr_console_step(FILE *out, bool colour,
                            const struct tsr_step_record *record) TSR_MUST_USE;
tsr_status tsr_console_eval(FILE *out, bool colour, uint64_t step, double loss,
                            double tokens_per_second) TSR_MUST_USE;

#endif
