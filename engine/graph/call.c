/* call.c: a module call with everything that hangs on it, in PyTorch's order: activation
 * checkpoint around the whole call, FSDP pre-forward, the forward (checkpointed by itself if so
 * asked), FSDP post-forward.
 */
#include "engine/compile/compile.h"
#include "engine/fsdp1/fsdp1.h"

static void trace_fwd(struct tsr_engine *e, struct tsr_module *m)
{
    if (!e->has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "fwd");
    tsr__event_str(&ev, "m", m->fqn);
    tsr__event_bool(&ev, "recompute", e->recompute_depth > 0);
    tsr__event_send(e, &ev);
}

static void trace_bwd(struct tsr_engine *e, void *module, uint32_t arg)
{
    (void)arg;
    struct tsr_event ev;
    tsr__event_begin(&ev, "bwd");
    tsr__event_str(&ev, "m", ((struct tsr_module *)module)->fqn);
    tsr__event_send(e, &ev);
}

struct tsr_tensor *tsr__call_body(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *in)
{
    struct tsr_tensor *out = NULL;
    if (tsr__ok(e))
        m->forward(e, m, m->impl, in, &out);
    return out;
}

/* The hooks of a list also run when a recomputation has stopped early, without an output. */
static struct tsr_tensor *stopped_list_post_forward(struct tsr_engine *e, struct tsr_module *m,
                                                    struct tsr_tensor *out)
{
    tsr_release(e, out);
    e->stopped = false;
    out = tsr__state_post_forward(e, m->state, m, NULL);
    e->stopped = true;
    return out;
}

struct tsr_tensor *tsr__call_hooks(struct tsr_engine *e, struct tsr_module *m,
                                   struct tsr_tensor *in)
{
    struct tsr_tensor *x = tsr_retain(in), *out;
    uint32_t module = e->origin.module;
    e->origin.module = m->id;
    if (m->state && m->state->flat)
        x = tsr__fsdp1_pre_forward(e, m->state->flat, x);
    else if (m->state)
        x = tsr__state_pre_forward(e, m->state, m, x);
    else if (e->reducer && m == e->root)
        x = tsr__reducer_pre_forward(e, x);
    if (m->n_params > 0 && tsr__ok(e))
        trace_fwd(e, m);
    if (tsr__is_compiled(e, m))
        out = tsr__compiled_call(e, m, x);
    else if (m->checkpoint.inside)
        out = tsr__checkpoint_call(e, m, x, false);
    else
        out = tsr__call_body(e, m, x);
    tsr_release(e, x);
    e->origin.module = m->id;
    if (m->state && m->state->flat)
        out = tsr__fsdp1_post_forward(e, m->state->flat, out, m->aux_output);
    else if (m->state && tsr__ok(e))
        out = tsr__state_post_forward(e, m->state, m, out);
    else if (m->state && m->state->n_modules > 1 && e->stopped && e->status == TSR_OK)
        out = stopped_list_post_forward(e, m, out);
    tsr_release(e, m->aux_output);
    m->aux_output = NULL;
    if (e->has_trace && m->n_params > 0 && out && out->grad_fn && e->recompute_depth == 0 &&
        tsr__ok(e))
        tsr__node_hook(e, out->grad_fn, trace_bwd, m, 0);
    e->origin.module = module;
    return out;
}

struct tsr_tensor *tsr_call(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *in)
{
    if (!tsr__ok(e))
        return NULL;
    bool again = e->unpacking && e->unpacking->module == m && e->unpacking->outside;
    if (m->checkpoint.outside && !again)
        return tsr__checkpoint_call(e, m, in, true);
    return tsr__call_hooks(e, m, in);
}
