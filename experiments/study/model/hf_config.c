/* hf_config.c: Hugging Face config.json files into model configurations.
 *
 * Keys, defaults and implied facts are those of the transformers library: Qwen2 has biases on q, k
 * and v that no key names, Qwen3 has norms on q and k, GPT-2 has its own names for everything.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/model/model.h"

/* ---- single keys ----------------------------------------------------------------------------- */

/* Each fails with the place of the key, its value and what is allowed. */

#define MAX_SIZE UINT64_C(1073741824) /* of any size in a config: 2^30 */

static tsr_status bad_size(const struct tsr_yaml_node *node, const char *key)
{
    return tsr_node_error(node, "%s: found %s; allowed: an integer from 1 to %llu", key,
                          tsr_node_show(node), (unsigned long long)MAX_SIZE);
}

static tsr_status tsr_hf_size(const struct tsr_model *model, const char *key, uint64_t *out)
{
    const struct tsr_yaml_node *node = tsr_node_get(model->doc.root, key);
    if (!node)
        return tsr_fail(TSR_ECONFIG,
                        "%s: has no key \"%s\", which model_type %s needs; allowed: an integer "
                        "from 1 to %llu",
                        model->path, key, model->type, (unsigned long long)MAX_SIZE);
    if (!tsr_node_u64(node, out) || *out < 1 || *out > MAX_SIZE)
        return bad_size(node, key);
    return TSR_OK;
}

/* Absent or null: `fallback`. */
static tsr_status tsr_hf_size_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                                 uint64_t *out)
{
    *out = fallback;
    if (tsr_node_is_null(tsr_node_get(model->doc.root, key)))
        return TSR_OK;
    return tsr_hf_size(model, key, out);
}

/* As tsr_hf_size_or(), and 0 is a value. */
static tsr_status tsr_hf_count_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                                  uint64_t *out)
{
    const struct tsr_yaml_node *node = tsr_node_get(model->doc.root, key);
    *out = fallback;
    if (tsr_node_is_null(node))
        return TSR_OK;
    if (!tsr_node_u64(node, out) || *out > MAX_SIZE)
        return tsr_node_error(node, "%s: found %s; allowed: an integer from 0 to %llu", key,
                              tsr_node_show(node), (unsigned long long)MAX_SIZE);
    return TSR_OK;
}

static tsr_status tsr_hf_bool_or(const struct tsr_model *model, const char *key, bool fallback,
                                 bool *out)
{
    const struct tsr_yaml_node *node = tsr_node_get(model->doc.root, key);
    *out = fallback;
    if (tsr_node_is_null(node) || tsr_node_bool(node, out))
        return TSR_OK;
    return tsr_node_error(node, "%s: found %s; allowed: true or false", key, tsr_node_show(node));
}

/* One of the words, or the family's default where the key is absent or null. */
static tsr_status tsr_hf_word_or(const struct tsr_model *model, const char *key,
                                 const char *const *allowed)
{
    const struct tsr_yaml_node *node = tsr_node_get(model->doc.root, key);
    char words[256];
    if (tsr_node_is_null(node))
        return TSR_OK; /* the family's default */
    for (size_t i = 0; node->kind == TSR_NODE_SCALAR && allowed[i]; i++)
        if (!strcmp(node->text, allowed[i]))
            return TSR_OK;
    tsr_join_words(allowed, words, sizeof words);
    return tsr_node_error(node, "%s: found %s; allowed (modelled): %s", key, tsr_node_show(node),
                          words);
}

/* `whole`, which is the value of `key`, is a multiple of `part`. */
static tsr_status tsr_hf_divides(const struct tsr_model *model, const char *key, uint64_t whole,
                                 const char *part_key, uint64_t part)
{
    if (part && whole % part == 0)
        return TSR_OK;
    return tsr_node_error(tsr_node_get(model->doc.root, key),
                          "%s: found %llu; allowed: a multiple of %s, which is %llu", key,
                          (unsigned long long)whole, part_key, (unsigned long long)part);
}

/* A positive number; what stands for "not given" is left as it is. */
static tsr_status tsr_hf_number_or(const struct tsr_yaml_node *map, const char *key, double *out)
{
    const struct tsr_yaml_node *node = tsr_node_get(map, key);
    double value;
    if (tsr_node_is_null(node))
        return TSR_OK;
    if (!tsr_node_double(node, &value) || !(value > 0))
        return tsr_node_error(node, "%s: found %s; allowed: a positive number", key,
                              tsr_node_show(node));
    *out = value;
    return TSR_OK;
}

/* ---- MPT ------------------------------------------------------------------------------------- */

