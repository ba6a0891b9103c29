/* experiment.c: reads an experiment file into settings, one set per strategy; changes of keys make
 * other strategies of them. */
#include "experiments/study/config/experiment.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

enum { MAX_STRATEGIES = 4096 };

static const char *const other_keys[] = {"title", "strategies", "sweeps", "plan", "jobs", NULL};

static tsr_status check_name(const struct tsr_yaml_node *at, const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_.+-=@";
    if (*name && *name != '.' && strlen(name) <= TSR_MAX_STRATEGY_NAME &&
        strspn(name, allowed) == strlen(name))
        return TSR_OK;
    return tsr_node_error(at,
                          "strategies: found the name \"%.120s\"; allowed: 1 to %d letters, digits "
                          "and _ . + - = @, not beginning with a dot",
                          name, TSR_MAX_STRATEGY_NAME);
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

/* Refuses configurations of Accelerate and DeepSpeed, which are YAML or JSON, too. */
static tsr_status refuse_launchers(const struct tsr_yaml_node *root)
{
    const char *whose = tsr_node_get(root, "distributed_type")    ? "Accelerate"
                        : tsr_node_get(root, "zero_optimization") ? "DeepSpeed"
                                                                  : NULL;
    if (!whose)
        return TSR_OK;
    return tsr_node_error(root,
                          "is a configuration of %s, which is read by `python -m tessera config "
                          "FILE FILE.py:FUNCTION --cluster NAME`",
                          whose);
}

static tsr_status load(struct tsr_experiment *out, const char *const *sets, size_t n_sets)
{
    struct tsr_yaml_node *root = out->doc.root;
    if (root->kind != TSR_NODE_MAP)
        return tsr_node_error(root, "found %s; allowed: a mapping of keys (`tessera help keys`)",
                              tsr_node_show(root));
    TSR_TRY(refuse_launchers(root));
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
