/* intervals.c: lists of intervals, sorted and disjoint once united, and searched by bisection. */
#include "sim/figures/intervals.h"

#include <stdlib.h>

#include "engine/program/base.h"

bool tsr__set_add(struct tsr__set *set, double start, double end)
{
    struct tsr__interval_of_time made = {start, end};
    return end <= start || TSR_PUSH(set->items, set->n, set->cap, made);
}

static int by_start(const void *a, const void *b)
{
    const struct tsr__interval_of_time *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

void tsr__set_unite(struct tsr__set *set)
{
    size_t n = 0;
    if (set->n > 1)
        qsort(set->items, set->n, sizeof *set->items, by_start);
    for (size_t i = 0; i < set->n; i++) {
        struct tsr__interval_of_time next = set->items[i];
        if (n && next.start <= set->items[n - 1].end) {
            if (next.end > set->items[n - 1].end)
                set->items[n - 1].end = next.end;
        } else {
            set->items[n++] = next;
        }
    }
    set->n = n;
}

void tsr__set_fini(struct tsr__set *set)
{
    free(set->items);
    *set = (struct tsr__set){0};
}

double tsr__set_length(const struct tsr__set *set)
{
    double sum = 0.0;
    for (size_t i = 0; i < set->n; i++)
        sum += set->items[i].end - set->items[i].start;
    return sum;
}

/* Index of the first interval that ends after `time`. */
static size_t first_after(const struct tsr__set *set, double time)
{
    size_t low = 0, high = set->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->items[middle].end <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double tsr__set_covered(const struct tsr__set *set, double start, double end)
{
    double sum = 0.0;
    for (size_t i = first_after(set, start); i < set->n && set->items[i].start < end; i++) {
        double low = set->items[i].start > start ? set->items[i].start : start;
        double high = set->items[i].end < end ? set->items[i].end : end;
        sum += high > low ? high - low : 0.0;
    }
    return sum;
}

bool tsr__set_add_common(struct tsr__set *out, const struct tsr__set *set, double start, double end)
{
    bool ok = true;
    for (size_t i = first_after(set, start); ok && i < set->n && set->items[i].start < end; i++) {
        double low = set->items[i].start > start ? set->items[i].start : start;
        double high = set->items[i].end < end ? set->items[i].end : end;
        ok = tsr__set_add(out, low, high);
    }
    return ok;
}

double tsr__set_outside(const struct tsr__set *a, const struct tsr__set *b)
{
    double sum = 0.0;
    for (size_t i = 0; i < a->n; i++)
        sum += a->items[i].end - a->items[i].start -
               tsr__set_covered(b, a->items[i].start, a->items[i].end);
    return sum;
}
