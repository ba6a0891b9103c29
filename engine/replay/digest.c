/* digest.c: the digest of a state: wrapped modules (states, groups, the reducer), the engine
 * itself, its model and the allocator.
 */
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/ddp/reducer.h"
#include "engine/fsdp/fsdp.h"
#include "engine/layout/layout.h"
#include "engine/replay/replay_impl.h"
#include "engine/step/step_impl.h"
#include "engine/traced/traced.h"

/* ---- wrapped modules ------------------------------------------------------------------------- */

/* The part of a digest that belongs to wrapped modules: states, groups, the reducer. */

/* Numbers stand for what is referred to: digests do not depend on where things lie. */
static void walk_state_ref(struct tsr_state_walk *w, const struct tsr_state *s)
{
    tsr__walk_u64(w, s && s->n_modules ? 1 + (uint64_t)s->modules[0]->id : 0);
}

static void walk_group_ref(struct tsr_state_walk *w, const struct tsr_group *g)
{
    tsr__walk_u64(w, g ? 1 + (uint64_t)g->id : 0);
}

/* ---- fully_shard, replicate ------------------------------------------------------------------ */

static void walk_fsdp_param(struct tsr_state_walk *w, struct tsr_fsdp_param *f)
{
    tsr__walk_unknown(w, f->extension || f->grad_hook);
    tsr__walk_u64(w, (uint64_t)f->full_precision << 32 | (uint64_t)f->fp8 << 24 |
                         (uint64_t)f->orig_dtype << 16 | (uint64_t)f->param_dtype << 8 |
                         f->reduce_dtype);
    tsr__walk_storage(w, f->sharded);
    tsr__walk_storage(w, f->post_forward);
    tsr__walk_tensor(w, f->unsharded);
    tsr__walk_storage(w, f->temp);
    tsr__walk_tensor(w, f->acc_grad);
    tsr__walk_storage(w, f->grad);
    tsr__walk_u64(w, f->grad_offset << 1 | f->kept_grad);
    tsr__walk_event(w, &f->d2h_event);
    for (int i = 0; i < 4; i++)
        tsr__walk_storage(w, f->raw[i]);
}

static void walk_policy(struct tsr_state_walk *w, const struct tsr_mp_policy *mp)
{
    tsr__walk_u64(w, (uint64_t)mp->param << 24 | (uint64_t)mp->reduce << 16 |
                         (uint64_t)mp->output << 8 | mp->no_cast_inputs);
}

static void walk_custom(struct tsr_state_walk *w, const struct tsr_custom_comm *custom)
{
    const char *name = custom && custom->name ? custom->name : "";
    tsr__walk_u64(w, tsr_hash_bytes(custom != NULL, name, strlen(name)));
    tsr__walk_unknown(w, custom && !custom->is_pure);
}

static void walk_options(struct tsr_state_walk *w, const struct tsr_group *g)
{
    const bool flags[] = {g->lazy_done,         g->reduce_grads,
                          g->all_reduce_grads,  g->reshard_after_backward,
                          g->unshard_async_op,  g->unshard_in_backward,
                          g->force_sum,         g->reduce_unused,
                          g->from_process_group};
    uint64_t bits = 0, factor;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        bits = bits << 1 | flags[i];
    tsr__walk_u64(w, bits);
    tsr__walk_u64(w, (uint64_t)g->post_forward_size << 16 | g->post_forward_comm);
    tsr__walk_u64(w, (uint64_t)g->training << 48 | (uint64_t)g->sharded << 32 |
                         (uint64_t)g->orig_dtype << 16 | g->reduce_dtype);
    tsr__walk_u64(w, (uint64_t)g->offload << 32 | g->max_reduce_inputs);
    memcpy(&factor, &g->divide_factor, sizeof factor);
    tsr__walk_u64(w, factor);
    walk_policy(w, &g->mp);
    walk_custom(w, g->custom_all_gather);
    walk_custom(w, g->custom_reduce_scatter);
    tsr__walk_unknown(w, g->has_hook);
}

