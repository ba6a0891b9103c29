/* fsdp1.h: FSDP1 (torch.distributed.fsdp.FullyShardedDataParallel): flat parameters and the hooks
 * around them. The rules, F1 to F40, are in FSDP1.md. Private to engine/.
 *
 *   fsdp1_wrap.c      which parameters form a flat one, how it is laid out and cut
 *   fsdp1.c           lazy initialisation, forward hooks, unshard and reshard, the rate limiter
 *   fsdp1_views.c     original parameters as views of the flat one, and the way of their gradients
 *   fsdp1_backward.c  backward hooks, the reduction, the end of a backward
 *   wrapper.c         the table of functions that shared code calls (graph/wrapper.h)
 */
#ifndef TSR_ENGINE_FSDP1_H
#define TSR_ENGINE_FSDP1_H

#include "engine/fsdp/fsdp.h"
#include "engine/fsdp1/fsdp1_wrap.h"
#include "engine/graph/engine.h"

/* One wrapped module: its flat parameter (PyTorch's handle) and the state of its hooks.
 *
 * Invariant: `full` and `low` are made once; their blocks come and go with unshard and reshard.
 * param[i] is [begin[i], begin[i] + numel) of the flat parameter, ascending, with the gaps between;
 * `prefetched` is true from a gather ahead to the unshard that finds it done. */
struct tsr_flat {
    struct tsr_fsdp1 *all;
    struct tsr_state *state;
    struct tsr_group *group;      /* of one parameter, the flat one; NULL: no parameters */
    struct tsr_fsdp_param *shard; /* its only one */
    struct tsr_param *param;      /* the flat parameter, 1-D, padding included */
    size_t n;
    struct tsr_param **params; /* the original ones, in its order ... */
    uint64_t *begin;           /* ... where each begins, in elements ... */
    struct tsr_tensor **views; /* ... the tensors that modules compute with ... */
    struct tsr_tensor **grads; /* ... and their gradients on the way, each once a backward */
    uint32_t *grad_events;     /* ... behind which each is complete; 0: none */
    size_t n_gaps;
    uint64_t *gaps; /* sizes of the paddings between and behind them, in elements */
    tsr_dtype compute, reduce;
    bool sharded;                /* cut over ranks; false: NO_SHARD */
    bool reshards_after_forward; /* FULL_SHARD, HYBRID_SHARD */
    struct tsr_storage *full;    /* the unsharded flat parameter: its block comes and goes */
    struct tsr_storage *low;     /* the shard in the compute dtype; NULL: no cast */
    struct tsr_tensor *leaf;     /* stands for the flat parameter in the autograd graph */
    struct tsr_node *split;      /* of the last forward; NULL: none yet */
    enum tsr_training_state training;
    bool prefetched, needs_pre_forward, needs_pre_backward, ran_pre_backward, is_unsharded;
    bool grads_are_none;           /* zero_grad() was called; the memory is still there */
    int64_t pre_index, post_index; /* in the recorded orders; -1: none */
    size_t first_split;            /* splits that were made before its forward began (of a trace) */
};

enum { TSR__FSDP1_IN_FLIGHT = 2 }; /* all-gathers that the limiter allows */

/* Shared by all wrapped modules.
 *
 * Invariant: with the limiter free_events holds at most TSR__FSDP1_IN_FLIGHT events, oldest first:
 * before one more gather the host waits for the oldest. pre_order is that of the first iteration,
 * by which later ones prefetch; post_order that of each iteration's own forward. */
