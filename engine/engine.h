/* engine.h: the engine's own structures, shared by the files of engine/ and by nobody else.
 *
 * Reading order: module.c (the tree), autograd.c (tensors, nodes, backward), call.c (a module call
 * with its hooks), state.c and param_group.c (the hook state machines), all_gather.c and
 * reduce.c (what they emit), step.c (an iteration).
 *
 * Errors inside an emission are sticky: the first one is kept in engine->status, later emission
 * does nothing, and the step function returns it. So model code and hooks read like the PyTorch
 * code they stand for, without a check after each operation.
 */
#ifndef TSR_ENGINE_H
#define TSR_ENGINE_H

#include "ops.h"
#include "tessera.h"

struct tsr_node;
struct tsr_region;
struct tsr_state;
struct tsr_group;
struct tsr_reducer;

/* ---- storages and tensors (autograd.c, emit.c) ----------------------------------------------- */

/* Memory with a reference count. The backing block may come and go (FSDP resizes the storage of an
 * unsharded parameter to 0 and back, R105); each backing is a new buffer id. */
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
    struct tsr_storage *next_free;
};

/* In which order the elements of a gradient lie, where that is not that of its tensor. */
enum tsr_layout {
    TSR_LAYOUT_TOKENS,     /* (token, head, d): contiguous */
    TSR_LAYOUT_HEADS,      /* (head, token, d), as attention by matrix products leaves them */
    TSR_LAYOUT_TRANSPOSED, /* (head, d, token): gradients of keys */
    TSR_LAYOUT_EXPANDED    /* one head seen as many */
};

struct tsr_tensor {
    int refs;
    uint8_t dtype, n_dims, layout /* enum tsr_layout; gradients */;
    bool requires_grad;
    bool is_view; /* does not own the storage's only handle: an incoming sum may not write to it */
    uint64_t dims[4], numel;
    uint64_t offset; /* bytes into the storage */
    struct tsr_storage *storage;
    struct tsr_node *grad_fn;     /* the node that made it; leaves: NULL */
    int output;                   /* of grad_fn */
    struct tsr_node *accumulator; /* leaves that require grad */
    struct tsr_tensor *grad;      /* leaves */
    struct tsr_param *param;      /* leaves that are a parameter's value */
    struct tsr_tensor *next_free;
};

enum { TSR_MAX_EDGES = 8, TSR_MAX_SAVED = 8, TSR_MAX_MICRO = 64 /* pending at once */ };

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
    bool recompute;           /* made while recomputing */
    struct tsr_tensor *w[2];  /* parameters that it reads (borrowed: their handles outlive nodes) */
    uint64_t a[TSR_MAX_DIMS]; /* sizes that the backward needs */
    void *ptr;                /* group, module, ... of special nodes */
    const char *label;        /* name of the backward kernel, where one function serves several */
    struct tsr_node *next_free;
};

/* ---- modules and parameters (module.c) ------------------------------------------------------- */

struct tsr_fsdp_param;

struct tsr_tensor_parallel; /* tensor_parallel.c */

struct tsr_param {
    char *name, *fqn; /* fqn: the first place in module order */
    int n_dims;
    uint64_t shape[4], numel;
    tsr_dtype dtype;
    bool requires_grad, meta, noncontiguous;
    uint32_t id;
    struct tsr_fsdp_param *fsdp; /* NULL: not managed */
    struct tsr_tensor *value;    /* what the module computes with now; NULL: sharded */
    bool ignored;
    bool tp_partial;                /* its gradient is a partial sum over tensor-parallel ranks */
    struct tsr_tensor_parallel *tp; /* a DTensor: `shape` is this rank's part; NULL: plain */
    struct tsr_param *untied_from;  /* a tie that grouping broke (2.1) */
    /* parameters outside FSDP groups (ignored, bucketed replicate): */
    struct tsr_storage *master;       /* the parameter, original dtype */
    struct tsr_tensor *full_grad;     /* its gradient as the optimizer sees it; NULL: value->grad */
    struct tsr_storage *opt_state[2]; /* optimizer states, made by the first step */
    struct tsr_storage *step_count;   /* of the fused optimizer */
};

struct tsr_place {
    struct tsr_param *param;
    char *name; /* attribute; the FQN of this place is module FQN + "." + name */
};

struct tsr_checkpoint_mode {
    bool inside, outside, early_stop, selective;
};

