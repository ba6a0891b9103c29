/* files.h: regular files are opened and read here. What else a name may be (a FIFO, a device, a
 * socket, a folder) is refused at once: nothing waits for a writer that never comes. Beneath a
 * folder (folder.h) no symbolic link is followed; `in` NULL: a path as its user typed it.
 *
 * What the process was given as an open descriptor ("/dev/stdin", "/dev/fd/N") is read to its end,
 * whatever it is: a pipe into the program is no trap. So is /dev/null, which is empty.
 */
#ifndef TSR_BASE_FILES_H
#define TSR_BASE_FILES_H

#include <stdio.h>

#include "sim/base/folder.h"

enum tsr_opening {
    TSR_OPEN_READ,
    TSR_OPEN_UPDATE /* read and written, at its end; an empty one is made if there is none */
};

/* A descriptor; -1, and *why says why: the system's reason, or what stands there instead of a
 * regular file. *bytes (may be NULL): its length, UINT64_MAX of a stream. */
int tsr_file_open(const struct tsr_folder *in, const char *name, enum tsr_opening how,
                  uint64_t *bytes, const char **why);
/* A stream to read, NULL as above; its owner closes it. */
FILE *tsr_file_stream(const struct tsr_folder *in, const char *name, const char **why);

/* [offset, offset + bytes) of an open file; `path` is for the text. */
tsr_status tsr_file_read_at(int fd, const char *path, uint64_t offset, void *out,
                            uint64_t bytes) TSR_MUST_USE;
/* The rest of an open file of `length` bytes (UINT64_MAX: a stream) with a 0 behind it; the caller
 * frees it. Closes it in any case. Errors: TSR_EIO, TSR_ENOMEM, TSR_ECONFIG for more than `most`.
 */
tsr_status tsr_file_read_opened(int fd, const char *path, uint64_t length, uint64_t most,
                                char **data, size_t *bytes) TSR_MUST_USE;
/* A whole file with a 0 behind it; the caller frees it. Errors: TSR_EIO, TSR_ENOMEM, TSR_ECONFIG
 * for one larger than `most`, or that is no regular file. */
tsr_status tsr_file_read(const struct tsr_folder *in, const char *name, uint64_t most, char **data,
                         size_t *bytes) TSR_MUST_USE;
/* The same by a path as its user typed it. */
tsr_status tsr_read_file(const char *path, size_t most, char **data, size_t *bytes) TSR_MUST_USE;

/* ---- files that are made, and go ------------------------------------------------------------- */

/* For what is read by its name only: writes `text` to a new file in TMPDIR (or /tmp) whose name
 * ends in `ending`; the caller removes it. Errors: TSR_EIO, and there is no file. */
tsr_status tsr_temp_file(const char *text, const char *ending, char *path,
                         size_t size) TSR_MUST_USE;
/* A new file, to be written; -1 and errno. EEXIST: there is something of that name. */
int tsr_file_create(const struct tsr_folder *in, const char *name);
/* Renames in a folder: 0, or an errno. A regular file of that name is replaced, or a symbolic link
 * in the folder that a user named (not what it leads to); EEXIST: something else has it. */
int tsr_file_rename(const struct tsr_folder *in, const char *from, const char *to);
/* A file of this program's own; none is fine. Async-signal-safe. */
void tsr_file_remove(const struct tsr_folder *in, const char *name);

/* A user named a device, a pipe or an open descriptor ("/dev/stdout") as an output: it is written
 * directly, no file is made for it. */
bool tsr_is_output_stream(const char *path);
/* A descriptor; -1 and *why. A FIFO that nobody reads is refused, not waited for. */
int tsr_output_open(const char *path, const char **why);

#endif
