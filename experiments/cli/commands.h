/* commands.h: the subcommands, each with one entry. */
#ifndef TSR_CLI_COMMANDS_H
#define TSR_CLI_COMMANDS_H

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"

/* What a subcommand is for: the sections of the first help screen. */
enum tsr_command_group {
    TSR_GROUP_ASK,
    TSR_GROUP_TRUST,
    TSR_GROUP_RUN,
    TSR_GROUP_INSPECT,
    TSR_GROUP_MORE, /* only in `help all` */
    TSR_N_GROUPS
};

struct tsr_command {
    tsr_command_fn run;
    int place; /* in lists, counted from 1; those of a group follow each other */
    enum tsr_command_group group;
    struct tsr_usage usage;
};

/* The help of `check`, which more.h may give other files. */
#define TSR_HELP_CHECK                                                                          \
    "Emits the programs of every rank (in worlds of more than 64: one of each class) for the\n" \
    "initialisation, three iterations and the other phases of the file, and checks them: "      \
    "accesses\n"                                                                                \
    "that nothing orders, memory given back or used too early, reads of what nobody wrote, "    \
    "leaks,\n"
#define TSR_HELP_CHECK_STATUS                                                                     \
    "Exit status: 0 nothing found, 4 a defect (one line on stderr, all of them on stdout), 2 a\n" \
    "mistake in the file or the options.\n"                                                       \
    "\n"

/* The last one has no `run`. */
extern const struct tsr_command tsr_commands[];

#endif
