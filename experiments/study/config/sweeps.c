/* sweeps.c: multiplies strategies by lists of values: every strategy is run with every
 * combination. */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/experiment.h"
#include "experiments/study/config/settings.h"

enum { MAX_EXPANDED = 4096, MAX_FLOW = 4096, MAX_LISTS = 16 };

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

/* Appends a value to a strategy's name: 2, bf16, 16x8, replicate16-shard8. */
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

static bool put_scalar(FILE *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    char quoted[MAX_FLOW];
    if (*text && !text[strspn(text, plain)])
        return fputs(text, out) >= 0;
    return tsr_yaml_quote(text, quoted, sizeof quoted) == TSR_OK && fputs(quoted, out) >= 0;
}

/* Writes a value as YAML in one line. Returns false if it has no room. */
static bool put_flow(FILE *out, const struct tsr_yaml_node *value)
{
    bool is_map = value->kind == TSR_NODE_MAP, room = true;
    if (value->kind == TSR_NODE_NULL)
        return fputs("null", out) >= 0;
    if (value->kind == TSR_NODE_SCALAR)
        return put_scalar(out, value->text);
    fputc(is_map ? '{' : '[', out);
    for (size_t i = 0; i < value->n && room; i++) {
        fprintf(out, "%s%s%s", i ? ", " : "", is_map ? value->items[i]->key : "",
                is_map ? ": " : "");
        room = put_flow(out, value->items[i]);
    }
    return fputc(is_map ? '}' : ']', out) != EOF && room;
}

/* Returns "batch=2" in the arena's memory; NULL: no memory, or the value is too long. */
static const char *flow_of(struct tsr_arena *arena, const char *key,
                           const struct tsr_yaml_node *value)
{
    char text[MAX_FLOW];
    FILE *out = fmemopen(text, sizeof text, "w");
    if (!out)
        return NULL;
    bool room = fprintf(out, "%s=", key) > 0 && put_flow(out, value) && fputc('\0', out) != EOF;
    room = fclose(out) == 0 && room && memchr(text, '\0', sizeof text);
    return room ? tsr_arena_strdup(arena, text) : NULL;
}

