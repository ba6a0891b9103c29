/* hf_names.c: two tables of names: of Llama and of GPT-2, whose matrices lie transposed. */
#include "exec/files/hf_names.h"

#include <stdio.h>
#include <string.h>

#include "sim/base/text.h"

struct pair {
    const char *plain, *hf;
};

/* In a layer, and outside of them. */
static const struct pair llama_layer[] = {
    {"attention.wq", "self_attn.q_proj"},     {"attention.wk", "self_attn.k_proj"},
    {"attention.wv", "self_attn.v_proj"},     {"attention.wo", "self_attn.o_proj"},
    {"attention.q_norm", "self_attn.q_norm"}, {"attention.k_norm", "self_attn.k_norm"},
    {"feed_forward.w1", "mlp.gate_proj"},     {"feed_forward.w2", "mlp.down_proj"},
    {"feed_forward.w3", "mlp.up_proj"},       {"attention_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"}, {NULL, NULL}};
static const struct pair llama_root[] = {{"tok_embeddings", "model.embed_tokens"},
                                         {"norm", "model.norm"},
                                         {"output", "lm_head"},
                                         {NULL, NULL}};

static const char *look_up(const struct pair *table, const char *plain, size_t n)
{
    for (; table->plain; table++)
        if (strlen(table->plain) == n && !strncmp(table->plain, plain, n))
            return table->hf;
    return NULL;
}

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* Length of "layers.12." at the front; 0: not there. */
static size_t layer_prefix(const char *fqn)
{
    size_t digits = begins(fqn, "layers.") ? strspn(fqn + 7, "0123456789") : 0;
    return digits && fqn[7 + digits] == '.' ? 8 + digits : 0;
}

static bool llama_name(const char *fqn, struct tsr_hf_name *out)
{
    if (begins(fqn, "model.") || begins(fqn, "lm_head."))
        return snprintf(out->name, sizeof out->name, "%s", fqn) < (int)sizeof out->name;
    size_t layer = layer_prefix(fqn);
    const char *module = fqn + layer, *leaf = strrchr(module, '.');
    if (!leaf)
        return false;
    const char *hf = look_up(layer ? llama_layer : llama_root, module, (size_t)(leaf - module));
    return hf && snprintf(out->name, sizeof out->name, "%s%.*s%s%s", layer ? "model." : "",
                          (int)layer, fqn, hf, leaf) < (int)sizeof out->name;
}

/* q and k before the rotation, and the norms between. */
static bool is_rotated(const char *name)
{
    return strstr(name, ".q_proj.") || strstr(name, ".k_proj.") || strstr(name, ".q_norm.") ||
           strstr(name, ".k_norm.");
}

static bool gpt2_name(const char *fqn, struct tsr_hf_name *out)
{
    static const char *const matrices[] = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"};
    bool plain = !begins(fqn, "transformer.") && !begins(fqn, "lm_head.");
    const char *first = begins(fqn, "transformer.") ? fqn + strlen("transformer.") : fqn;
    if (!begins(first, "wte.") && !begins(first, "wpe.") && !begins(first, "h.") &&
        !begins(first, "ln_f.") && !begins(first, "lm_head."))
        return false;
    for (size_t i = 0; plain && i < sizeof matrices / sizeof *matrices; i++) {
        size_t n = strlen(fqn), m = strlen(matrices[i]);
        out->transposed |= n > m && !strcmp(fqn + n - m, matrices[i]);
    }
    return snprintf(out->name, sizeof out->name, "%s%s", plain ? "transformer." : "", fqn) <
           (int)sizeof out->name;
}

tsr_status tsr_hf_name(const struct tsr_hf_model *model, const char *fqn, struct tsr_hf_name *out)
{
    bool found = true;
    *out = (struct tsr_hf_name){.prefix = NULL};
    switch (model->family) {
    case TSR_HF_LLAMA:
        found = llama_name(fqn, out);
        out->prefix = "model.";
        if (found && model->interleaved_head_dim && is_rotated(out->name))
            out->head_dim = model->interleaved_head_dim;
        break;
    case TSR_HF_GPT2:
        found = gpt2_name(fqn, out);
        out->prefix = "transformer.";
        break;
    case TSR_HF_AS_IS:
        found = snprintf(out->name, sizeof out->name, "%s", fqn) < (int)sizeof out->name;
        break;
    }
    if (!found)
        return tsr_fail(TSR_ECONFIG, "parameter \"%s\" has no name in Hugging Face's %s",
                        tsr_show(fqn).text,
                        model->family == TSR_HF_GPT2 ? "GPT-2" : "Llama family");
    return TSR_OK;
}

uint64_t tsr_hf_row(uint64_t head_dim, uint64_t row)
{
    if (head_dim == 0)
        return row;
    uint64_t in_head = row % head_dim;
    return row - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
}

const char *tsr_hf_embedding(enum tsr_hf_family family)
{
    return family == TSR_HF_LLAMA  ? "model.embed_tokens.weight"
           : family == TSR_HF_GPT2 ? "transformer.wte.weight"
                                   : NULL;
}

bool tsr_hf_is_buffer(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t m = strlen(ends[i]);
        if (n > m && !strcmp(name + n - m, ends[i]))
            return true;
    }
    return false;
}
