/* more.h: commands that a build adds to those of the program: in builds with tests the players of
 * recorded scenarios (tests/player), in packages none (more_none.c).
 */
#ifndef TSR_CLI_MORE_H
#define TSR_CLI_MORE_H

#include "experiments/cli/commands.h"

/* The last one has no `run`. A command with a name of the program's table takes its place. */
extern const struct tsr_command tsr_more_commands[];

#endif
