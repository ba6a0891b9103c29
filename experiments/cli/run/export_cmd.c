/* export_cmd.c: `tessera export RUN --out DIR`: the latest checkpoint of a run as a model of
 * Hugging Face.
 */
#include <stdio.h>
#include <stdlib.h>

#include "exec/files/export.h"
#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/run/run.h"
#include "experiments/study/simulate/open.h"

static tsr_status dtype_of(const struct tsr_args *args, tsr_dtype *out)
{
    *out = args->dtype ? tsr_dtype_parse(args->dtype) : TSR_F32;
    if (*out == TSR_F32 || *out == TSR_BF16 || *out == TSR_F16)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--dtype: found %s; allowed: f32, bf16 or f16", args->dtype);
}

static tsr_status export_from(const char *path, const char *out,
                              const struct tsr_export_options *options)
{
    struct tsr_checkpoint *checkpoint = NULL;
    TSR_TRY(tsr_checkpoint_open(path, true, &checkpoint));
    tsr_status status = tsr_export(checkpoint, out, options);
    if (status == TSR_OK)
        printf("%s: step %llu of %s\n", out, (unsigned long long)tsr_checkpoint_step(checkpoint),
               tsr_checkpoint_path(checkpoint));
    tsr_checkpoint_close(checkpoint);
    return status;
}

tsr_status tsr_cmd_export(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    struct tsr_export_options options = {0};
    char path[4096], *config = NULL;
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->out)
        return tsr_fail(TSR_ECONFIG, "export: --out: found none; allowed: a folder");
    TSR_TRY(dtype_of(args, &options.dtype));
    TSR_TRY(tsr_run_folder_read(args->file, &options.model, &config));
    options.config = config;
    snprintf(path, sizeof path, "%s/checkpoints", args->file);
    tsr_status status = tsr_prepare_out(args->out);
    if (status == TSR_OK)
        status = export_from(path, args->out, &options);
    free(config);
    return status;
}
