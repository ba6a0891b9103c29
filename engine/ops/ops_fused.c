/* ops_fused.c: fused kernels between the matrix products: sums in place, rotation of queries and
 * keys, SwiGLU (ops_fused.h).
 */
#include "engine/ops/ops_fused.h"

tsr_status tsr__check_dialect(const struct tsr_engine *e, enum tsr_impl impl)
{
    if (!tsr__is_fused(e) || impl == TSR_IMPL_PLAIN)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED, "the fused dialect has no kernels for the modules of "
                                      "transformers; allowed: plain modules");
}

static bool is_sole(const struct tsr_tensor *t, int holders)
{
    return t->refs == holders && t->storage->refs == 1 && t->offset == 0 && t->pitch == 0 &&
           t->layout == TSR_LAYOUT_TOKENS && t->storage->bytes == tsr__tensor_bytes(t);
}

struct tsr_tensor *tsr__result_over(struct tsr_engine *e, struct tsr_tensor *t, int holders,
                                    enum tsr_category category)
{
    if (!t)
        return NULL;
    if (!is_sole(t, holders))
        return tsr__tensor_like(e, t, (tsr_dtype)t->dtype, category);
    struct tsr_tensor *y = tsr__tensor_view(e, t->storage, (tsr_dtype)t->dtype, t->n_dims, t->dims);
    if (y)
        y->is_view = false; /* it will be the only handle */
    return y;
}

/* How many references to a saved tensor there are after tsr__node_saved(): its own, and the node's
 * unless it was recomputed. */
static int saved_holders(const struct tsr_node *node, int i, const struct tsr_tensor *t)
{
    return node->saved[i].tensor == t ? 2 : 1;
}

struct tsr_tensor *tsr__waiting_gradient(struct tsr_engine *e, const struct tsr_node *node,
                                         int edge, tsr_dtype dtype, uint64_t numel)
{
    const struct tsr_node *to = node->edges[edge].node;
    if (!tsr__is_fused(e) || e->config.instrumented || !to || to->seq == UINT64_MAX)
        return NULL;
    struct tsr_tensor *first = to->grads[node->edges[edge].output];
    bool fits = first && first->dtype == dtype && first->numel == numel && is_sole(first, 1);
    return fits ? tsr_retain(first) : NULL;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void add_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                         struct tsr_tensor **grad_in)
{
    (void)e;
    for (int i = 0; i < 2; i++)
        if (node->edges[i].node)
            grad_in[i] = tsr_retain(grad_out[0]);
}

struct tsr_tensor *tsr__op_add_over(struct tsr_engine *e, struct tsr_tensor *a,
                                    struct tsr_tensor *b)
{
    if (!a || !b)
        return NULL;
    if (a->dtype != b->dtype)
        return tsr_op_add(e, a, b);
    struct tsr_tensor *in[2] = {a, b};
    struct tsr_node *node = tsr__node_new(e, "Add", add_backward, in, 2);
    struct tsr_tensor *y = tsr__result_over(e, b, 1, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__emit_pointwise(e, "add", in, 2, y);
    tsr__node_output(node, y, 0);
    return y;
}

/* ---- rotation -------------------------------------------------------------------------------- */

/* a: sequence, head size, 1 for the opposite direction. Either tensor may be NULL. */
static void emit_rotation(struct tsr_engine *e, struct tsr_tensor *const in[2],
                          struct tsr_tensor *const out[2], const uint64_t a[3])
{
    struct tsr_work work = {
        .op = TSR_OP_POINTWISE, .name = "fused_rope", .bytes_read = 4 * a[0] * a[1]};
    if (!tsr__ok(e) || (!out[0] && !out[1]))
        return;
    for (int i = 0; i < 4; i++) {
        struct tsr_tensor *t = i < 2 ? in[i] : out[i - 2];
        if (i == 2) {
            tsr__slot(e, 1);
            tsr__rotary_table_operand(e, a[0], a[1]);
        }
        if (!t)
            continue;
        tsr__slot(e, i < 2 ? 0 : 2);
        tsr__operand_tensor(e, t, i < 2 ? TSR_READ : TSR_WRITE);
        *(i < 2 ? &work.bytes_read : &work.bytes_written) += tsr__tensor_bytes(t);
        if (i >= 2)
            work.flops += 3.0 * (double)t->numel;
        work.dtype = t->dtype;
        work.dims[0] = t->dims[0];
    }
    work.dims[1] = a[1];
    tsr__push_arg(e, a[0]);
    tsr__push_arg(e, a[1]);
    tsr__push_arg(e, e->model->llama && e->model->llama->names == TSR_NAMES_HF);
    tsr__push_arg(e, a[2]);
    tsr__emit_op(e, &work);
}

static void rotate_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    const uint64_t a[3] = {node->a[0], node->a[1], 1};
    for (int i = 0; i < 2; i++)
        if (grad_out[i])
            grad_in[i] = tsr__result_over(e, grad_out[i], 1, TSR_CAT_TEMP);
    emit_rotation(e, grad_out, grad_in, a);
}

