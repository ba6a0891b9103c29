/* settings.c: applies mappings of keys to settings, and says which key was meant. */
#include "experiments/study/config/settings.h"

#include <stdio.h>
#include <string.h>

#include "experiments/study/base/yaml.h"

enum { MAX_PATH_TEXT = 256 };

static size_t type_bytes(enum tsr_key_type type)
{
    static const size_t bytes[] = {[TSR_KEY_STRING] = sizeof(char *),
                                   [TSR_KEY_UINT] = sizeof(uint64_t),
                                   [TSR_KEY_UINT32] = sizeof(uint32_t),
                                   [TSR_KEY_BOOL] = sizeof(bool),
                                   [TSR_KEY_DOUBLE] = sizeof(double),
                                   [TSR_KEY_ENUM] = sizeof(unsigned),
                                   [TSR_KEY_SHAPE] = sizeof(struct tsr_shape_value),
                                   [TSR_KEY_RESHARD] = sizeof(struct tsr_reshard_value),
                                   [TSR_KEY_WRAP] = sizeof(struct tsr_wrap_value),
                                   [TSR_KEY_CHECKPOINT] = sizeof(uint64_t),
                                   [TSR_KEY_LIST] = sizeof(unsigned),
                                   [TSR_KEY_FAULTS] = sizeof(struct tsr_faults),
                                   [TSR_KEY_TRAFFIC] = sizeof(struct tsr_traffic_list),
                                   [TSR_KEY_TREE] = sizeof(struct tsr_tree_value)};
    return bytes[type];
}

/* ---- defaults ---------------------------------------------------------------------------- */

/* The default of a row is YAML text and goes the way of a user's value: a scalar, null, or a list
 * of one word. */
static void store_default(const struct tsr_key *key, struct tsr_settings *settings)
{
    char word[64];
    struct tsr_yaml_node item = {.kind = TSR_NODE_SCALAR, .text = word, .file = "keys.c"};
    struct tsr_yaml_node *items[] = {&item};
    struct tsr_yaml_node node = {.kind = strcmp(key->def, "null") ? TSR_NODE_SCALAR : TSR_NODE_NULL,
                                 .text = key->def,
                                 .file = "keys.c"};
    if (key->type == TSR_KEY_LIST && sscanf(key->def, "[%63[^],]]", word) == 1) {
        node.kind = TSR_NODE_SEQ;
        node.items = items;
        node.n = 1;
    }
    TSR_CHECK(tsr_key_store(NULL, key, key->name, &node, settings) == TSR_OK);
    settings->from[key - tsr_keys] = NULL;
}

void tsr_settings_default(struct tsr_settings *out)
{
    memset(out, 0, sizeof(*out));
    out->sim = tsr_sim_options_default();
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (tsr_keys[i].def)
            store_default(&tsr_keys[i], out);
}

void tsr_key_copy(const struct tsr_key *key, const struct tsr_settings *from,
                  struct tsr_settings *to)
{
    memcpy((char *)to + key->offset, (const char *)from + key->offset, type_bytes(key->type));
    to->from[key - tsr_keys] = from->from[key - tsr_keys];
}

void tsr_key_reset(const struct tsr_key *key, struct tsr_settings *settings)
{
    struct tsr_settings fresh;
    tsr_settings_default(&fresh);
    tsr_key_copy(key, &fresh, settings);
}

/* What a tree has, it says itself: `model.*` and modules by name are not for it. Groups and options
 * of an API are for strategies that have it, and what is compiled is for those that compile; `api`
 * and `dialect` stand before them in the table. */
static bool is_for(const struct tsr_settings *to, const struct tsr_settings *from,
                   const struct tsr_key *key)
{
    bool is_tree = to->model_tree.path || to->model_tree.node || to->model_trace;
    if (!strncmp(key->name, "model.", 6))
        return !is_tree;
    if (!strcmp(key->name, "wrap"))
        return to->api == from->api && !(is_tree && from->wrap.kind == TSR_WRAP_LIST);
    if (!strncmp(key->name, "fsdp1.", 6))
        return to->api == TSR_API_FSDP1;
    if (!strncmp(key->name, "compile.", 8))
        return to->dialect == TSR_DIALECT_COMPILE;
    return strncmp(key->name, "ddp.", 4) != 0 || to->api == TSR_API_DDP;
}

void tsr_settings_fill(struct tsr_settings *to, const struct tsr_settings *from)
{
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const struct tsr_key *key = &tsr_keys[i];
        if (from->from[i] && !to->from[i] && is_for(to, from, key))
            tsr_key_copy(key, from, to);
    }
}

void tsr_settings_take_back(struct tsr_settings *to, const struct tsr_settings *from,
                            const struct tsr_settings *defaults)
{
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const struct tsr_key *key = &tsr_keys[i];
        if (!from->from[i] || to->from[i] != from->from[i])
            continue;
        tsr_key_copy(key, defaults, to);
    }
}

static void reset_prefix(const char *prefix, struct tsr_settings *settings)
{
    size_t n = strlen(prefix);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (!strncmp(tsr_keys[i].name, prefix, n) && tsr_keys[i].name[n] == '.')
            tsr_key_reset(&tsr_keys[i], settings);
}

/* ---- unknown keys ------------------------------------------------------------------------ */

static size_t keep_if_nearer(const char *word, const char *candidate, size_t best_distance,
                             const char *means, const char **best)
{
    size_t distance = tsr_edit_distance(word, candidate);
    if (distance >= best_distance)
        return best_distance;
    *best = means;
    return distance;
}

