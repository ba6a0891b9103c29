/* args.h: the options of the subcommands. One table row per option; parsing and help use it. */
#ifndef TSR_CLI_ARGS_H
#define TSR_CLI_ARGS_H

#include <stdio.h>

#include "../../engine/base.h"

enum tsr_option {
    TSR_OPT_SET = 1 << 0,
    TSR_OPT_PRINT_CONFIG = 1 << 1,
    TSR_OPT_FORMAT = 1 << 2,
    TSR_OPT_OUT = 1 << 3,
    TSR_OPT_ONLY = 1 << 4,
    TSR_OPT_JOBS = 1 << 5,
    TSR_OPT_STRATEGY = 1 << 6,
    TSR_OPT_ITERATION = 1 << 7,
    TSR_OPT_RANK = 1 << 8,
    TSR_OPT_ON = 1 << 9,
    TSR_OPT_STATES = 1 << 10,
    TSR_OPT_TIMELINE = 1 << 11,
    TSR_OPT_TOP = 1 << 12,
    TSR_OPT_NO_WHAT_IF = 1 << 13,
    TSR_OPT_TIME = 1 << 14,
    TSR_OPT_SECOND_FILE = 1 << 15, /* no word of its own: the subcommand takes two files */
    TSR_OPT_MAX = 1 << 16,
    TSR_OPT_EXHAUSTIVE = 1 << 17,
    TSR_OPT_OUT_FILE = 1 << 18, /* the words of TSR_OPT_OUT, for one file */
    TSR_OPT_EXECUTOR = 1 << 19,
    TSR_OPT_RANKS = 1 << 20,
    TSR_OPT_NPROC = 1 << 21,
    TSR_OPT_RESUME = 1 << 22,
    TSR_OPT_PROFILE = 1 << 23,
    TSR_OPT_CHECK = 1 << 24,
    TSR_OPT_SERIAL = 1 << 25,
    TSR_OPT_VERIFY = 1 << 26,
    TSR_OPT_TRANSPORT = 1 << 27,
    TSR_OPT_TIMEOUT = 1 << 28,
    TSR_OPT_SHUFFLE = 1 << 29,
    TSR_OPT_DTYPE = 1 << 30,
    TSR_OPT_MEASURED = 1U << 31
};

enum { TSR_MAX_SETS = 256 };

struct tsr_args {
    char *const *argv;       /* the subcommand and what follows it */
    const char *file;        /* the positional argument; NULL: none given */
    const char *second_file; /* of subcommands that take two */
    const char *sets[TSR_MAX_SETS];
    size_t n_sets;
    bool print_config, states, no_what_if, time, exhaustive;
    const char *format, *out, *only, *strategy, *iteration, *on, *timeline;
    uint64_t jobs, rank, top;
    const char *max;      /* plan */
    const char *executor; /* trace */
    /* run on the host */
    uint64_t ranks, nproc, timeout; /* 0: not given */
    const char *resume;             /* "": the run itself; NULL: not asked for */
    const char *transport;
    bool profile, check, serial, verify;
    bool shuffle;      /* corpus */
    const char *dtype; /* export */
    const char *measured; /* compare: folder of a run */
};

/* What a subcommand accepts and says about itself. */
struct tsr_usage {
    const char *name;
    const char *line;     /* one line for the overview */
    const char *synopsis; /* after "tessera NAME" */
    unsigned options;     /* set of enum tsr_option */
    const char *formats;  /* "md, csv or json" for --format */
    const char *text;     /* paragraphs and examples */
};

/* Errors: TSR_ECONFIG with what is allowed. *help: --help was asked for, the rest is not set. */
tsr_status tsr_args_parse(const struct tsr_usage *usage, int argc, char **argv,
                          struct tsr_args *out, bool *help) TSR_MUST_USE;
/* Fails with TSR_ECONFIG if no file was given. */
tsr_status tsr_args_need_file(const struct tsr_usage *usage,
                              const struct tsr_args *args) TSR_MUST_USE;
/* Fails unless args->format is one of the NULL-terminated list; absent: the first. */
tsr_status tsr_args_format(struct tsr_args *args, const char *const *allowed) TSR_MUST_USE;

void tsr_usage_print(FILE *out, const struct tsr_usage *usage);

extern const struct tsr_usage tsr_usages[]; /* ends with name NULL; usage.c */
const struct tsr_usage *tsr_usage_find(const char *name);

#endif
