/* cmd.h: the subcommands as functions: what they have in common, opening the experiment that
 * options name, and how they end: exit statuses. */
#ifndef TSR_CLI_CMD_H
#define TSR_CLI_CMD_H

#include "experiments/cli/args/args.h"
#include "experiments/study/base/exit_status.h"
#include "experiments/study/config/request.h"

struct tsr_args;
struct tsr_usage;
/* What a subcommand does with its options. *success: the exit status without a failure, 0 unless it
 * is set. */
typedef tsr_status (*tsr_command_fn)(const struct tsr_usage *usage, struct tsr_args *args,
                                     int *success);
tsr_status tsr_cmd_compare(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_sim(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_goodput(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_jobs(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_run(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_corpus(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_export(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_inspect(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_program(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_memory(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_explain(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_overlap(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_diff(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_plan(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_check(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_kernels(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_collectives(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_calibrate(const struct tsr_usage *usage, struct tsr_args *args, int *success);
tsr_status tsr_cmd_validate(const struct tsr_usage *usage, struct tsr_args *args, int *success);

/* Parses the options, prints the help if that is asked for, else runs; returns the exit status. */
int tsr_command(const struct tsr_usage *usage, tsr_command_fn run, int argc, char **argv);

/* Prints the one line of a failure, and returns its exit status; TSR_OK: flushes stdout and
 * returns `success`, or the failure of the flush. */
int tsr_finish(tsr_status status, int success);

/* ---- the experiment that options name -------------------------------------------------------- */

struct tsr_study;

/* Sets *out to the value of --pictures, TSR_PICTURES_ALL without one; TSR_ECONFIG if it is not one
 * of the three. */
tsr_status tsr_args_pictures(const struct tsr_args *args, enum tsr_pictures *out) TSR_MUST_USE;
/* Borrows from `args`. */
struct tsr_study_request tsr_args_request(const struct tsr_args *args);
/* Opens what is asked for; tsr_study_close(). */
tsr_status tsr_args_open(const struct tsr_args *args, struct tsr_study **out) TSR_MUST_USE;
/* --print-config: prints the resolved file to stdout. */
tsr_status tsr_print_config(const struct tsr_args *args) TSR_MUST_USE;

#endif
