/* module.h: the module tree with its parameters, and a module's call with the hooks around it.
 * Private to engine/; included by engine.h.
 */
#ifndef TSR_ENGINE_MODULE_H
#define TSR_ENGINE_MODULE_H

#include "engine/graph/graph.h"

struct tsr_state;
struct tsr_cplan;
struct tsr_flat;
struct tsr_wrapper; /* wrapper.h */

/* ---- modules and parameters ------------------------------------------------------------------ */

struct tsr_fsdp_param;
struct tsr_param_cut;       /* layout.h */
struct tsr_tensor_parallel; /* tensor_parallel.c */

/* A parameter under all its names.
 *
 * Invariant: a parameter is managed by a group (`fsdp`: a shard), perhaps as a range of a flat one
 * (`flat`), or is whole on every rank (`master`, from initialisation on). `value` is what modules
 * read: of a managed one NULL while it is sharded. */
struct tsr_param {
    char *name, *fqn; /* fqn: the first place in module order */
    int n_dims;
    uint64_t shape[TSR_MAX_DIMS], numel;
    tsr_dtype dtype;
    bool requires_grad, meta, noncontiguous;
    uint8_t init;         /* enum tsr_init_kind */
    double init_constant; /* standard deviation (0: the model's), or the value */
    uint32_t id;
    uint32_t visited;                /* stamp of the last walk that listed parameters */
    uint32_t n_places;               /* of modules that hold it, or more: 1 is never tied */
    uint32_t n_applied;              /* initialisations: with each place, and each of its parents */
    struct tsr_wrapper *wrapper;     /* that manages it; NULL: it is whole on every rank */
    struct tsr_fsdp_param *fsdp;     /* NULL: not managed */
    const struct tsr_param_cut *cut; /* how its group cuts it; NULL: not managed */
    struct tsr_tensor *value;        /* what the module computes with now; NULL: sharded */
    struct tsr_flat *flat;   /* it is a view of this flat parameter, or is it (fsdp1.h); NULL: no */
    struct tsr_param *whole; /* likewise: the flat parameter itself; NULL: it is its own */
    bool ignored;
    bool tp_partial;                /* its gradient is a partial sum over tensor-parallel ranks */
    struct tsr_tensor_parallel *tp; /* a DTensor: `shape` is this rank's part; NULL: plain */
    struct tsr_param *untied_from;  /* a tie that grouping broke (2.1) */
    /* parameters outside FSDP groups (ignored, bucketed replicate): */
    struct tsr_storage *master;       /* the parameter, original dtype */
    struct tsr_tensor *full_grad;     /* its gradient as the optimizer sees it; NULL: value->grad */
    struct tsr_storage *opt_state[3]; /* optimizer states, made by the first step */
    struct tsr_storage *step_count;   /* of the fused optimizer */
    bool starts;                      /* this step of the optimizer is its first; during one */
    bool is_stepped;                  /* it had a gradient in a step of the optimizer */
    bool is_stateless;                /* what is loaded has no states of it */
    uint64_t missed_steps;            /* of the optimizer, in which it had none; if is_stepped */
};

struct tsr_place {
    struct tsr_param *param;
    char *name; /* attribute; the FQN of this place is module FQN + "." + name */
};

struct tsr_checkpoint_mode {
    bool inside, outside, early_stop, selective;
};

/* What a wrapper does around each forward of a module. */
struct tsr_module_hooks {
    /* Takes over the input and returns what the module gets. */
    struct tsr_tensor *(*pre_forward)(struct tsr_engine *e, struct tsr_module *m,
                                      struct tsr_tensor *in);
    /* Takes over the output and returns what the caller gets; also runs when the call has failed or
     * has stopped early, perhaps with NULL. NULL: nothing. */
    struct tsr_tensor *(*post_forward)(struct tsr_engine *e, struct tsr_module *m,
                                       struct tsr_tensor *out);
};

/* Invariant: a module that stands at several places of the tree is one struct with the name of the
 * first (child_names of its parents have the others), so walks mark `visited`. `state` implies
 * `hooks`; the bucketed replicate sets hooks alone. */
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
    struct tsr_module_buffer { /* of its own, in order of registration */
        uint64_t bytes;
        tsr_dtype dtype;
        struct tsr_storage *storage; /* NULL before initialisation */
    } * buffers;
    size_t n_buffers, cap_buffers;
    uint32_t n_applied, n_made; /* initialisations: how many, with each of its parents; so far */
    bool no_forward;            /* a container: ModuleList */
    bool has_args;              /* its calls get engine->autograd.args beside the input */
    struct tsr_method {
        const char *name;
        tsr_forward_fn fn;
        bool registered; /* runs the forward hooks */
    } * methods;
    size_t n_methods, cap_methods;
    tsr_forward_fn forward;
    void *impl;
    const struct tsr_module_hooks *hooks; /* of the latest wrapper; NULL: it is not wrapped */
    struct tsr_wrapper *wrapper;          /* that manages its parameters; NULL: none does */
    struct tsr_state *state;              /* set by fully_shard, replicate or fsdp1 */
    struct tsr_checkpoint_mode checkpoint;
    struct tsr_cplan *plans;       /* of a compiled block (compile.h) */
    struct tsr_tensor *aux_output; /* a second output of the running forward (attention weights) */
};

/* ---- the tree -------------------------------------------------------------------------------- */

/* Invariant: modules[i]->id == i, and params[i]->id == i where it is not NULL (a tie took its
 * place); nothing is ever removed. */
struct tsr_module_tree {
    struct tsr_module *root;
    struct tsr_module **modules; /* by id, in order of creation */
    size_t n_modules, cap_modules;
    const char **module_names;
    size_t cap_module_names;
    struct tsr_param **params;
    size_t n_params, cap_params;
    uint32_t walk_stamp;
    bool walking;
    size_t n_wrapped;         /* calls of wrappers so far */
    struct tsr_param **order; /* tsr__params_in_order(), as of `order_wrapped` such calls */
    size_t n_order, order_wrapped;
    bool params_ready; /* tsr_engine_init_params() has run */
    /* Runs a block (a module of a list of modules) instead of its forward and its checkpoint, both
     * of which it sees to (compile.h). NULL: blocks run as they are. */
    struct tsr_tensor *(*block_call)(struct tsr_engine *e, struct tsr_module *m,
                                     struct tsr_tensor *in);
};
void tsr__tree_fini(struct tsr_module_tree *tree);

/* ---- calls ----------------------------------------------------------------------------------- */

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
bool tsr__buffer_add(struct tsr_engine *e, struct tsr_module *m, tsr_dtype dtype, uint64_t bytes);
/* Visits modules below `m` in pre-order, each once; stops when fn returns false. */
typedef bool (*tsr_module_fn)(void *user, struct tsr_module *m);
void tsr__module_walk(struct tsr_module *m, tsr_module_fn fn, void *user);
/* Parameters in module order, as wrapping left them (tied ones once); *n gets their number. */
struct tsr_param *const *tsr__params_in_order(struct tsr_engine *e, size_t *n);
bool tsr__module_contains(const struct tsr_module *outer, const struct tsr_module *inner);
/* The tensor that the module computes with; raises the errors of a sharded or freed parameter. */
struct tsr_tensor *tsr__param_value(struct tsr_engine *e, struct tsr_param *p);

#endif
