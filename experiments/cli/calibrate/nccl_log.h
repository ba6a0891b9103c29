/* nccl_log.h: what nccl-tests (all_reduce_perf, all_gather_perf, ...) printed, as a table.
 *
 * A log says its ranks ("#  Rank  0 ... on HOST device  0 [0x0f] NVIDIA H100 80GB HBM3") and a line
 * per size: size, count, type, reduction, root, then time (us), algbw and busbw (GB/s) and a count
 * of wrong results, out of place and in place. The collective is named by the log ("Collective test
 * starting: all_reduce_perf"), else by the name of its file, else by busbw over algbw.
 */
#ifndef TSR_CLI_NCCL_LOG_H
#define TSR_CLI_NCCL_LOG_H

#include <stdio.h>

#include "engine/program/base.h"

struct tsr_nccl_point {
    double bytes, time_us, algbw, busbw; /* out of place; GB/s */
};

struct tsr_nccl_log {
    char collective[32]; /* as in nccl_busbw.csv */
    char gpu[96];        /* as the log says, without "NVIDIA" */
    uint32_t ranks, nodes;
    struct tsr_nccl_point *points; /* [n] */
    size_t n;
};

/* Errors: TSR_ECONFIG with file and line (no ranks, no sizes, a line of another form, wrong
 * results, a collective that nothing names). On failure *out needs no tsr_nccl_log_fini(). */
tsr_status tsr_nccl_log_read(const char *path, struct tsr_nccl_log *out) TSR_MUST_USE;
void tsr_nccl_log_fini(struct tsr_nccl_log *log);

/* As CSV with the columns of nccl_busbw.csv: what `tessera validate` and the fit of collectives
 * read. `source`: the log, for the column source_path. */
void tsr_nccl_log_print(FILE *out, const struct tsr_nccl_log *log, const char *source);

#endif
