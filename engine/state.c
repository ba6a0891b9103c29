/* state.c: the hook state machine of one wrapped call (section 3; PyTorch's FSDPState): root and
 * lazy initialisation, the four hooks, prefetch lists, and the final callback of a backward.
 *
 *   IDLE -> FORWARD -> IDLE -> PRE_BACKWARD -> IDLE   (the group also has POST_BACKWARD)
 */
#include "engine.h"

const char *tsr__training_name(enum tsr_training_state s)
{
    static const char *const names[TSR_N_TRAINING] = {"idle", "forward", "pre_backward",
                                                      "post_backward"};
    return names[s];
}

static void trace_hook(struct tsr_engine *e, const char *name, const struct tsr_state *s,
                       const char *flag, bool value)
{
    if (!e->has_trace)
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
    if (!e->has_trace)
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
    e->origin.group = s->group ? s->group->id : TSR_NO_ID;
    tsr__emit_mark(e, mark, 0);
}

static void leave_hook(struct tsr_engine *e)
{
    e->origin.hook = TSR_HOOK_NONE;
    e->origin.group = TSR_NO_ID;
}

/* ---- lazy initialisation (3.2) ------------------------------------------------------------------
 */

struct lazy {
    struct tsr_engine *e;
    struct tsr_state *root;
};

static bool adopt_state(void *user, struct tsr_module *m)
{
    struct lazy *lazy = user;
    struct tsr_engine *e = lazy->e;
    struct tsr_state *s = m->state, *root = lazy->root;
    /* a replicate root sees replicate states only (5.1) */
    if (!s || (root->is_replicate && !s->is_replicate))
        return true;
    if (s != root && s->lazy_done) {
        TSR__RAISE(e, TSR_ERUNTIME,
                   "FSDP state has already been lazily initialized for %s: FSDP requires running "
                   "forward through the root module first",
                   m->fqn);
        return false;
    }
    if (s != root)
        s->is_root = false;
    s->has_root = true;
    return TSR__ARENA_PUSH(e, root->ctx->states, root->ctx->n_states, root->ctx->cap_states, s);
}

static void create_streams(struct tsr_engine *e, struct tsr_comm_ctx *comm)
{
    comm->copy_in = tsr__stream_add(e, "copy_in", TSR_ROLE_COPY_IN, -1);
    comm->all_gather = tsr__stream_add(e, "all_gather", TSR_ROLE_ALL_GATHER, -1);
    comm->reduce_scatter = tsr__stream_add(e, "reduce_scatter", TSR_ROLE_REDUCE_SCATTER, -1);
    comm->all_reduce = tsr__stream_add(e, "all_reduce", TSR_ROLE_ALL_REDUCE, 0);
    comm->has_streams = true;
    comm->n_order = 0;
}

static void trace_lazy_init(struct tsr_engine *e, const struct tsr_state *s, bool keeps)
{
    if (!e->has_trace)
        return;
    size_t n = s->ctx->n_states;
    const char **names = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *names);
    if (!names)
        return;
    for (size_t i = 0; i < n; i++)
        names[i] = s->ctx->states[i]->name;
    struct tsr_event ev;
    tsr__event_begin(&ev, "lazy_init");
    tsr__event_str(&ev, "g", s->name);
    tsr__event_strs(&ev, "states", names, n);
    tsr__event_bool(&ev, "root_keeps", keeps);
    tsr__event_send(e, &ev);
}

static void lazy_init(struct tsr_engine *e, struct tsr_state *s)
{
    s->is_root = true;
    if (s->n_modules > 1) {
        TSR__RAISE(e, TSR_ERUNTIME, "FSDP requires a single root module but got %s", s->name);
        return;
    }
    struct lazy lazy = {e, s};
    tsr__module_walk(s->modules[0], adopt_state, &lazy);
    if (!tsr__ok(e))
        return;
    bool keeps = s->group && !s->is_replicate && s->group->reshard_kind == TSR_RESHARD_DEFAULT;
    if (keeps)
        s->group->post_forward_size = 0;
    create_streams(e, s->comm);
    for (size_t i = 0; i < s->ctx->n_states; i++) {
        struct tsr_state *t = s->ctx->states[i];
        t->ctx = s->ctx;
        t->comm = s->comm;
        t->lazy_done = true;
        if (t->group)
            t->group->comm = s->comm;
    }
    trace_lazy_init(e, s, keeps);
    for (size_t i = 0; i < s->ctx->n_states; i++)
        if (s->ctx->states[i]->group)
            tsr__group_lazy_init(e, s->ctx->states[i]->group);
}