static void walk_group(struct tsr_state_walk *w, struct tsr_group *g)
{
    walk_options(w, g);
    for (size_t i = 0; i < g->n_params; i++)
        walk_fsdp_param(w, g->params[i]);
    tsr__walk_u64(w, (uint64_t)g->result.pending << 4 | (uint64_t)g->result.local << 3 |
                         (uint64_t)g->result.async << 2 | (uint64_t)g->result.from_slices << 1 |
                         g->result.direct);
    tsr__walk_storage(w, g->result.output);
    tsr__walk_event(w, &g->result.event);
    tsr__walk_event(w, &g->reshard_event);
    tsr__walk_event(w, &g->post_reduce_event);
    tsr__walk_event(w, &g->retire_event);
    tsr__walk_storage(w, g->mirror);
    tsr__walk_storage(w, g->all_reduce.buffer);
    tsr__walk_event(w, &g->all_reduce.event);
    tsr__walk_storage(w, g->partial);
    tsr__walk_storage(w, g->sharded_grad);
    tsr__walk_u64(w, g->n_order);
    for (size_t i = 0; i < g->n_order; i++)
        tsr__walk_u64(w, g->order[i]);
}

static void walk_state_ctx(struct tsr_state_walk *w, struct tsr_state_ctx *ctx)
{
    walk_state_ref(w, ctx->iter_root);
    tsr__walk_u64(w, (uint64_t)ctx->callback_queued << 3 | (uint64_t)ctx->is_last_backward << 2 |
                         (uint64_t)ctx->manual_finalize << 1 | ctx->finalize_pending);
    tsr__walk_event(w, &ctx->post_optim_event);
    tsr__walk_u64(w, ctx->n_states);
}

static void walk_comm_ctx(struct tsr_state_walk *w, struct tsr_comm_ctx *comm)
{
    tsr__walk_u64(w, comm->has_streams);
    tsr__walk_storage(w, comm->deferred.output);
    tsr__walk_event(w, &comm->deferred.event);
    walk_group_ref(w, comm->deferred.group);
    tsr__walk_u64(w, comm->n_reduce_inputs);
    for (size_t i = 0; i < comm->n_reduce_inputs; i++) {
        tsr__walk_storage(w, comm->reduce_inputs[i].input);
        tsr__walk_event(w, &comm->reduce_inputs[i].event);
    }
    tsr__walk_u64(w, comm->n_retired);
    for (size_t i = 0; i < comm->n_retired; i++)
        walk_group_ref(w, comm->retired[i]);
    tsr__walk_u64(w, comm->n_order);
    for (size_t i = 0; i < comm->n_order; i++)
        walk_group_ref(w, comm->order[i]);
}

static void walk_prefetch(struct tsr_state_walk *w, struct tsr_state *const *states, size_t n)
{
    tsr__walk_u64(w, n);
    for (size_t i = 0; i < n; i++)
        walk_state_ref(w, states[i]);
}

static void walk_wrapped_state(struct tsr_state_walk *w, struct tsr_state *s)
{
    tsr__walk_u64(w, (uint64_t)s->training << 32 | (uint64_t)s->lazy_done << 4 |
                         (uint64_t)s->is_root << 3 | (uint64_t)s->has_root << 2 |
                         (uint64_t)s->list_open << 1 | s->handle_pending);
    walk_policy(w, &s->mp);
    tsr__walk_u64(w, s->n_ran);
    for (size_t i = 0; s->ran && i < s->n_modules; i++)
        tsr__walk_u64(w, s->ran[i]);
    walk_prefetch(w, s->fwd_prefetch, s->n_fwd_prefetch);
    walk_prefetch(w, s->bwd_prefetch, s->n_bwd_prefetch);
    tsr__walk_u64(w, s->n_groups);
    for (size_t i = 0; i < s->n_groups; i++)
        walk_group(w, s->groups[i]);
}

/* ---- the reducer ----------------------------------------------------------------------------- */

