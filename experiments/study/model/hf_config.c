/* hf_config.c: Hugging Face config.json files into model configurations.
 *
 * Keys, defaults and implied facts are those of the transformers library: Qwen2 has biases on q, k
 * and v that no key names, Qwen3 has norms on q and k, GPT-2 has its own names for everything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/model/hf_keys.h"
#include "experiments/study/model/trace_file.h"

/* ---- MPT ------------------------------------------------------------------------------------- */

/* llm-foundry's MPTConfig. Modelled is what published training runs had: learned positions, biases,
 * LayerNorm in the dtype that computes, plain multi-head attention. Every other value of a key that
 * changes operations is refused. Defaults are llm-foundry's; attn_config.alibi is false there if it
 * is absent. */

/* attn_impl says which kernel computes, not what: that is the experiment's key `attention`. */
static tsr_status read_attention(const struct tsr_model *model)
{
    static const char *const off[] = {"alibi", "rope",      "qk_ln",
                                      "qk_gn", "prefix_lm", "attn_uses_sequence_id"};
    static const char *const unset[] = {"clip_qkv", "softmax_scale", "kv_n_heads"};
    const struct tsr_yaml_node *map = tsr_hf_ask(model, model->doc.root, "attn_config");
    if (tsr_node_is_null(map))
        return TSR_OK;
    if (map->kind != TSR_NODE_MAP)
        return tsr_node_error(map, "attn_config: found %s; allowed: a mapping", tsr_node_show(map));
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        TSR_TRY(tsr_hf_only(model, map, "attn_config.", off[i], "false"));
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        TSR_TRY(tsr_hf_only(model, map, "attn_config.", unset[i], "null"));
    TSR_TRY(tsr_hf_only(model, map, "attn_config.", "attn_type", "multihead_attention"));
    tsr_hf_ask(model, map, "attn_impl");
    tsr_hf_ask(model, map, "alibi_bias_max"); /* of alibi, which is off */
    return tsr_hf_only_number(model, map, "attn_config.", "attn_pdrop", 0);
}

static tsr_status read_modelled(const struct tsr_model *model)
{
    const struct tsr_yaml_node *root = model->doc.root;
    bool no_bias = false, learned = true;
    TSR_TRY(tsr_hf_bool_or(model, "no_bias", false, &no_bias));
    if (no_bias)
        return tsr_node_error(tsr_hf_ask(model, root, "no_bias"),
                              "no_bias: found true; allowed (modelled): false");
    TSR_TRY(tsr_hf_bool_or(model, "learned_pos_emb", true, &learned));
    if (!learned)
        return tsr_node_error(tsr_hf_ask(model, root, "learned_pos_emb"),
                              "learned_pos_emb: found false; allowed (modelled): true");
    TSR_TRY(tsr_hf_only(model, root, "", "norm_type", "low_precision_layernorm"));
    TSR_TRY(tsr_hf_only(model, root, "", "logit_scale", "null"));
    TSR_TRY(tsr_hf_only_number(model, root, "", "emb_pdrop", 0));
    TSR_TRY(tsr_hf_only_number(model, root, "", "resid_pdrop", 0));
    TSR_TRY(tsr_hf_only_number(model, root, "", "embedding_fraction", 1));
    return read_attention(model);
}

