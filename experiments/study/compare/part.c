/* part.c: parts of a sweep: which one this process is, its rows, which outlive the process, and
 * all parts merged into the tables and files of one run (part.h). */
#include "experiments/study/compare/part.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/files.h"
#include "experiments/study/base/json.h"
#include "experiments/study/base/listener.h"
#include "experiments/study/report/report.h"
#include "experiments/study/report/report_text.h"
#include "experiments/study/report/validated.h"
#include "experiments/study/simulate/row_json.h"
#include "sim/base/json_load.h"

enum { MAX_PARTS = 100000, MAX_FILE_BYTES = 1 << 28 };

/* Variables of those that start many processes. The first index is 0 unless `first` says so. */
static const struct source {
    const char *index, *count, *first, *step;
} sources[] = {
    {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
     "SLURM_ARRAY_TASK_STEP"},
    {"SLURM_PROCID", "SLURM_NTASKS", NULL, NULL},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, NULL},
    {"PMI_RANK", "PMI_SIZE", NULL, NULL},
    {"RANK", "WORLD_SIZE", NULL, NULL},
};

static bool number(const char *text, size_t n, uint64_t *out)
{
    if (n == 0 || n > 9 || strspn(text, "0123456789") < n)
        return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

static tsr_status variable(const char *name, uint64_t fallback, uint64_t *out)
{
    const char *text = name ? getenv(name) : NULL;
    *out = fallback;
    if (!text || number(text, strlen(text), out))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--part auto: %s: found %s; allowed: a number", name, text);
}

static tsr_status from_environment(struct tsr_sweep_part *out)
{
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        const struct source *s = &sources[i];
        uint64_t index, count, first, step;
        if (!getenv(s->index) || !getenv(s->count))
            continue;
        TSR_TRY(variable(s->index, 0, &index));
        TSR_TRY(variable(s->count, 0, &count));
        TSR_TRY(variable(s->first, 0, &first));
        TSR_TRY(variable(s->step, 1, &step));
        if (index < first || step == 0 || (index - first) % step || (index - first) / step >= count)
            return tsr_fail(
                TSR_ECONFIG, "--part auto: %s: found %s of %s=%s; allowed: one of the %llu parts",
                s->index, getenv(s->index), s->count, getenv(s->count), (unsigned long long)count);
        *out = (struct tsr_sweep_part){(index - first) / step + 1, count};
        return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG,
                    "--part: found auto, but no variable of a Slurm array, srun, mpirun or "
                    "torchrun is set; allowed: I/N");
}

tsr_status tsr_part_parse(const char *text, struct tsr_sweep_part *out)
{
    if (!strcmp(text, "auto"))
        return from_environment(out);
    const char *slash = strchr(text, '/');
    if (slash && number(text, (size_t)(slash - text), &out->index) &&
        number(slash + 1, strlen(slash + 1), &out->of) && out->index >= 1 &&
        out->index <= out->of && out->of <= MAX_PARTS)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "--part: found %s; allowed: I/N, with I from 1 to N, and N up to %d, or auto",
                    text, MAX_PARTS);
}

/* ---- digest of what a row depends on --------------------------------------------------------- */

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
static tsr_status tsr_part_rows_open(const struct tsr_study *study, struct tsr_part_rows *out)
{
    *out = (struct tsr_part_rows){study, hash_text(0, tsr__version())};
    return hash_file(&out->program, "/proc/self/exe");
}

static tsr_status digest_of(const struct tsr_part_rows *rows, size_t item, uint64_t *out)
{
    const struct tsr_job *job = &rows->study->jobs[item];
    uint64_t hash = hash_text(rows->program, job->strategy->name);
    TSR_TRY(tsr_settings_hash(job->settings, &hash));
    TSR_TRY(hash_file(&hash, job->model.path));
    TSR_TRY(hash_file(&hash, job->cluster.path));
    TSR_TRY(hash_file(&hash, job->cluster.gpu.path));
    *out = hash;
    return TSR_OK;
}

/* ---- rows as files --------------------------------------------------------------------------- */

/* A row file: a line with format, digest and the hash of the row's line, and that line. A file of
 * another format, or with another digest, is no row: its strategy is simulated again. */
static const char head_format[] = "{\"format\": \"tessera.row.2\", \"digest\": \"%016" PRIx64
                                  "\", \"check\": \"%016" PRIx64 "\"}\n";
enum { MAX_ROW_BYTES = 1 << 16, MAX_ROW_VALUES = 2048 };