/* llm-foundry's MPTConfig. Modelled is what published training runs had: learned positions, biases,
 * LayerNorm in the dtype that computes, plain multi-head attention. Every other value of a key that
 * changes operations is refused. Defaults are llm-foundry's; attn_config.alibi is false there if it
 * is absent. */

/* A key that has to be absent, null, or this word: another value is another model. */
static tsr_status only(const struct tsr_yaml_node *map, const char *where, const char *key,
                       const char *word)
{
    const struct tsr_yaml_node *node = tsr_node_get(map, key);
    if (tsr_node_is_null(node) || (node->kind == TSR_NODE_SCALAR && !strcmp(node->text, word)))
        return TSR_OK;
    return tsr_node_error(node, "%s%s: found %s; allowed (modelled): %s", where, key,
                          tsr_node_show(node), word);
}

/* A share, of which only `value` is modelled. */
static tsr_status only_number(const struct tsr_yaml_node *map, const char *where, const char *key,
                              double value)
{
    const struct tsr_yaml_node *node = tsr_node_get(map, key);
    double found = 0;
    if (tsr_node_is_null(node) ||
        (tsr_node_double(node, &found) && !(found < value || found > value)))
        return TSR_OK;
    return tsr_node_error(node, "%s%s: found %s; allowed (modelled): %g", where, key,
                          tsr_node_show(node), value);
}

/* attn_impl says which kernel computes, not what: that is the experiment's key `attention`. */
static tsr_status read_attention(const struct tsr_yaml_node *root)
{
    static const char *const off[] = {"alibi", "rope",      "qk_ln",
                                      "qk_gn", "prefix_lm", "attn_uses_sequence_id"};
    static const char *const unset[] = {"clip_qkv", "softmax_scale", "kv_n_heads"};
    const struct tsr_yaml_node *map = tsr_node_get(root, "attn_config");
    if (tsr_node_is_null(map))
        return TSR_OK;
    if (map->kind != TSR_NODE_MAP)
        return tsr_node_error(map, "attn_config: found %s; allowed: a mapping", tsr_node_show(map));
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        TSR_TRY(only(map, "attn_config.", off[i], "false"));
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        TSR_TRY(only(map, "attn_config.", unset[i], "null"));
    TSR_TRY(only(map, "attn_config.", "attn_type", "multihead_attention"));
    return only_number(map, "attn_config.", "attn_pdrop", 0);
}

static tsr_status read_modelled(const struct tsr_model *model)
{
    const struct tsr_yaml_node *root = model->doc.root;
    bool no_bias = false, learned = true;
    TSR_TRY(tsr_hf_bool_or(model, "no_bias", false, &no_bias));
    if (no_bias)
        return tsr_node_error(tsr_node_get(root, "no_bias"),
                              "no_bias: found true; allowed (modelled): false");
    TSR_TRY(tsr_hf_bool_or(model, "learned_pos_emb", true, &learned));
    if (!learned)
        return tsr_node_error(tsr_node_get(root, "learned_pos_emb"),
                              "learned_pos_emb: found false; allowed (modelled): true");
    TSR_TRY(only(root, "", "norm_type", "low_precision_layernorm"));
    TSR_TRY(only(root, "", "logit_scale", "null"));
    TSR_TRY(only_number(root, "", "emb_pdrop", 0));
    TSR_TRY(only_number(root, "", "resid_pdrop", 0));
    TSR_TRY(only_number(root, "", "embedding_fraction", 1));
    return read_attention(root);
}

static tsr_status read_std(const struct tsr_yaml_node *root, double *out)
{
    const struct tsr_yaml_node *init = tsr_node_get(root, "init_config");
    TSR_TRY(tsr_hf_number_or(root, "initializer_range", out));
    return tsr_hf_number_or(init, "init_std", out);
}

static tsr_status tsr_hf_read_mpt(struct tsr_model *model)
{
    struct tsr_mpt_config *c = &model->mpt;
    uint64_t expansion = 0;
    bool tied = true;
    model->family = TSR_FAMILY_MPT;
    TSR_TRY(tsr_hf_size(model, "d_model", &c->d_model));
    TSR_TRY(tsr_hf_size(model, "n_heads", &c->n_heads));
    TSR_TRY(tsr_hf_size(model, "n_layers", &c->n_layers));
    TSR_TRY(tsr_hf_size(model, "max_seq_len", &c->max_seq_len));
    TSR_TRY(tsr_hf_size(model, "vocab_size", &c->vocab_size));
    TSR_TRY(tsr_hf_size_or(model, "expansion_ratio", 4, &expansion));
    TSR_TRY(tsr_hf_divides(model, "d_model", c->d_model, "n_heads", c->n_heads));
    TSR_TRY(tsr_hf_bool_or(model, "tie_word_embeddings", true, &tied));
    TSR_TRY(tsr_hf_number_or(model->doc.root, "layer_norm_epsilon", &c->norm_eps));
    TSR_TRY(read_std(model->doc.root, &c->init_std));
    TSR_TRY(read_modelled(model));
    c->ffn_width = expansion * c->d_model;
    c->untied = !tied;
    model->max_positions = c->max_seq_len;
    model->positions_are_hard = true;
    return TSR_OK;
}

