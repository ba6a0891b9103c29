/* fsdp.h: wrapped states, parameter groups and what they share: the hook state machines of
 * fully_shard and replicate (section 3). Private to engine/.
 */
#ifndef TSR_ENGINE_FSDP_H
#define TSR_ENGINE_FSDP_H

#include "engine/fsdp/fully_shard.h"
#include "engine/fsdp/methods.h"
#include "engine/fsdp/transitions.h"
#include "engine/graph/wrapper.h"
#include "engine/layout/layout.h"
#include "engine/ops/ops.h"

struct tsr_group;
struct tsr_flat;

/* ---- states and groups ----------------------------------------------------------------------- */

/* What the engine keeps of all wrapped calls, fsdp1's among them. */
struct tsr_wrapped {
    struct tsr_wrapper base;
    struct tsr_state **states; /* in order of wrapping */
    size_t n_states, cap_states;
    const char **group_names; /* by group id */
    size_t cap_group_names;
    uint16_t user_stream; /* of hooks that asked for one; 0: none yet */
    /* Of the step that is configured: */
    bool optimizer_reads_any; /* it takes gradients of any dtype (the fused AdamW) */
    bool clips;               /* so does clipping, but only where gradients stay sums */
    bool raced[TSR_N_RACES];  /* see tsr_inherited_race() */
};
extern const struct tsr_wrapper_ops tsr__fsdp_wrapper;

enum tsr_training_state {
    TSR_IDLE,
    TSR_FORWARD,
    TSR_PRE_BACKWARD,
    TSR_POST_BACKWARD,
    TSR_N_TRAINING
};
enum tsr_sharded_state { TSR_SHARDED, TSR_SHARDED_POST_FORWARD, TSR_UNSHARDED, TSR_N_SHARDED };

/* A parameter in a group: its shard, and what comes of it and goes.
 *
 * Invariant: `unsharded` exists from the first unshard on; its storage is backed only while the
 * group is unsharded, and only then param->value is it. */
struct tsr_fsdp_param {
    struct tsr_param *param;
    struct tsr_group *group;
    struct tsr_param_cut cut; /* as layouts ask for it */
    size_t n_aliases, cap_aliases;
    char **aliases;     /* FQNs of the other places inside the call's modules */
    size_t n_made;      /* shards so far, of n_applied of the parameter */
    bool is_registered; /* the wrapped module has been made, and has taken the shard over ... */
    struct tsr_storage *registered; /* ... whose predecessor it keeps until it is made again */
    int shard_dim;                  /* -1: replicated */
    uint64_t local[TSR_MAX_DIMS], padded[TSR_MAX_DIMS];
    uint64_t local_numel, shard_numel; /* of this rank; padded */
    bool full_precision; /* 2.15: this parameter keeps its dtype (param_dtype_override) */
    bool fp8;            /* it is gathered in fp8 (ops_common.h) */
    tsr_dtype orig_dtype, param_dtype, reduce_dtype; /* the last two NONE: no cast */
    struct tsr_storage *sharded;                     /* orig dtype, padded; host when offloaded */
    uint64_t mirror_offset; /* bytes; of the group's mirror (mirror.c), if it has the parameter */
    struct tsr_storage *post_forward; /* slice of the smaller group */
    struct tsr_tensor *unsharded;     /* created once (R105) */
    struct tsr_storage *temp;         /* copy-in of the running unshard: H2D or cast copy */
    struct tsr_tensor *acc_grad;      /* unsharded accumulated gradient, reduce dtype */
    struct tsr_storage *grad;         /* sharded gradient: a view of the group's flat buffer ... */
    uint64_t grad_offset;             /* ... in bytes */
    bool kept_grad;     /* grad is the unsharded gradient itself, in the compute dtype (mirror.c) */
    uint32_t d2h_event; /* 0: none */
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
    bool direct;                /* into the unsharded parameters; no output */
    struct tsr_storage *output; /* owned */
    uint32_t event;
};

