/* kept_step.c: one kept step: recorded, its numbers made codes, compared with the step that comes
 * again, and made numbers once more.
 *
 * A kept program names buffers and events by codes: those that it makes by their distance from the
 * first new number, those that were there before by their number in the walk over the state. So a
 * replay is one pass that writes numbers.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/replay/replay_impl.h"

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

tsr_status tsr__ids_of(struct tsr__ids *ids, const struct tsr_state_walk *walk)
{
    ids->next_buffer = walk->engine->emit.next_buffer;
    ids->next_event = walk->engine->emit.next_event + 1;
    if (copy_ids(&ids->buffers, &ids->n_buffers, &ids->cap_buffers, walk->ids, walk->n_buffers) &&
        copy_ids(&ids->events, &ids->n_events, &ids->cap_events, walk->events, walk->n_events))
        return TSR_OK;
    return tsr_no_memory("numbers of live buffers");
}

void tsr__ids_fini(struct tsr__ids *ids)
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

tsr_status tsr__record_step(struct tsr_engine *e, uint32_t iteration, struct tsr__kept_step *step)
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

tsr_status tsr__compare_step(struct tsr_engine *e, uint32_t iteration,
                             const struct tsr__kept_step *step, bool *is_same)
{
    struct watch w = {.to = e->config.executor, .expect = &step->program, .is_same = true};
    TSR_TRY(run_watched(e, iteration, &w));
    *is_same = w.is_same && w.n == step->program.n_instrs;
    return TSR_OK;
}

tsr_status tsr__repeat_step(struct tsr_engine *e, uint32_t iteration)
{
    struct watch w = {.to = NULL};
    return run_watched(e, iteration, &w);
}

void tsr__kept_step_fini(struct tsr__kept_step *step)
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

tsr_status tsr__keep_step(struct tsr__kept_step *step, const struct tsr__ids *before,
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

tsr_status tsr__renumber_step(struct tsr__kept_step *step, const struct tsr__ids *ids,
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
