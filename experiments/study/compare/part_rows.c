/* part_rows.c: rows that outlive the process that made them (part.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/compare/part.h"
#include "experiments/study/report/report_text.h"

enum { MAX_FILE_BYTES = 1 << 28, VALUE_BYTES = 4096 };

/* ---- digest ------------------------------------------------------------------------------ */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return tsr_hash_bytes(hash, text, strlen(text) + 1);
}

static tsr_status hash_file(uint64_t *hash, const char *path)
{
    char *data = NULL;
    size_t bytes = 0;
    if (!path || !*path)
        return TSR_OK;
    TSR_TRY(tsr_read_file(path, MAX_FILE_BYTES, &data, &bytes));
    *hash = tsr_hash_bytes(*hash, data, bytes);
    free(data);
    return TSR_OK;
}

/* Two builds may price a kernel differently: the program itself is part of what a row depends on.
 */
tsr_status tsr_part_rows_open(const struct tsr_study *study, struct tsr_part_rows *out)
{
    *out = (struct tsr_part_rows){study, hash_text(0, tsr__version())};
    return hash_file(&out->program, "/proc/self/exe");
}

static tsr_status digest_of(const struct tsr_part_rows *rows, size_t item, uint64_t *out)
{
    const struct tsr_job *job = &rows->study->jobs[item];
    uint64_t hash = hash_text(rows->program, job->strategy->name);
    for (size_t i = 0; i < tsr_n_keys(); i++) {
        char value[VALUE_BYTES];
        TSR_TRY(tsr_key_format(&tsr_keys[i], job->settings, value, sizeof value));
        hash = hash_text(hash_text(hash, tsr_keys[i].name), value);
    }
    TSR_TRY(hash_file(&hash, job->model.path));
    TSR_TRY(hash_file(&hash, job->cluster.path));
    TSR_TRY(hash_file(&hash, job->cluster.gpu.path));
    *out = hash;
    return TSR_OK;
}

/* ---- files ------------------------------------------------------------------------------- */

/* A row file: this, then the row as it is in memory. The program that reads it is the one that
 * wrote it, which the digest says. */
struct head {
    char magic[8];
    uint64_t digest, bytes, check; /* check: hash of the row */
};
static const char magic[8] = "tsrrow1";

static tsr_status row_path(const char *dir, const char *strategy, char path[TSR_FILE_NAME_BYTES])
{
    char name[256];
    tsr__folder_name(strategy, name, sizeof name);
    return tsr_file_name(path, "%s/rows/%s.row", dir, name);
}

static tsr_status put_text(FILE *stream, const void *text)
{
    fputs(text, stream);
    return TSR_OK;
}

static tsr_status put_study(FILE *stream, const void *user)
{
    const struct tsr_study_info *info = user;
    fputs("{\n \"title\": ", stream);
    tsr__put_json(stream, info->title);
    fputs(",\n \"experiment_file\": ", stream);
    tsr__put_json(stream, info->config_path);
    fputs("\n}\n", stream);
    return TSR_OK;
}

tsr_status tsr_part_begin(const struct tsr_study *study, const char *dir)
{
    char path[TSR_FILE_NAME_BYTES];
    TSR_TRY(tsr_file_name(path, "%s/rows", dir));
    TSR_TRY(tsr_make_folder(path));
    TSR_TRY(tsr_file_name(path, "%s/experiment.yaml", dir));
    TSR_TRY(tsr_write_file(path, put_text, study->resolved_yaml));
    TSR_TRY(tsr_file_name(path, "%s/study.json", dir));
    return tsr_write_file(path, put_study, &study->info);
}

struct row_file {
    struct head head;
    const struct tsr_row *row;
};

static tsr_status put_row(FILE *stream, const void *user)
{
    const struct row_file *file = user;
    fwrite(&file->head, sizeof file->head, 1, stream);
    fwrite(file->row, sizeof *file->row, 1, stream);
    return TSR_OK;
}

tsr_status tsr_part_keep(const struct tsr_part_rows *rows, const char *dir, size_t item,
                         const struct tsr_row *row)
{
    char path[TSR_FILE_NAME_BYTES];
    struct row_file file = {.row = row};
    memcpy(file.head.magic, magic, sizeof magic);
    file.head.bytes = sizeof *row;
    file.head.check = tsr_hash_bytes(0, row, sizeof *row);
    TSR_TRY(digest_of(rows, item, &file.head.digest));
    TSR_TRY(row_path(dir, row->strategy, path));
    return tsr_write_file(path, put_row, &file);
}

tsr_status tsr_part_find(const struct tsr_part_rows *rows, const char *dir, size_t item,
                         struct tsr_row *row, bool *found)
{
    char path[TSR_FILE_NAME_BYTES];
    struct head head;
    uint64_t digest;
    *found = false;
    TSR_TRY(digest_of(rows, item, &digest));
    TSR_TRY(row_path(dir, rows->study->jobs[item].strategy->name, path));
    FILE *file = fopen(path, "rb");
    if (!file)
        return TSR_OK;
    bool whole = fread(&head, sizeof head, 1, file) == 1 && fread(row, sizeof *row, 1, file) == 1;
    fclose(file);
    *found = whole && !memcmp(head.magic, magic, sizeof magic) && head.digest == digest &&
             head.bytes == sizeof *row && head.check == tsr_hash_bytes(0, row, sizeof *row);
    return TSR_OK;
}
