/* state.c: the hook state machine of one wrapped call (section 3; PyTorch's FSDPState): the
 * four hooks, prefetch lists, and the final callback of a backward.
 *
 *   IDLE -> FORWARD -> IDLE -> PRE_BACKWARD -> IDLE   (the group also has POST_BACKWARD)
 */
#include "engine/fsdp/fsdp.h"

#include <stdlib.h>

void tsr__event_group(struct tsr_event *ev, const char *name, const struct tsr_group *g)
{
    tsr__event_begin(ev, name);
    tsr__event_str(ev, "g", g->name);
}

const char *tsr__training_name(enum tsr_training_state s)
{
    static const char *const names[TSR_N_TRAINING] = {"idle", "forward", "pre_backward",
                                                      "post_backward"};
    return names[s];
}

static void trace_hook(struct tsr_engine *e, const char *name, const struct tsr_state *s,
                       const char *flag, bool value)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, name);
    tsr__event_str(&ev, "g", s->name);
    if (flag)
        tsr__event_bool(&ev, flag, value);
    tsr__event_send(e, &ev);
}

static void trace_count(struct tsr_engine *e, const char *name, const struct tsr_state *s, int n)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, name);
    tsr__event_str(&ev, "g", s->name);
    tsr__event_int(&ev, "n", n);
    tsr__event_send(e, &ev);
}

static void enter_hook(struct tsr_engine *e, const struct tsr_state *s, enum tsr_hook hook,
                       enum tsr_mark mark)
{
    e->origin.hook = (uint8_t)hook;
    e->origin.group = s->n_groups ? s->groups[0]->id : TSR_NO_ID;
    tsr__emit_mark(e, mark, 0);
}

static void leave_hook(struct tsr_engine *e)
{
    e->origin.hook = TSR_HOOK_NONE;
    e->origin.group = TSR_NO_ID;
}

/* ---- races that PyTorch has ------------------------------------------------------------------ */

void tsr__optimizer_stepped(struct tsr_engine *e, struct tsr_wrapper *w)
{
    (void)w;
    for (size_t i = 0; i < e->fsdp->n_states; i++) {
        struct tsr_state_ctx *ctx = e->fsdp->states[i]->ctx;
        ctx->event_is_stale = true;
        ctx->root_is_stuck = ctx->iter_root != NULL;
        e->fsdp->states[i]->comm->stepped_event = e->emit.next_event;
    }
}

void tsr__gathers_follow(struct tsr_comm_ctx *comm, uint32_t event)
{
    if (event > comm->stray_event)
        comm->stray_event = 0;
    if (event > comm->stepped_event)
        comm->stepped_event = 0;
}

static bool gathers(const struct tsr_state_ctx *ctx)
{
    bool any = false;
    for (size_t i = 0; i < ctx->n_states; i++)
        for (size_t k = 0; k < ctx->states[i]->n_groups; k++)
            any |= ctx->states[i]->groups[k]->shard_size > 1;
    return any;
}

const char *tsr_inherited_race(const struct tsr_engine *e, enum tsr_race race)
{
    static const char *const texts[TSR_N_RACES] = {
        [TSR_RACE_STALE_EVENT] =
            "R85, Q17: a forward's gathers wait only for the event of set_post_optim_event, "
            "recorded before the optimizer's step: they may read parameters while it writes them. "
            "PyTorch has this race, too; record the event after the step",
        [TSR_RACE_HOOKED_OUTPUT] =
            "Q3: with set_all_reduce_hook on one dimension nobody keeps the output of the "
            "reduce-scatter until the hook's stream has read it: the next one may be given its "
            "memory. PyTorch 2.11 has this race, too; 2.15 keeps the output",
        [TSR_RACE_STRAY_GATHER] =
            "Q19: a group that backward had prefetched and did not use was dropped, and the next "
            "backward gathers without a forward before it: nothing makes the copy-in stream wait "
            "for that all-gather, whose memory it may be given. PyTorch has this race, too; run "
            "each backward behind its forward, or set_is_last_backward for the last one only",
        [TSR_RACE_STUCK_ROOT] =
            "Q18: of modules that were wrapped as a list only some were recomputed in backward: "
            "their forward never ends, so the next one's gathers do not wait for the optimizer's "
            "step. PyTorch 2.11 has this race, too; checkpoint all modules of the list or none",
        [TSR_RACE_OTHER_ROOT] =
            "Q20: set_modules_to_forward_prefetch names a module of another root, whose own "
            "forward has not begun since the optimizer's step: nothing makes its gathers wait for "
            "that step. PyTorch has this race, too; wrap what both belong to"};
    return e->fsdp->raced[race] ? texts[race] : NULL;
}

