/* report_in_use.h: the second curve of memory: bytes in use on the device, over the device's time.
 *
 * A buffer counts from the start of its first device work to the end of its last: what it was
 * allocated for earlier, or freed for later, by a host that runs ahead, does not matter. A buffer
 * that came with the iteration counts from its start; one that stays counts to its end.
 */
#ifndef TSR_STUDY_REPORT_IN_USE_H
#define TSR_STUDY_REPORT_IN_USE_H

#include "experiments/study/detail/report_view.h"

struct tsr__level {
    double time;    /* simulation's clock */
    uint64_t bytes; /* of blocks, from here to the next level */
};

struct tsr__in_use {
    struct tsr__level *levels; /* times rise; levels[0] is the start of the iteration */
    size_t n;
    uint64_t peak;
};

/* Errors: TSR_ENOMEM. */
tsr_status tsr__in_use_init(struct tsr__in_use *in_use, const struct tsr__view *view) TSR_MUST_USE;
void tsr__in_use_fini(struct tsr__in_use *in_use);

/* The most that is in use from `from` to just before `to` (at `from`, if to <= from). *cursor
 * begins at 0 and may be kept while `from` rises. */
uint64_t tsr__in_use_between(const struct tsr__in_use *in_use, double from, double to,
                             size_t *cursor);

#endif