struct tsr_module {
    struct tsr_engine *engine;
    uint32_t visited; /* stamp of the last walk */
    struct tsr_module *parent;
    char *name, *fqn;
    const char *type_name;
    uint32_t id; /* pre-order of creation; index into tables.modules */
    size_t n_children, cap_children;
    struct tsr_module **children;
    char **child_names;
    size_t n_params, cap_params;
    struct tsr_place *params;
    uint64_t buffer_bytes[2]; /* of its own; 0: none */
    struct tsr_storage *buffers[2];
    bool no_forward; /* a container: ModuleList */
    struct tsr_method {
        const char *name;
        tsr_forward_fn fn;
        bool registered; /* runs the forward hooks */
    } * methods;
    size_t n_methods, cap_methods;
    tsr_forward_fn forward;
    void *impl;
    struct tsr_state *state; /* set by fully_shard or replicate */
    struct tsr_checkpoint_mode checkpoint;
    struct tsr_tensor *aux_output; /* a second output of the running forward (attention weights) */
};

/* ---- sharding (shard.c) ---------------------------------------------------------------------- */

/* The chunk rule of section 2.2 exists here and nowhere else. */
struct tsr_chunk {
    uint64_t rows;  /* rows of every chunk, padding included: ceil(n / world) */
    uint64_t begin; /* first row of this rank, clamped */
    uint64_t count; /* real rows of this rank */
};
struct tsr_chunk tsr__chunk(uint64_t n, uint32_t world, uint32_t rank);

/* ---- FSDP (fsdp_*.c) ------------------------------------------------------------------------- */

enum tsr_training_state {
    TSR_IDLE,
    TSR_FORWARD,
    TSR_PRE_BACKWARD,
    TSR_POST_BACKWARD,
    TSR_N_TRAINING
};
enum tsr_sharded_state { TSR_SHARDED, TSR_SHARDED_POST_FORWARD, TSR_UNSHARDED, TSR_N_SHARDED };

struct tsr_fsdp_param {
    struct tsr_param *param;
    struct tsr_group *group;
    size_t n_aliases;
    char **aliases; /* FQNs of the other places inside the call's modules */
    int shard_dim;  /* -1: replicated */
    uint64_t local[4], padded[4];
    uint64_t local_numel, shard_numel; /* of this rank; padded */
    bool full_precision; /* 2.15: this parameter keeps its dtype (param_dtype_override) */
    tsr_dtype orig_dtype, param_dtype, reduce_dtype; /* the last two NONE: no cast */
    struct tsr_storage *sharded;                     /* orig dtype, padded; host when offloaded */
    struct tsr_storage *post_forward;                /* slice of the smaller group */
    struct tsr_tensor *unsharded;                    /* created once (R105) */
    struct tsr_storage *temp;    /* copy-in of the running unshard: H2D or cast copy */
    struct tsr_tensor *acc_grad; /* unsharded accumulated gradient, reduce dtype */
    struct tsr_storage *grad;    /* sharded gradient: a view of the group's flat buffer */
    uint32_t d2h_event;          /* 0: none */
    const struct tsr_gather_extension *extension; /* borrowed; NULL: the shard itself travels */
    struct tsr_storage *raw[4];                   /* its gathered inputs */
    tsr_grad_hook grad_hook; /* after the sharded gradient is set; NULL: none */
    void *grad_hook_user;
};

struct tsr_comm_ctx;
struct tsr_reduce_item;

struct tsr_all_gather_result {
    bool pending, local, async;
    bool from_slices;           /* over the smaller group */
    struct tsr_storage *output; /* owned */
    uint32_t event;
};

