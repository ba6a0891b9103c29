/* check_cmd.c: `tessera check`: looks for races, early frees, leaks, ranks that differ and
 * deadlocks in the programs of a strategy, without running them.
 */
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/inspect/check_run.h"
#include "experiments/study/job/job.h"

/* ---- a file ---------------------------------------------------------------------------------- */

static tsr_status check_strategy(const struct tsr_experiment *experiment,
                                 const struct tsr_strategy *strategy,
                                 struct tsr_check_verdict *verdict)
{
    struct tsr_job job;
    TSR_TRY(tsr_job_open(experiment, strategy, TSR_MAY_LACK_CLUSTER, &job));
    const struct tsr_check_source source = tsr_check_job(&job);
    tsr_status status = tsr_check_print(strategy->name, &source, verdict);
    tsr_job_close(&job);
    return status;
}

static tsr_status check_strategies(const struct tsr_args *args,
                                   const struct tsr_experiment *experiment,
                                   struct tsr_check_verdict *verdict)
{
    const struct tsr_strategy *one = NULL;
    if (args->strategy)
        TSR_TRY(tsr_experiment_find(experiment, args->strategy, &one));
    for (size_t i = 0; i < experiment->n; i++)
        if (!one || one == &experiment->strategies[i])
            TSR_TRY(check_strategy(experiment, &experiment->strategies[i], verdict));
    return TSR_OK;
}

tsr_status tsr_cmd_check(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_check_verdict verdict = {0};
    struct tsr_experiment experiment;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (args->print_config)
        return tsr_print_config(args);
    TSR_TRY(tsr_experiment_load(args->file, args->sets, args->n_sets, &experiment));
    tsr_status status = check_strategies(args, &experiment, &verdict);
    if (status == TSR_OK)
        tsr_tell_unread(&experiment, NULL);
    tsr_experiment_fini(&experiment);
    TSR_TRY(status);
    return tsr_check_end(args->file, &verdict);
}
