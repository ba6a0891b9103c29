/* memory_scenario_build.c: builds the model of a memory scenario, wrapped as the scenario says. */
#include "tests/player/memory/memory_traced.h"

#include <stdlib.h>
#include <string.h>

/* By family, and whether names are Hugging Face's (MPT: always). */
static bool is_plain(const struct tsr_memory_scenario *s)
{
    const enum tsr_names names[] = {s->llama.names, s->gpt2.names, TSR_NAMES_HF};
    return names[s->family] == TSR_NAMES_PLAIN;
}

static const char *embedding_name(const struct tsr_memory_scenario *s)
{
    static const char *const names[][2] = {{"model.embed_tokens", "tok_embeddings"},
                                           {"transformer.wte", "wte"},
                                           {"transformer.wte", NULL}};
    return names[s->family][is_plain(s)];
}

static const char *blocks_name(const struct tsr_memory_scenario *s)
{
    static const char *const names[][2] = {
        {"model.layers", "layers"}, {"transformer.h", "h"}, {"transformer.blocks", NULL}};
    return names[s->family][is_plain(s)];
}

static const char *tail_name(const struct tsr_memory_scenario *s, int i)
{
    static const char *const names[][2][2] = {
        {{"model.norm", "lm_head"}, {"norm", "output"}},
        {{"transformer.ln_f", "lm_head"}, {"ln_f", "lm_head"}},
        {{"transformer.norm_f", "lm_head"}, {NULL, NULL}}};
    return names[s->family][is_plain(s)][i];
}

struct builder {
    const struct tsr_memory_scenario *s;
    struct tsr_engine *e;
    struct tsr_module **blocks;
    size_t n;
};

static bool checkpoints(const struct tsr_memory_scenario *s, size_t block)
{
    return s->ac == TSR_AC_EVERY2 ? block % 2 == 0 : s->ac != TSR_AC_NONE;
}

/* The module that lies around all others of these. */
static size_t traced_prefix(const struct tsr_memory_scenario *s, const char *fqn)
{
    size_t found = 0;
    for (size_t i = 0; i < s->trace.model.n_modules; i++) {
        const char *name = s->trace.model.modules[i].name;
        size_t n = strlen(name);
        if (s->variant->checkpointed[i] && n && (!found || n < found) && !strncmp(fqn, name, n) &&
            fqn[n] == '.')
            found = n;
    }
    return found;
}

size_t tsr_memory_checkpointed_prefix(const struct tsr_memory_scenario *s, const char *fqn)
{
    if (s->is_traced)
        return traced_prefix(s, fqn);
    size_t length = strlen(blocks_name(s));
    if (strncmp(fqn, blocks_name(s), length) != 0 || fqn[length] != '.')
        return 0;
    char *end;
    unsigned long block = strtoul(fqn + length + 1, &end, 10);
    return *end == '.' && checkpoints(s, block) ? (size_t)(end - fqn) : 0;
}

static tsr_status apply_checkpoints(const struct builder *b)
{
    for (size_t i = 0; i < b->n; i++) {
        if (!checkpoints(b->s, i))
            continue;
        if (b->s->ac == TSR_AC_SELECTIVE_OP)
            TSR_TRY(tsr_checkpoint_selective(b->e, b->blocks[i]));
        else
            TSR_TRY(tsr_checkpoint(b->e, b->blocks[i], false, true));
    }
    return TSR_OK;
}

static tsr_status shard(const struct builder *b, struct tsr_module *const *modules, size_t n,
                        enum tsr_reshard_kind reshard)
{
    struct tsr_wrap_options options = b->s->options;
    options.reshard = reshard;
    return b->s->is_replicate ? tsr_replicate(b->e, modules, n, &options)
                              : tsr_fully_shard(b->e, modules, n, &options);
}

