/* memory_scenario.c: reads a memory scenario. */
#include "sim/base/files.h"
#include "sim/base/words.h"
#include "tests/player/memory/memory_traced.h"

#include <stdlib.h>
#include <string.h>

#include "sim/base/json_load.h"

/* ---- values ---------------------------------------------------------------------------------- */

static tsr_status wrong(const struct tsr_memory_scenario *s, const char *key, const json_t *found,
                        const char *allowed)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    tsr_status status = tsr_fail(TSR_ECONFIG, "%s: key \"%.80s\": found %.80s; allowed: %s",
                                 s->path, key, text ? text : "nothing", allowed);
    free(text);
    return status;
}

/* Absent and null: *out stays. */
static tsr_status read_number(const struct tsr_memory_scenario *s, const json_t *map,
                              const char *key, uint64_t low, uint64_t high, uint64_t *out)
{
    char allowed[80];
    const json_t *value = json_object_get(map, key);
    if (!value || json_is_null(value))
        return TSR_OK;
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    if (number >= 0 && (uint64_t)number >= low && (uint64_t)number <= high) {
        *out = (uint64_t)number;
        return TSR_OK;
    }
    snprintf(allowed, sizeof allowed, "an integer from %llu to %llu", (unsigned long long)low,
             (unsigned long long)high);
    return wrong(s, key, value, allowed);
}

static tsr_status read_bool(const struct tsr_memory_scenario *s, const json_t *map, const char *key,
                            bool *out)
{
    const json_t *value = json_object_get(map, key);
    if (!value || json_is_null(value))
        return TSR_OK;
    if (!json_is_boolean(value))
        return wrong(s, key, value, "true or false");
    *out = json_is_true(value);
    return TSR_OK;
}

/* One of `words`; null is the word "null". */
static tsr_status read_word(const struct tsr_memory_scenario *s, const json_t *map, const char *key,
                            const char *const *words, unsigned *out)
{
    const json_t *value = json_object_get(map, key);
    char allowed[160] = "";
    if (!value)
        return TSR_OK;
    const char *text = json_is_null(value) ? "null" : json_string_value(value);
    for (unsigned i = 0; words[i]; i++) {
        if (text && !strcmp(text, words[i])) {
            *out = i;
            return TSR_OK;
        }
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s", i ? ", " : "",
                 words[i]);
    }
    return wrong(s, key, value, allowed);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* So small that no product of sizes leaves 64 bits, and no list of events the machine's memory. */
enum { SIZE_LIMIT = 1 << 24, LAYER_LIMIT = 1024, HEAD_LIMIT = 4096, TOKEN_LIMIT = 1 << 24 };
enum { PASS_LIMIT = 1 << 16 }; /* layers x micro-batches x iterations */

static tsr_status need_size(const struct tsr_memory_scenario *s, const json_t *map, const char *key,
                            uint64_t limit, uint64_t *out)
{
    const json_t *value = json_object_get(map, key);
    if (!value || json_is_null(value))
        return wrong(s, key, value, "a size, in model_config");
    return read_number(s, map, key, 1, limit, out);
}

/* Variants: one word says so, every other means the usual. */
static tsr_status read_variant(const struct tsr_memory_scenario *s, const json_t *map,
                               const char *key, const char *word, bool *out)
{
    const json_t *value = json_object_get(map, key);
    const char *text = json_string_value(value);
    if (value && !text)
        return wrong(s, key, value, "a word");
    *out = text && !strcmp(text, word);
    return TSR_OK;
}

static tsr_status check_heads(const struct tsr_memory_scenario *s, const json_t *c, uint64_t hidden,
                              uint64_t heads, uint64_t kv_heads)
{
    if (hidden % heads != 0)
        return wrong(s, "num_attention_heads", json_object_get(c, "num_attention_heads"),
                     "a divisor of hidden_size");
    if (heads % kv_heads != 0)
        return wrong(s, "num_key_value_heads", json_object_get(c, "num_key_value_heads"),
                     "a divisor of num_attention_heads");
    return TSR_OK;
}

