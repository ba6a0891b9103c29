/* run_rehearsal.h: a step that nobody runs: does the host have every kernel, what does the model's
 * arithmetic cost, how much memory will a rank take?
 */
#ifndef TSR_CLI_RUN_REHEARSAL_H
#define TSR_CLI_RUN_REHEARSAL_H

#include "job.h"

struct tsr_run_rehearsal {
    double model_flops;  /* of the step, of rank 0; FLOP */
    uint64_t peak_bytes; /* device segments and host memory of rank 0, the most at one time */
};

/* Emits initialisation and a step of rank 0; then, if wanted, an evaluation and a save.
 * TSR_EUNSUPPORTED: one line that names the kernel and the module. */
tsr_status tsr_run_rehearse(const struct tsr_job *job, bool evaluates, bool saves,
                            struct tsr_run_rehearsal *out) TSR_MUST_USE;

#endif
