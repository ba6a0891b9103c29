/* hf_keys.c: keys of Hugging Face's config.json: which were asked for, which are left over, and the
 * reading of single ones.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/study/model/hf_keys.h"

/* ---- keys that were asked for ---------------------------------------------------------------- */

/* Of what a config.json says beside the model: who made it, with what; tokens of a tokenizer;
 * caches and outputs of generation; heads of other tasks; how files are split. pretraining_tp cuts
 * products into parts that are added up again. */
static const char *const harmless[] = {"_name_or_path",
                                       "architectures",
                                       "auto_map",
                                       "torch_dtype",
                                       "dtype",
                                       "transformers_version",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "unk_token_id",
                                       "sep_token_id",
                                       "cls_token_id",
                                       "tokenizer_class",
                                       "tokenizer_name",
                                       "use_cache",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "return_dict",
                                       "use_return_dict",
                                       "_attn_implementation",
                                       "attn_implementation",
                                       "gradient_checkpointing",
                                       "task_specific_params",
                                       "id2label",
                                       "label2id",
                                       "n_ctx",
                                       "summary_activation",
                                       "summary_first_dropout",
                                       "summary_proj_to_labels",
                                       "summary_type",
                                       "summary_use_proj",
                                       "pretraining_tp",
                                       "init_device",
                                       "verbose",
                                       NULL};

static bool is_word_of(const char *word, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        if (!strcmp(words[i], word))
            return true;
    return false;
}

const struct tsr_yaml_node *tsr_hf_ask(const struct tsr_model *model,
                                       const struct tsr_yaml_node *map, const char *key)
{
    struct tsr_asked_keys *a = model->asked;
    if (map && a->n < TSR_HF_MOST_ASKED)
        a->keys[a->n++] = (struct tsr_asked_key){map, key};
    return key ? tsr_node_get(map, key) : NULL;
}

static tsr_status check_map(const struct tsr_model *model, const struct tsr_yaml_node *map,
                            const char *name);

static tsr_status check_item(const struct tsr_model *model, const struct tsr_yaml_node *map,
                             const char *name, const struct tsr_yaml_node *item)
{
    const struct tsr_asked_keys *a = model->asked;
    const char *allowed[TSR_HF_MOST_ASKED + 1] = {NULL};
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->keys[i].map != map)
            continue;
        if (!a->keys[i].key || !strcmp(a->keys[i].key, item->key))
            return check_map(model, item, item->key);
        if (!is_word_of(a->keys[i].key, allowed))
            allowed[n++] = a->keys[i].key;
    }
    if (map == model->doc.root && is_word_of(item->key, harmless))
        return TSR_OK;
    return tsr_unknown_key(item, name, allowed);
}

static tsr_status check_map(const struct tsr_model *model, const struct tsr_yaml_node *map,
                            const char *name)
{
    bool is_asked = false;
    for (size_t i = 0; i < model->asked->n; i++)
        is_asked = is_asked || model->asked->keys[i].map == map;
    for (size_t i = 0; is_asked && map->kind == TSR_NODE_MAP && i < map->n; i++)
        TSR_TRY(check_item(model, map, name, map->items[i]));
    return TSR_OK;
}

tsr_status tsr_hf_check_keys(const struct tsr_model *model)
{
    return check_map(model, model->doc.root, "");
}

/* ---- single keys ----------------------------------------------------------------------------- */

/* Each fails with the place of the key, its value and what is allowed. */

static tsr_status bad_size(const struct tsr_yaml_node *node, const char *key)
{
    return tsr_node_error(node, "%s: found %s; allowed: an integer from 1 to %llu", key,
                          tsr_node_show(node), (unsigned long long)TSR_HF_MAX_SIZE);
}

tsr_status tsr_hf_size(const struct tsr_model *model, const char *key, uint64_t *out)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, model->doc.root, key);
    if (!node)
        return tsr_fail(TSR_ECONFIG,
                        "%s: has no key \"%s\", which model_type %s needs; allowed: an integer "
                        "from 1 to %llu",
                        model->path, key, model->type, (unsigned long long)TSR_HF_MAX_SIZE);
    if (!tsr_node_u64(node, out) || *out < 1 || *out > TSR_HF_MAX_SIZE)
        return bad_size(node, key);
    return TSR_OK;
}

