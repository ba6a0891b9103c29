/* autograd.c: the backward pass: which node runs next, and how gradients meet.
 *
 * Among the ready nodes the latest-made runs first; a leaf's gradient is stored as soon
 * as all its uses have run. Hooks of a tensor run when its gradient is complete, before its node.
 */
#include <stdlib.h>

#include "engine/graph/wrapper.h"

void tsr__autograd_fini(struct tsr_autograd *autograd)
{
    free(autograd->heap);
}

/* ---- sums and leaves ------------------------------------------------------------------------- */

static void emit_sum(struct tsr_engine *e, struct tsr_tensor *into, struct tsr_tensor *a,
                     struct tsr_tensor *b)
{
    uint64_t bytes = tsr__tensor_bytes(a);
    tsr__operand_tensor(e, a, TSR_READ);
    tsr__operand_tensor(e, b, TSR_READ);
    tsr__operand_tensor(e, into, TSR_WRITE);
    struct tsr_work work = {.op = TSR_OP_POINTWISE,
                            .dtype = a->dtype,
                            .name = "add",
                            .flops = (double)a->numel,
                            .bytes_read = 2 * bytes,
                            .bytes_written = bytes,
                            .dims = {1, a->numel}};
    tsr__emit_op(e, &work);
}

static bool leaf_is_unset(const struct tsr_node *node)
{
    const struct tsr_tensor *leaf = node->ptr;
    return node->seq == UINT64_MAX && leaf && leaf->param && !leaf->grad;
}

/* Category of a gradient that node `to` will receive: the one that becomes a parameter's gradient
 * is Unsharded Grad from birth; a summand is Temp. */
enum tsr_category tsr__grad_category(const struct tsr_engine *e, const struct tsr_node *to)
{
    (void)e;
    bool stays = to && (leaf_is_unset(to) || to->is_view);
    return stays && to->deps == 1 && !to->grads[0] ? TSR_CAT_UNSHARDED_GRAD : TSR_CAT_TEMP;
}

/* Adds `grad` (a reference that is taken over) to the gradient that waits at node/output. In place
 * if the first one is nobody else's and no view; else into a new tensor (operators.md, section 3).
 */
static void buffer_add(struct tsr_engine *e, struct tsr_node *node, int output,
                       struct tsr_tensor *grad)
{
    struct tsr_tensor **slot = &node->grads[output];
    if (!*slot) {
        *slot = grad;
        return;
    }
    struct tsr_tensor *first = *slot;
    if (!e->config.instrumented && !first->is_view && first->refs == 1 &&
        first->storage->refs == 1) {
        emit_sum(e, first, first, grad);
        tsr_release(e, grad);
        return;
    }
    enum tsr_category category =
        leaf_is_unset(node) && node->deps == 1 ? TSR_CAT_UNSHARDED_GRAD : TSR_CAT_TEMP;
    struct tsr_tensor *sum = tsr__tensor_like(e, first, (tsr_dtype)first->dtype, category);
    if (sum) {
        sum->layout = first->layout;
        emit_sum(e, sum, first, grad);
    }
    tsr_release(e, first);
    tsr_release(e, grad);
    *slot = sum;
}

void tsr__accumulate(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                     struct tsr_tensor **grad_in)
{
    (void)grad_in;
    struct tsr_tensor *leaf = node->ptr;
    if (!leaf || !grad_out[0])
        return;
    uint16_t current = e->stream;
    TSR__EACH_WRAPPER (e, w, grad_stream) {
        if (leaf->param)
            e->stream = w->ops->grad_stream(e, w, leaf->param);
    }
    if (!leaf->grad) {
        leaf->grad = tsr_retain(grad_out[0]);
    } else {
        emit_sum(e, leaf->grad, leaf->grad, grad_out[0]);
    }
    TSR__EACH_WRAPPER (e, w, grad_ready) {
        if (leaf->param)
            w->ops->grad_ready(e, w, leaf->param);
    }
    e->stream = current;
}

/* ---- the backward pass ----------------------------------------------------------------------- */

static bool heap_push(struct tsr_engine *e, struct tsr_node *node)
{
    if (!TSR_PUSH(e->autograd.heap, e->autograd.n_heap, e->autograd.cap_heap, node)) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory in backward");
        return false;
    }
    size_t i = e->autograd.n_heap - 1;
    while (i > 0 && e->autograd.heap[(i - 1) / 2]->seq < e->autograd.heap[i]->seq) {
        struct tsr_node *t = e->autograd.heap[i];
        e->autograd.heap[i] = e->autograd.heap[(i - 1) / 2];
        e->autograd.heap[(i - 1) / 2] = t;
        i = (i - 1) / 2;
    }
    return true;
}

