/* ops_rotary.c: what lies between projections and attention: rotary embedding, repeated key/value
 * heads, and the split of a fused projection. Order and sizes of allocations: operators.md,
 * sections 7 and 9.
 */
#include "engine/ops/ops_common.h"

/* ---- layouts --------------------------------------------------------------------------------- */

/* g itself (a new reference), or a copy in the order of tokens; strict: also of transposed keys. */
static struct tsr_tensor *in_token_order(struct tsr_engine *e, struct tsr_tensor *g, bool strict)
{
    bool copies = g && (g->layout == TSR_LAYOUT_HEADS || (strict && g->layout));
    if (!copies)
        return tsr_retain(g);
    struct tsr_tensor *out = tsr__tensor_like(e, g, (tsr_dtype)g->dtype, TSR_CAT_TEMP);
    tsr__emit_pointwise(e, "clone", &g, 1, out);
    return out;
}

/* A gradient that lies in another order than tokens x heads is copied where its shape changes.
 * a[0]: also when only the transposed order of keys is left, which some changes of shape can take
 * as it is. */
static void reshape_backward(struct tsr_engine *e, struct tsr_node *node,
                             struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    grad_in[0] = in_token_order(e, grad_out[0], node->a[0] != 0);
}

/* A change of shape: computes nothing, but its backward brings a gradient into token order. */
static struct tsr_tensor *reshape(struct tsr_engine *e, struct tsr_tensor *x, bool strict)
{
    return tsr__op_alias(e, x, "View", NULL, reshape_backward, (uint64_t[TSR_MAX_DIMS]){strict});
}

struct tsr_tensor *tsr_op_view(struct tsr_engine *e, struct tsr_tensor *x)
{
    return reshape(e, x, false);
}

/* ---- rotary ---------------------------------------------------------------------------------- */

void tsr__rotary_table_operand(struct tsr_engine *e, uint64_t seq, uint64_t head_dim)
{
    tsr__operand(e, e->tree.root->buffers[0].storage, 0, 4 * seq * head_dim, TSR_READ, TSR_F32);
}

static void emit_rotation(struct tsr_engine *e, const char *name, struct tsr_tensor *x,
                          struct tsr_tensor *table, struct tsr_tensor *y, const uint64_t a[2])
{
    if (!y || !tsr__ok(e))
        return;
    tsr__operand_tensor(e, x, TSR_READ);
    if (table)
        tsr__operand_tensor(e, table, TSR_READ);
    else
        tsr__rotary_table_operand(e, a[0], a[1]);
    tsr__operand_tensor(e, y, TSR_WRITE);
    tsr__push_arg(e, a[0]);
    tsr__push_arg(e, a[1]);
    tsr__push_arg(e, e->model->llama && e->model->llama->names == TSR_NAMES_HF);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = y->dtype,
                            .name = name,
                            .flops = (double)y->numel,
                            .bytes_read = tsr__tensor_bytes(x),
                            .bytes_written = tsr__tensor_bytes(y),
                            .dims = {y->dims[0], y->dims[1]}};
    if (table)
        work.bytes_read += tsr__tensor_bytes(table);
    tsr__emit_op(e, &work);
}

static void emit_conjugate(struct tsr_engine *e, struct tsr_tensor *table, const uint64_t a[2])
{
    if (!table || !tsr__ok(e))
        return;
    tsr__rotary_table_operand(e, a[0], a[1]);
    tsr__operand_tensor(e, table, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = TSR_F32,
                            .name = "conjugate",
                            .bytes_read = tsr__tensor_bytes(table),
                            .bytes_written = tsr__tensor_bytes(table),
                            .dims = {a[0] * a[1] / 2}};
    tsr__emit_op(e, &work);
}

/* Complex product with the conjugate table, which is in fp32 whatever the rest is: complex64, which
 * double() leaves as it is. a: sequence, head size */
