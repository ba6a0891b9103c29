/* replay.c: kept steps, and the cache of them: which step follows which state, and what comes next.
 *
 * A kept program names buffers and events by codes: those that it makes by their distance from the
 * first new number, those that were there before by their number in the walk over the state. So a
 * replay is one pass that writes numbers.
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

/* ---- one kept step --------------------------------------------------------------------------- */

/* Recorded, its numbers made codes, compared, and made numbers again. */

/* Numbers of live buffers and events, by their numbers in the walk over a state, and the next ones
 * that are given. */
struct tsr__ids {
    size_t n_buffers, n_events, cap_buffers, cap_events;
    uint32_t *buffers, *events;
    uint32_t next_buffer, next_event;
};

struct tsr__kept_step {
    struct tsr_program program;
    uint32_t first_buffer, first_event; /* the first numbers that it gave */
    uint32_t n_new_buffers, n_new_events;
    size_t n_codes, cap_codes;
    uint32_t *codes; /* of the numbers in the program, in order */
    /* of what is live after it, by number of the walk */
    size_t n_buffers, n_events;
    uint32_t *buffers, *events; /* codes */
};

/* A code: a new number less the first one, or BEFORE and the number in the walk. */
#define BEFORE UINT32_C(0x80000000)

/* ---- numbers of a state ---------------------------------------------------------------------- */

static bool copy_ids(uint32_t **to, size_t *n_to, size_t *cap, const uint32_t *from, size_t n)
{
    while (*cap < n)
        if (!tsr_grow(to, *cap, cap, sizeof **to))
            return false;
    if (n > 0)
        memcpy(*to, from, n * sizeof **to);
    *n_to = n;
    return true;
}

static tsr_status tsr__ids_of(struct tsr__ids *ids, const struct tsr_state_walk *walk)
{
    ids->next_buffer = walk->engine->emit.next_buffer;
    ids->next_event = walk->engine->emit.next_event + 1;
    if (copy_ids(&ids->buffers, &ids->n_buffers, &ids->cap_buffers, walk->ids, walk->n_buffers) &&
        copy_ids(&ids->events, &ids->n_events, &ids->cap_events, walk->events, walk->n_events))
        return TSR_OK;
    return tsr_no_memory("numbers of live buffers");
}

static void tsr__ids_fini(struct tsr__ids *ids)
{
    free(ids->buffers);
    free(ids->events);
    *ids = (struct tsr__ids){0};
}

/* ---- watching a step ------------------------------------------------------------------------- */

/* Stands before the engine's executor while a step is emitted. */
struct watch {
    struct tsr_executor base;
    struct tsr_executor *to;          /* NULL: nobody */
    struct tsr_program *into;         /* NULL: it is not recorded */
    const struct tsr_program *expect; /* NULL: it is not compared */
    size_t n;
    bool is_same;
};

static bool same_work(const struct tsr_work *a, const struct tsr_work *b)
{
    if (!a || !b)
        return a == b;
    return a->op == b->op && a->dtype == b->dtype && a->causal == b->causal &&
           a->recompute == b->recompute && a->compiled == b->compiled &&
           !strcmp(a->name, b->name) && a->flops == b->flops && a->model_flops == b->model_flops &&
           a->bytes_read == b->bytes_read && a->bytes_written == b->bytes_written &&
           !memcmp(a->dims, b->dims, sizeof a->dims) && a->constants[0] == b->constants[0] &&
           a->constants[1] == b->constants[1] && a->n_args == b->n_args &&
           (a->n_args == 0 || !memcmp(a->args, b->args, a->n_args * sizeof *a->args));
}

static bool same_operands(const struct tsr_instr *a, const struct tsr_instr *b)
{
    if (a->n_operands != b->n_operands)
        return false;
    for (uint32_t i = 0; i < a->n_operands; i++) {
        const struct tsr_operand *x = &a->operands[i], *y = &b->operands[i];
        if (x->buffer != y->buffer || x->access != y->access || x->space != y->space ||
            x->dtype != y->dtype || x->slot != y->slot || x->offset != y->offset ||
            x->bytes != y->bytes || x->width != y->width || x->pitch != y->pitch)
            return false;
    }
    return true;
}

static bool same_origin(const struct tsr_origin *a, const struct tsr_origin *b)
{
    return a->module == b->module && a->group == b->group && a->iteration == b->iteration &&
           a->micro == b->micro && a->phase == b->phase && a->hook == b->hook &&
           a->recompute == b->recompute;
}

