/* bucket.c: which parameters share a bucket (section 5.3): one open bucket per dtype, closed at its
 * limit.
 */
#include "engine/ddp/bucket.h"

#include <stdlib.h>
#include <string.h>

struct open_bucket {
    size_t *items; /* room for all */
    size_t n, stage;
    uint64_t bytes;
};

static bool plan_init(struct tsr_bucket_plan *plan, size_t n)
{
    *plan = (struct tsr_bucket_plan){0};
    plan->first = calloc(n + 2, sizeof *plan->first);
    plan->items = calloc(n + 1, sizeof *plan->items);
    plan->limits = calloc(n + 1, sizeof *plan->limits);
    return plan->first && plan->items && plan->limits;
}

void tsr_bucket_plan_fini(struct tsr_bucket_plan *plan)
{
    free(plan->first);
    free(plan->items);
    free(plan->limits);
    *plan = (struct tsr_bucket_plan){0};
}

static void close_bucket(struct tsr_bucket_plan *plan, struct open_bucket *open, uint64_t limit)
{
    size_t b = plan->n_buckets++, at = plan->first[b];
    memcpy(plan->items + at, open->items, open->n * sizeof *open->items);
    plan->first[b + 1] = at + open->n;
    plan->limits[b] = limit;
    open->n = 0;
    open->bytes = 0;
}

static tsr_status fill(const struct tsr_bucket_item *items, size_t n, const uint64_t *limits,
                       size_t n_limits, struct open_bucket *open, struct tsr_bucket_plan *plan)
{
    for (size_t i = 0; i < n; i++) {
        tsr_dtype d = items[i].dtype;
        if (d <= TSR_DTYPE_NONE || d >= TSR_N_DTYPES)
            return tsr_fail(TSR_EVALUE, "bucket assignment: tensor %zu has no dtype", i);
        struct open_bucket *o = &open[d];
        if (!o->items)
            o->items = malloc((n + 1) * sizeof *o->items);
        if (!o->items)
            return tsr_no_memory(NULL);
        o->items[o->n++] = i;
        if (!tsr_add_u64(o->bytes, items[i].bytes, &o->bytes))
            return tsr_fail(TSR_EVALUE,
                            "bucket assignment: the size of tensor %zu (%llu bytes) "
                            "does not fit with those before it",
                            i, (unsigned long long)items[i].bytes);
        if (o->bytes < limits[o->stage])
            continue;
        close_bucket(plan, o, limits[o->stage]);
        if (o->stage + 1 < n_limits)
            o->stage++;
    }
    for (int d = 0; d < TSR_N_DTYPES; d++)
        if (open[d].n > 0)
            close_bucket(plan, &open[d], limits[open[d].stage]);
    return TSR_OK;
}

tsr_status tsr_bucket_assign(const struct tsr_bucket_item *items, size_t n, const uint64_t *limits,
                             size_t n_limits, struct tsr_bucket_plan *out)
{
    struct open_bucket open[TSR_N_DTYPES] = {{0}};
    *out = (struct tsr_bucket_plan){0};
    if (n_limits == 0)
        return tsr_fail(TSR_EVALUE, "bucket assignment needs at least one limit, got none");
    tsr_status status = plan_init(out, n) ? TSR_OK : tsr_no_memory(NULL);
    if (status == TSR_OK)
        status = fill(items, n, limits, n_limits, open, out);
    for (int d = 0; d < TSR_N_DTYPES; d++)
        free(open[d].items);
    if (status != TSR_OK)
        tsr_bucket_plan_fini(out);
    return status;
}

struct by_smallest {
    size_t smallest, bucket;
};

static int compare_smallest(const void *a, const void *b)
{
    size_t x = ((const struct by_smallest *)a)->smallest;
    size_t y = ((const struct by_smallest *)b)->smallest;
    return (x > y) - (x < y);
}

tsr_status tsr_bucket_sort(struct tsr_bucket_plan *plan)
{
    size_t n = plan->first ? plan->first[plan->n_buckets] : 0;
    struct by_smallest *order = calloc(plan->n_buckets + 1, sizeof *order);
    struct tsr_bucket_plan sorted;
    bool ready = plan_init(&sorted, n) && order;
    for (size_t b = 0; ready && b < plan->n_buckets; b++) {
        order[b] = (struct by_smallest){SIZE_MAX, b};
        for (size_t i = plan->first[b]; i < plan->first[b + 1]; i++)
            if (plan->items[i] < order[b].smallest)
                order[b].smallest = plan->items[i];
    }
    if (!ready) {
        free(order);
        tsr_bucket_plan_fini(&sorted);
        return tsr_no_memory(NULL);
    }
    qsort(order, plan->n_buckets, sizeof *order, compare_smallest);
    for (size_t b = 0; b < plan->n_buckets; b++) {
        size_t from = order[b].bucket;
        struct open_bucket one = {.items = plan->items + plan->first[from],
                                  .n = plan->first[from + 1] - plan->first[from]};
        close_bucket(&sorted, &one, plan->limits[from]);
    }
    free(order);
    tsr_bucket_plan_fini(plan);
    *plan = sorted;
    return TSR_OK;
}
