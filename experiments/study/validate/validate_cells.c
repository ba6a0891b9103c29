/* validate_cells.c: what the cells of a table may hold, where a prediction reads them. A cell that
 * holds something else is a mistake in the table. A row that is well written may still be one that
 * is not modelled: that is for conditions.yaml to say. */
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/validate/validate.h"

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
static const char *const yes_no[] = {"yes", "no", "not stated", NULL};
static const char *const fsdp_precisions[] = {"PURE", "DEFAULT", "FULL", NULL};
static const char *const composer_precisions[] = {"bf16",     "fp16",    "fp32", "amp_bf16",
                                                  "amp_fp16", "amp_fp8", NULL};
static const char *const strategies[] = {"FULL_SHARD",   "SHARD_GRAD_OP",       "NO_SHARD",
                                         "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", NULL};
/* A dtype, and what a table adds to it: "bf16 mixed", "bf16 assumed". */
static const char *const dtypes[] = {"bf16",
                                     "bf16[!a-z0-9]*",
                                     "fp16",
                                     "fp16[!a-z0-9]*",
                                     "fp32",
                                     "fp32[!a-z0-9]*",
                                     "tf32",
                                     "fp8",
                                     "fp8[!a-z0-9]*",
                                     "fp4",
                                     "fp4[!a-z0-9]*",
                                     "float8",
                                     "float8[!a-z0-9]*",
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
    {"local_batch", COUNT, false, MOST_BATCH, NULL, NULL},
    {"seq_len", COUNT, false, MOST, NULL, NULL},
    {"tp", COUNT, false, MOST_BATCH, NULL, NULL},
    {"pp", COUNT, false, MOST_BATCH, NULL, NULL},
    {"cp", COUNT, false, MOST_BATCH, NULL, NULL},
    {"torch_compile", WORD, false, 0, yes_no, "yes, no or not stated"},
    {"dtype", WORD, false, 0, dtypes, dtypes_allowed},
    {NULL, 0, false, 0, NULL, NULL}};

static const struct cell other_training[] = {
    {"local_or_micro_batch", COUNT, false, MOST_BATCH, NULL, NULL},
    {"seq_len", COUNT, false, MOST, NULL, NULL},
    {"mfu_pct", NUMBER, false, 0, NULL, NULL},
    {"hfu_pct", NUMBER, false, 0, NULL, NULL},
    {"compile", WORD, false, 0, yes_no, "yes, no or not stated"},
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
} kinds[] = {{"llm_foundry", llm_foundry},
             {"torchtitan", torchtitan},
             {"other_training", other_training},
             {"llmc", llmc},
             {"nccl_busbw", nccl_busbw}};

static const struct cell *cells_of(const struct tsr_table *table)
{
    size_t i = 0;
    while (strcmp(kinds[i].kind, table->kind->name))
        i++;
    return kinds[i].cells;
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

tsr_status tsr_table_check_cells(const struct tsr_table *table)
{
    const struct cell *cells = cells_of(table);
    for (size_t i = 0; i < table->csv.n_rows; i++)
        for (const struct cell *cell = cells; cell->column; cell++)
            TSR_TRY(check(&table->csv, &table->csv.rows[i], cell));
    return TSR_OK;
}

const char *tsr_table_missing(const struct tsr_table *table, const struct tsr_csv_row *row)
{
    for (const struct cell *cell = cells_of(table); cell->column; cell++)
        if (cell->needed && !*tsr_csv_cell(&table->csv, row, cell->column))
            return cell->column;
    return NULL;
}
