/* compile_ops.c: what an eager operation is in the graph of a traced block: how it takes part in
 * fusion, and as how many operations.
 *
 * A norm becomes two: statistics (a reduction) and the scaled rows (pointwise); its backward two as
 * well: the gradient of the rows, and the sums over rows for the weights. An operation that came
 * before, on the same values, is not repeated.
 */
#include <string.h>

#include "engine/compile/compile.h"

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
    if (o->access == TSR_READ) {
        if (v->kind == TSR_VALUE_RESULT && v->index == TSR_NONE)
            TSR__RAISE(e, TSR_EUNSUPPORTED,
                       "dialect compile: %s of %s reads what nothing wrote, which is not modelled",
                       op->work.name ? op->work.name : "an operation", e->capture->block->fqn);
        return;
    }
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

static bool is_collective(const struct tsr_engine *e, const struct tsr_instr *instr)
{
    return (instr->kind == TSR_ALL_GATHER || instr->kind == TSR_REDUCE_SCATTER ||
            instr->kind == TSR_ALL_REDUCE) &&
           instr->comm == e->tp->comm && e->tp->size > 1;
}

/* What would be an instruction becomes an operation of the graph. */
void tsr__capture_emit(struct tsr_engine *e, const struct tsr_instr *instr)
{
    struct tsr_capture *c = e->capture;
    struct tsr_coperand operands[TSR_MAX_KERNEL_OPERANDS];
    static const struct tsr_work fill = {.op = TSR_OP_POINTWISE, .name = "fill"};
    bool known = instr->kind == TSR_OP || instr->kind == TSR_COPY || instr->kind == TSR_FILL;
    bool collective = is_collective(e, instr);
    if (!known && !collective) {
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
    if (collective) {
        op.work = (struct tsr_work){
            .op = TSR_OP_GENERIC, .dtype = instr->dtype, .name = tsr_instr_kind_name(instr->kind)};
        op.collective = instr->kind;
        op.reduce_op = instr->reduce_op;
    }
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
