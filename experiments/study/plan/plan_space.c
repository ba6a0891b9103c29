/* plan_space.c: reads `plan.space`, or takes the default one, and enumerates its combinations
 * (plan.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/experiment.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/plan/plan.h"

enum { MAX_TEXT = 2048, MAX_VALUES = 1024 };

/* ---- values as text ---------------------------------------------------------------------- */

static bool is_plain(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./+-";
    return *text && strspn(text, plain) == strlen(text);
}

/* A node as YAML in flow style. */
static tsr_status put_node(FILE *out, const struct tsr_yaml_node *node)
{
    char text[MAX_TEXT];
    bool map = node->kind == TSR_NODE_MAP;
    if (node->kind == TSR_NODE_NULL) {
        fputs("null", out);
    } else if (node->kind == TSR_NODE_SCALAR && !node->quoted && is_plain(node->text)) {
        fputs(node->text, out);
    } else if (node->kind == TSR_NODE_SCALAR) {
        TSR_TRY(tsr_yaml_quote(node->text, text, sizeof text));
        fputs(text, out);
    } else {
        fputs(map ? "{" : "[", out);
        for (size_t i = 0; i < node->n; i++) {
            fputs(i ? ", " : "", out);
            if (map)
                fprintf(out, "%s: ", node->items[i]->key);
            TSR_TRY(put_node(out, node->items[i]));
        }
        fputs(map ? "}" : "]", out);
    }
    return TSR_OK;
}

static tsr_status node_text(struct tsr_arena *arena, const struct tsr_yaml_node *node,
                            const char **out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return tsr_no_memory(NULL);
    tsr_status status = put_node(stream, node);
    if (fclose(stream) != 0)
        status = tsr_no_memory(NULL);
    *out = status == TSR_OK ? tsr_arena_strdup(arena, text) : NULL;
    free(text);
    return status != TSR_OK || *out ? status : tsr_no_memory(NULL);
}

/* ---- axes -------------------------------------------------------------------------------- */

static bool has_key(const struct tsr_yaml_node *map, const char *key)
{
    char prefix[64];
    if (tsr_node_get(map, key))
        return true;
    snprintf(prefix, sizeof prefix, "%.*s", (int)strcspn(key, "."), key);
    return tsr_node_get(map, prefix) != NULL;
}

const char *tsr_plan_set(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                         const char *key, const char *text)
{
    struct tsr_arena *arena = &experiment->doc.arena;
    bool own = base->at != experiment->doc.root && has_key(base->at, key);
    if (!own)
        return tsr_arena_printf(arena, "%s=%s", key, text);
    return tsr_arena_printf(arena, "strategies.%s.%s=%s", base->name, key, text);
}

/* Finds whether the value leaves every key as the strategy has it, and what it needs beyond it. */
static tsr_status look_at_value(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                                const char *key, struct tsr_plan_value *value)
{
    struct tsr_variant variant = {.n = 1, .set = {{key, value->text}}};
    struct tsr_strategy changed;
    char now[MAX_TEXT], then[MAX_TEXT];
    TSR_TRY(tsr_variant_apply(experiment, base, &variant, &changed));
    value->needs = tsr_needs_beyond(&changed.settings, &base->settings);
    value->is_base = true;
    for (size_t i = 0; i < TSR_N_KEYS && value->is_base; i++) {
        TSR_TRY(tsr_key_format(&tsr_keys[i], &base->settings, then, sizeof then));
        TSR_TRY(tsr_key_format(&tsr_keys[i], &changed.settings, now, sizeof now));
        value->is_base = !strcmp(now, then);
    }
    return TSR_OK;
}

/* Ranks of the sizes of an axis. */
static void rank_sizes(struct tsr_plan_axis *axis)
{
    for (size_t i = 0; i < axis->n; i++)
        for (size_t j = 0; j < axis->n; j++) {
            uint64_t mine = axis->values[i].size, other = axis->values[j].size;
            axis->values[i].rank += other < mine || (other == mine && j < i);
        }
}

