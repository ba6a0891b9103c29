/* autograd.c: nodes, the backward engine, and tensors with who holds them.
 *
 * Memory follows references as in eager PyTorch: a storage is freed when its last holder goes.
 * Holders are the variables of model code (tsr_retain / tsr_release), nodes (what they saved),
 * gradients on their way (input buffers), and the FSDP engine.
 *
 * Backward: among the ready nodes the latest-made runs first; a leaf's gradient is stored as soon
 * as all its uses have run. Hooks of a tensor run when its gradient is complete, before its node.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/engine.h"

void tsr__autograd_fini(struct tsr_autograd *autograd)
{
    free(autograd->heap);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct tsr_node *node_blank(struct tsr_engine *e, const char *name, tsr_backward_fn backward)
{
    struct tsr_node *node = e->autograd.free_nodes;
    if (node)
        e->autograd.free_nodes = node->next_free;
    else
        node = tsr_arena_alloc(&e->arena, sizeof *node);
    if (!node) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return NULL;
    }
    memset(node, 0, sizeof *node);
    node->refs = 1;
    node->name = name;
    node->backward = backward;
    node->module = e->origin.module;
    return node;
}

static void accumulate_backward(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in);

static struct tsr_node *accumulator_of(struct tsr_engine *e, struct tsr_tensor *leaf)
{
    if (!leaf->accumulator) {
        struct tsr_node *node = node_blank(e, "AccumulateGrad", accumulate_backward);
        if (!node)
            return NULL;
        node->seq = UINT64_MAX;
        node->n_outputs = 1;
        node->ptr = leaf;
        leaf->accumulator = node;
    }
    return leaf->accumulator;
}

struct tsr_node *tsr__node_new(struct tsr_engine *e, const char *name, tsr_backward_fn backward,
                               struct tsr_tensor *const *inputs, int n_inputs)
{
    if (!tsr__ok(e) || !e->grad_enabled)
        return NULL;
    bool any = false;
    for (int i = 0; i < n_inputs; i++)
        any |= inputs[i] && inputs[i]->requires_grad;
    if (!any)
        return NULL;
    struct tsr_node *node = node_blank(e, name, backward);
    if (!node)
        return NULL;
    node->seq = e->autograd.next_seq++;
    node->n_outputs = 1;
    node->recompute = e->autograd.recompute_depth > 0;
    TSR_CHECK(n_inputs <= TSR_MAX_EDGES);
    node->n_edges = (uint8_t)n_inputs;
    for (int i = 0; i < n_inputs; i++) {
        struct tsr_tensor *t = inputs[i];
        if (!t || !t->requires_grad)
            continue;
        struct tsr_node *next = t->grad_fn ? t->grad_fn : accumulator_of(e, t);
        if (!next)
            return node;
        next->refs++;
        node->edges[i] = (struct tsr_edge){next, t->grad_fn ? t->output : 0};
    }
    return node;
}

void tsr__node_output(struct tsr_node *node, struct tsr_tensor *out, int output)
{
    if (!node || !out)
        return;
    out->grad_fn = node;
    out->output = output;
    out->requires_grad = true;
    if (output > 0)
        node->refs++; /* the first output takes the reference of the creator */
    if (output >= node->n_outputs)
        node->n_outputs = (uint8_t)(output + 1);
}

void tsr__node_save(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *t)
{
    if (!node || !t || !tsr__ok(e))
        return;
    TSR_CHECK(node->n_saved < TSR_MAX_SAVED);
    node->saved[node->n_saved++] = tsr__region_pack(e, t);
}

void tsr__node_save_weight(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *w)
{
    if (!node || !tsr__ok(e))
        return;
    TSR_CHECK(!node->w[0] || !node->w[1]);
    node->w[node->w[0] ? 1 : 0] = w;
    if (e->autograd.packing || e->autograd.unpacking)
        node->saved[node->n_saved++] = tsr__region_pack(e, NULL);
}

