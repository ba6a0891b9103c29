/* digest.c: the digest of a state: wrapped modules (states, groups, the reducer), the engine
 * itself, its model and the allocator.
 */
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/graph/wrapper.h"
#include "engine/layout/layout.h"
#include "engine/replay/replay_impl.h"
#include "engine/step/step_impl.h"
#include "engine/traced/traced.h"

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
    tsr__walk_storage(w, p->opt_state[2]);
    tsr__walk_storage(w, p->step_count);
    tsr__walk_u64(w, p->is_stepped ? 1 + p->missed_steps : 0);
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
    for (size_t i = 0; i < m->n_buffers; i++)
        tsr__walk_storage(w, m->buffers[i].storage);
    tsr__walk_unknown(w, m->aux_output != NULL);
    for (size_t i = 0; i < m->n_methods; i++)
        tsr__walk_u64(w, m->methods[i].registered);
}

static void walk_model(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    tsr__walk_u64(w, e->tree.n_modules);
    for (size_t i = 0; i < e->tree.n_modules; i++)
        walk_module(w, e->tree.modules[i]);
    tsr__walk_u64(w, e->tree.n_params);
    for (size_t i = 0; i < e->tree.n_params; i++)
        if (e->tree.params[i])
            walk_param(w, e->tree.params[i]);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void walk_step_config(struct tsr_state_walk *w)
{
    const struct tsr_step_config *c = &w->engine->step->config;
    const uint64_t values[] = {c->batch,      c->seq,        c->n_micro,     c->optimizer,
                               c->accumulate, c->clip,       c->clip_how,    c->loss_kernel,
                               c->metrics,    c->reads_loss, c->loss_chunks, c->decay_matrices_only,
                               c->sgd,        c->sgd_decay,  c->nesterov,    c->maximize,
                               c->report,     c->sync,       c->state_dtype, c->amsgrad};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        tsr__walk_u64(w, values[i]);
}

/* Inside a step, or after one that failed, there is more than this walk sees. */
static bool is_between_steps(const struct tsr_engine *e)
{
    return e->status == TSR_OK && e->tree.params_ready && !e->autograd.in_backward && !e->stopped &&
           !e->capture && !e->autograd.packing && !e->autograd.unpacking && !e->ops->add_norm.on &&
           e->autograd.recompute_depth == 0 && e->autograd.n_heap == 0 &&
           e->autograd.n_callbacks == 0 && e->step->n_reports == 0 && !e->ops->head_labels;
}

static void walk_streams(struct tsr_state_walk *w)
{
    const struct tsr_engine *e = w->engine;
    tsr__walk_u64(w, e->stream);
    tsr__walk_u64(w, e->emit.n_comms);
    tsr__walk_u64(w, e->emit.n_streams);
    for (size_t i = 0; i < e->emit.n_streams; i++)
        tsr__walk_u64(w, e->emit.stream_busy[i]);
}

static void walk_kept(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    for (int m = 0; m < TSR_MAX_MICRO; m++)
        tsr__walk_unknown(w, e->step->inputs[m] || e->step->labels[m] || e->step->losses[m]);
    for (int i = 0; i < TSR_N_ARGS; i++)
        tsr__walk_tensor(w, e->autograd.args[i]);
    tsr__walk_tensor(w, e->step->kept_logits);
    for (int i = 0; i < TSR_MAX_METRICS; i++)
        for (int k = 0; k < 2; k++)
            tsr__walk_tensor(w, e->step->metric_states[i][k]);
    for (size_t i = 0; i < e->ops->n_workspaces; i++)
        tsr__walk_storage(w, e->ops->workspaces[i]);
    tsr__walk_u64(w, (uint64_t)e->ops->workspace_main << 3 |
                         (uint64_t)e->ops->workspace_autograd << 2 |
                         (uint64_t)e->ops->lt_main << 1 | e->ops->lt_autograd);
}

static void walk_engine(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    walk_step_config(w);
    walk_streams(w);
    tsr__walk_u64(w, (uint64_t)e->grad_enabled << 1 | e->step->optimizer_ran);
    tsr__walk_u64(w, e->tp->mesh_dims);
    tsr__walk_event(w, &e->step->report_event);
    tsr__walk_event(w, &e->step->input_event);
    walk_model(w);
    walk_kept(w);
    if (e->traced)
        tsr__walk_traced(w, e->traced);
    tsr__walk_u64(w, e->n_wrappers);
    TSR__EACH_WRAPPER (e, wrapper, walk)
        wrapper->ops->walk(w, wrapper);
    tsr__walk_save(w);
    tsr__walk_pinned(w);
}

/* Every block in use has an owner that the walk met, or it missed part of the state. */
static void walk_allocator(struct tsr_state_walk *w)
{
    const struct tsr_allocator *a = w->engine->emit.allocator;
    uint64_t digest = tsr_allocator_digest(a);
    tsr__walk_u64(w, digest);
    tsr__walk_unknown(w, digest == 0 || w->allocated != tsr_allocator_stats(a).allocated);
}

tsr_status tsr__walk_state(struct tsr_engine *e, struct tsr_state_walk *w)
{
    tsr__walk_begin(w, e);
    tsr__walk_unknown(w, !is_between_steps(e) || e->emit.has_trace || e->emit.deferral ||
                             e->model->by_iteration);
    for (size_t i = 0; i < e->n_wrappers; i++)
        tsr__walk_unknown(w, !e->wrappers[i]->ops->walk);
    if (!w->is_unknown) {
        walk_engine(w);
        walk_allocator(w);
    }
    if (w->no_memory)
        return tsr_no_memory("the digest of a state");
    if (w->digest == 0)
        w->digest = 1;
    if (w->is_unknown)
        w->digest = 0;
    return TSR_OK;
}