/* ---- families ---------------------------------------------------------------------------- */

/* head_dim: given, or hidden_size over the heads. */
static tsr_status read_heads(struct tsr_model *model)
{
    struct tsr_llama_config *c = &model->llama;
    TSR_TRY(tsr_hf_size(model, "num_attention_heads", &c->n_heads));
    TSR_TRY(tsr_hf_size_or(model, "num_key_value_heads", c->n_heads, &c->n_kv_heads));
    TSR_TRY(tsr_hf_divides(model, "num_attention_heads", c->n_heads, "num_key_value_heads",
                           c->n_kv_heads));
    TSR_TRY(tsr_hf_size_or(model, "head_dim", 0, &c->head_dim));
    if (c->head_dim)
        return TSR_OK;
    if (!strncmp(model->type, "qwen3", 5)) {
        c->head_dim = 128;
        return TSR_OK;
    }
    TSR_TRY(
        tsr_hf_divides(model, "hidden_size", c->hidden_size, "num_attention_heads", c->n_heads));
    c->head_dim = c->hidden_size / c->n_heads;
    return TSR_OK;
}

/* Llama 3's stretching of long waves. Newer files have all of it in rope_parameters. */
static tsr_status read_rope(struct tsr_model *model)
{
    struct tsr_rope *r = &model->llama.rope;
    const struct tsr_yaml_node *root = model->doc.root,
                               *map = tsr_node_get(root, "rope_parameters");
    double factor = 8, low = 1, high = 4, original = 8192;
    if (tsr_node_is_null(map))
        map = tsr_node_get(root, "rope_scaling");
    TSR_TRY(tsr_hf_number_or(root, "rope_theta", &r->theta));
    if (tsr_node_is_null(map) || map->kind != TSR_NODE_MAP)
        return TSR_OK;
    TSR_TRY(tsr_hf_number_or(map, "rope_theta", &r->theta));
    const struct tsr_yaml_node *type = tsr_node_get(map, "rope_type");
    if (tsr_node_is_null(type))
        type = tsr_node_get(map, "type");
    r->llama3 = type && type->kind == TSR_NODE_SCALAR && !strcmp(type->text, "llama3");
    r->other = !r->llama3 && type && strcmp(type->text, "default") != 0;
    TSR_TRY(tsr_hf_number_or(map, "factor", &factor));
    TSR_TRY(tsr_hf_number_or(map, "low_freq_factor", &low));
    TSR_TRY(tsr_hf_number_or(map, "high_freq_factor", &high));
    TSR_TRY(tsr_hf_number_or(map, "original_max_position_embeddings", &original));
    r->factor = (uint64_t)factor;
    r->low_freq_factor = (uint64_t)low;
    r->high_freq_factor = (uint64_t)high;
    r->original_positions = (uint64_t)original;
    return TSR_OK;
}

static tsr_status read_window(struct tsr_model *model)
{
    bool is_mistral = !strcmp(model->type, "mistral"), used = is_mistral;
    if (!is_mistral)
        TSR_TRY(tsr_hf_bool_or(model, "use_sliding_window", false, &used));
    return used ? tsr_hf_count_or(model, "sliding_window", 0, &model->sliding_window) : TSR_OK;
}