static tsr_status read_llama(struct tsr_memory_scenario *s, const json_t *c, unsigned impl)
{
    struct tsr_llama_config *l = &s->llama;
    TSR_TRY(need_size(s, c, "hidden_size", SIZE_LIMIT, &l->hidden_size));
    TSR_TRY(need_size(s, c, "intermediate_size", SIZE_LIMIT, &l->intermediate_size));
    TSR_TRY(need_size(s, c, "num_hidden_layers", LAYER_LIMIT, &l->n_layers));
    TSR_TRY(need_size(s, c, "num_attention_heads", HEAD_LIMIT, &l->n_heads));
    TSR_TRY(need_size(s, c, "num_key_value_heads", HEAD_LIMIT, &l->n_kv_heads));
    TSR_TRY(need_size(s, c, "vocab_size", SIZE_LIMIT, &l->vocab_size));
    TSR_TRY(need_size(s, c, "max_position_embeddings", SIZE_LIMIT, &l->max_positions));
    TSR_TRY(read_bool(s, c, "tie_word_embeddings", &l->tie_embeddings));
    TSR_TRY(check_heads(s, c, l->hidden_size, l->n_heads, l->n_kv_heads));
    l->head_dim = l->hidden_size / l->n_heads;
    if (l->head_dim % 2 != 0)
        return wrong(s, "hidden_size", json_object_get(c, "hidden_size"),
                     "an even number per attention head");
    TSR_TRY(read_variant(s, c, "norm", "hand", &l->hand_norm));
    TSR_TRY(read_variant(s, c, "gqa", "repeat", &s->engine.gqa_repeat));
    l->impl = (enum tsr_impl)impl;
    l->names = impl ? TSR_NAMES_HF : TSR_NAMES_PLAIN;
    l->packed_mask = impl != 0; /* what the recorder's stand-in device reads */
    return TSR_OK;
}

static tsr_status read_gpt2(struct tsr_memory_scenario *s, const json_t *c, unsigned impl)
{
    struct tsr_gpt2_config *g = &s->gpt2;
    bool tied = true;
    TSR_TRY(need_size(s, c, "hidden_size", SIZE_LIMIT, &g->n_embd));
    TSR_TRY(need_size(s, c, "num_hidden_layers", LAYER_LIMIT, &g->n_layer));
    TSR_TRY(need_size(s, c, "num_attention_heads", HEAD_LIMIT, &g->n_head));
    TSR_TRY(need_size(s, c, "vocab_size", SIZE_LIMIT, &g->vocab_size));
    TSR_TRY(need_size(s, c, "max_position_embeddings", SIZE_LIMIT, &g->n_positions));
    TSR_TRY(read_bool(s, c, "tie_word_embeddings", &tied));
    TSR_TRY(check_heads(s, c, g->n_embd, g->n_head, g->n_head));
    g->untied = !tied;
    g->impl = (enum tsr_impl)impl;
    g->names = impl ? TSR_NAMES_HF : TSR_NAMES_PLAIN;
    g->packed_mask = impl != 0;
    return TSR_OK;
}

static tsr_status read_mpt(struct tsr_memory_scenario *s, const json_t *c)
{
    struct tsr_mpt_config *m = &s->mpt;
    bool tied = true;
    TSR_TRY(need_size(s, c, "hidden_size", SIZE_LIMIT, &m->d_model));
    TSR_TRY(need_size(s, c, "num_hidden_layers", LAYER_LIMIT, &m->n_layers));
    TSR_TRY(need_size(s, c, "num_attention_heads", HEAD_LIMIT, &m->n_heads));
    TSR_TRY(need_size(s, c, "vocab_size", SIZE_LIMIT, &m->vocab_size));
    TSR_TRY(need_size(s, c, "max_position_embeddings", SIZE_LIMIT, &m->max_seq_len));
    TSR_TRY(read_bool(s, c, "tie_word_embeddings", &tied));
    m->untied = !tied;
    return check_heads(s, c, m->d_model, m->n_heads, m->n_heads);
}

static tsr_status read_model(struct tsr_memory_scenario *s)
{
    static const char *const families[] = {"llama", "gpt2", "mpt", NULL};
    static const char *const impls[] = {"own", "hf", NULL};
    const json_t *c = json_object_get(s->object, "model_config");
    unsigned family = 0, impl = 0;
    if (!json_is_object(c))
        return wrong(s, "model_config", c, "the sizes of a model");
    TSR_TRY(read_word(s, c, "family", families, &family));
    TSR_TRY(read_word(s, c, "impl", impls, &impl));
    s->family = (enum tsr_memory_family)family;
    if (family == TSR_MEMORY_MPT && impl)
        return wrong(s, "impl", json_object_get(c, "impl"), "own, of family mpt");
    if (family == TSR_MEMORY_MPT)
        return read_mpt(s, c);
    return family ? read_gpt2(s, c, impl) : read_llama(s, c, impl);
}

