/* bucket.h: the bucket assignment rule of the bucketed replicate (section 5.3, R207), alone.
 *
 * Items (parameters, in a given order) go to the open bucket of their dtype; a bucket closes with
 * the item that makes it reach its limit. The reducer and `tessera trace` both use it.
 */
#ifndef TSR_ENGINE_BUCKET_H
#define TSR_ENGINE_BUCKET_H

#include "engine/program/base.h"

struct tsr_bucket_item {
    uint64_t bytes;
    tsr_dtype dtype;
};

/* Bucket b holds items[first[b]] ... items[first[b + 1] - 1], each an index into what was given. */
struct tsr_bucket_plan {
    size_t n_buckets;
    size_t *first; /* n_buckets + 1 */
    size_t *items;
    uint64_t *limits; /* in force for each bucket, whether it was closed or left over */
};

/* limits: of a dtype's first bucket, second bucket ...; the last one holds for all later ones.
 * Order of the result: as the buckets closed, then what was left open, by dtype. ValueError without
 * limits or with an item that has no dtype. *out is to be given to tsr_bucket_plan_fini(). */
tsr_status tsr_bucket_assign(const struct tsr_bucket_item *items, size_t n, const uint64_t *limits,
                             size_t n_limits, struct tsr_bucket_plan *out) TSR_MUST_USE;
/* Reorders by the smallest item of each bucket, ascending. */
tsr_status tsr_bucket_sort(struct tsr_bucket_plan *plan) TSR_MUST_USE;
void tsr_bucket_plan_fini(struct tsr_bucket_plan *plan);

#endif
