/* compile_run.c: calls of a compiled block: its kernels, and one node for its backward.
 *
 * Results are allocated just before the kernel that makes them and freed after the last one that
 * reads them, as Inductor's wrapper does. The backward is one node: the gradients of all parameters
 * of the block reach their leaves together, at its end.
 */
#include "engine/compile/compile.h"

#include <string.h>

/* ---- plans ----------------------------------------------------------------------------------- */

static struct tsr_cplan *find_plan(struct tsr_module *m, const struct tsr_cplan *like)
{
    for (struct tsr_cplan *p = m->plans; p; p = p->next)
        if (p->tokens == like->tokens && p->width == like->width && p->dtype == like->dtype &&
            p->grad == like->grad && p->input_grad == like->input_grad &&
            p->selective == like->selective && p->full == like->full)
            return p;
    return NULL;
}

/* The cut also has what only the recomputation of the block's result would read. */
static void drop_unused(struct tsr_cplan *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_saved; i++) {
        bool used = false;
        for (size_t k = 0; k < p->backward.n && !used; k++)
            for (uint32_t o = 0; o < p->backward.kernels[k].n_operands && !used; o++)
                used = p->backward.kernels[k].operands[o].value == p->saved[i];
        if (used)
            p->saved[n++] = p->saved[i];
    }
    p->n_saved = n;
}

static struct tsr_cplan *make_plan(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x,
                                   const struct tsr_cplan *like)
{
    struct tsr_cplan *p = tsr_arena_alloc(&e->arena, sizeof *p);
    if (!p) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
        return NULL;
    }
    *p = *like;
    tsr__trace_block(e, m, x, p);
    if (p->grad) {
        tsr__cut(e, p);
        tsr__fuse(e, p, true);
        drop_unused(p);
    }
    tsr__fuse(e, p, false);
    size_t n = p->graph.n_values + 1;
    p->table = tsr_arena_alloc(&e->arena, n * sizeof(struct tsr_storage *));
    p->offsets = tsr_arena_alloc(&e->arena, n * sizeof *p->offsets);
    if (!p->table || !p->offsets)
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
    p->next = m->plans;
    m->plans = p;
    return tsr__ok(e) ? p : NULL;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void borrow(struct tsr_cplan *p, uint32_t value, const struct tsr_tensor *t)
{
    p->table[value] = t->storage;
    p->offsets[value] = t->offset;
}

static void borrow_params(struct tsr_engine *e, struct tsr_cplan *p)
{
    const struct tsr_cgraph *g = &p->graph;
    for (uint32_t v = 0; v < g->n_values && tsr__ok(e); v++) {
        const struct tsr_cvalue *value = &g->values[v];
        struct tsr_tensor *t =
            value->kind == TSR_VALUE_PARAM ? tsr__param_value(e, g->params[value->index]) : NULL;
        if (t)
            borrow(p, v, t);
        if (value->kind == TSR_VALUE_BUFFER)
            p->table[v] = value->storage;
    }
}

static enum tsr_category category_of(const struct tsr_engine *e, const struct tsr_cplan *p,
                                     uint32_t v, const struct tsr_node *node)
{
    const struct tsr_cgraph *g = &p->graph;
    if (g->values[v].scratch)
        return TSR_CAT_WORKSPACE;
    for (size_t i = 0; node && i < g->n_params; i++)
        if (g->param_grads[i] == v)
            return tsr__grad_category(e, node->edges[1 + i].node);
    return tsr__result_category(e);
}

/* Memory of what the kernel writes: an input's, or new. */
static void provide(struct tsr_engine *e, struct tsr_cplan *p, const struct tsr_ckernel *k,
                    const struct tsr_node *node)
{
    for (uint32_t i = 0; i < k->n_operands && tsr__ok(e); i++) {
        uint32_t v = k->operands[i].value;
        if (k->operands[i].access != TSR_WRITE || p->table[v])
            continue;
        p->offsets[v] = 0;
        if (k->over[i] != TSR_NONE) {
            p->table[v] = p->table[k->over[i]];
            p->table[k->over[i]] = NULL;
        } else {
            p->table[v] = tsr__storage_new(e, p->graph.values[v].bytes, category_of(e, p, v, node));
        }
    }
}

