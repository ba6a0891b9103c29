/* wrapper.h: a way of sharding or replicating that a job uses (fully_shard and replicate, FSDP1,
 * DDP) as a table of functions. Code that all ways share asks every wrapper of the engine, in the
 * order of their first use, and knows none by name. Private to engine/.
 */
#ifndef TSR_ENGINE_WRAPPER_H
#define TSR_ENGINE_WRAPPER_H

#include "engine/graph/engine.h"
#include "engine/graph/step_config.h"

struct tsr_state_walk;
struct tsr_wrapper_ops;

/* The first member of what a wrapper keeps for an engine. */
struct tsr_wrapper {
    const struct tsr_wrapper_ops *ops;
};

/* A function that is NULL means that the wrapper does nothing there, or answers false. `w` is the
 * wrapper; errors are the engine's. */
struct tsr_wrapper_ops {
    /* ---- before the first step, in this order */
    /* Refuses what it does not do beside tensor parallelism. */
    tsr_status (*check_tensor_parallel)(const struct tsr_engine *e, const struct tsr_wrapper *w);
    /* The model was built whole: what is there becomes what this rank keeps. */
    void (*shard_built_model)(struct tsr_engine *e, struct tsr_wrapper *w);
    /* The configuration of the steps, also when it changes later. */
    void (*configured)(struct tsr_engine *e, struct tsr_wrapper *w,
                       const struct tsr_step_config *config);
    void (*init_begin)(struct tsr_engine *e, struct tsr_wrapper *w);
    /* A parameter that it manages, at one of its places. *replaced: a storage that
     * Module._apply() still holds, released by the caller after the module's last parameter. */
    void (*init_param)(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p,
                       struct tsr_storage **replaced);
    /* A module that it manages, whose parameters are there. */
    void (*init_module)(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_module *m);
    void (*init_end)(struct tsr_engine *e, struct tsr_wrapper *w);

    /* ---- in a step, in this order */
    /* A parameter that it manages: its gradient goes. NULL: the leaf's and the optimizer's are
     * dropped. */
    void (*zero_grad)(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p);
    /* A micro-batch begins, one of several that do not each reduce. */
    tsr_status (*begin_micro_batch)(struct tsr_engine *e, struct tsr_wrapper *w,
                                    enum tsr_accumulate rule, bool is_last);
    /* Before a forward, and before its inputs are cast, of a traced model; and before a kernel of
     * one that reads a parameter which `m` owns. */
    void (*forward_begin)(struct tsr_engine *e, struct tsr_wrapper *w);
    void (*reads)(struct tsr_engine *e, struct tsr_wrapper *w, const struct tsr_module *m);
    /* The graph has been traversed; `pass` marks the nodes that will run. */
    void (*backward_begin)(struct tsr_engine *e, struct tsr_wrapper *w, uint32_t pass);
    /* Returns the stream on which gradients of a parameter are added up and `grad_ready` runs. */
    uint16_t (*grad_stream)(const struct tsr_engine *e, const struct tsr_wrapper *w,
                            const struct tsr_param *p);
    /* A parameter's gradient is complete and stored. */
    void (*grad_ready)(struct tsr_engine *e, struct tsr_wrapper *w, struct tsr_param *p);
    /* All nodes and all callbacks have run. */
    void (*backward_end)(struct tsr_engine *e, struct tsr_wrapper *w);
    /* Parts of gradients lie on the ranks of this communicator: their norms are summed over it. */
    bool (*shards_over)(const struct tsr_wrapper *w, uint16_t comm);
    /* Gradients are about to be clipped. */
    void (*clip_begin)(struct tsr_engine *e, struct tsr_wrapper *w);
    /* clip_grad_norm_() is its own: gradient by gradient. */
    bool (*clips_own_grads)(const struct tsr_wrapper *w);
    /* Gradients stay sums: what reads them has to scale. */
    bool (*leaves_grads_unscaled)(const struct tsr_wrapper *w);
    void (*after_optimizer)(struct tsr_engine *e, struct tsr_wrapper *w);
    /* Parameters got values by other kernels than those that write copies of them along. */
    void (*values_changed)(struct tsr_engine *e, struct tsr_wrapper *w);

    /* ---- between steps */
    /* The state of the model is about to be read or written. */
    tsr_status (*state_dict)(struct tsr_engine *e, struct tsr_wrapper *w);
    /* Goes through all that it keeps from step to step. NULL: that is more than can be told, and
     * steps are not replayed. */
    void (*walk)(struct tsr_state_walk *walk, struct tsr_wrapper *w);
    /* Adds to `hash` how the program of `rank` differs from that of other ranks. */
    uint64_t (*hash_rank)(const struct tsr_engine *e, const struct tsr_wrapper *w, uint32_t rank,
                          uint64_t hash);
    void (*fini)(struct tsr_wrapper *w);
};

/* Adds a wrapper, whose memory is zero, to those of the engine; nothing if it is there. */
void tsr__wrapper_add(struct tsr_engine *e, struct tsr_wrapper *w,
                      const struct tsr_wrapper_ops *ops);

/* Calls `entry` of each wrapper w that has it: TSR__EACH_WRAPPER(e, w, fini) { ... } */
#define TSR__EACH_WRAPPER(e, w, entry)                                     \
    for (struct tsr_wrapper *const *next_ = (e)->wrappers, *w = NULL;      \
         next_ < (e)->wrappers + (e)->n_wrappers && (w = *next_++, true);) \
        if (w->ops->entry)

static inline void tsr__values_changed(struct tsr_engine *e)
{
    TSR__EACH_WRAPPER (e, w, values_changed) {
        w->ops->values_changed(e, w);
    }
}

static inline bool tsr__leaves_grads_unscaled(const struct tsr_engine *e)
{
    bool any = false;
    for (size_t i = 0; i < e->n_wrappers; i++) {
        const struct tsr_wrapper *w = e->wrappers[i];
        any |= w->ops->leaves_grads_unscaled && w->ops->leaves_grads_unscaled(w);
    }
    return any;
}

#endif