const char *tsr_key_nearest(const char *name)
{
    static const char *const others[] = {"strategies", "sweeps", "plan", "jobs", "title", NULL};
    static const char *const prefixes[] = {"model",     "mesh",       "accumulation", "precision",
                                           "optimizer", "checkpoint", "loss",         "allocator",
                                           "ddp",       "sim",        "cluster",      NULL};
    const char *best = NULL;
    size_t distance = strlen(name) / 2 + 1;
    for (size_t i = 0; prefixes[i]; i++)
        distance = keep_if_nearer(name, prefixes[i], distance, prefixes[i], &best);
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const char *dot = strchr(tsr_keys[i].name, '.');
        distance = keep_if_nearer(name, tsr_keys[i].name, distance, tsr_keys[i].name, &best);
        if (dot && !strchr(name, '.')) /* `reduce` for `precision.reduce` */
            distance = keep_if_nearer(name, dot + 1, distance, tsr_keys[i].name, &best);
    }
    for (size_t i = 0; others[i]; i++)
        distance = keep_if_nearer(name, others[i], distance, others[i], &best);
    return best;
}

/* "param, reduce or output": the keys below a prefix; of the top level without a prefix. */
static void list_below(const char *prefix, char *out, size_t size)
{
    const char *names[TSR_N_KEYS + 1];
    size_t n = 0, length = strlen(prefix);
    for (size_t i = 0; i < TSR_N_KEYS; i++)
        if (!strncmp(tsr_keys[i].name, prefix, length) && tsr_keys[i].name[length] == '.')
            names[n++] = tsr_keys[i].name + length + 1;
    names[n] = NULL;
    tsr_join_words(names, out, size);
}

static tsr_status unknown(const char *where, const char *name, const struct tsr_yaml_node *value)
{
    const char *near = tsr_key_nearest(name);
    const char *dot = strrchr(name, '.');
    char prefix[MAX_PATH_TEXT], allowed[512] = "see `tessera help keys`";
    snprintf(prefix, sizeof prefix, "%.*s", dot ? (int)(dot - name) : 0, name);
    if (tsr_key_is_prefix(prefix))
        list_below(prefix, allowed, sizeof allowed);
    if (near)
        return tsr_node_error(value, "unknown key \"%s%s\"; nearest: \"%s\"; allowed: %s", where,
                              name, near, allowed);
    return tsr_node_error(value, "unknown key \"%s%s\"; allowed: %s", where, name, allowed);
}

/* ---- applying ---------------------------------------------------------------------------- */

static tsr_status put(struct tsr_arena *arena, const char *where, const char *name,
                      const struct tsr_yaml_node *value, struct tsr_settings *settings);

/* Another model, mesh or cluster. Of a cluster a mapping that names neither a file nor a card
 * changes keys of the one that is there. */
static bool is_another(const char *prefix, const struct tsr_yaml_node *value)
{
    if (!tsr_key_prefix_resets(prefix))
        return false;
    return strcmp(prefix, "cluster") != 0 || value->kind != TSR_NODE_MAP ||
           tsr_node_get(value, "name") || tsr_node_get(value, "gpu");
}

static tsr_status put_prefix(struct tsr_arena *arena, const char *where, const char *prefix,
                             const struct tsr_yaml_node *value, struct tsr_settings *settings)
{
    const char *shorthand = tsr_key_shorthand(prefix);
    char path[MAX_PATH_TEXT], keys[512];
    bool resets = is_another(prefix, value);
    if (resets)
        reset_prefix(prefix, settings);
    if (resets && value->kind == TSR_NODE_NULL)
        return TSR_OK;
    if (value->kind == TSR_NODE_MAP) {
        for (size_t i = 0; i < value->n; i++) {
            snprintf(path, sizeof path, "%s.%s", prefix, value->items[i]->key);
            TSR_TRY(put(arena, where, path, value->items[i], settings));
        }
        return TSR_OK;
    }
    if (shorthand) {
        snprintf(path, sizeof path, "%s%s", where, prefix);
        return tsr_key_store(arena, &tsr_keys[tsr_key_find(shorthand)], path, value, settings);
    }
    list_below(prefix, keys, sizeof keys);
    return tsr_node_error(value, "%s%s: found %s; allowed: a mapping with keys %s", where, prefix,
                          tsr_node_show(value), keys);
}

static tsr_status put(struct tsr_arena *arena, const char *where, const char *name,
                      const struct tsr_yaml_node *value, struct tsr_settings *settings)
{
    size_t i = tsr_key_find(name);
    char path[MAX_PATH_TEXT];
    if (i < TSR_N_KEYS) {
        snprintf(path, sizeof path, "%s%s", where, name);
        return tsr_key_store(arena, &tsr_keys[i], path, value, settings);
    }
    if (tsr_key_is_prefix(name))
        return put_prefix(arena, where, name, value, settings);
    return unknown(where, name, value);
}

tsr_status tsr_settings_put(struct tsr_arena *arena, const char *name,
                            const struct tsr_yaml_node *value, struct tsr_settings *settings)
{
    return put(arena, "", name, value, settings);
}

tsr_status tsr_settings_apply(struct tsr_arena *arena, const struct tsr_yaml_node *map,
                              const char *where, const char *const *skip,
                              struct tsr_settings *settings)
{
    for (size_t i = 0; i < map->n; i++) {
        bool skipped = false;
        for (size_t k = 0; skip && skip[k]; k++)
            skipped = skipped || !strcmp(skip[k], map->items[i]->key);
        if (!skipped)
            TSR_TRY(put(arena, where, map->items[i]->key, map->items[i], settings));
    }
    return TSR_OK;
}

const struct tsr_yaml_node *tsr_setting_at(const struct tsr_settings *settings, size_t key)
{
    TSR_CHECK(key < TSR_N_KEYS);
    return settings->from[key];
}
