/* tree_file.c: an own model as a tree of modules, in the format of the golden scenarios
 * (tests/golden/README.md, "tree"), with attention and gelu added. experiments/own-model/tree.yaml
 * explains and shows it.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/model/model.h"

static const char *const type_names[] = {[TSR_TREE_LINEAR] = "linear",
                                         [TSR_TREE_EMBEDDING] = "embedding",
                                         [TSR_TREE_RMSNORM] = "rmsnorm",
                                         [TSR_TREE_LAYERNORM] = "layernorm",
                                         [TSR_TREE_SCALE] = "scale",
                                         [TSR_TREE_RELU] = "relu",
                                         [TSR_TREE_SILU] = "silu",
                                         [TSR_TREE_GELU] = "gelu",
                                         [TSR_TREE_GELU_ERF] = "gelu_erf",
                                         [TSR_TREE_ATTENTION] = "attention",
                                         [TSR_TREE_SWIGLU] = "swiglu",
                                         [TSR_TREE_OP] = "op",
                                         [TSR_TREE_SEQ] = "seq",
                                         [TSR_TREE_LIST] = "list",
                                         NULL};

/* Keys of each type beside name and type. */
enum { MAX_TYPE_KEYS = 12 };
static const char *const type_keys[][MAX_TYPE_KEYS] = {
    [TSR_TREE_LINEAR] = {"in", "out", "bias"},
    [TSR_TREE_EMBEDDING] = {"num", "dim"},
    [TSR_TREE_RMSNORM] = {"dim", "eps"},
    [TSR_TREE_LAYERNORM] = {"dim", "eps"},
    [TSR_TREE_SCALE] = {"shape"},
    [TSR_TREE_RELU] = {NULL},
    [TSR_TREE_SILU] = {NULL},
    [TSR_TREE_GELU] = {NULL},
    [TSR_TREE_GELU_ERF] = {NULL},
    [TSR_TREE_ATTENTION] = {"heads", "kv_heads", "head_dim", "causal"},
    [TSR_TREE_SWIGLU] = {NULL},
    [TSR_TREE_OP] = {"in", "out", "rows", "params", "flops", "bytes", "backward_flops",
                     "backward_bytes", "saved_bytes", "saves_input"},
    [TSR_TREE_SEQ] = {"children", "residual", "run", "run_at"},
    [TSR_TREE_LIST] = {"children", "run", "run_at"}};

/* meta and noncontiguous: of a tree in a recorded scenario, whose reader takes them. */
static const char *const top_keys[] = {"kind",         "tokens",  "in_dim",        "out_dim",
                                       "loss",         "modules", "tie",           "frozen",
                                       "param_dtypes", "meta",    "noncontiguous", NULL};
enum { N_OF_SCENARIO = 2 }; /* the last ones */

#define MAX_SIZE UINT64_C(1073741824)
static const double MAX_COST = 1e18;

/* As many modules as a tree may have, each repetition counted. */
enum { MAX_MODULES = 250000 };

struct reader {
    struct tsr_arena *arena;
    uint64_t times; /* of the node that is read: the product of the repeats around it */
    uint64_t modules;
};

static void *get_memory(struct reader *r, size_t n, size_t bytes, tsr_status *status)
{
    void *memory = tsr_arena_alloc(r->arena, (n ? n : 1) * bytes);
    *status = memory ? TSR_OK : tsr_no_memory(NULL);
    return memory;
}

/* ---- fields ------------------------------------------------------------------------------ */

static tsr_status need_size(const struct tsr_yaml_node *node, const char *name, const char *key,
                            uint64_t *out)
{
    const struct tsr_yaml_node *value = tsr_node_get(node, key);
    if (!value)
        return tsr_node_error(node, "module \"%s\": has no key \"%s\"; allowed: an integer from 1",
                              name, key);
    if (!tsr_node_u64(value, out) || *out < 1 || *out > MAX_SIZE)
        return tsr_node_error(value, "%s.%s: found %s; allowed: an integer from 1 to %llu", name,
                              key, tsr_node_show(value), (unsigned long long)MAX_SIZE);
    return TSR_OK;
}

