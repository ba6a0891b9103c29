/* folder.c: see folder.h. */
#include "experiments/study/base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "exec/base/disk.h"
#include "experiments/study/base/out_file.h"

enum { MAX_FILE_BYTES = 1 << 30 };

static tsr_status copy_file(const char *from, const char *to)
{
    char *data = NULL;
    size_t bytes = 0;
    TSR_TRY(tsr_disk_read_file(from, MAX_FILE_BYTES, &data, &bytes));
    tsr_status status = tsr_disk_replace_file(&tsr_disk_posix, to, data, bytes);
    free(data);
    return status;
}

static tsr_status copy_entry(const char *from, const char *to, const char *name)
{
    char source[TSR_PATH_BYTES], target[TSR_PATH_BYTES];
    struct stat info;
    TSR_TRY(tsr_path(source, "%s/%s", from, name));
    TSR_TRY(tsr_path(target, "%s/%s", to, name));
    if (stat(source, &info) != 0 || !S_ISREG(info.st_mode))
        return TSR_OK;
    return copy_file(source, target);
}

static bool same_folder(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) == 0 && stat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

tsr_status tsr_folder_copy(const char *from, const char *to)
{
    if (same_folder(from, to))
        return TSR_OK;
    DIR *folder = opendir(from);
    if (!folder)
        return tsr_fail(TSR_ECONFIG, "%s: found no folder that can be read (%s); allowed: one",
                        from, strerror(errno));
    tsr_status status = tsr_make_folder(to);
    for (struct dirent *e; status == TSR_OK && (e = readdir(folder));)
        status = copy_entry(from, to, e->d_name);
    closedir(folder);
    return status;
}
