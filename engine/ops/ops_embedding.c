/* ops_embedding.c: embeddings. Their backward sorts the ids of more than 3072 tokens, which takes
 * memory of the order of the gradient (operators.md, section 11).
 */
#include "engine/ops/ops_common.h"

enum { MAX_SCRATCH = 12 };

struct sorting {
    struct tsr_tensor *held[MAX_SCRATCH]; /* until the gradient is complete */
    int n;
};

static void hold(struct tsr_engine *e, struct sorting *s, uint64_t bytes)
{
    s->held[s->n++] = tsr__workspace(e, bytes);
}

static void passing(struct tsr_engine *e, uint64_t bytes)
{
    tsr_release(e, tsr__workspace(e, bytes));
}

static void drop_last(struct tsr_engine *e, struct sorting *s)
{
    tsr_release(e, s->held[--s->n]);
}

/* Ids and positions, sorted. */
static void before_gradient(struct tsr_engine *e, struct sorting *s, uint64_t tokens)
{
    for (int i = 0; i < 3; i++)
        hold(e, s, 8 * tokens);
    passing(e, tsr__sort_scratch(tokens));
    drop_last(e, s);
}

/* Where each id begins and into how many partial sums it is cut. */
static void after_gradient(struct tsr_engine *e, struct sorting *s, uint64_t tokens,
                           const struct tsr_tensor *w)
{
    uint64_t rows = w->dims[0], width = w->dims[1], d32 = tsr_round_up(width, 32);
    uint64_t segments = tsr_min_u64(rows, tokens), partials = tokens / 10 + segments;
    uint64_t blocks = tsr_ceil_div(segments * d32, tsr_min_u64(d32, 1024));
    uint64_t item = tsr_dtype_bytes(tsr__wide(w));
    hold(e, s, 8 * tokens);
    hold(e, s, 8);
    hold(e, s, 8 * tokens);
    passing(e, TSR_PARTITION_SCRATCH);
    drop_last(e, s);
    hold(e, s, 8 * segments);
    hold(e, s, 8 * segments);
    passing(e, tsr__scan_scratch(segments));
    hold(e, s, 8);
    hold(e, s, 8 * partials);
    /* few ids with long runs would not fill the device: another kernel */
    if (blocks < 4 * TSR_MULTIPROCESSORS && partials > 4 * blocks) {
        hold(e, s, 8 * partials);
        if (w->dtype != tsr__wide(w)) /* otherwise straight into the gradient */
            hold(e, s, item * width * rows);
    } else {
        hold(e, s, item * width * partials);
    }
}

/* Which rows of the table this rank has: tensor parallelism cuts it by words. */
static void rows_args(struct tsr_engine *e, const struct tsr_tensor *w)
{
    bool is_cut = e->tp->size > 1 && w->param && w->param->tp;
    uint32_t rank = is_cut ? tsr_comm_index(&e->emit.comms[e->tp->comm], e->config.rank) : 0;
    tsr__push_arg(e, w->dims[0] * rank);
    tsr__push_arg(e, w->dims[0]);
}

static void embedding_backward(struct tsr_engine *e, struct tsr_node *node,
                               struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *ids = tsr__node_saved(e, node, 0), *w = node->w[0];
    bool sorts = ids && ids->numel > TSR_SORTED_TOKENS;
    struct sorting sorting = {.n = 0};
    if (sorts)
        before_gradient(e, &sorting, ids->numel);
    struct tsr_tensor *grad =
        tsr__tensor_like(e, w, (tsr_dtype)w->dtype, tsr__grad_category(e, node->edges[0].node));
    if (sorts)
        after_gradient(e, &sorting, ids->numel, w);
    if (grad && ids) {
        tsr__operand_tensor(e, grad_out[0], TSR_READ);
        tsr__operand_tensor(e, ids, TSR_READ);
        tsr__operand_tensor(e, grad, TSR_WRITE);
        struct tsr_work work = {.op = TSR_OP_EMBEDDING_BWD,
                                .dtype = grad->dtype,
                                .name = "embedding_dense_backward",
                                .bytes_read = tsr__tensor_bytes(grad_out[0]),
                                .bytes_written = tsr__tensor_bytes(grad)};
        rows_args(e, w);
        tsr__emit_op(e, &work);
    }
    while (sorting.n > 0)
        drop_last(e, &sorting);
    tsr_release(e, ids);
    grad_in[0] = grad;
}

struct tsr_tensor *tsr_op_embedding(struct tsr_engine *e, struct tsr_tensor *ids,
                                    struct tsr_param *wp)
{
    struct tsr_tensor *w = ids ? tsr__param_value(e, wp) : NULL;
    if (!w)
        return NULL;
    struct tsr_node *node = tsr__node_new(e, "Embedding", embedding_backward, &w, 1);
    tsr__node_save(e, node, ids);
    if (node)
        node->w[0] = w;
    uint64_t dims[2] = {ids->numel, w->dims[1]};
    struct tsr_tensor *y =
        tsr__tensor_new(e, (tsr_dtype)w->dtype, 2, dims, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    tsr__operand_tensor(e, ids, TSR_READ);
    tsr__operand_tensor(e, w, TSR_READ);
    tsr__operand_tensor(e, y, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_EMBEDDING,
                            .dtype = y->dtype,
                            .name = "embedding",
                            .bytes_read = tsr__tensor_bytes(y) + tsr__tensor_bytes(ids),
                            .bytes_written = tsr__tensor_bytes(y)};
    rows_args(e, w);
    tsr__emit_op(e, &work);
    tsr__node_output(node, y, 0);
    return y;
}