/* Everything that is spelled as in Llama; also the dense part of mixture-of-experts models. */
static tsr_status read_llama(struct tsr_model *model)
{
    static const char *const acts[] = {"silu", "swish", NULL};
    struct tsr_llama_config *c = &model->llama;
    bool is_qwen2 = !strcmp(model->type, "qwen2"), bias = false;
    model->family = TSR_FAMILY_LLAMA;
    TSR_TRY(tsr_hf_size(model, "hidden_size", &c->hidden_size));
    TSR_TRY(tsr_hf_size(model, "intermediate_size", &c->intermediate_size));
    TSR_TRY(tsr_hf_size(model, "num_hidden_layers", &c->n_layers));
    TSR_TRY(tsr_hf_size(model, "vocab_size", &c->vocab_size));
    TSR_TRY(tsr_hf_size_or(model, "max_position_embeddings", 2048, &c->max_positions));
    TSR_TRY(read_heads(model));
    TSR_TRY(tsr_hf_bool_or(model, "attention_bias", false, &bias));
    TSR_TRY(tsr_hf_bool_or(model, "mlp_bias", false, &c->mlp_bias));
    TSR_TRY(tsr_hf_bool_or(model, "tie_word_embeddings", false, &c->tie_embeddings));
    TSR_TRY(tsr_hf_word_or(model, "hidden_act", acts));
    c->qkv_bias = is_qwen2 || bias;
    c->o_bias = !is_qwen2 && bias;
    c->qk_norm = !strncmp(model->type, "qwen3", 5);
    model->max_positions = c->max_positions;
    c->norm_eps = 1e-6; /* the libraries' default */
    TSR_TRY(tsr_hf_number_or(model->doc.root, "rms_norm_eps", &c->norm_eps));
    TSR_TRY(tsr_hf_number_or(model->doc.root, "initializer_range", &c->init_std));
    TSR_TRY(read_rope(model));
    return read_window(model);
}

static tsr_status read_gpt2(struct tsr_model *model)
{
    static const char *const acts[] = {"gelu_new", "gelu", "gelu_fast", "gelu_pytorch_tanh", NULL};
    struct tsr_gpt2_config *c = &model->gpt2;
    bool tied = true;
    model->family = TSR_FAMILY_GPT2;
    TSR_TRY(tsr_hf_size(model, "n_embd", &c->n_embd));
    TSR_TRY(tsr_hf_size(model, "n_layer", &c->n_layer));
    TSR_TRY(tsr_hf_size(model, "n_head", &c->n_head));
    TSR_TRY(tsr_hf_size(model, "vocab_size", &c->vocab_size));
    TSR_TRY(tsr_hf_size_or(model, "n_positions", 1024, &c->n_positions));
    TSR_TRY(tsr_hf_size_or(model, "n_inner", 4 * c->n_embd, &c->n_inner));
    TSR_TRY(tsr_hf_divides(model, "n_embd", c->n_embd, "n_head", c->n_head));
    TSR_TRY(tsr_hf_word_or(model, "activation_function", acts));
    TSR_TRY(tsr_hf_bool_or(model, "tie_word_embeddings", true, &tied));
    c->untied = !tied;
    TSR_TRY(tsr_hf_number_or(model->doc.root, "layer_norm_epsilon", &c->norm_eps));
    TSR_TRY(tsr_hf_number_or(model->doc.root, "initializer_range", &c->init_std));
    model->max_positions = c->n_positions;
    model->positions_are_hard = true;
    return TSR_OK;
}

static tsr_status read_latent_attention(struct tsr_model *model)
{
    struct tsr_moe_config *m = &model->moe;
    m->latent = true;
    TSR_TRY(tsr_hf_size_or(model, "q_lora_rank", 0, &m->q_lora));
    TSR_TRY(tsr_hf_size(model, "kv_lora_rank", &m->kv_lora));
    TSR_TRY(tsr_hf_size(model, "qk_nope_head_dim", &m->nope));
    TSR_TRY(tsr_hf_size(model, "qk_rope_head_dim", &m->rope));
    TSR_TRY(tsr_hf_size(model, "v_head_dim", &m->v_head));
    model->llama.head_dim = m->nope + m->rope;
    return TSR_OK;
}

static tsr_status read_deepseek(struct tsr_model *model)
{
    struct tsr_moe_config *m = &model->moe;
    TSR_TRY(tsr_hf_size(model, "n_routed_experts", &m->n_experts));
    TSR_TRY(tsr_hf_count_or(model, "n_shared_experts", 0, &m->n_shared));
    TSR_TRY(tsr_hf_count_or(model, "first_k_dense_replace", 0, &m->first_dense));
    TSR_TRY(tsr_hf_size(model, "moe_intermediate_size", &m->expert_size));
    m->router_bias = !strcmp(model->type, "deepseek_v3");
    return read_latent_attention(model);
}

/* Layers that `mlp_only_layers` and `decoder_sparse_step` leave without experts. */
static tsr_status count_dense_layers(struct tsr_model *model)
{
    const struct tsr_yaml_node *only = tsr_node_get(model->doc.root, "mlp_only_layers");
    struct tsr_moe_config *m = &model->moe;
    TSR_TRY(tsr_hf_size_or(model, "decoder_sparse_step", 1, &m->sparse_step));
    uint64_t n_sparse = model->llama.n_layers / m->sparse_step;
    for (size_t i = 0; only && only->kind == TSR_NODE_SEQ && i < only->n; i++) {
        uint64_t layer = 0;
        if (!tsr_node_u64(only->items[i], &layer) || layer >= model->llama.n_layers)
            return tsr_node_error(only, "mlp_only_layers: found %s; allowed: layers below %llu",
                                  tsr_node_show(only->items[i]),
                                  (unsigned long long)model->llama.n_layers);
        n_sparse -= (layer + 1) % m->sparse_step == 0 && n_sparse > 0;
    }
    m->n_dense_extra = model->llama.n_layers - n_sparse;
    return TSR_OK;
}