static struct tsr_node *heap_pop(struct tsr_engine *e)
{
    struct tsr_node *top = e->autograd.heap[0];
    e->autograd.heap[0] = e->autograd.heap[--e->autograd.n_heap];
    for (size_t i = 0;;) {
        size_t big = i, l = 2 * i + 1, r = l + 1;
        if (l < e->autograd.n_heap && e->autograd.heap[l]->seq > e->autograd.heap[big]->seq)
            big = l;
        if (r < e->autograd.n_heap && e->autograd.heap[r]->seq > e->autograd.heap[big]->seq)
            big = r;
        if (big == i)
            return top;
        struct tsr_node *t = e->autograd.heap[i];
        e->autograd.heap[i] = e->autograd.heap[big];
        e->autograd.heap[big] = t;
        i = big;
    }
}

/* Counts, for every node below the roots, the edges that lead to it. The heap array serves as the
 * stack; it is empty between passes. */
static void count_dependencies(struct tsr_engine *e, struct tsr_tensor *const *losses, size_t n)
{
    uint32_t pass = ++e->autograd.backward_pass;
    for (size_t i = 0; i < n; i++) {
        struct tsr_node *root = losses[i]->grad_fn;
        if (!root || root->mark == pass)
            continue;
        root->mark = pass;
        root->deps = 0;
        if (!TSR_PUSH(e->autograd.heap, e->autograd.n_heap, e->autograd.cap_heap, root))
            TSR__RAISE(e, TSR_ENOMEM, "out of memory in backward");
    }
    while (e->autograd.n_heap > 0 && e->status == TSR_OK) {
        struct tsr_node *node = e->autograd.heap[--e->autograd.n_heap];
        for (int i = 0; i < node->n_edges; i++) {
            struct tsr_node *to = node->edges[i].node;
            if (!to)
                continue;
            if (to->mark != pass) {
                to->mark = pass;
                to->deps = 0;
                if (!TSR_PUSH(e->autograd.heap, e->autograd.n_heap, e->autograd.cap_heap, to))
                    TSR__RAISE(e, TSR_ENOMEM, "out of memory in backward");
            }
            to->deps++;
        }
    }
    e->autograd.n_heap = 0;
}

static void run_hooks(struct tsr_engine *e, struct tsr_node *node)
{
    for (struct tsr_node_hook *h = node->hooks; h; h = h->next)
        if (h->output >= 0 && node->grads[h->output])
            h->fn(e, h->user, h->arg);
    for (struct tsr_node_hook *h = node->hooks; h; h = h->next)
        if (h->output < 0)
            h->fn(e, h->user, h->arg);
}

static void run_leaf(struct tsr_engine *e, struct tsr_node *leaf)
{
    struct tsr_tensor *grad = leaf->grads[0];
    leaf->grads[0] = NULL;
    if (e->emit.capture)
        e->emit.capture->leaf(e, leaf->ptr, grad);
    else if (tsr__ok(e))
        tsr__accumulate(e, leaf, &grad, NULL);
    tsr_release(e, grad);
}

static void run_node(struct tsr_engine *e, struct tsr_node *node)
{
    struct tsr_tensor *grad_in[TSR_MAX_EDGES] = {NULL};
    struct tsr_tensor *grad_out[2] = {NULL, NULL};
    run_hooks(e, node);
    e->origin.module = node->module;
    e->origin.group = TSR_NO_ID;
    e->origin.hook = TSR_HOOK_NONE;
    grad_out[0] = node->grads[0];
    grad_out[1] = node->grads[1];
    node->grads[0] = node->grads[1] = NULL;
    if (tsr__ok(e) && (grad_out[0] || grad_out[1] || node->takes_none))
        node->backward(e, node, grad_out, grad_in);
    tsr_release(e, grad_out[0]);
    tsr_release(e, grad_out[1]);
    tsr__saved_release(e, node);
    for (int i = 0; i < node->n_edges; i++) {
        struct tsr_node *to = node->edges[i].node;
        if (!to) {
            tsr_release(e, grad_in[i]);
            continue;
        }
        if (grad_in[i]) {
            buffer_add(e, to, node->edges[i].output, grad_in[i]);
            if (to->arrived && tsr__ok(e))
                to->arrived(e, to);
        }
        if (--to->deps > 0)
            continue;
        if (to->seq == UINT64_MAX) { /* a leaf runs before anything else */
            run_leaf(e, to);
        } else {
            to->refs++;
            if (!heap_push(e, to))
                tsr__node_release(e, to);
        }
    }
}

