/* run_rehearsal.h: a step that nobody runs: does the device have every kernel, what does the
 * model's arithmetic cost, how much memory will a rank take?
 */
#ifndef TSR_CLI_RUN_REHEARSAL_H
#define TSR_CLI_RUN_REHEARSAL_H

#include "exec/executor/device.h"
#include "experiments/study/job/job.h"

struct tsr_run_rehearsal {
    double model_flops; /* of the step, of rank 0; FLOP */
    /* Of rank 0, the most at one time: device segments, memory of the host, both together. */
    uint64_t device_bytes, host_bytes, peak_bytes;
};

/* Emits initialisation and a step of rank 0; then, if wanted, an evaluation and a save (NULL:
 * none). gpu: whose kernels are asked for; NULL: the host's. TSR_EUNSUPPORTED: one line that names
 * the kernel and the module. */
tsr_status tsr_run_rehearse(const struct tsr_job *job, const struct tsr_device_ops *gpu,
                            bool evaluates, const enum tsr_save *save,
                            struct tsr_run_rehearsal *out) TSR_MUST_USE;

#endif
