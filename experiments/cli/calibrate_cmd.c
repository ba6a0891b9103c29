/* calibrate_cmd.c: `tessera calibrate`: what was measured on a machine, in the forms that the
 * simulator's fits read. */
#include "args.h"
#include "cmd.h"
#include "nccl_log.h"
#include "report_file.h"

struct import {
    const struct tsr_nccl_log *log;
    const char *source;
};

static tsr_status write_table(FILE *out, const void *user)
{
    const struct import *import = user;
    tsr_nccl_log_print(out, import->log, import->source);
    return TSR_OK;
}

static tsr_status import_log(const struct tsr_args *args)
{
    struct tsr_nccl_log log;
    TSR_TRY(tsr_nccl_log_read(args->nccl_log, &log));
    struct import import = {&log, args->nccl_log};
    tsr_status status =
        args->out ? tsr_write_file(args->out, write_table, &import) : write_table(stdout, &import);
    tsr_nccl_log_fini(&log);
    return status;
}

static tsr_status run(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    if (args->file)
        return tsr_fail(TSR_ECONFIG, "calibrate: found %s; allowed: tessera calibrate %s",
                        args->file, usage->synopsis);
    if (!args->nccl_log)
        return tsr_fail(TSR_ECONFIG, "calibrate: no log given; allowed: tessera calibrate %s",
                        usage->synopsis);
    return import_log(args);
}

int tsr_cmd_calibrate(int argc, char **argv)
{
    return tsr_command("calibrate", argc, argv, run);
}
