/* call.c: a module call with everything that hangs on it, in PyTorch's order: activation
 * checkpoint around the whole call, the wrapper's pre-forward, the forward (checkpointed by itself
 * if so asked), the wrapper's post-forward.
 */
#include "engine/graph/engine.h"

static void trace_fwd(struct tsr_engine *e, struct tsr_module *m)
{
    if (!e->emit.has_trace)
        return;
    struct tsr_event ev;
    tsr__event_begin(&ev, "fwd");
    tsr__event_str(&ev, "m", m->fqn);
    tsr__event_bool(&ev, "recompute", e->autograd.recompute_depth > 0);
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

static bool is_block(const struct tsr_module *m)
{
    return m->forward && m->parent && m->parent->no_forward;
}

struct tsr_tensor *tsr__call_hooks(struct tsr_engine *e, struct tsr_module *m,
                                   struct tsr_tensor *in)
{
    struct tsr_tensor *x = tsr_retain(in), *out;
    uint32_t module = e->origin.module;
    e->origin.module = m->id;
    if (m->hooks)
        x = m->hooks->pre_forward(e, m, x);
    if (m->n_params > 0 && tsr__ok(e))
        trace_fwd(e, m);
    if (e->tree.block_call && is_block(m))
        out = e->tree.block_call(e, m, x);
    else if (m->checkpoint.inside)
        out = tsr__checkpoint_call(e, m, x, false);
    else
        out = tsr__call_body(e, m, x);
    tsr_release(e, x);
    e->origin.module = m->id;
    if (m->hooks && m->hooks->post_forward)
        out = m->hooks->post_forward(e, m, out);
    tsr_release(e, m->aux_output);
    m->aux_output = NULL;
    if (e->emit.has_trace && m->n_params > 0 && out && out->grad_fn &&
        e->autograd.recompute_depth == 0 && tsr__ok(e))
        tsr__node_hook(e, out->grad_fn, trace_bwd, m, 0);
    e->origin.module = module;
    return out;
}

struct tsr_tensor *tsr_call(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *in)
{
    if (!tsr__ok(e))
        return NULL;
    bool again = e->autograd.unpacking && e->autograd.unpacking->module == m &&
                 e->autograd.unpacking->outside;
    if (m->checkpoint.outside && !again)
        return tsr__checkpoint_call(e, m, in, true);
    return tsr__call_hooks(e, m, in);
}