static tsr_status read_moe(struct tsr_model *model)
{
    struct tsr_moe_config *m = &model->moe;
    TSR_TRY(read_llama(model));
    model->family = TSR_FAMILY_MOE;
    TSR_TRY(tsr_hf_size(model, "num_experts_per_tok", &m->n_per_token));
    if (!strcmp(model->type, "mixtral")) {
        TSR_TRY(tsr_hf_size(model, "num_local_experts", &m->n_experts));
        m->expert_size = model->llama.intermediate_size;
    } else if (!strcmp(model->type, "qwen3_moe")) {
        TSR_TRY(tsr_hf_size(model, "num_experts", &m->n_experts));
        TSR_TRY(tsr_hf_size(model, "moe_intermediate_size", &m->expert_size));
        TSR_TRY(count_dense_layers(model));
    } else {
        TSR_TRY(read_deepseek(model));
    }
    if (m->n_per_token > m->n_experts || m->first_dense > model->llama.n_layers)
        return tsr_fail(
            TSR_ECONFIG, "%s: num_experts_per_tok: found %llu; allowed: up to the %llu experts",
            model->path, (unsigned long long)m->n_per_token, (unsigned long long)m->n_experts);
    return TSR_OK;
}

/* ---- files ------------------------------------------------------------------------------- */

static const char *const known_types[] = {"llama",       "mistral", "qwen2",     "qwen3",
                                          "gpt2",        "mixtral", "qwen3_moe", "deepseek_v2",
                                          "deepseek_v3", "mpt",     NULL};

static tsr_status read_type(struct tsr_model *model)
{
    const struct tsr_yaml_node *type = tsr_node_get(model->doc.root, "model_type");
    char words[256];
    tsr_join_words(known_types, words, sizeof words);
    if (model->doc.root->kind != TSR_NODE_MAP)
        return tsr_fail(TSR_ECONFIG, "%s: found %s; allowed: a JSON object (config.json)",
                        model->path, tsr_node_show(model->doc.root));
    if (!type)
        return tsr_fail(TSR_ECONFIG, "%s: has no key \"model_type\"; allowed: %s", model->path,
                        words);
    for (size_t i = 0; type->kind == TSR_NODE_SCALAR && known_types[i]; i++) {
        if (!strcmp(type->text, known_types[i])) {
            model->type = known_types[i];
            return TSR_OK;
        }
    }
    return tsr_node_error(type, "model_type: found %s; allowed: %s", tsr_node_show(type), words);
}

static tsr_status read_config(struct tsr_model *model)
{
    TSR_TRY(read_type(model));
    if (!strcmp(model->type, "gpt2"))
        TSR_TRY(read_gpt2(model));
    else if (!strcmp(model->type, "mpt"))
        TSR_TRY(tsr_hf_read_mpt(model));
    else if (!strcmp(model->type, "mixtral") || !strcmp(model->type, "qwen3_moe") ||
             !strncmp(model->type, "deepseek", 8))
        TSR_TRY(read_moe(model));
    else
        TSR_TRY(read_llama(model));
    return tsr_model_count(model);
}

static void name_of(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    int n = dot && dot != base ? (int)(dot - base) : (int)strlen(base);
    /* Hubs store .../NAME/config.json: then the folder is the name. */
    if (!strcmp(base, "config.json") && slash && slash != path) {
        const char *folder = slash;
        while (folder > path && folder[-1] != '/')
            folder--;
        base = folder;
        n = (int)(slash - folder);
    }
    snprintf(out, size, "%.*s", n, base);
}

tsr_status tsr_model_load_hf(const char *path, struct tsr_model *out)
{
    memset(out, 0, sizeof(*out));
    TSR_TRY(tsr_doc_load(path, &out->doc));
    snprintf(out->path, sizeof out->path, "%s", path);
    name_of(path, out->name, sizeof out->name);
    tsr_status status = read_config(out);
    if (status != TSR_OK)
        tsr_model_fini(out);
    return status;
}

void tsr_model_fini(struct tsr_model *model)
{
    tsr_doc_fini(&model->doc);
    memset(model, 0, sizeof(*model));
}
