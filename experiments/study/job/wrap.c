/* wrap.c: applies `checkpoint`, `wrap`, `reshard_after_forward` and the prefetch lists.
 *
 * Wrapping goes bottom-up: blocks, then what has a group of its own beside them, then the root,
 * which takes what is left (FSDP2's rule).
 */
#include <stdlib.h>
#include <string.h>

#include "experiments/study/job/build.h"
#include "experiments/study/job/patterns.h"

/* The wrapped calls without the root: what prefetch lists are made of. */
struct calls {
    struct tsr_module **items; /* first module of each call */
    size_t n, cap;
};

struct wrapper {
    const struct tsr_job *job;
    struct tsr_engine *engine;
    struct calls calls;
};

/* Whether block `at`, from 1, is checkpointed, of which *n are already. A share p < 1 spreads them
 * as fms-fsdp does: block i is the next one as soon as i p >= n + 1/2. */
static bool is_checkpointed(const struct tsr_settings *s, uint64_t at, uint64_t *n)
{
    uint64_t every = s->ckpt_every == TSR_CKPT_SELECTIVE_OP ? 1 : s->ckpt_every;
    uint64_t first = s->ckpt_first ? s->ckpt_first : every;
    bool is = s->ckpt_share < 1 ? (double)at * s->ckpt_share >= (double)*n + 0.5
                                : at >= first && (at - first) % every == 0;
    if (!is || (s->ckpt_count && *n == s->ckpt_count))
        return false;
    ++*n;
    return true;
}

tsr_status tsr_apply_checkpoint(const struct tsr_job *job, struct tsr_engine *engine)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_modules blocks = {0};
    uint64_t n = 0;
    bool selective = s->ckpt_every == TSR_CKPT_SELECTIVE_OP;
    if (!s->ckpt_every)
        return TSR_OK;
    TSR_TRY(tsr_find_blocks(job, engine, &blocks));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < blocks.n && status == TSR_OK; i++) {
        if (!is_checkpointed(s, i + 1, &n))
            continue;
        status = selective ? tsr_checkpoint_selective(engine, blocks.items[i])
                           : tsr_checkpoint(engine, blocks.items[i],
                                            s->ckpt_hooks == TSR_HOOKS_OUTSIDE, s->ckpt_early_stop);
    }
    free(blocks.items);
    if (status != TSR_OK)
        return tsr_node_wrap_error(tsr_job_at(job, "checkpoint.every"), status, "checkpoint");
    return TSR_OK;
}

/* ---- one call ---------------------------------------------------------------------------- */

/* The engine's complaint about an int is worded like PyTorch's; the user's key goes before it. */
static tsr_status explain(const struct wrapper *w, const struct tsr_wrap_entry *entry,
                          const struct tsr_reshard_value *reshard, tsr_status status)
{
    bool is_int = reshard->kind == TSR_RESHARD_INT && w->job->settings->api == TSR_API_FULLY_SHARD;
    const struct tsr_yaml_node *at = tsr_job_at(w->job, is_int ? "reshard_after_forward" : "wrap");
    if (entry && (!is_int || entry->has_reshard))
        at = entry->at;
    if (is_int) {
        char what[160];
        uint32_t ranks = w->job->mesh.shape[w->job->mesh.n_dims - 1];
        snprintf(what, sizeof what,
                 "strategy %.64s: reshard_after_forward: found %lld; allowed: null, true, false, "
                 "or a divisor of %u",
                 w->job->strategy->name, (long long)reshard->value, ranks);
        return tsr_node_wrap_error(at, status, what);
    }
    char what[128];
    snprintf(what, sizeof what, "strategy %.96s", w->job->strategy->name);
    return tsr_node_wrap_error(at, status, what);
}

static void fill_options(const struct tsr_settings *s, const struct tsr_reshard_value *reshard,
                         struct tsr_wrap_options *out)
{
    memset(out, 0, sizeof(*out));
    out->reshard = reshard->kind;
    out->reshard_int = reshard->value;
    out->mp.param = (tsr_dtype)s->param;
    out->mp.reduce = (tsr_dtype)s->reduce;
    out->mp.output = (tsr_dtype)s->output;
    out->mp.no_cast_inputs = !s->cast_inputs;
    out->offload = (enum tsr_offload)s->offload;
    out->mirror = s->mirror;
    out->direct = s->direct_gather;
    out->folds = s->folded_scale;
}

