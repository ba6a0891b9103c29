/* files.h: whole files: reading one, copying those of a folder, one of the moment. out_file.h has
 * those that are written.
 */
#ifndef TSR_STUDY_FILES_H
#define TSR_STUDY_FILES_H

#include <stddef.h>

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

#endif
