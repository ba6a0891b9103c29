/* manual.h: the manual page, and what shells complete, from the tables of subcommands, options and
 * keys. */
#ifndef TSR_CLI_MANUAL_H
#define TSR_CLI_MANUAL_H

#include <stdio.h>

#include "experiments/cli/args/args.h"

/* All subcommands, in the order of the overview. */
struct tsr_manual {
    const struct tsr_usage *const *commands; /* [n] */
    size_t n;
};

/* Prints the one that `topic` names: "man" (roff), "bash", "zsh" or "fish" (completion). False: it
 * names none. */
bool tsr_manual_print(FILE *out, const char *topic, const struct tsr_manual *manual);

#endif
