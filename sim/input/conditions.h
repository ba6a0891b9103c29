/* conditions.h: what a machine suffers from: slow GPUs, degraded links, the traffic of others,
 * noise. Input of a simulation, not a property of the cluster file.
 *
 * Ranks and links are counted as the job sees the cluster: rank r is its r-th GPU; adapter i is
 * adapter i % A of node i / A, where A is the number of adapters (or groups of adapters) that its
 * GPUs use; uplink i is that of the i-th group below the lowest tier of the network that is not
 * free of contention. A fault of a link holds for both directions.
 */
#ifndef TSR_SIM_CONDITIONS_H
#define TSR_SIM_CONDITIONS_H

#include "engine/program/base.h"

enum tsr_link_class { TSR_LINK_PORT, TSR_LINK_NIC, TSR_LINK_UPLINK, TSR_N_LINK_CLASSES };

struct tsr_slow_gpu {
    uint32_t rank;
    double factor; /* its kernels take this many times as long, above 0 */
};

struct tsr_link_fault {
    enum tsr_link_class link;
    uint32_t index;
    double share; /* of its rate that is left; 0: dead */
};

/* Bytes that somebody else sends from the GPU of one rank to that of another, again and again. */
struct tsr_traffic {
    uint32_t from, to;
    double bytes, period_s, start_s;
};

/* Lists are borrowed. */
struct tsr_faults {
    size_t n_slow, n_links;
    const struct tsr_slow_gpu *slow;
    const struct tsr_link_fault *links;
};
struct tsr_traffic_list {
    size_t n;
    const struct tsr_traffic *items;
};

struct tsr_conditions {
    struct tsr_faults faults;
    struct tsr_traffic_list traffic;
    bool reroute; /* a dead adapter's bytes go through the next one of the node; else the collective
                     fails */
    double background[TSR_N_LINK_CLASSES]; /* share of every link of a class that others take */
    /* Relative spread (sigma of a log-normal with mean 1) of each kernel's time, and of each GPU's
     * speed over the run. */
    double jitter_kernel, jitter_gpu;
    uint64_t seed;
};

/* Factor on the kernels of a rank, without noise; 1: as the card is. */
double tsr_slowness(const struct tsr_conditions *conditions, uint32_t rank);
/* Errors: TSR_ECONFIG; the text begins with the name of the experiment's key under `sim.`. */
tsr_status tsr_conditions_check(const struct tsr_conditions *conditions,
                                uint32_t world) TSR_MUST_USE;
/* A number in (0, 1), equally distributed; a function of its arguments only. */
double tsr_uniform(uint64_t seed, uint64_t what, uint64_t index);
/* A factor with mean 1 and log-normal spread `sigma`; a function of its arguments only. */
double tsr_noise(uint64_t seed, uint64_t what, uint64_t index, double sigma);
static inline bool tsr_is_noisy(const struct tsr_conditions *conditions)
{
    return conditions->jitter_kernel > 0.0 || conditions->jitter_gpu > 0.0;
}
const char *tsr_link_class_name(enum tsr_link_class link);

#endif
