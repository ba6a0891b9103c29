/* inspect.h: what was built: classes of ranks, groups, layouts of parameters. Call after wrapping.
 *
 * Strings and arrays in the answers belong to the engine.
 */
#ifndef TSR_ENGINE_INSPECT_H
#define TSR_ENGINE_INSPECT_H

#include "engine/program/program.h"

struct tsr_engine;

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Ranks with the same local shapes are one class: their programs are alike. *n_classes gets the
 * number of classes, class_of[r] that of rank r, representative[k] the first rank of class k; both
 * arrays have room for all ranks. With custom collectives, whose transfers name peers, every rank
 * of a shard group is a class. Errors: TSR_ENOMEM. */
tsr_status tsr_engine_rank_classes(struct tsr_engine *engine, uint32_t *class_of,
                                   uint32_t *representative, uint32_t *n_classes) TSR_MUST_USE;
/* Ranks over which parameters are cut. */
uint32_t tsr_shard_world(const struct tsr_engine *engine);

/* ---- groups ---------------------------------------------------------------------------------- */

/* What one call of fully_shard, replicate or FSDP1 made (R1-R6). */
struct tsr_group_info {
    const char *name; /* FQNs of its modules, joined by ", " */
    const char *api;  /* "fully_shard", "replicate", "fsdp1" */
    size_t n_modules, n_params;
    const char *const *modules; /* FQNs */
    const char *const *params;  /* FQNs, order of the flat buffer */
    uint64_t shard_numel; /* padded elements that one rank contributes; full size for replicate */
    uint64_t all_gather_numel; /* elements that a gather yields; 0 for replicate */
};
/* In module order, also those without parameters (R7). */
size_t tsr_n_groups(struct tsr_engine *engine);
/* i < tsr_n_groups(). Without memory: empty names and no arrays. */
struct tsr_group_info tsr_group_info(struct tsr_engine *engine, size_t i);

/* ---- parameters ------------------------------------------------------------------------------ */

struct tsr_param_layout {
    const char *fqn, *group; /* group NULL: not managed */
    int n_dims;
    uint64_t shape[TSR_MAX_DIMS];               /* global */
    int shard_dim;                              /* -1: replicated */
    uint64_t padded[TSR_MAX_DIMS];              /* of what one rank stores (R25, R30) */
    tsr_dtype dtype, param_dtype, reduce_dtype; /* the last two NONE: no cast */
    bool requires_grad;
    bool is_untied;  /* outside the groups: what a group's call left of a tie (section 2.1) */
    bool has_dtypes; /* the group was lazily initialised: param_dtype, reduce_dtype are known */
    size_t n_aliases;
    const char *const *aliases; /* FQNs of its other places */
};
/* In module order, tied ones once; FSDP1's flat parameters in place of what they hold. */
size_t tsr_n_param_layouts(struct tsr_engine *engine);
/* i < tsr_n_param_layouts(). */
struct tsr_param_layout tsr_param_layout(struct tsr_engine *engine, size_t i);
/* out gets the shape of what rank shard_rank of the shard group holds of parameter i, without
 * padding (R26). */
void tsr_param_local_shape(struct tsr_engine *engine, size_t i, uint32_t shard_rank,
                           uint64_t out[TSR_MAX_DIMS]);

#endif
