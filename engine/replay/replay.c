/* replay.c: the cache of kept steps: which step follows which state, and what comes next.
 *
 * Steady states come alone or in cycles of a few (bucketed DDP has two). The engine itself stays in
 * the state in which replaying began, until the cycle is back there: then what it keeps is
 * renumbered. In between the cache is ahead of the engine, which makes up for it, when it has to,
 * by steps that nobody executes.
 */
#include "engine/replay/replay.h"

#include <stdlib.h>
#include <string.h>

#include "engine/replay/replay_impl.h"
#include "engine/step/step_impl.h"

tsr_status tsr_step_cache_create(struct tsr_engine *engine, struct tsr_step_cache **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return tsr_no_memory("a cache of steps");
    (*out)->engine = engine;
    return TSR_OK;
}

static void forget(struct tsr__step_entry *entry)
{
    tsr__kept_step_fini(&entry->step);
    *entry = (struct tsr__step_entry){0};
}

void tsr_step_cache_destroy(struct tsr_step_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < TSR__KEPT_STEPS; i++)
        forget(&cache->entries[i]);
    tsr__walk_fini(&cache->walk);
    tsr__ids_fini(&cache->ids);
    tsr__ids_fini(&cache->after);
    free(cache);
}

/* ---- where the engine is --------------------------------------------------------------------- */

static bool same_ids(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b)
{
    return n_a == n_b && (n_a == 0 || !memcmp(a, b, n_a * sizeof *a));
}

/* The engine makes up for what the cache is ahead. */
static tsr_status catch_up(struct tsr_step_cache *cache)
{
    const struct tsr_state_walk *walk = &cache->walk;
    const struct tsr__ids *ids = &cache->ids;
    uint32_t n = cache->n_ahead;
    if (n == 0)
        return TSR_OK;
    cache->n_ahead = 0;
    for (uint32_t i = 0; i < n; i++)
        TSR_TRY(tsr__repeat_step(cache->engine, cache->ahead[i]));
    TSR_TRY(tsr__walk_state(cache->engine, &cache->walk));
    if (walk->digest != cache->digest ||
        !same_ids(walk->ids, walk->n_buffers, ids->buffers, ids->n_buffers) ||
        !same_ids(walk->events, walk->n_events, ids->events, ids->n_events))
        return tsr_fail(TSR_EDEFECT, "steps that were replayed are not those of the engine");
    return TSR_OK;
}

/* Looks where the next step begins. */
static tsr_status look(struct tsr_step_cache *cache)
{
    TSR_TRY(tsr__walk_state(cache->engine, &cache->walk));
    if (cache->n_ahead == 0) {
        cache->digest = cache->walk.digest;
        return tsr__ids_of(&cache->ids, &cache->walk);
    }
    if (cache->walk.digest != cache->real)
        return tsr_fail(TSR_EDEFECT, "the engine was used between steps that are replayed");
    return TSR_OK;
}

tsr_status tsr_step_cache_settle(struct tsr_step_cache *cache)
{
    if (cache->n_ahead == 0)
        return TSR_OK;
    TSR_TRY(look(cache));
    return catch_up(cache);
}

