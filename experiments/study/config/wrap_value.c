/* wrap_value.c: the value of the key `wrap`: a word, or a list of calls like those of the golden
 * scenarios. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/nearest.h"
#include "experiments/study/config/keys_words.h"
#include "experiments/study/config/values.h"

static const char *const entry_keys[] = {"modules", "group", "reshard_after_forward", NULL};

static tsr_status read_patterns(struct tsr_arena *arena, const char *path,
                                const struct tsr_yaml_node *node, struct tsr_wrap_entry *out)
{
    static const char allowed[] = "a pattern of module names, or a list of them";
    size_t n = node && node->kind == TSR_NODE_SEQ ? node->n : 1;
    const char **patterns = tsr_arena_alloc(arena, (n + 1) * sizeof(*patterns));
    if (!patterns)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_yaml_node *item = node->kind == TSR_NODE_SEQ ? node->items[i] : node;
        if (item->kind != TSR_NODE_SCALAR)
            return tsr_node_error(item, "%s.modules: found %s; allowed: %s", path,
                                  tsr_node_show(item), allowed);
        patterns[i] = item->text;
    }
    if (n == 0)
        return tsr_node_error(node, "%s.modules: found an empty list; allowed: %s", path, allowed);
    out->modules = patterns;
    out->n_modules = n;
    return TSR_OK;
}

static tsr_status read_entry(struct tsr_arena *arena, const char *path,
                             const struct tsr_yaml_node *node, struct tsr_wrap_entry *out)
{
    if (node->kind != TSR_NODE_MAP)
        return tsr_node_error(node,
                              "%s: found %s; allowed: {modules: [PATTERN, ...], group: BOOL, "
                              "reshard_after_forward: VALUE}",
                              path, tsr_node_show(node));
    out->at = node;
    for (size_t i = 0; i < node->n; i++) {
        const struct tsr_yaml_node *value = node->items[i];
        if (!strcmp(value->key, "modules")) {
            TSR_TRY(read_patterns(arena, path, value, out));
        } else if (!strcmp(value->key, "group")) {
            if (!tsr_node_bool(value, &out->group))
                return tsr_node_error(value, "%s.group: found %s; allowed: true or false", path,
                                      tsr_node_show(value));
        } else if (!strcmp(value->key, "reshard_after_forward")) {
            out->has_reshard = true;
            if (!tsr_reshard_of(value, &out->reshard))
                return tsr_node_error(value,
                                      "%s.reshard_after_forward: found %s; allowed: null, true, "
                                      "false, or an integer from 1",
                                      path, tsr_node_show(value));
        } else {
            return tsr_unknown_key(value, path, entry_keys);
        }
    }
    if (!out->n_modules)
        return tsr_node_error(node,
                              "%s: has no key \"modules\"; allowed: modules, group, "
                              "reshard_after_forward",
                              path);
    return TSR_OK;
}

tsr_status tsr_wrap_read(struct tsr_arena *arena, const char *path,
                         const struct tsr_yaml_node *node, struct tsr_wrap_value *out, bool *ok)
{
    *ok = node->n > 0;
    if (!*ok)
        return TSR_OK;
    struct tsr_wrap_entry *entries = tsr_arena_alloc(arena, node->n * sizeof(*entries));
    if (!entries)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < node->n; i++)
        TSR_TRY(read_entry(arena, path, node->items[i], &entries[i]));
    *out = (struct tsr_wrap_value){TSR_WRAP_LIST, node->n, entries};
    return TSR_OK;
}

/* Appends formatted text; false when it does not fit. */
static bool add(char *out, size_t size, const char *text)
{
    size_t used = strlen(out), n = strlen(text);
    if (used + n + 1 > size)
        return false;
    memcpy(out + used, text, n + 1);
    return true;
}

static bool add_entry(char *out, size_t size, const struct tsr_wrap_entry *entry)
{
    char text[512];
    bool ok = add(out, size, "{modules: [");
    for (size_t i = 0; ok && i < entry->n_modules; i++) {
        ok = tsr_yaml_quote(entry->modules[i], text, sizeof text) == TSR_OK;
        ok = ok && (i == 0 || add(out, size, ", ")) && add(out, size, text);
    }
    ok = ok && add(out, size, "]");
    if (entry->group)
        ok = ok && add(out, size, ", group: true");
    if (entry->has_reshard) {
        static const char *const words[] = {"null", "false", "true"};
        if (entry->reshard.kind == TSR_RESHARD_INT)
            snprintf(text, sizeof text, ", reshard_after_forward: %" PRId64, entry->reshard.value);
        else
            snprintf(text, sizeof text, ", reshard_after_forward: %s", words[entry->reshard.kind]);
        ok = ok && add(out, size, text);
    }
    return ok && add(out, size, "}");
}

tsr_status tsr_wrap_format(const struct tsr_wrap_value *wrap, char *out, size_t size)
{
    if (wrap->kind != TSR_WRAP_LIST) {
        snprintf(out, size, "%s", tsr_words_wrap[wrap->kind]);
        return TSR_OK;
    }
    out[0] = 0;
    bool ok = add(out, size, "[");
    for (size_t i = 0; ok && i < wrap->n_entries; i++)
        ok = (i == 0 || add(out, size, ", ")) && add_entry(out, size, &wrap->entries[i]);
    if (!ok || !add(out, size, "]"))
        return tsr_fail(TSR_ECONFIG, "a wrap list is longer than %zu bytes", size);
    return TSR_OK;
}
