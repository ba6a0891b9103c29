/* disk.h: how files are written so that a reader never sees half of one, and how what this program
 * made is removed: the calls of the system as a table (tests let any of them fail), files that grow
 * in any order, and whole small files that appear at once.
 *
 * Nothing is ever written into what is there: a file is made anew, and an old one of its name is
 * taken out of the way, if it is a regular file. What else has the name stays, and is named.
 *
 * Every failure is one line: path, call, reason. TSR_EIO for what the system refuses.
 */
#ifndef TSR_BASE_DISK_H
#define TSR_BASE_DISK_H

#include "sim/base/folder.h"

/* As in POSIX: -1 and errno on failure. `in`: as in folder.h. */
struct tsr_disk {
    void *user;
    /* New and empty, to be written; a descriptor. EEXIST: there is something else than a regular
     * file. */
    int (*create)(void *user, const struct tsr_folder *in, const char *name);
    int64_t (*write)(void *user, int fd, const void *data, size_t n, uint64_t offset);
    int (*sync)(void *user, int fd);
    int (*close)(void *user, int fd);
    int (*make_dir)(void *user, const struct tsr_folder *in, const char *name);
    int (*sync_dir)(void *user, const struct tsr_folder *dir); /* the names in it */
    int (*rename)(void *user, const struct tsr_folder *in, const char *from, const char *to);
    /* A file, a link or an empty folder. */
    int (*remove)(void *user, const struct tsr_folder *in, const char *name);
};
extern const struct tsr_disk tsr_disk_posix;

/* ---- files ----------------------------------------------------------------------------------- */

struct tsr_out_file {
    const struct tsr_disk *disk;
    const struct tsr_folder *in; /* borrowed; NULL: `name` is a path */
    char *name;                  /* owned; NULL: closed */
    int fd;
};
tsr_status tsr_out_create(struct tsr_out_file *f, const struct tsr_disk *disk,
                          const struct tsr_folder *in, const char *name) TSR_MUST_USE;
/* May be called from several threads at once. */
tsr_status tsr_out_write(const struct tsr_out_file *f, const void *data, uint64_t bytes,
                         uint64_t offset) TSR_MUST_USE;
/* Data reach the disk, then the file is closed. On failure it is closed and removed. */
tsr_status tsr_out_finish(struct tsr_out_file *f) TSR_MUST_USE;
/* Closes and removes it; nothing to do after tsr_out_finish(). */
void tsr_out_abandon(struct tsr_out_file *f);

/* A file of these bytes on the disk, under this very name: for places that nobody reads yet. */
tsr_status tsr_disk_write_file(const struct tsr_disk *disk, const struct tsr_folder *in,
                               const char *name, const void *data, size_t bytes) TSR_MUST_USE;
/* The same through NAME.tmp: at NAME there is the old file or the new one, never a part. */
tsr_status tsr_disk_replace_file(const struct tsr_disk *disk, const struct tsr_folder *in,
                                 const char *name, const void *data, size_t bytes) TSR_MUST_USE;
/* By a path: its folder is opened for it. */
tsr_status tsr_disk_replace_path(const struct tsr_disk *disk, const char *path, const void *data,
                                 size_t bytes) TSR_MUST_USE;
/* Renames in a folder, and makes the new name last. A symbolic link, a FIFO or a device at `to` is
 * not replaced: TSR_ECONFIG. */
tsr_status tsr_disk_move(const struct tsr_disk *disk, const struct tsr_folder *in, const char *from,
                         const char *to) TSR_MUST_USE;

/* ---- folders --------------------------------------------------------------------------------- */

/* With its parents; one that exists is fine. */
tsr_status tsr_disk_make_dirs(const struct tsr_disk *disk, const char *path) TSR_MUST_USE;
/* One in a folder; one that exists is fine, but no link to one. */
tsr_status tsr_disk_make_dir(const struct tsr_disk *disk, const struct tsr_folder *in,
                             const char *name) TSR_MUST_USE;
tsr_status tsr_disk_sync_dir(const struct tsr_disk *disk,
                             const struct tsr_folder *dir) TSR_MUST_USE;

/* True of the names of files that this program makes in such a folder. */
typedef bool (*tsr_is_ours_fn)(const char *name);
/* Removes a folder that this program made, with its files. No such folder is fine. Where it holds
 * anything else - another name, a folder, a link, no regular file - nothing of it is removed:
 * TSR_ECONFIG, with the name. A link to a folder is no folder. */
tsr_status tsr_disk_remove_dir(const struct tsr_disk *disk, const struct tsr_folder *in,
                               const char *name, tsr_is_ours_fn is_ours) TSR_MUST_USE;

#endif