static bool same_instr(const struct tsr_instr *a, const struct tsr_instr *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->reduce_op == b->reduce_op &&
           a->category == b->category && a->mark == b->mark && a->space == b->space &&
           a->scalar == b->scalar && a->stream == b->stream && a->comm == b->comm &&
           a->peer == b->peer && a->event == b->event && a->buffer == b->buffer &&
           a->segment == b->segment && a->value == b->value && a->bytes == b->bytes &&
           a->block_bytes == b->block_bytes && a->address == b->address && a->factor == b->factor &&
           same_origin(&a->origin, &b->origin) && same_operands(a, b) &&
           same_work(a->work, b->work);
}

static tsr_status watch_submit(struct tsr_executor *x, const struct tsr_instr *instr)
{
    struct watch *w = (struct watch *)x;
    if (w->into)
        TSR_TRY(tsr_program_append(w->into, instr));
    if (w->expect)
        w->is_same &= w->n < w->expect->n_instrs && same_instr(instr, &w->expect->instrs[w->n]);
    w->n++;
    return w->to ? w->to->ops->submit(w->to, instr) : TSR_OK;
}

static const struct tsr_executor_ops watch_ops = {.size = sizeof watch_ops,
                                                  .version = TSR_EXECUTOR_VERSION,
                                                  .name = "watch",
                                                  .submit = watch_submit};

static tsr_status run_watched(struct tsr_engine *e, uint32_t iteration, struct watch *w)
{
    struct tsr_executor *executor = e->config.executor;
    w->base.ops = &watch_ops;
    e->config.executor = &w->base;
    tsr_status status = tsr_step_run(e, iteration);
    e->config.executor = executor;
    return status;
}

/* Runs a step and records it. */
static tsr_status tsr__record_step(struct tsr_engine *e, uint32_t iteration,
                                   struct tsr__kept_step *step)
{
    struct watch w = {.to = e->config.executor, .into = &step->program};
    *step = (struct tsr__kept_step){.first_buffer = e->emit.next_buffer,
                                    .first_event = e->emit.next_event + 1};
    tsr_program_init(&step->program, &e->emit.tables);
    step->program.iteration = (int)iteration;
    tsr_status status = run_watched(e, iteration, &w);
    step->n_new_buffers = e->emit.next_buffer - step->first_buffer;
    step->n_new_events = e->emit.next_event + 1 - step->first_event;
    return status;
}

/* Runs a step and compares its instructions with the program's. */
static tsr_status tsr__compare_step(struct tsr_engine *e, uint32_t iteration,
                                    const struct tsr__kept_step *step, bool *is_same)
{
    struct watch w = {.to = e->config.executor, .expect = &step->program, .is_same = true};
    TSR_TRY(run_watched(e, iteration, &w));
    *is_same = w.is_same && w.n == step->program.n_instrs;
    return TSR_OK;
}

/* Runs a step whose instructions the executor has had. */
static tsr_status tsr__repeat_step(struct tsr_engine *e, uint32_t iteration)
{
    struct watch w = {.to = NULL};
    return run_watched(e, iteration, &w);
}

static void tsr__kept_step_fini(struct tsr__kept_step *step)
{
    tsr_program_fini(&step->program);
    free(step->codes);
    free(step->buffers);
    free(step->events);
    *step = (struct tsr__kept_step){0};
}

/* ---- codes ----------------------------------------------------------------------------------- */

struct named {
    uint32_t id, number;
};

/* Numbers of a walk by id; what was live before the step. */
struct coder {
    uint32_t first; /* of the new ones */
    size_t n;
    struct named *before;
    bool is_lost;
};

