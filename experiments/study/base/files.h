/* files.h: files that are written whole, and those of a folder copied. What is read is in
 * sim/base/files.h, folders in sim/base/folder.h. */
#ifndef TSR_STUDY_FILES_H
#define TSR_STUDY_FILES_H

#include <stddef.h>
#include <stdio.h>

#include "sim/base/files.h"

/* Copies the regular files of `from`, which is no symbolic link, into `to`, which is made; each is
 * complete under its name. The same folder: nothing. Errors: TSR_ECONFIG if `from` cannot be read,
 * TSR_EIO. */
tsr_status tsr_folder_copy(const char *from, const char *to) TSR_MUST_USE;

/* ---- output files ---------------------------------------------------------------------------- */

/* Output files that are complete under their name, or absent.
 *
 * A file is written under a temporary name in the same folder and renamed at the end. Beneath a
 * folder that a user named, a name that is no regular file (a symbolic link, a FIFO) is refused.
 * What a user named himself may be none: /dev/stdout, /dev/full and a pipe are written directly,
 * and of a symbolic link the link is replaced, never the file that it leads to. Every error names
 * the file and the reason.
 */

/* All zero: there is none. Owns its names; the temporary one is known to interrupt.h meanwhile. */
struct tsr_outfile {
    FILE *stream; /* write here; NULL when not open, or when another program writes */
    char *path, *temp;
    struct tsr_folder folder; /* of both */
    const char *name;         /* in `path`: the file's in its folder */
};

/* As its user named it. Errors: TSR_EIO (cannot be created), TSR_ENOMEM. */
tsr_status tsr_outfile_open(const char *path, struct tsr_outfile *out) TSR_MUST_USE;
/* FOLDER/NAME, which another program writes as FOLDER/TEMP, an empty file that is made here; it has
 * ended when this is committed. Errors: TSR_ENOMEM, TSR_EIO. */
tsr_status tsr_outfile_expect(const char *folder, const char *name, const char *temp,
                              struct tsr_outfile *out) TSR_MUST_USE;
/* Gives the file its name if everything could be written, else removes it. Closes it in any case.
 * Errors: TSR_EIO, also for a full disk. */
tsr_status tsr_outfile_commit(struct tsr_outfile *file) TSR_MUST_USE;
/* Closes and removes a file that was not committed; does nothing after a commit. */
void tsr_outfile_abort(struct tsr_outfile *file);

/* The three together: `write` prints the content; its failure leaves no file behind. The first is
 * for names that this program gives, the second for one that its user named. */
typedef tsr_status (*tsr_write_fn)(FILE *stream, const void *user);
tsr_status tsr_write_file(const char *path, tsr_write_fn write, const void *user) TSR_MUST_USE;
tsr_status tsr_write_output(const char *path, tsr_write_fn write, const void *user) TSR_MUST_USE;
/* tsr_write_file() under FOLDER/NAME. */
tsr_status tsr_write_in(const char *folder, const char *name, tsr_write_fn write,
                        const void *user) TSR_MUST_USE;

/* Files of a folder that tell the same thing in several ways. The first failure ends it. */
struct tsr_named_write {
    const char *name;
    tsr_write_fn write;
};
tsr_status tsr_write_each(const char *folder, const struct tsr_named_write *files, size_t n,
                          const void *user) TSR_MUST_USE;

/* A tsr_write_fn whose content is text. */
tsr_status tsr_put_text(FILE *stream, const void *text);

/* Checks a stream that is not a tsr_outfile, such as stdout, after the last write to it. */
tsr_status tsr_flush(FILE *stream, const char *name) TSR_MUST_USE;

/* "a/b" from "a" and "b"; to be freed. NULL when out of memory (the error text is set). */
char *tsr_path_join(const char *folder, const char *name);

#endif
