/* digest.c: see digest.h: the engine itself, its model, storages and the allocator. */
#include "engine/replay/digest.h"

#include <stdlib.h>

#include "engine/compile/compile.h"

/* ---- values ---------------------------------------------------------------------------------- */

void tsr__walk_u64(struct tsr_state_walk *w, uint64_t value)
{
    w->digest = tsr_hash_u64(w->digest, value);
}

void tsr__walk_unknown(struct tsr_state_walk *w, bool is_unknown)
{
    w->is_unknown |= is_unknown;
}

/* Events that live from step to step are few: one or two for each group. */
static uint32_t number_of(struct tsr_state_walk *w, uint32_t event)
{
    for (size_t i = w->n_events; i-- > 0;)
        if (w->events[i] == event)
            return (uint32_t)i;
    if (!TSR_PUSH(w->events, w->n_events, w->cap_events, event)) {
        w->no_memory = true;
        return 0;
    }
    return (uint32_t)(w->n_events - 1);
}

void tsr__walk_event(struct tsr_state_walk *w, uint32_t *event)
{
    if (*event == 0) {
        tsr__walk_u64(w, 0);
        return;
    }
    const struct tsr_event_place place = {event, number_of(w, *event)};
    tsr__walk_u64(w, 1 + (uint64_t)place.number);
    if (!TSR_PUSH(w->places, w->n_places, w->cap_places, place))
        w->no_memory = true;
}

/* ---- storages and tensors -------------------------------------------------------------------- */

static void walk_backing(struct tsr_state_walk *w, struct tsr_storage *s)
{
    tsr__walk_u64(w, s->live);
    if (!s->live)
        return;
    if (!tsr_grow(&w->ids, w->n_buffers, &w->cap_ids, sizeof *w->ids) ||
        !tsr_grow(&w->buffers, w->n_buffers, &w->cap_buffers, sizeof *w->buffers)) {
        w->no_memory = true;
        return;
    }
    w->ids[w->n_buffers] = s->buffer;
    w->buffers[w->n_buffers++] = &s->buffer;
    if (s->space == TSR_SPACE_DEVICE && s->block.handle) {
        tsr__walk_u64(w, s->block.address);
        tsr__walk_u64(w, s->block.bytes);
        tsr__walk_u64(w, s->block.segment);
        w->allocated += s->block.bytes;
    }
    tsr__walk_u64(w, s->counted);
}

void tsr__walk_storage(struct tsr_state_walk *w, struct tsr_storage *s)
{
    if (!s) {
        tsr__walk_u64(w, 0);
        return;
    }
    if (s->seen == w->engine->digest_stamp) {
        tsr__walk_u64(w, s->number);
        return;
    }
    s->seen = w->engine->digest_stamp;
    s->number = ++w->n_storages;
    tsr__walk_u64(w, s->number);
    tsr__walk_u64(w, (uint64_t)s->refs << 32 | (uint64_t)s->category << 24 |
                         (uint64_t)s->space << 16 | s->stream);
    tsr__walk_u64(w, s->bytes);
    walk_backing(w, s);
    if (s->pinned)
        tsr__walk_pinned_block(w, s->pinned);
}

/* A graph that outlives its step could do anything in the next one. */
void tsr__walk_tensor(struct tsr_state_walk *w, struct tsr_tensor *t)
{
    tsr__walk_u64(w, t != NULL);
    if (!t)
        return;
    tsr__walk_unknown(w, t->grad_fn || (t->accumulator && t->accumulator->hooks));
    tsr__walk_u64(w, (uint64_t)t->refs << 32 | (uint64_t)t->dtype << 24 |
                         (uint64_t)t->n_dims << 16 | (uint64_t)t->layout << 8 |
                         (uint64_t)t->requires_grad << 2 | (uint64_t)t->is_view << 1 | t->is_one);
    for (int i = 0; i < t->n_dims; i++)
        tsr__walk_u64(w, t->dims[i]);
    tsr__walk_u64(w, t->offset);
    tsr__walk_u64(w, (uint64_t)t->width << 32 | t->pitch);
    tsr__walk_storage(w, t->storage);
    tsr__walk_tensor(w, t->grad);
}

/* ---- the model ------------------------------------------------------------------------------- */

static void walk_param(struct tsr_state_walk *w, struct tsr_param *p)
{
    tsr__walk_u64(w, (uint64_t)p->requires_grad << 2 | (uint64_t)p->meta << 1 | p->ignored);
    tsr__walk_u64(w, p->fsdp ? 1 + (uint64_t)p->fsdp->group->id : 0);
    tsr__walk_tensor(w, p->value);
    tsr__walk_tensor(w, p->full_grad);
    tsr__walk_storage(w, p->master);
    tsr__walk_storage(w, p->opt_state[0]);
    tsr__walk_storage(w, p->opt_state[1]);
    tsr__walk_storage(w, p->step_count);
}

static uint64_t n_plans(const struct tsr_module *m)
{
    uint64_t n = 0;
    for (const struct tsr_cplan *p = m->plans; p; p = p->next)
        n++;
    return n;
}

