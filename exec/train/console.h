/* console.h: lines for people about steps, with torchtitan's keys, so that scripts that read its
 * output read ours:
 *
 *   step:  1  loss:  8.1309  grad_norm:  1.4027  memory:  1.20GiB(3.04%)  tps: 1,234  ...
 *   validate step:  1  loss:  8.1309  tps: 1,234
 *
 * where ... is `tflops: 0.12  mfu: 1.23%` on the same line.
 *
 * tps is tokens per second of one rank, memory the peak reserved. What is not known is n/a. Memory
 * of a device that is not there is marked: 1.20GiB(3.04% of the modelled device).
 */
#ifndef TSR_CONSOLE_H
#define TSR_CONSOLE_H

#include "exec/train/metrics.h"

#include <stdio.h>

/* Whether lines to `out` may have colours: it is a terminal, TERM is not "dumb", and NO_COLOR is
 * not set or empty (no-color.org). */
bool tsr_console_has_colour(FILE *out);

/* Writes the line of a step and flushes it. The stream stays the caller's. TSR_EIO: could not. */
tsr_status tsr_console_step(FILE *out, bool colour,
                            const struct tsr_step_record *record) TSR_MUST_USE;
tsr_status tsr_console_eval(FILE *out, bool colour, uint64_t step, double loss,
                            double tokens_per_second) TSR_MUST_USE;

#endif
