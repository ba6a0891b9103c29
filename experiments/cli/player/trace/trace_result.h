/* trace_result.h: the JSON result of a traced scenario (tests/golden/README.md gives the format).
 */
#ifndef TSR_CLI_TRACE_RESULT_H
#define TSR_CLI_TRACE_RESULT_H

#include <jansson.h>

#include "engine/tessera.h"

/* Collects events; a trace sink writes into it. */
struct tsr_trace_lists {
    json_t *events, *stream_events; /* arrays, owned */
    bool failed;                    /* out of memory on the way */
};
void tsr_trace_event(void *lists, const struct tsr_event *event);

/* New references; NULL when out of memory. */
json_t *tsr_trace_layout(struct tsr_engine *e, bool with_dtypes, bool with_all_gather);
json_t *tsr_trace_process_groups(const struct tsr_tables *tables);
json_t *tsr_trace_buckets(struct tsr_engine *e);

#endif