/* FSDP1 wraps modules one by one. */
static tsr_status wrap_fsdp1(struct wrapper *w, struct tsr_module *const *modules, size_t n,
                             const struct tsr_wrap_entry *entry,
                             const struct tsr_reshard_value *reshard)
{
    const struct tsr_settings *s = w->job->settings;
    struct tsr_fsdp1_options options = {.keep_after_forward = reshard->kind == TSR_RESHARD_FALSE,
                                        .mp = {.param = (tsr_dtype)s->param,
                                               .reduce = (tsr_dtype)s->reduce,
                                               .no_cast_inputs = !s->cast_inputs},
                                        .backward_prefetch =
                                            (enum tsr_fsdp1_prefetch)s->fsdp1_backward_prefetch,
                                        .forward_prefetch = s->fsdp1_forward_prefetch,
                                        .no_limit = !s->fsdp1_limit_all_gathers};
    if (entry && (entry->group || reshard->kind == TSR_RESHARD_INT))
        return tsr_node_error(entry->at,
                              "wrap: found %s beside api: fsdp1; allowed: modules that are "
                              "wrapped one by one, resharded or not",
                              entry->group ? "group: true" : "an integer to reshard to");
    for (size_t i = 0; i < n; i++) {
        tsr_status status = tsr_fsdp1(w->engine, modules[i], &options);
        if (status != TSR_OK)
            return explain(w, entry, reshard, status);
    }
    return TSR_OK;
}

static tsr_status wrap(struct wrapper *w, struct tsr_module *const *modules, size_t n,
                       const struct tsr_wrap_entry *entry)
{
    const struct tsr_settings *s = w->job->settings;
    const struct tsr_reshard_value *reshard =
        entry && entry->has_reshard ? &entry->reshard : &s->reshard;
    struct tsr_wrap_options options;
    if (s->api == TSR_API_FSDP1)
        return wrap_fsdp1(w, modules, n, entry, reshard);
    fill_options(s, reshard, &options);
    tsr_status status = s->api == TSR_API_REPLICATE
                            ? tsr_replicate(w->engine, modules, n, &options)
                            : tsr_fully_shard(w->engine, modules, n, &options);
    if (status != TSR_OK)
        return explain(w, entry, reshard, status);
    if (modules[0] != tsr_module_root(w->engine) &&
        !TSR_PUSH(w->calls.items, w->calls.n, w->calls.cap, modules[0]))
        return tsr_no_memory(NULL);
    return TSR_OK;
}

/* ---- keywords and lists ------------------------------------------------------------------ */

static tsr_status wrap_root(struct wrapper *w)
{
    struct tsr_module *root = tsr_module_root(w->engine);
    return wrap(w, &root, 1, NULL);
}

static tsr_status wrap_each(struct wrapper *w, const struct tsr_modules *modules)
{
    for (size_t i = 0; i < modules->n; i++)
        TSR_TRY(wrap(w, &modules->items[i], 1, NULL));
    return TSR_OK;
}

static tsr_status wrap_blocks(struct wrapper *w, bool with_sides)
{
    struct tsr_modules blocks = {0}, before = {0}, after = {0};
    TSR_TRY(tsr_find_blocks(w->job, w->engine, &blocks));
    tsr_status status = TSR_OK;
    if (with_sides)
        TSR_GOTO(done, tsr_find_sides(w->job, w->engine, &blocks, &before, &after));
    if (before.n)
        TSR_GOTO(done, wrap(w, before.items, before.n, NULL));
    TSR_GOTO(done, wrap_each(w, &blocks));
    if (after.n)
        TSR_GOTO(done, wrap(w, after.items, after.n, NULL));
    TSR_GOTO(done, wrap_root(w));
done:
    free(blocks.items);
    free(before.items);
    free(after.items);
    return status;
}

static tsr_status wrap_entry(struct wrapper *w, const struct tsr_wrap_entry *entry)
{
    struct tsr_modules modules = {0};
    TSR_TRY(tsr_check_patterns(w->engine, tsr_node_get(entry->at, "modules"), TSR_PATTERN_MODULES,
                               TSR_PATTERN_SHARED, "wrap.modules", w->job->model.name));
    TSR_TRY(tsr_match_modules(w->engine, entry->modules, entry->n_modules, &modules));
    tsr_status status = TSR_OK;
    if (entry->group)
        status = wrap(w, modules.items, modules.n, entry);
    for (size_t i = 0; status == TSR_OK && !entry->group && i < modules.n; i++)
        status = wrap(w, &modules.items[i], 1, entry);
    free(modules.items);
    return status;
}

