/* gz.h: reads files that are compressed (gzip) or not, and writes compressed ones.
 */
#ifndef TSR_STUDY_GZ_H
#define TSR_STUDY_GZ_H

#include "engine/program/base.h"
#include "experiments/study/base/files.h"

/* What a file may hold once it is decompressed, as a kilobyte can be made to grow a thousandfold:
 * what PyTorch wrote of a real run, and recordings. */
enum { TSR_GZ_BYTES = 256 << 20, TSR_GZ_RECORDING_BYTES = 128 << 20 };

/* All bytes of a file, decompressed if they are gzip's; the caller frees *out, which is never NULL.
 * Errors: TSR_ECONFIG: it cannot be opened, is damaged, has more than `most` bytes or 4 MiB and 100
 * times those that are stored (recordings have 8 to 16 times), or is compressed and this is a build
 * without zlib; TSR_ENOMEM. */
tsr_status tsr_gz_load(const char *path, size_t most, char **out, size_t *n) TSR_MUST_USE;

/* Writes what `write` prints as FOLDER/NAME.gz, compressed; a build without zlib writes FOLDER/NAME
 * as it is. Errors: as tsr_write_in(). */
tsr_status tsr_gz_write_in(const char *folder, const char *name, tsr_write_fn write,
                           const void *user) TSR_MUST_USE;

#endif
