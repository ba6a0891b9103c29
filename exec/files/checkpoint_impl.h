/* checkpoint_impl.h: what the files of the checkpoint share: names, meta.json and COMMIT. Private
 * to exec/.
 */
#ifndef TSR_EXEC_CHECKPOINT_IMPL_H
#define TSR_EXEC_CHECKPOINT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "exec/files/checkpoint.h"

/* ---- names ----------------------------------------------------------------------------------- */

enum { TSR_RANK_FILE_BYTES = 64 };

void tsr__rank_file(char out[TSR_RANK_FILE_BYTES], uint32_t rank, uint32_t world);
/* Returns "param", "state0", "state1" or "state2". */
const char *tsr__part_name(enum tsr_checkpoint_part part);
/* The rank that writes what `rank` holds: the one with the same coordinates where the tensor is
 * sharded, and 0 elsewhere. */
uint32_t tsr__first_holder(const struct tsr_dtensor *t, uint32_t rank);
/* Entry of a piece's name; the first of aliases. False: none. */
bool tsr__entry_by_hash(const struct tsr_state_dict *s, uint64_t name, size_t *entry);
/* The piece is what `rank` holds of the tensor. */
bool tsr__is_piece_of(const struct tsr_dtensor *t, uint32_t rank, const struct tsr_piece *piece);

/* ---- meta.json ------------------------------------------------------------------------------- */

struct tsr_meta {
    uint64_t step;
    struct tsr_state_dict params;
    struct tsr_checkpoint_layout layout; /* points into this */
    struct tsr_checkpoint_info info;
    bool *stateless;
    uint64_t *steps;
    struct tsr_checkpoint_scalar *scalars;
    struct tsr_arena text;
};

/* JSON text, to be freed. */
tsr_status tsr__meta_write(uint64_t step, const struct tsr_checkpoint_layout *layout,
                           const struct tsr_checkpoint_info *info, char **out) TSR_MUST_USE;
/* `out` must not move afterwards. On failure nothing is left. */
tsr_status tsr__meta_read(const char *path, const char *text, size_t n,
                          struct tsr_meta *out) TSR_MUST_USE;
void tsr__meta_fini(struct tsr_meta *meta);

/* ---- COMMIT ---------------------------------------------------------------------------------- */

struct tsr_commit_file {
    uint64_t bytes;
    uint64_t hash; /* rank files: of the header; meta.json: of all of it */
};
/* Files in this order: meta.json, then those of the ranks. */
struct tsr_commit {
    uint64_t step;
    uint32_t world;
    struct tsr_commit_file *files; /* [1 + world] */
};

tsr_status tsr__commit_write(const struct tsr_commit *commit, char **out) TSR_MUST_USE;
tsr_status tsr__commit_read(const char *path, const char *text, size_t n,
                            struct tsr_commit *out) TSR_MUST_USE;
void tsr__commit_fini(struct tsr_commit *commit);

/* ---- folders --------------------------------------------------------------------------------- */

/* COMMIT, sizes and meta.json of a folder. On failure nothing is left. */
tsr_status tsr__checkpoint_check(const struct tsr_folder *dir, struct tsr_commit *commit,
                                 struct tsr_meta *meta) TSR_MUST_USE;
/* The folder is a checkpoint, or was begun to be one. */
bool tsr__is_checkpoint(const char *path);

/* step_N, and step_N.old: one that was moved aside when its step was written again. */
struct tsr_step_dir {
    uint64_t step;
    bool is_old;
    bool is_part; /* step_N.tmp: not complete */
};
struct tsr_step_dirs {
    size_t n, cap;
    struct tsr_step_dir *items; /* newest first, of one step the old one last; to be freed */
};
tsr_status tsr__list_steps(const struct tsr_folder *dir, struct tsr_step_dirs *out) TSR_MUST_USE;
enum { TSR_STEP_NAME_BYTES = 64 };
void tsr__step_name(char out[TSR_STEP_NAME_BYTES], const struct tsr_step_dir *step);
/* The newest complete one of a folder of them, opened; as tsr_checkpoint_latest(). */
tsr_status tsr__open_latest(const char *dir, struct tsr_folder *out,
                            unsigned *skipped) TSR_MUST_USE;

/* Both remove folders that hold nothing but files of checkpoints. One that holds anything else is
 * left alone, and the others are removed all the same; the first failure counts. */
/* Removes what was begun and never completed. TSR_ECONFIG: something is left. */
tsr_status tsr__remove_parts(const struct tsr_disk *disk,
                             const struct tsr_folder *dir) TSR_MUST_USE;
/* Removes complete ones beyond the newest `keep` (0: none), those older than `newest` first; never
 * `newest`. And those that were moved aside. */
tsr_status tsr__remove_old(const struct tsr_disk *disk, const struct tsr_folder *dir,
                           uint64_t newest, unsigned keep) TSR_MUST_USE;
/* One of them. No such folder is fine. */
tsr_status tsr__remove_step(const struct tsr_disk *disk, const struct tsr_folder *dir,
                            const struct tsr_step_dir *step) TSR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

/* Files that are open at once: a rank rarely reads from more. */
enum { TSR_OPEN_FILES = 64 };

struct tsr_open_file {
    uint32_t rank;
    uint64_t last_used;
    struct tsr_safetensors *file; /* NULL: free */
    bool *verified;               /* [tensors] */
};

/* An open checkpoint: `commit` and `meta` are read once and constant; any thread may read tensors.
 * `open` keeps files open, the one that was used longest ago (by `clock`) gives way. */
struct tsr_checkpoint {
    struct tsr_folder folder;
    bool verify;
    struct tsr_commit commit;
    struct tsr_meta meta;
    atomic_uint_least64_t bytes_read; /* of tensors, without verification: tests look at it */
    pthread_mutex_t mutex;            /* of all below */
    uint64_t clock;
    struct tsr_open_file open[TSR_OPEN_FILES];
};

/* Of a folder, which is taken over and closed with it, or at once on failure. */
tsr_status tsr__checkpoint_open(struct tsr_folder *folder, bool verify,
                                struct tsr_checkpoint **out) TSR_MUST_USE;

#endif
