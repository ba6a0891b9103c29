/* walk.c: what states and groups keep from step to step, gone through for a digest. */
#include <string.h>

#include "engine/fsdp/fsdp.h"
#include "engine/graph/walk.h"

/* Numbers stand for what is referred to: digests do not depend on where things lie. */
static void walk_state_ref(struct tsr_state_walk *w, const struct tsr_state *s)
{
    tsr__walk_u64(w, s && s->n_modules ? 1 + (uint64_t)s->modules[0]->id : 0);
}

static void walk_group_ref(struct tsr_state_walk *w, const struct tsr_group *g)
{
    tsr__walk_u64(w, g ? 1 + (uint64_t)g->id : 0);
}

/* ---- groups ------------------------------------------------------------------ */

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

/* What several states share is walked where they differ from the one before. */
void tsr__walk_states(struct tsr_state_walk *w, struct tsr_wrapper *wrapper)
{
    struct tsr_engine *e = w->engine;
    (void)wrapper;
    const struct tsr_state_ctx *ctx = NULL;
    const struct tsr_comm_ctx *comm = NULL;
    tsr__walk_u64(w, e->fsdp->user_stream);
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
}
