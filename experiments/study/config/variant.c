/* variant.c: applies changes of keys to a copy of a strategy. */
#include "experiments/study/config/variant.h"

#include <string.h>

/* The value as a node of its own document: "--set key=value" is what messages name. */
static tsr_status read_value(struct tsr_experiment *experiment, const char *key, const char *value,
                             const struct tsr_yaml_node **out)
{
    struct tsr_arena *arena = &experiment->doc.arena;
    const char *text = tsr_arena_printf(arena, "value=%s", value);
    struct tsr_yaml_node *root = tsr_arena_alloc(arena, sizeof(*root));
    if (!text || !root)
        return tsr_no_memory(NULL);
    *root = (struct tsr_yaml_node){.kind = TSR_NODE_MAP, .text = "", .file = key};
    /* tsr_doc_set() works on the document's root: lend it an empty one. */
    struct tsr_yaml_node *kept = experiment->doc.root;
    experiment->doc.root = root;
    tsr_status status = tsr_doc_set(&experiment->doc, text);
    experiment->doc.root = kept;
    TSR_TRY(status);
    *out = tsr_node_get(root, "value");
    return TSR_OK;
}

tsr_status tsr_variant_apply(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                             const struct tsr_variant *variant, struct tsr_strategy *out)
{
    struct tsr_arena *arena = &experiment->doc.arena;
    *out = *from;
    for (size_t i = 0; i < variant->n; i++) {
        const struct tsr_yaml_node *value = NULL;
        TSR_TRY(read_value(experiment, variant->set[i].key, variant->set[i].value, &value));
        TSR_TRY(tsr_settings_put(arena, variant->set[i].key, value, &out->settings));
        const char *dot = strrchr(variant->set[i].key, '.');
        out->name = tsr_arena_printf(arena, "%s@%s=%s", out->name,
                                     dot ? dot + 1 : variant->set[i].key, variant->set[i].value);
        if (!out->name)
            return tsr_no_memory(NULL);
    }
    return TSR_OK;
}