/* ---- sharding and the step ------------------------------------------------------------------- */

static tsr_status read_mesh(struct tsr_memory_scenario *s)
{
    const json_t *shape = json_object_get(s->object, "mesh");
    struct tsr_mesh *mesh = &s->engine.mesh;
    uint64_t world = 1, rank = 0;
    if (!shape)
        return wrong(s, "mesh", NULL, "[shards] or [replicas, shards]");
    if (!json_is_array(shape) || json_array_size(shape) < 1 || json_array_size(shape) > 2)
        return wrong(s, "mesh", shape, "[shards] or [replicas, shards]");
    mesh->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < mesh->n_dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        json_int_t n = json_is_integer(size) ? json_integer_value(size) : 0;
        if (n < 1 || n > 1 << 20)
            return wrong(s, "mesh", shape, "sizes from 1 to 1048576");
        mesh->shape[i] = (uint32_t)n;
        world *= (uint64_t)n;
    }
    snprintf(mesh->name[mesh->n_dims - 1], sizeof mesh->name[0], "shard");
    if (mesh->n_dims == 2)
        snprintf(mesh->name[0], sizeof mesh->name[0], "replicate");
    if (world > 1 << 24)
        return wrong(s, "mesh", shape, "up to 16777216 ranks");
    TSR_TRY(read_number(s, s->object, "rank", 0, world - 1, &rank));
    s->engine.rank = (uint32_t)rank;
    return TSR_OK;
}

static tsr_status read_dtypes(struct tsr_memory_scenario *s)
{
    static const char *const names[] = {"null", "fp32", "bf16", "fp16", NULL};
    static const tsr_dtype dtypes[] = {TSR_DTYPE_NONE, TSR_F32, TSR_BF16, TSR_F16};
    unsigned param = 2, reduce = 1, output = 0;
    TSR_TRY(read_word(s, s->object, "param_dtype", names, &param));
    TSR_TRY(read_word(s, s->object, "reduce_dtype", names, &reduce));
    TSR_TRY(read_word(s, s->object, "output_dtype", names, &output));
    s->options.mp.param = dtypes[param];
    s->options.mp.reduce = dtypes[reduce];
    s->options.mp.output = dtypes[output];
    return TSR_OK;
}

static tsr_status read_reshard(const struct tsr_memory_scenario *s, const char *key,
                               enum tsr_reshard_kind *kind, int64_t *number)
{
    const json_t *value = json_object_get(s->object, key);
    if (json_is_null(value))
        *kind = TSR_RESHARD_DEFAULT;
    else if (json_is_integer(value)) {
        json_int_t to = json_integer_value(value);
        uint32_t shards = s->engine.mesh.shape[s->engine.mesh.n_dims - 1];
        if (!s->is_replicate && (to < 1 || (uint64_t)to > shards || shards % (uint64_t)to != 0))
            return wrong(s, key, value, "a divisor of the number of shards");
        *kind = TSR_RESHARD_INT;
        *number = to;
    } else if (json_is_false(value))
        *kind = TSR_RESHARD_FALSE;
    else if (json_is_true(value))
        *kind = TSR_RESHARD_TRUE;
    else if (value)
        return wrong(s, key, value, "true, false, null or an integer");
    return TSR_OK;
}

static tsr_status read_sharding(struct tsr_memory_scenario *s)
{
    static const char *const kinds[] = {"fsdp", "replicate", NULL};
    static const char *const wraps[] = {"block_root", "embed_block_tail_root", "root", NULL};
    static const char *const acs[] = {"none", "full", "every2", "selective_op", NULL};
    static const char *const offloads[] = {"null", "pageable", "pinned", NULL};
    unsigned kind = 0, offload = 0;
    TSR_TRY(read_word(s, s->object, "kind", kinds, &kind));
    if (!s->is_traced)
        TSR_TRY(read_word(s, s->object, "wrap", wraps, &s->wrap));
    TSR_TRY(read_word(s, s->object, "ac", acs, &s->ac));
    TSR_TRY(read_word(s, s->object, "cpu_offload", offloads, &offload));
    s->is_replicate = kind == 1;
    if (s->is_replicate && s->engine.mesh.n_dims > 1)
        return wrong(s, "mesh", json_object_get(s->object, "mesh"), "[replicas] of kind replicate");
    s->options.offload = (enum tsr_offload)offload;
    s->options.reshard = TSR_RESHARD_TRUE;
    s->root_reshard = TSR_RESHARD_DEFAULT;
    TSR_TRY(read_reshard(s, "reshard_after_forward", &s->options.reshard, &s->options.reshard_int));
    TSR_TRY(read_reshard(s, "root_reshard", &s->root_reshard, &s->root_reshard_int));
    TSR_TRY(read_number(s, s->object, "fwd_prefetch", 0, 4096, &s->forward_prefetch));
    return read_number(s, s->object, "bwd_prefetch", 0, 4096, &s->backward_prefetch);
}

