/* fsdp1_wrap.h: FSDP1, the older FullyShardedDataParallel: options and calls (FSDP1.md).
 */
#ifndef TSR_FSDP1_WRAP_H
#define TSR_FSDP1_WRAP_H

#include "engine/fsdp/fully_shard.h"

struct tsr_engine;
struct tsr_module;

/* FSDP1: FullyShardedDataParallel(module, use_orig_params=True) around one module (FSDP1.md). Its
 * parameters, less those of modules that are wrapped already, become one flat parameter. Calls go
 * bottom-up; the root comes last and has the same options. The mesh gives the strategy: 1-D shards,
 * 2-D replicates over dim 0 and shards over dim 1 (HYBRID_SHARD), one shard rank is NO_SHARD. */
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
tsr_status tsr_fsdp1(struct tsr_engine *engine, struct tsr_module *module,
                     const struct tsr_fsdp1_options *options) TSR_MUST_USE;
/* false: backwards are under no_sync(). */
tsr_status tsr_fsdp1_set_sync(struct tsr_engine *engine, bool sync) TSR_MUST_USE;

#endif
