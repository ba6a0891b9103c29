/* validate_table.c: the kinds of tables that `tessera validate` reads, by their columns, and
 * what their cells may hold. */
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/validate/validate.h"

/* ---- what cells may hold --------------------------------------------------------------------- */

/* Where a prediction reads them. A row with a cell that holds something else is not modelled; with
 * --strict it is a mistake in the table. A row that is well written may still be one that is not
 * modelled: that is for conditions.yaml to say. */

enum form {
    COUNT, /* an integer from 1 to `most` */
    NUMBER,
    WORD /* one of `words` (fnmatch) */
};

struct cell {
    const char *column;
    enum form form;
    bool needed; /* a row without it is not modelled */
    uint64_t most;
    const char *const *words;
    const char *allowed; /* of words, for people */
};

#define MOST       (UINT64_C(1) << 30)
#define MOST_BATCH (UINT64_C(1) << 20)
#define MOST_BYTES (UINT64_C(1) << 50)

static const char *const booleans[] = {"True", "False", NULL};
/* A word, and what a table adds to it: "yes (per block)". */
#define WITH_REMARK(word) word, word "[!a-zA-Z0-9]*"
static const char *const yes_no[] = {WITH_REMARK("yes"), WITH_REMARK("no"), "not stated", NULL};
static const char yes_no_allowed[] = "yes, no or not stated, and a remark behind it";
static const char *const recomputed[] = {
    WITH_REMARK("none"), WITH_REMARK("full"), WITH_REMARK("selective op"),
    "selective [0-9]*",  "not stated",        NULL};
static const char recomputed_allowed[] =
    "none, full, selective op, selective N or not stated, and a remark behind it";
static const char *const recomputed_share[] = {WITH_REMARK("none"),          WITH_REMARK("full"),
                                               WITH_REMARK("selective"),     "not stated",
                                               "[0-9]* layers checkpointed", NULL};
static const char recomputed_share_allowed[] =
    "none, full, selective, N layers checkpointed or not stated, and a remark behind it";
static const char *const float8[] = {WITH_REMARK("yes"),
                                     WITH_REMARK("no"),
                                     WITH_REMARK("tensorwise"),
                                     WITH_REMARK("rowwise"),
                                     WITH_REMARK("fp8"),
                                     WITH_REMARK("float8"),
                                     "not stated",
                                     NULL};
static const char float8_allowed[] = "yes, no, tensorwise or rowwise, and a remark behind it";
static const char *const fsdp_precisions[] = {"PURE", "DEFAULT", "FULL", NULL};
static const char *const composer_precisions[] = {"bf16",     "fp16",    "fp32", "amp_bf16",
                                                  "amp_fp16", "amp_fp8", NULL};
static const char *const strategies[] = {"FULL_SHARD",   "SHARD_GRAD_OP",       "NO_SHARD",
                                         "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", NULL};
static const char *const dtypes[] = {WITH_REMARK("bf16"),
                                     WITH_REMARK("fp16"),
                                     WITH_REMARK("fp32"),
                                     "tf32",
                                     WITH_REMARK("fp8"),
                                     WITH_REMARK("fp4"),
                                     WITH_REMARK("float8"),
                                     "mxfp8*",
                                     "nvfp4*",
                                     "mixed*",
                                     "not stated",
                                     NULL};
static const char dtypes_allowed[] = "bf16, fp16, fp32, fp8 or float8, and a remark behind it";

