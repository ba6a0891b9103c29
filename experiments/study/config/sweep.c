/* sweep.c: multiplies strategies by lists of values: every strategy is run with every combination.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/experiment.h"

enum { MAX_EXPANDED = 4096, MAX_NAME = 95 };

static void append(char *out, size_t size, const char *text)
{
    size_t used = strlen(out);
    for (const char *c = text; *c && used + 1 < size; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                     (*c >= '0' && *c <= '9') || strchr("_.+-", *c);
        out[used++] = plain ? *c : '-';
    }
    out[used] = 0;
}

/* A value as part of a name: 2, bf16, 16x8, replicate16-shard8. */
static void append_value(char *out, size_t size, const struct tsr_yaml_node *value)
{
    if (value->kind == TSR_NODE_NULL)
        append(out, size, "null");
    else if (value->kind == TSR_NODE_SCALAR)
        append(out, size, value->text);
    for (size_t i = 0; i < value->n; i++) {
        if (i)
            append(out, size, value->kind == TSR_NODE_SEQ ? "x" : "-");
        if (value->kind == TSR_NODE_MAP)
            append(out, size, value->items[i]->key);
        append_value(out, size, value->items[i]);
    }
}

static tsr_status check_list(const struct tsr_yaml_node *list)
{
    if (tsr_key_find(list->key) == tsr_n_keys() && !tsr_key_is_prefix(list->key)) {
        const char *near = tsr_key_nearest(list->key);
        return tsr_node_error(list,
                              "sweeps: unknown key \"%s\"%s%s; allowed: see `tessera help "
                              "keys`",
                              list->key, near ? "; nearest: " : "", near ? near : "");
    }
    if (list->kind != TSR_NODE_SEQ || list->n == 0)
        return tsr_node_error(list, "sweeps.%s: found %s; allowed: a list of values", list->key,
                              list->kind == TSR_NODE_SEQ ? "an empty list" : tsr_node_show(list));
    return TSR_OK;
}

/* `from` with value number `pick[k]` of each list. */
static tsr_status combine(struct tsr_experiment *experiment, const struct tsr_yaml_node *sweeps,
                          const struct tsr_strategy *from, const size_t *pick,
                          struct tsr_strategy *out)
{
    char name[4 * MAX_NAME];
    *out = *from;
    snprintf(name, sizeof name, "%s", from->name);
    for (size_t k = 0; k < sweeps->n; k++) {
        const struct tsr_yaml_node *list = sweeps->items[k], *value = list->items[pick[k]];
        const char *dot = strrchr(list->key, '.');
        size_t used = strlen(name);
        snprintf(name + used, sizeof name - used, "@%s=", dot ? dot + 1 : list->key);
        append_value(name, sizeof name, value);
        TSR_TRY(tsr_settings_put(&experiment->doc.arena, list->key, value, &out->settings));
    }
    if (strlen(name) > MAX_NAME)
        return tsr_node_error(sweeps,
                              "sweeps: found a strategy name of %zu letters, %.100s...; "
                              "allowed: up to %d",
                              strlen(name), name, MAX_NAME);
    out->name = tsr_arena_strdup(&experiment->doc.arena, name);
    return out->name ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status count(const struct tsr_experiment *experiment, const struct tsr_yaml_node *sweeps,
                        size_t *out)
{
    size_t n = experiment->n;
    for (size_t k = 0; k < sweeps->n; k++) {
        TSR_TRY(check_list(sweeps->items[k]));
        n *= sweeps->items[k]->n;
        if (n > MAX_EXPANDED)
            return tsr_node_error(sweeps->items[k],
                                  "sweeps: found more than %d combinations; allowed: up to %d",
                                  MAX_EXPANDED, MAX_EXPANDED);
    }
    *out = n;
    return TSR_OK;
}

/* Counts up the mixed-radix number `pick`, the last list fastest. */
static void advance(const struct tsr_yaml_node *sweeps, size_t *pick)
{
    for (size_t k = sweeps->n; k-- > 0;) {
        if (++pick[k] < sweeps->items[k]->n)
            return;
        pick[k] = 0;
    }
}

tsr_status tsr_experiment_sweep(struct tsr_experiment *experiment,
                                const struct tsr_yaml_node *sweeps)
{
    size_t n = 0;
    if (sweeps->kind != TSR_NODE_MAP)
        return tsr_node_error(sweeps, "sweeps: found %s; allowed: a mapping of keys to lists",
                              tsr_node_show(sweeps));
    if (sweeps->n > 16)
        return tsr_node_error(sweeps, "sweeps: found %zu keys; allowed: up to 16", sweeps->n);
    TSR_TRY(count(experiment, sweeps, &n));
    struct tsr_strategy *expanded = calloc(n, sizeof(*expanded));
    if (!expanded)
        return tsr_no_memory(NULL);
    size_t done = 0, each = n / experiment->n;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < experiment->n; i++) {
        size_t pick[16] = {0};
        for (size_t k = 0; k < each && status == TSR_OK; k++) {
            status =
                combine(experiment, sweeps, &experiment->strategies[i], pick, &expanded[done++]);
            advance(sweeps, pick);
        }
    }
    free(experiment->strategies);
    experiment->strategies = expanded;
    experiment->n = done;
    return status;
}