tsr_status tsr_plan_add_axis(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                             const char *key, const char *const *texts, size_t n,
                             struct tsr_plan_space *out)
{
    TSR_CHECK(out->n_axes < TSR_PLAN_MAX_AXES);
    struct tsr_plan_axis *axis = &out->axes[out->n_axes];
    *axis = (struct tsr_plan_axis){.key = key, .n = n};
    axis->is_size = !strcmp(key, "batch") || !strcmp(key, "seq");
    axis->is_api = !strcmp(key, "api");
    for (unsigned api = 0; tsr_words_api[api]; api++)
        axis->readers |= (unsigned)tsr_name_is_read(key, api, base->settings.world > 0) << api;
    axis->base = SIZE_MAX;
    axis->values = tsr_arena_alloc(&experiment->doc.arena, n * sizeof(*axis->values));
    if (!axis->values)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        struct tsr_plan_value *value = &axis->values[i];
        *value = (struct tsr_plan_value){.text = texts[i],
                                         .set = tsr_plan_set(experiment, base, key, texts[i])};
        if (!value->set)
            return tsr_no_memory(NULL);
        TSR_TRY(look_at_value(experiment, base, key, value));
        if (value->is_base && axis->base == SIZE_MAX)
            axis->base = i;
        if (axis->is_size)
            value->size = strtoull(texts[i], NULL, 10);
    }
    if (axis->is_size)
        rank_sizes(axis);
    out->n_axes++;
    return TSR_OK;
}

/* ---- plan.space -------------------------------------------------------------------------- */

static tsr_status check_key(const struct tsr_yaml_node *list, const char *key,
                            const struct tsr_plan_space *space)
{
    if (tsr_key_find(key) == TSR_N_KEYS && !tsr_key_is_prefix(key)) {
        const char *near = tsr_key_nearest(key);
        return tsr_node_error(
            list, "plan.space: unknown key \"%s\"%s%s; allowed: see `tessera help keys`", key,
            near ? "; nearest: " : "", near ? near : "");
    }
    for (size_t k = 0; k < space->n_axes; k++) {
        const char *other = space->axes[k].key;
        size_t n = strlen(other) < strlen(key) ? strlen(other) : strlen(key);
        bool inside = !strncmp(other, key, n) && strchr(".", other[n]) && strchr(".", key[n]);
        if (inside)
            return tsr_node_error(list, "plan.space.%s: found beside %s; allowed: one of them", key,
                                  other);
    }
    if (space->n_axes == TSR_PLAN_MAX_AXES)
        return tsr_node_error(list, "plan.space: found more than %d keys; allowed: up to %d",
                              TSR_PLAN_MAX_AXES, TSR_PLAN_MAX_AXES);
    if (list->kind != TSR_NODE_SEQ || list->n == 0 || list->n > MAX_VALUES)
        return tsr_node_error(list, "plan.space.%s: found %s; allowed: a list of 1 to %d values",
                              key,
                              list->kind != TSR_NODE_SEQ ? tsr_node_show(list)
                              : list->n                  ? "a longer list"
                                                         : "an empty list",
                              MAX_VALUES);
    return TSR_OK;
}

static tsr_status read_list(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                            const struct tsr_yaml_node *list, const char *key,
                            struct tsr_plan_space *out)
{
    struct tsr_arena *arena = &experiment->doc.arena;
    TSR_TRY(check_key(list, key, out));
    const char **texts = tsr_arena_alloc(arena, list->n * sizeof(*texts));
    if (!texts)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < list->n; i++) {
        struct tsr_settings scratch = base->settings;
        tsr_status status = tsr_settings_put(arena, key, list->items[i], &scratch);
        if (status != TSR_OK)
            return status;
        TSR_TRY(node_text(arena, list->items[i], &texts[i]));
        for (size_t j = 0; j < i; j++)
            if (!strcmp(texts[i], texts[j]))
                return tsr_node_error(
                    list->items[i], "plan.space.%s: found %s twice; allowed: once", key, texts[i]);
    }
    TSR_TRY(tsr_plan_add_axis(experiment, base, key, texts, list->n, out));
    out->axes[out->n_axes - 1].at = list;
    return TSR_OK;
}

