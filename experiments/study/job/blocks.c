/* blocks.c: finds the parts of a model that strategies talk about: its repeated blocks, and what
 * lies before and after them.
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/build.h"

tsr_status tsr_match_modules(struct tsr_engine *engine, const char *const *patterns, size_t n,
                             struct tsr_modules *out)
{
    size_t found = 0;
    memset(out, 0, sizeof(*out));
    tsr_module_match(engine, patterns, n, NULL, &found);
    out->items = calloc(found ? found : 1, sizeof(struct tsr_module *));
    if (!out->items)
        return tsr_no_memory(NULL);
    out->n = found;
    tsr_module_match(engine, patterns, n, out->items, &out->n);
    return TSR_OK;
}

/* ---- the blocks -------------------------------------------------------------------------- */

/* The container with most children that are containers themselves: a model's list of layers. */
static struct tsr_module *longest_list(struct tsr_module *module, size_t *longest)
{
    struct tsr_module *best = NULL;
    size_t n = tsr_module_n_children(module), inner = 0;
    for (size_t i = 0; i < n; i++)
        inner += tsr_module_n_children(tsr_module_child(module, i)) > 0;
    if (inner > *longest && *tsr_module_fqn(module)) {
        *longest = inner;
        best = module;
    }
    for (size_t i = 0; i < n; i++) {
        struct tsr_module *below = longest_list(tsr_module_child(module, i), longest);
        best = below ? below : best;
    }
    return best;
}

static tsr_status children_of(const struct tsr_module *list, struct tsr_modules *out)
{
    out->n = tsr_module_n_children(list);
    out->items = calloc(out->n ? out->n : 1, sizeof(struct tsr_module *));
    if (!out->items)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < out->n; i++)
        out->items[i] = tsr_module_child(list, i);
    return TSR_OK;
}

tsr_status tsr_find_blocks(const struct tsr_job *job, struct tsr_engine *engine,
                           struct tsr_modules *out)
{
    const char *pattern = job->settings->model_blocks;
    size_t longest = 0;
    memset(out, 0, sizeof(*out));
    if (!pattern && job->model.family == TSR_FAMILY_LLAMA)
        pattern = job->model.llama.names == TSR_NAMES_HF ? "model.layers.*" : "layers.*";
    if (!pattern && job->model.family == TSR_FAMILY_GPT2)
        pattern = job->model.gpt2.names == TSR_NAMES_HF ? "transformer.h.*" : "h.*";
    if (!pattern && job->model.family == TSR_FAMILY_MPT)
        pattern = "transformer.blocks.*";
    if (pattern) {
        TSR_TRY(tsr_match_modules(engine, &pattern, 1, out));
        if (out->n)
            return TSR_OK;
        free(out->items);
        memset(out, 0, sizeof(*out));
        return tsr_node_error(tsr_job_at(job, "model.blocks"),
                              "model.blocks: found %s, which matches no module of %s; allowed: a "
                              "pattern like model.layers.* (`tessera inspect` shows names)",
                              pattern, job->model.name);
    }
    struct tsr_module *list = longest_list(tsr_module_root(engine), &longest);
    if (!list)
        return tsr_node_error(tsr_job_at(job, "model.tree"),
                              "model.blocks: found null, and tree %s has no list of blocks; "
                              "allowed: a pattern of module names",
                              job->model.name);
    return children_of(list, out);
}

/* ---- before and after -------------------------------------------------------------------- */

static bool is_inside(const char *fqn, const char *outer)
{
    size_t n = strlen(outer);
    return !strncmp(fqn, outer, n) && (fqn[n] == 0 || fqn[n] == '.');
}

static bool contains_block(const struct tsr_module *module, const struct tsr_modules *blocks)
{
    const char *fqn = tsr_module_fqn(module);
    for (size_t i = 0; i < blocks->n; i++)
        if (!*fqn || is_inside(tsr_module_fqn(blocks->items[i]), fqn))
            return true;
    return false;
}

static bool owns_params(const struct tsr_module *module, bool *aliases)
{
    bool own = false;
    for (size_t i = 0; i < tsr_module_n_params(module); i++) {
        struct tsr_param_info info = tsr_param_info(tsr_module_param(module, i), module);
        *aliases = *aliases || info.is_alias;
        own = true;
    }
    for (size_t i = 0; i < tsr_module_n_children(module); i++)
        own = owns_params(tsr_module_child(module, i), aliases) || own;
    return own;
}

struct sides {
    const struct tsr_modules *blocks;
    struct tsr_modules *before, *after;
    size_t cap_before, cap_after;
    bool passed; /* the blocks were met */
    bool tied;
};

static bool push(struct tsr_modules *to, size_t *cap, struct tsr_module *module)
{
    return TSR_PUSH(to->items, to->n, *cap, module);
}

static bool walk(struct sides *s, struct tsr_module *module)
{
    for (size_t i = 0; i < tsr_module_n_children(module); i++) {
        struct tsr_module *child = tsr_module_child(module, i);
        bool is_block = false;
        for (size_t k = 0; k < s->blocks->n; k++)
            is_block = is_block || s->blocks->items[k] == child;
        if (is_block) {
            s->passed = true;
        } else if (contains_block(child, s->blocks)) {
            if (!walk(s, child))
                return false;
        } else if (owns_params(child, &s->tied)) {
            bool ok = s->passed ? push(s->after, &s->cap_after, child)
                                : push(s->before, &s->cap_before, child);
            if (!ok)
                return false;
        }
    }
    return true;
}

tsr_status tsr_find_sides(const struct tsr_job *job, struct tsr_engine *engine,
                          const struct tsr_modules *blocks, struct tsr_modules *before,
                          struct tsr_modules *after)
{
    struct sides s = {.blocks = blocks, .before = before, .after = after};
    (void)job;
    memset(before, 0, sizeof(*before));
    memset(after, 0, sizeof(*after));
    bool ok = walk(&s, tsr_module_root(engine));
    /* A tied embedding and head are one parameter: two groups would each keep a copy of it. */
    for (size_t i = 0; ok && s.tied && i < before->n; i++)
        ok = push(after, &s.cap_after, before->items[i]);
    if (s.tied)
        before->n = 0;
    if (ok)
        return TSR_OK;
    free(before->items);
    free(after->items);
    memset(before, 0, sizeof(*before));
    memset(after, 0, sizeof(*after));
    return tsr_no_memory(NULL);
}
