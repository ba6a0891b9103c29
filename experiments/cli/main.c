/* main.c: the program `tessera`: finds the subcommand; the overview, the help and the version. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#include <printf.h>
#endif

#include "experiments/cli/args/args.h"
#include "experiments/cli/args/cmd.h"
#include "experiments/cli/args/page.h"
#include "experiments/cli/args/progress.h"
#include "experiments/cli/commands.h"
#include "experiments/cli/manual/manual.h"
#include "experiments/cli/more.h"
#include "experiments/study/base/interrupt.h"
#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

#ifndef TSR_VERSION
#define TSR_VERSION "unknown"
#endif

enum { MOST_NAMES = 32, LIST_BYTES = 256 };

/* ---- the table ------------------------------------------------------------------------------- */

/* All commands, the program's and those that the build adds, in the order of their places. */
struct commands {
    const struct tsr_command *list[MOST_NAMES];
    size_t n;
};

static const struct tsr_command *find_in(const struct tsr_command *table, const char *name)
{
    for (const struct tsr_command *c = table; c->run; c++)
        if (!strcmp(c->usage.name, name))
            return c;
    return NULL;
}

static const struct tsr_command *find(const char *name)
{
    const struct tsr_command *added = find_in(tsr_more_commands, name);
    return added ? added : find_in(tsr_commands, name);
}

static void add(struct commands *all, const struct tsr_command *table)
{
    for (const struct tsr_command *c = table; c->run && all->n < MOST_NAMES; c++) {
        if (find(c->usage.name) != c)
            continue;
        size_t at = all->n++;
        for (; at > 0 && all->list[at - 1]->place > c->place; at--)
            all->list[at] = all->list[at - 1];
        all->list[at] = c;
    }
}

static struct commands all_commands(void)
{
    struct commands all = {.n = 0};
    add(&all, tsr_commands);
    add(&all, tsr_more_commands);
    return all;
}

/* What may stand as a subcommand: names, then "help" and NULL; and all of them in a line. */
static void list_names(const char *names[MOST_NAMES + 2], char line[LIST_BYTES])
{
    const struct commands all = all_commands();
    size_t n = 0;
    while (n < all.n) {
        names[n] = all.list[n]->usage.name;
        n++;
    }
    names[n++] = "help";
    names[n] = NULL;
    line[0] = 0;
    for (size_t i = 0; i < n; i++)
        snprintf(line + strlen(line), LIST_BYTES - strlen(line), "%s%s", i ? ", " : "", names[i]);
}

static tsr_status unknown_command(const char *name)
{
    const char *names[MOST_NAMES + 2];
    char line[LIST_BYTES];
    list_names(names, line);
    const char *near = tsr_nearest(name, names);
    return tsr_fail(TSR_ECONFIG, "unknown subcommand \"%s\"%s%s; allowed: %s", name,
                    near ? "; nearest: " : "", near ? near : "", line);
}

/* ---- help ------------------------------------------------------------------------------------ */

static const char *const group_heads[TSR_N_GROUPS] = {
    [TSR_GROUP_ASK] = "Ask: simulated, on any machine, from one file of strategies",
    [TSR_GROUP_TRUST] = "Trust: how far the figures hold, and on what they rest",
    [TSR_GROUP_RUN] = "Run",
    [TSR_GROUP_INSPECT] = "Inspect",
    [TSR_GROUP_MORE] = "More"};

static void print_group(FILE *out, enum tsr_command_group group)
{
    fprintf(out, "%s\n", group_heads[group]);
    const struct commands all = all_commands();
    for (size_t i = 0; i < all.n; i++)
        if (all.list[i]->group == group)
            fprintf(out, "  %-11s  %s\n", all.list[i]->usage.name, all.list[i]->usage.line);
    fputc('\n', out);
}

/* The first help screen; all: also the subcommands that few need. */
static void print_overview(FILE *out, bool all)
{
    fputs("tessera: predicts time and memory of sharded training in PyTorch.\n\nUsage: tessera "
          "SUBCOMMAND FILE [options]\n\n",
          out);
    for (int group = 0; group < (all ? TSR_N_GROUPS : TSR_GROUP_MORE); group++)
        print_group(out, (enum tsr_command_group)group);
    fprintf(out,
            "Help\n"
            "  tessera help SUBCOMMAND   options and examples\n"
            "%s"
            "  tessera help keys         every key of an experiment file\n"
            "  tessera help man          the manual page; bash, zsh, fish: what they complete\n"
            "  tessera --version\n"
            "\n"
            "Start with: tessera compare experiments/flagship/dgx-h100-8.yaml --out out\n"
            "\n"
            "Exit status: 0 ok, 1 the machine failed, 2 a mistake in a file or option, 3 does\n"
            "not fit into memory, 4 a defect was found, 75 a peer was lost (a restart helps).\n"
            "Data goes to stdout, remarks and errors to stderr.\n",
            all ? ""
                : "  tessera help all          also sim, program, memory, goodput, jobs, ...\n");
}