/* What the engine keeps gets the numbers of the state that it is in again. */
static void come_round(struct tsr_step_cache *cache, uint32_t iteration)
{
    struct tsr_engine *e = cache->engine;
    const struct tsr_state_walk *walk = &cache->walk;
    for (size_t i = 0; i < walk->n_buffers; i++)
        *walk->buffers[i] = cache->ids.buffers[i];
    for (size_t i = 0; i < walk->n_places; i++)
        *walk->places[i].event = cache->ids.events[walk->places[i].number];
    e->emit.next_buffer = cache->ids.next_buffer;
    e->emit.next_event = cache->ids.next_event - 1;
    e->iteration = iteration;
    e->origin.iteration = (uint16_t)iteration;
    e->step->optimizer_steps += cache->n_ahead;
    cache->n_ahead = 0;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* The entry of the state, or the one that was used longest ago, made its. */
static struct tsr__step_entry *entry_of(struct tsr_step_cache *cache, bool *is_new)
{
    struct tsr__step_entry *oldest = &cache->entries[0], *found = NULL;
    for (int i = 0; i < TSR__KEPT_STEPS; i++) {
        struct tsr__step_entry *entry = &cache->entries[i];
        if (entry->digest == cache->digest)
            found = entry;
        if (entry->last_use < oldest->last_use)
            oldest = entry;
    }
    *is_new = !found;
    if (!found) {
        found = oldest;
        forget(found);
        found->digest = cache->digest;
    }
    found->last_use = ++cache->n_steps;
    return found;
}

static tsr_status refuse(struct tsr_step_cache *cache, struct tsr__step_entry *entry)
{
    tsr__kept_step_fini(&entry->step);
    entry->what = TSR__REFUSED;
    cache->stats.refused++;
    return TSR_OK;
}

static tsr_status record(struct tsr_step_cache *cache, struct tsr__step_entry *entry,
                         uint32_t iteration)
{
    bool is_kept;
    TSR_TRY(tsr__record_step(cache->engine, iteration, &entry->step));
    TSR_TRY(tsr__walk_state(cache->engine, &cache->walk));
    TSR_TRY(tsr__keep_step(&entry->step, &cache->ids, &cache->walk, &is_kept));
    if (!is_kept || cache->walk.digest == 0)
        return refuse(cache, entry);
    entry->next = cache->walk.digest;
    entry->what = TSR__RECORDED;
    return TSR_OK;
}

static tsr_status prove(struct tsr_step_cache *cache, struct tsr__step_entry *entry,
                        uint32_t iteration)
{
    const struct tsr_state_walk *walk = &cache->walk;
    const struct tsr__ids *after = &cache->after;
    bool is_same;
    TSR_TRY(tsr__renumber_step(&entry->step, &cache->ids, iteration, &cache->after));
    TSR_TRY(tsr__compare_step(cache->engine, iteration, &entry->step, &is_same));
    TSR_TRY(tsr__walk_state(cache->engine, &cache->walk));
    if (!is_same || walk->digest != entry->next ||
        !same_ids(walk->ids, walk->n_buffers, after->buffers, after->n_buffers) ||
        !same_ids(walk->events, walk->n_events, after->events, after->n_events))
        return refuse(cache, entry);
    entry->what = TSR__PROVEN;
    return TSR_OK;
}

static tsr_status hand_out(struct tsr_executor *x, const struct tsr_program *program, uint64_t key)
{
    const struct tsr_executor_ops *ops = x->ops;
    if (ops->size >= offsetof(struct tsr_executor_ops, replay) + sizeof ops->replay && ops->replay)
        return ops->replay(x, program, key);
    for (size_t i = 0; i < program->n_instrs; i++)
        TSR_TRY(ops->submit(x, &program->instrs[i]));
    return TSR_OK;
}

static tsr_status replay(struct tsr_step_cache *cache, struct tsr__step_entry *entry,
                         uint32_t iteration)
{
    struct tsr_engine *e = cache->engine;
    if (cache->n_ahead == 0)
        cache->real = cache->digest;
    TSR_TRY(tsr__renumber_step(&entry->step, &cache->ids, iteration, &cache->after));
    tsr_status status = hand_out(e->config.executor, &entry->step.program, entry->digest);
    if (status != TSR_OK) {
        tsr__set_error(e, status);
        return status;
    }
    struct tsr__ids ids = cache->ids;
    cache->ids = cache->after;
    cache->after = ids;
    cache->digest = entry->next;
    cache->ahead[cache->n_ahead++] = iteration;
    cache->stats.replayed++;
    if (cache->digest == cache->real)
        come_round(cache, iteration);
    return TSR_OK;
}

static tsr_status emit(struct tsr_step_cache *cache, struct tsr__step_entry *entry, bool is_new,
                       uint32_t iteration)
{
    cache->stats.emitted++;
    if (is_new || entry->what == TSR__REFUSED)
        return tsr_step_run(cache->engine, iteration);
    if (entry->what == TSR__SEEN)
        return record(cache, entry, iteration);
    return prove(cache, entry, iteration);
}

tsr_status tsr_step_run_cached(struct tsr_step_cache *cache, uint32_t iteration)
{
    bool is_new = true;
    struct tsr__step_entry *entry = NULL;
    TSR_TRY(look(cache));
    if (cache->digest)
        entry = entry_of(cache, &is_new);
    if (entry && entry->what == TSR__PROVEN && cache->n_ahead < TSR__MOST_AHEAD)
        return replay(cache, entry, iteration);
    TSR_TRY(catch_up(cache));
    if (entry && entry->what == TSR__PROVEN)
        return replay(cache, entry, iteration);
    return emit(cache, entry, is_new, iteration);
}
