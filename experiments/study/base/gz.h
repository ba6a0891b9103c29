/* gz.h: files that others wrote, compressed (gzip) or not.
 */
#ifndef TSR_STUDY_GZ_H
#define TSR_STUDY_GZ_H

#include "engine/program/base.h"

/* What a recording may hold once it is decompressed: a kilobyte can be made to grow a thousandfold.
 */
enum { TSR_GZ_BYTES = 256 << 20 };

/* All bytes of a file, decompressed if they are gzip's; the caller frees *out, which is never NULL.
 * Errors: TSR_ECONFIG: it cannot be opened, is damaged, has more than TSR_GZ_BYTES, or is
 * compressed and this is a build without zlib; TSR_ENOMEM. */
tsr_status tsr_gz_load(const char *path, char **out, size_t *n) TSR_MUST_USE;

#endif