/* {precision: {reduce: [..]}} is {precision.reduce: [..]}. */
static tsr_status read_map(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                           const struct tsr_yaml_node *map, const char *prefix,
                           struct tsr_plan_space *out)
{
    for (size_t i = 0; i < map->n; i++) {
        const struct tsr_yaml_node *item = map->items[i];
        const char *key = tsr_arena_printf(&experiment->doc.arena, "%s%s", prefix, item->key);
        if (!key)
            return tsr_no_memory(NULL);
        if (item->kind != TSR_NODE_MAP || !tsr_key_is_prefix(key)) {
            TSR_TRY(read_list(experiment, base, item, key, out));
            continue;
        }
        const char *deeper = tsr_arena_printf(&experiment->doc.arena, "%s.", key);
        if (!deeper)
            return tsr_no_memory(NULL);
        TSR_TRY(read_map(experiment, base, item, deeper, out));
    }
    return TSR_OK;
}

static tsr_status count(const struct tsr_yaml_node *at, struct tsr_plan_space *space)
{
    space->n = 1;
    for (size_t k = 0; k < space->n_axes; k++) {
        space->n *= space->axes[k].n;
        if (space->n > TSR_PLAN_MAX_POINTS)
            return tsr_node_error(at,
                                  "plan.space: found more than %d combinations; allowed: up to %d",
                                  TSR_PLAN_MAX_POINTS, TSR_PLAN_MAX_POINTS);
    }
    return TSR_OK;
}

/* An axis that no API of the space reads is a mistake. */
static tsr_status check_readers(const struct tsr_plan_space *space)
{
    unsigned apis = 1u << space->api;
    for (size_t k = 0; k < space->n_axes; k++)
        if (space->axes[k].is_api)
            apis = ~0u;
    for (size_t k = 0; k < space->n_axes; k++) {
        const struct tsr_plan_axis *axis = &space->axes[k];
        if (!(axis->readers & apis))
            return tsr_node_error(axis->at,
                                  "plan.space.%s: found in the space of a strategy with api: %s, "
                                  "which does not read it; allowed: another strategy, or other "
                                  "keys",
                                  axis->key, tsr_words_api[space->api]);
    }
    return TSR_OK;
}

/* Reads `plan.allow`. Without it a space of the file may need whatever it names, and the default
 * one nothing. */
static tsr_status read_allowed(const struct tsr_yaml_node *plan, struct tsr_plan_space *out)
{
    const struct tsr_yaml_node *list = tsr_node_get(plan, "allow");
    bool is_list = list && list->kind == TSR_NODE_SEQ;
    for (size_t k = 0; tsr_node_is_null(list) && k < out->n_axes && !out->is_default; k++)
        for (size_t v = 0; v < out->axes[k].n; v++)
            out->allowed |= out->axes[k].values[v].needs;
    for (size_t i = 0; !tsr_node_is_null(list) && i < (is_list ? list->n : 1); i++) {
        const struct tsr_yaml_node *item = is_list ? list->items[i] : list;
        const char *word = item->kind == TSR_NODE_SCALAR ? item->text : "";
        unsigned need = 0;
        while (need < TSR_N_NEEDS && strcmp(word, tsr_words_need[need]) != 0)
            need++;
        bool all = !strcmp(word, "all");
        if (!all && need == TSR_N_NEEDS) {
            char words[128];
            tsr_join_words(tsr_words_need, words, sizeof words);
            return tsr_node_error(item, "plan.allow: found %s; allowed: all, or a list of %s",
                                  tsr_node_show(item), words);
        }
        out->allowed |= all ? ~0u : 1u << need;
    }
    return TSR_OK;
}