struct tsr_tensor *tsr__node_saved(struct tsr_engine *e, struct tsr_node *node, int i)
{
    if (!tsr__ok(e))
        return NULL;
    TSR_CHECK(i < node->n_saved);
    struct tsr_saved *saved = &node->saved[i];
    if (!saved->region)
        return tsr_retain(saved->tensor);
    tsr__region_recompute(e, saved->region);
    if (!tsr__ok(e))
        return NULL;
    /* Handed over: each recomputed tensor is asked for once. */
    struct tsr_tensor *t = saved->region->recomputed[saved->slot];
    saved->region->recomputed[saved->slot] = NULL;
    return t;
}

void tsr__node_touch(struct tsr_engine *e, struct tsr_node *node)
{
    for (int i = 0; i < node->n_saved; i++)
        if (node->saved[i].region)
            tsr__region_recompute(e, node->saved[i].region);
}

static void saved_release(struct tsr_engine *e, struct tsr_node *node)
{
    for (int i = 0; i < node->n_saved; i++) {
        struct tsr_saved *saved = &node->saved[i];
        tsr_release(e, saved->tensor);
        if (saved->region) {
            if (saved->region->recomputed && saved->slot < saved->region->n_slots) {
                tsr_release(e, saved->region->recomputed[saved->slot]);
                saved->region->recomputed[saved->slot] = NULL;
            }
            tsr__region_release(e, saved->region);
        }
        *saved = (struct tsr_saved){0};
    }
    node->n_saved = 0;
}

/* Drops a reference; a graph is a long chain, so this walks with a list instead of recursion. */
void tsr__node_release(struct tsr_engine *e, struct tsr_node *node)
{
    if (!node || --node->refs > 0)
        return;
    node->next_free = NULL;
    struct tsr_node *dead = node;
    while (dead) {
        struct tsr_node *n = dead;
        dead = n->next_free;
        saved_release(e, n);
        for (int i = 0; i < 2; i++) {
            tsr_release(e, n->grads[i]);
            n->grads[i] = NULL;
        }
        for (struct tsr_node_hook *h = n->hooks; h;) {
            struct tsr_node_hook *next = h->next;
            h->next = e->autograd.free_hooks;
            e->autograd.free_hooks = h;
            h = next;
        }
        for (int i = 0; i < n->n_edges; i++) {
            struct tsr_node *to = n->edges[i].node;
            if (to && --to->refs == 0) {
                to->next_free = dead;
                dead = to;
            }
        }
        n->next_free = e->autograd.free_nodes;
        e->autograd.free_nodes = n;
    }
}

static void add_hook(struct tsr_engine *e, struct tsr_node *node, int output,
                     void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg)
{
    if (!node || !tsr__ok(e))
        return;
    struct tsr_node_hook *hook = e->autograd.free_hooks;
    if (hook)
        e->autograd.free_hooks = hook->next;
    else
        hook = tsr_arena_alloc(&e->arena, sizeof *hook);
    if (!hook) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return;
    }
    *hook = (struct tsr_node_hook){fn, user, arg, output, NULL};
    struct tsr_node_hook **end = &node->hooks;
    while (*end)
        end = &(*end)->next;
    *end = hook;
}

void tsr__tensor_hook(struct tsr_engine *e, struct tsr_tensor *t,
                      void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg)
{
    if (t && t->grad_fn)
        add_hook(e, t->grad_fn, t->output, fn, user, arg);
}

