/* graph.h: storages, tensors, nodes and checkpointed calls: the autograd graph that an iteration
 * makes and takes apart, and the state of the backward. Private to engine/; included by engine.h.
 */
#ifndef TSR_ENGINE_GRAPH_H
#define TSR_ENGINE_GRAPH_H

#include "engine/allocator/allocator.h"
#include "engine/graph/module_tree.h"
#include "engine/program/program.h"

struct tsr_node;
struct tsr_region;

/* ---- storages and tensors -------------------------------------------------------------------- */

/* Memory with a reference count. The backing block may come and go (FSDP resizes the storage of an
 * unsharded parameter to 0 and back, R105); each backing is a new buffer id.
 *
 * Invariant: `block.handle` is set only while `live` and in device memory; an instruction may name
 * the storage only while it is live; nobody holds it once refs is 0, and it is on the free list. */
struct tsr_storage {
    int refs;
    bool live; /* backed by a block (device) or simply there (host) */
    uint8_t category, space;
    uint16_t stream; /* it was allocated on: the block goes back to this stream's pool */
    uint32_t buffer;
    uint64_t bytes;
    struct tsr_block block;
    struct tsr_pinned *pinned; /* block of a pinned buffer (host_memory.c) */
    bool counted;              /* host: its HOST_ALLOC was emitted */
    bool is_dropped;           /* freed, and waits for its last use (deferred.c) */
    uint32_t seen, number;     /* by the latest walk that met it (walk.h), and as which one */
    struct tsr_storage *next_free;
};

/* In which order the elements of a gradient lie, where that is not that of its tensor. */
enum tsr_layout {
    TSR_LAYOUT_TOKENS,     /* (token, head, d): contiguous */
    TSR_LAYOUT_HEADS,      /* (head, token, d), as attention by matrix products leaves them */
    TSR_LAYOUT_TRANSPOSED, /* (head, d, token): gradients of keys */
    TSR_LAYOUT_EXPANDED    /* one head seen as many */
};

/* A shape over a storage, which it holds.
 *
 * Invariant: grad_fn is held by the tensor, not the other way round; `grad` and `accumulator` are
 * for leaves, which have no grad_fn. The accumulator outlives the tensor while edges lead to it,
 * and then has no leaf. */
struct tsr_tensor {
    int refs;
    uint8_t dtype, n_dims, layout /* enum tsr_layout; gradients */;
    bool requires_grad;
    bool is_view; /* does not own the storage's only handle: an incoming sum may not write to it */
    bool is_one;  /* every element is 1: the gradient that backward begins with */
    uint64_t dims[TSR_MAX_DIMS], numel;
    uint64_t offset;       /* bytes into the storage */
    uint32_t width, pitch; /* bytes, of a slice of columns; see struct tsr_operand */
    struct tsr_storage *storage;
    struct tsr_node *grad_fn;     /* the node that made it; leaves: NULL */
    int output;                   /* of grad_fn */
    struct tsr_node *accumulator; /* leaves that require grad */
    struct tsr_tensor *grad;      /* leaves */
    struct tsr_param *param;      /* leaves that are a parameter's value */
    struct tsr_tensor *next_free;
};

enum { TSR_MAX_EDGES = 32, TSR_MAX_SAVED = 32, TSR_MAX_MICRO = 64 /* pending at once */ };

struct tsr_edge {
    struct tsr_node *node; /* NULL: this input needs no gradient */
    int output;
};

/* A tensor kept for backward, or its place in a checkpointed region. */
struct tsr_saved {
    struct tsr_tensor *tensor;
    struct tsr_region *region;
    uint32_t slot;
};

typedef void (*tsr_backward_fn)(struct tsr_engine *e, struct tsr_node *node,
                                struct tsr_tensor **grad_out, struct tsr_tensor **grad_in);

struct tsr_node_hook {
    void (*fn)(struct tsr_engine *e, void *user, uint32_t arg);
    void *user;
    uint32_t arg;
    int output; /* tensor hooks: of this output; -1: node hooks, after all tensor hooks */
    struct tsr_node_hook *next;
};

/* An operation's backward.
 *
 * Invariant: refs counts the edges that lead here, the outputs that name it, and its place in the
 * heap of a running backward, so a graph is freed from its end. During a pass (mark == that pass)
 * deps is the number of edges that have not delivered yet; the node is ready, and on the heap, when
 * it reaches 0. `saved` is empty once the backward has run. */