static const struct cell llm_foundry[] = {
    {"seq_len", COUNT, true, MOST, NULL, NULL},
    {"microbatch_size", COUNT, true, MOST_BATCH, NULL, NULL},
    {"grad_accum", COUNT, true, MOST_BATCH, NULL, NULL},
    {"d_model", COUNT, true, MOST, NULL, NULL},
    {"n_layers", COUNT, true, MOST, NULL, NULL},
    {"n_heads", COUNT, true, MOST, NULL, NULL},
    {"vocab_size_yaml", COUNT, false, MOST, NULL, NULL},
    {"mlp_expansion", COUNT, false, MOST, NULL, NULL},
    {"precision", WORD, false, 0, composer_precisions,
     "bf16, fp16, fp32, amp_bf16, amp_fp16 or amp_fp8"},
    {"fsdp_mixed_precision", WORD, false, 0, fsdp_precisions, "PURE, DEFAULT or FULL"},
    {"sharding_strategy", WORD, false, 0, strategies,
     "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or _HYBRID_SHARD_ZERO2"},
    {"activation_checkpointing", WORD, false, 0, booleans, "True or False"},
    {"activation_cpu_offload", WORD, false, 0, booleans, "True or False"},
    {"duplicate_of_head", WORD, false, 0, yes_no, "yes or no"},
    {NULL, 0, false, 0, NULL, NULL}};

static const struct cell torchtitan[] = {
    {"local_batch", COUNT, true, MOST_BATCH, NULL, NULL},
    {"seq_len", COUNT, true, MOST, NULL, NULL},
    {"tp", COUNT, false, MOST_BATCH, NULL, NULL},
    {"pp", COUNT, false, MOST_BATCH, NULL, NULL},
    {"cp", COUNT, false, MOST_BATCH, NULL, NULL},
    {"ep", COUNT, false, MOST_BATCH, NULL, NULL},
    {"activation_checkpointing", WORD, false, 0, recomputed, recomputed_allowed},
    {"torch_compile", WORD, false, 0, yes_no, yes_no_allowed},
    {"dtype", WORD, false, 0, dtypes, dtypes_allowed},
    {"float8", WORD, false, 0, float8, float8_allowed},
    {NULL, 0, false, 0, NULL, NULL}};

static const struct cell other_training[] = {
    {"local_or_micro_batch", COUNT, true, MOST_BATCH, NULL, NULL},
    {"seq_len", COUNT, true, MOST, NULL, NULL},
    {"mfu_pct", NUMBER, false, 0, NULL, NULL},
    {"hfu_pct", NUMBER, false, 0, NULL, NULL},
    {"compile", WORD, false, 0, yes_no, yes_no_allowed},
    {"activation_checkpointing", WORD, false, 0, recomputed_share, recomputed_share_allowed},
    {"precision", WORD, false, 0, dtypes, dtypes_allowed},
    {NULL, 0, false, 0, NULL, NULL}};

static const struct cell llmc[] = {{"micro_batch", COUNT, false, MOST_BATCH, NULL, NULL},
                                   {"seq_len", COUNT, false, MOST, NULL, NULL},
                                   {"tokens_per_step", COUNT, false, MOST_BYTES, NULL, NULL},
                                   {NULL, 0, false, 0, NULL, NULL}};

static const struct cell nccl_busbw[] = {{"n_nodes", COUNT, true, MOST_BATCH, NULL, NULL},
                                         {"size_bytes", COUNT, false, MOST_BYTES, NULL, NULL},
                                         {NULL, 0, false, 0, NULL, NULL}};

static const struct {
    const char *kind;
    const struct cell *cells;
} cell_kinds[] = {{"llm_foundry", llm_foundry},
                  {"torchtitan", torchtitan},
                  {"other_training", other_training},
                  {"llmc", llmc},
                  {"nccl_busbw", nccl_busbw}};

static const struct cell *cells_of(const struct tsr_table *table)
{
    size_t i = 0;
    while (strcmp(cell_kinds[i].kind, table->kind->name))
        i++;
    return cell_kinds[i].cells;
}

static bool is_count(const char *text, uint64_t most)
{
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    return strspn(text, "0123456789") == strlen(text) && !errno && value >= 1 && value <= most;
}

static bool is_word(const char *text, const char *const *words)
{
    while (*words && fnmatch(*words, text, 0))
        words++;
    return *words != NULL;
}