static tsr_status bool_or(const struct tsr_yaml_node *node, const char *name, const char *key,
                          bool fallback, bool *out)
{
    const struct tsr_yaml_node *value = tsr_node_get(node, key);
    *out = fallback;
    if (!value || tsr_node_bool(value, out))
        return TSR_OK;
    return tsr_node_error(value, "%s.%s: found %s; allowed: true or false", name, key,
                          tsr_node_show(value));
}

static tsr_status read_names(struct reader *r, const struct tsr_yaml_node *list, const char *path,
                             size_t *n_out, const char *const **out)
{
    tsr_status status = TSR_OK;
    if (list->kind != TSR_NODE_SEQ)
        return tsr_node_error(list, "%s: found %s; allowed: a list of names", path,
                              tsr_node_show(list));
    const char **names = get_memory(r, list->n, sizeof(*names), &status);
    for (size_t i = 0; status == TSR_OK && i < list->n; i++) {
        if (list->items[i]->kind != TSR_NODE_SCALAR)
            return tsr_node_error(list->items[i], "%s: found %s; allowed: a name", path,
                                  tsr_node_show(list->items[i]));
        names[i] = list->items[i]->text;
    }
    *n_out = list->n;
    *out = names;
    return status;
}

static tsr_status read_shape(const struct tsr_yaml_node *node, struct tsr_tree_node *out)
{
    const struct tsr_yaml_node *shape = tsr_node_get(node, "shape");
    if (!shape || shape->kind != TSR_NODE_SEQ || shape->n > 4)
        return tsr_node_error(shape ? shape : node,
                              "%s.shape: found %s; allowed: a list of up to 4 sizes", out->name,
                              tsr_node_show(shape));
    for (size_t i = 0; i < shape->n; i++) {
        uint64_t *dim = &out->dims[out->n_dims++];
        if (!tsr_node_u64(shape->items[i], dim) || *dim > MAX_SIZE)
            return tsr_node_error(shape->items[i], "%s.shape: found %s; allowed: an integer from 0",
                                  out->name, tsr_node_show(shape->items[i]));
    }
    return TSR_OK;
}

static tsr_status read_run_at(struct reader *r, const struct tsr_yaml_node *map,
                              struct tsr_tree_node *out)
{
    tsr_status status = TSR_OK;
    if (map->kind != TSR_NODE_MAP)
        return tsr_node_error(map, "%s.run_at: found %s; allowed: {ITERATION: [NAME, ...]}",
                              out->name, tsr_node_show(map));
    struct tsr_tree_run *runs = get_memory(r, map->n, sizeof(*runs), &status);
    TSR_TRY(status);
    for (size_t i = 0; i < map->n; i++) {
        struct tsr_yaml_node key = *map->items[i];
        int64_t iteration = 0;
        key.kind = TSR_NODE_SCALAR;
        key.text = map->items[i]->key;
        key.quoted = false;
        if (!tsr_node_i64(&key, &iteration) || iteration < 0 || iteration > 65535)
            return tsr_node_error(map->items[i], "%s.run_at: found %s; allowed: an iteration",
                                  out->name, key.text);
        runs[i].iteration = (int)iteration;
        TSR_TRY(read_names(r, map->items[i], "run_at", &runs[i].n_run, &runs[i].run));
    }
    out->run_at = runs;
    out->n_run_at = (int)map->n;
    return TSR_OK;
}

/* NULL-terminated. */
static tsr_status check_known(const struct tsr_yaml_node *node, const char *name,
                              const char *const *allowed)
{
    for (size_t i = 0; i < node->n; i++) {
        bool known = false;
        for (size_t k = 0; allowed[k]; k++)
            known = known || !strcmp(allowed[k], node->items[i]->key);
        if (!known)
            return tsr_unknown_key(node->items[i], name, allowed);
    }
    return TSR_OK;
}

static tsr_status check_keys(const struct tsr_yaml_node *node, const char *name, int type)
{
    const char *allowed[MAX_TYPE_KEYS + 4] = {"name", "type", "repeat"};
    size_t n = 3;
    for (size_t k = 0; k < MAX_TYPE_KEYS && type_keys[type][k]; k++)
        allowed[n++] = type_keys[type][k];
    return check_known(node, name, allowed);
}

