/* wrap_call.h: one call of fully_shard() or replicate() while it runs: fully_shard.c checks it and
 * finds its modules and parameters, wrap_groups.c makes the groups. Private to both.
 */
#ifndef TSR_ENGINE_WRAP_CALL_H
#define TSR_ENGINE_WRAP_CALL_H

#include "engine/fsdp/fsdp.h"

/* Its lists live in the engine's arena. `params`: those of `managed` that no other call has, each
 * once, in the order in which they lie in the flat buffers. */
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
