/* ddp.h: the bucketed replicate, the DDP-based one (sections 5.2-5.4, R206-R220): options and
 * calls. The rule by which buckets fill, alone: bucket.h.
 */
#ifndef TSR_ENGINE_DDP_H
#define TSR_ENGINE_DDP_H

#include "engine/fsdp/fully_shard.h"
#include "engine/graph/user_emit.h"

struct tsr_engine;

/* All zero: the defaults. Read during the call only. */
struct tsr_ddp_options {
    double bucket_cap_mb;         /* <= 0: the default, 25 MiB with a first bucket of 1 MiB */
    bool find_unused;             /* find_unused_parameters (R210, R213, R214) */
    bool static_graph;            /* what is used is that of the first iteration */
    bool gradient_as_bucket_view; /* gradients lie in the buckets (R218) */
    bool broadcast_buffers;       /* as DistributedDataParallel; replicate() has none (5.3) */
    /* param: mixed_precision.param_dtype (reducer_mixed.c); reduce: the dtype of sums. */
    struct tsr_mp_policy mp;
    /* n_caps limits, MiB: of the first bucket, the second ...; the last holds for the rest. NULL:
     * bucket_cap_mb. */
    const double *bucket_cap_mb_list;
    size_t n_caps;
    bool skip_all_reduce_unused; /* buckets of which every parameter is unused are not reduced */
    const char *device_id;       /* "0", "cuda:0", "cpu"; NULL: none */
    size_t n_ignored;
    const char *const *ignored; /* patterns of modules that are left alone, with all below (R215) */
    /* delay_all_reduce_named_params: patterns of parameters whose gradients lie in one buffer that
     * is reduced when the gradient of `delayed_after` is there. Both or neither (R219). */
    size_t n_delayed;
    const char *const *delayed;
    const char *delayed_after;
};
/* Wraps the root, once; options NULL: defaults. Errors: TSR_EASSERT without a model or the second
 * time; TSR_ERUNTIME beside fully_shard, without trainable parameters, or for a device_id that is
 * none (R217); TSR_EVALUE for limits that are not positive, or one of the arguments of R219 alone;
 * TSR_ENOMEM. */
tsr_status tsr_ddp(struct tsr_engine *engine, const struct tsr_ddp_options *options) TSR_MUST_USE;
/* set_requires_gradient_sync (no_sync): with false gradients are kept, and summed once later
 * (R216). TSR_EATTRIBUTE before tsr_ddp(). */
tsr_status tsr_ddp_set_sync(struct tsr_engine *engine, bool sync) TSR_MUST_USE;

/* Comm hooks replace scaling and all-reduce of a bucket (R212). USER: fn gets the bucket on the
 * reduction's stream and emits, e.g. with tsr_emit_all_reduce(). */
enum tsr_ddp_hook {
    TSR_DDP_HOOK_ALLREDUCE,
    TSR_DDP_HOOK_FP16_COMPRESS,
    TSR_DDP_HOOK_BF16_COMPRESS,
    TSR_DDP_HOOK_USER
};
/* fn and user: with TSR_DDP_HOOK_USER only, else NULL (TSR_EVALUE). One hook at most
 * (TSR_ERUNTIME); TSR_EATTRIBUTE before tsr_ddp(). */
tsr_status tsr_ddp_register_comm_hook(struct tsr_engine *engine, enum tsr_ddp_hook hook,
                                      tsr_all_reduce_hook fn, void *user) TSR_MUST_USE;

/* The buckets after the latest backward: rebuilt in the order in which gradients came (R208). */
struct tsr_bucket_info {
    size_t index, n_params;
    const char *const *params; /* FQNs in bucket order */
    uint64_t numel, bytes;     /* of its gradients, in the dtype of the bucket */
    bool last;
    bool is_reduced; /* by that backward: false with skip_all_reduce_unused and all unused */
};
/* Without tsr_ddp() there are none. */
size_t tsr_ddp_n_buckets(struct tsr_engine *engine);
/* i < tsr_ddp_n_buckets(). Its names lie in the engine's memory, anew for each call. */
struct tsr_bucket_info tsr_ddp_bucket(struct tsr_engine *engine, size_t i);

#endif