static void walk_slots(struct tsr_state_walk *w, const struct tsr_reducer *r)
{
    for (size_t i = 0; i < r->n_params; i++) {
        const struct slot *s = &r->slots[r->params[i]->id];
        tsr__walk_u64(w, (uint64_t)s->bucket << 32 | s->index);
        tsr__walk_u64(w, (uint64_t)s->member << 3 | (uint64_t)s->ready << 2 |
                             (uint64_t)s->used << 1 | s->delayed);
        tsr__walk_u64(w, s->delayed_offset);
    }
}

static void walk_bucket(struct tsr_state_walk *w, struct bucket *b)
{
    tsr__walk_u64(w, b->n);
    tsr__walk_u64(w, b->waiting);
    for (size_t i = 0; i < b->n; i++) {
        tsr__walk_u64(w, b->params[i]->id);
        tsr__walk_u64(w, b->offsets[i]);
    }
    tsr__walk_u64(w, b->bytes);
    tsr__walk_storage(w, b->buffer);
    if (b->stale)
        tsr__walk_storage(w, b->stale);
    if (b->reduced)
        tsr__walk_storage(w, b->reduced);
    tsr__walk_event(w, &b->event);
    tsr__walk_u64(w, b->launched);
}

/* Nothing looks further back than one backward. */
static uint64_t first_backwards(const struct tsr_reducer *r)
{
    return tsr_min_u64(r->n_synced, 2);
}

static void walk_reducer(struct tsr_state_walk *w, struct tsr_reducer *r)
{
    tsr__walk_unknown(w, r->user_hook != NULL);
    tsr__walk_u64(w, (uint64_t)r->sync << 5 | (uint64_t)r->rebuilt << 4 |
                         (uint64_t)r->has_order << 3 | (uint64_t)r->reducing << 2 |
                         (uint64_t)r->has_launched << 1 | r->has_hook);
    tsr__walk_u64(w, r->hook);
    tsr__walk_u64(w, first_backwards(r));
    tsr__walk_u64(w, r->next);
    tsr__walk_u64(w, r->n_ready);
    for (size_t i = 0; i < r->n_ready; i++)
        tsr__walk_u64(w, r->ready_order[i]->id);
    tsr__walk_u64(w, r->n_buckets);
    for (size_t i = 0; i < r->n_buckets; i++)
        walk_bucket(w, &r->buckets[i]);
    walk_slots(w, r);
    tsr__walk_u64(w, r->n_delayed);
    tsr__walk_storage(w, r->delayed_buffer);
    if (r->used_map)
        tsr__walk_storage(w, r->used_map);
    tsr__walk_event(w, &r->delayed_event);
    tsr__walk_u64(w, (uint64_t)r->has_run_backward << 2 | (uint64_t)r->holds_copies << 1 |
                         r->skips_buffers);
    for (size_t i = 0; r->copied && i < w->engine->tree.n_modules; i++)
        tsr__walk_event(w, &r->copied[i]);
}

/* What several states share is walked where they differ from the one before. */
static void tsr__walk_wrapped(struct tsr_state_walk *w)
{
    struct tsr_engine *e = w->engine;
    const struct tsr_state_ctx *ctx = NULL;
    const struct tsr_comm_ctx *comm = NULL;
    tsr__walk_u64(w, e->fsdp->n_states);
    for (size_t i = 0; i < e->fsdp->n_states; i++) {
        struct tsr_state *s = e->fsdp->states[i];
        walk_wrapped_state(w, s);
        if (s->ctx && s->ctx != ctx)
            walk_state_ctx(w, s->ctx);
        if (s->comm && s->comm != comm)
            walk_comm_ctx(w, s->comm);
        ctx = s->ctx;
        comm = s->comm;
    }
    tsr__walk_u64(w, e->reducer != NULL);
    if (e->reducer)
        walk_reducer(w, e->reducer);
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
    tsr__walk_u64(w, e->fsdp->user_stream);
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
    tsr__walk_wrapped(w);
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
                             e->fsdp1 || e->model->by_iteration);
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
