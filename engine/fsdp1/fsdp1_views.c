/* fsdp1_views.c: original parameters as views of the unsharded flat parameter, and the way of their
 * gradients back into one (FSDP1.md, F22 to F25); a shard's pieces as optimizer and clipping see
 * them (F5).
 *
 * The views are autograd operations: one split of the flat parameter, then a view for each original
 * parameter. Backward runs them as such: a view waits until nothing that was made after it is
 * ready, so all gradients of a module come together behind its backward; the split concatenates
 * them into the flat gradient with one kernel, and the accumulation into the flat parameter starts
 * the post-backward hook.
 */
#include "engine/fsdp1/fsdp1.h"

#include <string.h>

/* Views are made on the stream of the unshard, so autograd runs their backward there (F20). */
static uint16_t enter_views(struct tsr_engine *e)
{
    uint16_t current = e->stream;
    e->stream = e->fsdp1->unshard;
    return current;
}

static void wait_for_grad(struct tsr_engine *e, struct tsr_flat *f, size_t i)
{
    struct tsr_instr wait = {
        .kind = TSR_WAIT, .stream = e->stream, .comm = UINT16_MAX, .event = f->grad_events[i]};
    if (f->grad_events[i])
        tsr__emit(e, &wait);
    f->grad_events[i] = 0;
}

/* As autograd's input buffers do, when a gradient is there; a later one covers those before it. */
static void record_grad(struct tsr_engine *e, struct tsr_flat *f, size_t i)
{
    struct tsr_instr record = {
        .kind = TSR_RECORD, .stream = e->stream, .comm = UINT16_MAX, .event = tsr__new_event(e)};
    f->grad_events[i] = record.event;
    tsr__emit(e, &record);
}

static void add_grad(struct tsr_engine *e, struct tsr_flat *f, size_t i, struct tsr_tensor *more)
{
    struct tsr_tensor **slot = &f->grads[i];
    if (!*slot) {
        *slot = tsr_retain(more);
        return;
    }
    /* two forwards in one backward */
    uint16_t current = enter_views(e);
    wait_for_grad(e, f, i);
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
    e->stream = current;
}

static void grad_arrived(struct tsr_engine *e, const struct tsr_node *node)
{
    record_grad(e, node->ptr, node->a[0]);
}

static void view_backward(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                          struct tsr_tensor **grad_in)
{
    (void)grad_in;
    struct tsr_flat *f = node->ptr;
    add_grad(e, f, node->a[0], grad_out[0]);
}

void tsr__fsdp1_view_grad(struct tsr_engine *e, struct tsr_param *p, struct tsr_tensor *grad)
{
    struct tsr_flat *f = p->flat;
    size_t i = 0;
    while (f->params[i] != p)
        i++;
    record_grad(e, f, i);
    add_grad(e, f, i, grad);
}

/* ---- the split ------------------------------------------------------------------------------- */

/* The current stream has used them. */
static void drop(struct tsr_engine *e, struct tsr_tensor **list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i] && list[i]->refs == 1)
            tsr__storage_release_after(e, &list[i]->storage, e->stream);
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
    uint16_t current = enter_views(e);
    e->origin.group = f->group->id;
    for (size_t i = 0; i < f->n; i++)
        wait_for_grad(e, f, i);
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
    e->stream = current;
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
    struct tsr_fsdp1 *all = f->all;
    if (e->traced)
        (void)TSR__ARENA_PUSH(e, all->splits, all->n_splits, all->cap_splits, f);
}

static void run_split(struct tsr_engine *e, struct tsr_flat *f)
{
    struct tsr_tensor *grad = NULL;
    bool has_grads = false;
    for (size_t i = 0; i < f->n; i++)
        has_grads |= f->grads[i] != NULL;
    if (!has_grads)
        return;
    e->origin.module = f->state->modules[0]->id;
    split_backward(e, f->split, NULL, &grad);
    e->origin.group = TSR_NO_ID;
    struct tsr_node *accumulator = grad ? tsr__leaf_accumulator(e, f->leaf) : NULL;
    if (accumulator)
        tsr__accumulate(e, accumulator, &grad, NULL);
    tsr_release(e, grad);
}

