/* intervals.h: sets of intervals of time, for figures that ask what ran beside what. Private to
 * sim/.
 */
#ifndef TSR_SIM_INTERVALS_H
#define TSR_SIM_INTERVALS_H

#include <stdbool.h>
#include <stddef.h>

struct tsr__interval_of_time {
    double start, end;
};

/* A set of intervals; disjoint and ascending once united. Zeroed is empty. Owns `items`. */
struct tsr__set {
    struct tsr__interval_of_time *items;
    size_t n, cap;
};

/* Adds [start, end); nothing if it is empty. False when out of memory. */
bool tsr__set_add(struct tsr__set *set, double start, double end);
void tsr__set_unite(struct tsr__set *set);
void tsr__set_fini(struct tsr__set *set);

/* The rest wants united sets. */
double tsr__set_length(const struct tsr__set *set);
/* Seconds of [start, end) that the set covers. */
double tsr__set_covered(const struct tsr__set *set, double start, double end);
/* Adds to `out` what the set has of [start, end). False when out of memory. */
bool tsr__set_add_common(struct tsr__set *out, const struct tsr__set *set, double start,
                         double end);
/* Seconds of `a` that `b` does not cover. */
double tsr__set_outside(const struct tsr__set *a, const struct tsr__set *b);

#endif
