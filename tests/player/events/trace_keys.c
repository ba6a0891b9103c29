/* trace_keys.c: the keys that a recorded scenario may have, what sort of value each takes, and for
 * which kinds of scenario it means something. What nobody would read is refused before anything is
 * read: a recording is never played as another one.
 */
#include <string.h>

#include "tests/player/events/trace_scenario.h"

enum sort { TEXT, WORD, COUNT, NUMBER, FLAG, DTYPE, LIST, EMPTY, MAP, ANY };

struct rule {
    const char *key;
    enum sort sort;
    const char *const *words; /* WORD; NULL-terminated */
};
enum { MOST_RULES = 24 };

/* ---- one value ------------------------------------------------------------------------------- */

static bool is_scalar(const struct tsr_yaml_node *node)
{
    return node->kind == TSR_NODE_SCALAR;
}

static bool is_word(const struct tsr_yaml_node *node, const char *const *words)
{
    for (size_t i = 0; is_scalar(node) && words[i]; i++)
        if (!strcmp(node->text, words[i]))
            return true;
    return false;
}

static bool fits(const struct tsr_yaml_node *node, const struct rule *rule)
{
    uint64_t count;
    double number;
    bool flag;
    switch (rule->sort) {
    case TEXT:
        return is_scalar(node);
    case WORD:
        return is_word(node, rule->words);
    case COUNT:
        return tsr_node_u64(node, &count);
    case NUMBER:
        return tsr_node_double(node, &number);
    case FLAG:
        return tsr_node_bool(node, &flag);
    case DTYPE:
        return is_scalar(node) && tsr_dtype_parse(node->text) != TSR_DTYPE_NONE;
    case LIST:
        return node->kind == TSR_NODE_SEQ;
    case EMPTY:
        return node->kind == TSR_NODE_SEQ && node->n == 0;
    case MAP:
        return node->kind == TSR_NODE_MAP;
    case ANY:
        break;
    }
    return true;
}

static tsr_status wrong(const struct tsr_yaml_node *node, const struct rule *rule)
{
    static const char *const sorts[] = {[TEXT] = "a text",
                                        [WORD] = "",
                                        [COUNT] = "an integer from 0",
                                        [NUMBER] = "a number",
                                        [FLAG] = "true or false",
                                        [DTYPE] = "a dtype",
                                        [LIST] = "a list",
                                        [EMPTY] = "an empty list, in a scenario of this kind",
                                        [MAP] = "a mapping",
                                        [ANY] = "anything"};
    char words[512];
    tsr_join_words(rule->words, words, sizeof words);
    return tsr_node_error(node, "%s: found %s; allowed: %s", rule->key, tsr_node_show(node),
                          rule->sort == WORD ? words : sorts[rule->sort]);
}

/* ---- a mapping ------------------------------------------------------------------------------- */

static const struct rule *rule_of(const struct rule *rules, const char *key)
{
    for (; rules->key; rules++)
        if (!strcmp(rules->key, key))
            return rules;
    return NULL;
}

/* Absent and null are as good as each other. `rules` end with a key of NULL. */
static tsr_status check_map(const struct tsr_yaml_node *map, const char *name,
                            const struct rule *rules)
{
    const char *allowed[MOST_RULES + 1] = {NULL};
    if (tsr_node_is_null(map))
        return TSR_OK;
    if (map->kind != TSR_NODE_MAP)
        return tsr_node_error(map, "%s: found %s; allowed: a mapping", name, tsr_node_show(map));
    for (size_t i = 0; i < MOST_RULES && rules[i].key; i++)
        allowed[i] = rules[i].key;
    for (size_t i = 0; i < map->n; i++) {
        const struct rule *rule = rule_of(rules, map->items[i]->key);
        if (!rule)
            return tsr_unknown_key(map->items[i], name, allowed);
        if (!tsr_node_is_null(map->items[i]) && !fits(map->items[i], rule))
            return wrong(map->items[i], rule);
    }
    return TSR_OK;
}

static tsr_status check_each(const struct tsr_yaml_node *list, const char *name,
                             const struct rule *rules)
{
    for (size_t i = 0; list && i < list->n; i++) {
        if (list->items[i]->kind != TSR_NODE_MAP)
            return tsr_node_error(list->items[i], "%s: found %s; allowed: a list of mappings", name,
                                  tsr_node_show(list->items[i]));
        TSR_TRY(check_map(list->items[i], name, rules));
    }
    return TSR_OK;
}

/* ---- parts of a scenario --------------------------------------------------------------------- */

static tsr_status check_model(const struct tsr_yaml_node *model)
{
    static const struct rule rules[] = {{"kind", TEXT, NULL},   {"config", MAP, NULL},
                                        {"frozen", LIST, NULL}, {"param_dtypes", LIST, NULL},
                                        {"meta", FLAG, NULL},   {"noncontiguous", LIST, NULL},
                                        {NULL, ANY, NULL}};
    bool is_tree = !strcmp(tsr_text_or(model, "kind", ""), "tree"); /* tree_file.c looks at it */
    return is_tree ? TSR_OK : check_map(model, "model", rules);
}

