/* fsdp1_views.c: original parameters as views of the unsharded flat parameter, and the way of their
 * gradients back into one (FSDP1.md, F22 to F25).
 *
 * The views are autograd operations: one split of the flat parameter, then a view for each original
 * parameter. Backward runs them as such: a view waits until nothing that was made after it is
 * ready, so all gradients of a module come together behind its backward; the split concatenates
 * them into the flat gradient with one kernel, and the accumulation into the flat parameter starts
 * the post-backward hook.
 */
#include "engine/fsdp1/fsdp1.h"

static void view_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    (void)grad_in;
    struct tsr_flat *f = node->ptr;
    struct tsr_tensor **slot = &f->grads[node->a[0]], *more = grad_out[0];
    if (!*slot) {
        *slot = tsr_retain(more);
        return;
    }
    /* two forwards in one backward */
    tsr__operand_tensor(e, *slot, TSR_READ);
    tsr__operand_tensor(e, more, TSR_READ);
    tsr__operand_tensor(e, *slot, TSR_WRITE);
    uint64_t bytes = tsr__tensor_bytes(more);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = more->dtype,
                            .name = "add",
                            .flops = (double)more->numel,
                            .bytes_read = 2 * bytes,
                            .bytes_written = bytes,
                            .dims = {1, more->numel}};
    tsr__emit_op(e, &work);
}

/* ---- the split ------------------------------------------------------------------------------- */

static void drop(struct tsr_engine *e, struct tsr_tensor **list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tsr_release(e, list[i]);
        list[i] = NULL;
    }
}

/* Zeros for a padding, or for a parameter that was not used. */
static struct tsr_tensor *zeros(struct tsr_engine *e, const struct tsr_flat *f, uint64_t numel)
{
    struct tsr_tensor *t = tsr__tensor_new(e, f->compute, 1, &numel, TSR_CAT_TEMP);
    if (t)
        tsr__emit_fill(e, t->storage, f->compute, 0);
    return t;
}

static void emit_cat(struct tsr_engine *e, struct tsr_flat *f, struct tsr_tensor *const *gaps,
                     struct tsr_tensor *out)
{
    uint64_t bytes = tsr__tensor_bytes(out);
    for (size_t i = 0; i < f->n; i++) {
        tsr__slot(e, 0);
        tsr__operand_tensor(e, f->grads[i], TSR_READ);
    }
    for (size_t i = 0; i < f->n_gaps; i++) {
        tsr__slot(e, 0);
        tsr__operand_tensor(e, gaps[i], TSR_READ);
    }
    tsr__slot(e, 1);
    tsr__operand_tensor(e, out, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = (uint8_t)f->compute,
                            .name = "cat_flat_grad",
                            .bytes_read = bytes,
                            .bytes_written = bytes};
    tsr__emit_op(e, &work);
}

static void split_backward(struct tsr_engine *e, struct tsr_node *node,
                           struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    (void)grad_out;
    struct tsr_flat *f = node->ptr;
    struct tsr_tensor **gaps = tsr_arena_alloc(&e->arena, (f->n_gaps + 1) * sizeof(*gaps));
    if (!gaps) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory in backward");
        return;
    }
    e->origin.group = f->group->id;
    for (size_t i = 0; i < f->n; i++)
        if (!f->grads[i])
            f->grads[i] = zeros(e, f, f->params[i]->numel);
    for (size_t i = 0; i < f->n_gaps; i++)
        gaps[i] = zeros(e, f, f->gaps[i]);
    struct tsr_tensor *out =
        tsr__tensor_new(e, f->compute, 1, &f->param->numel, TSR_CAT_UNSHARDED_GRAD);
    if (out && tsr__ok(e))
        emit_cat(e, f, gaps, out);
    drop(e, f->grads, f->n);
    drop(e, gaps, f->n_gaps);
    grad_in[0] = out;
}

/* ---- the views ------------------------------------------------------------------------------- */

/* Stands for the flat parameter: its gradient is the unsharded one. Its storage is never read. */
static struct tsr_tensor *leaf(struct tsr_engine *e, struct tsr_flat *f)
{
    if (f->leaf)
        return f->leaf;
    struct tsr_storage *none = f->full ? f->full : f->shard->sharded;
    f->leaf = tsr__tensor_view(e, none, f->compute, 1, &f->param->numel);
    if (f->leaf) {
        f->leaf->requires_grad = true;
        f->leaf->param = f->param;
    }
    return f->leaf;
}

static void make_split(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_tensor *in = leaf(e, f);
    struct tsr_node *node = in ? tsr__node_new(e, "SplitWithSizes", split_backward, &in, 1) : NULL;
    if (!node)
        return;
    node->ptr = f;
    node->takes_none = true;
    tsr__node_release(e, f->split);
    f->split = node;
}

/* An edge to the split of this forward. */
static void connect(struct tsr_engine *e, struct tsr_flat *f, size_t i)
{
    struct tsr_tensor *view = f->views[i];
    struct tsr_tensor in = {.requires_grad = true, .grad_fn = f->split}, *input = &in;
    struct tsr_node *node = tsr__node_new(e, "View", view_backward, &input, 1);
    if (!node)
        return;
    node->ptr = f;
    node->is_view = true;
    node->a[0] = i;
    tsr__node_release(e, view->grad_fn);
    view->grad_fn = NULL;
    tsr__node_output(node, view, 0);
}

/* The memory that modules compute with: NO_SHARD has no unsharded copy. */
static struct tsr_storage *memory(const struct tsr_flat *f)
{
    return f->full ? f->full : f->low ? f->low : f->shard->sharded;
}

static struct tsr_tensor *view_of(struct tsr_engine *e, struct tsr_flat *f, size_t i)
{
    const struct tsr_param *p = f->params[i];
    if (!f->views[i]) {
        f->views[i] = tsr__tensor_view(e, memory(f), f->compute, p->n_dims, p->shape);
        if (!f->views[i])
            return NULL;
        f->views[i]->offset = f->begin[i] * tsr_dtype_bytes(f->compute);
        f->views[i]->requires_grad = true;
        f->views[i]->param = f->params[i];
    }
    return f->views[i];
}

void tsr__fsdp1_use_views(struct tsr_engine *e, struct tsr_flat *f)
{
    bool forward = f->training == TSR_FORWARD && e->grad_enabled;
    if (forward)
        make_split(e, f);
    for (size_t i = 0; i < f->n && tsr__ok(e); i++) {
        f->params[i]->value = view_of(e, f, i);
        if (forward && f->params[i]->value)
            connect(e, f, i);
    }
}

void tsr__fsdp1_drop_views(struct tsr_flat *f)
{
    for (size_t i = 0; i < f->n; i++)
        f->params[i]->value = NULL;
}
