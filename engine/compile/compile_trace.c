/* compile_trace.c: a block's eager operations as a graph of values.
 *
 * The model's own code runs, and autograd's nodes after it, but nothing leaves the engine: storages
 * get no memory, and what would be an instruction becomes an operation of the graph. Sums of
 * gradients go into new values, so every value is written once.
 */
#include <string.h>

#include "engine/compile/compile.h"

#define FIRST_VALUE                   UINT32_C(0x80000000) /* buffer ids of traced storages */

#define PUSH(e, items, n, cap, value) (void)TSR__ARENA_PUSH(e, items, n, cap, value)

/* ---- values ---------------------------------------------------------------------------------- */

static uint32_t add_value(struct tsr_engine *e, struct tsr_cgraph *g, struct tsr_cvalue value)
{
    PUSH(e, g->values, g->n_values, g->cap_values, value);
    return (uint32_t)g->n_values - 1;
}

static void on_storage(struct tsr_engine *e, struct tsr_storage *s)
{
    struct tsr_cvalue value = {.kind = TSR_VALUE_RESULT,
                               .bytes = s->bytes,
                               .index = TSR_NONE,
                               .scratch = s->category == TSR_CAT_WORKSPACE};
    s->live = true;
    s->buffer = FIRST_VALUE + add_value(e, e->capture->graph, value);
}

static bool lies_in(const struct tsr_tensor *t, const struct tsr_storage *s, uint64_t offset)
{
    return t->storage == s && offset >= t->offset && offset - t->offset < tsr__tensor_bytes(t);
}

/* A parameter or a buffer of the model, by where it lies. */
static uint32_t outside_value(struct tsr_engine *e, struct tsr_cgraph *g,
                              const struct tsr_storage *s, uint64_t *offset)
{
    for (uint32_t i = 0; i < g->n_values; i++) {
        const struct tsr_cvalue *v = &g->values[i];
        if (v->kind == TSR_VALUE_PARAM && lies_in(g->params[v->index]->value, s, *offset)) {
            *offset -= g->params[v->index]->value->offset;
            return i;
        }
        if (v->kind == TSR_VALUE_BUFFER && v->storage == s)
            return i;
    }
    struct tsr_cvalue value = {
        .kind = TSR_VALUE_BUFFER, .bytes = s->bytes, .storage = (struct tsr_storage *)s};
    return add_value(e, g, value);
}

static uint32_t value_of(const struct tsr_cgraph *g, const struct tsr_storage *s)
{
    TSR_CHECK(s->buffer >= FIRST_VALUE);
    uint32_t v = s->buffer - FIRST_VALUE;
    return g->values[v].kind == TSR_VALUE_ALIAS ? g->values[v].index : v;
}

static void on_operand(struct tsr_engine *e, const struct tsr_storage *s, uint64_t *offset)
{
    struct tsr_capture *c = e->capture;
    if (c->n_pending == TSR_MAX_KERNEL_OPERANDS) {
        TSR__RAISE(e, TSR_EUNSUPPORTED,
                   "dialect compile: an operation of %s has more than %d operands", c->block->fqn,
                   TSR_MAX_KERNEL_OPERANDS);
        return;
    }
    c->pending[c->n_pending++] =
        s->buffer >= FIRST_VALUE ? value_of(c->graph, s) : outside_value(e, c->graph, s, offset);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void on_leaf(struct tsr_engine *e, const struct tsr_tensor *leaf, struct tsr_tensor *grad)
{
    struct tsr_cgraph *g = e->capture->graph;
    if (!leaf || !grad || !tsr__ok(e))
        return;
    if (grad->offset || grad->pitch) {
        TSR__RAISE(e, TSR_EUNSUPPORTED, "dialect compile: a gradient of %s is a slice",
                   e->capture->block->fqn);
        return;
    }
    uint32_t value = value_of(g, grad->storage);
    if (leaf == e->capture->x) {
        g->input_grad = value;
        return;
    }
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i] == leaf->param)
            g->param_grads[i] = value;
}

/* ---- the block ------------------------------------------------------------------------------- */

static void collect_params(struct tsr_engine *e, struct tsr_cgraph *g, const struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_params; i++) {
        bool known = false;
        for (size_t k = 0; k < g->n_params; k++)
            known |= g->params[k] == m->params[i].param;
        if (!known)
            PUSH(e, g->params, g->n_params, g->cap_params, m->params[i].param);
    }
    for (size_t i = 0; i < m->n_children; i++)
        collect_params(e, g, m->children[i]);
}

