/* keys.c: which keys of a strategy a written file says, and what becomes of the others.
 *
 * Every key has a row, the first that matches: said in the file; the user's (model, data, loop);
 * of the simulation alone; or nothing that the format can say, with what to do about it.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/code/code.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/job.h"

enum whose { SAID, YOURS, SIMULATED, LACKS, UNREAD, N_WHOSE };

struct row {
    const char *key;   /* "sim." stands for all that begin so */
    const char *value; /* of that value alone; NULL: of any */
    enum whose whose[TSR_N_CODES];
    const char *note; /* beside LACKS: what to do instead; beside YOURS: what is to be brought */
};

static const char own_option[] = "an option of tessera's own (engine/fsdp/OPTIONS.md)";

/* clang-format off */
static const struct row rows[] = {
    {"stack", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"model.blocks", NULL, {SAID, YOURS, YOURS}, NULL},
    {"model.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"cluster.", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
    {"nodes", NULL, {SIMULATED, SIMULATED, SAID}, NULL},
    {"gpu", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
    {"gpus_per_node", NULL, {SIMULATED, SIMULATED, SAID}, NULL},
    {"world", NULL, {SAID, SAID, SAID}, NULL},
    {"mesh.", NULL, {SAID, SAID, SAID}, NULL},
    {"batch", NULL, {YOURS, SAID, YOURS}, NULL},
    {"seq", NULL, {YOURS, SAID, YOURS}, NULL},
    {"accumulation.steps", NULL, {YOURS, SAID, YOURS}, NULL},
    {"accumulation.mode", "reduce_each", {SAID, SAID, LACKS}, "Accelerate reduces with the last micro-batch only"},
    {"accumulation.mode", "no_reduce", {SAID, LACKS, SAID}, "torchtitan reduces every micro-batch"},
    {"accumulation.mode", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"iterations", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
    {"phases", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
    {"init", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"load", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"load_optimizer", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"save", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"precision.master", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"precision.linear", "plain", {SAID, SAID, SAID}, NULL},
    {"precision.linear", "fp8_tensorwise", {LACKS, LACKS, LACKS}, "convert_to_float8_training() of torchao, before apply()"},
    {"precision.linear", NULL, {LACKS, LACKS, LACKS}, "modules of TransformerEngine, which are yours"},
    {"precision.fp8_gather", "false", {SAID, SAID, SAID}, NULL},
    {"precision.fp8_gather", NULL, {LACKS, LACKS, LACKS}, "Float8LinearConfig(enable_fsdp_float8_all_gather=True) of torchao"},
    {"precision.output", "none", {SAID, SAID, SAID}, NULL},
    {"precision.output", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"precision.cast_inputs", "true", {SAID, SAID, SAID}, NULL},
    {"precision.cast_inputs", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"precision.param", "f16", {SAID, LACKS, SAID}, "torchtitan has bfloat16 and float32"},
    {"precision.", NULL, {SAID, SAID, SAID}, NULL}, /* reduce: torchtitan.c, accelerate.c */
    {"optimizer.name", "adamw", {YOURS, SAID, YOURS}, NULL},
    {"optimizer.name", NULL, {YOURS, LACKS, YOURS}, "torchtitan has Adam and AdamW"},
    {"optimizer.variant", "decoupled", {YOURS, LACKS, YOURS}, "composer's DecoupledAdamW"},
    {"optimizer.variant", "decoupled_read", {YOURS, LACKS, YOURS}, "composer's DecoupledAdamW"},
    {"optimizer.variant", NULL, {YOURS, SAID, YOURS}, NULL},
    {"optimizer.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"clip", NULL, {YOURS, SAID, YOURS}, NULL},
    {"clip_variant", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"loss.kernel", "eager", {YOURS, YOURS, YOURS}, NULL},
    {"loss.kernel", NULL, {YOURS, YOURS, YOURS}, "the cross-entropy of flash-attn, called by your loss"},
    {"loss.chunks", "1", {YOURS, YOURS, YOURS}, NULL},
    {"loss.chunks", NULL, {YOURS, YOURS, YOURS}, "your step computes the head, the loss and their gradients for one chunk of tokens after the other"},
    {"loss.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"sync_each_step", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"checkpoint.every", NULL, {SAID, SAID, SAID}, NULL},
    {"checkpoint.early_stop", "true", {SAID, SAID, SAID}, NULL},
    {"checkpoint.hooks", "inside", {SAID, SAID, SAID}, NULL},
    {"checkpoint.share", "1", {SAID, SAID, SAID}, NULL},
    {"checkpoint.count", "null", {SAID, SAID, SAID}, NULL},
    {"checkpoint.first", "null", {SAID, SAID, SAID}, NULL},
    {"checkpoint.", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"attention", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"attention_unpad", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"gqa_repeat", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"dialect", "eager", {SAID, SAID, SAID}, NULL},
    {"dialect", "compile", {SAID, SAID, SAID}, NULL},
    {"dialect", NULL, {LACKS, LACKS, LACKS}, "kernels of tessera's own, which PyTorch has not"},
    {"compile.components", "[model]", {SAID, SAID, SAID}, NULL},
    {"compile.components", NULL, {YOURS, SAID, YOURS}, "your loss function is given to torch.compile"},
    {"tp", "1", {SAID, SAID, SAID}, NULL},
    {"tp", NULL, {LACKS, SAID, SAID}, "cut the model with parallelize_module(model, mesh[\"tp\"], ...) first; the mesh has the dimension"},
    {"sequence_parallel", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"description", NULL, {SAID, SAID, SAID}, NULL},
    {"api", NULL, {SAID, SAID, SAID}, NULL},
    {"two_level_gather", "false", {SAID, SAID, SAID}, NULL},
    {"two_level_gather", NULL, {LACKS, LACKS, LACKS}, "an all-gather of one's own, for set_custom_all_gather()"},
    {"separate_reduce_scatter_group", "false", {SAID, SAID, SAID}, NULL},
    {"separate_reduce_scatter_group", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"mirror", "false", {SAID, SAID, SAID}, NULL},
    {"mirror", NULL, {LACKS, LACKS, LACKS}, own_option},
    {"direct_gather", "false", {SAID, SAID, SAID}, NULL},
    {"direct_gather", NULL, {LACKS, LACKS, LACKS}, own_option},
    {"folded_scale", "false", {SAID, SAID, SAID}, NULL},
    {"folded_scale", NULL, {LACKS, LACKS, LACKS}, own_option},
    {"wrap", NULL, {SAID, SAID, SAID}, NULL},
    {"reshard_after_forward", NULL, {SAID, SAID, SAID}, NULL},
    {"reshard_after_backward", "true", {SAID, SAID, SAID}, NULL},
    {"reshard_after_backward", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"forward_prefetch", "0", {SAID, SAID, SAID}, NULL},
    {"forward_prefetch", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"backward_prefetch", "0", {SAID, SAID, SAID}, NULL},
    {"backward_prefetch", NULL, {SAID, LACKS, LACKS}, "not an option of it"},
    {"offload", "cpu", {SAID, LACKS, LACKS}, "it pins the memory: offload=cpu_pinned is said instead"},
    {"offload", NULL, {SAID, SAID, SAID}, NULL},
    {"ddp.bucket_cap_mb", NULL, {SAID, LACKS, LACKS}, "torchtitan has 100 MiB; with Accelerate it is DistributedDataParallelKwargs, in the program"},
    {"ddp.", "false", {SAID, SAID, SAID}, NULL},
    {"ddp.", NULL, {SAID, LACKS, LACKS}, "with Accelerate it is DistributedDataParallelKwargs, in the program"},
    {"fsdp1.", NULL, {SAID, SAID, SAID}, NULL},
    {"train.max_norm", NULL, {YOURS, SAID, YOURS}, NULL},
    {"train.lr", NULL, {YOURS, SAID, YOURS}, NULL},
    {"train.steps", NULL, {YOURS, SAID, YOURS}, NULL},
    {"train.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"data.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"eval.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"checkpoints.", NULL, {YOURS, YOURS, YOURS}, NULL},
    {"allocator.limit", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
    {"allocator.", NULL, {SAID, SAID, SAID}, NULL},
    {"sim.", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
    {"goodput.", NULL, {SIMULATED, SIMULATED, SIMULATED}, NULL},
};
/* clang-format on */

static bool matches(const struct row *row, const char *key, const char *value)
{
    size_t n = strlen(row->key);
    bool prefix = row->key[n - 1] == '.';
    return (prefix ? !strncmp(key, row->key, n) : !strcmp(key, row->key)) &&
           (!row->value || !strcmp(value, row->value));
}

static const struct row *row_of(const char *key, const char *value)
{
    size_t n = sizeof rows / sizeof *rows;
    for (size_t i = 0; i < n; i++)
        if (matches(&rows[i], key, value))
            return &rows[i];
    return NULL;
}

/* A value that is a whole file is not repeated. */
static void add_pair(struct tsr_code_text *to, const char *key, const char *value)
{
    enum { LONGEST = 72 };
    bool shown = strlen(value) <= LONGEST;
    tsr_code_add(to, "%s%s%s%s", to->n ? ", " : "", key, shown ? "=" : "", shown ? value : "");
}

/* Too large for a stack. `value`, `plain`: of a key, and its default. */
struct scratch {
    struct tsr_settings defaults;
    char value[TSR_VALUE_BYTES], plain[TSR_VALUE_BYTES];
};

/* Adds a key that the strategy inherits and its API does not read, if its value is not the default.
 */
static tsr_status add_unread(const struct tsr_code_job *code, struct scratch *scratch, size_t key,
                             struct tsr_code_text *unread)
{
    const struct tsr_settings *s = &code->job->strategy->settings;
    TSR_TRY(tsr_key_format(&tsr_keys[key], s, scratch->value, TSR_VALUE_BYTES));
    TSR_TRY(tsr_key_format(&tsr_keys[key], &scratch->defaults, scratch->plain, TSR_VALUE_BYTES));
    if (strcmp(scratch->value, scratch->plain) != 0)
        add_pair(unread, tsr_keys[key].name, scratch->value);
    return TSR_OK;
}

static tsr_status sort_keys(const struct tsr_code_job *code, struct scratch *scratch,
                            struct tsr_code_text lists[N_WHOSE], struct tsr_code_text *lacks)
{
    char *value = scratch->value, *plain = scratch->plain;
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const char *key = tsr_keys[i].name;
        if (!tsr_key_is_read(&tsr_keys[i], code->settings->api)) {
            TSR_TRY(add_unread(code, scratch, i, &lists[UNREAD]));
            continue;
        }
        TSR_TRY(tsr_key_format(&tsr_keys[i], code->settings, value, TSR_VALUE_BYTES));
        TSR_TRY(tsr_key_format(&tsr_keys[i], &scratch->defaults, plain, TSR_VALUE_BYTES));
        if (!code->settings->from[i] && !strcmp(value, plain))
            continue;
        const struct row *row = row_of(key, value);
        if (!row)
            return tsr_fail(TSR_EDEFECT, "defect: key %s has no row in code/keys.c", key);
        enum whose whose = row->whose[code->format];
        if (whose == LACKS || (whose == YOURS && row->note))
            tsr_code_comment(lacks, "# ", 2, "%s: %s=%s: %s.",
                             whose == LACKS ? "Not said" : "You bring", key, value, row->note);
        else
            add_pair(&lists[whose], key, value);
    }
    return TSR_OK;
}

tsr_status tsr_code_put_unsaid(const struct tsr_code_job *code, struct tsr_code_text *to)
{
    struct tsr_code_text lists[N_WHOSE] = {{.s = NULL}}, lacks = {.s = NULL};
    struct scratch *scratch = malloc(sizeof *scratch);
    if (!scratch)
        return tsr_no_memory(NULL);
    tsr_settings_default(&scratch->defaults);
    tsr_status status = sort_keys(code, scratch, lists, &lacks);
    free(scratch);
    if (status == TSR_OK) {
        tsr_code_add_bytes(to, tsr_code_str(&lacks), lacks.n);
        if (lists[YOURS].n)
            tsr_code_comment(to, "# ", 2, "Yours, and part of the prediction: %s.",
                             tsr_code_str(&lists[YOURS]));
        if (lists[SIMULATED].n)
            tsr_code_comment(to, "# ", 2, "Of the simulation alone: %s.",
                             tsr_code_str(&lists[SIMULATED]));
        if (lists[UNREAD].n)
            tsr_code_comment(to, "# ", 2, "Not read by api: %s: %s.",
                             tsr_words_api[code->settings->api], tsr_code_str(&lists[UNREAD]));
        if (tsr_decays_nothing(code->job))
            tsr_code_comment(to, "# ", 2, "%s.", tsr_decays_nothing_words);
    }
    for (int i = 0; i < N_WHOSE; i++) {
        to->failed |= lists[i].failed;
        tsr_code_text_fini(&lists[i]);
    }
    to->failed |= lacks.failed;
    tsr_code_text_fini(&lacks);
    return status;
}
