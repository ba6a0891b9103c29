/* overlap_read.c: reads back overlap.csv and overlap-frame.csv, and finds them below a folder. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "experiments/study/base/csv.h"
#include "experiments/study/base/files.h"
#include "experiments/study/overlap/overlap.h"
#include "experiments/study/report/report_text.h"

/* ---- columns ----------------------------------------------------------------------------- */

enum {
    KIND,
    PHASE,
    MICRO,
    BYTES,
    ISSUE,
    START,
    END,
    HIDDEN,
    EXPOSED,
    BESIDE,
    WHY,
    STREAM = WHY + TSR_N_EXPOSURES,
    COMM,
    NAME,
    MODULE,
    N_COLUMNS
};

static tsr_status read_kind(const struct tsr_csv_reader *csv, uint8_t *kind)
{
    for (uint8_t i = 0; i < TSR_N_OVERLAP_KINDS; i++)
        if (!strcmp(csv->fields[KIND], tsr_overlap_kind_key(i))) {
            *kind = i;
            return TSR_OK;
        }
    return tsr_csv_bad(csv, "kind", csv->fields[KIND],
                       "all_gather_forward, all_gather_backward, reduce_scatter, all_reduce or "
                       "other");
}

static tsr_status read_row(const struct tsr_csv_reader *csv, struct tsr_overlap_table *out)
{
    struct tsr_overlap_row row = {.name = csv->fields[NAME],
                                  .module = csv->fields[MODULE],
                                  .phase = csv->fields[PHASE],
                                  .stream = csv->fields[STREAM],
                                  .comm = csv->fields[COMM]};
    const struct {
        size_t at;
        double *to;
    } times[] = {{ISSUE, &row.issue},   {START, &row.start},     {END, &row.end},
                 {HIDDEN, &row.hidden}, {EXPOSED, &row.exposed}, {BESIDE, &row.beside}};
    uint64_t micro = 0;
    TSR_TRY(read_kind(csv, &row.kind));
    TSR_TRY(tsr_csv_bytes(csv, MICRO, &micro));
    row.micro = (uint32_t)micro;
    TSR_TRY(tsr_csv_bytes(csv, BYTES, &row.bytes));
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        TSR_TRY(tsr_csv_seconds(csv, times[i].at, times[i].to));
    for (size_t i = 0; i < TSR_N_EXPOSURES; i++)
        TSR_TRY(tsr_csv_seconds(csv, WHY + i, &row.why[i]));
    return tsr_overlap_table_add(out, &row);
}

static tsr_status read_rows(struct tsr_csv_reader *csv, struct tsr_overlap_table *out)
{
    bool is_head = tsr_csv_next(csv) && csv->n == N_COLUMNS && !strcmp(csv->fields[KIND], "kind") &&
                   !strcmp(csv->fields[MODULE], "module");
    TSR_TRY(tsr_csv_check_head(csv, is_head, "kind,phase,micro_batch,... as compare writes it"));
    while (tsr_csv_next(csv)) {
        if (csv->n != N_COLUMNS)
            return tsr_csv_bad(csv, "row", csv->line, "as many fields as the head has");
        TSR_TRY(read_row(csv, out));
    }
    return tsr_csv_end(csv);
}

static tsr_status read_frame(struct tsr_csv_reader *csv, struct tsr_overlap_table *out)
{
    double *const times[] = {&out->step_s,    &out->compute_s,    &out->comm_s,
                             &out->exposed_s, &out->host_bound_s, &out->unlaunched_s};
    bool is_head = tsr_csv_next(csv) && csv->n == 8 && !strcmp(csv->fields[0], "measured");
    TSR_TRY(tsr_csv_check_head(csv, is_head, "measured,step_s,... as compare writes it"));
    bool is_row = tsr_csv_next(csv);
    TSR_TRY(tsr_csv_end(csv));
    if (!is_row || csv->n != 8)
        return tsr_csv_bad(csv, "row", csv->line ? csv->line : "", "8 fields");
    out->measured = strcmp(csv->fields[0], "0") != 0;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        TSR_TRY(tsr_csv_seconds(csv, i + 1, times[i]));
    out->title = tsr_arena_strdup(&out->arena, csv->fields[7]);
    return out->title ? TSR_OK : tsr_no_memory("a title");
}

