/* fsdp1_wrap.h: FSDP1, the older FullyShardedDataParallel: options and calls (FSDP1.md).
 */
#ifndef TSR_ENGINE_FSDP1_WRAP_H
#define TSR_ENGINE_FSDP1_WRAP_H

#include "engine/fsdp/fully_shard.h"

struct tsr_engine;
struct tsr_module;

/* When backward gathers the module that comes next. */
enum tsr_fsdp1_prefetch {
    TSR_FSDP1_BACKWARD_PRE,  /* when a module's backward begins */
    TSR_FSDP1_BACKWARD_POST, /* when its gradients are there */
    TSR_FSDP1_NO_PREFETCH
};
struct tsr_fsdp1_options {
    bool keep_after_forward; /* SHARD_GRAD_OP, _HYBRID_SHARD_ZERO2; else FULL_SHARD, HYBRID_SHARD */
    struct tsr_mp_policy mp; /* output is not used; reduce NONE: that of param, if it is set */
    enum tsr_fsdp1_prefetch backward_prefetch;
    bool forward_prefetch;
    bool no_limit; /* limit_all_gathers=False */
};
/* FullyShardedDataParallel(module, use_orig_params=True) around one module. Its parameters, less
 * those of modules that are wrapped already, become one flat parameter. Calls go bottom-up; the
 * root comes last and has the same options (NULL: defaults). The mesh gives the strategy: 1-D
 * shards, 2-D replicates over dim 0 and shards over dim 1 (HYBRID_SHARD), one shard rank is
 * NO_SHARD. Errors: TSR_EVALUE for a container, other options than before, beside another wrapper,
 * or a flat parameter that is too large; TSR_EASSERT for a module that is wrapped; TSR_EUNSUPPORTED
 * for frozen parameters, tensor parallelism, models that are built whole; TSR_ENOMEM. */
tsr_status tsr_fsdp1(struct tsr_engine *engine, struct tsr_module *module,
                     const struct tsr_fsdp1_options *options) TSR_MUST_USE;
/* false: backwards from now on are under no_sync(). TSR_EATTRIBUTE if nothing was wrapped so. */
tsr_status tsr_fsdp1_set_sync(struct tsr_engine *engine, bool sync) TSR_MUST_USE;
/* What holds for this rank alone, before the first step: the optimizer has the pieces that it has,
 * not as many as the rank with the most (FSDP1.md, F5), and no launch queue is ever full (F30), as
 * on the device without values that written code is checked on. */
void tsr_fsdp1_as_checked(struct tsr_engine *engine);

#endif