static void rotate_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    uint64_t n = node->a[0] * node->a[1];
    struct tsr_tensor *table = tsr__tensor_new(e, TSR_F32, 1, &n, TSR_CAT_TEMP);
    emit_conjugate(e, table, node->a);
    grad_in[0] = tsr__tensor_like(e, g, (tsr_dtype)g->dtype, TSR_CAT_TEMP);
    emit_rotation(e, "rotary_backward", g, table, grad_in[0], node->a);
    tsr_release(e, table);
}

static struct tsr_tensor *rotate(struct tsr_engine *e, struct tsr_tensor *x, uint64_t seq,
                                 uint64_t head_dim)
{
    if (!x)
        return NULL;
    const uint64_t a[2] = {seq, head_dim};
    struct tsr_node *node = tsr__node_new(e, "Rotary", rotate_backward, &x, 1);
    if (node) {
        node->a[0] = seq;
        node->a[1] = head_dim;
    }
    tsr__node_save_weight(e, node, NULL); /* the table: a buffer, saved without cost */
    struct tsr_tensor *y = tsr__tensor_like(e, x, (tsr_dtype)x->dtype, tsr__result_category(e));
    if (!y)
        return tsr__op_abort(e, node);
    emit_rotation(e, "rotary", x, NULL, y, a);
    tsr__node_output(node, y, 0);
    return y;
}

/* The result of `name` (rotary, or rotary_backward with the conjugate table) of g. */
static struct tsr_tensor *turned(struct tsr_engine *e, const char *name, struct tsr_tensor *g,
                                 struct tsr_tensor *table, const uint64_t a[2])
{
    struct tsr_tensor *y = tsr__tensor_like(e, g, (tsr_dtype)g->dtype, TSR_CAT_TEMP);
    emit_rotation(e, name, g, table, y, a);
    return y;
}

/* (x + sign y) / 2 in `dtype`. */
static struct tsr_tensor *half_sum(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *y,
                                   double sign, tsr_dtype dtype)
{
    struct tsr_tensor *other = tsr__tensor_like(e, y, TSR_F32, TSR_CAT_TEMP);
    struct tsr_tensor *sum = tsr__tensor_like(e, x, TSR_F32, TSR_CAT_TEMP);
    struct tsr_tensor *half = tsr__tensor_like(e, x, dtype, TSR_CAT_TEMP);
    const struct tsr_pointwise by_sign = {.constant = sign}, by_half = {.constant = 0.5};
    tsr__emit_pointwise_with(e, "mul_scalar", &y, 1, other, &by_sign);
    tsr__emit_pointwise(e, "add", (struct tsr_tensor *[]){x, other}, 2, sum);
    tsr__emit_pointwise_with(e, "mul_scalar", &sum, 1, half, &by_half);
    tsr_release(e, sum);
    tsr_release(e, other);
    return half;
}

/* x * cos + rotate_half(x) * sin of f32 tables and a 16-bit x: each product's gradient is cast to
 * x's dtype before the two are added. They are half the sum and half the difference of the gradient
 * turned back and turned on, since the first product's matrix is symmetric and the other's is not.
 * a: sequence, head size, dtype of x */
static void widen_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    struct tsr_tensor *g = grad_out[0];
    tsr_dtype dtype = (tsr_dtype)node->a[2];
    uint64_t n = node->a[0] * node->a[1];
    struct tsr_tensor *table = tsr__tensor_new(e, TSR_F32, 1, &n, TSR_CAT_TEMP);
    emit_conjugate(e, table, node->a);
    struct tsr_tensor *back = turned(e, "rotary_backward", g, table, node->a);
    struct tsr_tensor *on = turned(e, "rotary", g, NULL, node->a);
    tsr_release(e, table);
    if (back && on) {
        struct tsr_tensor *part[2] = {half_sum(e, back, on, 1, dtype),
                                      half_sum(e, back, on, -1, dtype)};
        grad_in[0] = tsr__tensor_like(e, g, dtype, TSR_CAT_TEMP);
        tsr__emit_pointwise(e, "add", part, 2, grad_in[0]);
        tsr_release(e, part[0]);
        tsr_release(e, part[1]);
    }
    tsr_release(e, on);
    tsr_release(e, back);
}

