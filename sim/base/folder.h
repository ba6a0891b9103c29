/* folder.h: folders that are opened once. Names in one are then opened, made, moved and removed in
 * that very folder, whatever happens to its path meanwhile, and no name in it is followed if it is
 * a symbolic link: what a program deletes, reads or writes beneath a folder lies beneath it.
 *
 * Where a folder may be NULL below, the name is a path as a user typed it, which may pass through
 * symbolic links.
 */
#ifndef TSR_BASE_FOLDER_H
#define TSR_BASE_FOLDER_H

#include "engine/program/base.h"

enum { TSR_PATH_BYTES = 4096 };

/* TSR_ECONFIG: longer than a path may be. */
tsr_status tsr_path(char out[TSR_PATH_BYTES], const char *fmt, ...) TSR_PRINTF(2, 3) TSR_MUST_USE;

struct tsr_folder {
    int fd;                    /* -1: closed */
    char path[TSR_PATH_BYTES]; /* as it was opened: for texts */
};
#define TSR_NO_FOLDER   \
    (struct tsr_folder) \
    {                   \
        .fd = -1        \
    }

/* As its user named it. Errors, here and below: TSR_ECONFIG where there is no folder, TSR_EIO for
 * what the system refuses; *out is closed then. */
tsr_status tsr_folder_open(const char *path, struct tsr_folder *out) TSR_MUST_USE;
/* A folder that this program made: its last name is no symbolic link. */
tsr_status tsr_folder_open_own(const char *path, struct tsr_folder *out) TSR_MUST_USE;
/* One in it, by its one name. */
tsr_status tsr_folder_enter(const struct tsr_folder *in, const char *name,
                            struct tsr_folder *out) TSR_MUST_USE;
/* The folder that a path lies in, and the name in it, which points into `path`. */
tsr_status tsr_folder_around(const char *path, struct tsr_folder *out,
                             const char **name) TSR_MUST_USE;
void tsr_folder_close(struct tsr_folder *folder); /* closed already is fine */

/* Makes a folder and those above it; fine if it is there. Errors: TSR_EIO. */
tsr_status tsr_make_folder(const char *path) TSR_MUST_USE;
/* The same of a folder beneath one that a user named: its last name is no symbolic link, else
 * TSR_ECONFIG. */
tsr_status tsr_make_own_folder(const char *path) TSR_MUST_USE;

/* "FOLDER/NAME", cut if it is too long: for texts. */
struct tsr_place_text {
    char text[TSR_PATH_BYTES];
};
struct tsr_place_text tsr_place(const struct tsr_folder *in, const char *name);

/* ---- what lies there ------------------------------------------------------------------------- */

enum tsr_kind {
    TSR_KIND_NONE, /* nothing of that name */
    TSR_KIND_FILE, /* a regular file */
    TSR_KIND_FOLDER,
    TSR_KIND_LINK, /* beneath a folder only */
    TSR_KIND_OTHER /* FIFO, device, socket; or it cannot be looked at */
};
enum tsr_kind tsr_kind_of(const struct tsr_folder *in, const char *name);
/* "is a FIFO", "is a symbolic link", ... : why it is no regular file; "" if it is, or is not there.
 */
const char *tsr_kind_text(const struct tsr_folder *in, const char *name);

/* Both are there, and the same. */
bool tsr_folder_is_same(const char *a, const char *b);
/* The path that the folder was opened by still leads to it. */
bool tsr_folder_is_in_place(const struct tsr_folder *folder);

/* Calls `visit` with each name in a folder but "." and "..", in no order, until it fails. */
typedef tsr_status (*tsr_visit_fn)(void *user, const struct tsr_folder *in, const char *name);
tsr_status tsr_folder_visit(const struct tsr_folder *folder, tsr_visit_fn visit,
                            void *user) TSR_MUST_USE;

#endif
