/* kineto.h: a trace of PyTorch's profiler (Chrome's JSON as torch.profiler's export_chrome_trace()
 * writes it) as times of a calibration.
 */
#ifndef TSR_CLI_KINETO_H
#define TSR_CLI_KINETO_H

#include "experiments/cli/calibrate/calibrate.h"

/* What a trace says beside the times. */
struct tsr_kineto {
    char gpu[64];               /* as the driver names it; "": a trace of a processor */
    uint64_t memory;            /* bytes; 0: not known */
    uint32_t units, capability; /* multiprocessors; compute capability, 8.9 as 89; 0: not known */
    uint32_t group;             /* ranks of the largest group of a collective; 0: none */
    double seconds, kept;       /* in kernels (of a processor: in operators); of these in times */
    char missing[96];           /* the operator with most time that is not in times; "": none */
};

/* Adds kernels by operator and shape, launches, and collectives of up to `most` ranks to `times`.
 * Errors: TSR_ECONFIG with the file (no JSON, cut short, no events, more values than a recording
 * may have, nothing that is known), TSR_ENOMEM. */
tsr_status tsr_kineto_read(const char *path, uint32_t most, struct tsr_times *times,
                           struct tsr_kineto *out) TSR_MUST_USE;

/* One operator as the profiler recorded it: is it a kernel of the engine? (kineto_work.c) */
struct json_t;
/* False: no kernel has its name, or its inputs are not those of one. `args`: of the event. */
bool tsr_kineto_work(const char *name, const struct json_t *args, struct tsr_work *out);
/* Of PyTorch's names: "float", "c10::BFloat16", "BFloat16". NONE: another. */
tsr_dtype tsr_kineto_dtype(const char *name);

#endif
