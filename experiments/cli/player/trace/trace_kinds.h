/* trace_kinds.h: kinds of scenarios that are about layout only; no step runs. Each adds the keys of
 * its kind to `result` (tests/golden/README.md gives the format).
 */
#ifndef TSR_CLI_TRACE_KINDS_H
#define TSR_CLI_TRACE_KINDS_H

#include <jansson.h>

#include "engine/layout/dtensor.h"
#include "experiments/cli/player/trace/trace_scenario.h"

/* `tp_layout`: applies `tp` and `wrap` to the engine's model; adds `params` and `ranks`. */
tsr_status tsr_trace_tp(const struct tsr_scenario *s, struct tsr_engine *e,
                        json_t *result) TSR_MUST_USE;
/* `chunk` and `bucket`: no model; add `cases`. */
tsr_status tsr_trace_chunk(const struct tsr_scenario *s, json_t *result) TSR_MUST_USE;
tsr_status tsr_trace_bucket(const struct tsr_scenario *s, json_t *result) TSR_MUST_USE;

/* ---- shared: trace_kinds.c ------------------------------------------------------------------- */

/* A value of the scenario as it was written. */
json_t *tsr_case_json(const struct tsr_yaml_node *node);
json_t *tsr_sizes_json(int n, const uint64_t *sizes);
/* [["shard", 0], ["replicate"], ["strided_shard", 0, 2]] */
json_t *tsr_placements_json(int n, const struct tsr_placement *placements);
/* [[start, length], ...] of what the rank holds; NULL after a failure (tsr_error_text() says). */
json_t *tsr_runs_json(const struct tsr_dtensor *t, uint64_t rank);
/* Reads 1 to `room` sizes of at least `least`. Errors name the place. */
tsr_status tsr_sizes_read(const struct tsr_yaml_node *map, const char *key, uint64_t least,
                          int room, uint64_t *sizes, int *n) TSR_MUST_USE;

#endif
