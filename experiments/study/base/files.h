/* files.h: whole files: reading one, copying those of a folder, one of the moment, and those
 * that are written. */
#ifndef TSR_STUDY_FILES_H
#define TSR_STUDY_FILES_H

#include <stddef.h>
#include <stdio.h>

#include "engine/program/base.h"

enum { TSR_FILE_NAME_BYTES = 4096 };

/* A path from a format. Errors: TSR_ECONFIG if it is longer than paths may be. */
tsr_status tsr_file_name(char out[TSR_FILE_NAME_BYTES], const char *format, ...)
    TSR_PRINTF(2, 3) TSR_MUST_USE;

/* A regular file with a 0 behind it; the caller frees it. Errors: TSR_EIO, TSR_ENOMEM, TSR_ECONFIG
 * for one larger than `most`. */
tsr_status tsr_read_file(const char *path, size_t most, char **data, size_t *bytes) TSR_MUST_USE;

/* Copies the regular files of `from` into `to`, which is made; each is complete under its name. The
 * same folder: nothing. Errors: TSR_ECONFIG if `from` cannot be read, TSR_EIO. */
tsr_status tsr_folder_copy(const char *from, const char *to) TSR_MUST_USE;

/* For what is read by its name only: writes `text` to a new file in TMPDIR (or /tmp) whose name
 * ends in `ending`; the caller unlinks it. Errors: TSR_EIO, and there is no file. */
tsr_status tsr_temp_file(const char *text, const char *ending, char *path,
                         size_t size) TSR_MUST_USE;

/* ---- output files ---------------------------------------------------------------------------- */

/* Output files that are complete under their name, or absent.
 *
 * A file is written under a temporary name in the same folder and renamed at the end. What is not a
 * regular file (/dev/full, a pipe) is written directly. Every error names the file and the reason.
 */

/* All zero: there is none. Owns its names; the temporary one is known to interrupt.h meanwhile. */
struct tsr_outfile {
    FILE *stream; /* write here; NULL when not open, or when another program writes */
    char *path, *temp;
};

/* Errors: TSR_EIO (cannot be created), TSR_ENOMEM. */
tsr_status tsr_outfile_open(const char *path, struct tsr_outfile *out) TSR_MUST_USE;
/* FOLDER/NAME, which another program writes as FOLDER/TEMP and has ended when this is committed.
 * Errors: TSR_ENOMEM. */
tsr_status tsr_outfile_expect(const char *folder, const char *name, const char *temp,
                              struct tsr_outfile *out) TSR_MUST_USE;
/* Gives the file its name if everything could be written, else removes it. Closes it in any case.
 * Errors: TSR_EIO, also for a full disk. */
tsr_status tsr_outfile_commit(struct tsr_outfile *file) TSR_MUST_USE;
/* Closes and removes a file that was not committed; does nothing after a commit. */
void tsr_outfile_abort(struct tsr_outfile *file);

/* The three together: `write` prints the content; its failure leaves no file behind. */
typedef tsr_status (*tsr_write_fn)(FILE *stream, const void *user);
tsr_status tsr_write_file(const char *path, tsr_write_fn write, const void *user) TSR_MUST_USE;
/* The same under FOLDER/NAME. */
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

/* Makes a folder and those above it; fine if it is there. Errors: TSR_EIO. */
tsr_status tsr_make_folder(const char *path) TSR_MUST_USE;

/* "a/b" from "a" and "b"; to be freed. NULL when out of memory (the error text is set). */
char *tsr_path_join(const char *folder, const char *name);

#endif