static tsr_status wrap(const struct builder *b)
{
    const struct tsr_memory_scenario *s = b->s;
    struct tsr_module *root = tsr_module_root(b->e);
    bool tail = s->wrap == TSR_MEMORY_WRAP_EMBED_BLOCK_TAIL_ROOT && !s->is_replicate;
    enum tsr_reshard_kind reshard = s->options.reshard;
    if (tail) {
        struct tsr_module *embedding = tsr_module_find(b->e, embedding_name(s));
        TSR_TRY(shard(b, &embedding, 1, reshard));
    }
    for (size_t i = 0; s->wrap != TSR_MEMORY_WRAP_ROOT &&
                       (tail || s->wrap == TSR_MEMORY_WRAP_BLOCK_ROOT) && i < b->n;
         i++)
        TSR_TRY(shard(b, &b->blocks[i], 1, reshard));
    if (tail) {
        struct tsr_module *parts[2] = {tsr_module_find(b->e, tail_name(s, 0)),
                                       tsr_module_find(b->e, tail_name(s, 1))};
        TSR_TRY(shard(b, parts, 2, TSR_RESHARD_FALSE));
    }
    return shard(b, &root, 1, s->wrap == TSR_MEMORY_WRAP_ROOT ? reshard : TSR_RESHARD_DEFAULT);
}

tsr_status tsr_memory_set_prefetch(const struct tsr_memory_scenario *s, struct tsr_engine *e,
                                   struct tsr_module *const *modules, size_t n_modules)
{
    struct tsr_module **list = calloc(n_modules + 1, sizeof(*list));
    tsr_status status = list ? TSR_OK : tsr_no_memory(NULL);
    for (size_t i = 0; i < n_modules && status == TSR_OK; i++) {
        size_t n = 0;
        for (uint64_t k = 1; k <= s->forward_prefetch && i + k < n_modules; k++)
            list[n++] = modules[i + k];
        if (s->forward_prefetch)
            status = tsr_set_forward_prefetch(e, modules[i], list, n);
        n = 0;
        for (uint64_t k = 1; k <= s->backward_prefetch && k <= i; k++)
            list[n++] = modules[i - k];
        if (s->backward_prefetch && status == TSR_OK)
            status = tsr_set_backward_prefetch(e, modules[i], list, n);
    }
    free(list);
    return status;
}

static tsr_status build_model(const struct tsr_memory_scenario *s, struct tsr_engine *e)
{
    if (s->family == TSR_MEMORY_MPT)
        return tsr_model_mpt(e, &s->mpt);
    return s->family == TSR_MEMORY_GPT2 ? tsr_model_gpt2(e, &s->gpt2)
                                        : tsr_model_llama(e, &s->llama);
}

static tsr_status build_parts(struct builder *b)
{
    const struct tsr_memory_scenario *s = b->s;
    if (s->is_traced) {
        TSR_TRY(tsr_memory_traced_build(s, b->e));
        return tsr_step_configure(b->e, &s->step);
    }
    TSR_TRY(build_model(s, b->e));
    const struct tsr_module *list = tsr_module_find(b->e, blocks_name(s));
    b->n = tsr_module_n_children(list);
    b->blocks = calloc(b->n + 1, sizeof(*b->blocks));
    if (!b->blocks)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < b->n; i++)
        b->blocks[i] = tsr_module_child(list, i);
    TSR_TRY(apply_checkpoints(b));
    TSR_TRY(wrap(b));
    TSR_TRY(tsr_memory_set_prefetch(s, b->e, b->blocks, b->n));
    return tsr_step_configure(b->e, &s->step);
}

tsr_status tsr_memory_scenario_build(const struct tsr_memory_scenario *s,
                                     struct tsr_executor *executor, bool instrumented,
                                     struct tsr_engine **out)
{
    struct builder b = {.s = s};
    struct tsr_engine_config config = s->engine;
    config.executor = executor;
    config.instrumented = instrumented;
    *out = NULL;
    TSR_TRY(tsr_engine_create(&config, &b.e));
    tsr_status status = build_parts(&b);
    free(b.blocks);
    if (status != TSR_OK) {
        tsr_engine_destroy(b.e);
        return status;
    }
    *out = b.e;
    return TSR_OK;
}
