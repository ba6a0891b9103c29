/* run_host.h: `tessera run --on host` and `--on cuda`: trains a strategy, ranks as threads or
 * processes.
 */
#ifndef TSR_CLI_RUN_HOST_H
#define TSR_CLI_RUN_HOST_H

#include "experiments/cli/args/args.h"

/* argv: the words behind the subcommand, for processes of one's own (--nproc). */
tsr_status tsr_run_on_host(const struct tsr_args *args, char *const *argv,
                           int *success) TSR_MUST_USE;

#endif