/* ---- forward hooks --------------------------------------------------------------------------- */
static void root_pre_forward(struct tsr_engine *e, struct tsr_state *s)
{
    if (!s->lazy_done)
        lazy_init(e, s);
    if (!tsr__ok(e) || s->ctx->iter_root)
        return;
    s->ctx->iter_root = s;
    trace_hook(e, "root_pre_forward", s, NULL, false);
    struct tsr_comm_ctx *comm = s->comm;
    if (s->ctx->post_optim_event) {
        tsr__wait_event(e, comm->copy_in, s->ctx->post_optim_event); /* W1 */
        tsr__wait_event(e, comm->all_gather, s->ctx->post_optim_event);
        s->ctx->post_optim_event = 0;
    } else {
        tsr__wait_stream(e, comm->copy_in, e->stream);
        tsr__wait_stream(e, comm->all_gather, e->stream);
    }
}

/* Float inputs are cast to the policy's param dtype at the module's boundary (R65). Takes over and
 * returns a reference. */
static struct tsr_tensor *cast(struct tsr_engine *e, struct tsr_tensor *t, tsr_dtype dtype)
{
    if (!t || dtype == TSR_DTYPE_NONE || !tsr_dtype_is_float((tsr_dtype)t->dtype) ||
        t->dtype == dtype)
        return t;
    struct tsr_tensor *out = tsr_op_cast(e, t, dtype);
    tsr_release(e, t);
    return out;
}

static struct tsr_tensor *cast_input(struct tsr_engine *e, struct tsr_state *s,
                                     struct tsr_tensor *in)
{
    return s->mp.no_cast_inputs ? in : cast(e, in, s->mp.param);
}

/* List groups (3.11, 2.11): the pre-hook body runs for the first module only. */
static bool is_first_of_list(struct tsr_state *s, const struct tsr_module *m)
{
    if (s->n_modules == 1)
        return true;
    bool first = s->n_ran == 0;
    for (size_t i = 0; i < s->n_modules; i++)
        if (s->modules[i] == m && !s->ran[i]) {
            s->ran[i] = true;
            s->n_ran++;
        }
    return first;
}

/* ... and the post-hook body once all have run. */
static bool is_last_of_list(struct tsr_state *s)
{
    if (s->n_modules == 1)
        return true;
    if (s->n_ran < s->n_modules)
        return false;
    s->n_ran = 0;
    for (size_t i = 0; i < s->n_modules; i++)
        s->ran[i] = false;
    return true;
}

struct tsr_tensor *tsr__state_pre_forward(struct tsr_engine *e, struct tsr_state *s,
                                          struct tsr_module *m, struct tsr_tensor *in)
{
    if (!tsr__ok(e) || !is_first_of_list(s, m))
        return in;
    bool recompute = s->training == TSR_PRE_BACKWARD;
    enter_hook(e, s, TSR_HOOK_PRE_FORWARD, TSR_MARK_PRE_FORWARD);
    trace_hook(e, "pre_forward", s, "recompute", recompute);
    if (recompute) {
        /* only a guarantee: an earlier post-backward may have resharded (3.9) */
        if (s->group && s->group->sharded != TSR_UNSHARDED) {
            tsr__group_unshard(e, s->group, s->group->unshard_async_op);
            tsr__group_wait_for_unshard(e, s->group);
        }
        in = cast_input(e, s, in);
    } else {
        s->training = TSR_FORWARD;
        root_pre_forward(e, s);
        in = cast_input(e, s, in);
        if (s->group)
            in = tsr__group_pre_forward(e, s->group, in);
        for (size_t i = 0; i < s->n_fwd_prefetch; i++)
            if (s->fwd_prefetch[i]->group)
                tsr__group_prefetch(e, s->fwd_prefetch[i]->group, true);
    }
    leave_hook(e);
    return in;
}

static void pre_backward(struct tsr_engine *e, void *user, uint32_t arg);

static void register_pre_backward(struct tsr_engine *e, struct tsr_state *s, struct tsr_module *m,
                                  struct tsr_tensor *out)
{
    if (!e->grad_enabled)
        return;
    struct tsr_tensor *outs[2] = {out, m->aux_output};
    int n = 0;
    for (int i = 0; i < 2; i++)
        if (outs[i] && outs[i]->requires_grad) {
            tsr__tensor_hook(e, outs[i], pre_backward, s, 0);
            n++;
        }
    trace_count(e, "register_pre_backward", s, n);
}