static void push_operand(struct tsr_engine *e, const struct tsr_coperand *o, struct tsr_storage *s,
                         uint64_t offset)
{
    tsr__slot(e, o->slot);
    if (o->pitch == 0) {
        tsr__operand(e, s, offset + o->offset, o->bytes, o->access, (tsr_dtype)o->dtype);
        return;
    }
    uint64_t rows = tsr_ceil_div(o->bytes, o->pitch);
    const struct tsr_tensor slice = {.dtype = o->dtype,
                                     .numel =
                                         rows * o->width / tsr_dtype_bytes((tsr_dtype)o->dtype),
                                     .offset = offset + o->offset,
                                     .width = o->width,
                                     .pitch = o->pitch,
                                     .storage = s};
    tsr__operand_tensor(e, &slice, o->access);
}

/* Reads operand 0 and writes operand 1; of an all-reduce both are one memory. */
static void launch_collective(struct tsr_engine *e, const struct tsr_cplan *p,
                              const struct tsr_ckernel *k, struct tsr_storage *from,
                              uint64_t offset)
{
    struct tsr_tensor t[2];
    for (int i = 0; i < 2; i++) {
        const struct tsr_coperand *o = &k->operands[i];
        t[i] = (struct tsr_tensor){.dtype = o->dtype,
                                   .numel = o->bytes / tsr_dtype_bytes((tsr_dtype)o->dtype),
                                   .offset = i ? 0 : offset + o->offset,
                                   .storage = i ? p->table[o->value] : from};
    }
    tsr__tp_collective(e, k->collective, k->reduce_op, &t[0],
                       t[0].storage == t[1].storage ? &t[0] : &t[1]);
}

static void launch(struct tsr_engine *e, struct tsr_cplan *p, const struct tsr_ckernel *k,
                   const struct tsr_node *node)
{
    struct tsr_storage *read[TSR_MAX_KERNEL_OPERANDS] = {NULL};
    uint64_t offset[TSR_MAX_KERNEL_OPERANDS] = {0};
    for (uint32_t i = 0; i < k->n_operands; i++) { /* a result may take the memory of one of them */
        read[i] = p->table[k->operands[i].value];
        offset[i] = p->offsets[k->operands[i].value];
    }
    e->origin.module = k->module;
    e->autograd.recompute_depth += k->recompute;
    e->origin.recompute = e->autograd.recompute_depth > 0;
    provide(e, p, k, node);
    for (uint32_t i = 0; i < k->n_operands && tsr__ok(e) && !k->collective; i++) {
        const struct tsr_coperand *o = &k->operands[i];
        bool reads = o->access == TSR_READ;
        push_operand(e, o, reads ? read[i] : p->table[o->value], reads ? offset[i] : 0);
    }
    if (tsr__ok(e) && k->collective)
        launch_collective(e, p, k, read[0], offset[0]);
    else if (tsr__ok(e))
        tsr__emit_op(e, &k->work);
    e->autograd.recompute_depth -= k->recompute;
    e->origin.recompute = e->autograd.recompute_depth > 0;
    if (k->is_product)
        tsr__take_workspace(e, k->takes_lt);
    for (uint32_t i = 0; i < k->n_dead; i++)
        tsr__storage_release(e, &p->table[k->dead[i]]);
}

static void run(struct tsr_engine *e, struct tsr_cplan *p, const struct tsr_cschedule *schedule,
                const struct tsr_node *node)
{
    for (size_t i = 0; i < schedule->n && tsr__ok(e); i++)
        launch(e, p, &schedule->kernels[i], node);
}

/* A tensor over what a value lies in, and the reference that the table had. */
static struct tsr_tensor *take(struct tsr_engine *e, struct tsr_cplan *p, uint32_t v, int n_dims,
                               const uint64_t *dims)
{
    const struct tsr_cvalue *value = &p->graph.values[v];
    unsigned item = tsr_dtype_bytes((tsr_dtype)value->dtype);
    uint64_t numel = item ? value->bytes / item : value->bytes;
    tsr_dtype dtype = item ? (tsr_dtype)value->dtype : TSR_U8;
    struct tsr_tensor *t =
        tsr__tensor_view(e, p->table[v], dtype, dims ? n_dims : 1, dims ? dims : &numel);
    if (t) {
        t->offset = p->offsets[v];
        t->is_view = false;
    }
    return t;
}

