/* validate_conditions.c: what a table does not say about its runs, as rules in a file.
 *
 *   all:                            # of every kind, before its own: by the column gpu
 *     - {when: {gpu: "H200*"}, set: {cluster: dgx-h200-128}}
 *   llm_foundry:                    # kind of table
 *     - when: {gpu: "a100*"}        # columns and patterns (fnmatch), or lists of them; all match
 *       set: {cluster: NAME, batch: $microbatch_size}   # keys of an experiment
 *       model: {model_type: mpt, d_model: $d_model}     # or a config.json, key by key
 *       source: who says so
 *     - when: {pp: "[2-9]*"}
 *       refuse: pipeline parallelism is not modelled
 *
 * Rules are applied in order, later ones win. $COLUMN is the cell of the row, ${COLUMN.number} the
 * first integer in it; what refers to an empty cell is left out. `accumulation.steps` is not a set:
 * the runner decides how many micro-batches it simulates.
 */
#include "experiments/study/validate/validate.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/base/paths.h"
#include "experiments/study/base/yaml.h"

enum { MAX_TEXT = 1024 };

/* ---- the file ---------------------------------------------------------------------------- */

static const char *const rule_keys[] = {"when", "set", "model", "refuse", "source", NULL};

/* What cells give besides columns: see cell_of(). Nodes are of 8 GPUs. */
static const char *const derived_names[] = {"recomputed_share", "nodes", "micro_batches", NULL};

/* Rules of every kind look at what every kind has. */
static const char *const all_columns[] = {"gpu", NULL};
static const struct tsr_table_kind all_kinds = {.name = "all", .columns = all_columns};

static bool is_name(const char *const *names, const char *name, size_t n)
{
    for (; *names; names++)
        if (strlen(*names) == n && !memcmp(*names, name, n))
            return true;
    return false;
}

/* Finds the next $NAME or ${NAME} at or after `text`. */
struct reference {
    const char *at, *end; /* of the whole reference */
    const char *name;
    size_t n;
    bool number;
};

static bool next_reference(const char *text, struct reference *out)
{
    static const char number[] = ".number";
    const char *at = strchr(text, '$');
    if (!at)
        return false;
    bool braces = at[1] == '{';
    const char *name = at + 1 + braces, *end = name;
    while (isalnum((unsigned char)*end) || *end == '_')
        end++;
    *out = (struct reference){at, end, name, (size_t)(end - name), false};
    if (!braces)
        return true;
    if (!strncmp(end, number, sizeof number - 1)) {
        out->number = true;
        end += sizeof number - 1;
    }
    out->end = end + (*end == '}');
    return true;
}

static tsr_status check_text(const struct tsr_yaml_node *node, const struct tsr_table_kind *kind)
{
    struct reference ref;
    for (const char *at = node->text; next_reference(at, &ref); at = ref.end)
        if (!is_name(kind->columns, ref.name, ref.n) && !is_name(derived_names, ref.name, ref.n))
            return tsr_node_error(node, "found $%.*s; allowed: columns of a table of kind %s",
                                  (int)ref.n, ref.name, kind->name);
    return TSR_OK;
}

static tsr_status check_map(const struct tsr_yaml_node *rule, const char *key,
                            const struct tsr_table_kind *kind)
{
    const struct tsr_yaml_node *map = tsr_node_get(rule, key);
    if (!map)
        return TSR_OK;
    if (map->kind != TSR_NODE_MAP)
        return tsr_node_error(map, "%s: found %s; allowed: a mapping", key, tsr_node_show(map));
    for (size_t i = 0; i < map->n; i++) {
        const struct tsr_yaml_node *item = map->items[i];
        bool is_when = !strcmp(key, "when"), list = is_when && item->kind == TSR_NODE_SEQ;
        if (item->kind != TSR_NODE_SCALAR && item->kind != TSR_NODE_NULL && !list)
            return tsr_node_error(item, "%s.%s: found %s; allowed: a text or a number", key,
                                  item->key, tsr_node_show(item));
        if (is_when && !is_name(kind->columns, item->key, strlen(item->key)))
            return tsr_unknown_key(item, "when", kind->columns);
        TSR_TRY(check_text(item, kind));
    }
    return TSR_OK;
}

static tsr_status check_rule(const struct tsr_yaml_node *rule, const struct tsr_table_kind *kind)
{
    if (rule->kind != TSR_NODE_MAP)
        return tsr_node_error(rule, "%s: found %s; allowed: a mapping with %s", kind->name,
                              tsr_node_show(rule), "when, set, model, refuse, source");
    for (size_t i = 0; i < rule->n; i++)
        if (!is_name(rule_keys, rule->items[i]->key, strlen(rule->items[i]->key)))
            return tsr_unknown_key(rule->items[i], kind->name, rule_keys);
    TSR_TRY(check_map(rule, "when", kind));
    TSR_TRY(check_map(rule, "set", kind));
    return check_map(rule, "model", kind);
}