struct tsr_fsdp1 {
    struct tsr_wrapper base;
    struct tsr_fsdp1_options options; /* of the first call; the same for all (F2) */
    bool lazy_done, hybrid, sync, callback_queued, first_iteration;
    bool ran_views;  /* a flat gradient was completed in this backward */
    bool as_checked; /* tsr_fsdp1_as_checked() */
    struct tsr_flat *root;
    size_t n_flats, cap_flats;
    struct tsr_flat **flats; /* in module order, from lazy initialisation */
    uint16_t unshard, post_backward, pre_unshard, all_reduce; /* streams */
    uint16_t shard_wire, replicate_wire; /* NCCL's own streams, one per process group */
    uint16_t shard_comm, replicate_comm; /* UINT16_MAX: one rank */
    uint32_t shard_size, shard_stride, replicate_size, replicate_stride;
    double pre_divide, post_divide;
    size_t n_free_events, cap_free_events;
    struct tsr_storage *zero; /* a number that the first clipping makes and keeps */
    uint32_t *free_events;    /* a queue: frees that the host has not waited for */
    size_t n_pre_order, cap_pre_order, n_post_order, cap_post_order;
    struct tsr_flat **pre_order, **post_order;
    /* Flat parameters whose split of this forward has not run backward, oldest first. Only a traced
     * model, which has no graph, uses the list. */
    size_t n_splits, cap_splits;
    struct tsr_flat **splits;
    size_t n_step, cap_step;
    struct tsr_param **step; /* tsr__params_to_step() */
};

extern const struct tsr_wrapper_ops tsr__fsdp1_wrapper;

/* ---- fsdp1.c --------------------------------------------------------------------------------- */

extern const struct tsr_module_hooks tsr__fsdp1_hooks;
void tsr__fsdp1_unshard(struct tsr_engine *e, struct tsr_flat *f);
void tsr__fsdp1_reshard(struct tsr_engine *e, struct tsr_flat *f, bool frees);
/* The flat parameter that comes next after f is gathered ahead, if the options say so for the
 * hook that f is in (f->training). */
void tsr__fsdp1_prefetch(struct tsr_engine *e, struct tsr_flat *f);
/* A collective that the current stream hands to the process group's own stream `wire` and waits
 * for. in NULL: in place. */
void tsr__fsdp1_collective(struct tsr_engine *e, uint16_t wire, struct tsr_instr *instr,
                           struct tsr_storage *in, struct tsr_storage *out);

/* ---- fsdp1_views.c --------------------------------------------------------------------------- */

/* The modules compute with views of the unsharded flat parameter, or have none. */
void tsr__fsdp1_use_views(struct tsr_engine *e, struct tsr_flat *f);
void tsr__fsdp1_drop_views(struct tsr_flat *f);

/* [Note: FSDP1 without a graph] A traced model has no nodes that lead to the views, so its player
 * does what autograd would: it hands over the gradient of each original parameter, and runs the
 * splits that are newer than the operations of a module when the module's backward is over. */

/* Adds a gradient to that of a view, as the view's node does. */
void tsr__fsdp1_view_grad(struct tsr_engine *e, struct tsr_param *p, struct tsr_tensor *grad);
/* Runs the splits that were made since the forward of f's module began, newest first; f NULL: all
 * that are left. Each ends in the post-backward hook of its module. */
void tsr__fsdp1_run_splits(struct tsr_engine *e, const struct tsr_flat *f);

/* ---- fsdp1_backward.c ------------------------------------------------------------------------ */

void tsr__fsdp1_register_pre_backward(struct tsr_engine *e, struct tsr_flat *f,
                                      struct tsr_tensor *out, struct tsr_tensor *aux);
/* Notes that an output of f's module has a pre-backward hook: only such a module is gathered ahead
 * in backward. */
void tsr__fsdp1_expect_backward(struct tsr_flat *f);
/* Runs the pre-backward hook of f's module, unless it ran in this backward. */
void tsr__fsdp1_pre_backward(struct tsr_engine *e, struct tsr_flat *f);
/* The gradient of an original parameter, or of a flat one, is complete. */
void tsr__fsdp1_grad_ready(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p);
/* Frees gradients that zero_grad() left behind. */
void tsr__fsdp1_reset_grads(struct tsr_engine *e, struct tsr_fsdp1 *all);

/* ---- fsdp1_views.c: pieces ------------------------------------------------------------------ */

/* Parameters as optimizer and clipping see them: a flat one in its pieces. */
struct tsr_param *const *tsr__params_to_step(struct tsr_engine *e, size_t *n);
/* Is a piece of a shard: its values and gradients are ranges of the flat parameter's. */
static inline bool tsr__is_piece(const struct tsr_param *p)
{
    return p->flat && p->fsdp && p->fsdp != p->flat->shard;
}

#endif