/* Drops the references that a run's end, or its failure, left in the table. */
static void clear(struct tsr_engine *e, struct tsr_cplan *p, bool owns_input)
{
    for (uint32_t v = 0; v < p->graph.n_values; v++) {
        uint8_t kind = p->graph.values[v].kind;
        if (kind == TSR_VALUE_RESULT || (kind == TSR_VALUE_INPUT && owns_input))
            tsr__storage_release(e, &p->table[v]);
        p->table[v] = NULL;
        p->offsets[v] = 0;
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* ptr: the plan. saved: plan->saved */
static void compiled_backward(struct tsr_engine *e, struct tsr_node *node,
                              struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_cplan *p = node->ptr;
    const struct tsr_cgraph *g = &p->graph;
    borrow_params(e, p);
    for (size_t i = 0; i < p->n_saved && tsr__ok(e); i++) {
        struct tsr_tensor *t = tsr__node_saved(e, node, (int)i);
        if (!t)
            continue;
        tsr__storage_retain(t->storage);
        borrow(p, p->saved[i], t);
        tsr_release(e, t);
        tsr_release(e, node->saved[i].tensor); /* freed as soon as no kernel needs it */
        node->saved[i].tensor = NULL;
    }
    borrow(p, g->tangent, grad_out[0]);
    run(e, p, &p->backward, node);
    const uint64_t dims[2] = {p->tokens, p->width};
    if (tsr__ok(e) && g->input_grad != TSR_NONE && node->edges[0].node)
        grad_in[0] = take(e, p, g->input_grad, 2, dims);
    for (size_t i = 0; i < g->n_params && tsr__ok(e); i++)
        if (g->param_grads[i] != TSR_NONE && node->edges[1 + i].node)
            grad_in[1 + i] =
                take(e, p, g->param_grads[i], g->params[i]->n_dims, g->params[i]->shape);
    clear(e, p, true);
}

static struct tsr_node *new_node(struct tsr_engine *e, struct tsr_cplan *p, struct tsr_tensor *x)
{
    struct tsr_tensor *inputs[TSR_MAX_EDGES] = {x};
    const struct tsr_cgraph *g = &p->graph;
    if (g->n_params + 1 > TSR_MAX_EDGES) {
        TSR__RAISE(e, TSR_EUNSUPPORTED, "dialect compile: a block has %zu parameters; allowed: %d",
                   g->n_params, TSR_MAX_EDGES - 1);
        return NULL;
    }
    for (size_t i = 0; i < g->n_params; i++)
        inputs[1 + i] = tsr__param_value(e, g->params[i]);
    struct tsr_node *node =
        tsr__node_new(e, "CompiledFunction", compiled_backward, inputs, 1 + (int)g->n_params);
    if (node)
        node->ptr = p;
    return node;
}

static struct tsr_tensor *run_forward(struct tsr_engine *e, struct tsr_cplan *p,
                                      struct tsr_tensor *x)
{
    const struct tsr_cgraph *g = &p->graph;
    struct tsr_node *node = new_node(e, p, x);
    borrow_params(e, p);
    borrow(p, g->input, x);
    run(e, p, &p->forward, NULL);
    struct tsr_tensor *y = NULL;
    if (tsr__ok(e))
        y = take(e, p, g->result, g->result_dims, g->result_shape);
    for (size_t i = 0; node && i < p->n_saved && tsr__ok(e); i++) {
        struct tsr_tensor *t = take(e, p, p->saved[i], 0, NULL);
        tsr__node_save(e, node, t);
        tsr_release(e, t);
    }
    clear(e, p, false);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}

static struct tsr_tensor *compiled_call(struct tsr_engine *e, struct tsr_module *m,
                                        struct tsr_tensor *x)
{
    if (!x || !tsr__ok(e))
        return NULL;
    const struct tsr_checkpoint_mode *checkpoint = &m->checkpoint;
    struct tsr_cplan like = {.tokens = x->dims[0],
                             .width = x->n_dims > 1 ? x->dims[1] : 1,
                             .dtype = x->dtype,
                             .grad = e->grad_enabled,
                             .input_grad = e->grad_enabled && x->requires_grad,
                             .selective = checkpoint->inside && checkpoint->selective,
                             .full = checkpoint->inside && !checkpoint->selective};
    struct tsr_cplan *p = find_plan(m, &like);
    if (!p)
        p = make_plan(e, m, x, &like);
    return p ? run_forward(e, p, x) : NULL;
}

void tsr__compile_begin(struct tsr_engine *e)
{
    if (e->config.dialect == TSR_DIALECT_COMPILE)
        e->tree.block_call = compiled_call;
}