static tsr_status read_step(struct tsr_memory_scenario *s)
{
    static const char *const optimizers[] = {"adamw_foreach", "adamw_fused",    "adamw_loop",
                                             "sgd",           "sgd_momentum",   "none",
                                             "decoupled",     "decoupled_read", NULL};
    static const char *const losses[] = {"eager", "flash_attn", "flash_attn_inplace", NULL};
    static const char *const clips[] = {"foreach", "loop", "loop_read", NULL};
    static const char *const modes[] = {"reduce_each", "no_reduce", "no_reduce_no_reshard",
                                        "no_all_reduce", NULL};
    unsigned optimizer = 0, mode = 0, clip = 0, loss = 0;
    uint64_t micro = 1, metrics = 0;
    s->step.batch = 1;
    s->step.seq = 128;
    TSR_TRY(read_number(s, s->object, "batch", 1, TOKEN_LIMIT, &s->step.batch));
    TSR_TRY(read_number(s, s->object, "seq", 1, TOKEN_LIMIT, &s->step.seq));
    TSR_TRY(read_number(s, s->object, "grad_accum", 1, 64, &micro));
    TSR_TRY(read_number(s, s->object, "iters", 1, 64, &s->iterations));
    TSR_TRY(read_word(s, s->object, "optimizer", optimizers, &optimizer));
    TSR_TRY(read_word(s, s->object, "accum_mode", modes, &mode));
    TSR_TRY(read_bool(s, s->object, "clip", &s->step.clip));
    TSR_TRY(read_word(s, s->object, "clip_variant", clips, &clip));
    TSR_TRY(read_number(s, s->object, "metrics", 0, TSR_MAX_METRICS, &metrics));
    TSR_TRY(read_word(s, s->object, "loss_kernel", losses, &loss));
    s->step.n_micro = (uint32_t)micro;
    s->step.loss_kernel = (enum tsr_loss_kernel)loss;
    s->step.clip_how = (enum tsr_clip)clip;
    s->step.metrics = (uint32_t)metrics;
    s->step.optimizer = (enum tsr_optimizer)optimizer;
    s->step.accumulate = (enum tsr_accumulate)mode;
    return TSR_OK;
}

static tsr_status read_device(struct tsr_memory_scenario *s)
{
    static const char *const sdpas[] = {"flash", "efficient", "math", NULL};
    unsigned sdpa = 0;
    s->engine.allocator.device_bytes = UINT64_C(1) << 40;
    TSR_TRY(read_number(s, s->object, "device_bytes", 1, TSR_MEMORY_DEVICE_LIMIT,
                        &s->engine.allocator.device_bytes));
    TSR_TRY(
        read_bool(s, s->object, "expandable_segments", &s->engine.allocator.expandable_segments));
    TSR_TRY(read_word(s, s->object, "sdpa", sdpas, &sdpa));
    s->engine.attention = (enum tsr_attention)sdpa;
    return TSR_OK;
}

/* Keys of recordings of fine-tuning that only have a value here if it is this one. */
static tsr_status check_plain(const struct tsr_memory_scenario *s)
{
    static const struct {
        const char *key, *value;
    } plain[] = {{"source", "\"own\""},    {"libs", "[]"},
                 {"dtype", "\"fp32\""},    {"cast_forward_inputs", "true"},
                 {"autocast", "null"},     {"outputs_fp32", "false"},
                 {"loss", "\"plain\""},    {"chunks", "0"},
                 {"valid_tokens", "null"}, {"lora", "null"},
                 {"frozen", "false"},      {"optimizer_args", "{}"},
                 {"in_backward", "false"}, {"act_offload", "null"},
                 {"comm_hook", "null"},    {"ddp", "{}"},
                 {"read_bool", "true"}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain && !s->is_traced; i++) {
        const json_t *found = json_object_get(s->object, plain[i].key);
        json_t *want = json_loads(plain[i].value, JSON_DECODE_ANY, NULL);
        bool equal = !found || (want && json_equal(found, want));
        json_decref(want);
        if (!equal)
            return wrong(s, plain[i].key, found, plain[i].value);
    }
    return TSR_OK;
}

