/* calibrate_times.h: times by what took them, as calibration collects them. The time of a thing is
 * the median of its samples: the machine may do other things in between. */
#ifndef TSR_CLI_CALIBRATE_TIMES_H
#define TSR_CLI_CALIBRATE_TIMES_H

#include "engine/program/program.h"

/* Samples of one quantity, seconds. */
struct tsr_durations {
    double *items;
    size_t n, cap;
};
/* 0 of none. Sorts the samples. */
double tsr_durations_median(struct tsr_durations *samples);

/* A kernel at one size. */
struct tsr_kernel_times {
    char name[48];
    uint8_t op, dtype; /* enum tsr_op_kind; of the arithmetic */
    bool per_flop;     /* of products and attention */
    double work;       /* FLOP or bytes */
    uint64_t dims[TSR_MAX_DIMS];
    struct tsr_durations seconds;
};

/* A collective at one size. */
struct tsr_collective_times {
    uint8_t kind; /* enum tsr_instr_kind */
    uint32_t ranks;
    uint64_t bytes;
    struct tsr_durations seconds;
};

/* What issuing costs the host, by kind of instruction. */
enum tsr_issue_time {
    TSR_ISSUE_LAUNCH,
    TSR_ISSUE_COLLECTIVE,
    TSR_ISSUE_EVENT,
    TSR_ISSUE_ALLOC,
    TSR_ISSUE_SEGMENT,
    TSR_N_ISSUE_TIMES
};

struct tsr_times {
    struct tsr_kernel_times *kernels;
    size_t n_kernels, cap_kernels;
    struct tsr_collective_times *collectives;
    size_t n_collectives, cap_collectives;
    struct tsr_durations host[TSR_N_ISSUE_TIMES];
    double effective_cores; /* as ranks that compute at once show; 0: not timed */
};
void tsr_times_fini(struct tsr_times *times);

/* Adds a run of a kernel; what has neither FLOP nor bytes is left out. */
tsr_status tsr_times_kernel(struct tsr_times *times, const struct tsr_work *work,
                            double seconds) TSR_MUST_USE;
tsr_status tsr_times_collective(struct tsr_times *times, const struct tsr_instr *instr,
                                uint32_t ranks, double seconds) TSR_MUST_USE;
/* Adds what the host took from one instruction to the next. */
tsr_status tsr_times_host(struct tsr_times *times, const struct tsr_instr *instr,
                          double seconds) TSR_MUST_USE;
/* By name, dtype, work; collectives by kind, ranks, bytes. */
void tsr_times_sort(struct tsr_times *times);
/* The highest rate of the kernels in `dtype` (NONE: any) that are counted in FLOP (or bytes), per
 * second; 0: none. */
double tsr_times_best_rate(const struct tsr_times *times, bool per_flop, tsr_dtype dtype);

#endif
