/* ops_unpad.c: removing and putting back padding, as flash-attn's bert_padding does it around its
 * variable-length kernels: unpad_input() finds the tokens that the mask keeps (the host reads their
 * number and the longest sequence, and so waits for the device twice) and gathers their rows;
 * pad_input() writes rows back into zeros. Here every token is kept: sizes are those of full
 * batches. Integers of 32 bits are kept as bytes; scratch of nonzero() is that of one scan.
 */
#include "engine/ops/ops_common.h"

static void host_reads(struct tsr_engine *e, struct tsr_tensor *t)
{
    if (!t || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, t, TSR_READ);
    struct tsr_instr read = {.kind = TSR_HOST_READ, .stream = e->stream, .comm = UINT16_MAX};
    tsr__emit(e, &read);
}

static struct tsr_tensor *flat(struct tsr_engine *e, const char *name, tsr_dtype dtype, uint64_t n,
                               struct tsr_tensor *from)
{
    struct tsr_tensor *t = tsr__tensor_new(e, dtype, 1, &n, tsr__result_category(e));
    tsr__emit_pointwise(e, name, &from, from ? 1 : 0, t);
    return t;
}

struct tsr_tensor *tsr__op_padding_mask(struct tsr_engine *e)
{
    return tsr__ok(e) ? flat(e, "new_ones", TSR_U8, e->shape.batch * e->shape.seq, NULL) : NULL;
}

/* Where the kept tokens are: nonzero() of the mask, whose number of results the host needs. */
static struct tsr_tensor *find_tokens(struct tsr_engine *e, struct tsr_tensor *mask)
{
    uint64_t tokens = mask->numel;
    struct tsr_tensor *scan = tsr__workspace(e, tsr__scan_scratch(tokens));
    struct tsr_tensor *number = flat(e, "count_nonzero", TSR_U8, 4, mask);
    tsr_release(e, scan);
    host_reads(e, number);
    tsr_release(e, number);
    scan = tsr__workspace(e, tsr__scan_scratch(tokens));
    struct tsr_tensor *indices = flat(e, "nonzero", TSR_I64, tokens, mask);
    tsr_release(e, scan);
    return indices;
}

/* The begins of the sequences, which the kernels need. */
static struct tsr_tensor *find_begins(struct tsr_engine *e, struct tsr_tensor *lengths)
{
    uint64_t batch = e->shape.batch;
    struct tsr_tensor *longest = flat(e, "max", TSR_U8, 4, lengths);
    host_reads(e, longest);
    tsr_release(e, longest);
    struct tsr_tensor *sums = flat(e, "cumsum", TSR_U8, 4 * batch, lengths);
    struct tsr_tensor *begins = flat(e, "constant_pad_nd", TSR_U8, 4 * (batch + 1), sums);
    tsr_release(e, sums);
    return begins;
}

struct tsr_unpadding tsr__find_unpadding(struct tsr_engine *e, struct tsr_tensor *mask)
{
    struct tsr_unpadding u = {NULL, NULL};
    if (!mask || !tsr__ok(e))
        return u;
    struct tsr_tensor *lengths = flat(e, "sum", TSR_U8, 4 * e->shape.batch, mask);
    u.indices = find_tokens(e, mask);
    u.begins = find_begins(e, lengths);
    tsr_release(e, lengths);
    return u;
}

void tsr__unpadding_release(struct tsr_engine *e, struct tsr_unpadding *u)
{
    tsr_release(e, u->indices);
    tsr_release(e, u->begins);
    *u = (struct tsr_unpadding){NULL, NULL};
}

/* Rows of x at `indices`, or the other way round: rows of x go to `indices` of zeros. */
static struct tsr_tensor *gather(struct tsr_engine *e, struct tsr_tensor *x,
                                 struct tsr_tensor *indices, enum tsr_category category)
{
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, category);
    tsr__emit_pointwise(e, "gather_rows", (struct tsr_tensor *[]){x, indices}, 2, y);
    return y;
}

static struct tsr_tensor *scatter(struct tsr_engine *e, struct tsr_tensor *x,
                                  struct tsr_tensor *indices, enum tsr_category category)
{
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, category);
    if (y)
        tsr__emit_fill(e, y->storage, (tsr_dtype)y->dtype, 0);
    tsr__emit_pointwise(e, "scatter_rows", (struct tsr_tensor *[]){x, indices}, 2, y);
    return y;
}

static void gather_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *indices = tsr__node_saved(e, node, 0);
    if (indices)
        grad_in[0] = scatter(e, grad_out[0], indices, TSR_CAT_TEMP);
    tsr_release(e, indices);
}

static void scatter_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *indices = tsr__node_saved(e, node, 0);
    if (indices)
        grad_in[0] = gather(e, grad_out[0], indices, TSR_CAT_TEMP);
    tsr_release(e, indices);
}

static struct tsr_tensor *moved(struct tsr_engine *e, struct tsr_tensor *x,
                                struct tsr_tensor *indices, bool unpad)
{
    if (!x || !indices || !tsr__ok(e))
        return NULL;
    struct tsr_node *node = tsr__node_new(e, unpad ? "Unpad" : "Pad",
                                          unpad ? gather_backward : scatter_backward, &x, 1);
    tsr__node_save(e, node, indices);
    enum tsr_category category = tsr__result_category(e);
    struct tsr_tensor *y =
        unpad ? gather(e, x, indices, category) : scatter(e, x, indices, category);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr__op_unpad(struct tsr_engine *e, struct tsr_tensor *x,
                                 const struct tsr_unpadding *u)
{
    return moved(e, x, u->indices, true);
}

struct tsr_tensor *tsr__op_pad(struct tsr_engine *e, struct tsr_tensor *x,
                               const struct tsr_unpadding *u)
{
    return moved(e, x, u->indices, false);
}
