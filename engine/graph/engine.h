/* engine.h: the engine's core, as every folder above engine/graph sees it: the graph's own state by
 * value, and one pointer to the state of each folder that builds on it. What such a state holds is
 * in a header of its folder; nobody below that folder looks inside. Private to engine/.
 *
 * Reading order: module.h (the tree), graph.h (tensors, nodes, backward), emit.h (how instructions
 * leave), fsdp/fsdp.h (the hook state machines) and what they emit; then step/step.c (an
 * iteration).
 *
 * Errors inside an emission are sticky: the first one is kept in engine->status, later emission
 * does nothing, and the step function returns it. So model code and hooks read like the PyTorch
 * code they stand for, without a check after each operation.
 */
#ifndef TSR_ENGINE_H
#define TSR_ENGINE_H

#include "engine/graph/architecture.h"
#include "engine/graph/config.h"
#include "engine/graph/deferred.h"
#include "engine/graph/device_memory.h"
#include "engine/graph/emit.h"
#include "engine/graph/module.h"
#include "engine/graph/step_config.h"

/* What an iteration computes on, per micro-batch and rank. */
struct tsr_step_shape {
    uint64_t batch, seq;
    uint32_t n_micro;
};

/* Invariant: `stopped` only inside a recomputation; `origin` and `stream` say where the next
 * instruction comes from, so whoever changes them for a while puts them back. The pointers below
 * are set as long as the engine lives, but for the wrappers that a job may do without. */
struct tsr_engine {
    tsr_status status; /* sticky */
    bool stopped;      /* early stop: nothing runs until the region's call has returned */
    struct tsr_engine_config config;
    uint32_t world;
    struct tsr_arena
        arena; /* names, modules, states: everything that lives as long as the engine */
    struct tsr_step_shape shape;
    uint32_t iteration;
    bool grad_enabled;
    uint16_t stream; /* current */
    struct tsr_origin origin;
    struct tsr_module_tree tree;
    struct tsr_emitter emit;
    struct tsr_autograd autograd;

    struct tsr_tp_use *tp;        /* layout/layout.h */
    struct tsr_model_info *model; /* ops/ops_common.h */
    struct tsr_op_state *ops;     /* ops/ops_common.h */
    struct tsr_capture *capture;  /* compile/compile.h; NULL: no block is traced */
    struct tsr_wrapped *fsdp;     /* fsdp/fsdp.h */
    struct tsr_fsdp1 *fsdp1;      /* fsdp1/fsdp1.h; NULL: it was not asked for */
    struct tsr_reducer *reducer;  /* ddp/reducer.h; NULL: likewise */
    struct tsr_step_state *step;  /* step/step_impl.h */
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

#endif
