/* validate_table.c: the kinds of tables that `tessera validate` reads, by their columns. */
#include "experiments/study/validate/validate.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

#define GIB 1073741824.0

static const char *const llm_foundry_columns[] = {
    "seq_len", "n_gpus", "gpu", "microbatch_size", "grad_accum", "d_model", "n_layers", "n_heads",
    "fsdp_mixed_precision", "activation_checkpointing",
    /* needed up to here */
    "row_id", "model", "vocab_size_yaml", "mlp_expansion", "n_params", "n_nodes_at_8_per_node",
    "interconnect_published", "precision", "sharding_strategy", "activation_cpu_offload",
    "global_batch_seqs", "global_batch_tokens", "tokens_per_s", "tokens_per_s_per_gpu",
    "mfu_pct_published", "hfu_pct_published", "model_tflops_per_gpu_published",
    "step_time_s_derived", "section", "era", "stack_note", "duplicate_of_head", "source_repo",
    "source_path", "source_commit", NULL};
static const struct tsr_measured_column llm_foundry_measured[] = {
    {"tokens_per_s_per_gpu", TSR_FIGURE_RATE, "tokens_per_s_per_gpu", "tokens/s", 1, false},
    {"tokens_per_s", TSR_FIGURE_RATE_ALL, "tokens_per_s", "tokens/s", 1, false},
    {"step_time_s_derived", TSR_FIGURE_STEP, "step_time", "s", 1, false},
    {NULL, 0, NULL, NULL, 0, false}};

static const char *const torchtitan_columns[] = {
    "model", "gpu", "n_gpus", "local_batch", "seq_len", "activation_checkpointing", "torch_compile",
    /* needed up to here */
    "row_id", "table", "date", "framework", "gpu_mem_GB", "fsdp", "tp", "pp", "cp", "pp_schedule",
    "global_batch", "seq_len_origin", "dtype", "float8", "async_tp", "tokens_per_s_per_gpu",
    "mfu_pct", "peak_mem_GiB", "mem_kind", "note", "source_repo", "source_path_or_url",
    "source_commit", NULL};
static const struct tsr_measured_column torchtitan_measured[] = {
    {"peak_mem_GiB", TSR_FIGURE_RESERVED, "peak_reserved_memory", "GiB", 1, true},
    {"tokens_per_s_per_gpu", TSR_FIGURE_RATE, "tokens_per_s_per_gpu", "tokens/s", 1, false},
    {NULL, 0, NULL, NULL, 0, false}};

static const char *const other_training_columns[] = {
    "framework", "model", "gpu", "n_gpus", "sharding", "local_or_micro_batch", "seq_len",
    "activation_checkpointing",
    /* needed up to here */
    "row_id", "tp", "pp", "cp", "global_batch", "compile", "precision", "tokens_per_s_per_gpu",
    "step_time_s", "tflops_per_gpu", "mfu_pct", "hfu_pct", "peak_mem_GB", "note", "source_repo",
    "source_path_or_url", "source_commit", NULL};
static const struct tsr_measured_column other_training_measured[] = {
    {"peak_mem_GB", TSR_FIGURE_RESERVED, "peak_reserved_memory", "GiB", 1e9 / GIB, true},
    {"tokens_per_s_per_gpu", TSR_FIGURE_RATE, "tokens_per_s_per_gpu", "tokens/s", 1, false},
    {"step_time_s", TSR_FIGURE_STEP, "step_time", "s", 1, false},
    {"tflops_per_gpu", TSR_FIGURE_TFLOPS, "tflops_per_gpu", "TFLOP/s", 1, false},
    {NULL, 0, NULL, NULL, 0, false}};

static const char *const llmc_columns[] = {
    "framework", "model", "gpu", "n_gpus", "micro_batch", "zero_stage", "recompute",
    /* needed up to here */
    "row_id", "n_params", "n_nodes", "seq_len", "tokens_per_step", "step_ms", "tokens_per_s_total",
    "tokens_per_s_origin", "mfu_pct", "mem_params_MiB", "mem_activations_MiB", "mem_grads_MiB",
    "mem_adam_m_MiB", "mem_adam_v_MiB", "mem_master_MiB", "peak_mem", "note", "source_repo",
    "source_path_or_url", "source_commit", NULL};
static const struct tsr_measured_column llmc_measured[] = {
    {"tokens_per_s_total", TSR_FIGURE_RATE_ALL, "tokens_per_s", "tokens/s", 1, false},
    {"step_ms", TSR_FIGURE_STEP, "step_time", "s", 1e-3, false},
    {NULL, 0, NULL, NULL, 0, false}};

static const char *const nccl_columns[] = {
    "collective", "gpu", "n_gpus", "n_nodes", "interconnect", "size_bytes",
    /* needed up to here */
    "row_id", "algo", "nccl_or_stack", "time_us", "algbw_GBps", "busbw_GBps", "time_is", "note",
    "source_repo", "source_path", "source_commit_or_url", NULL};