struct tsr_node {
    int refs;
    uint64_t seq; /* creation order; UINT64_MAX for accumulators */
    const char *name;
    tsr_backward_fn backward;
    uint8_t n_outputs; /* of the forward operation = gradients that come in */
    uint8_t n_edges, n_saved;
    uint8_t n_ready;
    struct tsr_edge edges[TSR_MAX_EDGES];
    struct tsr_saved saved[TSR_MAX_SAVED];
    struct tsr_tensor *grads[2]; /* input buffer of the running backward */
    struct tsr_node_hook *hooks;
    uint32_t deps, mark; /* of the backward pass `mark` */
    uint32_t module;
    bool recompute;  /* made while recomputing */
    bool takes_none; /* its backward runs without any gradient, too */
    bool is_view;    /* of a parameter: the gradient that it gets is the parameter's */
    /* A gradient has arrived, on the stream of the node that made it. NULL: the same stream runs
     * both. */
    void (*arrived)(struct tsr_engine *e, const struct tsr_node *node);
    struct tsr_tensor *w[2];  /* parameters that it reads (borrowed: their handles outlive nodes) */
    uint64_t a[TSR_MAX_DIMS]; /* sizes that the backward needs */
    double number;            /* a constant factor, an epsilon */
    void *ptr;                /* group, module, ... of special nodes */
    const char *label;        /* name of the backward kernel, where one function serves several */
    struct tsr_node *next_free;
};

/* ---- checkpointed calls ---------------------------------------------------------------------- */

enum { TSR_N_ARGS = 4 };

/* One checkpointed call (checkpoint.c).
 *
 * Invariant: a reference per slot that a node has, and one for the forward while it runs. The k-th
 * save of the forward is slot k, and the k-th save of the recomputation fills it: both run the same
 * operations in the same order. Each slot is asked for once. */
struct tsr_region {
    int refs;
    struct tsr_module *module;
    bool outside, early_stop;
    struct tsr_tensor *input, *args[TSR_N_ARGS]; /* args: what engine->autograd.args was */
    size_t n_slots, cap_slots;
    struct tsr_tensor **recomputed; /* by slot; NULL once used */
    bool done;
    uint32_t next_slot; /* while recomputing */
    bool selective;     /* some results are kept: every second product, attention's */
    uint32_t n_products, next_kept;
    size_t n_kept, cap_kept;
    struct tsr_tensor **kept; /* NULL once taken */
    struct tsr_region *next_free;
};

/* ---- the state of the backward --------------------------------------------------------------- */

/* Invariant: the heap is empty, and no callback waits, outside of a backward. */
struct tsr_autograd {
    bool in_backward;
    int recompute_depth;
    uint64_t next_seq;
    uint32_t backward_pass;
    struct tsr_node **heap; /* ready nodes, latest-made first */
    size_t n_heap, cap_heap;
    struct tsr_tensor *args[TSR_N_ARGS];    /* further arguments of modules with has_args */
    struct tsr_region *packing, *unpacking; /* region whose forward or recomputation runs */
    struct tsr_tensor *free_tensors;
    struct tsr_node *free_nodes;
    struct tsr_node_hook *free_hooks;
    struct tsr_region *free_regions;
    struct tsr_callback { /* run at the end of the backward, in order of queueing */
        void (*fn)(struct tsr_engine *e, void *user);
        void *user;
    } * callbacks;
    size_t n_callbacks, cap_callbacks;
};
void tsr__autograd_fini(struct tsr_autograd *autograd);

/* ---- tensor.c -------------------------------------------------------------------------------- */

struct tsr_tensor *tsr__tensor_new(struct tsr_engine *e, tsr_dtype dtype, int n_dims,
                                   const uint64_t *dims, enum tsr_category category);
struct tsr_tensor *tsr__tensor_like(struct tsr_engine *e, const struct tsr_tensor *t,
                                    tsr_dtype dtype, enum tsr_category category);
/* A tensor over an existing storage (retained). */
struct tsr_tensor *tsr__tensor_view(struct tsr_engine *e, struct tsr_storage *s, tsr_dtype dtype,
                                    int n_dims, const uint64_t *dims);