/* Reads what torch.compile compiles: a list of "blocks" and "loss". */
static tsr_status read_compile(struct tsr_memory_scenario *s)
{
    const json_t *list = json_object_get(s->object, "compile");
    if (list && !json_is_array(list))
        return wrong(s, "compile", list, "a list of \"blocks\" and \"loss\"");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *part = json_string_value(json_array_get(list, i));
        bool blocks = part && !strcmp(part, "blocks"), loss = part && !strcmp(part, "loss");
        if (!blocks && !loss)
            return wrong(s, "compile", list, "a list of \"blocks\" and \"loss\"");
        if (blocks)
            s->engine.dialect = TSR_DIALECT_COMPILE;
        if (loss)
            s->step.loss_kernel = TSR_LOSS_COMPILED;
    }
    return TSR_OK;
}

static tsr_status check_keys(const struct tsr_memory_scenario *s, const json_t *map,
                             const char *const *known, const char *allowed)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        bool found = false;
        for (size_t i = 0; known[i]; i++)
            found = found || !strcmp(known[i], key);
        const char *near = tsr_nearest(key, known);
        char text[160];
        snprintf(text, sizeof text, "%s%s%s%s", allowed, near ? "; nearest: \"" : "",
                 near ? near : "", near ? "\"" : "");
        if (!found)
            return wrong(s, key, value, text);
    }
    return TSR_OK;
}

static tsr_status check_all_keys(const struct tsr_memory_scenario *s)
{
    static const char *const of_scenario[] = {"name",
                                              "model",
                                              "model_overrides",
                                              "model_config",
                                              "rank",
                                              "mesh",
                                              "kind",
                                              "wrap",
                                              "ac",
                                              "reshard_after_forward",
                                              "param_dtype",
                                              "reduce_dtype",
                                              "output_dtype",
                                              "optimizer",
                                              "batch",
                                              "seq",
                                              "grad_accum",
                                              "accum_mode",
                                              "cpu_offload",
                                              "fwd_prefetch",
                                              "bwd_prefetch",
                                              "device_bytes",
                                              "expandable_segments",
                                              "sdpa",
                                              "clip",
                                              "clip_variant",
                                              "metrics",
                                              "loss_kernel",
                                              "compile",
                                              "root_reshard",
                                              "source",
                                              "libs",
                                              "dtype",
                                              "cast_forward_inputs",
                                              "autocast",
                                              "outputs_fp32",
                                              "loss",
                                              "chunks",
                                              "valid_tokens",
                                              "lora",
                                              "frozen",
                                              "optimizer_args",
                                              "in_backward",
                                              "act_offload",
                                              "comm_hook",
                                              "ddp",
                                              "read_bool",
                                              "iters",
                                              "timeline",
                                              NULL};
    static const char *const of_model[] = {"family",
                                           "impl",
                                           "norm",
                                           "gqa",
                                           "tie_word_embeddings",
                                           "hidden_size",
                                           "intermediate_size",
                                           "num_hidden_layers",
                                           "num_attention_heads",
                                           "num_key_value_heads",
                                           "vocab_size",
                                           "max_position_embeddings",
                                           NULL};
    TSR_TRY(check_keys(s, s->object, of_scenario,
                       "the keys of a scenario (tests/golden-memory/README.md)"));
    return check_keys(s, json_object_get(s->object, "model_config"), of_model,
                      "the keys of model_config (tests/golden-memory/README.md)");
}

/* What concerns several keys. */
static tsr_status check_sizes(const struct tsr_memory_scenario *s)
{
    char allowed[96];
    const json_t *seq = json_object_get(s->object, "seq");
    const uint64_t n_layers[] = {s->llama.n_layers, s->gpt2.n_layer, s->mpt.n_layers};
    const uint64_t n_positions[] = {s->llama.max_positions, s->gpt2.n_positions,
                                    s->mpt.max_seq_len};
    uint64_t layers = n_layers[s->family], positions = n_positions[s->family];
    /* tables as long as needed */
    bool any_length = s->family == TSR_MEMORY_LLAMA && s->llama.impl != TSR_IMPL_PLAIN;
    if (s->step.seq > positions && !any_length) {
        snprintf(allowed, sizeof allowed, "up to max_position_embeddings, %llu",
                 (unsigned long long)positions);
        return wrong(s, "seq", seq, allowed);
    }
    if (s->step.batch * s->step.seq > TOKEN_LIMIT)
        return wrong(s, "batch", json_object_get(s->object, "batch"),
                     "batch x seq up to 16777216 tokens");
    if (layers * s->step.n_micro * s->iterations > PASS_LIMIT)
        return wrong(s, "iters", json_object_get(s->object, "iters"),
                     "num_hidden_layers x grad_accum x iters up to 65536");
    return TSR_OK;
}

