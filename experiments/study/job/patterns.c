/* patterns.c: patterns that name nothing, and the names that are nearest to them. */
#include "experiments/study/job/patterns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_NEAREST = 3, NAME_SIZE = 1024 };

/* A look at every name of a model for one pattern. */
struct search {
    const char *pattern;
    enum tsr_pattern_of of;
    bool found, measures; /* measures: how far each name is from the pattern */
    size_t n, distance[N_NEAREST];
    char nearest[N_NEAREST][NAME_SIZE];
};

static void keep_nearest(struct search *s, const char *name)
{
    size_t distance = tsr_edit_distance(s->pattern, name), at = s->n;
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->nearest[i], name))
            return;
    while (at > 0 && distance < s->distance[at - 1])
        at--;
    if (at == N_NEAREST)
        return;
    s->n += s->n < N_NEAREST;
    for (size_t i = s->n - 1; i > at; i--) {
        s->distance[i] = s->distance[i - 1];
        memcpy(s->nearest[i], s->nearest[i - 1], NAME_SIZE);
    }
    s->distance[at] = distance;
    snprintf(s->nearest[at], NAME_SIZE, "%s", name);
}

static void look_at(struct search *s, const char *name)
{
    s->found |= tsr_glob(s->pattern, name);
    if (s->measures && *name)
        keep_nearest(s, name);
}

static void look_below(struct search *s, const struct tsr_module *module)
{
    if (s->of == TSR_PATTERN_MODULES)
        look_at(s, tsr_module_fqn(module));
    size_t n = s->of == TSR_PATTERN_PARAMS ? tsr_module_n_params(module) : 0;
    for (size_t i = 0; i < n; i++)
        look_at(s, tsr_param_info(tsr_module_param(module, i), module).fqn);
    n = tsr_module_n_children(module);
    for (size_t i = 0; i < n && (!s->found || s->measures); i++)
        look_below(s, tsr_module_child(module, i));
}

static bool names_something(struct tsr_engine *e, const char *pattern, enum tsr_pattern_of of)
{
    struct search s = {.pattern = pattern, .of = of};
    look_below(&s, tsr_module_root(e));
    return s.found;
}

static tsr_status refuse(struct tsr_engine *e, const struct tsr_yaml_node *at,
                         enum tsr_pattern_of of, const char *key, const char *model)
{
    const char *what = of == TSR_PATTERN_MODULES ? "module" : "parameter";
    struct search *s = calloc(1, sizeof *s);
    char names[3 * NAME_SIZE] = "";
    if (!s)
        return tsr_no_memory("the nearest names");
    s->pattern = at->text;
    s->of = of;
    s->measures = true;
    look_below(s, tsr_module_root(e));
    for (size_t i = 0, used = 0; i < s->n && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 i ? ", " : "; nearest: ", s->nearest[i]);
    free(s);
    return tsr_node_error(at,
                          "%s: found %s, which matches no %s of %s; allowed: patterns of %s "
                          "names%s%s",
                          key, *at->text ? at->text : "\"\"", what, model, what,
                          of == TSR_PATTERN_MODULES ? ", \"\" is the root" : "", names);
}

static const struct tsr_yaml_node *pattern_at(const struct tsr_yaml_node *list, size_t i)
{
    const struct tsr_yaml_node *item = list->kind == TSR_NODE_SEQ ? list->items[i] : list;
    return item->kind == TSR_NODE_SEQ && item->n > 0 ? item->items[0] : item;
}

tsr_status tsr_check_patterns(struct tsr_engine *e, const struct tsr_yaml_node *list,
                              enum tsr_pattern_of of, enum tsr_pattern_need need, const char *key,
                              const char *model)
{
    size_t n = !list ? 0 : list->kind == TSR_NODE_SEQ ? list->n : list->kind == TSR_NODE_SCALAR;
    bool any = need == TSR_PATTERN_EACH;
    for (size_t i = 0; i < n && !any; i++)
        any = names_something(e, pattern_at(list, i)->text, of);
    for (size_t i = 0; i < n; i++) {
        const struct tsr_yaml_node *at = pattern_at(list, i);
        if (any && need == TSR_PATTERN_SHARED && strchr(at->text, '*'))
            continue;
        if (at->kind == TSR_NODE_SCALAR && !names_something(e, at->text, of))
            return refuse(e, at, of, key, model);
    }
    return TSR_OK;
}