struct tsr_group {
    struct tsr_state *state;
    char *name;
    uint32_t id; /* index into tables.groups */
    size_t n_params;
    struct tsr_fsdp_param **params;
    bool is_replicate, is_hsdp;
    uint32_t shard_size, shard_rank, replicate_size;
    uint32_t replicate_stride;
    int n_mesh_dims, mesh_dim[2];        /* of the engine's mesh; none for a mesh of its own */
    uint16_t shard_comm, replicate_comm; /* UINT16_MAX: none */
    uint32_t post_forward_size; /* 0: none (keep); = shard_size: sharded; else the smaller group */
    uint16_t post_forward_comm;
    enum tsr_reshard_kind reshard_kind;
    int64_t reshard_int;
    enum tsr_training_state training;
    enum tsr_sharded_state sharded;
    struct tsr_mp_policy mp;
    enum tsr_offload offload;
    tsr_dtype orig_dtype, reduce_dtype;
    bool lazy_done, reduce_grads, all_reduce_grads, reshard_after_backward, unshard_in_backward;
    bool unshard_async_op, force_sum, from_process_group;
    bool keep_storage, reduce_unused; /* 2.15 */
    uint32_t max_reduce_inputs;       /* 2.15; 1 otherwise */
    uint32_t index;                   /* among the groups of its state */
    uint16_t reduce_comm;             /* reduce-scatter: the shard communicator or one of its own */
    uint32_t shard_stride;            /* between the members of a shard group */
    const struct tsr_custom_comm *custom_all_gather, *custom_reduce_scatter; /* borrowed */
    double divide_factor;                                                    /* 0: none */
    struct tsr_all_gather_result result;
    uint32_t reshard_event;     /* 0: none */
    uint32_t post_reduce_event; /* 0: none */
    struct {
        struct tsr_storage *buffer;
        uint32_t event;
    } all_reduce; /* kept until W10 */
    struct tsr_storage *partial;
    size_t n_order, cap_order;
    uint32_t *order; /* own indices in the post-forward order */
    struct tsr_comm_ctx *comm;
    tsr_all_reduce_hook hook;
    void *hook_user;
    bool has_hook;
    uint16_t hook_stream;          /* UINT16_MAX: the all-reduce stream */
    uint64_t shard_numel;          /* sum over params */
    struct tsr_reduce_item *items; /* scratch of a reduction, room for every parameter */
    const char **names;            /* likewise */
    struct tsr_storage *sharded_grad;
};

/* Shared by all states of a root. */
struct tsr_state_ctx {
    struct tsr_state *iter_root;
    bool callback_queued, is_last_backward;
    uint32_t post_optim_event;              /* 0: none */
    bool manual_finalize, finalize_pending; /* 2.15 */
    size_t n_states, cap_states;
    struct tsr_state **states; /* with repetition: once per module of a list (R82) */
};

enum { TSR_MAX_REDUCE_INPUTS = 16 };

struct tsr_comm_ctx {
    bool has_streams;
    uint16_t copy_in, all_gather, reduce_scatter, all_reduce;
    struct {
        struct tsr_storage *output;
        uint32_t event;
        struct tsr_group *group;
    } deferred;               /* W6 */
    struct tsr_reduce_input { /* W9: oldest first; 2.11 keeps at most one */
        struct tsr_storage *input;
        uint32_t event;
    } reduce_inputs[TSR_MAX_REDUCE_INPUTS];
    size_t n_reduce_inputs;
    size_t n_order, cap_order;
    struct tsr_group **order;
};

struct tsr_state {
    size_t n_modules;
    struct tsr_module **modules;
    char *name;
    bool is_replicate, lazy_done, is_root, has_root;
    enum tsr_training_state training;
    struct tsr_mp_policy mp;
    size_t n_groups; /* 0: no parameters; 2.11: at most 1; 2.15: one per mesh of its parameters */
    struct tsr_group **groups;
    struct tsr_state_ctx *ctx;
    struct tsr_comm_ctx *comm;
    size_t n_fwd_prefetch, n_bwd_prefetch;
    struct tsr_state **fwd_prefetch, **bwd_prefetch;
    /* list groups: modules of this forward that have not run yet */
    bool *ran;
    size_t n_ran;
    bool list_open; /* a module of the list has run, not all have */
    bool handle_pending;
};

static inline struct tsr_group *tsr__first_group(const struct tsr_state *s)
{
    return s->n_groups ? s->groups[0] : NULL;
}

/* ---- engine ---------------------------------------------------------------------------------- */

enum { TSR_N_ARGS = 4 };

struct tsr_region { /* one checkpointed call (checkpoint.c) */
    int refs;
    struct tsr_module *module;
    bool outside, early_stop;
    struct tsr_tensor *input, *args[TSR_N_ARGS]; /* args: what engine->args was */
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

struct tsr_optimizer_state;

struct tsr_engine {
    tsr_status status; /* sticky */
    struct tsr_engine_config config;
    struct tsr_trace_sink trace;
    bool has_trace;
    struct tsr_arena
        arena; /* names, modules, states: everything that lives as long as the engine */
    uint32_t world;