static tsr_status check(const struct tsr_yaml_node *root)
{
    if (root->kind != TSR_NODE_MAP)
        return tsr_node_error(root, "found %s; allowed: a mapping of kinds of tables to rules",
                              tsr_node_show(root));
    for (size_t i = 0; i < root->n; i++) {
        const struct tsr_yaml_node *rules = root->items[i];
        const struct tsr_table_kind *kind =
            !strcmp(rules->key, all_kinds.name) ? &all_kinds : tsr_table_kind_find(rules->key);
        if (!kind)
            return tsr_node_error(rules,
                                  "found the kind %s; allowed: all, llm_foundry, torchtitan, "
                                  "other_training, llmc or nccl_busbw",
                                  rules->key);
        if (rules->kind != TSR_NODE_SEQ)
            return tsr_node_error(rules, "%s: found %s; allowed: a list of rules", rules->key,
                                  tsr_node_show(rules));
        for (size_t k = 0; k < rules->n; k++)
            TSR_TRY(check_rule(rules->items[k], kind));
    }
    return TSR_OK;
}

static tsr_status find(const char *path, char *out, size_t size)
{
    static const char *const folders[] = {TSR_DATA_DIR "/validation",
                                          TSR_SOURCE_DIR "/experiments/validation"};
    if (path) {
        snprintf(out, size, "%s", path);
        return TSR_OK;
    }
    char beside[TSR_FILE_BYTES];
    if (tsr_data_beside_program("validation/conditions.yaml", beside)) {
        snprintf(out, size, "%s", beside);
        return TSR_OK;
    }
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(out, size, "%s/conditions.yaml", folders[i]);
        if (access(out, R_OK) == 0)
            return TSR_OK;
    }
    return tsr_fail(TSR_ECONFIG,
                    "conditions.yaml: is neither in %s nor in %s; allowed: an installed tessera, "
                    "or its source tree",
                    folders[0], folders[1]);
}

tsr_status tsr_rules_open(const char *path, struct tsr_rules *out)
{
    memset(out, 0, sizeof(*out));
    TSR_TRY(find(path, out->path, sizeof out->path));
    TSR_TRY(tsr_doc_load(out->path, &out->doc));
    tsr_status status = check(out->doc.root);
    if (status != TSR_OK)
        tsr_doc_fini(&out->doc);
    return status;
}

void tsr_rules_close(struct tsr_rules *conditions)
{
    tsr_doc_fini(&conditions->doc);
}

/* ---- a row ------------------------------------------------------------------------------- */

struct context {
    const struct tsr_table *table;
    const struct tsr_csv_row *row;
    uint32_t gpus;
    struct tsr_arena *arena;
    struct tsr_recipe *recipe;
    size_t cap_sets;
    const char *model_keys[64], *model_values[64];
    size_t n_model;
};

/* Hardware counts recomputation, model utilisation does not: a forward is a third of a step. */
static void recomputed_share(const struct context *c, char *out, size_t size)
{
    double mfu = 0, hfu = 0;
    bool has_mfu = false, has_hfu = false;
    out[0] = 0;
    if (tsr_csv_number(&c->table->csv, c->row, "mfu_pct", &mfu, &has_mfu) != TSR_OK ||
        tsr_csv_number(&c->table->csv, c->row, "hfu_pct", &hfu, &has_hfu) != TSR_OK || !has_mfu ||
        !has_hfu || mfu <= 0)
        return;
    double share = 3 * (hfu / mfu - 1);
    snprintf(out, size, "%.3f", share < 0 ? 0 : share > 1 ? 1 : share);
}

/* Tokens of a step over those of a micro-batch on all GPUs. */
static void micro_batches(const struct context *c, char *out, size_t size)
{
    static const char *const columns[] = {"tokens_per_step", "micro_batch", "seq_len"};
    double value[3] = {0};
    bool found = true;
    for (size_t i = 0; i < 3 && found; i++)
        if (tsr_csv_number(&c->table->csv, c->row, columns[i], &value[i], &found) != TSR_OK)
            found = false;
    double each = value[1] * value[2] * c->gpus;
    out[0] = 0;
    if (found && each > 0)
        snprintf(out, size, "%.0f", value[0] / each < 1 ? 1 : value[0] / each);
}

