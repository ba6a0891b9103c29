/* keys.c: the table of keys, whose rows are keys.def, and what is asked of a row. */
#include <stddef.h>
#include <string.h>

#include "experiments/study/config/changes.h"
#include "experiments/study/config/section.h"
#include "experiments/study/config/settings.h"

#define AT(field)  offsetof(struct tsr_settings, field)
#define SIZE_MAX_D 1048576.0 /* of a size that a user gives: 2^20 */

static const char *const word_all[] = {"all", NULL};

/* Which APIs read a key. The strategy of another one may not give it (job/job.h). */
enum {
    FSDP2 = 1 << TSR_API_FULLY_SHARD,
    REPLICATE = 1 << TSR_API_REPLICATE,
    DDP = 1 << TSR_API_DDP,
    FSDP1 = 1 << TSR_API_FSDP1,
    HOOKS = FSDP2 | REPLICATE, /* the two that have FSDP2's hooks */
    SHARD = FSDP2 | FSDP1,
    GROUPS = FSDP2 | REPLICATE | FSDP1,
    NOT_FSDP1 = FSDP2 | REPLICATE | DDP,
    ALL = GROUPS | DDP
};

/* What another value changes beside speed. Keys of the software are left out of sim.*: a user may
 * choose them freely. */
enum { NUMBERS = TSR_CHANGES_NUMBERS, HARDWARE = TSR_CHANGES_HARDWARE };

enum {
    KEEPS_MODEL = TSR_PRESERVES_MODEL,
    KEEPS_STATE = TSR_PRESERVES_STATE,
    KEEPS_HOOKS = TSR_PRESERVES_HOOKS
};

/* What becomes of a key in written code: the same for all values, or a list. */
enum {
    SAY = TSR_EXPORT_SAID,
    BRING = TSR_EXPORT_BROUGHT,
    SIM = TSR_EXPORT_SIMULATED,
    LACK = TSR_EXPORT_LACKING
};
#define EXPORTS(...) ((const struct tsr_key_export[]){__VA_ARGS__})
#define WRITTEN      EXPORTS({NULL, {SAY, SAY, SAY}, NULL})
#define BROUGHT      EXPORTS({NULL, {BRING, BRING, BRING}, NULL})
#define SIMULATED    EXPORTS({NULL, {SIM, SIM, SIM}, NULL})
#define OWN_OPTION   "an option of tessera's own (engine/fsdp/OPTIONS.md)"

#define KEY(id, ...) [TSR_K_##id] = {__VA_ARGS__},
const struct tsr_key tsr_keys[TSR_N_KEYS] = {
#include "experiments/study/config/keys.def"
};
#undef KEY

size_t tsr_key_find(const char *name)
{
    size_t i = 0, n = TSR_N_KEYS;
    while (i < n && strcmp(tsr_keys[i].name, name))
        i++;
    return i;
}

bool tsr_key_is_read(const struct tsr_key *key, unsigned api)
{
    return key->reads >> api & 1;
}

bool tsr_name_is_read(const char *name, unsigned api, bool has_world)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const char *key = tsr_keys[i].name;
        bool is_it = !strncmp(key, name, n) && (!key[n] || key[n] == '.');
        if (is_it &&
            (tsr_key_is_read(&tsr_keys[i], api) || (!strncmp(key, "mesh.", 5) && !has_world)))
            return true;
    }
    return false;
}

void tsr_key_readers(const struct tsr_key *key, char *out, size_t size)
{
    const char *words[TSR_API_FSDP1 + 2];
    size_t n = 0;
    out[0] = 0;
    if (key->reads == ALL)
        return;
    for (unsigned api = 0; api <= TSR_API_FSDP1; api++)
        if (tsr_key_is_read(key, api))
            words[n++] = tsr_words_api[api];
    words[n] = NULL;
    tsr_join_words(words, out, size);
}

bool tsr_key_is_prefix(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (!strncmp(tsr_keys[i].name, name, length) && tsr_keys[i].name[length] == '.')
            return true;
    return false;
}