/* ---- nodes ------------------------------------------------------------------------------- */

static tsr_status read_node(struct reader *r, const struct tsr_yaml_node *node,
                            struct tsr_tree_node *out);

static tsr_status read_children(struct reader *r, const struct tsr_yaml_node *list,
                                const char *name, size_t *n_out, const struct tsr_tree_node **out)
{
    tsr_status status = TSR_OK;
    if (!list || list->kind != TSR_NODE_SEQ || list->n == 0)
        return tsr_node_error(list, "%s: found %s; allowed: a list of modules", name,
                              tsr_node_show(list));
    struct tsr_tree_node *nodes = get_memory(r, list->n, sizeof(*nodes), &status);
    TSR_TRY(status);
    for (size_t i = 0; i < list->n; i++)
        TSR_TRY(read_node(r, list->items[i], &nodes[i]));
    *n_out = list->n;
    *out = nodes;
    return TSR_OK;
}

static tsr_status read_container(struct reader *r, const struct tsr_yaml_node *node,
                                 struct tsr_tree_node *out)
{
    const struct tsr_yaml_node *run = tsr_node_get(node, "run"), *at = tsr_node_get(node, "run_at");
    TSR_TRY(read_children(r, tsr_node_get(node, "children"), out->name, &out->n_children,
                          &out->children));
    TSR_TRY(bool_or(node, out->name, "residual", false, &out->residual));
    if (run) {
        TSR_TRY(read_names(r, run, "run", &out->n_run, &out->run));
        out->run_none = out->n_run == 0;
    }
    return at ? read_run_at(r, at, out) : TSR_OK;
}

static tsr_status read_eps(const struct tsr_yaml_node *node, struct tsr_tree_node *out)
{
    const struct tsr_yaml_node *eps = tsr_node_get(node, "eps");
    if (!eps || (tsr_node_double(eps, &out->eps) && out->eps > 0))
        return TSR_OK;
    return tsr_node_error(eps, "%s.eps: found %s; allowed: a positive number", out->name,
                          tsr_node_show(eps));
}

/* A cost: a number from 0; `fallback` where it is not given. */
static tsr_status cost_or(const struct tsr_yaml_node *node, const char *name, const char *key,
                          double fallback, double *out)
{
    const struct tsr_yaml_node *value = tsr_node_get(node, key);
    *out = fallback;
    if (!value || (tsr_node_double(value, out) && *out >= 0 && *out <= MAX_COST))
        return TSR_OK;
    return tsr_node_error(value, "%s.%s: found %s; allowed: a number from 0 to %g", name, key,
                          tsr_node_show(value), MAX_COST);
}

static tsr_status size_or_0(const struct tsr_yaml_node *node, const char *name, const char *key,
                            uint64_t *out)
{
    const struct tsr_yaml_node *value = tsr_node_get(node, key);
    *out = 0;
    if (!value || (tsr_node_u64(value, out) && *out <= MAX_SIZE))
        return TSR_OK;
    return tsr_node_error(value, "%s.%s: found %s; allowed: an integer from 0 to %llu", name, key,
                          tsr_node_show(value), (unsigned long long)MAX_SIZE);
}

/* An operation in figures of one row of its input. What is not said of backward is twice forward's.
 */
static tsr_status read_op(const struct tsr_yaml_node *node, struct tsr_tree_node *out)
{
    static const char *const rows[] = {"tokens", "sequences", NULL};
    const struct tsr_yaml_node *word = tsr_node_get(node, "rows");
    struct tsr_tree_op *op = &out->op;
    if (tsr_node_get(node, "in"))
        TSR_TRY(need_size(node, out->name, "in", &out->in));
    if (tsr_node_get(node, "out"))
        TSR_TRY(need_size(node, out->name, "out", &out->out));
    if (word && (word->kind != TSR_NODE_SCALAR ||
                 (strcmp(word->text, rows[0]) != 0 && strcmp(word->text, rows[1]) != 0)))
        return tsr_node_error(word, "%s.rows: found %s; allowed: tokens or sequences", out->name,
                              tsr_node_show(word));
    op->per_sequence = word && !strcmp(word->text, rows[1]);
    TSR_TRY(size_or_0(node, out->name, "params", &op->params));
    TSR_TRY(size_or_0(node, out->name, "saved_bytes", &op->saved_bytes));
    TSR_TRY(cost_or(node, out->name, "flops", 0, &op->flops));
    TSR_TRY(cost_or(node, out->name, "bytes", 0, &op->bytes));
    TSR_TRY(cost_or(node, out->name, "backward_flops", -1, &op->backward_flops));
    TSR_TRY(cost_or(node, out->name, "backward_bytes", -1, &op->backward_bytes));
    return bool_or(node, out->name, "saves_input", true, &op->saves_input);
}

