/* compile_trace.c: a block's eager operations as a graph of values, and what each of them is in it.
 *
 * The model's own code runs, and autograd's nodes after it, but nothing leaves the engine: storages
 * get no memory, and what would be an instruction becomes an operation of the graph. Sums of
 * gradients go into new values, so every value is written once.
 */
#include <string.h>

#include "engine/compile/compile.h"

/* ---- what an eager operation is in the graph ------------------------------------------------- */

/* What an eager operation is in the graph of a traced block: how it takes part in
 * fusion, and as how many operations.
 *
 * A norm becomes two: statistics (a reduction) and the scaled rows (pointwise); its backward two as
 * well: the gradient of the rows, and the sums over rows for the weights. An operation that came
 * before, on the same values, is not repeated. */

static bool is_named(const struct tsr_work *work, const char *const *names)
{
    for (int i = 0; work->name && names[i]; i++)
        if (strcmp(work->name, names[i]) == 0)
            return true;
    return false;
}

/* Complex products are no Triton: Inductor falls back to the eager kernel. A model with Hugging
 * Face's names turns halves by real products, which fuse. */
static bool is_complex(const struct tsr_engine *e, const struct tsr_work *work)
{
    static const char *const names[] = {"rotary", "rotary_backward", "conjugate", NULL};
    bool halves = e->model->llama && e->model->llama->names == TSR_NAMES_HF;
    return !halves && is_named(work, names);
}

static uint8_t class_of(const struct tsr_engine *e, const struct tsr_work *work)
{
    static const char *const columns[] = {"sum_bias_grad", "sum_weight_grad", NULL};
    static const char *const rows[] = {"mean", "sum", "amax_rows", NULL};
    if (is_complex(e, work))
        return TSR_CLASS_CALL;
    if (is_named(work, columns))
        return TSR_CLASS_COLUMN;
    if (is_named(work, rows) || work->op == TSR_OP_SOFTMAX)
        return TSR_CLASS_ROW;
    return work->op == TSR_OP_POINTWISE ? TSR_CLASS_POINT : TSR_CLASS_CALL;
}

/* The same work on the same operands. */
static bool is_twin(const struct tsr_cop *a, const struct tsr_cop *b)
{
    bool same = a->cls == b->cls && a->n_operands == b->n_operands && a->work.op == b->work.op &&
                a->work.name && b->work.name && strcmp(a->work.name, b->work.name) == 0 &&
                memcmp(a->work.dims, b->work.dims, sizeof a->work.dims) == 0 &&
                a->work.constants[0] == b->work.constants[0] &&
                a->work.constants[1] == b->work.constants[1] && a->work.n_args == b->work.n_args;
    for (uint32_t i = 0; same && i < a->work.n_args; i++)
        same = a->work.args[i] == b->work.args[i];
    for (uint32_t i = 0; same && i < a->n_operands; i++) {
        const struct tsr_coperand *p = &a->operands[i], *q = &b->operands[i];
        same = p->access == q->access && p->slot == q->slot && p->offset == q->offset &&
               p->bytes == q->bytes && p->pitch == q->pitch &&
               (p->access == TSR_WRITE || p->value == q->value);
    }
    return same;
}

/* Common subexpressions: an operation that came before gives its results. */
static bool is_known(struct tsr_cgraph *g, const struct tsr_cop *op)
{
    for (size_t i = 0; i < g->n_ops; i++) {
        const struct tsr_cop *old = &g->ops[i];
        if (!is_twin(old, op))
            continue;
        for (uint32_t k = 0; k < op->n_operands; k++)
            if (op->operands[k].access == TSR_WRITE && !g->values[op->operands[k].value].scratch) {
                g->values[op->operands[k].value].kind = TSR_VALUE_ALIAS;
                g->values[op->operands[k].value].index = old->operands[k].value;
            }
        return true;
    }
    return false;
}

static void copy_operands(struct tsr_cop *op, const struct tsr_coperand *operands, uint32_t n,
                          uint32_t slots)
{
    op->n_operands = 0;
    for (uint32_t i = 0; i < n; i++)
        if (operands[i].slot >= 32 || slots >> operands[i].slot & 1)
            op->operands[op->n_operands++] = operands[i];
}

static void note_operand(struct tsr_engine *e, struct tsr_cgraph *g, struct tsr_cop *op,
                         const struct tsr_coperand *o)
{
    struct tsr_cvalue *v = &g->values[o->value];
    if (o->dtype != TSR_DTYPE_NONE && v->dtype == TSR_DTYPE_NONE)
        v->dtype = o->dtype;
    if (o->access == TSR_READ)
        return;
    unsigned item = tsr_dtype_bytes((tsr_dtype)o->dtype);
    if (!v->scratch && item)
        op->numel = v->bytes / item;
    if (v->kind != TSR_VALUE_RESULT || v->index != TSR_NONE || o->access == TSR_READ_WRITE)
        TSR__RAISE(e, TSR_EUNSUPPORTED,
                   "dialect compile: %s of %s writes in place, which is not modelled",
                   op->work.name ? op->work.name : "an operation", e->capture->block->fqn);
    v->index = (uint32_t)g->n_ops;
}

