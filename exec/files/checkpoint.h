/* checkpoint.h: training checkpoints, sharded: every rank writes what it holds, and any other
 * number of ranks, mesh or wrapping reads from it just the bytes that it needs.
 *
 *   DIR/step_00001000/
 *       rank_00000-of-00008.safetensors   param.FQN, state0.FQN to state2.FQN: shards, no padding
 *       meta.json                         layout of every tensor, and where training was
 *       COMMIT                            sizes and checksums of the others; written last
 *
 * As in PyTorch, each parameter has its own number of optimizer steps, those in which it had a
 * gradient ("optimizer_step" of its entry); one that never had a gradient has no states. In
 * checkpoints of before, which have no such numbers, every parameter has made all of the
 * optimizer's steps.
 *
 * A tensor that several ranks hold is written by the first of them. All is written in
 * step_00001000.tmp, which gets its name when it is complete and on the disk: whatever ends the
 * process, DIR holds the old checkpoints or the old ones and the new one. Of a rank's file COMMIT
 * has the checksum of the header, in which are those of its tensors: so one tensor can be verified
 * without reading the others.
 */
#ifndef TSR_EXEC_CHECKPOINT_H
#define TSR_EXEC_CHECKPOINT_H

#include "engine/layout/sharded_state.h"
#include "exec/base/source.h"
#include "sim/base/disk.h"

/* As in tsr_piece.what. */
enum tsr_checkpoint_part {
    TSR_PART_PARAM,
    TSR_PART_STATE0, /* AdamW: mean of gradients; SGD: momentum */
    TSR_PART_STATE1, /* AdamW: mean of their squares */
    TSR_PART_STATE2, /* AdamW with amsgrad: the largest of these means */
    TSR_N_PARTS
};

/* What there is to save. */
struct tsr_checkpoint_layout {
    const struct tsr_state_dict *params;
    int n_states;          /* 0 to 3 optimizer states, laid out as their parameter */
    tsr_dtype state_dtype; /* NONE: that of the parameter */
    const bool *stateless; /* [params->n] no gradient ever, or none is wanted; NULL: none */
    const uint64_t *steps; /* [params->n] of the optimizer, of those that are not stateless;
                              TSR_STEPS_UNKNOWN: not said. NULL: of none */
};
#define TSR_STEPS_UNKNOWN UINT64_MAX

struct tsr_checkpoint_scalar {
    const char *name; /* "optimizer_step" */
    double value;     /* finite */
};

/* Where training was. */
struct tsr_checkpoint_info {
    uint64_t model_hash, seed, data_position;
    size_t n_scalars;
    const struct tsr_checkpoint_scalar *scalars;
    const char
        *extra; /* an object as JSON text, kept as it is: mesh names, dtype policy; or NULL */
};

/* ---- writing --------------------------------------------------------------------------------- */

struct tsr_checkpoint_config {
    const char *dir; /* made if it is not there; its last name is no symbolic link */
    unsigned keep;   /* complete checkpoints that stay; 0: all */
    uint32_t rank, world;
    /* `bytes` of every rank in rank order (as tsr_world_ops.exchange); NULL: one rank. */
    tsr_status (*exchange)(void *user, const void *in, void *out, size_t bytes);
    void *user;
    const struct tsr_disk *disk; /* NULL: the real one */
};

struct tsr_checkpoint_writer;

/* All ranks call begin and commit; they fail together, with the text of the first rank that failed.
 * After a failed put, commit is still to be called: it tells the others. The config's strings are
 * copied, the layout is borrowed until destroy. A step that is there already is replaced. */
tsr_status tsr_checkpoint_begin(const struct tsr_checkpoint_config *config, uint64_t step,
                                const struct tsr_checkpoint_layout *layout,
                                struct tsr_checkpoint_writer **out) TSR_MUST_USE;
/* This rank's shard, without padding, of an entry of params. In any order, from any thread. Does
 * nothing where another rank writes it. Shards without elements need not be put. */