static tsr_status read_attention(const struct tsr_yaml_node *node, struct tsr_tree_node *out)
{
    bool causal;
    TSR_TRY(need_size(node, out->name, "heads", &out->heads));
    out->kv_heads = out->heads;
    if (tsr_node_get(node, "kv_heads"))
        TSR_TRY(need_size(node, out->name, "kv_heads", &out->kv_heads));
    if (out->heads % out->kv_heads)
        return tsr_node_error(node, "%s.heads: found %llu; allowed: a multiple of kv_heads",
                              out->name, (unsigned long long)out->heads);
    TSR_TRY(bool_or(node, out->name, "causal", true, &causal));
    out->full = !causal;
    return need_size(node, out->name, "head_dim", &out->head_dim);
}

static tsr_status read_fields(struct reader *r, const struct tsr_yaml_node *node,
                              struct tsr_tree_node *out)
{
    switch (out->type) {
    case TSR_TREE_LINEAR:
        TSR_TRY(need_size(node, out->name, "in", &out->in));
        TSR_TRY(need_size(node, out->name, "out", &out->out));
        return bool_or(node, out->name, "bias", true, &out->bias);
    case TSR_TREE_EMBEDDING:
        TSR_TRY(need_size(node, out->name, "num", &out->in));
        return need_size(node, out->name, "dim", &out->out);
    case TSR_TREE_RMSNORM:
    case TSR_TREE_LAYERNORM:
        TSR_TRY(need_size(node, out->name, "dim", &out->in));
        return read_eps(node, out);
    case TSR_TREE_SCALE:
        return read_shape(node, out);
    case TSR_TREE_ATTENTION:
        return read_attention(node, out);
    case TSR_TREE_OP:
        return read_op(node, out);
    case TSR_TREE_SEQ:
    case TSR_TREE_LIST:
        return read_container(r, node, out);
    case TSR_TREE_RELU:
    case TSR_TREE_SILU:
    case TSR_TREE_GELU:
    case TSR_TREE_GELU_ERF:
    case TSR_TREE_SWIGLU:
        break;
    }
    return TSR_OK;
}

/* What a node is, whatever it repeats. */
static tsr_status read_one(struct reader *r, const struct tsr_yaml_node *node,
                           struct tsr_tree_node *out)
{
    const struct tsr_yaml_node *type = tsr_node_get(node, "type");
    char words[256];
    r->modules += r->times;
    if (r->modules > MAX_MODULES)
        return tsr_node_error(node,
                              "modules: found more than %d, repeated ones counted; allowed: "
                              "up to %d",
                              MAX_MODULES, MAX_MODULES);
    for (int i = 0; type && type_names[i]; i++) {
        if (!strcmp(type_names[i], type->text)) {
            out->type = (enum tsr_tree_type)i;
            TSR_TRY(check_keys(node, out->name, i));
            return read_fields(r, node, out);
        }
    }
    tsr_join_words(type_names, words, sizeof words);
    return tsr_node_error(type ? type : node, "%s.type: found %s; allowed: %s", out->name,
                          tsr_node_show(type), words);
}