void tsr__fsdp1_run_splits(struct tsr_engine *e, const struct tsr_flat *f)
{
    struct tsr_fsdp1 *all = e->fsdp1;
    size_t first = f ? f->first_split : 0;
    while (all->n_splits > first && tsr__ok(e))
        run_split(e, all->splits[--all->n_splits]);
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
    node->arrived = grad_arrived;
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

/* ---- shards as optimizer and clipping see them ----------------------------------------------- */

/* A shard of a flat parameter as optimizer and clipping see it (FSDP1.md, F5).
 *
 * With use_orig_params they see each original parameter's part of the shard. Which parts a shard
 * has differs from rank to rank, but not their sum. So that ranks remain alike, a shard counts as
 * as many pieces of equal size as the rank with the most original parameters has: that rank's
 * kernels and states in number, and every rank's in bytes. A piece has one dimension, as PyTorch's
 * views of shards have: recipes that decay matrices only decay none. NO_SHARD's views are the
 * original parameters. */

/* Original parameters of which the fullest rank has some. */
static uint64_t most_parts(const struct tsr_flat *f)
{
    uint64_t shard = f->shard->shard_numel, most = 1;
    size_t first = 0;
    for (uint64_t begin = 0; begin < f->param->numel; begin += shard) {
        size_t n = 0;
        while (first < f->n && f->begin[first] + f->params[first]->numel <= begin)
            first++;
        while (first + n < f->n && f->begin[first + n] < begin + shard)
            n++;
        most = tsr_max_u64(most, n);
    }
    return tsr_min_u64(most, shard);
}

static bool push(struct tsr_engine *e, struct tsr_param *p)
{
    struct tsr_fsdp1 *all = e->fsdp1;
    return TSR__ARENA_PUSH(e, all->step, all->n_step, all->cap_step, p);
}

/* `original`: the parameter whose shape the piece has; NULL: it has one dimension. */
static void make_piece(struct tsr_engine *e, struct tsr_flat *f, uint64_t begin, uint64_t numel,
                       const struct tsr_param *original)
{
    struct tsr_param *p = tsr_arena_alloc(&e->arena, sizeof *p);
    struct tsr_fsdp_param *s = tsr_arena_alloc(&e->arena, sizeof *s);
    if (!p || !s || !TSR_PUSH(e->tree.params, e->tree.n_params, e->tree.cap_params, p)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory");
        return;
    }
    *p = *f->param;
    *s = *f->shard;
    p->id = (uint32_t)(e->tree.n_params - 1);
    p->shape[0] = p->numel = numel * f->all->shard_size;
    if (original) {
        p->n_dims = original->n_dims;
        memcpy(p->shape, original->shape, sizeof p->shape);
    }
    p->fsdp = s;
    s->param = p;
    s->sharded = s->grad = NULL;                        /* ranges of the flat parameter's ... */
    s->grad_offset = begin * tsr_dtype_bytes(p->dtype); /* ... from here */
    s->local[0] = s->padded[0] = s->local_numel = s->shard_numel = numel;
    push(e, p);
}

/* The part of an original parameter that is in this rank's shard, if any is. */
static void cut_own(struct tsr_engine *e, const struct tsr_param *p)
{
    struct tsr_flat *f = p->flat;
    uint64_t shard = f->shard->shard_numel, from = f->group->shard_rank * shard;
    size_t i = 0;
    while (f->params[i] != p)
        i++;
    uint64_t begin = tsr_max_u64(f->begin[i], from);
    uint64_t end = tsr_min_u64(f->begin[i] + p->numel, from + shard);
    if (begin < end)
        make_piece(e, f, begin - from, end - begin, f->all->shard_size == 1 ? p : NULL);
}

/* In the order of the model's parameters, as an optimizer gets them. */
static void cut_all_own(struct tsr_engine *e)
{
    size_t n = e->tree.n_params;
    for (size_t i = 0; i < n && tsr__ok(e); i++) {
        struct tsr_param *p = e->tree.params[i];
        if (p && p->flat && p != p->flat->param)
            cut_own(e, p);
    }
}

static void cut(struct tsr_engine *e, struct tsr_flat *f)
{
    uint64_t n = most_parts(f), numel = f->shard->shard_numel;
    for (size_t i = 0; i < f->n && f->all->shard_size == 1 && tsr__ok(e); i++)
        make_piece(e, f, f->begin[i], f->params[i]->numel, f->params[i]);
    if (f->all->shard_size == 1)
        return;
    for (uint64_t k = 0; k < n && tsr__ok(e); k++) {
        uint64_t begin = numel * k / n;
        make_piece(e, f, begin, numel * (k + 1) / n - begin, NULL);
    }
}

struct tsr_param *const *tsr__params_to_step(struct tsr_engine *e, size_t *n)
{
    struct tsr_param *const *params = tsr__params_in_order(e, n);
    struct tsr_fsdp1 *all = e->fsdp1;
    if (!all)
        return params;
    bool is_made = all->n_step > 0;
    if (!is_made && all->as_checked) {
        cut_all_own(e);
        is_made = true;
    }
    for (size_t i = 0; !is_made && i < *n && tsr__ok(e); i++) {
        if (params[i]->flat)
            cut(e, params[i]->flat);
        else
            push(e, params[i]);
    }
    *n = all->n_step;
    return all->step;
}
