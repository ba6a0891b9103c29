/* temp_file.c: see temp_file.h. */
#include "experiments/study/base/temp_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tsr_status tsr_temp_file(const char *text, const char *ending, char *path, size_t size)
{
    const char *folder = getenv("TMPDIR");
    int n =
        snprintf(path, size, "%s/tessera-XXXXXX%s", folder && *folder ? folder : "/tmp", ending);
    int fd = n > 0 && (size_t)n < size ? mkstemps(path, (int)strlen(ending)) : -1;
    if (fd < 0)
        return tsr_fail(TSR_EIO, "%s: cannot be made", path);
    size_t length = strlen(text);
    bool ok = write(fd, text, length) == (ssize_t)length;
    ok = close(fd) == 0 && ok;
    if (ok)
        return TSR_OK;
    unlink(path);
    return tsr_fail(TSR_EIO, "%s: cannot be written", path);
}