/* `repeat: N` makes a list of N such modules, called 0 to N - 1. They share their children. */
static tsr_status read_repeated(struct reader *r, const struct tsr_yaml_node *node,
                                const struct tsr_yaml_node *repeat, struct tsr_tree_node *out)
{
    uint64_t n, times = r->times;
    tsr_status status;
    if (!tsr_node_u64(repeat, &n) || n < 1 || n > MAX_MODULES)
        return tsr_node_error(repeat, "%s.repeat: found %s; allowed: an integer from 1 to %d",
                              out->name, tsr_node_show(repeat), MAX_MODULES);
    r->modules += times;
    r->times = times * n;
    struct tsr_tree_node first = *out;
    TSR_TRY(read_one(r, node, &first));
    r->times = times;
    struct tsr_tree_node *copies = get_memory(r, n, sizeof(*copies), &status);
    TSR_TRY(status);
    for (uint64_t i = 0; i < n; i++) {
        copies[i] = first;
        copies[i].name = tsr_arena_printf(r->arena, "%llu", (unsigned long long)i);
        if (!copies[i].name)
            return tsr_no_memory(NULL);
    }
    out->type = TSR_TREE_LIST;
    out->n_children = n;
    out->children = copies;
    return TSR_OK;
}

static tsr_status read_node(struct reader *r, const struct tsr_yaml_node *node,
                            struct tsr_tree_node *out)
{
    const struct tsr_yaml_node *name = tsr_node_get(node, "name"), *ref = tsr_node_get(node, "ref"),
                               *repeat = tsr_node_get(node, "repeat");
    if (!name || name->kind != TSR_NODE_SCALAR || !*name->text || strchr(name->text, '.'))
        return tsr_node_error(node,
                              "modules: found %s without a name; allowed: {name: NAME, type: "
                              "TYPE, ...}, no dots in a name",
                              tsr_node_show(node));
    out->name = name->text;
    out->where = tsr_node_place(r->arena, node);
    if (!out->where)
        return tsr_no_memory(NULL);
    if (ref && ref->kind == TSR_NODE_SCALAR) {
        out->ref = ref->text;
        return check_known(node, out->name, (const char *const[]){"name", "ref", NULL});
    }
    return repeat ? read_repeated(r, node, repeat, out) : read_one(r, node, out);
}

/* ---- the file ---------------------------------------------------------------------------- */

static tsr_status pair_of(const struct tsr_yaml_node *item, const char *path, const char *what,
                          const char **a, const char **b)
{
    if (item->kind != TSR_NODE_SEQ || item->n != 2 || item->items[0]->kind != TSR_NODE_SCALAR ||
        item->items[1]->kind != TSR_NODE_SCALAR)
        return tsr_node_error(item, "%s: found %s; allowed: %s", path, tsr_node_show(item), what);
    *a = item->items[0]->text;
    *b = item->items[1]->text;
    return TSR_OK;
}

static tsr_status read_extras(struct reader *r, struct tsr_model *model)
{
    const struct tsr_yaml_node *root = model->doc.root;
    const struct tsr_yaml_node *tie = tsr_node_get(root, "tie"),
                               *frozen = tsr_node_get(root, "frozen");
    const struct tsr_yaml_node *dtypes = tsr_node_get(root, "param_dtypes");
    struct tsr_tree_extras *x = &model->extras;
    tsr_status status = TSR_OK;
    if (tie && tie->kind == TSR_NODE_SEQ) {
        x->ties = get_memory(r, tie->n, sizeof(*x->ties), &status);
        TSR_TRY(status);
        for (; x->n_ties < tie->n; x->n_ties++)
            TSR_TRY(pair_of(tie->items[x->n_ties], "tie", "[FQN, SOURCE FQN]",
                            &x->ties[x->n_ties][0], &x->ties[x->n_ties][1]));
    }
    if (frozen)
        TSR_TRY(read_names(r, frozen, "frozen", &x->n_frozen, (const char *const **)&x->frozen));
    if (!dtypes || dtypes->kind != TSR_NODE_SEQ)
        return TSR_OK;
    x->dtype_patterns = get_memory(r, dtypes->n, sizeof(*x->dtype_patterns), &status);
    TSR_TRY(status);
    x->dtypes = get_memory(r, dtypes->n, sizeof(*x->dtypes), &status);
    TSR_TRY(status);
    for (; x->n_dtypes < dtypes->n; x->n_dtypes++) {
        const char *name = NULL;
        TSR_TRY(pair_of(dtypes->items[x->n_dtypes], "param_dtypes", "[PATTERN, DTYPE]",
                        &x->dtype_patterns[x->n_dtypes], &name));
        x->dtypes[x->n_dtypes] = tsr_dtype_parse(name);
        if (!tsr_dtype_is_float(x->dtypes[x->n_dtypes]))
            return tsr_node_error(dtypes->items[x->n_dtypes],
                                  "param_dtypes: found %s; allowed: f32, bf16, f16 or f64", name);
    }
    return TSR_OK;
}