/* The rotary embedding in f32 of a 16-bit x, widened by f32 tables. */
static struct tsr_tensor *widen(struct tsr_engine *e, struct tsr_tensor *x, uint64_t seq,
                                uint64_t head_dim)
{
    const uint64_t a[2] = {seq, head_dim};
    struct tsr_node *node = tsr__node_new(e, "Rotary", widen_backward, &x, 1);
    if (node) {
        node->a[0] = seq;
        node->a[1] = head_dim;
        node->a[2] = x->dtype;
    }
    tsr__node_save_weight(e, node, NULL); /* the table, as in rotate() */
    struct tsr_tensor *wide = tsr__tensor_like(e, x, TSR_F32, tsr__result_category(e));
    struct tsr_tensor *y = tsr__tensor_like(e, x, TSR_F32, tsr__result_category(e));
    tsr__emit_pointwise(e, "cast", &x, 1, wide);
    if (wide)
        emit_rotation(e, "rotary", wide, NULL, y, a);
    tsr_release(e, wide);
    if (!y)
        return tsr__op_abort(e, node);
    tsr__node_output(node, y, 0);
    return y;
}

struct tsr_tensor *tsr__op_rotary_as(struct tsr_engine *e, struct tsr_tensor *x, uint64_t seq,
                                     uint64_t head_dim, tsr_dtype dtype)
{
    if (!x)
        return NULL;
    if (dtype == TSR_F32 && x->dtype != TSR_F32) {
        struct tsr_tensor *widened = widen(e, x, seq, head_dim);
        struct tsr_tensor *out = reshape(e, widened, true);
        tsr_release(e, widened);
        return out;
    }
    struct tsr_tensor *wide = tsr_op_cast(e, x, tsr__wide(x));
    struct tsr_tensor *turned = rotate(e, wide, seq, head_dim);
    struct tsr_tensor *real = reshape(e, turned, true);
    tsr_release(e, turned);
    struct tsr_tensor *y = tsr_op_cast(e, real, dtype);
    tsr_release(e, real);
    tsr_release(e, wide);
    return y;
}

struct tsr_tensor *tsr_op_rotary(struct tsr_engine *e, struct tsr_tensor *x, uint64_t seq,
                                 uint64_t head_dim)
{
    return x ? tsr__op_rotary_as(e, x, seq, head_dim, (tsr_dtype)x->dtype) : NULL;
}

/* ---- repeated heads -------------------------------------------------------------------------- */

/* a: rows, width of the unrepeated, layout of the gradient, times, head size */
static void repeat_backward(struct tsr_engine *e, struct tsr_node *node,
                            struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    const struct tsr_pointwise p = {.n_args = 2, .args = {node->a[3], node->a[4]}};
    grad_in[0] = tsr__tensor_new(e, (tsr_dtype)grad_out[0]->dtype, 2, node->a, TSR_CAT_TEMP);
    tsr__emit_pointwise_with(e, "sum_heads", grad_out, 1, grad_in[0], &p);
    if (grad_in[0])
        grad_in[0]->layout = (uint8_t)node->a[2];
}

struct tsr_tensor *tsr__op_repeat(struct tsr_engine *e, struct tsr_tensor *x, uint64_t times,
                                  uint64_t head_dim, bool copies, enum tsr_layout layout)
{
    if (!x || times == 1)
        return tsr_retain(x);
    struct tsr_node *node = tsr__node_new(e, "RepeatHeads", repeat_backward, &x, 1);
    if (node) {
        node->a[0] = x->dims[0];
        node->a[1] = x->dims[1];
        node->a[2] = layout;
        node->a[3] = times;
        node->a[4] = head_dim;
    }
    uint64_t dims[2] = {x->dims[0], x->dims[1] * times};
    struct tsr_tensor *y =
        copies ? tsr__tensor_new(e, (tsr_dtype)x->dtype, 2, dims, tsr__result_category(e))
               : tsr__tensor_view(e, x->storage, (tsr_dtype)x->dtype, 2, dims);
    if (!y)
        return tsr__op_abort(e, node);
    if (copies) {
        const struct tsr_pointwise p = {.n_args = 2, .args = {times, head_dim}};
        tsr__emit_pointwise_with(e, "expand_heads", &x, 1, y, &p);
    } else {
        y->layout = TSR_LAYOUT_EXPANDED;
        y->offset = x->offset;
        tsr__as_columns(y, 0, dims[1], x->dims[1]);
    }
    tsr__node_output(node, y, 0);
    return y;
}

