/* diff_folder.c: reads back memory.csv of a strategy's folder.
 *
 * Its rows have times; streams.csv beside it says which work of which module and phase starts then.
 * What is allocated is used by that work; what is freed belongs to the work before, so it stays
 * with the row above. Without streams.csv the phases come from phases.csv, without that all is one
 * phase.
 */
#include "experiments/study/diff/diff_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "experiments/study/base/csv.h"
#include "experiments/study/base/files.h"
#include "experiments/study/overlap/overlap.h"
#include "experiments/study/report/report_text.h"

/* ---- what happens when ----------------------------------------------------------------------- */

struct work {
    double start;
    size_t order; /* in the file: the compute stream comes first */
    const char *phase, *module, *operation;
    uint16_t micro;
};

struct works {
    struct work *items;
    size_t n, cap;
};

static int by_start(const void *a, const void *b)
{
    const struct work *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_status add_work(struct tsr_diff_run *run, struct works *works, double start,
                           const char *const texts[3], uint16_t micro)
{
    struct work work = {.start = start,
                        .order = works->n,
                        .phase = tsr_arena_strdup(&run->arena, texts[0]),
                        .module = tsr_arena_strdup(&run->arena, texts[1]),
                        .operation = tsr_arena_strdup(&run->arena, texts[2]),
                        .micro = micro};
    if (work.phase && work.module && work.operation &&
        TSR_PUSH(works->items, works->n, works->cap, work))
        return TSR_OK;
    return tsr_no_memory("the work of a run");
}

/* streams.csv: stream, start_s, end_s, kind, name, module, phase, micro_batch, ... */
static tsr_status read_streams(struct tsr_csv_reader *table, struct tsr_diff_run *run,
                               struct works *works)
{
    bool is_head = tsr_csv_next(table) && table->n >= 8 && !strcmp(table->fields[0], "stream");
    TSR_TRY(tsr_csv_check_head(table, is_head,
                               "stream,start_s,end_s,kind,name,module,phase,micro_batch,..."));
    while (tsr_csv_next(table)) {
        double start;
        TSR_TRY(tsr_csv_seconds(table, 1, &start));
        if (table->n < 8)
            return tsr_csv_bad(table, "row", table->line, "at least 8 fields");
        const char *texts[] = {table->fields[6], table->fields[5], table->fields[4]};
        TSR_TRY(add_work(run, works, start, texts, (uint16_t)strtoul(table->fields[7], NULL, 10)));
    }
    return tsr_csv_end(table);
}

/* phases.csv: phase ("forward", "forward 1"), start_s, ... */
static tsr_status read_phases(struct tsr_csv_reader *table, struct tsr_diff_run *run,
                              struct works *works)
{
    bool is_head = tsr_csv_next(table) && table->n >= 3 && !strcmp(table->fields[0], "phase");
    TSR_TRY(tsr_csv_check_head(table, is_head, "phase,start_s,end_s,..."));
    while (tsr_csv_next(table)) {
        double start;
        TSR_TRY(tsr_csv_seconds(table, 1, &start));
        char *space = strchr(table->fields[0], ' ');
        uint16_t micro = space ? (uint16_t)strtoul(space + 1, NULL, 10) : 0;
        if (space)
            *space = '\0';
        const char *texts[] = {table->fields[0], "", ""};
        TSR_TRY(add_work(run, works, start, texts, micro));
    }
    return tsr_csv_end(table);
}

typedef tsr_status (*read_fn)(struct tsr_csv_reader *table, struct tsr_diff_run *run,
                              struct works *works);

/* A file beside memory.csv; *found: it is there. */
static tsr_status read_beside(const char *memory, const char *name, read_fn read,
                              struct tsr_diff_run *run, struct works *works, bool *found)
{
    const char *slash = strrchr(memory, '/');
    char path[1200];
    struct stat info;
    struct tsr_csv_reader table;
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - memory) + 1 : 0, memory, name);
    *found = stat(path, &info) == 0;
    if (!*found)
        return TSR_OK;
    TSR_TRY(tsr_csv_open(path, &table));
    tsr_status status = read(&table, run, works);
    tsr_csv_close(&table);
    return status;
}

static tsr_status read_works(const char *memory, struct tsr_diff_run *run, struct works *works)
{
    bool found = false;
    TSR_TRY(read_beside(memory, "streams.csv", read_streams, run, works, &found));
    if (!found)
        TSR_TRY(read_beside(memory, "phases.csv", read_phases, run, works, &found));
    if (works->n)
        qsort(works->items, works->n, sizeof *works->items, by_start);
    return TSR_OK;
}

/* The work that starts last at or before a time; of those that start together the first. */
static const struct work *work_at(const struct works *works, double time)
{
    size_t low = 0, high = works->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (works->items[middle].start <= time)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    while (low > 1 && works->items[low - 2].start == works->items[low - 1].start)
        low--;
    return &works->items[low - 1];
}

/* ---- memory.csv ------------------------------------------------------------------------------ */

struct columns {
    int category[TSR_CSV_FIELDS]; /* -1: none */
    size_t total, reserved;
};

/* Columns that a comparison of owners has no use for. */
static const char *const not_compared[] = {"requested_bytes", "in_use_bytes"};

static bool is_not_compared(const char *name)
{
    for (size_t i = 0; i < sizeof not_compared / sizeof *not_compared; i++)
        if (!strcmp(name, not_compared[i]))
            return true;
    return false;
}

