/* memory_result.h: the result of a memory scenario as JSON, in the format of the recorded ones
 * (tests/golden-memory/README.md).
 */
#ifndef TSR_CLI_MEMORY_RESULT_H
#define TSR_CLI_MEMORY_RESULT_H

#include "experiments/cli/player/memory/memory_record.h"
#include "experiments/cli/player/memory/memory_scenario.h"

/* Each returns a new reference; NULL when out of memory. */

/* "groups": parameters with the shapes that this rank holds. */
json_t *tsr_memory_groups(const struct tsr_memory_scenario *s, struct tsr_engine *e);
/* "allocator": of the plain run. */
json_t *tsr_memory_allocator(const struct tsr_memory_scenario *s,
                             const struct tsr_memory_record *plain);
/* "categories", "snapshot_columns" and "snapshots": of the instrumented run, added to `result`.
 * Returns false when out of memory. */
bool tsr_memory_categories(json_t *result, const struct tsr_memory_scenario *s,
                           const struct tsr_memory_record *record);
/* The time line of the instrumented run. */
json_t *tsr_memory_timeline(const struct tsr_memory_scenario *s,
                            const struct tsr_memory_record *record);

#endif