void tsr__op_rotate(struct tsr_engine *e, struct tsr_tensor **q, struct tsr_tensor **k,
                    uint64_t seq, uint64_t head_dim)
{
    struct tsr_tensor *in[2] = {*q, *k}, *out[2] = {NULL, NULL};
    struct tsr_node *node = NULL;
    if (*q && *k) {
        const uint64_t a[3] = {seq, head_dim, 0};
        node = tsr__node_new(e, "Rotate", rotate_backward, in, 2);
        if (node) {
            node->a[0] = seq;
            node->a[1] = head_dim;
        }
        for (int i = 0; i < 2; i++)
            out[i] = tsr__result_over(e, in[i], 1, tsr__result_category(e));
        emit_rotation(e, in, out, a);
    }
    for (int i = 0; node && i < 2; i++)
        if (node->edges[i].node && out[i]) {
            node->refs += i == 0; /* the first output takes the creator's, which goes below */
            tsr__node_output(node, out[i], i);
        }
    tsr__node_release(e, node);
    tsr_release(e, *q);
    tsr_release(e, *k);
    *q = out[0];
    *k = out[1];
}

/* ---- SwiGLU ---------------------------------------------------------------------------------- */

static void emit_swiglu(struct tsr_engine *e, const char *name, struct tsr_tensor *const *in,
                        int n_in, struct tsr_tensor *const *out, int n_out)
{
    struct tsr_work work = {.op = TSR_OP_POINTWISE, .name = name};
    for (int i = 0; i < n_in + n_out; i++) {
        struct tsr_tensor *t = i < n_in ? in[i] : out[i - n_in];
        if (t)
            *(i < n_in ? &work.bytes_read : &work.bytes_written) += tsr__tensor_bytes(t);
        tsr__operand_tensor(e, t, i < n_in ? TSR_READ : TSR_WRITE);
    }
    work.dtype = in[0]->dtype;
    work.flops = (n_out > 1 ? 10.0 : 5.0) * (double)in[0]->numel;
    work.dims[0] = in[0]->dims[0];
    work.dims[1] = in[0]->dims[1];
    tsr__emit_op(e, &work);
}

/* saved: gate, up */
static void swiglu_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *saved[2];
    for (int i = 0; i < 2; i++)
        saved[i] = tsr__node_saved(e, node, i);
    for (int i = 0; i < 2 && saved[0] && saved[1]; i++)
        if (node->edges[i].node)
            grad_in[i] =
                tsr__result_over(e, saved[i], saved_holders(node, i, saved[i]), TSR_CAT_TEMP);
    if (tsr__ok(e) && saved[0] && saved[1])
        emit_swiglu(e, "fused_swiglu_backward",
                    (struct tsr_tensor *[]){grad_out[0], saved[0], saved[1]}, 3, grad_in, 2);
    tsr_release(e, saved[0]);
    tsr_release(e, saved[1]);
}

struct tsr_tensor *tsr__op_swiglu(struct tsr_engine *e, struct tsr_tensor *gate,
                                  struct tsr_tensor *up)
{
    if (!gate || !up)
        return NULL;
    struct tsr_tensor *in[2] = {gate, up};
    struct tsr_node *node = tsr__node_new(e, "SwiGLU", swiglu_backward, in, 2);
    tsr__node_save(e, node, gate);
    tsr__node_save(e, node, up);
    struct tsr_tensor *y =
        tsr__tensor_like(e, gate, tsr__promote(gate->dtype, up->dtype), tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    if (tsr__ok(e))
        emit_swiglu(e, "fused_swiglu", in, 2, &y, 1);
    tsr__node_output(node, y, 0);
    return y;
}
