/* cost.h: how long a kernel or a copy takes alone on the card. Private to sim/. */
#ifndef TSR_SIM_COST_H
#define TSR_SIM_COST_H

#include <string.h>

#include "sim/card/gpu.h"

struct tsr__cost {
    double body_s;  /* work: scaled for a slow GPU */
    double start_s; /* start-up and tail of the kernel: scaled by latency_scale too */
};

/* Both times are finite. Errors: as tsr_cost_kernel(). */
tsr_status tsr__cost_kernel(const struct tsr_gpu *gpu, const struct tsr_kernel_choice *choice,
                            const struct tsr_work *work, struct tsr__cost *out) TSR_MUST_USE;
/* `bytes`, read and written together, through the card's memory. */
tsr_status tsr__cost_memory(const struct tsr_gpu *gpu, double bytes,
                            struct tsr__cost *out) TSR_MUST_USE;
/* Work of the host itself: HOST_OP, or a copy between two host buffers. */
double tsr__cost_host(double bytes);
/* cudaMalloc() and cudaFree() of a segment, beside the call itself; an idle device. */
double tsr__cost_segment(bool release, double bytes);

/* ---- parts of the model, one per kind of kernel: between the files of this folder -------------
 * Times are those of short runs: sustained factors come on top. */

/* `seconds` of a measured kernel as start-up and work; the work takes at least `least_s`. */
static inline struct tsr__cost tsr__cost_split(double seconds, double start_s, double least_s)
{
    double start = seconds - least_s < start_s ? seconds - least_s : start_s;
    struct tsr__cost cost = {.body_s = least_s, .start_s = start > 0.0 ? start : 0.0};
    if (seconds - cost.start_s > least_s)
        cost.body_s = seconds - cost.start_s;
    return cost;
}

/* A product [m, n, k, batch] against the dense peak `peak` (enum tsr_peak), which is known, as the
 * memory bandwidth is. */
struct tsr__cost tsr__cost_matmul(const struct tsr_gpu *gpu, int peak, const uint64_t dims[4],
                                  double bytes);
/* The rate of an endless product with which the model of tiles reaches `achieved` FLOP/s at a
 * shape; at most twice that. */
double tsr__matmul_large_rate(const struct tsr_gpu *gpu, int peak, const uint64_t dims[4],
                              double achieved);
/* Time of the model of tiles on the card of a table, start-up included. */
double tsr__matmul_reference_seconds(const struct tsr_matmul_table *table,
                                     const struct tsr_card *card, const uint64_t dims[4]);
/* The table's shapes hold for this card: same architecture and multiprocessors. */
bool tsr__matmul_is_measured(const struct tsr_gpu *gpu, const struct tsr_matmul_table *table);

/* Seconds of the arithmetic of an attention kernel in half precision, against the peak `peak` (enum
 * tsr_peak: bf16 or fp16), which is known. Errors: TSR_ECONFIG for a kernel that the card does not
 * have. */
tsr_status tsr__cost_attention(const struct tsr_gpu *gpu, enum tsr_attention_kernel kernel,
                               int peak, const struct tsr_work *work, double *seconds) TSR_MUST_USE;

/* A kernel that was timed on this very card, by its name; false: it was not. */
bool tsr__cost_measured(const struct tsr_gpu *gpu, const struct tsr_work *work,
                        struct tsr__cost *out);
struct tsr__doc;
/* The list "measured" of an open file of kind "kernels", which is file number `card` of `out`.
 * Errors: TSR_ECONFIG. */
tsr_status tsr__measured_read(const struct tsr__doc *doc, uint8_t card,
                              struct tsr_kernels *out) TSR_MUST_USE;

#endif
