/* commands.h: the subcommands, each with one entry. */
#ifndef TSR_CLI_COMMANDS_H
#define TSR_CLI_COMMANDS_H

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"

struct tsr_command {
    tsr_command_fn run;
    int place; /* in the lists of errors, counted from 1 */
    struct tsr_usage usage;
};

/* In the order of the overview; the last one has no `run`. */
extern const struct tsr_command tsr_commands[];

#endif
