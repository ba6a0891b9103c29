/* export_cmd.c: `tessera export RUN --out DIR`: a checkpoint as a model of Hugging Face. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../exec/export.h"
#include "args.h"
#include "cmd.h"

/* A run's folder has its checkpoints in one below. */
static void checkpoints_of(const char *path, char *out, size_t size)
{
    struct stat info;
    snprintf(out, size, "%s/checkpoints", path);
    if (stat(out, &info) != 0)
        snprintf(out, size, "%s", path);
}

static tsr_status read_config(const char *run, char **text)
{
    char path[4096];
    size_t bytes;
    snprintf(path, sizeof path, "%s/model.json", run);
    return tsr_disk_read_file(path, 1 << 20, text, &bytes);
}

static tsr_status dtype_of(const struct tsr_args *args, tsr_dtype *out)
{
    *out = args->dtype ? tsr_dtype_parse(args->dtype) : TSR_F32;
    if (*out == TSR_F32 || *out == TSR_BF16 || *out == TSR_F16)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "--dtype: found %s; allowed: f32, bf16 or f16", args->dtype);
}

static tsr_status run(const struct tsr_usage *usage, struct tsr_args *args, int *success)
{
    (void)success;
    TSR_TRY(tsr_args_need_file(usage, args));
    if (!args->out)
        return tsr_fail(TSR_ECONFIG, "export: --out: found none; allowed: a folder");
    tsr_dtype dtype;
    char from[4096];
    TSR_TRY(dtype_of(args, &dtype));
    checkpoints_of(args->file, from, sizeof from);
    (void)read_config;
    return tsr_fail(TSR_EUNSUPPORTED, "export");
}

int tsr_cmd_export(int argc, char **argv)
{
    return tsr_command("export", argc, argv, run);
}