static tsr_status check_wrap(const struct tsr_yaml_node *wrap, bool is_tp)
{
    static const char *const apis[] = {"fully_shard", "replicate", NULL};
    static const char *const offloads[] = {"cpu", "cpu_pinned", NULL};
    static const struct rule mp[] = {{"param", DTYPE, NULL},
                                     {"reduce", DTYPE, NULL},
                                     {"output", DTYPE, NULL},
                                     {"cast_inputs", FLAG, NULL},
                                     {NULL, ANY, NULL}};
    const struct rule rules[] = {{"modules", LIST, NULL},
                                 {"api", WORD, apis},
                                 {"group", FLAG, NULL},
                                 {"reshard_after_forward", ANY, NULL},
                                 {"mp", MAP, NULL},
                                 {"offload", WORD, offloads},
                                 {"shard_dim", LIST, NULL},
                                 {"ignored", LIST, NULL},
                                 {is_tp ? "mesh_dims" : NULL, LIST, NULL},
                                 {NULL, ANY, NULL}};
    TSR_TRY(check_each(wrap, "wrap", rules));
    for (size_t i = 0; wrap && i < wrap->n; i++)
        TSR_TRY(check_map(tsr_node_get(wrap->items[i], "mp"), "mp", mp));
    return TSR_OK;
}

static tsr_status check_ac(const struct tsr_yaml_node *ac)
{
    static const char *const places[] = {"inside", "outside", NULL};
    static const struct rule rules[] = {{"modules", LIST, NULL},
                                        {"where", WORD, places},
                                        {"early_stop", FLAG, NULL},
                                        {NULL, ANY, NULL}};
    return check_each(ac, "ac", rules);
}

static tsr_status check_calls(const struct tsr_yaml_node *calls)
{
    static const char *const times[] = {"after_wrap",
                                        "before_forward",
                                        "after_forward",
                                        "before_backward",
                                        "after_backward",
                                        "after_step",
                                        NULL};
    static const struct rule at[] = {
        {"when", WORD, times}, {"iter", COUNT, NULL}, {"micro", COUNT, NULL}, {NULL, ANY, NULL}};
    static const struct rule rules[] = {{"at", MAP, NULL},
                                        {"fn", TEXT, NULL},
                                        {"module", TEXT, NULL},
                                        {"args", MAP, NULL},
                                        {NULL, ANY, NULL}};
    TSR_TRY(check_each(calls, "calls", rules));
    for (size_t i = 0; calls && i < calls->n; i++) {
        TSR_TRY(check_map(tsr_node_get(calls->items[i], "at"), "at", at));
        TSR_TRY(tsr_scenario_check_call(calls->items[i]));
    }
    return TSR_OK;
}

static tsr_status check_optimizer(const struct tsr_yaml_node *optimizer)
{
    static const char *const names[] = {"sgd", "adamw", NULL};
    static const struct rule sgd[] = {{"name", WORD, names},          {"lr", NUMBER, NULL},
                                      {"momentum", NUMBER, NULL},     {"dampening", NUMBER, NULL},
                                      {"weight_decay", NUMBER, NULL}, {"nesterov", FLAG, NULL},
                                      {"maximize", FLAG, NULL},       {NULL, ANY, NULL}};
    static const struct rule adamw[] = {{"name", WORD, names},          {"lr", NUMBER, NULL},
                                        {"betas", LIST, NULL},          {"eps", NUMBER, NULL},
                                        {"weight_decay", NUMBER, NULL}, {"amsgrad", FLAG, NULL},
                                        {"maximize", FLAG, NULL},       {NULL, ANY, NULL}};
    bool is_adamw = !strcmp(tsr_text_or(optimizer, "name", ""), "adamw");
    return check_map(optimizer, "optimizer", is_adamw ? adamw : sgd);
}

/* seed, data_seed: how the tensors were made. */
static tsr_status check_train(const struct tsr_yaml_node *train)
{
    static const struct rule rules[] = {
        {"iters", COUNT, NULL},        {"micro", COUNT, NULL},   {"batch", COUNT, NULL},
        {"seq", COUNT, NULL},          {"optimizer", MAP, NULL}, {"schedule", LIST, NULL},
        {"no_grad_iters", LIST, NULL}, {"entry_at", MAP, NULL},  {"seed", COUNT, NULL},
        {"data_seed", COUNT, NULL},    {NULL, ANY, NULL}};
    TSR_TRY(check_map(train, "train", rules));
    return check_optimizer(tsr_node_get(train, "optimizer"));
}

