/* experiment.c: reads an experiment file into settings, one set per strategy; sweeps and other
 * changes of keys make more strategies of them. */
#include "experiments/study/config/experiment.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

enum { MAX_STRATEGIES = 4096, MAX_NAME = 95 };

static const char *const other_keys[] = {"title", "strategies", "sweeps", "plan", "jobs", NULL};

static tsr_status check_name(const struct tsr_yaml_node *at, const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_.+-=@";
    if (*name && *name != '.' && strlen(name) <= MAX_NAME && strspn(name, allowed) == strlen(name))
        return TSR_OK;
    return tsr_node_error(at,
                          "strategies: found the name \"%.120s\"; allowed: 1 to %d letters, digits "
                          "and _ . + - = @, not beginning with a dot",
                          name, MAX_NAME);
}

static tsr_status add_strategy(struct tsr_experiment *experiment, const char *name,
                               const struct tsr_yaml_node *node)
{
    struct tsr_strategy *strategy = &experiment->strategies[experiment->n];
    strategy->name = strategy->base = name;
    strategy->at = node;
    strategy->settings = experiment->top;
    if (node->kind == TSR_NODE_MAP) {
        const char *where = tsr_arena_printf(&experiment->doc.arena, "strategies.%s.", name);
        if (!where)
            return tsr_no_memory(NULL);
        TSR_TRY(tsr_settings_apply(&experiment->doc.arena, node, where, NULL, &strategy->settings));
        TSR_TRY(tsr_stacks_apply(&experiment->stacks, experiment->path, &strategy->settings));
    } else if (node->kind != TSR_NODE_NULL) {
        return tsr_node_error(node, "strategies.%s: found %s; allowed: a mapping of keys", name,
                              tsr_node_show(node));
    }
    experiment->n++;
    return TSR_OK;
}

static tsr_status read_strategies(struct tsr_experiment *experiment)
{
    const struct tsr_yaml_node *node = tsr_node_get(experiment->doc.root, "strategies");
    size_t n = node && node->kind == TSR_NODE_MAP ? node->n : 0;
    if (node && node->kind != TSR_NODE_MAP)
        return tsr_node_error(node, "strategies: found %s; allowed: a mapping of names to keys",
                              tsr_node_show(node));
    if (n > MAX_STRATEGIES)
        return tsr_node_error(node, "strategies: found %zu; allowed: up to %d", n, MAX_STRATEGIES);
    experiment->strategies = calloc(n ? n : 1, sizeof(*experiment->strategies));
    if (!experiment->strategies)
        return tsr_no_memory(NULL);
    if (n == 0) { /* the file itself is the strategy */
        struct tsr_strategy *only = &experiment->strategies[experiment->n++];
        only->name = only->base = "default";
        only->at = experiment->doc.root;
        only->settings = experiment->top;
    }
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(check_name(node->items[i], node->items[i]->key));
        TSR_TRY(add_strategy(experiment, node->items[i]->key, node->items[i]));
    }
    return TSR_OK;
}

/* --set strategies.NAME.key=value must name a strategy of the file: a new one by a slip of the pen
 * would run with defaults. */
static tsr_status check_set(struct tsr_experiment *experiment, const char *assignment)
{
    static const char prefix[] = "strategies.";
    const struct tsr_yaml_node *node = tsr_node_get(experiment->doc.root, "strategies");
    const char *rest = assignment + sizeof prefix - 1;
    size_t n = node && node->kind == TSR_NODE_MAP ? node->n : 0;
    if (strncmp(assignment, prefix, sizeof prefix - 1))
        return TSR_OK;
    const char **names = tsr_arena_alloc(&experiment->doc.arena, (n + 1) * sizeof(*names));
    char words[512];
    if (!names)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(node->items[i]->key);
        names[i] = node->items[i]->key;
        if (!strncmp(rest, names[i], length) && (rest[length] == '.' || rest[length] == '='))
            return TSR_OK;
    }
    tsr_join_words(names, words, sizeof words);
    return tsr_fail(TSR_ECONFIG, "--set %s: no such strategy in %s; allowed: %s", assignment,
                    experiment->path, words);
}

/* Turns "model: NAME" into "model: {name: NAME}", so that --set model.blocks=... adds to it. */
static tsr_status spell_out(struct tsr_experiment *experiment, struct tsr_yaml_node *map)
{
    static const char *const prefixes[] = {"model", "checkpoint", "cluster", NULL};
    for (size_t i = 0; map->kind == TSR_NODE_MAP && i < map->n; i++) {
        struct tsr_yaml_node *value = map->items[i];
        bool is_prefix = false;
        for (size_t k = 0; prefixes[k]; k++)
            is_prefix = is_prefix || !strcmp(value->key, prefixes[k]);
        if (!is_prefix || value->kind != TSR_NODE_SCALAR)
            continue;
        struct tsr_yaml_node *outer = tsr_arena_alloc(&experiment->doc.arena, sizeof(*outer));
        struct tsr_yaml_node **items = tsr_arena_alloc(&experiment->doc.arena, sizeof(*items));
        if (!outer || !items)
            return tsr_no_memory(NULL);
        *outer = *value;
        outer->kind = TSR_NODE_MAP;
        outer->text = "";
        outer->items = items;
        outer->n = outer->cap = 1;
        items[0] = value;
        value->key = strchr(tsr_key_shorthand(outer->key), '.') + 1;
        map->items[i] = outer;
    }
    return TSR_OK;
}

