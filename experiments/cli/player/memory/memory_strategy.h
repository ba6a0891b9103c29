/* memory_strategy.h: what the device allocator holds, phase by phase, under a strategy of an
 * experiment file: what a run of PyTorch is held against.
 */
#ifndef TSR_CLI_MEMORY_STRATEGY_H
#define TSR_CLI_MEMORY_STRATEGY_H

#include <jansson.h>

#include "experiments/cli/args/args.h"

/* Iterations 0 and 1 of one rank, from the options --strategy, --rank and --set, as one object:
 * strategy, world, rank, settings, groups and allocator (a new reference). Errors: those of opening
 * the file and of the engine; TSR_ECONFIG for a rank that is not there; TSR_ENOMEM. */
tsr_status tsr_memory_of_strategy(const struct tsr_args *args, json_t **out) TSR_MUST_USE;

#endif