void tsr__node_hook(struct tsr_engine *e, struct tsr_node *node,
                    void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg)
{
    add_hook(e, node, -1, fn, user, arg);
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

static void accumulate_backward(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in)
{
    (void)grad_in;
    struct tsr_tensor *leaf = node->ptr;
    if (!leaf || !grad_out[0])
        return;
    if (!leaf->grad) {
        leaf->grad = tsr_retain(grad_out[0]);
    } else {
        emit_sum(e, leaf->grad, leaf->grad, grad_out[0]);
    }
    if (e->autograd.observer && leaf->param)
        e->autograd.observer->leaf_ready(e, leaf->param);
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
        accumulate_backward(e, leaf, &grad, NULL);
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
    saved_release(e, node);
    for (int i = 0; i < node->n_edges; i++) {
        struct tsr_node *to = node->edges[i].node;
        if (!to) {
            tsr_release(e, grad_in[i]);
            continue;
        }
        if (grad_in[i])
            buffer_add(e, to, node->edges[i].output, grad_in[i]);
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

void tsr__backward(struct tsr_engine *e, struct tsr_tensor *const *losses, size_t n)
{
    struct tsr_tensor *seeds[TSR_MAX_MICRO] = {NULL};
    const struct tsr_backward_observer *observer = e->autograd.observer;
    if (!tsr__ok(e))
        return;
    TSR_CHECK(n <= TSR_MAX_MICRO);
    count_dependencies(e, losses, n);
    e->autograd.in_backward = true;
    if (observer && observer->begin)
        observer->begin(e, e->autograd.backward_pass);
    seed_roots(e, losses, n, seeds);
    run_ready(e);
    e->origin.module = TSR_NO_ID;
    for (size_t i = 0; i < e->autograd.n_callbacks; i++)
        e->autograd.callbacks[i].fn(e, e->autograd.callbacks[i].user);
    e->autograd.n_callbacks = 0;
    if (observer && observer->end)
        observer->end(e);
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

/* ---- tensors --------------------------------------------------------------------------------- */

/* Tensors and who holds them (autograd.c says who does). */

uint64_t tsr__tensor_bytes(const struct tsr_tensor *t)
{
    return t->numel * tsr_dtype_bytes((tsr_dtype)t->dtype);
}

enum tsr_category tsr__result_category(const struct tsr_engine *e)
{
    return e->autograd.in_backward && e->autograd.recompute_depth == 0 ? TSR_CAT_TEMP
                                                                       : TSR_CAT_ACTIVATION;
}

static struct tsr_tensor *tensor_blank(struct tsr_engine *e, tsr_dtype dtype, int n_dims,
                                       const uint64_t *dims)
{
    struct tsr_tensor *t = e->autograd.free_tensors;
    if (t)
        e->autograd.free_tensors = t->next_free;
    else
        t = tsr_arena_alloc(&e->arena, sizeof *t);
    if (!t) {
        TSR__RAISE(e, TSR_ENOMEM, "out of memory while emitting");
        return NULL;
    }
    *t = (struct tsr_tensor){
        .refs = 1, .dtype = (uint8_t)dtype, .n_dims = (uint8_t)n_dims, .numel = 1};
    for (int i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        t->numel *= dims[i];
    }
    return t;
}

struct tsr_tensor *tsr__tensor_new(struct tsr_engine *e, tsr_dtype dtype, int n_dims,
                                   const uint64_t *dims, enum tsr_category category)
{
    if (!tsr__ok(e))
        return NULL;
    struct tsr_tensor *t = tensor_blank(e, dtype, n_dims, dims);
    if (t)
        t->storage = tsr__storage_new(e, tsr__tensor_bytes(t), category);
    if (t && !tsr__ok(e)) {
        tsr_release(e, t);
        return NULL;
    }
    return t;
}

struct tsr_tensor *tsr__tensor_like(struct tsr_engine *e, const struct tsr_tensor *t,
                                    tsr_dtype dtype, enum tsr_category category)
{
    return t ? tsr__tensor_new(e, dtype, t->n_dims, t->dims, category) : NULL;
}

struct tsr_tensor *tsr__tensor_view(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype,
                                    int n_dims, const uint64_t *dims)
{
    if (!tsr__ok(e) || !s)
        return NULL;
    struct tsr_tensor *t = tensor_blank(e, dtype, n_dims, dims);
    if (!t)
        return NULL;
    t->storage = s;
    t->is_view = true;
    tsr__storage_retain(s);
    return t;
}

struct tsr_tensor *tsr_retain(struct tsr_tensor *t)
{
    if (t)
        t->refs++;
    return t;
}

void tsr_release(struct tsr_engine *e, struct tsr_tensor *t)
{
    if (!t || --t->refs > 0)
        return;
    TSR_CHECK(t->refs == 0);
    tsr__storage_release(e, &t->storage);
    if (t->grad)
        tsr_release(e, t->grad);
    struct tsr_node *fn = t->grad_fn, *accumulator = t->accumulator;
    t->next_free = e->autograd.free_tensors;
    e->autograd.free_tensors = t;
    if (accumulator) {
        accumulator->ptr = NULL;
        tsr__node_release(e, accumulator);
    }
    if (fn)
        tsr__node_release(e, fn);
}