static const struct tsr_measured_column nccl_measured[] = {
    {"time_us", TSR_FIGURE_SECONDS, "time", "s", 1e-6, false},
    {"busbw_GBps", TSR_FIGURE_BUSBW, "busbw", "GB/s", 1, false},
    {NULL, 0, NULL, NULL, 0, false}};

static const struct tsr_table_kind kinds[] = {
    {"llm_foundry", llm_foundry_columns, 10, llm_foundry_measured, "n_gpus"},
    {"torchtitan", torchtitan_columns, 7, torchtitan_measured, "n_gpus"},
    {"other_training", other_training_columns, 8, other_training_measured, "n_gpus"},
    {"llmc", llmc_columns, 7, llmc_measured, "n_gpus"},
    {"nccl_busbw", nccl_columns, 6, nccl_measured, "n_gpus"},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

const struct tsr_table_kind *tsr_table_kind_find(const char *name)
{
    for (size_t i = 0; i < N_KINDS; i++)
        if (!strcmp(kinds[i].name, name))
            return &kinds[i];
    return NULL;
}

/* Needed columns that the table has. */
static size_t count_needed(const struct tsr_csv *csv, const struct tsr_table_kind *kind)
{
    size_t n = 0;
    for (size_t i = 0; i < kind->n_needed; i++)
        n += tsr_csv_column(csv, kind->columns[i]) < csv->n_columns;
    return n;
}

static tsr_status check_columns(const struct tsr_csv *csv, const struct tsr_table_kind *kind)
{
    for (size_t i = 0; i < kind->n_needed; i++)
        if (tsr_csv_column(csv, kind->columns[i]) == csv->n_columns)
            return tsr_fail(TSR_ECONFIG,
                            "%s: found no column \"%s\"; allowed: a table of kind %s has it",
                            csv->path, kind->columns[i], kind->name);
    for (size_t i = 0; i < csv->n_columns; i++) {
        const char *const *known = kind->columns;
        while (*known && strcmp(*known, csv->columns[i]))
            known++;
        if (*known)
            continue;
        const char *near = tsr_nearest(csv->columns[i], kind->columns);
        return tsr_fail(TSR_ECONFIG,
                        "%s: found column \"%.80s\", which no table of kind %s has%s%s; allowed: "
                        "the columns of experiments/validation/%s.csv",
                        csv->path, csv->columns[i], kind->name, near ? "; nearest: " : "",
                        near ? near : "", kind->name);
    }
    return TSR_OK;
}

/* The kind of which most needed columns are there, at least two thirds. */
static tsr_status find_kind(struct tsr_table *table)
{
    double best = 0.6;
    for (size_t i = 0; i < N_KINDS; i++) {
        double share = (double)count_needed(&table->csv, &kinds[i]) / (double)kinds[i].n_needed;
        if (share <= best)
            continue;
        best = share;
        table->kind = &kinds[i];
    }
    if (table->kind)
        return check_columns(&table->csv, table->kind);
    return tsr_fail(TSR_ECONFIG,
                    "%s: found the columns %.60s, %.60s, ...; allowed: those of llm_foundry.csv, "
                    "torchtitan.csv, other_training.csv, llmc.csv or nccl_busbw.csv in "
                    "experiments/validation",
                    table->csv.path, table->csv.columns[0],
                    table->csv.n_columns > 1 ? table->csv.columns[1] : "");
}

tsr_status tsr_table_open(const char *path, struct tsr_table *out)
{
    out->kind = NULL;
    TSR_TRY(tsr_csv_load(path, &out->csv));
    tsr_status status = find_kind(out);
    if (status == TSR_OK)
        status = tsr_table_check_cells(out);
    if (status != TSR_OK)
        tsr_csv_fini(&out->csv);
    return status;
}

void tsr_table_close(struct tsr_table *table)
{
    tsr_csv_fini(&table->csv);
}

tsr_status tsr_table_gpus(const struct tsr_table *table, const struct tsr_csv_row *row,
                          uint32_t out[2])
{
    const char *cell = tsr_csv_cell(&table->csv, row, table->kind->gpus);
    char *end = NULL;
    unsigned long first = strtoul(cell, &end, 10), last = first;
    bool ok = end != cell && *cell >= '0' && *cell <= '9';
    if (ok && *end == '-' && end[1] >= '0' && end[1] <= '9')
        last = strtoul(end + 1, &end, 10);
    if (!ok || *end || first < 1 || last < first || last > 1048576)
        return tsr_fail(TSR_ECONFIG,
                        "%s:%d: column %s: found \"%.40s\"; allowed: a number of GPUs from 1 to "
                        "1048576, or a range like 128-512",
                        table->csv.path, row->line, table->kind->gpus, cell);
    out[0] = (uint32_t)first;
    out[1] = (uint32_t)last;
    return TSR_OK;
}