static tsr_status check_list(const struct tsr_yaml_node *list)
{
    if (tsr_key_find(list->key) == TSR_N_KEYS && !tsr_key_is_prefix(list->key)) {
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

/* Sets idle[k] where the strategy that the values make, by its API, does not read list k: one value
 * of it stands for all. *repeats: some other value was picked. */
static tsr_status find_idle(struct tsr_experiment *experiment, const struct tsr_yaml_node *sweeps,
                            const struct tsr_strategy *from, const size_t *pick,
                            bool idle[MAX_LISTS], bool *repeats)
{
    struct tsr_settings all = from->settings;
    *repeats = false;
    for (size_t k = 0; k < sweeps->n; k++)
        TSR_TRY(tsr_settings_put(&experiment->doc.arena, sweeps->items[k]->key,
                                 sweeps->items[k]->items[pick[k]], &all));
    for (size_t k = 0; k < sweeps->n; k++) {
        idle[k] = !tsr_name_is_read(sweeps->items[k]->key, all.api, all.world > 0);
        *repeats = *repeats || (idle[k] && pick[k] > 0);
    }
    return TSR_OK;
}

/* Copies `from` with value number `pick[k]` of each list that it reads. *repeats: another
 * combination gives the same strategy, so *out is not set. */
static tsr_status combine(struct tsr_experiment *experiment, const struct tsr_yaml_node *sweeps,
                          const struct tsr_strategy *from, const size_t *pick,
                          struct tsr_strategy *out, bool *repeats)
{
    char name[4 * TSR_MAX_STRATEGY_NAME];
    bool idle[MAX_LISTS];
    TSR_TRY(find_idle(experiment, sweeps, from, pick, idle, repeats));
    if (*repeats)
        return TSR_OK;
    struct tsr_arena *arena = &experiment->doc.arena;
    const char **picked = tsr_arena_alloc(arena, sweeps->n * sizeof *picked);
    if (!picked)
        return tsr_no_memory(NULL);
    *out = *from;
    out->picked = picked;
    out->n_picked = 0;
    snprintf(name, sizeof name, "%s", from->name);
    for (size_t k = 0; k < sweeps->n; k++) {
        const struct tsr_yaml_node *list = sweeps->items[k], *value = list->items[pick[k]];
        const char *dot = strrchr(list->key, '.');
        size_t used = strlen(name);
        if (idle[k])
            continue;
        snprintf(name + used, sizeof name - used, "@%s=", dot ? dot + 1 : list->key);
        append_value(name, sizeof name, value);
        TSR_TRY(tsr_settings_put(arena, list->key, value, &out->settings));
        picked[out->n_picked] = flow_of(arena, list->key, value);
        if (!picked[out->n_picked])
            return tsr_fail(TSR_ECONFIG, "sweeps.%s: found a value that is too long for a line",
                            list->key);
        out->n_picked++;
    }
    if (strlen(name) > TSR_MAX_STRATEGY_NAME)
        return tsr_node_error(sweeps,
                              "sweeps: found a strategy name of %zu letters, %.100s...; "
                              "allowed: up to %d",
                              strlen(name), name, TSR_MAX_STRATEGY_NAME);
    out->name = tsr_arena_strdup(arena, name);
    if (!out->name)
        return tsr_no_memory(NULL);
    return tsr_stacks_apply(&experiment->stacks, experiment->path, &out->settings);
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

static int by_name(const void *a, const void *b)
{
    const struct tsr_strategy *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Files and folders are called as strategies are: no two alike. */
static tsr_status check_names(const struct tsr_experiment *experiment,
                              const struct tsr_yaml_node *sweeps)
{
    size_t n = experiment->n;
    const struct tsr_strategy **sorted = calloc(n + 1, sizeof(*sorted));
    if (!sorted)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &experiment->strategies[i];
    qsort(sorted, n, sizeof(*sorted), by_name);
    size_t at = 1;
    while (at < n && by_name(&sorted[at - 1], &sorted[at]) != 0)
        at++;
    const char *twice = at < n ? sorted[at]->name : NULL;
    free(sorted);
    if (!twice)
        return TSR_OK;
    return tsr_node_error(sweeps,
                          "sweeps: found two strategies called %s; allowed: values that differ, "
                          "also as parts of a name",
                          twice);
}

tsr_status tsr_experiment_sweep(struct tsr_experiment *experiment,
                                const struct tsr_yaml_node *sweeps)
{
    size_t n = 0;
    if (sweeps->kind != TSR_NODE_MAP)
        return tsr_node_error(sweeps, "sweeps: found %s; allowed: a mapping of keys to lists",
                              tsr_node_show(sweeps));
    if (sweeps->n > MAX_LISTS)
        return tsr_node_error(sweeps, "sweeps: found %zu keys; allowed: up to %d", sweeps->n,
                              MAX_LISTS);
    TSR_TRY(count(experiment, sweeps, &n));
    struct tsr_strategy *expanded = calloc(n, sizeof(*expanded));
    if (!expanded)
        return tsr_no_memory(NULL);
    size_t done = 0, each = n / experiment->n;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < experiment->n; i++) {
        size_t pick[MAX_LISTS] = {0};
        for (size_t k = 0; k < each && status == TSR_OK; k++) {
            bool repeats;
            status = combine(experiment, sweeps, &experiment->strategies[i], pick, &expanded[done],
                             &repeats);
            done += status == TSR_OK && !repeats;
            advance(sweeps, pick);
        }
    }
    free(experiment->strategies);
    experiment->strategies = expanded;
    experiment->n = done;
    return status == TSR_OK ? check_names(experiment, sweeps) : status;
}