static tsr_status read_input(struct tsr_model *model)
{
    const struct tsr_yaml_node *root = model->doc.root;
    const struct tsr_yaml_node *tokens = tsr_node_get(root, "tokens");
    const struct tsr_yaml_node *loss = tsr_node_get(root, "loss");
    bool has_tokens = !tsr_node_is_null(tokens) && strcmp(tokens->text, "0") != 0;
    if (has_tokens)
        TSR_TRY(need_size(root, "model", "tokens", &model->tree.tokens));
    else
        TSR_TRY(need_size(root, "model", "in_dim", &model->tree.in_dim));
    if (has_tokens && tsr_node_get(root, "in_dim"))
        return tsr_node_error(tsr_node_get(root, "in_dim"),
                              "in_dim: found %s beside tokens; allowed: one of the two",
                              tsr_node_show(tsr_node_get(root, "in_dim")));
    if (tsr_node_get(root, "out_dim"))
        TSR_TRY(need_size(root, "model", "out_dim", &model->tree.target_dim));
    model->tree.loss_mse = loss ? !strcmp(loss->text, "mse") : !has_tokens;
    if (loss && strcmp(loss->text, "mse") && strcmp(loss->text, "ce"))
        return tsr_node_error(loss, "loss: found %s; allowed: ce or mse", tsr_node_show(loss));
    return TSR_OK;
}

static tsr_status read_tree(struct tsr_model *model, bool in_scenario)
{
    struct reader r = {.arena = &model->doc.arena, .times = 1};
    const struct tsr_yaml_node *root = model->doc.root;
    if (root->kind != TSR_NODE_MAP)
        return tsr_node_error(root, "found %s; allowed: {tokens: N, modules: [...]}",
                              tsr_node_show(root));
    size_t n = sizeof top_keys / sizeof *top_keys - (in_scenario ? 0 : N_OF_SCENARIO);
    const char *allowed[sizeof top_keys / sizeof *top_keys] = {NULL};
    memcpy(allowed, top_keys, (n - 1) * sizeof *allowed);
    TSR_TRY(check_known(root, "", allowed));
    const struct tsr_yaml_node *kind = tsr_node_get(root, "kind");
    if (kind && strcmp(kind->text, "tree") != 0)
        return tsr_node_error(kind, "kind: found %s; allowed: tree", tsr_node_show(kind));
    TSR_TRY(read_input(model));
    model->tree.root.name = "";
    model->tree.root.type = TSR_TREE_SEQ;
    TSR_TRY(read_children(&r, tsr_node_get(root, "modules"), "modules",
                          &model->tree.root.n_children, &model->tree.root.children));
    return read_extras(&r, model);
}

/* What both ways of reading have left to do. */
static tsr_status finish(struct tsr_model *out, bool in_scenario)
{
    out->type = "tree";
    out->family = TSR_FAMILY_TREE;
    tsr_status status = read_tree(out, in_scenario);
    if (status != TSR_OK)
        tsr_model_fini(out);
    return status;
}

tsr_status tsr_model_load_tree(const char *path, struct tsr_model *out)
{
    memset(out, 0, sizeof(*out));
    TSR_TRY(tsr_doc_load(path, &out->doc));
    tsr__model_name_after(path, out);
    return finish(out, false);
}

static void lend_root(const struct tsr_yaml_node *root, struct tsr_model *out)
{
    memset(out, 0, sizeof(*out));
    tsr_arena_init(&out->doc.arena);
    out->doc.root = (struct tsr_yaml_node *)(uintptr_t)root;
}

tsr_status tsr_model_load_tree_node(const struct tsr_yaml_node *root, const char *path,
                                    struct tsr_model *out)
{
    lend_root(root, out);
    tsr__model_name_after(path, out);
    return finish(out, false);
}

tsr_status tsr_model_read_tree_node(const struct tsr_yaml_node *root, struct tsr_model *out)
{
    lend_root(root, out);
    return finish(out, true);
}