static void cell_of(const struct context *c, const struct reference *ref, char *out, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)ref->n, ref->name);
    if (!strcmp(name, "recomputed_share")) {
        recomputed_share(c, out, size);
        return;
    }
    if (!strcmp(name, "micro_batches")) {
        micro_batches(c, out, size);
        return;
    }
    bool nodes = !strcmp(name, "nodes");
    if (nodes || !strcmp(name, c->table->kind->gpus)) {
        snprintf(out, size, "%u", (unsigned)(nodes ? tsr_ceil_div(c->gpus, 8) : c->gpus));
        return;
    }
    const char *cell = tsr_csv_cell(&c->table->csv, c->row, name);
    if (ref->number) {
        cell += strcspn(cell, "0123456789");
        snprintf(out, size, "%.*s", (int)strspn(cell, "0123456789"), cell);
        return;
    }
    snprintf(out, size, "%s", cell);
}

/* `text` with cells in place of references; NULL: a cell is empty. */
static tsr_status expand(const struct context *c, const char *text, const char **out)
{
    char done[MAX_TEXT] = "", cell[MAX_TEXT];
    struct reference ref;
    *out = NULL;
    for (; next_reference(text, &ref); text = ref.end) {
        size_t used = strlen(done);
        cell_of(c, &ref, cell, sizeof cell);
        if (!*cell)
            return TSR_OK;
        snprintf(done + used, sizeof done - used, "%.*s%s", (int)(ref.at - text), text, cell);
    }
    size_t used = strlen(done);
    snprintf(done + used, sizeof done - used, "%s", text);
    *out = tsr_arena_strdup(c->arena, done);
    return *out ? TSR_OK : tsr_no_memory(NULL);
}

static bool matches(const char *cell, const struct tsr_yaml_node *pattern)
{
    bool any = pattern->kind != TSR_NODE_SEQ &&
               fnmatch(pattern->kind == TSR_NODE_NULL ? "" : pattern->text, cell, 0) == 0;
    for (size_t i = 0; i < pattern->n; i++)
        any = any || fnmatch(pattern->items[i]->text, cell, 0) == 0;
    return any;
}

static bool applies(const struct context *c, const struct tsr_yaml_node *rule)
{
    const struct tsr_yaml_node *when = tsr_node_get(rule, "when");
    for (size_t i = 0; when && i < when->n; i++)
        if (!matches(tsr_csv_cell(&c->table->csv, c->row, when->items[i]->key), when->items[i]))
            return false;
    return true;
}

/* "collective.*" */
static bool put_collective(struct tsr_recipe *r, const char *key, const char *value)
{
    uint64_t number = strtoull(value, NULL, 10);
    if (!strcmp(key, "collective.kind"))
        r->collective.kind = value;
    else if (!strcmp(key, "collective.gpus"))
        r->collective.gpus = number;
    else if (!strcmp(key, "collective.nodes"))
        r->collective.nodes = number;
    else if (!strcmp(key, "collective.bytes"))
        r->collective.bytes = number;
    else
        return false;
    return true;
}