static void root_post_forward(struct tsr_engine *e, struct tsr_state *s)
{
    struct tsr_comm_ctx *comm = s->comm;
    if (comm->deferred.output) { /* W8 */
        tsr__wait_event(e, comm->copy_in, comm->deferred.event);
        tsr__wait_event(e, comm->all_gather, comm->deferred.event);
        tsr__storage_release(e, &comm->deferred.output);
        comm->deferred.group = NULL;
    }
    s->ctx->iter_root = NULL;
    trace_hook(e, "root_post_forward", s, NULL, false);
}

struct tsr_tensor *tsr__state_post_forward(struct tsr_engine *e, struct tsr_state *s,
                                           struct tsr_module *m, struct tsr_tensor *out)
{
    if (!tsr__ok(e) || !is_last_of_list(s))
        return out;
    bool recompute = s->training == TSR_PRE_BACKWARD;
    enter_hook(e, s, TSR_HOOK_POST_FORWARD, TSR_MARK_POST_FORWARD);
    trace_hook(e, "post_forward", s, "recompute", recompute);
    if (!recompute) {
        if (s->group)
            tsr__group_post_forward(e, s->group);
        register_pre_backward(e, s, m, out);
        s->training = TSR_IDLE;
        if (s->ctx->iter_root == s)
            root_post_forward(e, s);
    }
    out = cast(e, out, s->mp.output);
    leave_hook(e);
    return out;
}

/* ---- backward hooks -------------------------------------------------------------------------- */
static void finalize_state(struct tsr_engine *e, struct tsr_state *s)
{
    trace_hook(e, "finalize_backward", s, "pending_unshard", s->group && s->group->result.pending);
    /* a list whose modules did not all run starts anew (R119) */
    s->n_ran = 0;
    for (size_t i = 0; i < s->n_modules; i++)
        s->ran[i] = false;
    if (s->group)
        tsr__group_finalize(e, s->group);
}

/* Section 3.10; `user` is the state that queued it. */
static void final_callback(struct tsr_engine *e, void *user)
{
    struct tsr_state *queued_by = user;
    struct tsr_state_ctx *ctx = queued_by->ctx;
    struct tsr_comm_ctx *comm = queued_by->comm;
    bool last = ctx->is_last_backward;
    trace_hook(e, "final_callback", queued_by, "last", last);
    for (size_t i = 0; i < ctx->n_states && tsr__ok(e); i++) {
        struct tsr_state *s = ctx->states[i];
        if (s->group && s->group->training != TSR_POST_BACKWARD)
            tsr__group_post_backward(e, s->group, "final_callback");
        s->training = TSR_IDLE;
        if (s->group)
            s->group->training = TSR_IDLE;
        if (last)
            finalize_state(e, s);
    }
    if (last) {
        comm->n_order = 0;
        if (comm->reduce_scatter_state.input) { /* W14 */
            tsr__wait_event(e, e->stream, comm->reduce_scatter_state.event);
            tsr__storage_release(e, &comm->reduce_scatter_state.input);
        }
    }
    ctx->callback_queued = false;
    trace_hook(e, "final_callback_end", queued_by, NULL, false);
}

static void pre_backward(struct tsr_engine *e, void *user, uint32_t arg)
{
    (void)arg;
    struct tsr_state *s = user;
    if (!tsr__ok(e))
        return;
    e->origin.module = s->modules[0]->id;
    enter_hook(e, s, TSR_HOOK_PRE_BACKWARD, TSR_MARK_PRE_BACKWARD);
    trace_hook(e, "pre_backward", s, "repeat", s->group && s->group->training == TSR_PRE_BACKWARD);
    s->training = TSR_PRE_BACKWARD;
    if (!s->ctx->callback_queued) {
        s->ctx->callback_queued = true;
        struct tsr_callback callback = {final_callback, s};
        if (!TSR__ARENA_PUSH(e, e->callbacks, e->n_callbacks, e->cap_callbacks, callback))
            return;
        trace_hook(e, "queue_final_callback", s, NULL, false);
    }
    if (s->group)
        tsr__group_pre_backward(e, s->group, s->n_bwd_prefetch == 0);
    for (size_t i = 0; i < s->n_bwd_prefetch; i++)
        if (s->bwd_prefetch[i]->group)
            tsr__group_prefetch(e, s->bwd_prefetch[i]->group, false);
    leave_hook(e);
}