static int by_id(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static uint32_t code_of(struct coder *c, uint32_t id)
{
    const struct named key = {.id = id};
    if (id >= c->first)
        return id - c->first;
    const struct named *found =
        c->n ? bsearch(&key, c->before, c->n, sizeof *c->before, by_id) : NULL;
    c->is_lost |= !found;
    return found ? BEFORE | found->number : 0;
}

static bool coders_open(const struct tsr__kept_step *step, const struct tsr__ids *before,
                        struct coder *buffers, struct coder *events)
{
    *buffers = (struct coder){.first = step->first_buffer, .n = before->n_buffers};
    *events = (struct coder){.first = step->first_event, .n = before->n_events};
    buffers->before = malloc((buffers->n + 1) * sizeof *buffers->before);
    events->before = malloc((events->n + 1) * sizeof *events->before);
    if (!buffers->before || !events->before)
        return false;
    for (size_t i = 0; i < buffers->n; i++)
        buffers->before[i] = (struct named){before->buffers[i], (uint32_t)i};
    for (size_t i = 0; i < events->n; i++)
        events->before[i] = (struct named){before->events[i], (uint32_t)i};
    qsort(buffers->before, buffers->n, sizeof *buffers->before, by_id);
    qsort(events->before, events->n, sizeof *events->before, by_id);
    return true;
}

static bool has_buffer(const struct tsr_instr *instr)
{
    return instr->kind == TSR_ALLOC || instr->kind == TSR_FREE || instr->kind == TSR_HOST_ALLOC ||
           instr->kind == TSR_HOST_FREE;
}

static bool has_event(const struct tsr_instr *instr)
{
    return instr->kind == TSR_RECORD || instr->kind == TSR_WAIT || instr->kind == TSR_HOST_WAIT;
}

static bool push_code(struct tsr__kept_step *step, uint32_t code)
{
    return TSR_PUSH(step->codes, step->n_codes, step->cap_codes, code);
}

static bool code_instr(struct tsr__kept_step *step, const struct tsr_instr *instr,
                       struct coder *buffers, struct coder *events)
{
    bool fits = true;
    if (has_buffer(instr))
        fits = push_code(step, code_of(buffers, instr->buffer));
    else if (has_event(instr))
        fits = push_code(step, code_of(events, instr->event));
    for (uint32_t i = 0; i < instr->n_operands; i++)
        fits &= push_code(step, code_of(buffers, instr->operands[i].buffer));
    return fits;
}

static bool code_state(struct tsr__kept_step *step, const struct tsr_state_walk *after,
                       struct coder *buffers, struct coder *events)
{
    step->n_buffers = after->n_buffers;
    step->n_events = after->n_events;
    step->buffers = malloc((after->n_buffers + 1) * sizeof *step->buffers);
    step->events = malloc((after->n_events + 1) * sizeof *step->events);
    if (!step->buffers || !step->events)
        return false;
    for (size_t i = 0; i < after->n_buffers; i++)
        step->buffers[i] = code_of(buffers, after->ids[i]);
    for (size_t i = 0; i < after->n_events; i++)
        step->events[i] = code_of(events, after->events[i]);
    return true;
}

/* Makes codes of the numbers of a step that was recorded between two states. False in *is_kept: it
 * names something that the walk has not met. */
static tsr_status tsr__keep_step(struct tsr__kept_step *step, const struct tsr__ids *before,
                                 const struct tsr_state_walk *after, bool *is_kept)
{
    struct coder buffers, events;
    bool fits = coders_open(step, before, &buffers, &events);
    for (size_t i = 0; fits && i < step->program.n_instrs; i++)
        fits = code_instr(step, &step->program.instrs[i], &buffers, &events);
    fits = fits && code_state(step, after, &buffers, &events);
    *is_kept = !buffers.is_lost && !events.is_lost;
    free(buffers.before);
    free(events.before);
    return fits ? TSR_OK : tsr_no_memory("a step that is kept");
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint32_t buffer_of(const struct tsr__ids *ids, uint32_t code)
{
    return code & BEFORE ? ids->buffers[code & ~BEFORE] : ids->next_buffer + code;
}

static uint32_t event_of(const struct tsr__ids *ids, uint32_t code)
{
    return code & BEFORE ? ids->events[code & ~BEFORE] : ids->next_event + code;
}

static void renumber(const struct tsr__ids *ids, struct tsr_instr *instr, const uint32_t **code)
{
    /* The program owns its operands. */
    struct tsr_operand *operands = (struct tsr_operand *)(uintptr_t)instr->operands;
    if (has_buffer(instr))
        instr->buffer = buffer_of(ids, *(*code)++);
    else if (has_event(instr))
        instr->event = event_of(ids, *(*code)++);
    for (uint32_t i = 0; i < instr->n_operands; i++)
        operands[i].buffer = buffer_of(ids, *(*code)++);
}

static void renumber_program(struct tsr__kept_step *step, const struct tsr__ids *ids,
                             uint32_t iteration)
{
    const uint32_t *code = step->codes;
    step->program.iteration = (int)iteration;
    for (size_t i = 0; i < step->program.n_instrs; i++) {
        struct tsr_instr *instr = &step->program.instrs[i];
        renumber(ids, instr, &code);
        instr->origin.iteration = (uint16_t)iteration;
        if (instr->kind == TSR_MARK &&
            (instr->mark == TSR_MARK_ITERATION || instr->mark == TSR_MARK_ITERATION_END))
            instr->value = iteration;
    }
}

/* The program becomes that of a step that begins where `ids` are, and *after what is live then. */
static tsr_status tsr__renumber_step(struct tsr__kept_step *step, const struct tsr__ids *ids,
                                     uint32_t iteration, struct tsr__ids *after)
{
    if (!copy_ids(&after->buffers, &after->n_buffers, &after->cap_buffers, step->buffers,
                  step->n_buffers) ||
        !copy_ids(&after->events, &after->n_events, &after->cap_events, step->events,
                  step->n_events))
        return tsr_no_memory("numbers of live buffers");
    for (size_t i = 0; i < after->n_buffers; i++)
        after->buffers[i] = buffer_of(ids, after->buffers[i]);
    for (size_t i = 0; i < after->n_events; i++)
        after->events[i] = event_of(ids, after->events[i]);
    after->next_buffer = ids->next_buffer + step->n_new_buffers;
    after->next_event = ids->next_event + step->n_new_events;
    renumber_program(step, ids, iteration);
    return TSR_OK;
}

/* ---- the cache of steps ---------------------------------------------------------------------- */

enum { ENTRIES = 12, MOST_AHEAD = ENTRIES }; /* states that are kept */

struct entry {
    uint64_t digest; /* 0: free */
    uint64_t next;   /* digest of the state after the step */
    uint64_t last_use;
    enum { SEEN, RECORDED, PROVEN, REFUSED } what;
    struct tsr__kept_step step;
};

struct tsr_step_cache {
    struct tsr_engine *engine;
    struct tsr_state_walk walk;          /* of the engine, as it is */
    struct tsr__ids ids, after;          /* of the state that the next step begins in; scratch */
    uint64_t digest;                     /* of it */
    uint32_t n_ahead, ahead[MOST_AHEAD]; /* iterations that the engine has not made */
    uint64_t real;                       /* its digest before them */
    struct entry entries[ENTRIES];
    struct tsr_step_cache_stats stats;
    uint64_t n_steps;
};

uint64_t tsr_engine_state_digest(struct tsr_engine *e)
{
    struct tsr_state_walk walk = {0};
    uint64_t digest = tsr__walk_state(e, &walk) == TSR_OK ? walk.digest : 0;
    tsr__walk_fini(&walk);
    return digest;
}

tsr_status tsr_step_cache_create(struct tsr_engine *engine, struct tsr_step_cache **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return tsr_no_memory("a cache of steps");
    (*out)->engine = engine;
    return TSR_OK;
}

static void forget(struct entry *entry)
{
    tsr__kept_step_fini(&entry->step);
    *entry = (struct entry){0};
}

void tsr_step_cache_destroy(struct tsr_step_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < ENTRIES; i++)
        forget(&cache->entries[i]);
    tsr__walk_fini(&cache->walk);
    tsr__ids_fini(&cache->ids);
    tsr__ids_fini(&cache->after);
    free(cache);
}

struct tsr_step_cache_stats tsr_step_cache_stats(const struct tsr_step_cache *cache)
{
    return cache->stats;
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
static struct entry *entry_of(struct tsr_step_cache *cache, bool *is_new)
{
    struct entry *oldest = &cache->entries[0], *found = NULL;
    for (int i = 0; i < ENTRIES; i++) {
        struct entry *entry = &cache->entries[i];
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

static tsr_status refuse(struct tsr_step_cache *cache, struct entry *entry)
{
    tsr__kept_step_fini(&entry->step);
    entry->what = REFUSED;
    cache->stats.refused++;
    return TSR_OK;
}

static tsr_status record(struct tsr_step_cache *cache, struct entry *entry, uint32_t iteration)
{
    bool is_kept;
    TSR_TRY(tsr__record_step(cache->engine, iteration, &entry->step));
    TSR_TRY(tsr__walk_state(cache->engine, &cache->walk));
    TSR_TRY(tsr__keep_step(&entry->step, &cache->ids, &cache->walk, &is_kept));
    if (!is_kept || cache->walk.digest == 0)
        return refuse(cache, entry);
    entry->next = cache->walk.digest;
    entry->what = RECORDED;
    return TSR_OK;
}

static tsr_status prove(struct tsr_step_cache *cache, struct entry *entry, uint32_t iteration)
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
    entry->what = PROVEN;
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

static tsr_status replay(struct tsr_step_cache *cache, struct entry *entry, uint32_t iteration)
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

static tsr_status emit(struct tsr_step_cache *cache, struct entry *entry, bool is_new,
                       uint32_t iteration)
{
    cache->stats.emitted++;
    if (is_new || entry->what == REFUSED)
        return tsr_step_run(cache->engine, iteration);
    if (entry->what == SEEN)
        return record(cache, entry, iteration);
    return prove(cache, entry, iteration);
}

tsr_status tsr_step_run_cached(struct tsr_step_cache *cache, uint32_t iteration)
{
    bool is_new = true;
    struct entry *entry = NULL;
    TSR_TRY(look(cache));
    if (cache->digest)
        entry = entry_of(cache, &is_new);
    if (entry && entry->what == PROVEN && cache->n_ahead < MOST_AHEAD)
        return replay(cache, entry, iteration);
    TSR_TRY(catch_up(cache));
    if (entry && entry->what == PROVEN)
        return replay(cache, entry, iteration);
    return emit(cache, entry, is_new, iteration);
}
