/* study_args.h: the experiment that the options of a subcommand name. */
#ifndef TSR_CLI_STUDY_ARGS_H
#define TSR_CLI_STUDY_ARGS_H

#include "experiments/cli/args/args.h"
#include "experiments/study/config/request.h"

struct tsr_study;

/* Borrows from `args`. */
struct tsr_study_request tsr_args_request(const struct tsr_args *args);
/* Opens what is asked for; tsr_study_close(). */
tsr_status tsr_args_open(const struct tsr_args *args, struct tsr_study **out) TSR_MUST_USE;
/* --print-config: prints the resolved file to stdout. */
tsr_status tsr_print_config(const struct tsr_args *args) TSR_MUST_USE;

#endif