static tsr_status check_ddp(const struct tsr_yaml_node *ddp)
{
    static const struct rule rules[] = {{"bucket_cap_mb", NUMBER, NULL},
                                        {"find_unused_parameters", FLAG, NULL},
                                        {"static_graph", FLAG, NULL},
                                        {"gradient_as_bucket_view", FLAG, NULL},
                                        {"comm_hook", TEXT, NULL},
                                        {"skip_all_reduce_unused_params", FLAG, NULL},
                                        {NULL, ANY, NULL}};
    return check_map(ddp, "ddp", rules);
}

static tsr_status check_cases(const struct tsr_yaml_node *cases, bool is_chunk)
{
    static const struct rule chunk[] = {{"fn", TEXT, NULL},     {"shape", LIST, NULL},
                                        {"mesh", LIST, NULL},   {"tp_dim", ANY, NULL},
                                        {"world", COUNT, NULL}, {"per_node", COUNT, NULL},
                                        {NULL, ANY, NULL}};
    static const struct rule bucket[] = {
        {"tensors", LIST, NULL}, {"limits", LIST, NULL}, {NULL, ANY, NULL}};
    static const struct rule tensor[] = {
        {"shape", LIST, NULL}, {"dtype", DTYPE, NULL}, {NULL, ANY, NULL}};
    TSR_TRY(check_each(cases, "cases", is_chunk ? chunk : bucket));
    for (size_t i = 0; !is_chunk && cases && i < cases->n; i++)
        TSR_TRY(check_each(tsr_node_get(cases->items[i], "tensors"), "tensors", tensor));
    return TSR_OK;
}

/* ---- the scenario ---------------------------------------------------------------------------- */

/* reference, reference_divisor: what the recorder compared the recording with. */
static tsr_status check_root(const struct tsr_yaml_node *root, const char *kind)
{
    bool is_ddp = !strcmp(kind, "ddp"), is_tp = !strcmp(kind, "tp_layout");
    bool runs = is_ddp || !strcmp(kind, "train") || !strcmp(kind, "error");
    struct rule rules[MOST_RULES] = {{"name", TEXT, NULL},
                                     {"kind", TEXT, NULL},
                                     {"torch", TEXT, NULL},
                                     {"mesh", MAP, NULL},
                                     {"model", MAP, NULL}};
    size_t n = 5;
    rules[n++] = (struct rule){"wrap", is_ddp ? EMPTY : LIST, NULL};
    if (is_ddp)
        rules[n++] = (struct rule){"ddp", MAP, NULL};
    else if (runs)
        rules[n++] = (struct rule){"ac", LIST, NULL};
    if (is_tp)
        rules[n++] = (struct rule){"tp", LIST, NULL};
    if (runs) {
        rules[n++] = (struct rule){"train", MAP, NULL};
        rules[n++] = (struct rule){"calls", LIST, NULL};
        rules[n++] = (struct rule){"tensors", MAP, NULL};
        rules[n++] = (struct rule){"reference", FLAG, NULL};
        rules[n++] = (struct rule){"reference_divisor", NUMBER, NULL};
    }
    return check_map(root, "", rules);
}

static tsr_status check_root_of_cases(const struct tsr_yaml_node *root)
{
    static const struct rule rules[] = {
        {"name", TEXT, NULL}, {"kind", TEXT, NULL}, {"cases", LIST, NULL}, {NULL, ANY, NULL}};
    return check_map(root, "", rules);
}

tsr_status tsr_scenario_check_keys(const struct tsr_scenario *s)
{
    static const struct rule mesh[] = {
        {"shape", LIST, NULL}, {"dim_names", LIST, NULL}, {NULL, ANY, NULL}};
    static const struct rule tensors[] = {
        {"init", TEXT, NULL}, {"data", TEXT, NULL}, {NULL, ANY, NULL}};
    const struct tsr_yaml_node *root = s->doc.root;
    bool is_chunk = !strcmp(s->kind, "chunk");
    if (is_chunk || !strcmp(s->kind, "bucket")) {
        TSR_TRY(check_root_of_cases(root));
        return check_cases(tsr_node_get(root, "cases"), is_chunk);
    }
    TSR_TRY(check_root(root, s->kind));
    TSR_TRY(check_map(tsr_node_get(root, "mesh"), "mesh", mesh));
    TSR_TRY(check_map(tsr_node_get(root, "tensors"), "tensors", tensors));
    TSR_TRY(check_model(tsr_node_get(root, "model")));
    TSR_TRY(check_wrap(tsr_node_get(root, "wrap"), !strcmp(s->kind, "tp_layout")));
    TSR_TRY(check_ac(tsr_node_get(root, "ac")));
    TSR_TRY(check_calls(tsr_node_get(root, "calls")));
    TSR_TRY(check_ddp(tsr_node_get(root, "ddp")));
    return check_train(tsr_node_get(root, "train"));
}