/* Something inside the block that is wrapped or checkpointed by itself; NULL: nothing. */
static const struct tsr_module *own_call(const struct tsr_module *m)
{
    for (size_t i = 0; i < m->n_children; i++) {
        const struct tsr_module *c = m->children[i];
        if (c->hooks || c->checkpoint.inside || c->checkpoint.outside)
            return c;
        const struct tsr_module *below = own_call(c);
        if (below)
            return below;
    }
    return NULL;
}

static void check_block(struct tsr_engine *e, const struct tsr_module *m)
{
    const struct tsr_module *inner = own_call(m);
    if (inner)
        TSR__RAISE(e, TSR_EUNSUPPORTED,
                   "dialect compile: %s is wrapped or checkpointed inside the block %s, which is "
                   "compiled whole; allowed: whole blocks",
                   inner->fqn, m->fqn);
    if (m->checkpoint.outside)
        TSR__RAISE(e, TSR_EUNSUPPORTED,
                   "dialect compile: the checkpoint of %s lies outside its hooks; allowed: inside",
                   m->fqn);
    if (e->autograd.n_heap > 0)
        TSR__RAISE(e, TSR_EUNSUPPORTED, "dialect compile: %s is first called in a backward",
                   m->fqn);
}

/* Operations of the backward that depend on no gradient (casts of weights) go behind those of the
 * forward: the cut decides which half runs them. */
static void move_free_ops(struct tsr_engine *e, struct tsr_cgraph *g)
{
    struct tsr_cop *order = tsr_arena_alloc(&e->arena, (g->n_ops + 1) * sizeof *order);
    bool *depends = tsr_arena_alloc(&e->arena, g->n_values + 1);
    bool *bound = tsr_arena_alloc(&e->arena, g->n_ops + 1);
    size_t n = 0;
    if (!order || !depends || !bound || g->tangent == TSR_NONE)
        return;
    depends[g->tangent] = true;
    for (size_t i = g->n_forward; i < g->n_ops; i++) {
        const struct tsr_cop *op = &g->ops[i];
        for (uint32_t k = 0; k < op->n_operands; k++)
            bound[i] |= op->operands[k].access == TSR_READ && depends[op->operands[k].value];
        for (uint32_t k = 0; k < op->n_operands && bound[i]; k++)
            if (op->operands[k].access == TSR_WRITE)
                depends[op->operands[k].value] = true;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < g->n_ops; i++)
            if (bound[i] == (pass == 1))
                order[n++] = g->ops[i];
        g->n_forward = pass ? g->n_forward : n;
    }
    memcpy(g->ops, order, n * sizeof *order);
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < g->ops[i].n_operands; k++)
            if (g->ops[i].operands[k].access == TSR_WRITE)
                g->values[g->ops[i].operands[k].value].index = (uint32_t)i;
}

static void trace(struct tsr_engine *e, struct tsr_module *m, const struct tsr_tensor *x,
                  struct tsr_cplan *plan)
{
    struct tsr_cgraph *g = &plan->graph;
    struct tsr_tensor *in =
        tsr__tensor_new(e, (tsr_dtype)x->dtype, x->n_dims, x->dims, TSR_CAT_ACTIVATION);
    if (!in)
        return;
    g->input = value_of(g, in->storage);
    g->values[g->input].kind = TSR_VALUE_INPUT;
    g->values[g->input].dtype = x->dtype;
    in->requires_grad = plan->input_grad;
    e->capture->x = in;
    struct tsr_tensor *out = tsr__call_body(e, m, in), *seed = NULL;
    g->n_forward = g->n_ops;
    if (out && tsr__ok(e)) {
        g->result = value_of(g, out->storage);
        g->result_dims = out->n_dims;
        memcpy(g->result_shape, out->dims, sizeof g->result_shape);
        if (out->offset || out->pitch || g->values[g->result].index == TSR_NONE)
            TSR__RAISE(e, TSR_EUNSUPPORTED, "dialect compile: the result of %s is a view", m->fqn);
    }
    if (out && plan->grad && out->grad_fn && tsr__ok(e)) {
        seed = tsr__tensor_like(e, out, (tsr_dtype)out->dtype, TSR_CAT_TEMP);
        e->capture->backward = true;
        if (seed) {
            g->tangent = value_of(g, seed->storage);
            g->values[g->tangent].kind = TSR_VALUE_TANGENT;
            g->values[g->tangent].dtype = out->dtype;
            tsr__backward_part(e, out, seed);
        }
        if (tsr__ok(e))
            move_free_ops(e, g);
    }
    tsr_release(e, seed);
    tsr_release(e, out);
    tsr_release(e, in);
}

