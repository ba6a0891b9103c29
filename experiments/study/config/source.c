/* source.c: finds where a strategy has the value of a key from: a stack, the head of the file, the
 * strategy itself, a --set, or a sweep. */
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/config/settings.h"

/* True if `map` gives the key `name` (from there on) the value `at`, however the key is written:
 * {a.b: V}, {a: {b: V}} or, short, {a: V}. */
static bool gives(const struct tsr_yaml_node *map, const char *name, const struct tsr_yaml_node *at)
{
    char head[64];
    if (!map || map == at || tsr_node_get(map, name) == at)
        return map != NULL;
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        snprintf(head, sizeof head, "%.*s", (int)(dot - name), name);
        if (gives(tsr_node_get(map, head), dot + 1, at))
            return true;
    }
    return false;
}

/* True if an entry of the lists of `sweeps` gives the key `name` at the node `at`. */
static bool sweeps_give(const struct tsr_yaml_node *sweeps, const char *name,
                        const struct tsr_yaml_node *at)
{
    for (size_t k = 0; sweeps && k < sweeps->n; k++) {
        const struct tsr_yaml_node *list = sweeps->items[k];
        size_t n = strlen(list->key);
        bool named = !strncmp(list->key, name, n) && (!name[n] || name[n] == '.');
        for (size_t i = 0; named && i < list->n; i++)
            if (gives(list->items[i], name[n] ? name + n + 1 : "", at))
                return true;
    }
    return false;
}

enum tsr_setting_source tsr_setting_source(const struct tsr_experiment *experiment,
                                           const struct tsr_strategy *strategy, size_t key)
{
    const struct tsr_yaml_node *at = strategy->settings.from[key], *root = experiment->doc.root;
    const struct tsr_stack *stack = tsr_stacks_of(&experiment->stacks, &strategy->settings);
    if (!at)
        return TSR_FROM_DEFAULT;
    if (stack && stack->settings.from[key] == at)
        return TSR_FROM_STACK;
    bool is_set = at->line == 0;
    const char *name = tsr_keys[key].name;
    if (strategy->at != root && gives(strategy->at, name, at))
        return is_set ? TSR_FROM_SET : TSR_FROM_STRATEGY;
    if (sweeps_give(tsr_node_get(root, "sweeps"), name, at) || !gives(root, name, at))
        return TSR_FROM_SWEEP;
    if (strategy->at != root)
        return is_set ? TSR_FROM_HEAD_SET : TSR_FROM_HEAD;
    return is_set ? TSR_FROM_SET : TSR_FROM_STRATEGY;
}