static void print_section(FILE *out, const char *name, char *section, size_t size)
{
    const char *dot = strchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : 0;
    if (strlen(section) == n && !strncmp(section, name, n))
        return;
    snprintf(section, size, "%.*s", (int)n, name);
    fprintf(out, "\n");
}

/* Every key of an experiment file, from the table. */
static tsr_status print_keys(FILE *out)
{
    struct tsr_settings defaults;
    char section[64] = "", value[256], allowed[512], readers[96];
    tsr_settings_default(&defaults);
    fprintf(out,
            "Keys of an experiment file (YAML; JSON is a subset). Every key may stand at the top\n"
            "(for all strategies) or in a strategy. `a.b` is key b of the mapping a.\n"
            "model: X, mesh: X and checkpoint: X are short for model.name, mesh.shape and\n"
            "checkpoint.every. At the top only: title; strategies: {NAME: {keys}};\n"
            "sweeps: {KEY: [values]}, which runs every strategy with every combination;\n"
            "plan: {budget_gib: N, space: {KEY: [values]}, allow: [...]}, for `tessera plan`;\n"
            "jobs: [{strategy: NAME, nodes: [N, ...]}], for `tessera jobs`.\n");
    for (size_t i = 0; i < TSR_N_KEYS; i++) {
        const struct tsr_key *key = &tsr_keys[i];
        TSR_TRY(tsr_key_format(key, &defaults, value, sizeof value));
        tsr_key_allowed(key, allowed, sizeof allowed);
        print_section(out, key->name, section, sizeof section);
        fprintf(out, "%s\n    %s\n    default %s; allowed: %s\n", key->name, key->help, value,
                allowed);
        tsr_key_readers(key, readers, sizeof readers);
        if (*readers)
            fprintf(out, "    read by %s\n", readers);
    }
    return TSR_OK;
}

static bool print_manual(const char *topic)
{
    const struct commands all = all_commands();
    const struct tsr_usage *usages[MOST_NAMES];
    const struct tsr_manual manual = {usages, all.n};
    for (size_t i = 0; i < all.n; i++)
        usages[i] = &all.list[i]->usage;
    return tsr_manual_print(stdout, topic, &manual);
}

static tsr_status help(const char *topic)
{
    if (!topic || !strcmp(topic, "help") || !strcmp(topic, "all")) {
        print_overview(stdout, topic && !strcmp(topic, "all"));
        return TSR_OK;
    }
    if (!strcmp(topic, "keys"))
        return print_keys(stdout);
    if (print_manual(topic))
        return TSR_OK;
    const struct tsr_command *command = find(topic);
    if (!command)
        return unknown_command(topic);
    return tsr_usage_show(&command->usage);
}

/* ---- the program ----------------------------------------------------------------------------- */

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
    const struct tsr_command *command = find(name);
    if (!command)
        return tsr_finish(unknown_command(name), TSR_EXIT_USER);
    if (wants_help)
        return tsr_finish(help(name), TSR_EXIT_OK);
    return tsr_command(&command->usage, command->run, argc, argv);
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

#ifdef __GLIBC__
/* Takes the place of the C library's function for whatever the program loads, and refuses. SimGrid
 * brings libquadmath, which would register a type; from then on every printf() of the process takes
 * glibc's slow path, a quarter longer, and traces are printed numbers. The program prints no
 * __float128. Not in a library: another program may want to. */
int register_printf_type(printf_va_arg_function function)
{
    (void)function;
    return -1;
}
#endif

int main(int argc, char **argv)
{
    keep_memory();
    tsr_interrupt_handle();
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit of the file size is an error of a write */
    tsr_progress_listen();
    if (argc < 2)
        return tsr_finish(help(NULL), TSR_EXIT_OK);
    return dispatch(argc - 1, argv + 1);
}