/* Of a model that is traced: the file is the tracer's to read, and so is what it was run with. */
static tsr_status check_traced(struct tsr_memory_scenario *s)
{
    static const char *const keys[] = {"name",
                                       "model",
                                       "inputs",
                                       "rank",
                                       "mesh",
                                       "kind",
                                       "wrap",
                                       "root_reshard",
                                       "reshard_after_forward",
                                       "param_dtype",
                                       "reduce_dtype",
                                       "output_dtype",
                                       "cast_forward_inputs",
                                       "ac",
                                       "ac_modules",
                                       "optimizer",
                                       "grad_accum",
                                       "accum_mode",
                                       "cpu_offload",
                                       "fwd_prefetch",
                                       "bwd_prefetch",
                                       "frozen",
                                       "autocast",
                                       "device_bytes",
                                       "expandable_segments",
                                       "sdpa",
                                       "iters",
                                       "clip",
                                       "read_bool",
                                       "timeline",
                                       NULL};
    const json_t *wrap = json_object_get(s->object, "wrap");
    bool cast = true;
    TSR_TRY(
        check_keys(s, s->object, keys, "the keys of a scenario (tests/golden-bridge/README.md)"));
    TSR_TRY(read_bool(s, s->object, "cast_forward_inputs", &cast));
    s->options.mp.no_cast_inputs = !cast;
    if (!json_is_array(wrap) || json_array_size(wrap) > 1000)
        return wrong(s, "wrap", wrap, "a list of up to 1000 patterns of module names");
    for (size_t i = 0; i < json_array_size(wrap); i++)
        if (!json_is_string(json_array_get(wrap, i)))
            return wrong(s, "wrap", wrap, "patterns of module names");
    return TSR_OK;
}

static tsr_status read_traced(struct tsr_memory_scenario *s, const char *trace)
{
    TSR_TRY(check_traced(s));
    TSR_TRY(read_mesh(s));
    TSR_TRY(read_dtypes(s));
    TSR_TRY(read_sharding(s));
    TSR_TRY(tsr_memory_traced_load(s, trace));
    TSR_TRY(read_step(s));
    s->step.batch = s->variant->batch;
    s->step.seq = s->variant->seq ? s->variant->seq : 1;
    return read_device(s);
}

static tsr_status read_all(struct tsr_memory_scenario *s)
{
    TSR_TRY(check_all_keys(s));
    TSR_TRY(check_plain(s));
    TSR_TRY(read_model(s));
    TSR_TRY(read_mesh(s));
    TSR_TRY(read_dtypes(s));
    TSR_TRY(read_sharding(s));
    TSR_TRY(read_step(s));
    TSR_TRY(read_compile(s));
    TSR_TRY(check_sizes(s));
    return read_device(s);
}

tsr_status tsr_memory_scenario_load(const char *path, const char *trace,
                                    struct tsr_memory_scenario *out)
{
    *out = (struct tsr_memory_scenario){.path = path, .iterations = 3, .is_traced = trace != NULL};
    tsr_status status = tsr_json_load(path, TSR_TEXT_VALUES, &out->file);
    if (status != TSR_OK)
        return tsr_fail(status, "%s; allowed: a scenario in JSON", tsr_error_text());
    out->object = json_object_get(out->file, "scenario");
    if (!out->object)
        out->object = out->file;
    const char *name = json_string_value(json_object_get(out->file, "name"));
    out->name = name ? name : "";
    status = json_is_object(out->object)
                 ? trace ? read_traced(out, trace) : read_all(out)
                 : wrong(out, "scenario", out->object, "an object, the scenario");
    if (status != TSR_OK)
        tsr_memory_scenario_fini(out);
    return status;
}

void tsr_memory_scenario_fini(struct tsr_memory_scenario *s)
{
    json_decref(s->file);
    if (s->trace.path)
        tsr_traced_file_fini(&s->trace);
    *s = (struct tsr_memory_scenario){0};
}