static tsr_status read_std(const struct tsr_model *model, double *out)
{
    const struct tsr_yaml_node *root = model->doc.root,
                               *init = tsr_hf_ask(model, root, "init_config");
    TSR_TRY(tsr_hf_only(model, init, "init_config.", "name", "baseline_"));
    TSR_TRY(tsr_hf_number_or(model, root, "initializer_range", out));
    return tsr_hf_number_or(model, init, "init_std", out);
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
    TSR_TRY(tsr_hf_number_or(model, model->doc.root, "layer_norm_epsilon", &c->norm_eps));
    TSR_TRY(read_std(model, &c->init_std));
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

/* A number that the kernel of the table takes as an integer. */
static tsr_status whole_or(const struct tsr_model *model, const struct tsr_yaml_node *map,
                           const char *key, uint64_t *out)
{
    double value = (double)*out;
    TSR_TRY(tsr_hf_number_or(model, map, key, &value));
    *out = value < (double)TSR_HF_MAX_SIZE ? (uint64_t)value : TSR_HF_MAX_SIZE;
    if ((double)*out < value || (double)*out > value)
        return tsr_node_error(
            tsr_node_get(map, key), "%s: found %s; allowed (modelled): a whole number up to %llu",
            key, tsr_node_show(tsr_node_get(map, key)), (unsigned long long)TSR_HF_MAX_SIZE);
    return TSR_OK;
}

/* Llama 3's stretching of long waves, or of all (linear): those that are longer than 0 positions.
 */
static tsr_status read_stretch(struct tsr_model *model, const struct tsr_yaml_node *map,
                               const char *type)
{
    struct tsr_rope *r = &model->llama.rope;
    bool is_linear = !strcmp(type, "linear");
    r->llama3 = is_linear || !strcmp(type, "llama3");
    r->other = !r->llama3 && strcmp(type, "default") != 0;
    if (r->other)
        tsr_hf_ask(model, map, NULL); /* simulated: the table costs the same, whatever is in it */
    if (!r->llama3)
        return TSR_OK;
    r->factor = is_linear ? 1 : 8;
    r->low_freq_factor = 1;
    r->high_freq_factor = 4;
    r->original_positions = is_linear ? 0 : 8192;
    TSR_TRY(whole_or(model, map, "factor", &r->factor));
    if (is_linear)
        return TSR_OK;
    TSR_TRY(whole_or(model, map, "low_freq_factor", &r->low_freq_factor));
    TSR_TRY(whole_or(model, map, "high_freq_factor", &r->high_freq_factor));
    return whole_or(model, map, "original_max_position_embeddings", &r->original_positions);
}

/* Newer files have all of it in rope_parameters. */
static tsr_status read_rope(struct tsr_model *model)
{
    const struct tsr_yaml_node *root = model->doc.root,
                               *map = tsr_hf_ask(model, root, "rope_parameters");
    const char *name = "rope_parameters";
    if (tsr_node_is_null(map)) {
        name = "rope_scaling";
        map = tsr_hf_ask(model, root, name);
    }
    TSR_TRY(tsr_hf_number_or(model, root, "rope_theta", &model->llama.rope.theta));
    if (tsr_node_is_null(map))
        return TSR_OK;
    if (map->kind != TSR_NODE_MAP)
        return tsr_node_error(map, "%s: found %s; allowed: a mapping", name, tsr_node_show(map));
    TSR_TRY(tsr_hf_number_or(model, map, "rope_theta", &model->llama.rope.theta));
    const struct tsr_yaml_node *type = tsr_hf_ask(model, map, "rope_type");
    const struct tsr_yaml_node *older = tsr_hf_ask(model, map, "type");
    type = tsr_node_is_null(type) ? older : type;
    if (!tsr_node_is_null(type) && type->kind != TSR_NODE_SCALAR)
        return tsr_node_error(type, "%s.rope_type: found %s; allowed: a word", name,
                              tsr_node_show(type));
    return read_stretch(model, map, tsr_node_is_null(type) ? "default" : type->text);
}

static tsr_status read_window(struct tsr_model *model)
{
    bool is_mistral = !strcmp(model->type, "mistral"), used = is_mistral;
    if (!is_mistral)
        TSR_TRY(tsr_hf_bool_or(model, "use_sliding_window", false, &used));
    tsr_hf_ask(model, model->doc.root, "sliding_window"); /* of a window that is not used */
    tsr_hf_ask(model, model->doc.root, "max_window_layers");
    return used ? tsr_hf_count_or(model, "sliding_window", 0, &model->sliding_window) : TSR_OK;
}

/* Only Llama and Qwen3 have a key for biases of attention, only Llama for those of the MLP. */
static tsr_status read_biases(struct tsr_model *model)
{
    const struct tsr_yaml_node *root = model->doc.root;
    struct tsr_llama_config *c = &model->llama;
    bool is_llama = !strcmp(model->type, "llama"), is_qwen2 = !strcmp(model->type, "qwen2");
    bool bias = false;
    if (is_llama || !strncmp(model->type, "qwen3", 5))
        TSR_TRY(tsr_hf_bool_or(model, "attention_bias", false, &bias));
    else
        TSR_TRY(tsr_hf_only(model, root, "", "attention_bias", "false"));
    if (is_llama)
        TSR_TRY(tsr_hf_bool_or(model, "mlp_bias", false, &c->mlp_bias));
    else
        TSR_TRY(tsr_hf_only(model, root, "", "mlp_bias", "false"));
    c->qkv_bias = is_qwen2 || bias;
    c->o_bias = bias;
    return TSR_OK;
}

/* Everything that is spelled as in Llama; also the dense part of mixture-of-experts models. */
static tsr_status read_llama(struct tsr_model *model)
{
    static const char *const acts[] = {"silu", "swish", "gelu", "gelu_pytorch_tanh", "relu", NULL};
    static const enum tsr_activation kinds[] = {TSR_ACT_SILU, TSR_ACT_SILU, TSR_ACT_GELU,
                                                TSR_ACT_GELU_TANH, TSR_ACT_RELU};
    struct tsr_llama_config *c = &model->llama;
    size_t act = 0;
    model->family = TSR_FAMILY_LLAMA;
    TSR_TRY(tsr_hf_size(model, "hidden_size", &c->hidden_size));
    TSR_TRY(tsr_hf_size(model, "intermediate_size", &c->intermediate_size));
    TSR_TRY(tsr_hf_size(model, "num_hidden_layers", &c->n_layers));
    TSR_TRY(tsr_hf_size(model, "vocab_size", &c->vocab_size));
    TSR_TRY(tsr_hf_size_or(model, "max_position_embeddings", 2048, &c->max_positions));
    TSR_TRY(read_heads(model));
    TSR_TRY(read_biases(model));
    TSR_TRY(tsr_hf_bool_or(model, "tie_word_embeddings", false, &c->tie_embeddings));
    TSR_TRY(tsr_hf_word_or(model, "hidden_act", acts, &act));
    TSR_TRY(tsr_hf_only_number(model, model->doc.root, "", "attention_dropout", 0));
    c->act = kinds[act];
    c->qk_norm = !strncmp(model->type, "qwen3", 5);
    model->max_positions = c->max_positions;
    c->norm_eps = 1e-6; /* the libraries' default */
    TSR_TRY(tsr_hf_number_or(model, model->doc.root, "rms_norm_eps", &c->norm_eps));
    TSR_TRY(tsr_hf_number_or(model, model->doc.root, "initializer_range", &c->init_std));
    TSR_TRY(read_rope(model));
    return read_window(model);
}

/* What there is in one way only. */
static tsr_status check_gpt2(struct tsr_model *model)
{
    static const char *const drops[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    const struct tsr_yaml_node *root = model->doc.root;
    for (size_t i = 0; i < sizeof drops / sizeof *drops; i++)
        TSR_TRY(tsr_hf_only_number(model, root, "", drops[i], 0));
    TSR_TRY(tsr_hf_only(model, root, "", "reorder_and_upcast_attn", "false"));
    return tsr_hf_only(model, root, "", "add_cross_attention", "false");
}

static tsr_status read_gpt2_sizes(struct tsr_model *model, struct tsr_gpt2_config *c)
{
    TSR_TRY(tsr_hf_size(model, "n_embd", &c->n_embd));
    TSR_TRY(tsr_hf_size(model, "n_layer", &c->n_layer));
    TSR_TRY(tsr_hf_size(model, "n_head", &c->n_head));
    TSR_TRY(tsr_hf_size(model, "vocab_size", &c->vocab_size));
    TSR_TRY(tsr_hf_size_or(model, "n_positions", 1024, &c->n_positions));
    TSR_TRY(tsr_hf_size_or(model, "n_inner", 4 * c->n_embd, &c->n_inner));
    return tsr_hf_divides(model, "n_embd", c->n_embd, "n_head", c->n_head);
}

static tsr_status read_gpt2(struct tsr_model *model)
{
    static const char *const acts[] = {"gelu_new", "gelu", "gelu_pytorch_tanh",
                                       "relu",     "silu", NULL};
    static const enum tsr_activation kinds[] = {TSR_ACT_GELU_NEW, TSR_ACT_GELU, TSR_ACT_GELU_TANH,
                                                TSR_ACT_RELU, TSR_ACT_SILU};
    struct tsr_gpt2_config *c = &model->gpt2;
    bool tied = true, scaled = true;
    size_t act = 0;
    model->family = TSR_FAMILY_GPT2;
    TSR_TRY(read_gpt2_sizes(model, c));
    TSR_TRY(tsr_hf_word_or(model, "activation_function", acts, &act));
    c->act = kinds[act];
    TSR_TRY(check_gpt2(model));
    TSR_TRY(tsr_hf_bool_or(model, "scale_attn_weights", true, &scaled));
    c->unscaled = !scaled;
    TSR_TRY(tsr_hf_bool_or(model, "scale_attn_by_inverse_layer_idx", false, &c->scale_by_layer));
    TSR_TRY(tsr_hf_bool_or(model, "tie_word_embeddings", true, &tied));
    c->untied = !tied;
    TSR_TRY(tsr_hf_number_or(model, model->doc.root, "layer_norm_epsilon", &c->norm_eps));
    TSR_TRY(tsr_hf_number_or(model, model->doc.root, "initializer_range", &c->init_std));
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
    const struct tsr_yaml_node *only = tsr_hf_ask(model, model->doc.root, "mlp_only_layers");
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

/* How tokens find experts and what is added to the loss: no parameters. Such models are counted,
 * without layers that predict further tokens, and not run. */
static tsr_status skip_routing(struct tsr_model *model)
{
    static const char *const keys[] = {"n_group",
                                       "topk_group",
                                       "topk_method",
                                       "scoring_func",
                                       "routed_scaling_factor",
                                       "norm_topk_prob",
                                       "num_nextn_predict_layers",
                                       "router_aux_loss_coef",
                                       "output_router_logits",
                                       "router_jitter_noise",
                                       "aux_loss_alpha",
                                       "seq_aux",
                                       "ep_size"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        tsr_hf_ask(model, model->doc.root, keys[i]);
    return tsr_hf_only_number(model, model->doc.root, "", "moe_layer_freq", 1);
}

static tsr_status read_moe(struct tsr_model *model)
{
    struct tsr_moe_config *m = &model->moe;
    TSR_TRY(read_llama(model));
    TSR_TRY(skip_routing(model));
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
    const struct tsr_yaml_node *type = tsr_hf_ask(model, model->doc.root, "model_type");
    char words[256];
    tsr_join_words(known_types, words, sizeof words);
    if (model->type && tsr_node_is_null(type))
        return TSR_OK; /* a part of a document that says it elsewhere */
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

static tsr_status read_family(struct tsr_model *model)
{
    if (!strcmp(model->type, "gpt2"))
        return read_gpt2(model);
    if (!strcmp(model->type, "mpt"))
        return tsr_hf_read_mpt(model);
    if (!strcmp(model->type, "mixtral") || !strcmp(model->type, "qwen3_moe") ||
        !strncmp(model->type, "deepseek", 8))
        return read_moe(model);
    return read_llama(model);
}

static tsr_status read_config(struct tsr_model *model)
{
    struct tsr_asked_keys asked;
    asked.n = 0;
    model->asked = &asked;
    tsr_status status;
    TSR_GOTO(done, read_type(model));
    TSR_GOTO(done, read_family(model));
    TSR_GOTO(done, tsr_hf_check_keys(model));
    status = tsr_model_count(model);
done:
    model->asked = NULL;
    return status;
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

tsr_status tsr_model_read_hf_node(const struct tsr_yaml_node *root, const char *type,
                                  struct tsr_model *out)
{
    memset(out, 0, sizeof *out);
    tsr_arena_init(&out->doc.arena);
    out->doc.root = (struct tsr_yaml_node *)(uintptr_t)root;
    out->type = type;
    snprintf(out->path, sizeof out->path, "%s", root->file);
    tsr_status status = read_config(out);
    if (status != TSR_OK)
        tsr_model_fini(out);
    return status;
}

void tsr_model_fini(struct tsr_model *model)
{
    tsr_doc_fini(&model->doc);
    if (model->trace)
        tsr_traced_file_fini(model->trace);
    free(model->trace);
    memset(model, 0, sizeof(*model));
}
