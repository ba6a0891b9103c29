/* memory_traced.c: the model of a scenario from its trace, wrapped by patterns of module names. */
#include "tests/player/memory/memory_traced.h"

#include <stdlib.h>
#include <string.h>

#include "sim/base/text.h"

/* ---- the trace ------------------------------------------------------------------------------- */

static const char *checkpoint_name(const struct tsr_memory_scenario *s)
{
    static const char *const names[] = {[TSR_AC_NONE] = "none",
                                        [TSR_AC_FULL] = "full",
                                        [TSR_AC_EVERY2] = "every2",
                                        [TSR_AC_SELECTIVE_OP] = "selective"};
    return names[s->ac];
}

static const struct tsr_trace_variant *find_variant(const struct tsr_memory_scenario *s)
{
    for (size_t i = 0; i < s->trace.n_variants; i++)
        if (!strcmp(s->trace.variants[i].checkpoint, checkpoint_name(s)))
            return &s->trace.variants[i];
    return NULL;
}

tsr_status tsr_memory_traced_load(struct tsr_memory_scenario *s, const char *path)
{
    char names[256];
    TSR_TRY(tsr_traced_file_load(path, &s->trace));
    s->is_traced = true;
    s->variant = find_variant(s);
    if (s->variant) {
        tsr_traced_file_choose(&s->trace, s->variant);
        return TSR_OK;
    }
    tsr_traced_file_list(&s->trace, names, sizeof names);
    return tsr_fail(TSR_ECONFIG, "%s: key \"ac\": found %s; allowed: what %s has: %s", s->path,
                    checkpoint_name(s), path, tsr_show(names).text);
}

/* ---- wrapping -------------------------------------------------------------------------------- */

struct wrapped {
    struct tsr_engine *e;
    const char **patterns;
    size_t n_patterns, n;
    struct tsr_module **modules; /* in module order */
};

static tsr_status match(struct wrapped *w, const json_t *patterns)
{
    w->n_patterns = json_array_size(patterns);
    w->patterns = calloc(w->n_patterns + 1, sizeof *w->patterns);
    if (!w->patterns)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < w->n_patterns; i++)
        w->patterns[i] = json_string_value(json_array_get(patterns, i));
    tsr_module_match(w->e, w->patterns, w->n_patterns, NULL, &w->n);
    w->modules = calloc(w->n + 1, sizeof(struct tsr_module *));
    if (!w->modules)
        return tsr_no_memory(NULL);
    tsr_module_match(w->e, w->patterns, w->n_patterns, w->modules, &w->n);
    return TSR_OK;
}

static size_t depth_of(const struct tsr_module *m)
{
    size_t depth = 0;
    for (const char *c = tsr_module_fqn(m); *c; c++)
        depth += *c == '.';
    return depth;
}

static tsr_status shard(const struct tsr_memory_scenario *s, struct tsr_engine *e,
                        struct tsr_module *module, const struct tsr_wrap_options *options)
{
    return s->is_replicate ? tsr_replicate(e, &module, 1, options)
                           : tsr_fully_shard(e, &module, 1, options);
}

/* The deepest first, otherwise in module order; then the root. */
static tsr_status shard_all(const struct tsr_memory_scenario *s, const struct wrapped *w)
{
    size_t deepest = 0;
    for (size_t i = 0; i < w->n; i++)
        deepest = tsr_max_u64(deepest, depth_of(w->modules[i]));
    for (size_t depth = deepest + 1; depth-- > 0;)
        for (size_t i = 0; i < w->n; i++)
            if (depth_of(w->modules[i]) == depth && *tsr_module_fqn(w->modules[i]))
                TSR_TRY(shard(s, w->e, w->modules[i], &s->options));
    struct tsr_wrap_options root = s->options;
    root.reshard = s->root_reshard;
    root.reshard_int = s->root_reshard_int;
    return shard(s, w->e, tsr_module_root(w->e), &root);
}

tsr_status tsr_memory_traced_build(const struct tsr_memory_scenario *s, struct tsr_engine *e)
{
    struct wrapped w = {.e = e};
    tsr_status status;
    TSR_TRY(tsr_model_traced(e, &s->trace.model));
    TSR_GOTO(done, match(&w, json_object_get(s->object, "wrap")));
    TSR_GOTO(done, shard_all(s, &w));
    TSR_GOTO(done, tsr_memory_set_prefetch(s, e, w.modules, w.n));
done:
    free(w.modules);
    free(w.patterns);
    return status;
}
