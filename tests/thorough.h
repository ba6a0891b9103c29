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

/* Returns the step with which a loop walks its list of cases: 1 in the long form, else `quick`. */
static inline size_t tests_stride(size_t quick)
{
    return tests_are_thorough() ? 1 : quick;
}

#endif
