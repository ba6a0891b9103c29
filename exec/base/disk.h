/* disk.h: how files are written so that a reader never sees half of one: the calls of the system
 * as a table (tests let any of them fail), files that grow in any order, and whole small files
 * that appear at once.
 *
 * Every failure is one line: path, call, reason. TSR_EIO for what the system refuses.
 */
#ifndef TSR_EXEC_DISK_H
#define TSR_EXEC_DISK_H

#include "engine/program/base.h"

enum { TSR_PATH_BYTES = 4096 };

/* As in POSIX: -1 and errno on failure. */
struct tsr_disk {
    void *user;
    int (*create)(void *user, const char *path); /* empty, to be written; a descriptor */
    int64_t (*write)(void *user, int fd, const void *data, size_t n, uint64_t offset);
    int (*sync)(void *user, int fd);
    int (*close)(void *user, int fd);
    int (*make_dir)(void *user, const char *path);
    int (*sync_dir)(void *user, const char *path); /* the names in it */
    int (*rename)(void *user, const char *from, const char *to);
    int (*remove)(void *user, const char *path); /* a file or an empty directory */
};
extern const struct tsr_disk tsr_disk_posix;

/* TSR_ECONFIG: longer than a path may be. */
tsr_status tsr_path(char out[TSR_PATH_BYTES], const char *fmt, ...) TSR_PRINTF(2, 3) TSR_MUST_USE;

/* Text for an error line: control characters and what is not ASCII become '?'; cut if too long. */
struct tsr_shown {
    char text[160];
};
struct tsr_shown tsr_show(const char *text);

/* ---- files ----------------------------------------------------------------------------------- */

struct tsr_out_file {
    const struct tsr_disk *disk;
    char *path; /* owned; NULL: closed */
    int fd;
};
tsr_status tsr_out_create(struct tsr_out_file *f, const struct tsr_disk *disk,
                          const char *path) TSR_MUST_USE;
/* May be called from several threads at once. */
tsr_status tsr_out_write(const struct tsr_out_file *f, const void *data, uint64_t bytes,
                         uint64_t offset) TSR_MUST_USE;
/* Data reach the disk, then the file is closed. On failure it is closed and removed. */
tsr_status tsr_out_finish(struct tsr_out_file *f) TSR_MUST_USE;
/* Closes and removes it; nothing to do after tsr_out_finish(). */
void tsr_out_abandon(struct tsr_out_file *f);

/* A file of these bytes on the disk, under this very name: for places that nobody reads yet. */
tsr_status tsr_disk_write_file(const struct tsr_disk *disk, const char *path, const void *data,
                               size_t bytes) TSR_MUST_USE;
/* The same through PATH.tmp: at PATH there is the old file or the new one, never a part. */
tsr_status tsr_disk_replace_file(const struct tsr_disk *disk, const char *path, const void *data,
                                 size_t bytes) TSR_MUST_USE;
/* Renames and makes the new name last. */
tsr_status tsr_disk_move(const struct tsr_disk *disk, const char *from,
                         const char *to) TSR_MUST_USE;

/* ---- folders --------------------------------------------------------------------------------- */

/* With its parents; one that exists is fine. */
tsr_status tsr_disk_make_dirs(const struct tsr_disk *disk, const char *path) TSR_MUST_USE;
tsr_status tsr_disk_sync_dir(const struct tsr_disk *disk, const char *path) TSR_MUST_USE;
/* Removes a folder of files. No such folder is fine. */
tsr_status tsr_disk_remove_dir(const struct tsr_disk *disk, const char *path) TSR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

/* A whole small file with a 0 behind it; the caller frees it. TSR_ECONFIG: larger than `most`. */
tsr_status tsr_disk_read_file(const char *path, uint64_t most, char **data,
                              size_t *bytes) TSR_MUST_USE;
/* [offset, offset + bytes) of an open file; `path` is for the text. */
tsr_status tsr_disk_read(int fd, const char *path, uint64_t offset, void *out,
                         uint64_t bytes) TSR_MUST_USE;

#endif