/* One key/value head is expanded without a copy: its heads have stride 0. */
struct tsr_tensor *tsr_op_repeat_heads(struct tsr_engine *e, struct tsr_tensor *x, uint64_t times,
                                       uint64_t head_dim)
{
    return tsr__op_repeat(e, x, times, head_dim, x && x->dims[1] != head_dim, TSR_LAYOUT_TOKENS);
}

/* ---- split ----------------------------------------------------------------------------------- */

static void emit_cat(struct tsr_engine *e, struct tsr_tensor *const parts[3],
                     const uint64_t widths[3], struct tsr_tensor *out)
{
    uint64_t read = 0;
    if (!out || !tsr__ok(e))
        return;
    for (int i = 0; i < 3; i++) {
        tsr__slot(e, 0);
        tsr__operand_tensor(e, parts[i], TSR_READ);
        read += parts[i] ? tsr__tensor_bytes(parts[i]) : 0;
        tsr__push_arg(e, parts[i] ? widths[i] : 0);
    }
    tsr__slot(e, 1);
    tsr__operand_tensor(e, out, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = out->dtype,
                            .name = "cat_gradients",
                            .flops = (double)out->numel,
                            .bytes_read = read,
                            .bytes_written = tsr__tensor_bytes(out),
                            .dims = {out->dims[0], out->dims[1]}};
    tsr__emit_op(e, &work);
}

/* Part i of what `join` split, as columns of `storage`. */
static struct tsr_tensor *columns_of(struct tsr_engine *e, const struct tsr_node *join, int i,
                                     struct tsr_storage *storage)
{
    uint64_t dims[2] = {join->a[0], join->a[3 + i]}, offset = 0;
    for (int k = 0; k < i; k++)
        offset += join->a[3 + k];
    struct tsr_tensor *part = tsr__tensor_view(e, storage, (tsr_dtype)join->a[2], 2, dims);
    tsr__as_columns(part, offset, dims[1], join->a[1]);
    return part;
}

/* The fused dialect's kernels write gradients where the join wants them (tsr__split_gradients()).
 */
static bool are_joined(const struct tsr_node *join, struct tsr_tensor *const parts[3])
{
    unsigned item = tsr_dtype_bytes((tsr_dtype)join->a[2]);
    uint64_t offset = 0;
    for (int i = 0; i < 3; i++) {
        const struct tsr_tensor *g = parts[i];
        if (!g || g->storage != parts[0]->storage || g->offset != offset ||
            g->pitch != join->a[1] * item || g->dtype != join->a[2])
            return false;
        offset += join->a[3 + i] * item;
    }
    return true;
}

/* Each part has a node of its own, made after the split's. They leave their gradients in the split
 * node's saved slots; it runs last and concatenates them. */
static void join_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_tensor *parts[3];
    uint64_t dims[2] = {node->a[0], node->a[1]};
    (void)grad_out;
    for (int i = 0; i < 3; i++)
        parts[i] = node->saved[i].tensor;
    if (are_joined(node, parts)) {
        grad_in[0] = tsr__tensor_view(e, parts[0]->storage, (tsr_dtype)node->a[2], 2, dims);
        return;
    }
    grad_in[0] = tsr__tensor_new(e, (tsr_dtype)node->a[2], 2, dims, TSR_CAT_TEMP);
    emit_cat(e, parts, &node->a[3], grad_in[0]);
}