    /* tables */
    struct tsr_tables tables;
    const char **module_names, **group_names;
    size_t cap_module_names, cap_group_names;
    struct tsr_stream_info *streams;
    size_t n_streams, cap_streams;
    bool *stream_busy; /* by stream: work was launched since the host last waited for all */
    size_t n_stream_busy, cap_stream_busy;
    struct tsr_comm *comms;
    size_t n_comms, cap_comms;

    /* model */
    uint32_t walk_stamp;
    bool walking;
    struct tsr_module *root;
    struct tsr_module **modules; /* by id, in order of creation */
    size_t n_modules, cap_modules;
    struct tsr_param **params;
    size_t n_params, cap_params;
    struct tsr_model_info {
        bool int_input, loss_mse;
        uint64_t vocab, in_dim;
        const struct tsr_llama_config *llama; /* NULL: another family */
        bool head; /* its last module can make the loss in chunks (tsr__head()) */
    } model;

    struct tsr_param **layout_params; /* in module order, as of layout_states calls */
    size_t n_layout_params, layout_states;

    /* wrapping */
    struct tsr_state **states; /* in order of wrapping */
    size_t n_states, cap_states;
    struct tsr_reducer *reducer;
    uint16_t user_stream; /* of hooks that asked for one; 0: none yet */

    /* emission */
    struct tsr_allocator *allocator;
    bool is_oom; /* oom is set */
    struct tsr_oom oom;
    uint16_t stream; /* current */
    struct tsr_origin origin;
    uint32_t next_buffer, next_event;
    uint32_t *trace_events; /* recorded events in order, for the numbers in a trace */
    size_t n_trace_events, cap_trace_events;
    struct tsr_operand *operands;
    size_t n_operands, cap_operands;
    struct tsr_work work; /* scratch */

    /* autograd */
    bool grad_enabled, in_backward;
    int recompute_depth;
    uint64_t next_seq;
    uint32_t backward_pass;
    struct tsr_node **heap; /* ready nodes, latest-made first */
    size_t n_heap, cap_heap;
    struct tsr_tensor *args[TSR_N_ARGS];    /* beside the input of blocks: mask, tables, ... */
    struct tsr_region *packing, *unpacking; /* region whose forward or recomputation runs */
    bool stopped; /* early stop: nothing runs until the region's call has returned */
    struct tsr_tensor *free_tensors;
    struct tsr_node *free_nodes;
    struct tsr_storage *free_storages;
    struct tsr_node_hook *free_hooks;
    struct tsr_region *free_regions;
    struct tsr_callback { /* run at the end of the backward, in order of queueing */
        void (*fn)(struct tsr_engine *e, void *user);
        void *user;
    } * callbacks;
    size_t n_callbacks, cap_callbacks;

    /* hook context: the stream that a user's hook runs on is `stream` */
    bool in_hook;

