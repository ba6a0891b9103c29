/* value_tree.c: the key model.tree: a path, or the tree itself (settings.h). */
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

/* Longer trees go into a file of their own. */
enum { MAX_TREE_TEXT = 32000, MAX_SCALAR = 1024 };

const char *const tsr_tree_allowed =
    "the path of a tree file, or its keys (tokens or in_dim, modules, ...), or null";

/* A text that grows: `used` counts on when `size` is full. */
struct writer {
    char *out;
    size_t size, used;
};

static void put(struct writer *w, const char *text)
{
    size_t n = strlen(text);
    if (w->used + n < w->size)
        memcpy(w->out + w->used, text, n + 1);
    w->used += n;
}

/* In flow style, all in one line. */
static tsr_status put_node(struct writer *w, const struct tsr_yaml_node *node)
{
    char text[MAX_SCALAR];
    bool map = node->kind == TSR_NODE_MAP;
    if (node->kind == TSR_NODE_NULL)
        put(w, "null");
    if (node->kind == TSR_NODE_SCALAR && node->quoted)
        TSR_TRY(tsr_yaml_quote(node->text, text, sizeof text));
    if (node->kind == TSR_NODE_SCALAR)
        put(w, node->quoted ? text : node->text);
    if (node->kind != TSR_NODE_SEQ && !map)
        return TSR_OK;
    put(w, map ? "{" : "[");
    for (size_t i = 0; i < node->n; i++) {
        put(w, i ? ", " : "");
        if (map) {
            TSR_TRY(tsr_yaml_quote(node->items[i]->key, text, sizeof text));
            put(w, text);
            put(w, ": ");
        }
        TSR_TRY(put_node(w, node->items[i]));
    }
    put(w, map ? "}" : "]");
    return TSR_OK;
}

tsr_status tsr_tree_store(const char *path, const struct tsr_yaml_node *node,
                          struct tsr_tree_value *out, bool *ok)
{
    struct writer w = {0};
    *ok = tsr_node_is_null(node) || node->kind == TSR_NODE_MAP ||
          (node->kind == TSR_NODE_SCALAR && *node->text);
    if (!*ok)
        return TSR_OK;
    *out = (struct tsr_tree_value){0};
    if (node->kind == TSR_NODE_SCALAR && !tsr_node_is_null(node))
        out->path = node->text;
    if (node->kind != TSR_NODE_MAP)
        return TSR_OK;
    TSR_TRY(put_node(&w, node));
    if (w.used > MAX_TREE_TEXT)
        return tsr_node_error(node,
                              "%s: found a tree of %zu bytes, each alias written out; allowed: up "
                              "to %d, or a file",
                              path, w.used, MAX_TREE_TEXT);
    out->node = node;
    return TSR_OK;
}

tsr_status tsr_tree_format(const struct tsr_tree_value *tree, char *out, size_t size)
{
    struct writer w = {.out = out, .size = size};
    if (tree->path)
        return tsr_yaml_quote(tree->path, out, size);
    if (!tree->node) {
        snprintf(out, size, "null");
        return TSR_OK;
    }
    TSR_TRY(put_node(&w, tree->node));
    if (w.used < size)
        return TSR_OK;
    char whole[MAX_TREE_TEXT + 1];
    w = (struct writer){.out = whole, .size = sizeof whole};
    TSR_TRY(put_node(&w, tree->node));
    snprintf(out, size, "tree-%016llx",
             (unsigned long long)tsr_hash_bytes(TSR_HASH_INIT, whole, w.used));
    return TSR_OK;
}
