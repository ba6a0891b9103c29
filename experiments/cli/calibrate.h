/* calibrate.h: what `tessera calibrate --on DEVICE` times, and the files it makes of that.
 *
 * Nothing is timed by code of its own: small trainings, whose programs the engine writes, run on
 * the executor of the device, whose spans are the times of kernels and whose issue times are those
 * of the host (calibrate_kernels.c); collectives are programs written by hand
 * (calibrate_collectives.c). So another device is calibrated by another struct tsr_calibrated.
 */
#ifndef TSR_CLI_CALIBRATE_H
#define TSR_CLI_CALIBRATE_H

#include "../../exec/executor.h"
#include "calibrate_times.h"

/* Dimensions of a small training that is timed. */
struct tsr_calibrate_size {
    uint32_t hidden, ffn, heads, kv_heads, vocab, seq, batch;
};

/* A device that can be calibrated. */
struct tsr_calibrated {
    const char *name; /* "host" */
    const char *what; /* in a description: "processor cores" */
    /* An executor of rank world->rank (NULL: a world of one) that keeps times; `watcher` sees every
     * instruction. Destroyed through its ops. */
    tsr_status (*rank)(struct tsr_world *world, const struct tsr_source *source,
                       struct tsr_executor *watcher, struct tsr_executor **out);
    const struct tsr_calibrate_size *sizes;
    size_t n_sizes;
    const uint64_t *collective_bytes; /* ascending, all above 4096 */
    size_t n_collective_bytes;
};
const struct tsr_calibrated *tsr_calibrated_host(void);

/* Times kernels and the host into `times`; and how many ranks the machine runs at full speed. */
tsr_status tsr_calibrate_kernels(const struct tsr_calibrated *device,
                                 struct tsr_times *times) TSR_MUST_USE;
/* Times the collectives of 2 to `most` ranks. */
tsr_status tsr_calibrate_collectives(const struct tsr_calibrated *device, uint32_t most,
                                     struct tsr_times *times) TSR_MUST_USE;

/* DIR/gpu-NAME.json, kernels-NAME.json, node-NAME.json, cluster-NAME.json: what `compare` takes as
 * a cluster. `ranks`: of the node. */
tsr_status tsr_calibrate_write(const struct tsr_calibrated *device, struct tsr_times *times,
                               uint32_t ranks, const char *dir) TSR_MUST_USE;

/* A rank as a thread of a group; all run `run` at once. */
struct tsr_calibrate_rank {
    const struct tsr_calibrated *device;
    const void *job;         /* what `run` works on; borrowed */
    struct tsr_world *world; /* NULL: alone */
    uint32_t rank, size;
    struct tsr_times *times; /* rank 0's; NULL: not kept */
    double seconds;          /* out: of a step, in kernels of the device */
    tsr_status status;
    char text[512];
};
typedef tsr_status (*tsr_calibrate_run_fn)(struct tsr_calibrate_rank *rank);
/* Runs n ranks to their ends: of one world, or each in its own. *seconds (may be NULL): rank 0's.
 */
tsr_status tsr_calibrate_group(const struct tsr_calibrated *device, const void *job, uint32_t n,
                               bool together, tsr_calibrate_run_fn run, struct tsr_times *times,
                               double *seconds) TSR_MUST_USE;

#endif
