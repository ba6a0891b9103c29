/* gpu.h: one GPU type: what a device file, gpu-NAME.json, says of it (experiments/clusters), with
 * the kernel tables that it names; and how long a kernel takes on it.
 *
 * Units: bytes, bytes per second in one direction, FLOP per second (dense), seconds. A `null` in a
 * file is unknown and becomes 0 here; who needs the value fails or prints "?", nobody guesses.
 */
#ifndef TSR_SIM_GPU_H
#define TSR_SIM_GPU_H

#include "sim/card/calibration.h"
#include "sim/card/kernels.h"
#include "sim/card/traits.h"

/* What issuing an instruction costs the host, seconds, where it was timed (0: it was not): in place
 * of those defaults of sim/options.c that an experiment has not changed. */
struct tsr_host_times {
    double launch_s, collective_s, event_s, alloc_s, segment_s;
};

/* One type of GPU, complete in itself: it can be copied. Rates are of one card and one direction.
 * What is 0 is unknown, see above. */
struct tsr_gpu {
    char name[64], path[512]; /* path: the device file the figures come from */
    char description[128], architecture[32];
    uint32_t sm_count;
    struct tsr_gpu_traits traits;
    double clock_hz;        /* sustained under compute; 0: unknown */
    uint64_t visible_bytes; /* what a process can see */
    uint64_t context_bytes; /* of a CUDA context before any kernel is loaded */
    uint64_t library_bytes; /* device code and static memory of libraries and kernels */
    double memory_bw, pcie_bw, nvlink_bw;
    double peak_flops[TSR_N_PEAKS];
    double achievable_bf16, achievable_fp8; /* best matrix product that a public sweep found */
    double large_bf16, large_fp8; /* rate of an endless product: that one less its overheads */
    struct tsr_calibration calibration;
    struct tsr_host_times host;
    const struct tsr_kernels *kernels; /* measured tables, its own or those of another card; NULL:
                                          none. They belong to the store that the device file
                                          was read with. */
};

/* Reads gpu-NAME.json with the kernel tables that it names, which `store` keeps. Tables that are
 * not in its folder are looked for in `folders` (NULL-terminated; NULL: nowhere else). Errors:
 * TSR_ECONFIG with file, key, value and what is allowed. */
tsr_status tsr_gpu_load(const char *path, const char *const *folders,
                        struct tsr_kernel_store *store, struct tsr_gpu *out) TSR_MUST_USE;

/* Where the kernel times of a card come from, one line each ("matrix products: table sm90 (...), as
 * measured"), at most `n`; returns how many. */
size_t tsr_kernel_sources(const struct tsr_gpu *gpu, char (*out)[256], size_t n);

/* Seconds that a kernel takes alone on the card; what replay.c gives to SimGrid. Errors:
 * TSR_ECONFIG for a figure that the device file does not know. */
tsr_status tsr_cost_kernel(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                           const struct tsr_work *work, double *seconds) TSR_MUST_USE;
/* Returns the dense peak, FLOP/s, that the products of `work` count against: that of the dtype in
 * which they run. 0: the device file does not know it, or no card has one for this dtype. */
double tsr_work_peak(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                     const struct tsr_work *work);
/* Takes the measured point of exactly this kernel out of the tables; false: there is none. */
bool tsr_kernels_forget(struct tsr_kernels *kernels, const struct tsr_kernel_choice *choice,
                        const struct tsr_work *work);

/* The tables of a card, empty ones if it has none. */
const struct tsr_kernels *tsr_gpu_kernels(const struct tsr_gpu *gpu);

struct tsr__doc;
/* Reads an open device file; *out is zero before. Errors: as tsr_gpu_load(). */
tsr_status tsr__gpu_read(const struct tsr__doc *doc, struct tsr_gpu *out) TSR_MUST_USE;

#endif
