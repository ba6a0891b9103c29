/* ddp.h: the bucketed replicate (DDP): options and calls.
 */
#ifndef TSR_DDP_H
#define TSR_DDP_H

#include "engine/fsdp/fully_shard.h"
#include "engine/graph/user_emit.h"

struct tsr_engine;

/* Bucketed replicate, the DDP-based one (section 5.2-5.4), on the root. */
struct tsr_ddp_options {
    double bucket_cap_mb; /* <= 0: the default, 25 MiB with a first bucket of 1 MiB */
    bool find_unused;
    bool static_graph;
    bool gradient_as_bucket_view;
    struct tsr_mp_policy mp; /* param: forward copies in this dtype; reduce: dtype of the buckets */
    /* Limits of the first bucket, the second ...; the last holds for the rest. NULL: bucket_cap_mb
     */
    const double *bucket_cap_mb_list;
    size_t n_caps;
    bool skip_all_reduce_unused; /* buckets of which every parameter is unused are not reduced */
    const char *device_id;       /* "0", "cuda:0", "cpu"; NULL: none */
    /* Borrowed during the call: */
    size_t n_ignored;
    const char *const *ignored; /* patterns of modules that are left alone, with all below (R215) */
    /* delay_all_reduce_named_params: patterns of parameters whose gradients lie in one buffer that
     * is reduced when the gradient of `delayed_after` is there. Both or neither (R219). */
    size_t n_delayed;
    const char *const *delayed;
    const char *delayed_after;
};
/* Comm hooks replace scaling and all-reduce of a bucket; one at most (RuntimeError). USER: fn gets
 * the bucket on the reduction's stream and emits, e.g. with tsr_emit_all_reduce(). */
enum tsr_ddp_hook {
    TSR_DDP_HOOK_ALLREDUCE,
    TSR_DDP_HOOK_FP16_COMPRESS,
    TSR_DDP_HOOK_BF16_COMPRESS,
    TSR_DDP_HOOK_USER
};
size_t tsr_ddp_n_device_ids(const struct tsr_engine *engine);
/* The bucketed replicate's set_requires_gradient_sync (no_sync). */
tsr_status tsr_ddp_set_sync(struct tsr_engine *engine, bool sync) TSR_MUST_USE;
tsr_status tsr_ddp(struct tsr_engine *engine, const struct tsr_ddp_options *options) TSR_MUST_USE;
tsr_status tsr_ddp_register_comm_hook(struct tsr_engine *e, enum tsr_ddp_hook hook,
                                      tsr_all_reduce_hook fn, void *user) TSR_MUST_USE;

/* The reducer's buckets after the latest backward (tsr_ddp). */
struct tsr_bucket_info {
    size_t index, n_params;
    const char *const *params; /* FQNs in bucket order */
    uint64_t numel, bytes;
    bool last;
};
size_t tsr_ddp_n_buckets(struct tsr_engine *engine);
struct tsr_bucket_info tsr_ddp_bucket(struct tsr_engine *engine, size_t i);

#endif