/* The block's parameters as leaves of the trace: they may be views of a flat one outside of it.
 * Returns the tensors that the block computes with otherwise; NULL on failure. */
static struct tsr_tensor **detach_params(struct tsr_engine *e, struct tsr_cgraph *g)
{
    struct tsr_tensor **own = tsr_arena_alloc(&e->arena, (g->n_params + 1) * sizeof *own);
    if (!own)
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
    for (uint32_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_tensor *value = tsr__param_value(e, g->params[i]);
        if (!value)
            return NULL;
        add_value(e, g,
                  (struct tsr_cvalue){.kind = TSR_VALUE_PARAM,
                                      .index = i,
                                      .dtype = value->dtype,
                                      .bytes = tsr__tensor_bytes(value)});
        g->param_grads[i] = TSR_NONE;
        own[i] = value;
    }
    for (uint32_t i = 0; i < g->n_params && tsr__ok(e); i++) {
        struct tsr_tensor *leaf = tsr__tensor_view(e, own[i]->storage, (tsr_dtype)own[i]->dtype,
                                                   own[i]->n_dims, own[i]->dims);
        if (!leaf)
            break;
        leaf->offset = own[i]->offset;
        leaf->requires_grad = own[i]->requires_grad;
        leaf->param = g->params[i];
        g->params[i]->value = leaf;
    }
    return tsr__ok(e) ? own : NULL;
}

static void attach_params(struct tsr_engine *e, struct tsr_cgraph *g, struct tsr_tensor **own)
{
    for (size_t i = 0; own && i < g->n_params; i++) {
        tsr_release(e, g->params[i]->value);
        g->params[i]->value = own[i];
    }
}

static const struct tsr_capture_table table = {on_storage, on_operand, tsr__capture_emit, on_leaf};

/* What of the engine's state a trace changes. */
struct before {
    struct tsr_tensor *(*block_call)(struct tsr_engine *e, struct tsr_module *m,
                                     struct tsr_tensor *in);
    bool traced, instrumented, grad, in_backward;
    int depth;
    struct tsr_region *packing, *unpacking;
    struct tsr_origin origin;
};

static struct before begin(struct tsr_engine *e, struct tsr_capture *capture, bool grad)
{
    const struct before b = {.block_call = e->tree.block_call,
                             .traced = e->emit.has_trace,
                             .instrumented = e->config.instrumented,
                             .grad = e->grad_enabled,
                             .in_backward = e->autograd.in_backward,
                             .depth = e->autograd.recompute_depth,
                             .packing = e->autograd.packing,
                             .unpacking = e->autograd.unpacking,
                             .origin = e->origin};
    e->capture = capture;
    e->emit.capture = &table;
    e->tree.block_call = NULL;
    e->emit.has_trace = false;
    e->config.instrumented = true; /* sums of gradients go into new values */
    e->grad_enabled = grad;
    e->autograd.in_backward = false;
    e->autograd.recompute_depth = 0;
    e->autograd.packing = e->autograd.unpacking = NULL;
    return b;
}

static void end(struct tsr_engine *e, const struct before *b)
{
    e->capture = NULL;
    e->emit.capture = NULL;
    e->tree.block_call = b->block_call;
    e->emit.has_trace = b->traced;
    e->config.instrumented = b->instrumented;
    e->grad_enabled = b->grad;
    e->autograd.in_backward = b->in_backward;
    e->autograd.recompute_depth = b->depth;
    e->autograd.packing = b->packing;
    e->autograd.unpacking = b->unpacking;
    e->origin = b->origin;
}

void tsr__trace_block(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x,
                      struct tsr_cplan *plan)
{
    struct tsr_cgraph *g = &plan->graph;
    struct tsr_capture capture = {.graph = g, .block = m};
    check_block(e, m);
    g->input = g->result = g->tangent = g->input_grad = TSR_NONE;
    collect_params(e, g, m);
    g->param_grads = tsr_arena_alloc(&e->arena, (g->n_params + 1) * sizeof *g->param_grads);
    if (!g->param_grads)
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
    struct tsr_tensor **own = tsr__ok(e) ? detach_params(e, g) : NULL;
    if (!own)
        return;
    struct before before = begin(e, &capture, plan->grad);
    trace(e, m, x, plan);
    end(e, &before);
    attach_params(e, g, own);
}
