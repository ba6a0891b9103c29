/* inspect.h: what was built: rank classes, groups, layouts of parameters.
 */
#ifndef TSR_INSPECT_H
#define TSR_INSPECT_H

#include "engine/program/base.h"

struct tsr_engine;

/* Number of rank classes by layout: ranks with the same local shapes. class_of[world] gets the
 * class of each rank, representative[k] one rank of class k (room for world entries). Call after
 * wrapping. */
tsr_status tsr_engine_rank_classes(struct tsr_engine *engine, uint32_t *class_of,
                                   uint32_t *representative, uint32_t *n_classes) TSR_MUST_USE;

struct tsr_group_info {
    const char *name; /* FQNs of its modules, joined by ", " */
    const char *api;  /* "fully_shard", "replicate", "fsdp1" */
    size_t n_modules, n_params;
    const char *const *modules; /* FQNs */
    const char *const *params;  /* FQNs, order of the flat buffer */
    uint64_t shard_numel; /* padded elements that one rank contributes; full size for replicate */
    uint64_t all_gather_numel; /* 0 for replicate */
};
size_t tsr_n_groups(
    struct tsr_engine *engine); /* wrapped states in module order, also those without parameters */
struct tsr_group_info tsr_group_info(struct tsr_engine *engine, size_t i);

struct tsr_param_layout {
    const char *fqn, *group; /* group NULL: not managed */
    int n_dims;
    uint64_t shape[4];
    int shard_dim; /* -1: replicated */
    uint64_t padded[4];
    tsr_dtype dtype, param_dtype, reduce_dtype; /* the last two NONE: no cast */
    bool requires_grad;
    bool is_untied;  /* outside the groups: what a group's call left of a tie (section 2.1) */
    bool has_dtypes; /* the group was lazily initialised: param_dtype, reduce_dtype are known */
    size_t n_aliases;
    const char *const *aliases;
};
size_t tsr_n_param_layouts(struct tsr_engine *engine); /* in module order */
struct tsr_param_layout tsr_param_layout(struct tsr_engine *engine, size_t i);
/* Local shape on shard rank r. */
void tsr_param_local_shape(struct tsr_engine *engine, size_t i, uint32_t shard_rank,
                           uint64_t out[4]);
uint32_t tsr_shard_world(const struct tsr_engine *engine); /* ranks over which parameters are cut */

#endif
