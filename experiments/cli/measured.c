/* measured.c: see measured.h. */
#include "measured.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../exec/disk.h"
#include "report_file.h"
#include "report_rows.h"
#include "report_text.h"

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

static tsr_status copy_folder(const char *from, const char *to)
{
    DIR *folder = opendir(from);
    if (!folder)
        return tsr_fail(TSR_ECONFIG,
                        "--measured: found %s, which cannot be read (%s); allowed: "
                        "what run --profile --out left",
                        from, strerror(errno));
    tsr_status status = tsr_make_folder(to);
    for (struct dirent *e; status == TSR_OK && (e = readdir(folder));)
        status = copy_entry(from, to, e->d_name);
    closedir(folder);
    return status;
}

tsr_status tsr_measured_load(const char *run, const char *out, struct tsr_row *row)
{
    char path[4096], name[256], to[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/measured/summary.json", run);
    json_t *summary = json_load_file(path, 0, &error);
    const json_t *first = json_array_get(json_object_get(summary, "rows"), 0);
    if (!first) {
        json_decref(summary);
        return tsr_fail(TSR_ECONFIG,
                        "--measured: %s: found no profile (%s); allowed: the --out folder of "
                        "tessera run --profile",
                        path, summary ? "no rows" : error.text);
    }
    tsr__row_of_json(first, row);
    json_decref(summary);
    if (!out)
        return TSR_OK;
    tsr__folder_name(row->strategy, name, sizeof name);
    snprintf(path, sizeof path, "%s/measured/%s", run, name);
    snprintf(to, sizeof to, "%s/%s", out, name);
    return copy_folder(path, to);
}