static void part_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    struct tsr_node *join = node->edges[0].node;
    struct tsr_tensor *g = in_token_order(e, grad_out[0], false);
    join->n_saved = 3;
    join->saved[node->a[0]].tensor = g;
    if (!join->grads[0]) /* any gradient makes the join run */
        grad_in[0] = tsr_retain(g);
}

bool tsr__split_gradients(struct tsr_engine *e, const struct tsr_node *node,
                          struct tsr_tensor *out[3])
{
    const struct tsr_node *join = NULL;
    for (int i = 0; i < 3; i++) {
        const struct tsr_node *part = node->edges[i].node;
        if (!part || part->backward != part_backward || part->a[0] != (uint64_t)i ||
            (join && part->edges[0].node != join))
            return false;
        join = part->edges[0].node;
    }
    if (e->config.dialect != TSR_DIALECT_FUSED || join->backward != join_backward)
        return false;
    uint64_t dims[2] = {join->a[0], join->a[1]};
    struct tsr_tensor *all = tsr__tensor_new(e, (tsr_dtype)join->a[2], 2, dims, TSR_CAT_TEMP);
    for (int i = 0; i < 3; i++)
        out[i] = all ? columns_of(e, join, i, all->storage) : NULL;
    tsr_release(e, all);
    return true;
}

static struct tsr_tensor *part_of(struct tsr_engine *e, struct tsr_tensor *base,
                                  struct tsr_node *join, uint64_t width, uint64_t index)
{
    uint64_t dims[2] = {base->dims[0], width};
    struct tsr_tensor *part = tsr__tensor_view(e, base->storage, (tsr_dtype)base->dtype, 2, dims);
    if (part)
        part->offset = base->offset;
    if (!part || !join)
        return part;
    struct tsr_tensor handle = {.requires_grad = true, .grad_fn = join};
    struct tsr_tensor *inputs[1] = {&handle};
    struct tsr_node *node = tsr__node_new(e, "SplitPart", part_backward, inputs, 1);
    if (node)
        node->a[0] = index;
    tsr__node_output(node, part, 0);
    return part;
}

static struct tsr_node *join_of(struct tsr_engine *e, struct tsr_tensor *x,
                                const uint64_t widths[3])
{
    struct tsr_node *join = tsr__node_new(e, "Split", join_backward, &x, 1);
    if (!join)
        return NULL;
    join->a[0] = x->dims[0];
    join->a[1] = x->dims[1];
    join->a[2] = x->dtype;
    for (int i = 0; i < 3; i++)
        join->a[3 + i] = widths[i];
    return join;
}

void tsr_op_split3(struct tsr_engine *e, struct tsr_tensor *x, uint64_t q, uint64_t kv, bool q_last,
                   struct tsr_tensor *out[3])
{
    const uint64_t widths[3] = {q, kv, kv}, offsets[3] = {0, q, q + kv};
    out[0] = out[1] = out[2] = NULL;
    if (!x || !tsr__ok(e))
        return;
    struct tsr_node *join = join_of(e, x, widths);
    for (int i = 0; i < 3 && tsr__ok(e); i++) {
        int part = q_last ? (i + 1) % 3 : i;
        out[part] = part_of(e, x, join, widths[part], (uint64_t)part);
        tsr__as_columns(out[part], offsets[part], widths[part], x->dims[1]);
    }
    tsr__node_release(e, join);
}

void tsr_op_split2(struct tsr_engine *e, struct tsr_tensor *x, struct tsr_tensor *out[2])
{
    out[0] = out[1] = NULL;
    if (!x || !tsr__ok(e))
        return;
    uint64_t half = x->dims[1] / 2;
    struct tsr_node *join = join_of(e, x, (const uint64_t[3]){half, half, 0});
    for (int i = 0; i < 2 && tsr__ok(e); i++) {
        out[i] = part_of(e, x, join, half, (uint64_t)i);
        tsr__as_columns(out[i], (uint64_t)i * half, half, x->dims[1]);
    }
    tsr__node_release(e, join);
}