static void seed_roots(struct tsr_engine *e, struct tsr_tensor *const *losses, size_t n,
                       struct tsr_tensor **seeds)
{
    for (size_t i = 0; i < n; i++) {
        struct tsr_node *root = losses[i]->grad_fn;
        if (!root || !tsr__ok(e))
            continue;
        struct tsr_tensor *one =
            tsr__tensor_like(e, losses[i], (tsr_dtype)losses[i]->dtype, TSR_CAT_TEMP);
        if (!one)
            return;
        /* the loss of a micro-batch counts as its share of the iteration's */
        tsr__emit_fill(e, one->storage, (tsr_dtype)one->dtype, 1.0 / e->shape.n_micro);
        one->is_one = e->shape.n_micro == 1;
        seeds[i] = tsr_retain(one); /* the caller's gradient lives to the end of backward */
        root->grads[losses[i]->output] = one;
        root->refs++;
        if (!heap_push(e, root))
            return;
    }
}

bool tsr__at_backward_end(struct tsr_engine *e, void (*fn)(struct tsr_engine *e, void *user),
                          void *user)
{
    struct tsr_autograd *a = &e->autograd;
    const struct tsr_callback callback = {fn, user};
    return TSR__ARENA_PUSH(e, a->callbacks, a->n_callbacks, a->cap_callbacks, callback);
}

static void run_ready(struct tsr_engine *e)
{
    while (e->autograd.n_heap > 0) {
        struct tsr_node *node = heap_pop(e);
        if (tsr__ok(e))
            run_node(e, node);
        tsr__node_release(e, node);
    }
}

void tsr__backward_part(struct tsr_engine *e, struct tsr_tensor *y, struct tsr_tensor *g)
{
    count_dependencies(e, &y, 1);
    e->autograd.in_backward = true;
    y->grad_fn->grads[y->output] = tsr_retain(g);
    y->grad_fn->refs++;
    if (heap_push(e, y->grad_fn))
        run_ready(e);
    e->autograd.in_backward = false;
}

void tsr__backward_start(struct tsr_engine *e)
{
    e->autograd.in_backward = true;
    TSR__EACH_WRAPPER (e, w, backward_begin)
        w->ops->backward_begin(e, w, e->autograd.backward_pass);
}

void tsr__backward_finish(struct tsr_engine *e)
{
    e->origin.module = TSR_NO_ID;
    for (size_t i = 0; i < e->autograd.n_callbacks; i++)
        e->autograd.callbacks[i].fn(e, e->autograd.callbacks[i].user);
    e->autograd.n_callbacks = 0;
    TSR__EACH_WRAPPER (e, w, backward_end)
        w->ops->backward_end(e, w);
}

void tsr__backward(struct tsr_engine *e, struct tsr_tensor *const *losses, size_t n)
{
    struct tsr_tensor *seeds[TSR_MAX_MICRO] = {NULL};
    if (!tsr__ok(e))
        return;
    TSR_CHECK(n <= TSR_MAX_MICRO);
    count_dependencies(e, losses, n);
    tsr__backward_start(e);
    seed_roots(e, losses, n, seeds);
    run_ready(e);
    tsr__backward_finish(e);
    for (size_t i = 0; i < n; i++)
        tsr_release(e, seeds[i]);
    e->autograd.in_backward = false;
}

void tsr__backward_abandon(struct tsr_engine *e)
{
    while (e->autograd.n_heap > 0)
        tsr__node_release(e, e->autograd.heap[--e->autograd.n_heap]);
    e->autograd.n_callbacks = 0;
    e->autograd.in_backward = false;
    e->stopped = false;
    e->autograd.packing = e->autograd.unpacking = NULL;
    e->autograd.recompute_depth = 0;
    e->origin.recompute = 0;
    e->grad_enabled = true;
    e->stream = 0;
    e->emit.n_operands = 0;
    e->emit.next_slot = 0;
    e->emit.n_kernel_args = 0;
}