/* ---- forward hooks --------------------------------------------------------------------------- */
static void root_pre_forward(struct tsr_engine *e, struct tsr_state *s)
{
    if (!s->lazy_done)
        tsr__lazy_init(e, s);
    if (!tsr__ok(e))
        return;
    if (s->ctx->iter_root) {
        e->fsdp->raced[TSR_RACE_STUCK_ROOT] |= s->ctx->root_is_stuck && gathers(s->ctx);
        s->comm->stepped_event = 0; /* it has its name */
        return;
    }
    s->ctx->iter_root = s;
    trace_hook(e, "root_pre_forward", s, NULL, false);
    struct tsr_comm_ctx *comm = s->comm;
    if (s->ctx->post_optim_event) {
        tsr__wait_event(e, comm->copy_in, s->ctx->post_optim_event); /* W1 */
        tsr__wait_event(e, comm->all_gather, s->ctx->post_optim_event);
        tsr__gathers_follow(comm, s->ctx->post_optim_event);
        s->ctx->post_optim_event = 0;
        e->fsdp->raced[TSR_RACE_STALE_EVENT] |= s->ctx->event_is_stale && gathers(s->ctx);
        comm->stepped_event = 0; /* it has its name */
    } else {
        tsr__wait_stream(e, comm->copy_in, e->stream);
        tsr__wait_stream(e, comm->all_gather, e->stream);
        tsr__gathers_follow(comm, UINT32_MAX);
    }
}

/* Returns a float tensor in `dtype`, another one as it is. Takes over and returns a reference. */
static struct tsr_tensor *cast(struct tsr_engine *e, struct tsr_tensor *t, tsr_dtype dtype)
{
    if (!t || dtype == TSR_DTYPE_NONE || !tsr_dtype_is_float((tsr_dtype)t->dtype) ||
        t->dtype == dtype)
        return t;
    struct tsr_tensor *out = tsr_op_cast(e, t, dtype);
    tsr_release(e, t);
    return out;
}

/* Casts every float argument of a call to the policy's param dtype (R65): the input, which it takes
 * over and returns, and engine->autograd.args if the module gets them. */
static struct tsr_tensor *cast_inputs(struct tsr_engine *e, const struct tsr_state *s,
                                      const struct tsr_module *m, struct tsr_tensor *in)
{
    if (s->mp.no_cast_inputs)
        return in;
    in = cast(e, in, s->mp.param);
    for (int i = 0; i < TSR_N_ARGS && m->has_args; i++)
        e->autograd.args[i] = cast(e, e->autograd.args[i], s->mp.param);
    return in;
}

/* List groups (3.11, 2.11): the pre-hook body runs for the first module only. */
static bool is_first_of_list(struct tsr_state *s, const struct tsr_module *m)
{
    bool first = !s->list_open;
    if (first && s->training != TSR_PRE_BACKWARD) /* a recomputation makes no node */
        s->first_run = m;
    s->list_open = s->n_modules > 1;
    return first;
}

static void forget_ran(struct tsr_state *s)
{
    s->list_open = false;
    s->n_ran = 0;
    for (size_t i = 0; i < s->n_modules; i++)
        s->ran[i] = false;
}

/* Notes the module whose outputs have the pre-backward hooks; a recomputation adds none. */
static void note_last(struct tsr_state *s, const struct tsr_module *m)
{
    if (s->training != TSR_PRE_BACKWARD)
        s->last_run = m;
}

/* ... and the post-hook body once all have run. */
static bool is_last_of_list(struct tsr_state *s, const struct tsr_module *m)
{
    if (s->n_modules == 1 || !s->list_open) {
        note_last(s, m);
        return true;
    }
    for (size_t i = 0; i < s->n_modules; i++)
        if (s->modules[i] == m && !s->ran[i]) {
            s->ran[i] = true;
            s->n_ran++;
        }
    if (s->n_ran < s->n_modules)
        return false;
    forget_ran(s);
    note_last(s, m);
    return true;
}

/* Only a guarantee: an earlier post-backward may have resharded (3.9). Never asynchronous, whatever
 * set_unshard_async_op() said. */
static void ensure_unsharded(struct tsr_engine *e, struct tsr_state *s)
{
    for (size_t i = 0; i < s->n_groups; i++)
        if (s->groups[i]->sharded != TSR_UNSHARDED) {
            tsr__group_unshard(e, s->groups[i], false);
            tsr__group_wait_for_unshard(e, s->groups[i]);
        }
}

