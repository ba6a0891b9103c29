/* report_overlap.h: the overlap of a strategy's steady step as a table of collectives: made of its
 * programs and times, written to overlap.csv and overlap-frame.csv, and read back from there. So a
 * simulated and a measured run look alike to whoever reads them.
 */
#ifndef TSR_STUDY_REPORT_OVERLAP_H
#define TSR_STUDY_REPORT_OVERLAP_H

#include "experiments/study/job/result.h"
#include "sim/figures/overlap.h"

#include <stdio.h>

/* Times in seconds of the step: the end of the one before is 0. */
struct tsr_overlap_row {
    uint8_t kind; /* enum tsr_overlap_kind */
    /* "AG layers.5"; "model.layers.5"; "backward"; names of communicator and stream. Never NULL. */
    const char *name, *module, *phase, *comm, *stream;
    uint32_t micro;
    uint64_t bytes; /* of the big side */
    double issue, start, end;
    double hidden, exposed, beside, why[TSR_N_EXPOSURES]; /* see sim/figures/overlap.h */
};

/* Owns rows, and texts in the arena. What the figures mean: sim/figures/overlap.h; seconds. */
struct tsr_overlap_table {
    bool measured;
    const char *title; /* "Llama-3.1-8B, dgx-h100-1, 8 GPUs, fsdp" */
    uint32_t rank; /* whose times these are; of a folder that was read: 0, and has_rank is false */
    bool has_rank;
    uint32_t slow_rank; /* its kernels take slow_factor times as long; slow_factor 0 or 1: none */
    double slow_factor;
    double step_s, compute_s, comm_s, exposed_s, host_bound_s, unlaunched_s;
    struct tsr_overlap_row *rows; /* [n], in issue order */
    size_t n, cap;
    struct tsr_overlap_total kinds[TSR_N_OVERLAP_KINDS], all;
    struct tsr_arena arena; /* texts */
};

/* From the steady iteration of a detail. Errors: TSR_ENOMEM, those of tsr_overlap_of(). On failure
 * nothing is to be freed. */
tsr_status tsr_overlap_table_of(const struct tsr_study_info *info, const struct tsr_detail *detail,
                                struct tsr_overlap_table *out) TSR_MUST_USE;
/* From FOLDER/overlap.csv and overlap-frame.csv. Errors: TSR_ECONFIG with file and line. */
tsr_status tsr_overlap_table_read(const char *folder, struct tsr_overlap_table *out) TSR_MUST_USE;
void tsr_overlap_table_fini(struct tsr_overlap_table *table);

/* Writes both files to a folder that is there. */
tsr_status tsr_overlap_table_write(const char *folder,
                                   const struct tsr_overlap_table *table) TSR_MUST_USE;

/* The rows as CSV: the content of overlap.csv. */
void tsr_overlap_table_print(FILE *out, const struct tsr_overlap_table *table);

/* For the reader: appends a row and adds it to the sums; texts are copied. */
tsr_status tsr_overlap_table_add(struct tsr_overlap_table *table,
                                 const struct tsr_overlap_row *row) TSR_MUST_USE;

#endif