static tsr_status wrap_all(struct wrapper *w)
{
    const struct tsr_wrap_value *value = &w->job->settings->wrap;
    switch (value->kind) {
    case TSR_WRAP_BLOCK:
        return wrap_blocks(w, false);
    case TSR_WRAP_BLOCK_EMBED_HEAD:
        return wrap_blocks(w, true);
    case TSR_WRAP_ROOT:
        return wrap_root(w);
    case TSR_WRAP_LIST:
        break;
    }
    for (size_t i = 0; i < value->n_entries; i++)
        TSR_TRY(wrap_entry(w, &value->entries[i]));
    return TSR_OK;
}

/* ---- prefetch ---------------------------------------------------------------------------- */

static bool has_call(const struct calls *calls, const struct tsr_module *module)
{
    for (size_t i = 0; i < calls->n; i++)
        if (calls->items[i] == module)
            return true;
    return false;
}

/* A wrap list may name modules in any order; prefetch goes in that of the model. */
static tsr_status sort_calls(struct wrapper *w)
{
    static const char *const all[] = {"**"};
    struct tsr_modules modules = {0};
    size_t n = 0;
    TSR_TRY(tsr_match_modules(w->engine, all, 1, &modules));
    for (size_t i = 0; i < modules.n; i++)
        if (has_call(&w->calls, modules.items[i]))
            modules.items[n++] = modules.items[i];
    TSR_CHECK(n == w->calls.n);
    memcpy(w->calls.items, modules.items, n * sizeof(struct tsr_module *));
    free(modules.items);
    return TSR_OK;
}

static tsr_status set_prefetch(struct wrapper *w)
{
    const struct tsr_settings *s = w->job->settings;
    struct tsr_module *list[1024];
    for (size_t i = 0; i < w->calls.n; i++) {
        size_t n_forward = 0, n_backward = 0;
        while (n_forward < s->forward_prefetch && i + n_forward + 1 < w->calls.n) {
            list[n_forward] = w->calls.items[i + n_forward + 1];
            n_forward++;
        }
        if (n_forward)
            TSR_TRY(tsr_set_forward_prefetch(w->engine, w->calls.items[i], list, n_forward));
        while (n_backward < s->backward_prefetch && n_backward < i) {
            list[n_backward] = w->calls.items[i - n_backward - 1];
            n_backward++;
        }
        if (n_backward)
            TSR_TRY(tsr_set_backward_prefetch(w->engine, w->calls.items[i], list, n_backward));
    }
    return TSR_OK;
}

static tsr_status set_methods(struct wrapper *w)
{
    tsr_status status;
    if (w->calls.n)
        TSR_GOTO(failed, sort_calls(w));
    TSR_GOTO(failed, set_prefetch(w));
    if (!w->job->settings->reshard_after_backward)
        TSR_GOTO(failed, tsr_set_reshard_after_backward(w->engine, tsr_module_root(w->engine),
                                                        false, true));
    return TSR_OK;
failed:
    return tsr_node_wrap_error(w->job->strategy->at, status, w->job->strategy->name);
}

static tsr_status apply_ddp(const struct tsr_job *job, struct tsr_engine *engine)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_ddp_options options = {.bucket_cap_mb = s->ddp_bucket_mb,
                                      .find_unused = s->ddp_find_unused,
                                      .static_graph = s->ddp_static_graph,
                                      .gradient_as_bucket_view = s->ddp_view};
    options.mp.param = (tsr_dtype)s->param;
    options.mp.reduce = (tsr_dtype)s->reduce;
    options.mp.output = (tsr_dtype)s->output;
    options.mp.no_cast_inputs = !s->cast_inputs;
    tsr_status status = tsr_ddp(engine, &options);
    return status == TSR_OK ? TSR_OK
                            : tsr_node_wrap_error(job->strategy->at, status, job->strategy->name);
}

tsr_status tsr_apply_wrap(const struct tsr_job *job, struct tsr_engine *engine)
{
    if (job->settings->api == TSR_API_DDP)
        return apply_ddp(job, engine);
    struct wrapper w = {.job = job, .engine = engine};
    tsr_status status = wrap_all(&w);
    if (status == TSR_OK && job->settings->api != TSR_API_FSDP1)
        status = set_methods(&w);
    free(w.calls.items);
    return status;
}
