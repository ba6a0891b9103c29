/* hf_keys.c: single keys of a config.json (hf_keys.h). */
#include "experiments/study/model/hf_keys.h"
#include "experiments/study/base/nearest.h"

#include <string.h>

#include "experiments/study/config/values.h"

#define MAX_SIZE UINT64_C(1073741824) /* of any size in a config: 2^30 */

static tsr_status bad_size(const struct tsr_yaml_node *node, const char *key)
{
    return tsr_node_error(node, "%s: found %s; allowed: an integer from 1 to %llu", key,
                          tsr_node_show(node), (unsigned long long)MAX_SIZE);
}

tsr_status tsr_hf_size(const struct tsr_model *model, const char *key, uint64_t *out)
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
tsr_status tsr_hf_size_or(const struct tsr_model *model, const char *key, uint64_t fallback,
                          uint64_t *out)
{
    *out = fallback;
    if (tsr_node_is_null(tsr_node_get(model->doc.root, key)))
        return TSR_OK;
    return tsr_hf_size(model, key, out);
}

/* As tsr_hf_size_or(), and 0 is a value. */
tsr_status tsr_hf_count_or(const struct tsr_model *model, const char *key, uint64_t fallback,
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

tsr_status tsr_hf_bool_or(const struct tsr_model *model, const char *key, bool fallback, bool *out)
{
    const struct tsr_yaml_node *node = tsr_node_get(model->doc.root, key);
    *out = fallback;
    if (tsr_node_is_null(node) || tsr_node_bool(node, out))
        return TSR_OK;
    return tsr_node_error(node, "%s: found %s; allowed: true or false", key, tsr_node_show(node));
}

tsr_status tsr_hf_word_or(const struct tsr_model *model, const char *key,
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

tsr_status tsr_hf_divides(const struct tsr_model *model, const char *key, uint64_t whole,
                          const char *part_key, uint64_t part)
{
    if (part && whole % part == 0)
        return TSR_OK;
    return tsr_node_error(tsr_node_get(model->doc.root, key),
                          "%s: found %llu; allowed: a multiple of %s, which is %llu", key,
                          (unsigned long long)whole, part_key, (unsigned long long)part);
}

/* A positive number; what stands for "not given" is left as it is. */
tsr_status tsr_hf_number_or(const struct tsr_yaml_node *map, const char *key, double *out)
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
