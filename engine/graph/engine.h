/* engine.h: the engine's own structures, shared by the files of engine/ and by nobody else.
 *
 * Reading order: module.h (the tree), graph.h (tensors, nodes, backward), fsdp.h (the hook state
 * machines), emit.h (what they emit); then the files named there, and step.c (an iteration).
 *
 * Errors inside an emission are sticky: the first one is kept in engine->status, later emission
 * does nothing, and the step function returns it. So model code and hooks read like the PyTorch
 * code they stand for, without a check after each operation.
 */
#ifndef TSR_ENGINE_H
#define TSR_ENGINE_H

#include "engine/fsdp/fsdp.h"
#include "engine/graph/deferred.h"
#include "engine/graph/emit.h"
#include "engine/ops/ops.h"

struct tsr_reducer;
struct tsr_capture;
struct tsr_fsdp1;

/* ---- engine ---------------------------------------------------------------------------------- */

struct tsr_optimizer_state;
struct tsr__item;
struct tsr__save_copy;

enum { TSR__MAX_REPORTS = TSR_MAX_MICRO + 1 }; /* losses and a norm */

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
    uint32_t walk_stamp, digest_stamp;
    bool walking;
    struct tsr_module *root;
    struct tsr_module **modules; /* by id, in order of creation */
    size_t n_modules, cap_modules;
    struct tsr_param **params;
    size_t n_params, cap_params;
    struct tsr_model_info {
        bool int_input, loss_mse, shifts_labels;
        uint64_t vocab, in_dim, target_dim; /* 0: the loss has no target */
        double norm_eps, init_std;
        struct tsr_rope rope;
        const struct tsr_llama_config *llama; /* NULL: another family */
        bool head;         /* its last module can make the loss in chunks (tsr__head()) */
        bool by_iteration; /* what runs depends on the number of the iteration */
    } model;

    struct tsr_param **layout_params; /* in module order, as of layout_states calls */
    size_t n_layout_params, layout_states;

    /* wrapping */
    struct tsr_state **states; /* in order of wrapping */
    size_t n_states, cap_states;
    struct tsr_reducer *reducer;
    struct tsr_fsdp1 *fsdp1;       /* what the states of tsr_fsdp1() share; NULL: there are none */
    struct tsr_deferral *deferral; /* NULL: every free is in stream order */
    uint16_t user_stream;          /* of hooks that asked for one; 0: none yet */

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
    struct tsr_pending_report { /* a value on its way to the host */
        struct tsr_storage *host;
        uint8_t what; /* enum tsr_report */
        uint8_t dtype;
        uint32_t micro;
    } reports[TSR__MAX_REPORTS];
    size_t n_reports;
    uint32_t report_event; /* after the latest of them */
    uint32_t input_event;  /* after the copies of the latest batch; 0: none */
    uint8_t next_slot;     /* of the operands */
    uint64_t *kernel_args; /* of the instruction that is put together */
    size_t n_kernel_args, cap_kernel_args;
    struct tsr_work work; /* scratch */

    /* autograd */
    bool grad_enabled, in_backward;
    int recompute_depth;
    uint64_t next_seq;
    uint32_t backward_pass;
    struct tsr_node **heap; /* ready nodes, latest-made first */
    size_t n_heap, cap_heap;
    struct { /* a norm that is called with a sum (ops_fused.h) */
        bool on;
        struct tsr_tensor *addend, *sum; /* addend: borrowed */
    } add_norm;
    struct tsr_tensor *args[TSR_N_ARGS];    /* beside the input of blocks: mask, tables, ... */
    struct tsr_region *packing, *unpacking; /* region whose forward or recomputation runs */
    bool stopped;                /* early stop: nothing runs until the region's call has returned */
    struct tsr_capture *capture; /* a block is traced, not run (compile.h) */
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
    struct tsr_tensor *kept_logits; /* of the latest micro-batch, for metrics */
    struct tsr_tensor *metric_states[TSR_MAX_METRICS][2];
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
    tsr_dtype clip_dtype;            /* of norms and factor: f64 if a gradient is */
    struct tsr_storage *clip_factor; /* for the optimizer of this step (folded_scale.c) */
    struct tsr__save {           /* shards that are saved beside training (outside_save_async.c) */
        struct tsr__item *items; /* owned */
        struct tsr__save_copy *copies; /* owned; NULL: nothing is being saved */
        size_t n;
        uint16_t stream;
        bool has_stream, has_device_copies;
        bool is_copying; /* not handed over yet */
        bool is_guarded; /* the compute stream has waited for the copies */
        uint32_t event;  /* after the copies of device memory; 0: there are none */
    } save;
    struct {
        struct tsr_pinned *free[64]; /* by log2 of the size */
        struct tsr_pinned *pending;  /* freed, perhaps still used by a copy */
        uint64_t uses, settled;      /* uses up to `settled` are over */
        uint32_t n_blocks;
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

/* ---- ops_tp.c -------------------------------------------------------------------------------- */

/* Around the part of a block that tensor parallelism cuts; new references. Identity without it. */
struct tsr_tensor *tsr__tp_enter(struct tsr_engine *e, struct tsr_tensor *x);
struct tsr_tensor *tsr__tp_leave(struct tsr_engine *e, struct tsr_tensor *x);
/* All-reduce in place over the tensor-parallel ranks; nothing without tensor parallelism. */
/* Epsilon of norms and standard deviation of initial matrices; 0: the usual ones. */
void tsr__model_numbers(struct tsr_engine *e, double norm_eps, double init_std);
bool tsr__tp_is_sharded(const struct tsr_param *p);
void tsr__tp_reduce(struct tsr_engine *e, struct tsr_tensor *x, uint8_t reduce_op);
void tsr__tp_reduce_partial(struct tsr_engine *e, const struct tsr_param *p,
                            struct tsr_tensor *grad);

/* ---- ops_chunked_loss.c ---------------------------------------------------------------------- */

/* The last module's forward: logits, or the loss where engine->head_labels are set. */
struct tsr_tensor *tsr__head(struct tsr_engine *e, struct tsr_module *m, struct tsr_tensor *x);
/* Refuses a loss in chunks of a model that has no such head. */
tsr_status tsr__check_chunked_loss(const struct tsr_engine *e);

/* ---- metrics.c ------------------------------------------------------------------------------- */

/* Refuses losses and metrics that the model or the dialect cannot have. */
tsr_status tsr__check_loss(const struct tsr_engine *e);
/* Logits for the metrics of a micro-batch; nothing without metrics. */
void tsr__keep_logits(struct tsr_engine *e, const struct tsr_tensor *logits);
/* The metrics of a micro-batch whose backward is over. */
void tsr__run_metrics(struct tsr_engine *e, uint32_t micro);

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

/* ---- reducer.c (bucketed replicate) ---------------------------------------------------------- */

struct tsr_tensor *tsr__reducer_pre_forward(struct tsr_engine *e, struct tsr_tensor *in);
void tsr__reducer_ready(struct tsr_engine *e, struct tsr_param *p);
/* After the graph of a backward has been traversed; `pass` marks the nodes that it reaches. */
void tsr__reducer_backward_begin(struct tsr_engine *e, uint32_t pass);
void tsr__reducer_finalize(struct tsr_engine *e);
void tsr__reducer_destroy(struct tsr_engine *e);
void tsr__reducer_init_params(struct tsr_engine *e);

/* ---- optimizer.c, step.c --------------------------------------------------------------------- */

void tsr__make_inputs(struct tsr_engine *e, uint32_t n_micro);
void tsr__zero_grad(struct tsr_engine *e);
/* The forward of the root and the loss of a micro-batch; a new reference. */
struct tsr_tensor *tsr__forward_loss(struct tsr_engine *e, struct tsr_module *entry,
                                     uint32_t micro); /* entry NULL: the root */
/* In which the states of a parameter are kept. */
tsr_dtype tsr__state_dtype(const struct tsr_engine *e, const struct tsr_param *p);
/* States that it keeps of a parameter, as large as it. */
int tsr__n_opt_states(enum tsr_optimizer optimizer);
void tsr__optimizer_step(struct tsr_engine *e);
void tsr__clip(struct tsr_engine *e);
/* With kernels for each gradient (TSR_CLIP_LOOP; clip_loop.c). */
void tsr__clip_loop(struct tsr_engine *e);
/* The gradient of a parameter as the optimizer sees it: its storage; NULL if there is none. */
struct tsr_storage *tsr__param_grad(const struct tsr_param *p);
uint64_t tsr__param_grad_offset(const struct tsr_param *p); /* bytes into it */
tsr_dtype tsr__param_grad_dtype(const struct tsr_param *p);
/* The value of one f32 on the device goes to the host, asynchronously (step.report). */
void tsr__report_value(struct tsr_engine *e, uint8_t what, uint32_t micro, struct tsr_storage *s,
                       tsr_dtype dtype);
uint64_t tsr__param_local_numel(const struct tsr_param *p);
struct tsr_storage *tsr__param_storage(const struct tsr_param *p);
uint64_t tsr__param_storage_offset(const struct tsr_param *p); /* bytes into it */
/* Parameters in module order (tied ones once); *n gets their number. */
struct tsr_param *const *tsr__params_in_order(struct tsr_engine *e, size_t *n);
/* As optimizer and clipping see them: a flat parameter in the pieces of fsdp1_pieces.c. */
struct tsr_param *const *tsr__params_to_step(struct tsr_engine *e, size_t *n);

/* ---- outside_save_async.c -------------------------------------------------------------------- */

/* Before parameters or optimizer states are written: copies that are saved come first. */
void tsr__save_guard(struct tsr_engine *e);
/* At the end of a step: the copies are there and can be written. */
void tsr__save_hand_over(struct tsr_engine *e);
/* Emits nothing. */
void tsr__save_drop(struct tsr_engine *e);

/* ---- outside_init.c -------------------------------------------------------------------------- */

/* Parameters that are not built on the meta device: full ones, then their shards. Nothing for
 * TSR_INIT_META. */
void tsr__init_unsharded(struct tsr_engine *e);

#endif
