/* more_none.c: a build that adds no commands. */
#include "experiments/cli/more.h"

const struct tsr_command tsr_more_commands[] = {{.run = NULL}};