/* Parameters that are gathered and reduced together, in the order of the flat buffers.
 *
 * Invariant: `training` and `sharded` move only along the tables of transitions.c. At most one
 * all-gather is pending (result.pending), which the next wait takes; every event is of work whose
 * buffer the group still holds, and 0 once somebody has waited for it. */
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
    bool reduce_unused;         /* 2.15 */
    uint32_t max_reduce_inputs; /* 2.15; 1 otherwise */
    uint32_t index;             /* among the groups of its state */
    uint16_t reduce_comm;       /* reduce-scatter: the shard communicator or one of its own */
    uint32_t shard_stride;      /* between the members of a shard group */
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
    bool direct;                /* an option of the call (direct.c) */
    uint32_t retire_event;      /* of a direct group that is retired; 0: it is not */
    bool mirrors;               /* an option of the call (mirror.c) */
    bool mirror_is_fresh;       /* it holds the values of the shards */
    struct tsr_storage *mirror; /* owned; NULL: none yet, or no parameter is cast */
    bool folds;                 /* an option of the call (reduce.c) */
};

/* Shared by all states of a root.
 *
 * Invariant: iter_root is set from the root's pre-forward to its post-forward only, or until
 * further notice where a list that was recomputed in part never came to that (Q18); callback_queued
 * from the first pre-backward of a backward to its end. */
struct tsr_state_ctx {
    struct tsr_state *iter_root;
    bool root_is_stuck; /* iter_root was set when the optimizer stepped */
    bool callback_queued, is_last_backward;
    uint32_t post_optim_event;              /* 0: none */
    bool event_is_stale;                    /* the optimizer has stepped since */
    bool manual_finalize, finalize_pending; /* 2.15 */
    size_t n_states, cap_states;
    struct tsr_state **states; /* with repetition: once per module of a list (R82) */
};

enum { TSR_MAX_REDUCE_INPUTS = 16 }; /* that a user may ask for; groups of one state add theirs */

/* Streams, and the buffers that collectives still use on them: shared by all states of a root, or
 * of several (share_comm_ctx).
 *
 * Invariant: deferred.output is the buffer of the latest copy-out in forward, and NULL outside of a
 * root's forward. reduce_inputs are in order of their events. `order` is the post-forward order
 * since the last backward that was the last one. */
struct tsr_comm_ctx {
    bool has_streams;
    uint16_t copy_in, all_gather, reduce_scatter, all_reduce;
    struct {
        struct tsr_storage *output;
        uint32_t event;
        struct tsr_group *group;
    } deferred;               /* W6 */
    struct tsr_storage *late; /* kept from deferred.output while a trace casts the root's output */
    struct tsr_reduce_input { /* W9: oldest first; 2.11 keeps at most one */
        struct tsr_storage *input;
        uint32_t event;
    } * reduce_inputs;
    size_t n_reduce_inputs, cap_reduce_inputs;
    size_t n_order, cap_order;
    struct tsr_group **order;
    size_t n_retired, cap_retired; /* direct groups, oldest first (direct.c) */
    struct tsr_group **retired;
    uint32_t stray_event;   /* the newest event when a prefetched gather was dropped unused: copy-in
                               work waits for none that is newer (Q19); 0: there is no such gather */
    uint32_t stepped_event; /* the same of the optimizer's last step (Q20) */
};

/* One call of fully_shard, replicate or fsdp1: what its modules share.
 *
 * Invariant: until lazy_done, ctx is its own, and comm, too, unless it is shared (R198); then they
 * are its root's. ran[i] says whether modules[i] has run since list_open, n_ran of them have; both
 * are reset when the list is complete, or at the end of a last backward (R118, R119). */
struct tsr_state {
    struct tsr_flat *flat; /* of a call of tsr_fsdp1() (fsdp1.h); NULL: of the other APIs */
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
    /* The module whose pre-hook, and the one whose post-hook, did the work of the latest forward:
     * the autograd nodes of the call are at the first one's inputs and the last one's outputs. */
    const struct tsr_module *first_run, *last_run;
    bool handle_pending;
};

static inline struct tsr_group *tsr__first_group(const struct tsr_state *s)
{
    return s->n_groups ? s->groups[0] : NULL;
}

/* ---- states and groups: what the files of this folder give each other ------------------------ */

/* A shard as Module.to_empty() makes it: without padding, and anew at every place of a tied
 * parameter. The shard of an earlier place goes into *replaced, where Module._apply() has it in a
 * variable: until the module's next shard is there, or the module is done. */