static void prefetch_groups(struct tsr_engine *e, struct tsr_state *const *list, size_t n,
                            bool forward)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < list[i]->n_groups; k++)
            tsr__group_prefetch(e, list[i]->groups[k], forward);
}

static struct tsr_tensor *enter_forward(struct tsr_engine *e, struct tsr_state *s,
                                        const struct tsr_module *m, struct tsr_tensor *in)
{
    tsr__state_set_training(e, s, TSR_FORWARD, TSR_BY_PRE_FORWARD);
    root_pre_forward(e, s);
    in = cast_inputs(e, s, m, in);
    for (size_t i = 0; i < s->n_groups; i++)
        in = tsr__group_pre_forward(e, s->groups[i], in);
    prefetch_groups(e, s->fwd_prefetch, s->n_fwd_prefetch, true);
    return in;
}

static struct tsr_tensor *pre_forward(struct tsr_engine *e, struct tsr_module *m,
                                      struct tsr_tensor *in)
{
    struct tsr_state *s = m->state;
    if (!tsr__ok(e))
        return in;
    if (!is_first_of_list(s, m)) { /* 2.15: casts and the guarantee for every module (R121) */
        if (e->config.version < TSR_TORCH_2_15)
            return in;
        ensure_unsharded(e, s);
        return cast_inputs(e, s, m, in);
    }
    bool recompute = s->training == TSR_PRE_BACKWARD;
    enter_hook(e, s, TSR_HOOK_PRE_FORWARD, TSR_MARK_PRE_FORWARD);
    trace_hook(e, "pre_forward", s, "recompute", recompute);
    if (recompute) {
        ensure_unsharded(e, s);
        in = cast_inputs(e, s, m, in);
    } else {
        in = enter_forward(e, s, m, in);
    }
    leave_hook(e);
    return in;
}

static void pre_backward(struct tsr_engine *e, void *user, uint32_t arg);

static void register_pre_backward(struct tsr_engine *e, struct tsr_state *s, struct tsr_tensor *out,
                                  struct tsr_tensor *aux)
{
    if (!e->grad_enabled)
        return;
    struct tsr_tensor *outs[2] = {out, aux};
    int n = 0;
    for (int i = 0; i < 2; i++)
        if (outs[i] && outs[i]->requires_grad) {
            tsr__tensor_hook(e, outs[i], pre_backward, s, 0);
            n++;
        }
    trace_count(e, "register_pre_backward", s, n);
}

static void leave_forward(struct tsr_engine *e, struct tsr_state *s, struct tsr_tensor *out,
                          struct tsr_tensor *aux)
{
    for (size_t i = 0; i < s->n_groups; i++)
        tsr__group_post_forward(e, s->groups[i]);
    register_pre_backward(e, s, out, aux);
    tsr__state_set_training(e, s, TSR_IDLE, TSR_BY_POST_FORWARD);
}

/* 2.15: lists of which a module never ran are completed here, deepest first (R120). */
static void complete_lists(struct tsr_engine *e, struct tsr_state *root, struct tsr_tensor *out)
{
    for (size_t i = root->ctx->n_states; i-- > 0;) {
        struct tsr_state *s = root->ctx->states[i];
        if (s->n_modules < 2 || !s->list_open)
            continue;
        forget_ran(s);
        leave_forward(e, s, out, NULL);
    }
}

/* Returns the result of the last all-gather, or NULL: a variable of _post_forward holds it until
 * that function returns, so next to a cast output (R98). The caller releases it. */
static struct tsr_storage *root_post_forward(struct tsr_engine *e, struct tsr_state *s,
                                             struct tsr_tensor *out)
{
    struct tsr_comm_ctx *comm = s->comm;
    struct tsr_storage *last = NULL;
    if (e->config.version >= TSR_TORCH_2_15)
        complete_lists(e, s, out);
    if (comm->deferred.output) { /* W8 */
        tsr__wait_event(e, comm->copy_in, comm->deferred.event);
        tsr__wait_event(e, comm->all_gather, comm->deferred.event);
        tsr__gathers_follow(comm, comm->deferred.event);
        last = comm->deferred.output;
        comm->deferred.output = NULL;
        comm->deferred.group = NULL;
    }
    s->ctx->iter_root = NULL;
    trace_hook(e, "root_post_forward", s, NULL, false);
    return last;
}

