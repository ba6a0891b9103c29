/* run.h: what `tessera run --on host` and `--on cuda` are made of: a strategy as something to train
 * (run_job.c), what must hold before ranks compute (run_prepare.c), the folder of the run
 * (run_folder.c), its ranks (run_rank.c) as threads or processes (run_train.c).
 */
#ifndef TSR_CLI_RUN_H
#define TSR_CLI_RUN_H

#include "exec/files/hf_names.h"
#include "exec/launch/launch.h"
#include "exec/train/train.h"
#include "exec/world/world.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/gpu/gpus.h"
#include "experiments/study/job/job.h"

/* ---- the job --------------------------------------------------------------------------------- */

enum { TSR_RUN_MAX_FILES = 64 };

/* What a run is made of; owns it all. has_experiment and has_job say how far opening came. Lists
 * of files and the texts of `config` point into `paths` and `experiment`. */
struct tsr_run_job {
    struct tsr_experiment experiment;
    struct tsr_job job;
    bool has_experiment, has_job;
    const char *train_files[TSR_RUN_MAX_FILES], *val_files[TSR_RUN_MAX_FILES];
    char (*paths)[1024]; /* of files and weights */
    size_t n_paths;
    uint64_t peak_bytes;            /* memory that rank 0 takes of its machine ... */
    uint64_t device_bytes;          /* ... and of its GPU; on the host that is the machine's, too */
    uint64_t scratch_bytes;         /* of the GPU's libraries */
    struct tsr_train_config config; /* of rank 0; rank, data_rank and world are the caller's */
};

/* Loads, checks that the device has every kernel (by a step that nobody runs), and fills in what is
 * the same on all ranks. gpus: NULL for the host. On failure nothing is to be closed. */
tsr_status tsr_run_job_open(const struct tsr_args *args, const struct tsr_gpu_ops *gpus,
                            struct tsr_run_job *out) TSR_MUST_USE;
/* What must be the same on all ranks: a hash for each key and option, and its name. */
size_t tsr_run_job_n_hashes(void);
void tsr_run_job_hashes(const struct tsr_run_job *job, uint64_t *hashes);
const char *tsr_run_job_hash_name(size_t i);
void tsr_run_job_close(struct tsr_run_job *job);

/* A step that nobody runs: does the device have every kernel, what does the model's arithmetic
 * cost, how much memory will a rank take? */
struct tsr_run_rehearsal {
    double model_flops; /* of the step, of rank 0; FLOP */
    /* Of rank 0, the most at one time: device segments, memory of the host, both together. */
    uint64_t device_bytes, host_bytes, peak_bytes;
    uint64_t scratch_bytes; /* of the GPU's libraries, beside its segments */
};
/* Emits initialisation and a step of rank 0; then, if wanted, an evaluation and a save (NULL:
 * none). gpu: whose kernels are asked for; NULL: the host's. TSR_EUNSUPPORTED: one line that names
 * the kernel and the module. */
tsr_status tsr_run_rehearse(const struct tsr_job *job, const struct tsr_device_ops *gpu,
                            bool deterministic, bool evaluates, const enum tsr_save *save,
                            struct tsr_run_rehearsal *out) TSR_MUST_USE;

/* ---- before ranks compute -------------------------------------------------------------------- */

struct tsr_run {
    struct tsr_run_job job;
    bool has_job;
    int lock; /* of the folder; -1: none */
    struct tsr_train_result result;
};

/* All ranks call it; they fail together. world: of processes; NULL: all ranks are in this process.
 * TSR_ECONFIG: a mistake in file or options, the first rank whose keys or options differ from rank
 * 0's, a job of another size than the launcher started. To be closed in any case. */
tsr_status tsr_run_prepare(const struct tsr_args *args, const struct tsr_gpu_ops *gpus,
                           const struct tsr_launch *launch, struct tsr_world *world,
                           struct tsr_run *run) TSR_MUST_USE;
void tsr_run_close(struct tsr_run *run);

/* ---- the folder ------------------------------------------------------------------------------ */

/* Makes DIR if need be and claims it (DIR/lock) until *lock, a descriptor, is closed or the process
 * ends. resume: the run to go on from, or NULL. TSR_ECONFIG, naming the option: DIR cannot be
 * written, another run writes there, or it has checkpoints of a run that this one does not go on
 * from; resume is none. */
tsr_status tsr_run_folder_claim(const char *dir, const char *resume, int *lock) TSR_MUST_USE;
/* Writes DIR/run.json (atomically): how the model's names relate to Hugging Face's, and the
 * config.json that belongs to the model as it was run. */
tsr_status tsr_run_folder_write(const char *dir, const struct tsr_job *job,
                                const struct tsr_hf_model *hf) TSR_MUST_USE;

/* ---- ranks ----------------------------------------------------------------------------------- */

enum { TSR_RUN_TEXT_BYTES = 1024 };

/* One rank: training, an engine and an executor, made, run and closed by the thread that calls. */
struct tsr_run_rank {
    const struct tsr_run_job *run; /* borrowed, as all pointers here */
    const struct tsr_args *args;
    const volatile sig_atomic_t *stop;
    uint32_t rank;
    struct tsr_world *world;   /* NULL: one rank */
    struct tsr_gpus *gpus;     /* NULL: it runs on the host */
    struct tsr_device *device; /* of the GPU, while it runs; borrowed */
    /* Out: */
    struct tsr_train_result result;
    tsr_status status;
    char text[TSR_RUN_TEXT_BYTES]; /* of a failure; the other ranks have been told */
};

/* Fits pthread_create(); returns NULL. */
void *tsr_run_rank_main(void *rank);

/* Trains, ranks as threads or processes. gpus: NULL for the host. *success: an exit status that is
 * no failure of this process. */
tsr_status tsr_run_train(const struct tsr_args *args, const struct tsr_gpu_ops *gpus,
                         int *success) TSR_MUST_USE;

#endif
