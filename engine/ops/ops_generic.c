/* ops_generic.c: an operation that a model describes by what it costs: FLOP, bytes moved, bytes
 * kept. One kernel forward, one backward. */
#include "engine/ops/ops_common.h"

/* All that is moved is `bytes`, of which what is written goes first; 0: every operand once. */
static void emit(struct tsr_engine *e, const char *name, double flops, double bytes,
                 struct tsr_tensor *const *in, int n_in, struct tsr_tensor *const *out, int n_out)
{
    uint64_t read = 0, written = 0;
    for (int i = 0; i < n_in; i++) {
        tsr__operand_tensor(e, in[i], TSR_READ);
        read += in[i] ? tsr__tensor_bytes(in[i]) : 0;
    }
    for (int i = 0; i < n_out; i++) {
        tsr__operand_tensor(e, out[i], TSR_WRITE);
        written += out[i] ? tsr__tensor_bytes(out[i]) : 0;
    }
    if (bytes > 0) {
        written = tsr_min_u64(written, (uint64_t)bytes);
        read = (uint64_t)bytes - written;
    }
    struct tsr_work work = {.op = TSR_OP_GENERIC,
                            .dtype = in[0]->dtype,
                            .name = name,
                            .flops = flops,
                            .model_flops = flops,
                            .bytes_read = read,
                            .bytes_written = written,
                            .dims = {in[0]->dims[0], in[0]->dims[1]}};
    tsr__emit_op(e, &work);
}

/* a: rows and columns of the input, its dtype, bytes moved; number: FLOP. saved: bytes, input:
 * either or both */
static void generic_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *in[4] = {grad_out[0], NULL, NULL, NULL}, *w = node->w[0];
    int n = 0;
    for (; n < node->n_saved; n++)
        in[1 + n] = tsr__node_saved(e, node, n);
    if (w && node->edges[1].node)
        grad_in[1] =
            tsr__tensor_like(e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, node->edges[1].node));
    if (node->edges[0].node)
        grad_in[0] = tsr__tensor_new(e, (tsr_dtype)node->a[2], 2, node->a, TSR_CAT_TEMP);
    in[1 + n] = w;
    if (tsr__ok(e))
        emit(e, node->label, node->number, (double)node->a[3], in, n + 2, grad_in, w ? 2 : 1);
    for (int i = 0; i < n; i++)
        tsr_release(e, in[1 + i]);
}

struct tsr_tensor *tsr_op_generic(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_param *wp,
                                  const struct tsr_generic *g)
{
    struct tsr_tensor *w = x && wp ? tsr__param_value(e, wp) : NULL;
    if (!x || (wp && !w))
        return NULL;
    uint64_t rows = x->dims[0], kept = rows * g->saved_bytes;
    uint64_t dims[2] = {g->per_sequence ? e->shape.batch : rows, g->out};
    enum tsr_category category = tsr__result_category(e);
    struct tsr_node *node =
        tsr__node_new(e, "Generic", generic_backward, (struct tsr_tensor *[]){x, w}, w ? 2 : 1);
    struct tsr_tensor *y = tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, category);
    struct tsr_tensor *saved = kept ? tsr__tensor_new(e, TSR_U8, 1, &kept, category) : NULL;
    if (y && tsr__ok(e))
        emit(e, g->name, (double)rows * g->flops, (double)rows * g->bytes,
             (struct tsr_tensor *[]){x, w}, 2, (struct tsr_tensor *[]){y, saved}, 2);
    if (saved)
        tsr__node_save(e, node, saved);
    tsr_release(e, saved);
    if (g->saves_input)
        tsr__node_save(e, node, x);
    if (!y)
        return tsr__op_abort(e, node);
    if (node) {
        node->a[0] = rows;
        node->a[1] = x->dims[1];
        node->a[2] = x->dtype;
        node->a[3] = (uint64_t)((double)rows * g->backward_bytes);
        node->number = (double)rows * g->backward_flops;
        node->label = g->name;
        node->w[0] = w;
    }
    tsr__node_output(node, y, 0);
    return y;
}