uint64_t tsr__tensor_bytes(const struct tsr_tensor *t);
/* Category for results of operations: Temp in backward, else Activation. */
enum tsr_category tsr__result_category(const struct tsr_engine *e);

/* ---- node.c ---------------------------------------------------------------------------------- */

/* Creates the node of an operation if any input needs a gradient; sets requires_grad and grad_fn of
 * the outputs. Returns NULL when nothing needs a gradient. */
struct tsr_node *tsr__node_new(struct tsr_engine *e, const char *name, tsr_backward_fn backward,
                               struct tsr_tensor *const *inputs, int n_inputs);
void tsr__node_output(struct tsr_node *node, struct tsr_tensor *out, int output);
/* The node that stores the gradient of a leaf, made when it is first asked for; borrowed. NULL: no
 * memory. */
struct tsr_node *tsr__leaf_accumulator(struct tsr_engine *e, struct tsr_tensor *leaf);
void tsr__node_save(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *t);
/* New reference to what was saved; recomputes the region first if need be. */
struct tsr_tensor *tsr__node_saved(struct tsr_engine *e, struct tsr_node *node, int i);
/* Recomputes the checkpointed region of the node's saved slots, if there is one. */
void tsr__node_touch(struct tsr_engine *e, struct tsr_node *node);
/* Counts a save without a node's wish for the tensor (weights: their storage belongs to FSDP). */
void tsr__node_save_weight(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *w);
void tsr__node_release(struct tsr_engine *e, struct tsr_node *node);
/* Lets go of what the node saved: it has run, or nobody holds it any more. */
void tsr__saved_release(struct tsr_engine *e, struct tsr_node *node);
void tsr__tensor_hook(struct tsr_engine *e, struct tsr_tensor *t,
                      void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg);
void tsr__node_hook(struct tsr_engine *e, struct tsr_node *node,
                    void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg);

/* ---- autograd.c ------------------------------------------------------------------------------ */

/* The backward of a leaf's accumulator: its gradient is stored, or added to the one that is there.
 */
void tsr__accumulate(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor **grad_out,
                     struct tsr_tensor **grad_in);
/* Category at birth of a gradient on its way to node `to`. */
enum tsr_category tsr__grad_category(const struct tsr_engine *e, const struct tsr_node *to);
/* Runs `fn` when the backward that runs is over. False: no memory (raised). */
bool tsr__at_backward_end(struct tsr_engine *e, void (*fn)(struct tsr_engine *e, void *user),
                          void *user);
/* Runs backward from the losses: start, nodes, finish. Who runs a backward without nodes (a traced
 * model) calls the first and the last: wrappers are told, of a pass whose leaves are marked, and
 * callbacks run. */
void tsr__backward_start(struct tsr_engine *e);
void tsr__backward_finish(struct tsr_engine *e);
void tsr__backward(struct tsr_engine *e, struct tsr_tensor *const *losses, size_t n);
/* Forgets a backward that an error interrupted. */
void tsr__backward_abandon(struct tsr_engine *e);
/* The nodes below y, beginning with the gradient g, while a block is traced: gradients of leaves go
 * to the capture's leaf(). */
void tsr__backward_part(struct tsr_engine *e, struct tsr_tensor *y, struct tsr_tensor *g);

/* ---- checkpoint.c ---------------------------------------------------------------------------- */

struct tsr_tensor *tsr__checkpoint_call(struct tsr_engine *e, struct tsr_module *m,
                                        struct tsr_tensor *in, bool outside);
void tsr__region_recompute(struct tsr_engine *e, struct tsr_region *region);
void tsr__region_release(struct tsr_engine *e, struct tsr_region *region);
/* Called by tsr__node_save: hands the tensor to the region being packed or recomputed. */
struct tsr_saved tsr__region_pack(struct tsr_engine *e, struct tsr_tensor *t);

/* Selective checkpointing. An operation whose result a policy may keep asks first: true if this one
 * is kept. `product`: matrix products, of which every second one is kept; results of attention
 * kernels are always. */
bool tsr__selective_keeps(struct tsr_engine *e, bool product);
/* True while the kept results are to be taken instead of computed. */
bool tsr__selective_reuses(const struct tsr_engine *e);
void tsr__selective_put(struct tsr_engine *e, const struct tsr_tensor *result);
struct tsr_tensor *tsr__selective_take(struct tsr_engine *e);

#endif
