/* wrapping.c: from keywords, patterns and counts to the modules of a model (wrapping.h).
 *
 * Wrapping goes bottom-up: blocks, then what has a group of its own beside them, then the root,
 * which takes what is left (FSDP2's rule).
 */
#include "experiments/study/job/wrapping.h"

#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/settings.h"
#include "experiments/study/job/patterns.h"
#include "experiments/study/model/trace_file.h"

struct resolver {
    const struct tsr_job *job;
    struct tsr_engine *engine;
    struct tsr_wrapping *out;
};

/* ---- checkpointed blocks --------------------------------------------------------------------- */

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

/* Of a traced model: what the trace was made with. */
static tsr_status take_traced(struct resolver *r)
{
    const struct tsr_model *m = &r->job->model;
    struct tsr_modules *out = &r->out->checkpointed;
    size_t cap = 0;
    for (size_t i = 0; i < m->trace->model.n_modules; i++)
        if (m->variant->checkpointed[i] &&
            !TSR_PUSH(out->items, out->n, cap,
                      tsr_module_find(r->engine, m->trace->model.modules[i].name)))
            return tsr_no_memory(NULL);
    return TSR_OK;
}

static tsr_status find_checkpointed(struct resolver *r)
{
    struct tsr_modules *blocks = &r->out->checkpointed;
    uint64_t n = 0;
    size_t kept = 0;
    if (r->job->model.variant)
        return take_traced(r);
    if (!r->job->settings->ckpt_every)
        return TSR_OK;
    TSR_TRY(tsr_find_blocks(r->job, r->engine, blocks));
    for (size_t i = 0; i < blocks->n; i++)
        if (is_checkpointed(r->job->settings, i + 1, &n))
            blocks->items[kept++] = blocks->items[i];
    blocks->n = kept;
    return TSR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Takes a copy of the array. */
static tsr_status add_call(struct resolver *r, struct tsr_module *const *modules, size_t n,
                           const struct tsr_wrap_entry *entry)
{
    struct tsr_wrapping *out = r->out;
    struct tsr_wrap_call call = {.entry = entry, .reshard = r->job->settings->reshard};
    if (entry && entry->has_reshard)
        call.reshard = entry->reshard;
    call.modules.items = malloc((n ? n : 1) * sizeof *call.modules.items);
    if (!call.modules.items || !TSR_PUSH(out->calls, out->n_calls, out->cap_calls, call)) {
        free(call.modules.items);
        return tsr_no_memory(NULL);
    }
    memcpy(call.modules.items, modules, n * sizeof *modules);
    out->calls[out->n_calls - 1].modules.n = n;
    return TSR_OK;
}

static tsr_status add_each(struct resolver *r, const struct tsr_modules *modules,
                           const struct tsr_wrap_entry *entry)
{
    for (size_t i = 0; i < modules->n; i++)
        TSR_TRY(add_call(r, &modules->items[i], 1, entry));
    return TSR_OK;
}

static tsr_status add_root(struct resolver *r)
{
    struct tsr_module *root = tsr_module_root(r->engine);
    return add_call(r, &root, 1, NULL);
}

static tsr_status add_blocks(struct resolver *r, bool with_sides)
{
    struct tsr_modules blocks = {0}, before = {0}, after = {0};
    TSR_TRY(tsr_find_blocks(r->job, r->engine, &blocks));
    tsr_status status = TSR_OK;
    if (with_sides)
        TSR_GOTO(done, tsr_find_sides(r->job, r->engine, &blocks, &before, &after));
    if (before.n)
        TSR_GOTO(done, add_call(r, before.items, before.n, NULL));
    TSR_GOTO(done, add_each(r, &blocks, NULL));
    if (after.n)
        TSR_GOTO(done, add_call(r, after.items, after.n, NULL));
    TSR_GOTO(done, add_root(r));
done:
    free(blocks.items);
    free(before.items);
    free(after.items);
    return status;
}

static tsr_status add_entry(struct resolver *r, const struct tsr_wrap_entry *entry)
{
    struct tsr_modules modules = {0};
    TSR_TRY(tsr_check_patterns(r->engine, tsr_node_get(entry->at, "modules"), TSR_PATTERN_MODULES,
                               TSR_PATTERN_SHARED, "wrap.modules", r->job->model.name));
    TSR_TRY(tsr_match_modules(r->engine, entry->modules, entry->n_modules, &modules));
    tsr_status status =
        entry->group ? add_call(r, modules.items, modules.n, entry) : add_each(r, &modules, entry);
    free(modules.items);
    return status;
}

static bool has_inside(const struct tsr_module *outer, const struct tsr_module *inner)
{
    const char *of = tsr_module_fqn(outer), *fqn = tsr_module_fqn(inner);
    size_t n = strlen(of);
    return n == 0 || (!strncmp(fqn, of, n) && fqn[n] == '.');
}

/* PyTorch's root of a forward is one module: a group of several needs a wrapped module around it.
 */
static tsr_status check_root(const struct resolver *r)
{
    const struct tsr_wrapping *w = r->out;
    for (size_t i = 0; i < w->n_calls; i++) {
        const struct tsr_modules *group = &w->calls[i].modules;
        bool has_root = group->n < 2;
        for (size_t k = 0; k < w->n_calls && !has_root; k++)
            has_root = w->calls[k].modules.n == 1 &&
                       has_inside(w->calls[k].modules.items[0], group->items[0]);
        if (!has_root)
            return tsr_node_error(w->calls[i].entry->at,
                                  "wrap: found a group of %zu modules, %s and others, and no "
                                  "wrapped module around them; allowed: such a group beside "
                                  "{modules: [\"\"]}, the root",
                                  group->n, tsr_module_fqn(group->items[0]));
    }
    return TSR_OK;
}

static tsr_status find_calls(struct resolver *r)
{
    const struct tsr_wrap_value *value = &r->job->settings->wrap;
    if (r->job->settings->api == TSR_API_DDP)
        return TSR_OK;
    switch (value->kind) {
    case TSR_WRAP_BLOCK:
        return add_blocks(r, false);
    case TSR_WRAP_BLOCK_EMBED_HEAD:
        return add_blocks(r, true);
    case TSR_WRAP_ROOT:
        return add_root(r);
    case TSR_WRAP_LIST:
        break;
    }
    for (size_t i = 0; i < value->n_entries; i++)
        TSR_TRY(add_entry(r, &value->entries[i]));
    return check_root(r);
}

/* ---- units ----------------------------------------------------------------------------------- */

static bool begins_a_call(const struct tsr_wrapping *w, const struct tsr_module *module)
{
    for (size_t i = 0; i < w->n_calls; i++)
        if (w->calls[i].modules.n && w->calls[i].modules.items[0] == module)
            return true;
    return false;
}

/* A wrap list may name modules in any order; prefetch goes in that of the model. */
static tsr_status find_units(struct resolver *r)
{
    static const char *const all[] = {"**"};
    struct tsr_modules *units = &r->out->units;
    size_t n = 0;
    TSR_TRY(tsr_match_modules(r->engine, all, 1, units));
    for (size_t i = 0; i < units->n; i++)
        if (units->items[i] != tsr_module_root(r->engine) && begins_a_call(r->out, units->items[i]))
            units->items[n++] = units->items[i];
    units->n = n;
    return TSR_OK;
}

size_t tsr_units_ahead(const struct tsr_wrapping *wrapping, const struct tsr_settings *s, size_t i,
                       bool backward, struct tsr_module **out)
{
    const struct tsr_modules *units = &wrapping->units;
    uint64_t most = backward ? s->backward_prefetch : s->forward_prefetch;
    size_t left = backward ? i : units->n - i - 1;
    size_t n = most < left ? (size_t)most : left;
    for (size_t k = 0; k < n; k++)
        out[k] = units->items[backward ? i - k - 1 : i + k + 1];
    return n;
}

tsr_status tsr_wrapping_of(const struct tsr_job *job, struct tsr_engine *engine,
                           struct tsr_wrapping *out)
{
    struct resolver r = {job, engine, out};
    memset(out, 0, sizeof *out);
    tsr_status status = find_checkpointed(&r);
    if (status == TSR_OK)
        status = find_calls(&r);
    if (status == TSR_OK)
        status = find_units(&r);
    if (status != TSR_OK)
        tsr_wrapping_fini(out);
    return status;
}

void tsr_wrapping_fini(struct tsr_wrapping *wrapping)
{
    for (size_t i = 0; i < wrapping->n_calls; i++)
        free(wrapping->calls[i].modules.items);
    free(wrapping->calls);
    free(wrapping->checkpointed.items);
    free(wrapping->units.items);
    memset(wrapping, 0, sizeof *wrapping);
}
