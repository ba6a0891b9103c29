/* memory_fit.h: what a device that is too small for a memory scenario would have held. */
#ifndef TSR_CLI_MEMORY_FIT_H
#define TSR_CLI_MEMORY_FIT_H

#include "experiments/cli/player/memory/memory_scenario.h"

/* After TSR_EOOM, whose text stays and gets one more clause: the largest batch that fits; else the
 * longest sequence of batch 1; else the device that serves the scenario without retries. Emits the
 * scenario anew for each of them. Returns TSR_EOOM; other errors: TSR_ENOMEM. */
tsr_status tsr_memory_say_what_fits(const struct tsr_memory_scenario *s) TSR_MUST_USE;

#endif
