/* source.h: where values come from that no kernel computes (initial parameters, batches,
 * checkpoints), and where those go that leave the program (losses, norms, checkpoints). An executor
 * is given one; every function may be called from any thread of the rank.
 */
#ifndef TSR_EXEC_SOURCE_H
#define TSR_EXEC_SOURCE_H

#include "engine/program/program.h"

enum { TSR_PIECE_DIMS = 4 };

/* A box of a parameter (or of an optimizer state of it): what one rank holds. Row-major in memory.
 */
struct tsr_piece {
    uint64_t name; /* tsr_hash_bytes() of the FQN */
    uint8_t what;  /* 0 parameter, 1 first state, 2 second state */
    uint8_t dtype;
    int n_dims;
    uint64_t shape[TSR_PIECE_DIMS], start[TSR_PIECE_DIMS], size[TSR_PIECE_DIMS];
    int init;        /* enum tsr_init_kind */
    double constant; /* standard deviation, or the value */
};

enum tsr_batch_part { TSR_BATCH_INPUT, TSR_BATCH_LABELS };

/* Where a run's values come from and where they go. A function that is NULL is one that the run
 * does not need: the executor refuses the instruction that asks for it. `out` and `in` are host
 * memory of the caller, for the time of the call unless a function says otherwise. */
struct tsr_source {
    void *user;
    /* The initial values of a piece, in its dtype. */
    tsr_status (*init)(void *user, const struct tsr_piece *piece, void *out);
    /* What init() writes is tsr_init_piece() of this seed, which a device may make by itself; NULL:
     * it is not. Lives as long as the source. */
    const uint64_t *init_seed;
    /* `bytes` of a micro-batch of this rank. dtype: i64 tokens, or floats. */
    tsr_status (*batch)(void *user, uint32_t iteration, uint32_t micro, enum tsr_batch_part part,
                        bool eval, tsr_dtype dtype, void *out, uint64_t bytes);
    tsr_status (*report)(void *user, uint32_t iteration, uint32_t micro, enum tsr_report what,
                         bool eval, double value);
    tsr_status (*read)(void *user, const struct tsr_piece *piece, void *out);
    tsr_status (*write)(void *user, const struct tsr_piece *piece, const void *in);
    /* As write(), but `in` stays as it is until join() has returned, so that it may be written by
     * then. A piece that cannot be written need not be told before the checkpoint is completed. */
    tsr_status (*lend)(void *user, const struct tsr_piece *piece, const void *in);
    tsr_status (*join)(void *user);
};

#endif