static tsr_status row_path(const char *dir, const char *strategy, char path[TSR_PATH_BYTES])
{
    char name[256];
    tsr__folder_name(strategy, name, sizeof name);
    return tsr_path(path, "%s/rows/%s.row", dir, name);
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

/* Starts a part in a folder: writes what belongs to the whole study. */
static tsr_status tsr_part_begin(const struct tsr_study *study, const char *dir)
{
    char path[TSR_PATH_BYTES];
    TSR_TRY(tsr_path(path, "%s/rows", dir));
    TSR_TRY(tsr_make_own_folder(path));
    TSR_TRY(tsr_path(path, "%s/experiment.yaml", dir));
    TSR_TRY(tsr_write_file(path, tsr_put_text, study->resolved_yaml));
    TSR_TRY(tsr_path(path, "%s/study.json", dir));
    return tsr_write_file(path, put_study, &study->info);
}

struct row_file {
    uint64_t digest;
    const struct tsr_row *row;
};

size_t tsr__row_head(const char *line, size_t n, uint64_t digest, char out[TSR_ROW_HEAD_BYTES])
{
    return (size_t)snprintf(out, TSR_ROW_HEAD_BYTES, head_format, digest,
                            tsr_hash_bytes(TSR_HASH_INIT, line, n));
}

bool tsr__row_parse(const char *data, size_t n, uint64_t digest, struct tsr_row *row)
{
    char head[TSR_ROW_HEAD_BYTES];
    const char *end = n ? memchr(data, '\n', n) : NULL;
    size_t at = end ? (size_t)(end - data) + 1 : 0;
    memset(row, 0, sizeof *row);
    if (!at || tsr__row_head(data + at, n - at, digest, head) != at || memcmp(data, head, at) != 0)
        return false;
    json_t *members = tsr_json_loadb(data + at, n - at, MAX_ROW_VALUES, NULL);
    bool good = tsr_members_unpack(tsr_row_members, members, row);
    json_decref(members);
    return good;
}

static tsr_status put_row(FILE *stream, const void *user)
{
    const struct row_file *file = user;
    char head[TSR_ROW_HEAD_BYTES];
    char *line = tsr_members_line(tsr_row_members, file->row);
    if (!line)
        return tsr_no_memory(NULL);
    (void)tsr__row_head(line, strlen(line), file->digest, head);
    fputs(head, stream);
    fputs(line, stream);
    free(line);
    return TSR_OK;
}

/* Writes the row of a strategy. */
static tsr_status tsr_part_keep(const struct tsr_part_rows *rows, const char *dir, size_t item,
                                const struct tsr_row *row)
{
    char path[TSR_PATH_BYTES];
    struct row_file file = {.row = row};
    TSR_TRY(digest_of(rows, item, &file.digest));
    TSR_TRY(row_path(dir, row->strategy, path));
    return tsr_write_file(path, put_row, &file);
}

/* *found: the folder has the row of a strategy, and it still holds. Errors: TSR_EIO, TSR_ENOMEM. */
static tsr_status tsr_part_find(const struct tsr_part_rows *rows, const char *dir, size_t item,
                                struct tsr_row *row, bool *found)
{
    char path[TSR_PATH_BYTES];
    uint64_t digest;
    *found = false;
    TSR_TRY(digest_of(rows, item, &digest));
    TSR_TRY(row_path(dir, rows->study->jobs[item].strategy->name, path));
    char *data = NULL;
    size_t n = 0;
    if (tsr_kind_of(NULL, path) == TSR_KIND_NONE ||
        tsr_read_file(path, MAX_ROW_BYTES, &data, &n) != TSR_OK)
        return TSR_OK;
    *found = tsr__row_parse(data, n, digest, row);
    free(data);
    if (!*found)
        return TSR_OK;
    row->changes = rows->study->jobs[item].changes; /* the others may not be those of then */
    tsr_time_error_of(&rows->study->jobs[item], &row->time_error); /* nor what was measured */
    return TSR_OK;
}

/* ---- running it -------------------------------------------------------------------------- */

struct part_run {
    const struct tsr_sweep_part *part;
    const char *dir;
    struct tsr_part_rows kept;
    bool *there; /* [strategy]: an earlier run has left its row */
};

static bool wants(void *user, size_t item)
{
    const struct part_run *p = user;
    return tsr_part_has(p->part, item) && !p->there[item];
}

static tsr_status keep(void *user, size_t item, const struct tsr_row *row)
{
    const struct part_run *p = user;
    return tsr_part_keep(&p->kept, p->dir, item, row);
}

static tsr_status find_rows(const struct part_run *p, size_t n, struct tsr_row *rows)
{
    size_t mine = 0, found = 0;
    for (size_t i = 0; i < n; i++) {
        if (!tsr_part_has(p->part, i))
            continue;
        TSR_TRY(tsr_part_find(&p->kept, p->dir, i, &rows[i], &p->there[i]));
        found += p->there[i];
        mine++;
    }
    if (found)
        tsr_tell("note: %zu of the %zu strategies of this part are there already", found, mine);
    return TSR_OK;
}

static tsr_status run(const struct tsr_study *study, struct part_run *p, uint64_t jobs,
                      struct tsr_row *rows)
{
    const struct tsr_pool_hooks hooks = {p, wants, keep};
    TSR_TRY(tsr_part_rows_open(study, &p->kept));
    TSR_TRY(tsr_part_begin(study, p->dir));
    TSR_TRY(find_rows(p, study->n, rows));
    return tsr_pool_run(study, p->dir, jobs, &hooks, rows);
}

tsr_status tsr_part_run(const struct tsr_study *study, const struct tsr_sweep_part *part,
                        const char *dir, uint64_t jobs, struct tsr_row *rows)
{
    struct part_run p = {.part = part, .dir = dir};
    p.there = calloc(study->n + 1, sizeof *p.there);
    tsr_status status = p.there ? run(study, &p, jobs, rows) : tsr_no_memory(NULL);
    free(p.there);
    return status;
}

/* ---- merging --------------------------------------------------------------------------------- */

static tsr_status same_experiment(const char *first, const char *other)
{
    char path[2][TSR_PATH_BYTES];
    char *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    TSR_TRY(tsr_path(path[0], "%s/experiment.yaml", first));
    TSR_TRY(tsr_path(path[1], "%s/experiment.yaml", other));
    tsr_status status = tsr_read_file(path[0], 1 << 28, &text[0], &n[0]);
    if (status == TSR_OK)
        status = tsr_read_file(path[1], 1 << 28, &text[1], &n[1]);
    bool same = status == TSR_OK && n[0] == n[1] && !memcmp(text[0], text[1], n[0]);
    free(text[0]);
    free(text[1]);
    if (status != TSR_OK)
        return tsr_fail(TSR_ECONFIG,
                        "--merge: %s: found no experiment.yaml; allowed: what compare --part "
                        "I/N --out left",
                        other);
    return same ? TSR_OK
                : tsr_fail(TSR_ECONFIG,
                           "--merge: %s: found another experiment than that of %s; allowed: parts "
                           "of one experiment",
                           other, first);
}

/* The study as the parts saw it: its file is where the first part copied it. */
static tsr_status open_study(struct tsr_merged *m)
{
    struct tsr_study_request request = {.path = m->path, .out = m->out};
    char said[TSR_PATH_BYTES];
    const char *dir = m->folders[0];
    for (size_t i = 0; i < m->n_folders; i++)
        TSR_TRY(same_experiment(dir, m->folders[i]));
    TSR_TRY(tsr_path(m->path, "%s/experiment.yaml", dir));
    TSR_TRY(tsr_study_read(&request, &m->study));
    TSR_TRY(tsr_study_build(&m->study));
    TSR_TRY(tsr_path(said, "%s/study.json", dir));
    tsr_status status = tsr_json_load(said, TSR_TEXT_VALUES, &m->said);
    const char *title = json_string_value(json_object_get(m->said, "title"));
    const char *file = json_string_value(json_object_get(m->said, "experiment_file"));
    if (status == TSR_ENOMEM)
        return status;
    if (!title || !file)
        return tsr_fail(TSR_ECONFIG,
                        "--merge: %s: found no title and file in it; allowed: what compare --part "
                        "I/N --out left",
                        said);
    m->study.info.title = title;
    m->study.info.config_path = file;
    return TSR_OK;
}

static tsr_status find(struct tsr_merged *m, const struct tsr_part_rows *rows, size_t item)
{
    for (size_t i = 0; i < m->n_folders && !m->home[item]; i++) {
        bool found;
        TSR_TRY(tsr_part_find(rows, m->folders[i], item, &m->rows[item], &found));
        if (found)
            m->home[item] = m->folders[i];
    }
    return TSR_OK;
}

static tsr_status collect(struct tsr_merged *m)
{
    struct tsr_part_rows rows;
    size_t missing = 0, first = 0;
    TSR_TRY(tsr_part_rows_open(&m->study, &rows));
    m->home = calloc(m->study.n + 1, sizeof *m->home);
    m->rows = calloc(m->study.n + 1, sizeof *m->rows);
    if (!m->home || !m->rows)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < m->study.n; i++) {
        TSR_TRY(find(m, &rows, i));
        if (!m->home[i] && missing++ == 0)
            first = i;
    }
    if (!missing)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "--merge: found no row of %s%s (%zu of %zu strategies); allowed: parts that "
                    "were run to their end, by this version, with these files",
                    m->study.jobs[first].strategy->name, missing > 1 ? " and others" : "", missing,
                    m->study.n);
}

tsr_status tsr_merged_open(const char *const *folders, size_t n, const char *out,
                           struct tsr_merged *merged)
{
    *merged = (struct tsr_merged){.folders = folders, .n_folders = n, .out = out};
    tsr_status status = open_study(merged);
    if (status == TSR_OK)
        status = collect(merged);
    if (status != TSR_OK)
        tsr_merged_fini(merged);
    return status;
}

void tsr_merged_fini(struct tsr_merged *m)
{
    free(m->home);
    free(m->rows);
    json_decref(m->said);
    tsr_study_fini(&m->study);
    *m = (struct tsr_merged){0};
}

tsr_status tsr_merged_write(const struct tsr_merged *m)
{
    for (size_t i = 0; i < m->study.n; i++) {
        char name[256], from[TSR_PATH_BYTES], to[TSR_PATH_BYTES];
        tsr__folder_name(m->study.jobs[i].strategy->name, name, sizeof name);
        TSR_TRY(tsr_path(from, "%s/%s", m->home[i], name));
        TSR_TRY(tsr_path(to, "%s/%s", m->out, name));
        TSR_TRY(tsr_folder_copy(from, to));
    }
    return tsr_study_files(&m->study, m->out, m->rows, m->study.n);
}