tsr_status tsr_plan_space_read(struct tsr_experiment *experiment, const struct tsr_job *job,
                               struct tsr_plan_space *out)
{
    const struct tsr_yaml_node *plan = tsr_node_get(experiment->doc.root, "plan");
    const struct tsr_yaml_node *space = tsr_node_get(plan, "space");
    memset(out, 0, sizeof(*out));
    out->api = job->settings->api;
    if (tsr_node_is_null(space)) {
        out->is_default = true;
        TSR_TRY(tsr_plan_space_default(experiment, job, out));
        TSR_TRY(read_allowed(plan, out));
        return count(experiment->doc.root, out);
    }
    if (space->kind != TSR_NODE_MAP || !space->n)
        return tsr_node_error(space, "plan.space: found %s; allowed: a mapping of keys to lists",
                              space->kind == TSR_NODE_MAP ? "an empty mapping"
                                                          : tsr_node_show(space));
    TSR_TRY(read_map(experiment, job->strategy, space, "", out));
    TSR_TRY(check_readers(out));
    TSR_TRY(read_allowed(plan, out));
    return count(space, out);
}

/* ---- combinations ------------------------------------------------------------------------ */

static size_t stride(const struct tsr_plan_space *space, size_t k)
{
    size_t n = 1;
    for (size_t j = k + 1; j < space->n_axes; j++)
        n *= space->axes[j].n;
    return n;
}

size_t tsr_plan_pick(const struct tsr_plan_space *space, size_t i, size_t k)
{
    return i / stride(space, k) % space->axes[k].n;
}

size_t tsr_plan_with(const struct tsr_plan_space *space, size_t i, size_t k, size_t value)
{
    return i + stride(space, k) * value - stride(space, k) * tsr_plan_pick(space, i, k);
}

static unsigned api_of(const struct tsr_plan_space *space, size_t i)
{
    unsigned api = space->api;
    for (size_t k = 0; k < space->n_axes; k++)
        if (space->axes[k].is_api) {
            const char *text = space->axes[k].values[tsr_plan_pick(space, i, k)].text;
            for (unsigned a = 0; tsr_words_api[a]; a++)
                api = strcmp(tsr_words_api[a], text) ? api : a;
        }
    return api;
}

bool tsr_plan_repeats(const struct tsr_plan_space *space, size_t i)
{
    unsigned api = api_of(space, i);
    for (size_t k = 0; k < space->n_axes; k++) {
        const struct tsr_plan_axis *axis = &space->axes[k];
        size_t first = axis->base < axis->n ? axis->base : 0;
        if (!(axis->readers >> api & 1) && tsr_plan_pick(space, i, k) != first)
            return true;
    }
    return false;
}

size_t tsr_plan_sets(const struct tsr_plan_space *space, size_t i, const char **out)
{
    unsigned api = api_of(space, i);
    size_t n = 0;
    for (size_t k = 0; k < space->n_axes; k++) {
        const struct tsr_plan_value *value = &space->axes[k].values[tsr_plan_pick(space, i, k)];
        if (!value->is_base && space->axes[k].readers >> api & 1)
            out[n++] = value->set;
    }
    return n;
}

unsigned tsr_plan_needs(const struct tsr_plan_space *space, size_t i)
{
    unsigned api = api_of(space, i), needs = 0;
    for (size_t k = 0; k < space->n_axes; k++)
        if (space->axes[k].readers >> api & 1)
            needs |= space->axes[k].values[tsr_plan_pick(space, i, k)].needs;
    return needs;
}

void tsr_plan_words(const struct tsr_plan_space *space, size_t i, char *out, size_t size)
{
    unsigned api = api_of(space, i);
    size_t used = 0;
    out[0] = 0;
    for (size_t k = 0; k < space->n_axes && used < size; k++) {
        const struct tsr_plan_value *value = &space->axes[k].values[tsr_plan_pick(space, i, k)];
        if (!value->is_base && space->axes[k].readers >> api & 1)
            used += (size_t)snprintf(out + used, size - used, "%s%s=%s", used ? ", " : "",
                                     space->axes[k].key, value->text);
    }
    if (!out[0])
        snprintf(out, size, "as in the file");
}