static struct tsr_tensor *run_post_forward(struct tsr_engine *e, struct tsr_state *s,
                                           struct tsr_module *m, struct tsr_tensor *out)
{
    if (!is_last_of_list(s, m))
        return e->config.version < TSR_TORCH_2_15 ? out : cast(e, out, s->mp.output);
    bool recompute = s->training == TSR_PRE_BACKWARD;
    struct tsr_storage *last_gather = NULL;
    enter_hook(e, s, TSR_HOOK_POST_FORWARD, TSR_MARK_POST_FORWARD);
    trace_hook(e, "post_forward", s, "recompute", recompute);
    if (!recompute) {
        leave_forward(e, s, out, m->aux_output);
        if (s->ctx->iter_root == s)
            last_gather = root_post_forward(e, s, out);
    }
    if (!recompute || e->config.version >= TSR_TORCH_2_15)
        out = cast(e, out, s->mp.output);
    if (e->traced && last_gather && s->mp.output != TSR_DTYPE_NONE) {
        s->comm->late = last_gather;
        last_gather = NULL;
    }
    tsr__storage_release(e, &last_gather);
    leave_hook(e);
    return out;
}

void tsr__state_end_post_forward(struct tsr_engine *e, struct tsr_state *s)
{
    if (s && s->comm)
        tsr__storage_release(e, &s->comm->late);
}

/* The hooks of a list also run when a recomputation has stopped early, without an output: the list
 * counts which of its modules have run. */
static struct tsr_tensor *stopped_list_post_forward(struct tsr_engine *e, struct tsr_module *m,
                                                    struct tsr_tensor *out)
{
    tsr_release(e, out);
    e->stopped = false;
    out = run_post_forward(e, m->state, m, NULL);
    e->stopped = true;
    return out;
}

static struct tsr_tensor *post_forward(struct tsr_engine *e, struct tsr_module *m,
                                       struct tsr_tensor *out)
{
    if (tsr__ok(e))
        return run_post_forward(e, m->state, m, out);
    if (m->state->n_modules > 1 && e->stopped && e->status == TSR_OK)
        return stopped_list_post_forward(e, m, out);
    return out;
}

const struct tsr_module_hooks tsr__state_hooks = {pre_forward, post_forward};

/* ---- backward hooks -------------------------------------------------------------------------- */
static bool any_pending(const struct tsr_state *s)
{
    for (size_t i = 0; i < s->n_groups; i++)
        if (s->groups[i]->result.pending)
            return true;
    return false;
}

static void finalize_state(struct tsr_engine *e, struct tsr_state *s)
{
    trace_hook(e, "finalize_backward", s, "pending_unshard", any_pending(s));
    forget_ran(s); /* a list whose modules did not all run starts anew (R119) */
    for (size_t i = 0; i < s->n_groups; i++)
        tsr__group_finalize(e, s->groups[i]);
}

static void finish_state(struct tsr_engine *e, struct tsr_state *s, bool last)
{
    for (size_t i = s->n_groups; i-- > 0;)
        if (s->groups[i]->training != TSR_POST_BACKWARD)
            tsr__group_post_backward(e, s->groups[i], TSR_BY_FINAL_CALLBACK);
    tsr__state_set_training(e, s, TSR_IDLE, TSR_BY_FINAL_CALLBACK);
    for (size_t i = 0; i < s->n_groups; i++)
        tsr__group_set_training(e, s->groups[i], TSR_IDLE, TSR_BY_FINAL_CALLBACK);
    if (last)
        finalize_state(e, s);
}

/* Ends the backward of everything below a root; `backwards`: states in reverse (finalize_backward).
 */
static void finish_backward(struct tsr_engine *e, struct tsr_state *root, bool backwards)
{
    struct tsr_state_ctx *ctx = root->ctx;
    bool last = ctx->is_last_backward;
    for (size_t i = 0; i < ctx->n_states && tsr__ok(e); i++)
        finish_state(e, ctx->states[backwards ? ctx->n_states - 1 - i : i], last);
    if (!tsr__ok(e)) /* no wait is emitted; the reset's are */
        return;
    if (!last)
        return;
    if (e->config.version >= TSR_TORCH_2_15)
        ctx->iter_root = NULL; /* of a list that was recomputed in part (Q18) */
    root->comm->n_order = 0;
    tsr__drop_reduce_inputs(e, root->comm, 0); /* W14 */
}

/* Section 3.10; `user` is the state that queued it. */
static void final_callback(struct tsr_engine *e, void *user)
{
    struct tsr_state *queued_by = user;
    struct tsr_state_ctx *ctx = queued_by->ctx;
    e->origin.hook = TSR_HOOK_FINAL_CALLBACK;
    trace_hook(e, "final_callback", queued_by, "last", ctx->is_last_backward);
    if (ctx->manual_finalize)
        ctx->finalize_pending = true;
    else
        finish_backward(e, queued_by, false);
    ctx->callback_queued = false;
    trace_hook(e, "final_callback_end", queued_by, NULL, false);
    e->origin.hook = TSR_HOOK_NONE;
}