const char *tsr_key_shorthand(const char *prefix)
{
    static const char *const table[][2] = {{"model", "model.name"},
                                           {"mesh", "mesh.shape"},
                                           {"checkpoint", "checkpoint.every"},
                                           {"cluster", "cluster.name"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i][0], prefix))
            return table[i][1];
    return NULL;
}

bool tsr_key_prefix_resets(const char *prefix)
{
    return !strcmp(prefix, "model") || !strcmp(prefix, "mesh") || !strcmp(prefix, "cluster");
}

/* ---- words of enumerated keys ---------------------------------------------------------------- */

/* Words of enumerated keys, in the order of their enums. An empty word is a value
 * that a key does not offer. */

const char *const tsr_words_accum[] = {"reduce_each", "no_reduce", "no_reduce_no_reshard",
                                       "no_all_reduce", NULL};
const char *const tsr_words_dtype[] = {"none", "f32", "bf16", "f16", NULL};
const char *const tsr_words_real[] = {"", "f32", "bf16", "f16", "f64", NULL};
const char *const tsr_words_optimizer[] = {"adamw", "sgd", "none", NULL};
const char *const tsr_words_variant[] = {"foreach",   "fused",          "loop",
                                         "decoupled", "decoupled_read", NULL};
const char *const tsr_words_clip[] = {"foreach", "loop", "loop_read", NULL};
const char *const tsr_words_loss[] = {"eager", "flash_attn", "flash_attn_inplace", NULL};
const char *const tsr_words_state[] = {"master", "f32", "bf16", NULL};
const char *const tsr_words_impl[] = {"plain", "transformers", NULL};
const char *const tsr_words_names[] = {"hf", "torchtitan", NULL};
const char *const tsr_words_norm[] = {"kernel", "hand", NULL};
const char *const tsr_words_sync[] = {"none", "loss", "step", NULL};
const char *const tsr_words_ckpt[] = {"none", "full", "selective_op", NULL};
const char *const tsr_words_hooks[] = {"inside", "outside", NULL};
const char *const tsr_words_attention[] = {"flash", "efficient", "math", "eager", NULL};
const char *const tsr_words_linear[] = {"plain", "fp8_tensorwise", "fp8_delayed", NULL};
const char *const tsr_words_dialect[] = {"eager", "fused", "compile", NULL};
const char *const tsr_words_compiled[] = {"model", "loss", NULL};
const char *const tsr_words_api[] = {"fully_shard", "replicate", "ddp", "fsdp1", NULL};
const char *const tsr_words_fsdp1_prefetch[] = {"pre", "post", "none", NULL};
const char *const tsr_words_wrap[] = {"block", "block_embed_head", "root", NULL};
const char *const tsr_words_offload[] = {"none", "cpu", "cpu_pinned", NULL};
const char *const tsr_words_sections[] = {TSR_SECTION_WORDS, NULL};
const char *const tsr_words_init[] = {"meta", "device", "host", NULL};
const char *const tsr_words_load[] = {"sharded", "full_rank0", NULL};
const char *const tsr_words_save[] = {"sharded", "full_rank0", "full_device", "sharded_async",
                                      NULL};
const char *const tsr_words_order[] = {"shuffled", "sequential", NULL};
const char *const tsr_words_decay[] = {"all", "matrices", NULL};
const char *const tsr_words_schedule[] = {"constant", "linear", "cosine", NULL};
const char *const tsr_words_limit[] = {"auto", "card", "none", NULL};
#define WORD(id, word, row) word,
const char *const tsr_words_algorithm[] = {"auto", TSR_ALGORITHMS(WORD) NULL};
#undef WORD
const char *const tsr_words_protocol[] = {"auto", "ll", "ll128", "simple", NULL};
const char *const tsr_words_attention_kernel[] = {"auto",   "flash1", "flash1_triton", "flash2",
                                                  "flash3", "cudnn",  "math",          NULL};
const char *const tsr_words_norm_kernel[] = {"auto", "eager", "compiled", "cudnn", NULL};
