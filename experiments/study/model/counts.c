/* counts.c: exact numbers of parameters from a configuration, as models/README.md counts them:
 * every parameter once, a tied head not again; active is total less the experts that a token does
 * not visit. Closed forms: what the engine builds is compared with them, not made from them.
 */
#include <string.h>

#include "experiments/study/model/model.h"

/* A sum of products that remembers an overflow. */
struct sum {
    uint64_t value;
    bool overflow;
};

static void add(struct sum *sum, uint64_t a, uint64_t b)
{
    uint64_t product = 0, total = 0;
    if (!tsr_mul_u64(a, b, &product) || !tsr_add_u64(sum->value, product, &total) ||
        total > INT64_MAX)
        sum->overflow = true;
    else
        sum->value = total;
}

static void add3(struct sum *sum, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t product = 0;
    if (!tsr_mul_u64(a, b, &product))
        sum->overflow = true;
    else
        add(sum, product, c);
}

/* Attention and the two norms of a layer. */
static void add_attention(struct sum *sum, const struct tsr_llama_config *c)
{
    uint64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    add(sum, c->hidden_size, q);
    add(sum, 2 * c->hidden_size, kv);
    add(sum, q, c->hidden_size);
    if (c->qkv_bias)
        add(sum, 1, q + 2 * kv);
    if (c->o_bias)
        add(sum, 1, c->hidden_size);
    if (c->qk_norm)
        add(sum, 2, c->head_dim);
    add(sum, 2, c->hidden_size);
}

static void add_latent_attention(struct sum *sum, const struct tsr_llama_config *c,
                                 const struct tsr_moe_config *m)
{
    uint64_t q = c->n_heads * (m->nope + m->rope);
    if (m->q_lora) {
        add(sum, c->hidden_size + 1, m->q_lora); /* down, and its norm */
        add(sum, m->q_lora, q);
    } else {
        add(sum, c->hidden_size, q);
    }
    add(sum, c->hidden_size, m->kv_lora + m->rope);
    add(sum, 1, m->kv_lora);
    add(sum, m->kv_lora, c->n_heads * (m->nope + m->v_head));
    add(sum, c->n_heads * m->v_head, c->hidden_size);
    add(sum, 2, c->hidden_size);
}

static void add_mlp(struct sum *sum, const struct tsr_llama_config *c)
{
    add(sum, 3 * c->hidden_size, c->intermediate_size);
    if (c->mlp_bias)
        add(sum, 1, 2 * c->intermediate_size + c->hidden_size);
}

static uint64_t learned_positions(const struct tsr_model *model)
{
    if (model->family == TSR_FAMILY_GPT2)
        return model->gpt2.n_positions;
    return model->family == TSR_FAMILY_MPT ? model->mpt.max_seq_len : 0;
}

bool tsr_model_is_tied(const struct tsr_model *model)
{
    if (model->family == TSR_FAMILY_TREE || model->family == TSR_FAMILY_TRACED)
        return false;
    if (model->family == TSR_FAMILY_GPT2)
        return !model->gpt2.untied;
    return model->family == TSR_FAMILY_MPT ? !model->mpt.untied : model->llama.tie_embeddings;
}

static tsr_status finish(struct tsr_model *model, const struct sum *layer, const struct sum *dense,
                         uint64_t vocab, uint64_t width)
{
    struct tsr_param_counts *n = &model->counts;
    struct sum total = {0, layer->overflow || dense->overflow};
    n->layer = layer->value;
    n->dense_layer = dense->value;
    n->embed = (vocab + learned_positions(model)) * width;
    n->head = tsr_model_is_tied(model) ? 0 : vocab * width;
    n->final_norm = model->family == TSR_FAMILY_GPT2 || model->family == TSR_FAMILY_MPT
                        ? 2 * width /* a LayerNorm with bias */
                        : width;
    add(&total, n->layer, n->n_layers);
    add(&total, n->dense_layer, n->n_dense_layers);
    add(&total, 1, n->embed);
    add(&total, 1, n->head);
    add(&total, 1, n->final_norm);
    if (total.overflow)
        return tsr_fail(TSR_ECONFIG,
                        "%s: sizes overflow: the model has more than 2^63 parameters; allowed: "
                        "fewer",
                        model->path);
    n->total = n->active = total.value;
    return TSR_OK;
}