static bool in_pre_backward(const struct tsr_state *s)
{
    return s->n_groups > 0 && s->groups[0]->training == TSR_PRE_BACKWARD;
}

void tsr__state_pre_backward(struct tsr_engine *e, struct tsr_state *s)
{
    if (!tsr__ok(e))
        return;
    e->origin.module = s->modules[0]->id;
    enter_hook(e, s, TSR_HOOK_PRE_BACKWARD, TSR_MARK_PRE_BACKWARD);
    trace_hook(e, "pre_backward", s, "repeat", in_pre_backward(s));
    tsr__state_set_training(e, s, TSR_PRE_BACKWARD, TSR_BY_PRE_BACKWARD);
    if (!s->ctx->callback_queued) {
        s->ctx->callback_queued = true;
        if (!tsr__at_backward_end(e, final_callback, s))
            return;
        trace_hook(e, "queue_final_callback", s, NULL, false);
    }
    /* of several groups the second one prefetches (R138) */
    for (size_t i = 0; i < s->n_groups; i++)
        tsr__group_pre_backward(e, s->groups[i],
                                s->n_bwd_prefetch == 0 && (s->n_groups == 1 || i == 1));
    prefetch_groups(e, s->bwd_prefetch, s->n_bwd_prefetch, false);
    leave_hook(e);
}

static void pre_backward(struct tsr_engine *e, void *user, uint32_t arg)
{
    (void)arg;
    tsr__state_pre_backward(e, user);
}

/* ---- 2.15: manual finalisation, reset ----------------------------------------------------------
 */
static tsr_status root_state(struct tsr_module *m, const char *fn, struct tsr_state **out)
{
    *out = m->state;
    if (!m->state)
        return tsr_fail(TSR_EATTRIBUTE, "module '%s' of type '%s' has no attribute '%s'", m->fqn,
                        m->type_name, fn);
    if (m->state->lazy_done && !m->state->is_root)
        return tsr_fail(TSR_ERUNTIME, "%s: '%s' is not the root", fn, m->fqn);
    return TSR_OK;
}

tsr_status tsr_set_manual_backward_finalization(struct tsr_engine *e, struct tsr_module *m,
                                                bool value)
{
    struct tsr_state *s;
    TSR_TRY(root_state(m, "set_manual_backward_finalization", &s));
    if (e->autograd.in_backward || s->ctx->finalize_pending)
        return tsr_fail(TSR_ERUNTIME,
                        "set_manual_backward_finalization: the mode of '%s' cannot change while a "
                        "backward is not finalized",
                        m->fqn);
    s->ctx->manual_finalize = value;
    return TSR_OK;
}

tsr_status tsr_finalize_backward(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_state *s;
    TSR_TRY(root_state(m, "finalize_backward", &s));
    if (!s->lazy_done)
        return TSR_OK; /* before the first forward there is nothing to do */
    if (!s->ctx->manual_finalize)
        return tsr_fail(TSR_ERUNTIME, "finalize_backward: '%s' is not in manual mode", m->fqn);
    if (e->autograd.in_backward)
        return tsr_fail(TSR_ERUNTIME, "finalize_backward: the backward of '%s' still runs", m->fqn);
    if (s->ctx->finalize_pending)
        finish_backward(e, s, true);
    s->ctx->finalize_pending = false;
    return e->status;
}

static void reset_state(struct tsr_engine *e, struct tsr_state *s)
{
    for (size_t i = 0; i < s->n_groups; i++)
        tsr__group_reset(e, s->groups[i]);
    s->training = TSR_IDLE;
    s->handle_pending = false;
    forget_ran(s);
}

tsr_status tsr_reset_iter_state(struct tsr_engine *e, struct tsr_module *m)
{
    struct tsr_state *s;
    TSR_TRY(root_state(m, "reset_iter_state", &s));
    tsr__backward_abandon(e);
    e->status = TSR_OK;
    for (size_t i = 0; i < s->ctx->n_states; i++)
        reset_state(e, s->ctx->states[i]);
    struct tsr_comm_ctx *comm = s->comm;
    tsr__storage_release(e, &comm->deferred.output);
    tsr__storage_release(e, &comm->late);
    tsr__drop_reduce_inputs(e, comm, 0);
    comm->n_order = 0;
    s->ctx->iter_root = NULL;
    s->ctx->callback_queued = s->ctx->finalize_pending = false;
    return e->status;
}