static tsr_status put_set(struct context *c, const char *key, const char *value)
{
    struct tsr_recipe *r = c->recipe;
    size_t n = strlen(key), i = 0;
    if (put_collective(r, key, value))
        return TSR_OK;
    if (!strcmp(key, tsr_keys[TSR_K_ACCUMULATION_STEPS].name)) {
        r->accumulation = strtoull(value, NULL, 10);
        return TSR_OK;
    }
    const char *set = tsr_arena_printf(c->arena, "%s=%s", key, value);
    if (!set)
        return tsr_no_memory(NULL);
    while (i < r->n_sets && (strncmp(r->sets[i], key, n) || r->sets[i][n] != '='))
        i++;
    if (i < r->n_sets)
        r->sets[i] = set;
    else if (!TSR_PUSH(r->sets, r->n_sets, c->cap_sets, set))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

static tsr_status put_model(struct context *c, const char *key, const char *value)
{
    size_t i = 0;
    while (i < c->n_model && strcmp(c->model_keys[i], key))
        i++;
    if (i == sizeof c->model_keys / sizeof c->model_keys[0])
        return tsr_fail(TSR_ECONFIG, "model: found more than %zu keys", i);
    c->model_keys[i] = key;
    c->model_values[i] = value;
    c->n_model += i == c->n_model;
    return TSR_OK;
}

static tsr_status apply_map(struct context *c, const struct tsr_yaml_node *map,
                            tsr_status (*put)(struct context *, const char *, const char *))
{
    for (size_t i = 0; map && i < map->n; i++) {
        const struct tsr_yaml_node *item = map->items[i];
        const char *value = NULL;
        TSR_TRY(expand(c, item->kind == TSR_NODE_NULL ? "null" : item->text, &value));
        if (value)
            TSR_TRY(put(c, item->key, value));
    }
    return TSR_OK;
}

static tsr_status apply_rule(struct context *c, const struct tsr_yaml_node *rule)
{
    const struct tsr_yaml_node *refuse = tsr_node_get(rule, "refuse");
    TSR_TRY(apply_map(c, tsr_node_get(rule, "set"), put_set));
    TSR_TRY(apply_map(c, tsr_node_get(rule, "model"), put_model));
    if (refuse && !c->recipe->refuse)
        c->recipe->refuse = refuse->text;
    return TSR_OK;
}

/* {"key": value, ...}; a value that is neither a number, a mapping, true, false nor null is a text.
 */
static tsr_status write_model(struct context *c)
{
    const char *text = "";
    for (size_t i = 0; i < c->n_model && text; i++) {
        const char *value = c->model_values[i];
        char *end = NULL;
        (void)strtod(value, &end);
        bool plain = (*value && !*end) || *value == '{' || !strcmp(value, "true") ||
                     !strcmp(value, "false") || !strcmp(value, "null");
        const char *quote = plain ? "" : "\"";
        text = tsr_arena_printf(c->arena, "%s%s\"%s\": %s%s%s", text, i ? ", " : "",
                                c->model_keys[i], quote, value, quote);
    }
    if (text && c->n_model)
        c->recipe->model = tsr_arena_printf(c->arena, "{%s}\n", text);
    return text && (c->recipe->model || !c->n_model) ? TSR_OK : tsr_no_memory(NULL);
}

static bool has_set(const struct tsr_recipe *r, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < r->n_sets; i++)
        if (!strncmp(r->sets[i], key, n) && r->sets[i][n] == '=')
            return true;
    return false;
}

static tsr_status refuse(struct context *c, const char *reason)
{
    c->recipe->refuse = reason;
    return reason ? TSR_OK : tsr_no_memory(NULL);
}

static tsr_status refuse_cell(struct context *c, const char *column, const char *what)
{
    return refuse(c, tsr_arena_printf(
                         c->arena, "column %s: no rule of conditions.yaml knows its %s, \"%.80s\"",
                         column, what, tsr_csv_cell(&c->table->csv, c->row, column)));
}

/* The sets move to the arena, where the other texts are. */
static tsr_status finish(struct context *c)
{
    struct tsr_recipe *r = c->recipe;
    const char **kept = tsr_arena_alloc(c->arena, (r->n_sets + 1) * sizeof(*kept));
    if (!kept)
        return tsr_no_memory(NULL);
    if (r->n_sets)
        memcpy(kept, r->sets, r->n_sets * sizeof(*kept));
    free(r->sets);
    r->sets = kept;
    TSR_TRY(write_model(c));
    const char *missing = tsr_table_missing(c->table, c->row);
    if (r->refuse)
        return TSR_OK;
    if (missing)
        return refuse(c, tsr_arena_printf(c->arena, "column %s: is empty", missing));
    if (!has_set(r, "cluster"))
        return refuse_cell(c, "gpu", "machine");
    if (!r->collective.kind && !r->model && !has_set(r, tsr_keys[TSR_K_MODEL_NAME].name))
        return refuse_cell(c, "model", "model");
    return TSR_OK;
}

tsr_status tsr_rules_refuse(struct tsr_arena *arena, const char *reason, struct tsr_recipe *out)
{
    *out = (struct tsr_recipe){.accumulation = 1, .refuse = tsr_arena_strdup(arena, reason)};
    return out->refuse ? TSR_OK : tsr_no_memory(NULL);
}

tsr_status tsr_rules_apply(const struct tsr_rules *conditions, const struct tsr_table *table,
                           const struct tsr_csv_row *row, uint32_t gpus, struct tsr_arena *arena,
                           struct tsr_recipe *out)
{
    struct context c = {.table = table, .row = row, .gpus = gpus, .arena = arena, .recipe = out};
    const char *const names[] = {all_kinds.name, table->kind->name};
    tsr_status status = TSR_OK;
    *out = (struct tsr_recipe){.accumulation = 1};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const struct tsr_yaml_node *rules = tsr_node_get(conditions->doc.root, names[k]);
        for (size_t i = 0; rules && i < rules->n && status == TSR_OK; i++)
            if (applies(&c, rules->items[i]))
                status = apply_rule(&c, rules->items[i]);
    }
    if (status == TSR_OK)
        status = finish(&c);
    else
        free(out->sets);
    return status;
}