static tsr_status count_moe(struct tsr_model *model)
{
    const struct tsr_llama_config *c = &model->llama;
    const struct tsr_moe_config *m = &model->moe;
    struct tsr_param_counts *n = &model->counts;
    struct sum layer = {0}, dense = {0}, idle = {0};
    if (m->latent) {
        add_latent_attention(&layer, c, m);
        add_latent_attention(&dense, c, m);
    } else {
        add_attention(&layer, c);
        add_attention(&dense, c);
    }
    add(&layer, c->hidden_size + (m->router_bias ? 1 : 0), m->n_experts);
    add3(&layer, m->n_experts + m->n_shared, 3 * c->hidden_size, m->expert_size);
    add_mlp(&dense, c);
    n->n_dense_layers = m->first_dense + m->n_dense_extra;
    n->n_layers = c->n_layers - n->n_dense_layers;
    if (!n->n_dense_layers)
        dense = (struct sum){0};
    TSR_TRY(finish(model, &layer, &dense, c->vocab_size, c->hidden_size));
    add3(&idle, m->n_experts - m->n_per_token, 3 * c->hidden_size, m->expert_size);
    n->active = n->total - n->n_layers * idle.value;
    return TSR_OK;
}

/* A block of GPT-2 or MPT: two LayerNorms and four products, everything with biases. */
static tsr_status count_biased(struct tsr_model *model, uint64_t width, uint64_t inner,
                               uint64_t vocab)
{
    struct sum layer = {0}, none = {0};
    add(&layer, 4, width);
    add(&layer, width + 1, 3 * width);
    add(&layer, width + 1, width);
    add(&layer, width + 1, inner);
    add(&layer, inner + 1, width);
    return finish(model, &layer, &none, vocab, width);
}

static tsr_status count_gpt2(struct tsr_model *model)
{
    const struct tsr_gpt2_config *c = &model->gpt2;
    model->counts.n_layers = c->n_layer;
    return count_biased(model, c->n_embd, c->n_inner, c->vocab_size);
}

static tsr_status count_mpt(struct tsr_model *model)
{
    const struct tsr_mpt_config *c = &model->mpt;
    model->counts.n_layers = c->n_layers;
    return count_biased(model, c->d_model, c->ffn_width, c->vocab_size);
}

tsr_status tsr_model_count(struct tsr_model *model)
{
    struct sum layer = {0}, none = {0};
    switch (model->family) {
    case TSR_FAMILY_GPT2:
        return count_gpt2(model);
    case TSR_FAMILY_MPT:
        return count_mpt(model);
    case TSR_FAMILY_MOE:
        return count_moe(model);
    case TSR_FAMILY_TREE:
    case TSR_FAMILY_TRACED:
        return TSR_OK; /* the tree's nodes are counted where they are read */
    case TSR_FAMILY_LLAMA:
        break;
    }
    add_attention(&layer, &model->llama);
    add_mlp(&layer, &model->llama);
    model->counts.n_layers = model->llama.n_layers;
    return finish(model, &layer, &none, model->llama.vocab_size, model->llama.hidden_size);
}

tsr_status tsr_model_require_runnable(const struct tsr_model *model)
{
    if (model->family != TSR_FAMILY_MOE)
        return TSR_OK;
    return tsr_node_error(tsr_node_get(model->doc.root, "model_type"),
                          "model_type: found %s, whose %s not modelled (`tessera inspect` counts "
                          "it); allowed: llama, mistral, qwen2, qwen3, gpt2 or mpt",
                          model->type,
                          model->moe.latent ? "experts and latent attention are"
                                            : "experts (routing, expert weights) are");
}