/* Absent or null: `fallback`. */
tsr_status tsr_hf_size_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                          uint64_t *out)
{
    *out = fallback;
    if (tsr_node_is_null(tsr_hf_ask(model, model->doc.root, key)))
        return TSR_OK;
    return tsr_hf_size(model, key, out);
}

/* As tsr_hf_size_or(), and 0 is a value. */
tsr_status tsr_hf_count_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                           uint64_t *out)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, model->doc.root, key);
    *out = fallback;
    if (tsr_node_is_null(node))
        return TSR_OK;
    if (!tsr_node_u64(node, out) || *out > TSR_HF_MAX_SIZE)
        return tsr_node_error(node, "%s: found %s; allowed: an integer from 0 to %llu", key,
                              tsr_node_show(node), (unsigned long long)TSR_HF_MAX_SIZE);
    return TSR_OK;
}

tsr_status tsr_hf_bool_or(const struct tsr_model *model, const char *key, bool fallback, bool *out)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, model->doc.root, key);
    *out = fallback;
    if (tsr_node_is_null(node) || tsr_node_bool(node, out))
        return TSR_OK;
    return tsr_node_error(node, "%s: found %s; allowed: true or false", key, tsr_node_show(node));
}

/* Which of the words; where the key is absent or null: the first. */
tsr_status tsr_hf_word_or(const struct tsr_model *model, const char *key,
                          const char *const *allowed, size_t *which)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, model->doc.root, key);
    char words[256];
    *which = 0;
    if (tsr_node_is_null(node))
        return TSR_OK;
    for (; node->kind == TSR_NODE_SCALAR && allowed[*which]; ++*which)
        if (!strcmp(node->text, allowed[*which]))
            return TSR_OK;
    tsr_join_words(allowed, words, sizeof words);
    return tsr_node_error(node, "%s: found %s; allowed (modelled): %s", key, tsr_node_show(node),
                          words);
}

/* `whole`, which is the value of `key`, is a multiple of `part`. */
tsr_status tsr_hf_divides(const struct tsr_model *model, const char *key, uint64_t whole,
                          const char *part_key, uint64_t part)
{
    if (part && whole % part == 0)
        return TSR_OK;
    return tsr_node_error(tsr_hf_ask(model, model->doc.root, key),
                          "%s: found %llu; allowed: a multiple of %s, which is %llu", key,
                          (unsigned long long)whole, part_key, (unsigned long long)part);
}

/* A positive number; what stands for "not given" is left as it is. */
tsr_status tsr_hf_number_or(const struct tsr_model *model, const struct tsr_yaml_node *map,
                            const char *key, double *out)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, map, key);
    double value;
    if (tsr_node_is_null(node))
        return TSR_OK;
    if (!tsr_node_double(node, &value) || !(value > 0))
        return tsr_node_error(node, "%s: found %s; allowed: a positive number", key,
                              tsr_node_show(node));
    *out = value;
    return TSR_OK;
}

/* A key that has to be absent, null, or this word: another value is another model. */
tsr_status tsr_hf_only(const struct tsr_model *model, const struct tsr_yaml_node *map,
                       const char *where, const char *key, const char *word)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, map, key);
    if (tsr_node_is_null(node) || (node->kind == TSR_NODE_SCALAR && !strcmp(node->text, word)))
        return TSR_OK;
    return tsr_node_error(node, "%s%s: found %s; allowed (modelled): %s", where, key,
                          tsr_node_show(node), word);
}

/* A share, of which only `value` is modelled. */
tsr_status tsr_hf_only_number(const struct tsr_model *model, const struct tsr_yaml_node *map,
                              const char *where, const char *key, double value)
{
    const struct tsr_yaml_node *node = tsr_hf_ask(model, map, key);
    double found = 0;
    if (tsr_node_is_null(node) ||
        (tsr_node_double(node, &found) && !(found < value || found > value)))
        return TSR_OK;
    return tsr_node_error(node, "%s%s: found %s; allowed (modelled): %g", where, key,
                          tsr_node_show(node), value);
}
