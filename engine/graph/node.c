/* node.c: nodes of the graph: their edges, what they save for backward, their hooks, and when they
 * go.
 *
 * A node is held by its outputs and by the nodes whose edges lead to it. Nodes that went are used
 * again: later steps take no more memory of the host.
 */
#include <string.h>

#include "engine/graph/engine.h"

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

struct tsr_node *tsr__leaf_accumulator(struct tsr_engine *e, struct tsr_tensor *leaf)
{
    if (!leaf->accumulator) {
        struct tsr_node *node = node_blank(e, "AccumulateGrad", tsr__accumulate);
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
        struct tsr_node *next = t->grad_fn ? t->grad_fn : tsr__leaf_accumulator(e, t);
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

void tsr__saved_release(struct tsr_engine *e, struct tsr_node *node)
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
        tsr__saved_release(e, n);
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
