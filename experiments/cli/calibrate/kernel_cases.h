/* kernel_cases.h: measured kernels of published tables as work for the cost model: rows of
 * gemm.csv, flash_attention.csv, norms_h200.csv and cross_entropy.csv, and of any table with their
 * columns.
 */
#ifndef TSR_CLI_KERNEL_CASES_H
#define TSR_CLI_KERNEL_CASES_H

#include "experiments/study/base/csv.h"
#include "sim/sim.h"

enum tsr_kernel_table {
    TSR_KERNELS_MATMUL,
    TSR_KERNELS_ATTENTION,
    TSR_KERNELS_NORMS,
    TSR_KERNELS_LOSS
};

/* One measured time of a row, and what took it. */
struct tsr_kernel_case {
    char name[96];           /* "bf16 1024x4096x512" */
    const char *device;      /* NAME of gpu-NAME.json; NULL: no such file */
    const char *reason;      /* why it is not modelled; NULL: it is */
    double measured_s;       /* 0: the row has no figure */
    struct tsr_work work[2]; /* they run one after the other */
    size_t n_work;
    struct tsr_kernel_choice choice;
};

enum { TSR_KERNEL_CASES = 2 }; /* of one row at most */

/* Which table it is, by its columns. Errors: TSR_ECONFIG with what is allowed. */
tsr_status tsr_kernel_table_of(const struct tsr_csv *csv, enum tsr_kernel_table *out) TSR_MUST_USE;

/* What a row measured: *n cases. Errors: TSR_ECONFIG with file, line and column. */
tsr_status tsr_kernel_cases(const struct tsr_csv *csv, enum tsr_kernel_table table,
                            const struct tsr_csv_row *row,
                            struct tsr_kernel_case out[TSR_KERNEL_CASES], size_t *n) TSR_MUST_USE;

#endif
