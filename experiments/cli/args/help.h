/* help.h: the overview and the reference of keys. */
#ifndef TSR_CLI_HELP_H
#define TSR_CLI_HELP_H

#include <stdio.h>

#include "engine/program/base.h"

void tsr_help_overview(FILE *out);
/* Every key of an experiment file, from the table. */
tsr_status tsr_help_keys(FILE *out) TSR_MUST_USE;

#endif