/* Appends an operation with those operands whose slot is in `slots` (bit i: slot i). */
static void add_op(struct tsr_engine *e, const struct tsr_cop *like,
                   const struct tsr_coperand *operands, uint32_t n, uint32_t slots)
{
    struct tsr_cgraph *g = e->capture->graph;
    struct tsr_cop op = *like;
    op.operands = tsr_arena_alloc(&e->arena, (n + 1) * sizeof *op.operands);
    uint64_t *args = tsr_arena_alloc(&e->arena, (op.work.n_args + 1) * sizeof *args);
    if (!op.operands || !args) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while compiling a block");
        return;
    }
    if (op.work.n_args)
        memcpy(args, op.work.args, op.work.n_args * sizeof *args);
    op.work.args = args;
    copy_operands(&op, operands, n, slots);
    if (is_known(g, &op))
        return;
    for (uint32_t i = 0; i < op.n_operands; i++)
        note_operand(e, g, &op, &op.operands[i]);
    (void)TSR__ARENA_PUSH(e, g->ops, g->n_ops, g->cap_ops, op);
}

enum { ALL_SLOTS = UINT32_MAX };

/* x 0, w 1, b 2, y 3, mean 4, 1 / root 5 */
static void add_norm(struct tsr_engine *e, struct tsr_cop *op, const struct tsr_coperand *operands,
                     uint32_t n)
{
    struct tsr_coperand read[TSR_MAX_KERNEL_OPERANDS];
    uint32_t m = 0;
    op->cls = TSR_CLASS_ROW;
    op->work.flops /= 2;
    add_op(e, op, operands, n, 1u << 0 | 1u << 4 | 1u << 5);
    for (uint32_t i = 0; i < n; i++) { /* the statistics are now read */
        read[m] = operands[i];
        if (read[m].slot >= 4)
            read[m].access = TSR_READ;
        m++;
    }
    op->cls = TSR_CLASS_POINT;
    add_op(e, op, read, m, ALL_SLOTS);
}

/* g 0, x 1, w 2, gx 3, gw 4, gb 5, statistics 6, 7 */
static void add_norm_backward(struct tsr_engine *e, struct tsr_cop *op,
                              const struct tsr_coperand *operands, uint32_t n)
{
    bool rows = false, columns = false;
    for (uint32_t i = 0; i < n; i++) {
        rows |= operands[i].slot == 3;
        columns |= operands[i].slot == 4 || operands[i].slot == 5;
    }
    op->work.flops /= 2;
    op->cls = TSR_CLASS_ROW;
    if (rows)
        add_op(e, op, operands, n, 0xff & ~(1u << 4 | 1u << 5));
    op->cls = TSR_CLASS_COLUMN;
    if (columns)
        add_op(e, op, operands, n, 0xff & ~(1u << 2 | 1u << 3));
}

/* A column sum, without the scratch of the eager kernel. */
static void add_column_sum(struct tsr_engine *e, struct tsr_cop *op,
                           const struct tsr_coperand *operands, uint32_t n)
{
    add_op(e, op, operands, n, 1u << 0 | 1u << 3);
}

/* What would be an instruction becomes an operation of the graph. */
static void tsr__capture_emit(struct tsr_engine *e, const struct tsr_instr *instr)
{
    struct tsr_capture *c = e->capture;
    struct tsr_coperand operands[TSR_MAX_KERNEL_OPERANDS];
    static const struct tsr_work fill = {.op = TSR_OP_POINTWISE, .name = "fill"};
    bool known = instr->kind == TSR_OP || instr->kind == TSR_COPY || instr->kind == TSR_FILL;
    if (!known) {
        TSR__RAISE(e, TSR_EUNSUPPORTED, "dialect compile: %s inside the block %s breaks its graph",
                   tsr_instr_kind_name(instr->kind), c->block->fqn);
        return;
    }
    TSR_CHECK(c->n_pending == e->emit.n_operands);
    for (uint32_t i = 0; i < e->emit.n_operands; i++) {
        const struct tsr_operand *o = &e->emit.operands[i];
        operands[i] = (struct tsr_coperand){.value = c->pending[i],
                                            .access = o->access,
                                            .dtype = o->dtype,
                                            .slot = o->slot,
                                            .offset = o->offset,
                                            .bytes = o->bytes,
                                            .width = o->width,
                                            .pitch = o->pitch};
    }
    c->n_pending = 0;
    struct tsr_cop op = {.work = instr->work ? *instr->work : fill,
                         .module = e->origin.module,
                         .backward = c->backward};
    op.cls = class_of(e, &op.work);
    op.rows = op.work.dims[0];
    op.columns = op.work.dims[1];
    uint32_t n = (uint32_t)e->emit.n_operands;
    for (uint32_t i = 0; i < n && op.work.op == TSR_OP_GEMM; i++)
        op.takes_lt |= operands[i].slot == 2 && operands[i].access == TSR_READ;
    op.takes_lt &= op.work.name && strcmp(op.work.name, "addmm") == 0;
    if (op.work.op == TSR_OP_NORM)
        add_norm(e, &op, operands, n);
    else if (op.work.op == TSR_OP_NORM_BWD)
        add_norm_backward(e, &op, operands, n);
    else if (op.cls == TSR_CLASS_COLUMN)
        add_column_sum(e, &op, operands, n);
    else
        add_op(e, &op, operands, n, ALL_SLOTS);
}

/* ---- x --------------------------------------------------------------------------------------- */

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
    if (e->tp->size > 1)
        TSR__RAISE(e, TSR_EUNSUPPORTED,
                   "dialect compile: tensor parallelism breaks the graph of %s", m->fqn);
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
