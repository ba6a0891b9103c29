/* man.h: between the files of this folder. */
#ifndef TSR_CLI_MAN_H
#define TSR_CLI_MAN_H

#include "experiments/cli/manual/manual.h"

void tsr__put_man(FILE *out, const struct tsr_manual *manual);

#endif
