/* thorough.h: tells a test whether it runs in its long form. `tests/run.sh --thorough` sets
 * TSR_THOROUGH for every test; without it a test does less of the same, so that the whole suite
 * takes minutes on two cores.
 */
#ifndef TSR_TESTS_THOROUGH_H
#define TSR_TESTS_THOROUGH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

static inline bool tests_are_thorough(void)
{
    const char *value = getenv("TSR_THOROUGH");
    return value && *value;
}

/* Returns the step with which a loop walks its list of cases: `full` in the long form, which is
 * more than 1 where all of them take minutes, else `quick`. */
static inline size_t tests_strides(size_t quick, size_t full)
{
    return tests_are_thorough() ? full : quick;
}

static inline size_t tests_stride(size_t quick)
{
    return tests_strides(quick, 1);
}

#endif