static tsr_status read_head(struct tsr_csv_reader *table, struct columns *out)
{
    *out = (struct columns){.total = SIZE_MAX, .reserved = SIZE_MAX};
    bool is_head = tsr_csv_next(table) && !strcmp(table->fields[0], "time_s");
    TSR_TRY(tsr_csv_check_head(
        table, is_head,
        "time_s,CATEGORY_bytes,...,total_bytes,reserved_bytes as compare writes it"));
    for (size_t i = 1; i < table->n; i++) {
        char key[80], name[80];
        snprintf(name, sizeof name, "%s", table->fields[i]);
        out->category[i] = -1;
        for (int c = 0; c < TSR_N_CATEGORIES; c++) {
            tsr__category_key(c, key, sizeof key - sizeof "_bytes");
            strcat(key, "_bytes");
            if (!strcmp(key, name))
                out->category[i] = c;
        }
        if (!strcmp(name, "total_bytes"))
            out->total = i;
        else if (!strcmp(name, "reserved_bytes"))
            out->reserved = i;
        else if (out->category[i] < 0 && !is_not_compared(name))
            return tsr_csv_bad(table, "column", name,
                               "CATEGORY_bytes, total_bytes, reserved_bytes, requested_bytes or "
                               "in_use_bytes");
    }
    if (out->total == SIZE_MAX || out->reserved == SIZE_MAX)
        return tsr_csv_bad(table, "head", table->line, "columns total_bytes and reserved_bytes");
    return TSR_OK;
}

static bool is_repeated(const struct tsr_diff_point *before, const struct tsr_diff_point *point)
{
    return before->reserved == point->reserved &&
           !memcmp(before->by_category, point->by_category, sizeof point->by_category);
}

static void set_place(const struct works *works, double time, const struct tsr_diff_point *before,
                      bool first, struct tsr_diff_point *point)
{
    const struct work *work = work_at(works, time);
    if (point->total < before->total && !first) {
        point->phase = before->phase;
        point->module = before->module;
        point->operation = before->operation;
        point->micro = before->micro;
    } else if (work) {
        point->phase = work->phase;
        point->module = work->module;
        point->operation = work->operation;
        point->micro = work->micro;
    }
}

static tsr_status read_row(const struct tsr_csv_reader *table, const struct columns *columns,
                           const struct works *works, struct tsr_diff_run *run)
{
    double time;
    struct tsr_diff_point point = {
        .phase = "(step)", .module = "", .hook = "", .operation = "", .micro = 0};
    TSR_TRY(tsr_csv_seconds(table, 0, &time));
    TSR_TRY(tsr_csv_bytes(table, columns->total, &point.total));
    TSR_TRY(tsr_csv_bytes(table, columns->reserved, &point.reserved));
    for (size_t i = 1; i < table->n; i++) {
        uint64_t bytes;
        TSR_TRY(tsr_csv_bytes(table, i, &bytes));
        if (columns->category[i] >= 0)
            point.by_category[columns->category[i]] = bytes;
    }
    if (run->n == 0)
        point.phase = "";
    else if (is_repeated(&run->points[run->n - 1], &point))
        return TSR_OK; /* the last level once more, at the end of the step */
    else
        set_place(works, time, &run->points[run->n - 1], run->n == 1, &point);
    return tsr_diff_add_point(run, &point);
}

static tsr_status read_memory(struct tsr_csv_reader *table, const struct works *works,
                              struct tsr_diff_run *run)
{
    struct columns columns;
    TSR_TRY(read_head(table, &columns));
    size_t width = table->n;
    while (tsr_csv_next(table)) {
        if (table->n != width)
            return tsr_csv_bad(table, "row", table->line, "as many fields as the head has");
        TSR_TRY(read_row(table, &columns, works, run));
    }
    TSR_TRY(tsr_csv_end(table));
    if (run->n == 0)
        return tsr_fail(TSR_ECONFIG, "%s: found no rows; allowed: a memory.csv of compare or sim",
                        table->path);
    tsr_diff_find_peak(run);
    return TSR_OK;
}

/* overlap.csv beside memory.csv: a folder of an older version has none. */
static tsr_status read_overlap(const char *memory, struct tsr_diff_run *run)
{
    const char *slash = strrchr(memory, '/');
    char folder[1200], path[1216];
    struct stat info;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - memory) : 1,
             slash ? memory : ".");
    snprintf(path, sizeof path, "%s/overlap.csv", folder);
    if (stat(path, &info) != 0)
        return TSR_OK;
    TSR_TRY(tsr_overlap_table_read(folder, &run->overlap));
    run->has_overlap = true;
    return TSR_OK;
}

tsr_status tsr_diff_load_csv(const char *path, struct tsr_diff_run *run)
{
    struct works works = {0};
    struct tsr_csv_reader table;
    run->kind = "folder";
    TSR_TRY(tsr_csv_open(path, &table));
    tsr_status status;
    TSR_GOTO(done, read_works(path, run, &works));
    TSR_GOTO(done, read_memory(&table, &works, run));
    TSR_GOTO(done, read_overlap(path, run));
done:
    tsr_csv_close(&table);
    free(works.items);
    return status;
}

tsr_status tsr_diff_load_folder(const char *path, struct tsr_diff_run *run)
{
    struct stat info;
    char *memory = tsr_path_join(path, "memory.csv");
    if (!memory)
        return TSR_ENOMEM;
    tsr_status status = TSR_OK;
    char *packed = tsr_path_join(path, "memory.csv.gz");
    if (!packed)
        status = TSR_ENOMEM;
    else if (stat(memory, &info) != 0 && stat(packed, &info) == 0)
        status = tsr_diff_load_csv(packed, run);
    else if (stat(memory, &info) != 0)
        status = tsr_fail(TSR_ECONFIG,
                          "%s: has no memory.csv; allowed: the folder of one strategy below the "
                          "--out of compare or sim",
                          path);
    else
        status = tsr_diff_load_csv(memory, run);
    free(packed);
    free(memory);
    return status;
}
