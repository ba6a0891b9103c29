/* temp_file.h: a file of the moment, for what is read by its name only. */
#ifndef TSR_CLI_TEMP_FILE_H
#define TSR_CLI_TEMP_FILE_H

#include <stddef.h>

#include "engine/program/base.h"

/* Writes `text` to a new file in TMPDIR (or /tmp) whose name ends in `ending`; the caller unlinks
 * it. Errors: TSR_EIO, and there is no file. */
tsr_status tsr_temp_file(const char *text, const char *ending, char *path,
                         size_t size) TSR_MUST_USE;

#endif