void tsr__init_shard(struct tsr_engine *e, struct tsr_fsdp_param *f, struct tsr_storage **replaced);
/* After a wrapped module is materialised its uneven shards move into padded ones. */
void tsr__pad_shards(struct tsr_engine *e, const struct tsr_state *s);
void tsr__walk_states(struct tsr_state_walk *walk, struct tsr_wrapper *w);

extern const struct tsr_module_hooks tsr__state_hooks;
/* The hook on the gradient of an output of a wrapped module. */
void tsr__state_pre_backward(struct tsr_engine *e, struct tsr_state *s);
/* Releases the all-gather that _post_forward() keeps until it has cast the root's output (SEMANTICS
 * R98): of a traced model the cast comes from the trace. */
void tsr__state_end_post_forward(struct tsr_engine *e, struct tsr_state *s);
/* Makes the state the root of all below it. Raises. */
void tsr__lazy_init(struct tsr_engine *e, struct tsr_state *s);
void tsr__state_unshard_method(struct tsr_engine *e, struct tsr_state *s, bool async_op);

/* Tells layouts how the group cuts the parameter (wrap_groups.c). */
void tsr__set_cut(struct tsr_fsdp_param *f);
/* Begins an event of the trace about a group. */
void tsr__event_group(struct tsr_event *ev, const char *name, const struct tsr_group *g);
/* Sets the size and communicator of the post-forward mesh (wrap_groups.c). */
tsr_status tsr__group_set_post_forward(struct tsr_engine *e, struct tsr_group *g, uint32_t size);
void tsr__group_lazy_init(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_unshard(struct tsr_engine *e, struct tsr_group *g, bool async_op);
void tsr__group_wait_for_unshard(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_reshard(struct tsr_engine *e, struct tsr_group *g);
struct tsr_tensor *tsr__group_pre_forward(struct tsr_engine *e, struct tsr_group *g,
                                          struct tsr_tensor *in);
void tsr__group_post_forward(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_pre_backward(struct tsr_engine *e, struct tsr_group *g, bool default_prefetch);
void tsr__group_post_backward(struct tsr_engine *e, struct tsr_group *g, enum tsr_cause cause);
/* Marks where a hook of the group begins and ends; returns what origin.group was. */
uint32_t tsr__group_enter(struct tsr_engine *e, const struct tsr_group *g, enum tsr_hook hook);
void tsr__group_leave(struct tsr_engine *e, enum tsr_hook hook, uint32_t group);
/* Waits for and drops reduce-scatter inputs, oldest first, until `keep` remain (W9, W14). */
void tsr__drop_reduce_inputs(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t keep);
/* Drops gradients and pending gathers, reshards: after an exception (R201). */
void tsr__group_reset(struct tsr_engine *e, struct tsr_group *g);
void tsr__group_finalize(struct tsr_engine *e, struct tsr_group *g);
/* Moves of the state machines, checked against the tables of transitions.c. */
void tsr__state_set_training(struct tsr_engine *e, struct tsr_state *s, enum tsr_training_state to,
                             enum tsr_cause cause);
void tsr__group_set_training(struct tsr_engine *e, struct tsr_group *g, enum tsr_training_state to,
                             enum tsr_cause cause);
void tsr__group_set_sharded(struct tsr_engine *e, struct tsr_group *g, enum tsr_sharded_state to,
                            enum tsr_cause cause);
void tsr__group_to_sharded(struct tsr_engine *e, struct tsr_group *g, enum tsr_cause cause);
void tsr__group_prefetch(struct tsr_engine *e, struct tsr_group *g, bool forward);
const char *tsr__training_name(enum tsr_training_state s);

/* What a reduction reduces: one gradient per parameter that has one, in group order. */
struct tsr_reduce_item {
    struct tsr_fsdp_param *p;
    struct tsr_tensor *grad;
    struct tsr_storage *padded; /* scratch of the copy-in; NULL: the ranks divide it evenly */
};
void tsr__all_gather_issue(struct tsr_engine *e, struct tsr_group *g, bool async_op,
                           uint16_t copy_in, uint16_t all_gather);
void tsr__all_gather_copy_out(struct tsr_engine *e, struct tsr_group *g);
/* direct.c. True if the parameters can be gathered into their places. */
bool tsr__is_direct(const struct tsr_group *g);
/* The unsharded parameters are not needed any more. */
void tsr__direct_retire(struct tsr_engine *e, struct tsr_group *g);
/* They were gathered for nothing. */
void tsr__direct_discard(struct tsr_engine *e, struct tsr_group *g);
/* Memory of retired groups goes back, but for that of the latest `keep`. */
void tsr__direct_settle(struct tsr_engine *e, struct tsr_comm_ctx *comm, size_t keep);

/* mirror.c. True if the group keeps this parameter's shard in the compute dtype as well. */
bool tsr__is_mirrored(const struct tsr_fsdp_param *p);
/* True if modules compute with the shards themselves, or with their mirror: nothing is gathered. */
bool tsr__is_aliased(const struct tsr_group *g);
/* The mirror with the values of the shards: cast on the current stream if they have changed since.
 * NULL: no parameter of the group is cast. */
struct tsr_storage *tsr__mirror(struct tsr_engine *e, struct tsr_group *g);
/* The unsharded parameters of an aliased group. */
void tsr__alias_unsharded(struct tsr_engine *e, struct tsr_group *g);
/* Gradients that need no reduction and whose every reader takes them as they are stay where they
 * are; false: they have to be reduced. Takes over those that it keeps. */
bool tsr__keep_gradients(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item *items,
                         size_t n);
/* state.c. The optimizer writes parameters from here on. */
void tsr__optimizer_stepped(struct tsr_engine *e, struct tsr_wrapper *w);
/* The streams of gathers have been made to wait for `event` of the compute stream. */
void tsr__gathers_follow(struct tsr_comm_ctx *comm, uint32_t event);
/* The shards get other values than a kernel that writes the mirror, too, gives them. */
void tsr__mirrors_are_stale(struct tsr_engine *e, struct tsr_wrapper *w);
/* reduce.c. True if reductions of the group only add. */
bool tsr__is_folded(const struct tsr_group *g);
/* What the gradient must still be multiplied by; 1 if it is as PyTorch has it. */
double tsr__folded_scale(const struct tsr_param *p);
/* True if a group was wrapped so. */
bool tsr__folds(const struct tsr_wrapped *wrapped);
/* Args of a kernel: how the parameter is cut (KERNELS.md). */
void tsr__cut_args(struct tsr_engine *e, const struct tsr_fsdp_param *p);
/* Hands a user's collective its two tensors (taken over) and lets it emit on `stream`. */
void tsr__run_custom(struct tsr_engine *e, const struct tsr_custom_comm *custom,
                     const struct tsr_custom_call *call, struct tsr_tensor *out,
                     struct tsr_tensor *in, uint16_t stream);
/* Frees the gathered inputs of an extension. */
void tsr__drop_raw(struct tsr_engine *e, struct tsr_fsdp_param *p);
void tsr__reduce_grads(struct tsr_engine *e, struct tsr_group *g, struct tsr_reduce_item *items,
                       size_t n);

/* ---- a call --------------------------------------------------------------------------------- */

/* One call of fully_shard() or replicate() while it runs: fully_shard.c checks it and finds its
 * modules and parameters, wrap_groups.c makes the groups. Its lists live in the engine's arena.
 * `params`: those of `managed` that no other call has, each once, in the order in which they lie in
 * the flat buffers. */
struct tsr__wrap_call {
    struct tsr_engine *e;
    const struct tsr_wrap_options *options;
    bool replicate;
    struct tsr_submesh mesh; /* dimensions of the engine's mesh that the call uses */
    size_t n_targets;
    struct tsr_module **targets; /* roots of the list */
    bool *seen;                  /* by module id */
    size_t n_managed, cap_managed;
    struct tsr_module **managed; /* post-order */
    size_t n_params, cap_params;
    struct tsr_param **params;
};

/* The call names mesh dimensions of SPMD parameters (section 2.8). */
static inline bool tsr__is_spmd(const struct tsr__wrap_call *c)
{
    return c->options->n_spmd_shard > 0 || c->options->n_spmd_replicate > 0;
}

/* Makes the groups of the state from the call's parameters: one per mesh. */
tsr_status tsr__make_groups(struct tsr__wrap_call *c, struct tsr_state *s) TSR_MUST_USE;

#endif
