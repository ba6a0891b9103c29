/* hf_mpt.c: MPT's config.json (llm-foundry's MPTConfig) into a model configuration.
 *
 * Modelled is what published training runs had: learned positions, biases, LayerNorm in the dtype
 * that computes, plain multi-head attention. Every other value of a key that changes operations is
 * refused. Defaults are llm-foundry's; attn_config.alibi is false there if it is absent.
 */
#include <string.h>

#include "experiments/study/model/hf_keys.h"

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

tsr_status tsr_hf_read_mpt(struct tsr_model *model)
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
