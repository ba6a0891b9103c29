/* inspect_model.c: what a model file says, and exact parameter counts. */
#include <inttypes.h>
#include <string.h>

#include "experiments/cli/inspect/inspect.h"

const char *tsr_group_digits(uint64_t value, char out[32])
{
    char plain[24];
    int n = snprintf(plain, sizeof plain, "%" PRIu64, value), used = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = plain[i];
    }
    out[used] = 0;
    return out;
}

const char *tsr_bytes_text(double bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    /* Three digits before the point at most, also when rounded: columns keep their width. */
    while (bytes >= (unit ? 999.995 : 999.5) && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static json_t *llama_sizes(const struct tsr_model *model)
{
    const struct tsr_llama_config *c = &model->llama;
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b}", "layers", (json_int_t)c->n_layers,
        "hidden_size", (json_int_t)c->hidden_size, "heads", (json_int_t)c->n_heads, "kv_heads",
        (json_int_t)c->n_kv_heads, "head_dim", (json_int_t)c->head_dim, "ffn_dim",
        (json_int_t)(model->family == TSR_FAMILY_MOE ? model->moe.expert_size
                                                     : c->intermediate_size),
        "vocab_size", (json_int_t)c->vocab_size, "tied_embeddings", (int)c->tie_embeddings,
        "qkv_bias", (int)c->qkv_bias, "qk_norm", (int)c->qk_norm);
}

static json_t *gpt2_sizes(const struct tsr_model *model)
{
    const struct tsr_gpt2_config *c = &model->gpt2;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b}", "layers", (json_int_t)c->n_layer,
                     "hidden_size", (json_int_t)c->n_embd, "heads", (json_int_t)c->n_head,
                     "ffn_dim", (json_int_t)c->n_inner, "vocab_size", (json_int_t)c->vocab_size,
                     "tied_embeddings", !c->untied);
}

static json_t *mpt_sizes(const struct tsr_model *model)
{
    const struct tsr_mpt_config *c = &model->mpt;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b}", "layers", (json_int_t)c->n_layers,
                     "hidden_size", (json_int_t)c->d_model, "heads", (json_int_t)c->n_heads,
                     "ffn_dim", (json_int_t)c->ffn_width, "vocab_size", (json_int_t)c->vocab_size,
                     "tied_embeddings", !c->untied);
}

static json_t *counts_of(const struct tsr_param_counts *n)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "embedding",
                     (json_int_t)n->embed, "layer", (json_int_t)n->layer, "layers",
                     (json_int_t)n->n_layers, "dense_layer", (json_int_t)n->dense_layer,
                     "dense_layers", (json_int_t)n->n_dense_layers, "final_norm",
                     (json_int_t)n->final_norm, "head", (json_int_t)n->head, "total",
                     (json_int_t)n->total, "active_per_token", (json_int_t)n->active);
}

json_t *tsr_inspect_model(const struct tsr_model *model)
{
    json_t *sizes = NULL, *counts = NULL, *experts = json_null();
    if (model->family == TSR_FAMILY_GPT2)
        sizes = gpt2_sizes(model);
    else if (model->family == TSR_FAMILY_MPT)
        sizes = mpt_sizes(model);
    else if (model->family != TSR_FAMILY_TREE)
        sizes = llama_sizes(model);
    if (model->family != TSR_FAMILY_TREE)
        counts = counts_of(&model->counts);
    if (model->family == TSR_FAMILY_MOE)
        experts = json_pack("{s:I, s:I, s:I}", "routed", (json_int_t)model->moe.n_experts, "shared",
                            (json_int_t)model->moe.n_shared, "per_token",
                            (json_int_t)model->moe.n_per_token);
    return json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:b}", "name", model->name, "file", model->path,
        "model_type", model->type, "sizes", sizes ? sizes : json_object(), "parameters",
        counts ? counts : json_object(), "experts", experts, "sliding_window",
        model->sliding_window ? json_integer((json_int_t)model->sliding_window) : json_null(),
        "simulated", model->family != TSR_FAMILY_MOE);
}

/* ---- as text --------------------------------------------------------------------------------- */

static uint64_t get(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void count_line(FILE *out, const char *what, uint64_t n, uint64_t times)
{
    char digits[32], product[32];
    if (!n || !times)
        return;
    tsr_group_digits(n, digits);
    if (times == 1)
        fprintf(out, "  %-22s %20s\n", what, digits);
    else
        fprintf(out, "  %-22s %20s  = %s x %" PRIu64 "\n", what,
                tsr_group_digits(n * times, product), digits, times);
}

static void print_sizes(FILE *out, const json_t *sizes)
{
    const char *key;
    json_t *value;
    bool first = true;
    json_object_foreach((json_t *)sizes, key, value)
    {
        if (json_is_integer(value))
            fprintf(out, "%s%s %" JSON_INTEGER_FORMAT, first ? "  " : ", ", key,
                    json_integer_value(value));
        else if (json_is_true(value))
            fprintf(out, ", %s", key);
        first = false;
    }
    if (!first)
        fprintf(out, "\n");
}

void tsr_print_model(FILE *out, const json_t *model)
{
    const json_t *n = json_object_get(model, "parameters");
    const json_t *experts = json_object_get(model, "experts");
    char bytes[32];
    fprintf(out, "Model %s (%s)\n", json_string_value(json_object_get(model, "name")),
            json_string_value(json_object_get(model, "model_type")));
    fprintf(out, "  file %s\n", json_string_value(json_object_get(model, "file")));
    print_sizes(out, json_object_get(model, "sizes"));
    if (json_is_object(experts))
        fprintf(out, "  experts %" PRIu64 " routed, %" PRIu64 " shared, %" PRIu64 " per token\n",
                get(experts, "routed"), get(experts, "shared"), get(experts, "per_token"));
    if (get(n, "total") == 0)
        return;
    fprintf(out, "\nParameters\n");
    count_line(out, "embedding", get(n, "embedding"), 1);
    count_line(out, "dense layers", get(n, "dense_layer"), get(n, "dense_layers"));
    count_line(out, "layers", get(n, "layer"), get(n, "layers"));
    count_line(out, "final norm", get(n, "final_norm"), 1);
    count_line(out, "head", get(n, "head"), 1);
    if (!get(n, "head"))
        fprintf(out, "  %-22s %20s  (the embedding again)\n", "head", "tied");
    count_line(out, "total", get(n, "total"), 1);
    if (get(n, "active_per_token") != get(n, "total"))
        count_line(out, "active per token", get(n, "active_per_token"), 1);
    fprintf(out, "  a bf16 checkpoint has %s\n",
            tsr_bytes_text(2.0 * (double)get(n, "total"), bytes));
    if (json_is_false(json_object_get(model, "simulated")))
        fprintf(out, "  not modelled in sim and compare: experts (routing, expert weights)%s\n",
                strncmp(json_string_value(json_object_get(model, "model_type")), "deepseek", 8)
                    ? ""
                    : " and latent attention");
}
