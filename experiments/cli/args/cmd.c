/* cmd.c: what subcommands have in common: from options to a study, and how a subcommand ends:
 * its exit status and its one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/study/base/files.h"
#include "experiments/study/study.h"
#include "sim/base/text.h"

int tsr_finish(tsr_status status, int success)
{
    if (status == TSR_OK)
        status = tsr_flush(stdout, "standard output");
    if (status == TSR_OK)
        return success;
    fputs("tessera: ", stderr);
    tsr_text_put(stderr, tsr_error_text()); /* one line, and nothing that moves a cursor */
    fputc('\n', stderr);
    return tsr_exit_status(status);
}

int tsr_command(const struct tsr_usage *usage, tsr_command_fn run, int argc, char **argv)
{
    struct tsr_args args;
    bool help = false;
    int success = TSR_EXIT_OK;
    tsr_status status = tsr_args_parse(usage, argc, argv, &args, &help);
    if (status == TSR_OK && help)
        status = tsr_usage_show(usage);
    else if (status == TSR_OK)
        status = run(usage, &args, &success);
    return tsr_finish(status, success);
}

/* ---- from options to a study ----------------------------------------------------------------- */

static const char *const pictures[] = {
    [TSR_PICTURES_ALL] = "all", [TSR_PICTURES_SVG] = "svg", [TSR_PICTURES_NONE] = "none"};
enum { N_PICTURES = sizeof pictures / sizeof *pictures };

/* N_PICTURES: none of them. */
static enum tsr_pictures pictures_of(const struct tsr_args *args)
{
    int i = 0;
    while (args->pictures && i < N_PICTURES && strcmp(args->pictures, pictures[i]) != 0)
        i++;
    return (enum tsr_pictures)i;
}

tsr_status tsr_args_pictures(const struct tsr_args *args, enum tsr_pictures *out)
{
    *out = pictures_of(args);
    if ((int)*out == N_PICTURES)
        return tsr_fail(TSR_ECONFIG, "--pictures: found %s; allowed: none, svg or all",
                        args->pictures);
    return TSR_OK;
}

/* GPUs of this machine, if the program that runs on them lies beside this one; 0: none. */
static uint32_t count_gpus(void)
{
    char path[4096], device[32];
    uint32_t n = 0;
    ssize_t length = readlink("/proc/self/exe", path, 4000);
    char *name = length > 0 ? (path[length] = 0, strrchr(path, '/')) : NULL;
    if (!name)
        return 0;
    strcpy(name + 1, "tessera-cuda");
    for (bool there = access(path, X_OK) == 0; there; n += there) {
        snprintf(device, sizeof device, "/dev/nvidia%u", n);
        there = access(device, R_OK | W_OK) == 0;
    }
    return n;
}

struct tsr_study_request tsr_args_request(const struct tsr_args *args)
{
    return (struct tsr_study_request){.path = args->file,
                                      .sets = args->sets,
                                      .n_sets = args->n_sets,
                                      .only = args->only,
                                      .strategy = args->strategy,
                                      .no_traces = args->no_traces,
                                      .traces = args->traces,
                                      .pictures = pictures_of(args),
                                      .gpus_here = count_gpus(),
                                      .out = args->out};
}

tsr_status tsr_args_open(const struct tsr_args *args, struct tsr_study **out)
{
    struct tsr_study_request request = tsr_args_request(args);
    TSR_TRY(tsr_args_pictures(args, &request.pictures));
    return tsr_study_open(&request, out);
}

tsr_status tsr_print_config(const struct tsr_args *args)
{
    struct tsr_study *study = NULL;
    char *text = NULL;
    TSR_TRY(tsr_args_open(args, &study));
    tsr_status status = tsr_study_print(study, &text);
    if (status == TSR_OK)
        fputs(text, stdout);
    free(text);
    tsr_study_close(study);
    return status;
}