    /* step */
    struct tsr_step_config step;
    uint32_t iteration;
    struct tsr_tensor *inputs[TSR_MAX_MICRO], *labels[TSR_MAX_MICRO], *losses[TSR_MAX_MICRO];
    struct tsr_tensor *head_labels; /* for a head that makes the loss; borrowed; NULL: logits */
    bool workspace_main, workspace_autograd, lt_main, lt_autograd;
    struct tsr_storage *workspaces[8];
    size_t n_workspaces;
    bool params_ready, optimizer_ran;
    uint32_t tp_mesh_dims; /* bit i: tensor parallelism uses mesh dimension i */
    struct {
        uint32_t size; /* 0 or 1: the model's steps are not tensor-parallel */
        bool sequence; /* activations between regions are cut along the sequence */
        uint16_t comm, stream;
    } tp;
    struct tsr_storage **opt_temps;  /* scratch of the optimizer, by parameter */
    struct tsr_storage **clip_norms; /* scratch of clipping, two for each parameter */
    struct {
        struct tsr_pinned *free[64]; /* by log2 of the size */
        struct tsr_pinned *pending;  /* freed, perhaps still used by a copy */
        uint64_t uses, settled;      /* uses up to `settled` are over */
    } pinned;
};

static inline bool tsr__ok(const struct tsr_engine *e)
{
    return e->status == TSR_OK && !e->stopped;
}
/* Keeps the first error. */
void tsr__set_error(struct tsr_engine *e, tsr_status status);
#define TSR__RAISE(e, status_code, ...)                                    \
    do {                                                                   \
        if ((e)->status == TSR_OK) /* keeps the text of the first error */ \
            (e)->status = tsr_fail((status_code), __VA_ARGS__);            \
    } while (0)
/* ---- emit.c ---------------------------------------------------------------------------------- */

struct tsr_storage *tsr__storage_new(struct tsr_engine *e, uint64_t bytes,
                                     enum tsr_category category);
/* A storage without a block. */
struct tsr_storage *tsr__storage_empty(struct tsr_engine *e, uint64_t bytes,
                                       enum tsr_category category, uint8_t space);
void tsr__storage_back(struct tsr_engine *e,
                       struct tsr_storage *s); /* gets a block (a new buffer) */
void tsr__storage_unback(struct tsr_engine *e, struct tsr_storage *s); /* loses it */
void tsr__storage_retain(struct tsr_storage *s);
void tsr__storage_release(struct tsr_engine *e, struct tsr_storage **s);
void tsr__storage_set_category(struct tsr_storage *s, enum tsr_category category);

/* ---- host_memory.c --------------------------------------------------------------------------- */

void tsr__host_alloc(struct tsr_engine *e, struct tsr_storage *s);
void tsr__host_free(struct tsr_engine *e, struct tsr_storage *s);
/* A pinned block is named by an instruction; everything that was issued is over. */
void tsr__pinned_use(struct tsr_engine *e, const struct tsr_storage *s);
void tsr__pinned_settle(struct tsr_engine *e);

void tsr__operand(struct tsr_engine *e, const struct tsr_storage *s, uint64_t offset,
                  uint64_t bytes, uint8_t access);
void tsr__operand_tensor(struct tsr_engine *e, const struct tsr_tensor *t, uint8_t access);
void tsr__operand_storage(struct tsr_engine *e, const struct tsr_storage *s, uint8_t access);
/* Emits what `instr` says with the operands collected so far (and forgets them). */
void tsr__emit(struct tsr_engine *e, struct tsr_instr *instr);
void tsr__emit_op(struct tsr_engine *e, const struct tsr_work *work);
void tsr__emit_copy(struct tsr_engine *e, tsr_dtype dtype, uint64_t bytes_read,
                    uint64_t bytes_written, const char *name);
void tsr__emit_mark(struct tsr_engine *e, enum tsr_mark mark, uint32_t value);
void tsr__set_phase(struct tsr_engine *e, enum tsr_phase phase, uint32_t micro);
uint32_t tsr__new_event(struct tsr_engine *e);

/* The host waits for all that was launched: a wait per stream that has work. */
void tsr__host_wait_all(struct tsr_engine *e);
enum { TSR__HIGH_PRIORITY_ORDER = 128 }; /* of streams in the allocator's sets */
uint16_t tsr__stream_add(struct tsr_engine *e, const char *name, uint8_t role, int8_t priority);
uint16_t tsr__comm_add(struct tsr_engine *e, const char *name, uint32_t size, uint32_t stride,
                       uint16_t queue);

/* Streams and events; each is traced as the golden stream events are. */
void tsr__wait_stream(struct tsr_engine *e, uint16_t stream, uint16_t on);
uint32_t tsr__record_event(struct tsr_engine *e, uint16_t stream);
void tsr__wait_event(struct tsr_engine *e, uint16_t stream, uint32_t event);
void tsr__host_wait_event(struct tsr_engine *e, uint32_t event);
void tsr__wait_work(struct tsr_engine *e, uint16_t stream, uint32_t event);

/* ---- trace ----------------------------------------------------------------------------------- */

void tsr__event_begin(struct tsr_event *ev, const char *name);
void tsr__event_group(struct tsr_event *ev, const char *name, const struct tsr_group *g);
void tsr__event_str(struct tsr_event *ev, const char *key, const char *value); /* NULL: null */
void tsr__event_int(struct tsr_event *ev, const char *key, int64_t value);
void tsr__event_bool(struct tsr_event *ev, const char *key, bool value);
void tsr__event_num(struct tsr_event *ev, const char *key, double value); /* 0: null */
void tsr__event_strs(struct tsr_event *ev, const char *key, const char *const *v, size_t n);
void tsr__event_send(struct tsr_engine *e, const struct tsr_event *ev);

/* ---- autograd.c ------------------------------------------------------------------------------ */

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

/* Creates the node of an operation if any input needs a gradient; sets requires_grad and grad_fn of
 * the outputs. Returns NULL when nothing needs a gradient. */
struct tsr_node *tsr__node_new(struct tsr_engine *e, const char *name, tsr_backward_fn backward,
                               struct tsr_tensor *const *inputs, int n_inputs);
void tsr__node_output(struct tsr_node *node, struct tsr_tensor *out, int output);
void tsr__node_save(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *t);
/* New reference to what was saved; recomputes the region first if need be. */
struct tsr_tensor *tsr__node_saved(struct tsr_engine *e, struct tsr_node *node, int i);
/* Counts a save without a node's wish for the tensor (weights: their storage belongs to FSDP). */
void tsr__node_save_weight(struct tsr_engine *e, struct tsr_node *node, struct tsr_tensor *w);
void tsr__node_release(struct tsr_engine *e, struct tsr_node *node);
void tsr__tensor_hook(struct tsr_engine *e, struct tsr_tensor *t,
                      void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg);
void tsr__node_hook(struct tsr_engine *e, struct tsr_node *node,
                    void (*fn)(struct tsr_engine *, void *, uint32_t), void *user, uint32_t arg);
struct tsr_node *tsr__accumulator(struct tsr_engine *e, struct tsr_tensor *leaf);
/* Category at birth of a gradient on its way to node `to`. */
enum tsr_category tsr__grad_category(const struct tsr_engine *e, const struct tsr_node *to);
/* Runs backward from the losses. */
/* Forgets a backward that an error interrupted. */
void tsr__backward_abandon(struct tsr_engine *e);
void tsr__backward(struct tsr_engine *e, struct tsr_tensor *const *losses, size_t n);

/* ---- checkpoint.c ---------------------------------------------------------------------------- */

struct tsr_tensor *tsr__checkpoint_call(struct tsr_engine *e, struct tsr_module *m,
                                        struct tsr_tensor *in, bool outside);
void tsr__region_recompute(struct tsr_engine *e, struct tsr_region *region);
void tsr__region_release(struct tsr_engine *e, struct tsr_region *region);
/* Called by tsr__node_save: hands the tensor to the region being packed or recomputed. */
struct tsr_saved tsr__region_pack(struct tsr_engine *e, struct tsr_tensor *t);

/* ---- call.c ---------------------------------------------------------------------------------- */

struct tsr_tensor *tsr__call_hooks(struct tsr_engine *e, struct tsr_module *m,
                                   struct tsr_tensor *in);
struct tsr_tensor *tsr__call_body(struct tsr_engine *e, struct tsr_module *m,
                                  struct tsr_tensor *in);

/* Arrays of the arena: doubles the room when it is full (the old array is given up). */
bool tsr__arena_grow(struct tsr_engine *e, void *items_ptr, size_t n_used, size_t *n_cap,
                     size_t item_bytes);
#define TSR__ARENA_PUSH(e, items, n, cap, value)                  \
    (tsr__arena_grow((e), &(items), (n), &(cap), sizeof *(items)) \
         ? ((items)[(n)++] = (value), true)                       \
         : false)

/* ---- module.c -------------------------------------------------------------------------------- */

bool tsr__glob(const char *pattern, const char *text);
struct tsr_module *tsr__module_new(struct tsr_engine *e, struct tsr_module *parent,
                                   const char *name, const char *type_name, tsr_forward_fn forward,
                                   void *impl);
/* The same module object under another name. */
bool tsr__module_alias(struct tsr_engine *e, struct tsr_module *parent, const char *name,
                       struct tsr_module *same);
struct tsr_param *tsr__param_new(struct tsr_engine *e, struct tsr_module *m, const char *name,
                                 int n_dims, const uint64_t *shape, tsr_dtype dtype);
bool tsr__param_place(struct tsr_engine *e, struct tsr_module *m, const char *name,
                      struct tsr_param *param);
/* Visits modules below `m` in pre-order, each once; stops when fn returns false. */
typedef bool (*tsr_module_fn)(void *user, struct tsr_module *m);
void tsr__module_walk(struct tsr_module *m, tsr_module_fn fn, void *user);
bool tsr__module_contains(const struct tsr_module *outer, const struct tsr_module *inner);
/* *param: the one that the group gets, a copy of it if the other side holds the first name. */
tsr_status tsr__break_tie(struct tsr_engine *e, struct tsr_module *const *targets, size_t n_targets,
                          struct tsr_param **param);
/* The tensor that the module computes with; raises the errors of a sharded or freed parameter. */
struct tsr_tensor *tsr__param_value(struct tsr_engine *e, struct tsr_param *p);

/* ---- ops_tp.c -------------------------------------------------------------------------------- */

/* Around the part of a block that tensor parallelism cuts; new references. Identity without it. */
struct tsr_tensor *tsr__tp_enter(struct tsr_engine *e, struct tsr_tensor *x);
struct tsr_tensor *tsr__tp_leave(struct tsr_engine *e, struct tsr_tensor *x);
/* All-reduce in place over the tensor-parallel ranks; nothing without tensor parallelism. */
void tsr__tp_sum(struct tsr_engine *e, struct tsr_tensor *x);
void tsr__tp_reduce_partial(struct tsr_engine *e, const struct tsr_param *p,
                            struct tsr_tensor *grad);

/* ---- ops_chunked_loss.c ---------------------------------------------------------------------- */

/* The last module's forward: logits, or the loss where engine->head_labels are set. */
struct tsr_tensor *tsr__head(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x);
/* Refuses a loss in chunks of a model that has no such head. */
tsr_status tsr__check_chunked_loss(const struct tsr_engine *e);

/* ---- tensor_parallel.c ----------------------------------------------------------------------- */

/* Some dimensions of the engine's mesh, in the order in which they were named. */
struct tsr_submesh {
    int n_dims, dim[TSR_MAX_MESH]; /* dim -1: several dimensions flattened into one */
    uint32_t size[TSR_MAX_MESH], stride[TSR_MAX_MESH];
};
/* n 0: every dimension that no tensor parallelism uses. ValueError for an unknown or used name. */
tsr_status tsr__submesh(const struct tsr_engine *e, const char *const *names, int n,
                        struct tsr_submesh *out);
/* As above, of the names in options->spmd_*: at most one dimension to replicate on and one to shard
 * on. `replicate` is set if there are no names to shard on (section 2.8). */
tsr_status tsr__spmd_submesh(const struct tsr_engine *e, const struct tsr_wrap_options *options,
                             struct tsr_submesh *out, bool *replicate);
struct tsr_param_dtensor;
/* Where a parameter lies (tensor_parallel.h). */
tsr_status tsr__param_dtensor(const struct tsr_engine *e, const struct tsr_param *p,
                              struct tsr_param_dtensor *out);
/* Refuses DTensor parameters that a group cannot shard (section 2.8). */
tsr_status tsr__check_dtensor_param(const struct tsr_param *p, const struct tsr_group *g);
/* On dimensions other than 0 every rank's part must divide evenly. */
tsr_status tsr__check_dtensor_dim(const struct tsr_engine *e, const struct tsr_param *p,
                                  const struct tsr_group *g, int dim);
/* Steps of a model with tensor-parallel parameters are not modelled: only their layout. */
tsr_status tsr__check_tensor_parallel_step(const struct tsr_engine *e);

/* ---- state.c, param_group.c, all_gather.c, reduce.c ------------------------------------------ */

struct tsr_tensor *tsr__state_pre_forward(struct tsr_engine *e, struct tsr_state *s,
                                          struct tsr_module *m, struct tsr_tensor *in);
struct tsr_tensor *tsr__state_post_forward(struct tsr_engine *e, struct tsr_state *s,
                                           struct tsr_module *m, struct tsr_tensor *out);
void tsr__state_unshard_method(struct tsr_engine *e, struct tsr_state *s, bool async_op);

/* Sets the size and communicator of the post-forward mesh (fully_shard.c). */
tsr_status tsr__group_set_post_forward(struct tsr_engine *e, struct tsr_group *g, uint32_t size);
void tsr__group_lazy_init(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_unshard(struct tsr_engine *e, struct tsr_group *g, bool async_op);
void tsr__group_wait_for_unshard(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_reshard(struct tsr_engine *e, struct tsr_group *g);
struct tsr_tensor *tsr__group_pre_forward(struct tsr_engine *e, struct tsr_group *g,
                                          struct tsr_tensor *in);
void tsr__group_post_forward(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_pre_backward(struct tsr_engine *e, struct tsr_group *g, bool default_prefetch);
void tsr__group_post_backward(struct tsr_engine *e, struct tsr_group *g, const char *by);
/* Marks where a hook of the group begins and ends; returns what origin.group was. */
uint32_t tsr__group_enter(struct tsr_engine *e, const struct tsr_group *g, enum tsr_hook hook);
void tsr__group_leave(struct tsr_engine *e, enum tsr_hook hook, uint32_t group);
/* Waits for and drops reduce-scatter inputs, oldest first, until `keep` remain (W9, W14). */
void tsr__drop_reduce_inputs(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t keep);
/* Drops gradients and pending gathers, reshards: after an exception (R201). */
void tsr__group_reset(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_finalize(struct tsr_engine *e, struct tsr_group *g);
/* Moves of the state machines, checked against the tables of transitions.c. */
void tsr__state_set_training(struct tsr_engine *e, struct tsr_state *s, enum tsr_training_state to);
void tsr__group_set_training(struct tsr_engine *e, struct tsr_group *g, enum tsr_training_state to);
void tsr__group_set_sharded(struct tsr_engine *e, struct tsr_group *g, enum tsr_sharded_state to);
void tsr__group_to_sharded(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_prefetch(struct tsr_engine *e, struct tsr_group *g, bool forward);
const char *tsr__training_name(enum tsr_training_state s);

/* What a reduction reduces: one gradient per parameter that has one, in group order. */
struct tsr_reduce_item {
    struct tsr_fsdp_param *p;
    struct tsr_tensor *grad;
};
void tsr__all_gather_issue(struct tsr_engine *e, struct tsr_group *g, bool async_op,
                           uint16_t copy_in, uint16_t all_gather);
void tsr__all_gather_copy_out(struct tsr_engine *e, struct tsr_group *g);
/* Hands a user's collective its two tensors (taken over) and lets it emit on `stream`. */
void tsr__run_custom(struct tsr_engine *e, const struct tsr_custom_comm *custom,
                     const struct tsr_custom_call *call, struct tsr_tensor *out,
                     struct tsr_tensor *in, uint16_t stream);
/* Frees the gathered inputs of an extension. */
void tsr__drop_raw(struct tsr_engine *e, struct tsr_fsdp_param *p);
void tsr__reduce(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item *items,
                 size_t n);

struct tsr_divide {
    double pre, post, premul;
    uint8_t rs_op, ar_op;
};
struct tsr_divide tsr__divide_factors(uint32_t shard, uint32_t replicate, tsr_dtype reduce,
                                      double factor, bool force_sum);

/* ---- reducer.c (bucketed replicate) -----------------------------------------------------------
 */

struct tsr_tensor *tsr__reducer_pre_forward(struct tsr_engine *e, struct tsr_tensor *in);
void tsr__reducer_ready(struct tsr_engine *e, struct tsr_param *p);
/* After the graph of a backward has been traversed; `pass` marks the nodes that it reaches. */
void tsr__reducer_backward_begin(struct tsr_engine *e, uint32_t pass);
void tsr__reducer_finalize(struct tsr_engine *e);
void tsr__reducer_destroy(struct tsr_engine *e);
void tsr__reducer_init_params(struct tsr_engine *e);

/* ---- optimizer.c, step.c ----------------------------------------------------------------------
 */

void tsr__make_inputs(struct tsr_engine *e, uint32_t n_micro);
void tsr__zero_grad(struct tsr_engine *e);
/* The forward of the root and the loss of a micro-batch; a new reference. */
struct tsr_tensor *tsr__forward_loss(struct tsr_engine *e, uint32_t micro);
/* In which the states of a parameter are kept. */
tsr_dtype tsr__state_dtype(const struct tsr_engine *e, const struct tsr_param *p);
void tsr__optimizer_step(struct tsr_engine *e);
void tsr__clip(struct tsr_engine *e);
/* The gradient of a parameter as the optimizer sees it: its storage; NULL if there is none. */
struct tsr_storage *tsr__param_grad(const struct tsr_param *p);
uint64_t tsr__param_local_numel(const struct tsr_param *p);
struct tsr_storage *tsr__param_storage(const struct tsr_param *p);
/* Parameters in module order (tied ones once); *n gets their number. */
struct tsr_param *const *tsr__params_in_order(struct tsr_engine *e, size_t *n);

/* ---- outside_init.c -------------------------------------------------------------------------- */

/* Parameters that are not built on the meta device: full ones, then their shards. Nothing for
 * TSR_INIT_META. */
void tsr__init_unsharded(struct tsr_engine *e);

#endif
