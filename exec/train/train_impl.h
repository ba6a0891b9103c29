/* train_impl.h: the training loop's own structures, for train*.c. */
#ifndef TSR_EXEC_TRAIN_IMPL_H
#define TSR_EXEC_TRAIN_IMPL_H

#include <stdatomic.h>

#include "engine/replay/replay.h"
#include "exec/base/source.h"
#include "exec/data/data.h"
#include "exec/files/checkpoint.h"
#include "exec/files/weights.h"
#include "exec/train/metrics.h"
#include "exec/train/train.h"

/* Owns its data, weights, checkpoints, log and step cache; engine and executor are borrowed for
 * tsr_train_run(). `step`, `position` and `tokens` are what a checkpoint keeps and are the same on
 * all ranks. All is the rank's host thread's, but for spoilt_name and what `saving.thread` has. */
struct tsr_train {
    struct tsr_train_config config;
    struct tsr_data *train, *val; /* NULL: random tokens; no evaluation */
    struct tsr_weights *weights;
    struct tsr_checkpoint *from; /* to resume; closed when it has been read */
    struct tsr_state_dict params;
    bool has_params;
    struct tsr_engine *engine;
    struct tsr_step_cache *steps; /* of the engine */
    bool told_graphs;             /* why there are none */
    struct tsr_executor *executor;
    struct tsr_checkpoint_writer *writer; /* while saving */
    struct tsr_saving {                   /* what is being saved */
        uint64_t step, position, tokens;
        char path[TSR_PATH_BYTES];
        bool *stateless;               /* owned */
        uint64_t *steps;               /* of the optimizer; owned */
        struct tsr_async_save *thread; /* NULL: there is none */
    } saving;
    _Atomic uint64_t spoilt_name; /* of a parameter to be saved that is not finite; 0: none */
    char saved[TSR_PATH_BYTES];   /* the last checkpoint that is complete; "": none */
    struct tsr_metric_log *log;   /* rank 0 */
    struct tsr_folder home;       /* config.dir, as it was at the beginning; rank 0 */

    uint64_t step;     /* done */
    uint64_t position; /* of the data: the next global batch */
    uint64_t eval_position;
    uint64_t tokens;       /* of the whole job */
    double loss_sum, norm; /* of the step at hand; sum over micro-batches */
    bool has_norm;
    uint32_t n_losses;
    double eval_sum;
    uint32_t n_evals;
    unsigned init_threads;
    double started, last_log; /* seconds of the monotonic clock */
    uint64_t logged_step;
};

double tsr_train_clock(void);

/* train_resume.c: the checkpoint to go on from; the same on all ranks. */
tsr_status tsr_train_open_checkpoint(struct tsr_train *t);

/* train_save.c */
tsr_status tsr_train_load(struct tsr_train *t);
/* With config.async_save it is complete later: when tsr_train_end_save() has returned. */
tsr_status tsr_train_save(struct tsr_train *t);
/* Waits for a save that was begun, if there is one, and completes it. All ranks. */
tsr_status tsr_train_end_save(struct tsr_train *t);
/* After a step: the pieces that it has lent are all that there are. */
void tsr_train_close_save(struct tsr_train *t);
/* What was lent is written, and the engine gives its memory back. Not inside a step. */
tsr_status tsr_train_join_save(struct tsr_train *t);
/* What was begun and is not complete goes. */
void tsr_train_drop_save(struct tsr_train *t);
/* This rank's thread still writes. */
bool tsr_train_is_saving(const struct tsr_train *t);
/* A piece as the program hands it out: put, or given to the thread. Lent: it may be read later. */
tsr_status tsr_train_write_piece(struct tsr_train *t, const struct tsr_piece *piece,
                                 const void *data, bool is_lent);
/* The thread has written all that it was lent, or has failed, which is told when the checkpoint is
 * completed. */
void tsr_train_wait_for_thread(struct tsr_train *t);
uint64_t tsr_train_model_hash(const struct tsr_state_dict *params);
uint64_t tsr_train_data_hash(const struct tsr_train *t);

/* train_log.c: what the ranks tell each other after a step. */
struct tsr_train_vote {
    double loss, norm;
    uint32_t has_norm, stop;
    uint32_t saving; /* a thread still writes a checkpoint */
    uint32_t bad;    /* 1 + the first rank whose loss or norm is not finite; 0: none */
};
/* Means over the ranks, and whether any wants to stop. */
tsr_status tsr_train_agree(struct tsr_train *t, struct tsr_train_vote *vote);
/* TSR_EBACKEND: the vote has a bad rank. */
tsr_status tsr_train_check(const struct tsr_train *t, const struct tsr_train_vote *vote);
/* A line for people, by rank 0. */
void tsr_train_note(const struct tsr_train *t, const char *fmt, ...) TSR_PRINTF(2, 3);
tsr_status tsr_train_open_log(struct tsr_train *t);
/* step_s: of the step; waited_s: of it, the host for the device. */
tsr_status tsr_train_log_step(struct tsr_train *t, const struct tsr_train_vote *vote, double lr,
                              double step_s, double waited_s);
tsr_status tsr_train_log_eval(struct tsr_train *t, double loss, double seconds);

#endif