static tsr_status check(const struct tsr_csv *csv, const struct tsr_csv_row *row,
                        const struct cell *cell)
{
    const char *text = tsr_csv_cell(csv, row, cell->column);
    double value;
    bool found;
    if (!*text)
        return TSR_OK;
    if (cell->form == NUMBER)
        return tsr_csv_number(csv, row, cell->column, &value, &found);
    if (cell->form == WORD && !is_word(text, cell->words))
        return tsr_fail(TSR_ECONFIG, "%s:%d: column %s: found \"%.80s\"; allowed: %s", csv->path,
                        row->line, cell->column, text, cell->allowed);
    if (cell->form == COUNT && !is_count(text, cell->most))
        return tsr_fail(TSR_ECONFIG,
                        "%s:%d: column %s: found \"%.80s\"; allowed: an integer from 1 to %llu",
                        csv->path, row->line, cell->column, text, (unsigned long long)cell->most);
    return TSR_OK;
}

tsr_status tsr_table_check_row(const struct tsr_table *table, const struct tsr_csv_row *row)
{
    for (const struct cell *cell = cells_of(table); cell->column; cell++)
        TSR_TRY(check(&table->csv, row, cell));
    return TSR_OK;
}

static tsr_status check_rows(const struct tsr_table *table)
{
    for (size_t i = 0; i < table->csv.n_rows; i++)
        TSR_TRY(tsr_table_check_row(table, &table->csv.rows[i]));
    return TSR_OK;
}

const char *tsr_table_reason(const struct tsr_table *table)
{
    const char *text = tsr_error_text();
    size_t n = strlen(table->csv.path);
    if (strncmp(text, table->csv.path, n) != 0)
        return text;
    text += n;
    return text + strspn(text, ":0123456789 ");
}

const char *tsr_table_missing(const struct tsr_table *table, const struct tsr_csv_row *row)
{
    for (const struct cell *cell = cells_of(table); cell->column; cell++)
        if (cell->needed && !*tsr_csv_cell(&table->csv, row, cell->column))
            return cell->column;
    return NULL;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

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
    "row_id", "table", "date", "framework", "gpu_mem_GB", "fsdp", "tp", "pp", "cp", "ep",
    "pp_schedule", "global_batch", "seq_len_origin", "dtype", "float8", "async_tp",
    "tokens_per_s_per_gpu", "mfu_pct", "peak_mem_GiB", "mem_kind", "note", "source_repo",
    "source_path_or_url", "source_commit", NULL};
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

bool tsr_table_knows(const struct tsr_table *table, size_t i)
{
    const char *const *known = table->kind->columns;
    while (*known && strcmp(*known, table->csv.columns[i]))
        known++;
    return *known != NULL;
}

static tsr_status check_columns(const struct tsr_table *table)
{
    const struct tsr_csv *csv = &table->csv;
    const struct tsr_table_kind *kind = table->kind;
    for (size_t i = 0; i < kind->n_needed; i++)
        if (tsr_csv_column(csv, kind->columns[i]) == csv->n_columns)
            return tsr_fail(TSR_ECONFIG,
                            "%s: found no column \"%s\"; allowed: a table of kind %s has it",
                            csv->path, kind->columns[i], kind->name);
    for (size_t i = 0; i < csv->n_columns; i++) {
        const char *near = tsr_nearest(csv->columns[i], kind->columns);
        if (tsr_table_knows(table, i) || (!near && !table->strict))
            continue;
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
        return check_columns(table);
    return tsr_fail(TSR_ECONFIG,
                    "%s: found the columns %.60s, %.60s, ...; allowed: those of llm_foundry.csv, "
                    "torchtitan.csv, other_training.csv, llmc.csv or nccl_busbw.csv in "
                    "experiments/validation",
                    table->csv.path, table->csv.columns[0],
                    table->csv.n_columns > 1 ? table->csv.columns[1] : "");
}

tsr_status tsr_table_open(const char *path, bool strict, struct tsr_table *out)
{
    out->kind = NULL;
    out->strict = strict;
    TSR_TRY(tsr_csv_load(path, &out->csv));
    tsr_status status = find_kind(out);
    if (status == TSR_OK && strict)
        status = check_rows(out);
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
