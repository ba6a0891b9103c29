/* player.h: the commands of tests/player/commands.c, as functions. */
#ifndef TSR_PLAYER_H
#define TSR_PLAYER_H

#include "experiments/cli/args/cmd.h"

/* `tessera trace SCENARIO.json`: what the engine decides (events/). */
tsr_status tsr_player_trace(const struct tsr_usage *usage, struct tsr_args *args, int *success);
/* `tessera memory SCENARIO.json`: what the allocator holds (memory/). Other files and --strategy
 * are left to the program's own command. */
tsr_status tsr_player_memory(const struct tsr_usage *usage, struct tsr_args *args, int *success);
/* `tessera check SCENARIO.json`: defects in its programs (check.c). Other files are left to the
 * program's own command. */
tsr_status tsr_player_check(const struct tsr_usage *usage, struct tsr_args *args, int *success);

#endif
