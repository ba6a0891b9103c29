/* main.c: the program `tessera`: finds the subcommand; help and version. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/help.h"
#include "experiments/cli/args/progress.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/nearest.h"

#ifndef TSR_VERSION
#define TSR_VERSION "unknown"
#endif

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {{"compare", tsr_cmd_compare},   {"sim", tsr_cmd_sim},
                {"run", tsr_cmd_run},           {"inspect", tsr_cmd_inspect},
                {"program", tsr_cmd_program},   {"trace", tsr_cmd_trace},
                {"memory", tsr_cmd_memory},     {"explain", tsr_cmd_explain},
                {"diff", tsr_cmd_diff},         {"overlap", tsr_cmd_overlap},
                {"plan", tsr_cmd_plan},         {"corpus", tsr_cmd_corpus},
                {"export", tsr_cmd_export},     {"check", tsr_cmd_check},
                {"validate", tsr_cmd_validate}, {"calibrate", tsr_cmd_calibrate},
                {"kernels", tsr_cmd_kernels},   {"collectives", tsr_cmd_collectives},
                {"goodput", tsr_cmd_goodput},   {"jobs", tsr_cmd_jobs}};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static tsr_status unknown_command(const char *name)
{
    const char *names[N_COMMANDS + 2];
    char words[160] = "";
    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s, ", names[i]);
    }
    names[N_COMMANDS] = "help";
    names[N_COMMANDS + 1] = NULL;
    const char *near = tsr_nearest(name, names);
    return tsr_fail(TSR_ECONFIG, "unknown subcommand \"%s\"%s%s; allowed: %shelp", name,
                    near ? "; nearest: " : "", near ? near : "", words);
}

static tsr_status help(const char *topic)
{
    const struct tsr_usage *usage = topic ? tsr_usage_find(topic) : NULL;
    if (!topic || !strcmp(topic, "help")) {
        tsr_help_overview(stdout);
        return TSR_OK;
    }
    if (!strcmp(topic, "keys"))
        return tsr_help_keys(stdout);
    if (!usage)
        return unknown_command(topic);
    tsr_usage_print(stdout, usage);
    return TSR_OK;
}

static int dispatch(int argc, char **argv)
{
    const char *name = argv[0];
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("tessera %s\n", TSR_VERSION);
        return tsr_finish(TSR_OK, TSR_EXIT_OK);
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help"))
        return tsr_finish(help(argc > 1 && name[0] == 'h' ? argv[1] : NULL), TSR_EXIT_OK);
    bool wants_help = argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, name))
            return wants_help ? tsr_finish(help(name), TSR_EXIT_OK) : commands[i].run(argc, argv);
    return tsr_finish(unknown_command(name), TSR_EXIT_USER);
}

/* Programs of many megabytes are made and dropped all the time: their memory is kept for the next
 * one. Given back, and faulted in page by page again, it costs a third of an explanation. */
static void keep_memory(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

int main(int argc, char **argv)
{
    keep_memory();
    tsr_interrupt_handle();
    tsr_progress_listen();
    if (argc < 2) {
        tsr_status status =
            tsr_fail(TSR_ECONFIG, "no subcommand given; allowed: compare, sim, "
                                  "run, inspect, program, trace, memory, explain, "
                                  "overlap, diff, plan, corpus, export, check, validate, "
                                  "calibrate, kernels, collectives, goodput, jobs, help");
        return tsr_finish(status, TSR_EXIT_USER);
    }
    return dispatch(argc - 1, argv + 1);
}
