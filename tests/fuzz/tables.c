/* tables.c: targets that read tables, logs and recordings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/cli/args/cmd.h"
#include "experiments/cli/calibrate/kineto.h"
#include "experiments/study/base/csv.h"
#include "experiments/study/diff/diff_parts.h"
#include "experiments/study/validate/validate.h"
#include "fuzz/fuzz.h"

static void csv(const uint8_t *data, size_t n)
{
    struct tsr_csv table;
    double value;
    bool found;
    if (tsr_csv_load(tsr_fuzz_file("table.csv", data, n), &table) != TSR_OK)
        return;
    for (size_t i = 0; i < table.n_rows; i++)
        if (tsr_csv_number(&table, &table.rows[i], table.columns[0], &value, &found) != TSR_OK)
            break;
    tsr_csv_fini(&table);
}

/* A table of published measurements. */
static void published(const uint8_t *data, size_t n)
{
    struct tsr_table table;
    uint32_t gpus[2];
    if (tsr_table_open(tsr_fuzz_file("published.csv", data, n), false, &table) != TSR_OK)
        return;
    for (size_t i = 0; i < table.csv.n_rows; i++)
        if (!tsr_table_missing(&table, &table.csv.rows[i]) &&
            tsr_table_gpus(&table, &table.csv.rows[i], gpus) != TSR_OK)
            break;
    tsr_table_close(&table);
}

/* ---- what compare left of a strategy --------------------------------------------------------- */

static void load(const char *memory)
{
    static struct tsr_diff_run run;
    run = (struct tsr_diff_run){0};
    tsr_arena_init(&run.arena);
    if (tsr_diff_load_csv(memory, &run) == TSR_OK)
        (void)run.peak;
    tsr_diff_run_fini(&run);
}

static const char levels[] = "time_s,parameters_bytes,total_bytes,reserved_bytes\n"
                             "0,512,512,1024\n0.5,1024,1024,1024\n1,512,512,1024\n";

static void memory_csv(const uint8_t *data, size_t n)
{
    load(tsr_fuzz_file("memory.csv", data, n));
}

static void streams_csv(const uint8_t *data, size_t n)
{
    (void)tsr_fuzz_file("streams.csv", data, n);
    load(tsr_fuzz_text_file("memory.csv", levels));
}

static void phases_csv(const uint8_t *data, size_t n)
{
    (void)tsr_fuzz_file("phases.csv", data, n);
    load(tsr_fuzz_text_file("memory.csv", levels));
}

/* The first line of the input and the second are overlap-frame.csv, the others overlap.csv. */
static void overlap_csv(const uint8_t *data, size_t n)
{
    struct tsr_overlap_table table;
    char path[4096];
    const uint8_t *line = n ? memchr(data, '\n', n) : NULL;
    line = line ? memchr(line + 1, '\n', n - (size_t)(line + 1 - data)) : NULL;
    size_t head = line ? (size_t)(line + 1 - data) : n;
    (void)tsr_fuzz_file("overlap.csv", data + head, n - head);
    snprintf(path, sizeof path, "%s", tsr_fuzz_file("overlap-frame.csv", data, head));
    *strrchr(path, '/') = 0;
    if (tsr_overlap_table_read(path, &table) == TSR_OK)
        tsr_overlap_table_fini(&table);
}

/* A time line of PyTorch's allocator, compressed or not. */
static void recording(const uint8_t *data, size_t n)
{
    static struct tsr_diff_run run;
    run = (struct tsr_diff_run){0};
    tsr_arena_init(&run.arena);
    if (tsr_diff_load_recording(tsr_fuzz_file("a.timeline.json.gz", data, n), &run) == TSR_OK)
        (void)run.peak;
    tsr_diff_run_fini(&run);
}

/* A memory snapshot of PyTorch. */
static void snapshot(const uint8_t *data, size_t n)
{
    static struct tsr_diff_run run;
    run = (struct tsr_diff_run){0};
    tsr_arena_init(&run.arena);
    if (tsr_diff_load_snapshot(tsr_fuzz_file("a.pickle", data, n), &run) == TSR_OK)
        (void)run.peak;
    tsr_diff_run_fini(&run);
}

/* ---- commands that read a log or a table ----------------------------------------------------- */

static struct tsr_args args;
static int success;

static void nccl_log(const uint8_t *data, size_t n)
{
    static const struct tsr_usage usage = {.name = "calibrate"};
    args = (struct tsr_args){.nccl_log = tsr_fuzz_file("all_reduce_perf.log", data, n)};
    if (tsr_cmd_calibrate(&usage, &args, &success) == TSR_OK)
        (void)success;
}

/* A trace of PyTorch's profiler. */
static void kineto(const uint8_t *data, size_t n)
{
    static struct tsr_kineto trace;
    struct tsr_times times = {0};
    if (tsr_kineto_read(tsr_fuzz_file("trace.json", data, n), 8, &times, &trace) == TSR_OK)
        (void)trace.group;
    tsr_times_fini(&times);
}

static void kernels_csv(const uint8_t *data, size_t n)
{
    static const struct tsr_usage usage = {.name = "kernels", .formats = "md, csv or json"};
    args = (struct tsr_args){.file = tsr_fuzz_file("kernels.csv", data, n)};
    if (tsr_cmd_kernels(&usage, &args, &success) == TSR_OK)
        (void)success;
}

const struct tsr_fuzz_target tsr_fuzz_tables[] = {
    {.name = "csv", .run = csv, .dictionary = "csv"},
    {.name = "published", .run = published, .dictionary = "csv"},
    {.name = "memory_csv", .run = memory_csv, .dictionary = "csv"},
    {.name = "streams_csv", .run = streams_csv, .dictionary = "csv"},
    {.name = "phases_csv", .run = phases_csv, .dictionary = "csv"},
    {.name = "overlap_csv", .run = overlap_csv, .dictionary = "csv"},
    {.name = "recording", .run = recording, .dictionary = "json"},
    {.name = "snapshot", .run = snapshot, .dictionary = "wire"},
    {.name = "nccl_log", .run = nccl_log, .dictionary = "csv"},
    {.name = "kineto", .run = kineto, .dictionary = "json"},
    {.name = "kernels_csv", .run = kernels_csv, .dictionary = "csv"},
    {.name = NULL},
};
