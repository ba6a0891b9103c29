/* folder.h: copies the files of a folder. */
#ifndef TSR_CLI_FOLDER_H
#define TSR_CLI_FOLDER_H

#include "engine/program/base.h"

/* Copies the regular files of `from` into `to`, which is made; each is complete under its name. The
 * same folder: nothing. Errors: TSR_ECONFIG if `from` cannot be read, TSR_EIO. */
tsr_status tsr_folder_copy(const char *from, const char *to) TSR_MUST_USE;

#endif