static tsr_status apply_sets(struct tsr_experiment *experiment, const char *const *sets, size_t n)
{
    struct tsr_yaml_node *root = experiment->doc.root;
    for (size_t i = 0; i < n; i++) {
        const struct tsr_yaml_node *strategies = tsr_node_get(root, "strategies");
        TSR_TRY(spell_out(experiment, root));
        for (size_t k = 0; strategies && strategies->kind == TSR_NODE_MAP && k < strategies->n; k++)
            TSR_TRY(spell_out(experiment, strategies->items[k]));
        TSR_TRY(check_set(experiment, sets[i]));
        TSR_TRY(tsr_doc_set(&experiment->doc, sets[i]));
    }
    return TSR_OK;
}

/* True for "model=...", "cluster.nics=...": a key of what is trained, and on what. */
static bool changes_subject(const char *set)
{
    static const char *const keys[] = {"model", "cluster",       "nodes",
                                       "gpu",   "gpus_per_node", "world"};
    size_t n = strcspn(set, ".=");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i]) == n && !strncmp(set, keys[i], n))
            return true;
    return false;
}

/* The title of a file is about the model and the cluster that it names. Where a set names others,
 * the name of the file and these sets take its place, unless a set gives a title, too. */
static tsr_status retitle(struct tsr_experiment *experiment, const char *file,
                          const char *const *sets, size_t n_sets)
{
    const char *text = NULL;
    for (size_t i = 0; i < n_sets; i++) {
        if (!strncmp(sets[i], "title=", 6))
            return TSR_OK;
        if (!changes_subject(sets[i]))
            continue;
        text = tsr_arena_printf(&experiment->doc.arena, "%s%s%s", text ? text : file,
                                text ? ", " : " with ", sets[i]);
        if (!text)
            return tsr_no_memory("a title");
    }
    if (text)
        experiment->title = text;
    return TSR_OK;
}

static tsr_status read_title(struct tsr_experiment *experiment, const char *const *sets,
                             size_t n_sets)
{
    const struct tsr_yaml_node *title = tsr_node_get(experiment->doc.root, "title");
    const char *slash = strrchr(experiment->path, '/');
    const char *file = slash ? slash + 1 : experiment->path;
    experiment->title = file;
    if (tsr_node_is_null(title))
        return TSR_OK;
    if (title->kind != TSR_NODE_SCALAR)
        return tsr_node_error(title, "title: found %s; allowed: a text", tsr_node_show(title));
    experiment->title = title->text;
    return retitle(experiment, file, sets, n_sets);
}

/* Written code is of the file and these: whoever predicts for it has to know them. */
static tsr_status keep_given(struct tsr_experiment *experiment, const char *const *sets,
                             size_t n_sets)
{
    for (size_t i = 0; i < n_sets; i++) {
        const char *before = experiment->given;
        if (!strncmp(sets[i], "plan", 4) || !strncmp(sets[i], "title=", 6))
            continue;
        experiment->given = tsr_arena_printf(&experiment->doc.arena, "%s%s%s", before ? before : "",
                                             before ? ", " : "", sets[i]);
        if (!experiment->given)
            return tsr_no_memory("an experiment");
    }
    return TSR_OK;
}

static tsr_status load(struct tsr_experiment *out, const char *const *sets, size_t n_sets)
{
    struct tsr_yaml_node *root = out->doc.root;
    if (root->kind != TSR_NODE_MAP)
        return tsr_node_error(root, "found %s; allowed: a mapping of keys (`tessera help keys`)",
                              tsr_node_show(root));
    out->has_sweeps = !tsr_node_is_null(tsr_node_get(root, "sweeps"));
    TSR_TRY(apply_sets(out, sets, n_sets));
    tsr_settings_default(&out->top);
    TSR_TRY(tsr_settings_apply(&out->doc.arena, root, "", other_keys, &out->top));
    TSR_TRY(tsr_stacks_apply(&out->stacks, out->path, &out->top));
    TSR_TRY(read_title(out, sets, n_sets));
    TSR_TRY(keep_given(out, sets, n_sets));
    TSR_TRY(read_strategies(out));
    const struct tsr_yaml_node *sweeps = tsr_node_get(root, "sweeps");
    return tsr_node_is_null(sweeps) ? TSR_OK : tsr_experiment_sweep(out, sweeps);
}

