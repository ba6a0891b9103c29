/* train.h: the training loop of one rank: data, learning rate, losses, evaluation, checkpoints,
 * metrics; the steps themselves are the engine's, executed by an executor.
 *
 *   tsr_train_create()            opens data, weights and, to resume, the checkpoint
 *   tsr_train_source()            for the executor that is made next
 *   (executor, engine: the model is wrapped)
 *   tsr_train_run()               all steps
 *   tsr_train_destroy()
 *
 * Everything is called by the rank's host thread; the source's init may be called by others.
 */
#ifndef TSR_EXEC_TRAIN_H
#define TSR_EXEC_TRAIN_H

#include <signal.h>
#include <stdio.h>

#include "engine/program/base.h"
#include "engine/tessera.h"
#include "exec/executor/executor.h"
#include "exec/files/hf_names.h"

/* ---- the learning rate ----------------------------------------------------------------------- */

/* The learning rate as a function of the step.
 *
 * [Note: learning rate] t counts optimizer steps from 0, N is their number, W those of the warm-up.
 * The rate of step t is base * f(t), as PyTorch's LambdaLR(optimizer, f) gives it before step t:
 *     t < W:     f = (t + 1) / (W + 1)
 *     constant:  f = 1
 *     linear:    f = m + (1 - m) (1 - p)
 *     cosine:    f = m + (1 - m) (1 + cos(pi p)) / 2       p = (t + 1 - W) / (N - W + 1), at most 1
 * with m the ratio that the decay ends at. These are torchtitan's formulas (without its stable
 * phase): no step is wasted on a rate of 0, since f(0) > 0 and p < 1 in the last step. */

enum tsr_schedule_kind { TSR_SCHEDULE_CONSTANT, TSR_SCHEDULE_LINEAR, TSR_SCHEDULE_COSINE };

struct tsr_schedule {
    enum tsr_schedule_kind kind;
    double base;      /* learning rate at the peak */
    double min_ratio; /* m, 0 to 1 */
    uint64_t warmup_steps, total_steps;
};

/* TSR_ECONFIG: no steps, a warm-up longer than the run, a rate or ratio out of range. */
tsr_status tsr_schedule_check(const struct tsr_schedule *schedule) TSR_MUST_USE;
/* f(t); from t = N on it stays where the decay ends. */
double tsr_schedule_factor(const struct tsr_schedule *schedule, uint64_t step);
double tsr_learning_rate(const struct tsr_schedule *schedule, uint64_t step);

/* ---- training -------------------------------------------------------------------------------- */

/* What tsr_train_create() copies; strings, lists of files and `world` are borrowed until
 * tsr_train_destroy(). Ranks differ in world, rank and data_rank, and in what rank 0 alone is
 * given: console, notes, when_ready. */
struct tsr_train_config {
    struct tsr_world *world; /* borrowed; NULL: one rank */
    uint32_t rank, size;
    /* Which part of a global batch this rank trains on: ranks of one tensor-parallel group share
     * theirs. */
    uint32_t data_rank, data_size;

    /* data */
    const char *const *train_files, *const *val_files; /* none: random tokens, no evaluation */
    size_t n_train_files, n_val_files;
    bool sequential;
    uint64_t seq, n_vocab, seed;
    uint32_t n_micro, micro_batch;

    /* optimizer */
    struct tsr_schedule schedule; /* total_steps: where training ends */
    double beta1, beta2, eps, weight_decay, momentum, dampening, max_norm;
    int n_states; /* of the optimizer, per parameter */
    tsr_dtype state_dtype;

    uint64_t log_every, eval_every, eval_batches; /* eval_every 0: never */
    /* Of the run, and there already: metrics, checkpoints, flight records; NULL: none is written.
     */
    const char *dir;
    uint64_t save_every; /* 0: only at the end, and only if `dir` */
    bool leave_last;     /* nothing is saved at the end, unless the run is stopped before it */
    unsigned keep;
    bool async_save;    /* checkpoints are written by a thread while training goes on */
    enum tsr_save save; /* sharded ones; TSR_SAVE_SHARDED_ASYNC has a thread, too */
    /* A run to go on from (its latest checkpoint that is whole), or one checkpoint; NULL: none. */
    const char *resume_from;
    const char *weights; /* Hugging Face's; NULL: random initial values */
    struct tsr_hf_model hf;

    uint64_t config_hash; /* of everything that must be the same on all ranks */
    /* Initialised or resumed, before the first step; NULL: nothing. */
    tsr_status (*when_ready)(const void *user);
    const void *when_ready_user;
    /* After every step that has been submitted; NULL: nothing. */
    tsr_status (*after_step)(void *user, struct tsr_executor *executor, uint64_t step);
    void *after_step_user;
    FILE *console; /* rank 0: steps; NULL: quiet */
    FILE *notes;   /* rank 0: what else happened, in lines; NULL: quiet */
    uint64_t memory_capacity, flops_per_token; /* of the modelled device; model FLOP; 0: unknown */
    const volatile sig_atomic_t *stop;         /* set: save and end after this step; NULL: never */
};

struct tsr_train;

/* Copies the configuration; its strings are borrowed. All ranks call it, and fail together. On
 * failure *out is NULL. */
tsr_status tsr_train_create(const struct tsr_train_config *config,
                            struct tsr_train **out) TSR_MUST_USE;
void tsr_train_destroy(struct tsr_train *train); /* NULL is fine */
struct tsr_source tsr_train_source(struct tsr_train *train);

struct tsr_train_result {
    uint64_t first_step, last_step; /* steps done in this run: first_step + 1 ... last_step */
    double loss, eval_loss;         /* the latest; NaN: none */
    bool stopped;                   /* before the end, because of `stop` */
    bool had_ended;                 /* the checkpoint was that of the end: nothing was done */
};

/* Initialises, resumes, trains to the end of the schedule, saves. The engine is wrapped and
 * configured, and made with the executor. Errors: TSR_EPEER when another rank is lost,
 * TSR_EBACKEND when a loss, the norm of the gradients or a parameter is not finite, TSR_EDEFECT
 * when what ran is not the program. Checkpoints that are complete stay as they are. */
tsr_status tsr_train_run(struct tsr_train *train, struct tsr_engine *engine,
                         struct tsr_executor *executor,
                         struct tsr_train_result *result) TSR_MUST_USE;

#endif
