/* cmd.h: the subcommands. Each takes its own name as argv[0] and returns the exit status. */
#ifndef TSR_CLI_CMD_H
#define TSR_CLI_CMD_H

#include "experiments/study/base/exit_status.h"

int tsr_cmd_compare(int argc, char **argv);
int tsr_cmd_corpus(int argc, char **argv);
int tsr_cmd_export(int argc, char **argv);
int tsr_cmd_sim(int argc, char **argv);
int tsr_cmd_run(int argc, char **argv);
int tsr_cmd_goodput(int argc, char **argv);
int tsr_cmd_jobs(int argc, char **argv);
int tsr_cmd_inspect(int argc, char **argv);
int tsr_cmd_program(int argc, char **argv);
int tsr_cmd_trace(int argc, char **argv);
int tsr_cmd_memory(int argc, char **argv);
int tsr_cmd_explain(int argc, char **argv);
int tsr_cmd_overlap(int argc, char **argv);
int tsr_cmd_diff(int argc, char **argv);
int tsr_cmd_plan(int argc, char **argv);
int tsr_cmd_check(int argc, char **argv);
int tsr_cmd_validate(int argc, char **argv);
int tsr_cmd_calibrate(int argc, char **argv);
int tsr_cmd_kernels(int argc, char **argv);
int tsr_cmd_collectives(int argc, char **argv);

/* What a subcommand does with its options. *success: the exit status without a failure, 0 unless it
 * is set. */
struct tsr_args;
struct tsr_usage;
typedef tsr_status (*tsr_command_fn)(const struct tsr_usage *usage, struct tsr_args *args,
                                     int *success);
/* Parses the options, prints the help if that is asked for, else runs; returns the exit status. */
int tsr_command(const char *name, int argc, char **argv, tsr_command_fn run);

/* Prints the one line of a failure, and returns its exit status; TSR_OK: flushes stdout and
 * returns `success`, or the failure of the flush. */
int tsr_finish(tsr_status status, int success);

#endif