static void walk_module(struct tsr_state_walk *w, struct tsr_module *m)
{
    const struct tsr_checkpoint_mode *c = &m->checkpoint;
    tsr__walk_u64(w, (uint64_t)c->inside << 3 | (uint64_t)c->outside << 2 |
                         (uint64_t)c->early_stop << 1 | c->selective);
    tsr__walk_u64(w, n_plans(m));
    tsr__walk_u64(w, m->state != NULL);
    tsr__walk_storage(w, m->buffers[0]);
    tsr__walk_storage(w, m->buffers[1]);
    tsr__walk_unknown(w, m->aux_output != NULL);
    for (size_t i = 0; i < m->n_methods; i++)
        tsr__walk_u64(w, m->methods[i].registered);
}

static void walk_model(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    tsr__walk_u64(w, e->n_modules);
    for (size_t i = 0; i < e->n_modules; i++)
        walk_module(w, e->modules[i]);
    tsr__walk_u64(w, e->n_params);
    for (size_t i = 0; i < e->n_params; i++)
        if (e->params[i])
            walk_param(w, e->params[i]);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void walk_step_config(struct tsr_state_walk *w)
{
    const struct tsr_step_config *c = &w->engine->step;
    const uint64_t values[] = {c->batch,      c->seq,        c->n_micro,     c->optimizer,
                               c->accumulate, c->clip,       c->clip_how,    c->loss_kernel,
                               c->metrics,    c->reads_loss, c->loss_chunks, c->decay_matrices_only,
                               c->sgd_decay,  c->report,     c->sync,        c->state_dtype};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        tsr__walk_u64(w, values[i]);
}

/* Inside a step, or after one that failed, there is more than this walk sees. */
static bool is_between_steps(const struct tsr_engine *e)
{
    return e->status == TSR_OK && e->params_ready && !e->in_backward && !e->stopped &&
           !e->capture && !e->packing && !e->unpacking && !e->in_hook && !e->add_norm.on &&
           e->recompute_depth == 0 && e->n_heap == 0 && e->n_callbacks == 0 && e->n_reports == 0 &&
           !e->head_labels;
}

static void walk_streams(struct tsr_state_walk *w)
{
    const struct tsr_engine *e = w->engine;
    tsr__walk_u64(w, e->stream);
    tsr__walk_u64(w, e->user_stream);
    tsr__walk_u64(w, e->n_comms);
    tsr__walk_u64(w, e->n_streams);
    for (size_t i = 0; i < e->n_streams; i++)
        tsr__walk_u64(w, e->stream_busy[i]);
}

static void walk_kept(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    for (int m = 0; m < TSR_MAX_MICRO; m++)
        tsr__walk_unknown(w, e->inputs[m] || e->labels[m] || e->losses[m]);
    for (int i = 0; i < TSR_N_ARGS; i++)
        tsr__walk_tensor(w, e->args[i]);
    tsr__walk_tensor(w, e->kept_logits);
    for (int i = 0; i < TSR_MAX_METRICS; i++)
        for (int k = 0; k < 2; k++)
            tsr__walk_tensor(w, e->metric_states[i][k]);
    for (size_t i = 0; i < e->n_workspaces; i++)
        tsr__walk_storage(w, e->workspaces[i]);
    tsr__walk_u64(w, (uint64_t)e->workspace_main << 3 | (uint64_t)e->workspace_autograd << 2 |
                         (uint64_t)e->lt_main << 1 | e->lt_autograd);
}

static void walk_engine(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    walk_step_config(w);
    walk_streams(w);
    tsr__walk_u64(w, (uint64_t)e->grad_enabled << 1 | e->optimizer_ran);
    tsr__walk_u64(w, e->tp_mesh_dims);
    tsr__walk_event(w, &e->report_event);
    tsr__walk_event(w, &e->input_event);
    walk_model(w);
    walk_kept(w);
    tsr__walk_wrapped(w);
    tsr__walk_save(w);
    tsr__walk_pinned(w);
}

/* Every block in use has an owner that the walk met, or it missed part of the state. */
static void walk_allocator(struct tsr_state_walk *w)
{
    const struct tsr_allocator *a = w->engine->allocator;
    uint64_t digest = tsr_allocator_digest(a);
    tsr__walk_u64(w, digest);
    tsr__walk_unknown(w, digest == 0 || w->allocated != tsr_allocator_stats(a).allocated);
}

tsr_status tsr__walk_state(struct tsr_engine *e, struct tsr_state_walk *w)
{
    w->n_buffers = w->n_events = w->n_places = 0;
    w->engine = e;
    w->is_unknown = w->no_memory = false;
    w->n_storages = w->n_pinned = 0;
    w->allocated = 0;
    w->digest = TSR_HASH_INIT;
    e->digest_stamp++;
    tsr__walk_unknown(w, !is_between_steps(e) || e->has_trace || e->deferral || e->fsdp1 ||
                             e->model.by_iteration);
    if (!w->is_unknown) {
        walk_engine(w);
        walk_allocator(w);
    }
    if (w->no_memory)
        return tsr_fail(TSR_ENOMEM, "out of memory: the digest of a state");
    if (w->digest == 0)
        w->digest = 1;
    if (w->is_unknown)
        w->digest = 0;
    return TSR_OK;
}

void tsr__walk_fini(struct tsr_state_walk *w)
{
    free(w->buffers);
    free(w->ids);
    free(w->events);
    free(w->places);
    *w = (struct tsr_state_walk){0};
}
