/* memory_traced.h: scenarios of recorded memory whose model is a Python file, and comes as a trace
 * (tests/golden-bridge/README.md).
 */
#ifndef TSR_PLAYER_MEMORY_TRACED_H
#define TSR_PLAYER_MEMORY_TRACED_H

#include "tests/player/memory/memory_scenario.h"

/* Reads the trace, and chooses the variant that has the scenario's checkpointing. Errors:
 * TSR_ECONFIG. */
tsr_status tsr_memory_traced_load(struct tsr_memory_scenario *s, const char *trace) TSR_MUST_USE;
/* The model, wrapped as the scenario says, in an engine without a model. */
tsr_status tsr_memory_traced_build(const struct tsr_memory_scenario *s,
                                   struct tsr_engine *engine) TSR_MUST_USE;

#endif