tsr_status tsr_experiment_open(const struct tsr_study_request *request, struct tsr_experiment *out)
{
    const char *text = request->text;
    memset(out, 0, sizeof(*out));
    if (text)
        TSR_TRY(tsr_doc_read(TSR_TEXT_NAME, text, strlen(text), &out->doc));
    else
        TSR_TRY(tsr_doc_load(request->path, &out->doc));
    /* A copy: some callers read a temporary file under a name that ends before the experiment. */
    out->path = tsr_arena_strdup(&out->doc.arena, text ? TSR_TEXT_NAME : request->path);
    out->kernels = calloc(1, sizeof *out->kernels);
    tsr_status status = out->path && out->kernels ? load(out, request->sets, request->n_sets)
                                                  : tsr_no_memory("an experiment");
    if (status != TSR_OK)
        tsr_experiment_fini(out);
    return status;
}

tsr_status tsr_experiment_load(const char *path, const char *const *sets, size_t n_sets,
                               struct tsr_experiment *out)
{
    const struct tsr_study_request request = {.path = path, .sets = sets, .n_sets = n_sets};
    return tsr_experiment_open(&request, out);
}

void tsr_experiment_fini(struct tsr_experiment *experiment)
{
    free(experiment->strategies);
    tsr_stacks_fini(&experiment->stacks);
    if (experiment->kernels)
        tsr_kernel_store_fini(experiment->kernels);
    free(experiment->kernels);
    tsr_doc_fini(&experiment->doc);
    memset(experiment, 0, sizeof(*experiment));
}

/* ---- choosing ---------------------------------------------------------------------------- */

static tsr_status no_such_strategy(const struct tsr_experiment *experiment, const char *option,
                                   const char *name)
{
    const char *near = NULL;
    char names[512] = "";
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < experiment->n; i++) {
        const char *have = experiment->strategies[i].name;
        size_t distance = tsr_edit_distance(name ? name : "", have), used = strlen(names);
        if (distance < best) {
            best = distance;
            near = have;
        }
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", have);
    }
    if (!name)
        return tsr_fail(TSR_ECONFIG, "%s: %s: none given; allowed: %s", experiment->path, option,
                        names);
    return tsr_fail(TSR_ECONFIG, "%s: %s: found \"%s\"; nearest strategy: \"%s\"; allowed: %s",
                    experiment->path, option, name, near ? near : "", names);
}

static bool is_named(const struct tsr_strategy *strategy, const char *name, size_t n)
{
    return (strlen(strategy->name) == n && !memcmp(strategy->name, name, n)) ||
           (strlen(strategy->base) == n && !memcmp(strategy->base, name, n));
}

tsr_status tsr_experiment_only(struct tsr_experiment *experiment, const char *names)
{
    bool keep[MAX_STRATEGIES] = {false};
    for (const char *name = names; *name;) {
        size_t n = strcspn(name, ",");
        bool found = n == 0;
        for (size_t i = 0; i < experiment->n; i++)
            if (is_named(&experiment->strategies[i], name, n))
                found = keep[i] = true;
        if (!found) {
            char copy[128];
            snprintf(copy, sizeof copy, "%.*s", (int)(n < 120 ? n : 120), name);
            return no_such_strategy(experiment, "--only", copy);
        }
        name += n + (name[n] == ',');
    }
    size_t kept = 0;
    for (size_t i = 0; i < experiment->n; i++)
        if (keep[i])
            experiment->strategies[kept++] = experiment->strategies[i];
    if (kept == 0)
        return tsr_fail(TSR_ECONFIG, "--only: found an empty list; allowed: names of strategies");
    experiment->n = kept;
    return TSR_OK;
}

tsr_status tsr_experiment_find(const struct tsr_experiment *experiment, const char *name,
                               const struct tsr_strategy **out)
{
    if (!name && experiment->n == 1) {
        *out = &experiment->strategies[0];
        return TSR_OK;
    }
    for (size_t i = 0; name && i < experiment->n; i++) {
        if (!strcmp(experiment->strategies[i].name, name)) {
            *out = &experiment->strategies[i];
            return TSR_OK;
        }
    }
    return no_such_strategy(experiment, "--strategy", name);
}

/* ---- variants: a strategy with other values -------------------------------------------------- */

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
    return tsr_stacks_apply(&experiment->stacks, experiment->path, &out->settings);
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

/* Multiplies strategies by lists of values: every strategy is run with every combination. */

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

static bool put_scalar(FILE *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    char quoted[MAX_FLOW];
    if (*text && !text[strspn(text, plain)])
        return fputs(text, out) >= 0;
    return tsr_yaml_quote(text, quoted, sizeof quoted) == TSR_OK && fputs(quoted, out) >= 0;
}

/* A value as YAML in one line; false: no room. */
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

/* "batch=2", of the arena; NULL: no memory, or too long. */
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

/* `from` with value number `pick[k]` of each list that it reads. *repeats: another combination
 * makes the same. */
static tsr_status combine(struct tsr_experiment *experiment, const struct tsr_yaml_node *sweeps,
                          const struct tsr_strategy *from, const size_t *pick,
                          struct tsr_strategy *out, bool *repeats)
{
    char name[4 * MAX_NAME];
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
    if (strlen(name) > MAX_NAME)
        return tsr_node_error(sweeps,
                              "sweeps: found a strategy name of %zu letters, %.100s...; "
                              "allowed: up to %d",
                              strlen(name), name, MAX_NAME);
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