/* ---- files ------------------------------------------------------------------------------- */

typedef tsr_status (*read_fn)(struct tsr_csv_reader *csv, struct tsr_overlap_table *out);

static tsr_status read_one(const char *folder, const char *name, read_fn read,
                           struct tsr_overlap_table *out)
{
    struct tsr_csv_reader csv;
    char *path = tsr_path_join(folder, name);
    if (!path)
        return TSR_ENOMEM;
    tsr_status status = tsr_csv_open(path, &csv);
    if (status == TSR_OK) {
        status = read(&csv, out);
        tsr_csv_close(&csv);
    }
    free(path);
    return status;
}

tsr_status tsr_overlap_table_read(const char *folder, struct tsr_overlap_table *out)
{
    memset(out, 0, sizeof(*out));
    tsr_arena_init(&out->arena);
    tsr_status status = read_one(folder, "overlap-frame.csv", read_frame, out);
    if (status == TSR_OK)
        status = read_one(folder, "overlap.csv", read_rows, out);
    if (status != TSR_OK)
        tsr_overlap_table_fini(out);
    return status;
}

/* ---- folders ----------------------------------------------------------------------------- */

static bool has_overlap(const char *folder)
{
    struct stat info;
    char *path = tsr_path_join(folder, "overlap.csv");
    bool found = path && stat(path, &info) == 0;
    free(path);
    return found;
}

/* The strategies' folders below one: counted, the first one's path kept, names joined. */
struct found {
    const char *wanted; /* folder name of the strategy; NULL: any */
    size_t n;
    char *path;
    char names[400];
};

static void look_below(const char *folder, struct found *found)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        char *path = e->d_name[0] == '.' ? NULL : tsr_path_join(folder, e->d_name);
        if (path && has_overlap(path)) {
            size_t used = strlen(found->names);
            snprintf(found->names + used, sizeof found->names - used, "%s%s", used ? ", " : "",
                     e->d_name);
            if (!found->wanted || !strcmp(found->wanted, e->d_name)) {
                found->n++;
                free(found->path);
                found->path = path;
                path = NULL;
            }
        }
        free(path);
    }
    closedir(dir);
}

static tsr_status not_found(const char *folder, const char *strategy, const struct found *found)
{
    if (!found->names[0])
        return tsr_fail(TSR_ECONFIG,
                        "%s: has no overlap.csv; allowed: what compare --out, sim --out or run "
                        "--profile --out left",
                        folder);
    if (!strategy)
        return tsr_fail(TSR_ECONFIG, "--strategy: none given; allowed: %s", found->names);
    return tsr_fail(TSR_ECONFIG, "--strategy: found \"%s\"; allowed: %s", strategy, found->names);
}

static tsr_status keep_folder(const char *folder, struct tsr_overlap_result *out)
{
    TSR_TRY(tsr_overlap_table_read(folder, &out->table));
    out->view = strdup(folder);
    if (out->view)
        return TSR_OK;
    tsr_overlap_table_fini(&out->table);
    return tsr_no_memory(NULL);
}

static tsr_status load(const char *folder, const char *strategy, struct tsr_overlap_result *out)
{
    char name[128];
    struct found found = {.wanted = NULL};
    if (has_overlap(folder))
        return keep_folder(folder, out);
    if (strategy) {
        tsr__folder_name(strategy, name, sizeof name);
        found.wanted = name;
    }
    look_below(folder, &found);
    char *measured = tsr_path_join(folder, "measured"); /* of run --profile */
    if (measured)
        look_below(measured, &found);
    free(measured);
    tsr_status status =
        found.n == 1 ? keep_folder(found.path, out) : not_found(folder, strategy, &found);
    free(found.path);
    return status;
}

tsr_status tsr_overlap_load(const char *folder, const char *strategy,
                            struct tsr_overlap_result *out)
{
    *out = (struct tsr_overlap_result){.has_changes = false};
    return load(folder, strategy, out);
}

void tsr_overlap_result_fini(struct tsr_overlap_result *overlap)
{
    if (overlap->table.title)
        tsr_overlap_table_fini(&overlap->table);
    free(overlap->changes);
    free(overlap->view);
    *overlap = (struct tsr_overlap_result){.has_changes = false};
}