tsr_status tsr_checkpoint_put(struct tsr_checkpoint_writer *w, enum tsr_checkpoint_part part,
                              size_t entry, const void *local, uint64_t bytes) TSR_MUST_USE;
/* The same for a piece of a step program: found by the hash of its name. */
tsr_status tsr_checkpoint_put_piece(struct tsr_checkpoint_writer *w, const struct tsr_piece *piece,
                                    const void *local) TSR_MUST_USE;
/* This rank's file is complete and on the disk; from any thread, after the last put. Optional:
 * commit does it otherwise. A failure is commit's as well. */
tsr_status tsr_checkpoint_finish(struct tsr_checkpoint_writer *w) TSR_MUST_USE;
/* When it returns TSR_OK the checkpoint is on the disk, complete; older ones beyond `keep` are
 * removed. info: of rank 0. */
tsr_status tsr_checkpoint_commit(struct tsr_checkpoint_writer *w,
                                 const struct tsr_checkpoint_info *info) TSR_MUST_USE;
/* After a commit: why older checkpoints could not be removed; NULL: no such trouble. */
const char *tsr_checkpoint_trouble(const struct tsr_checkpoint_writer *w);
/* Removes what was not committed. NULL is fine. */
void tsr_checkpoint_writer_destroy(struct tsr_checkpoint_writer *w);

/* ---- reading --------------------------------------------------------------------------------- */

struct tsr_checkpoint;

/* Path of the newest complete checkpoint in DIR: its COMMIT and meta.json are whole and all files
 * have their sizes. DIR is the program's own and no symbolic link, nor is anything in it. Damaged
 * ones are passed over; *skipped (may be NULL) counts them, and the error text says what is wrong
 * with the newest of them. TSR_ECONFIG: there is none. */
tsr_status tsr_checkpoint_latest(const char *dir, char path[TSR_PATH_BYTES],
                                 unsigned *skipped) TSR_MUST_USE;
/* A checkpoint, or a folder of them: its latest. verify: the data of every tensor that is read are
 * compared with their checksums first, which reads all of the shard. */
tsr_status tsr_checkpoint_open(const char *path, bool verify,
                               struct tsr_checkpoint **out) TSR_MUST_USE;
void tsr_checkpoint_close(struct tsr_checkpoint *c); /* NULL is fine */

const char *tsr_checkpoint_path(const struct tsr_checkpoint *c);
uint64_t tsr_checkpoint_step(const struct tsr_checkpoint *c);
const struct tsr_checkpoint_layout *tsr_checkpoint_layout(const struct tsr_checkpoint *c);
const struct tsr_checkpoint_info *tsr_checkpoint_info(const struct tsr_checkpoint *c);
/* False: there is no such scalar. */
bool tsr_checkpoint_scalar(const struct tsr_checkpoint *c, const char *name, double *value);
/* NONE: the entry has no such part. */
tsr_dtype tsr_checkpoint_dtype(const struct tsr_checkpoint_layout *layout,
                               enum tsr_checkpoint_part part, size_t entry);

/* What `rank` holds of a tensor in layout `to`, without padding. From any thread. TSR_ECONFIG: the
 * checkpoint has no such tensor, or another shape or dtype. TSR_EIO: a file is damaged. */
tsr_status tsr_checkpoint_read(struct tsr_checkpoint *c, enum tsr_checkpoint_part part,
                               const char *fqn, tsr_dtype dtype, const struct tsr_dtensor *to,
                               uint32_t rank, void *out, uint64_t bytes) TSR_MUST_USE;
/* A piece of a step program, for `rank` of a state `to`. TSR_EDEFECT: `to` has no such piece. */
tsr_status tsr_checkpoint_read_piece(struct tsr_checkpoint *c, const struct tsr_state_dict *to,
                                     uint32_t rank, const struct tsr_piece *piece,
                                     void *out) TSR_MUST_USE;

#endif
