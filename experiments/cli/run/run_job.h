/* run_job.h: a strategy as something to train: what `tessera run` makes of the keys. */
#ifndef TSR_CLI_RUN_JOB_H
#define TSR_CLI_RUN_JOB_H

#include "exec/train/train.h"
#include "experiments/cli/args/args.h"
#include "experiments/study/job/job.h"

enum { TSR_RUN_MAX_FILES = 64 };

struct tsr_run_job {
    struct tsr_experiment experiment;
    struct tsr_job job;
    bool has_experiment, has_job;
    const char *train_files[TSR_RUN_MAX_FILES], *val_files[TSR_RUN_MAX_FILES];
    char (*paths)[1024]; /* of files and weights */
    size_t n_paths;
    uint64_t peak_bytes;            /* memory that rank 0 takes of its machine ... */
    uint64_t device_bytes;          /* ... and of its GPU; on the host that is the machine's, too */
    struct tsr_train_config config; /* of rank 0; rank, data_rank and world are the caller's */
};

/* Loads, checks that the host has every kernel (by a step that nobody runs), and fills in what is
 * the same on all ranks. On failure nothing is to be closed. */
tsr_status tsr_run_job_open(const struct tsr_args *args, struct tsr_run_job *out) TSR_MUST_USE;
/* What must be the same on all ranks: a hash for each key and option, and its name. */
size_t tsr_run_job_n_hashes(void);
void tsr_run_job_hashes(const struct tsr_run_job *job, uint64_t *hashes);
const char *tsr_run_job_hash_name(size_t i);
void tsr_run_job_close(struct tsr_run_job *job);

#endif
