/* args.h: the options of the subcommands. One table row per option; parsing and help use it. */
#ifndef TSR_CLI_ARGS_H
#define TSR_CLI_ARGS_H

#include <stdio.h>

#include "engine/program/base.h"

/* One bit each. */
#define TSR_OPT_SET          (UINT64_C(1) << 0)
#define TSR_OPT_PRINT_CONFIG (UINT64_C(1) << 1)
#define TSR_OPT_FORMAT       (UINT64_C(1) << 2)
#define TSR_OPT_OUT          (UINT64_C(1) << 3)
#define TSR_OPT_ONLY         (UINT64_C(1) << 4)
#define TSR_OPT_JOBS         (UINT64_C(1) << 5)
#define TSR_OPT_STRATEGY     (UINT64_C(1) << 6)
#define TSR_OPT_ITERATION    (UINT64_C(1) << 7)
#define TSR_OPT_RANK         (UINT64_C(1) << 8)
#define TSR_OPT_ON           (UINT64_C(1) << 9)
#define TSR_OPT_STATES       (UINT64_C(1) << 10)
#define TSR_OPT_TIMELINE     (UINT64_C(1) << 11)
#define TSR_OPT_DEEP         (UINT64_C(1) << 36)
#define TSR_OPT_GO_ON        (UINT64_C(1) << 37) /* --resume of a search: without a folder */
#define TSR_OPT_FILES        (UINT64_C(1) << 38) /* --no-traces, --pictures */
#define TSR_OPT_WIDE         (UINT64_C(1) << 39)
#define TSR_OPT_NOTES        (UINT64_C(1) << 49)
#define TSR_OPT_TOP          (UINT64_C(1) << 12)
#define TSR_OPT_NO_WHAT_IF   (UINT64_C(1) << 13)
#define TSR_OPT_TIME         (UINT64_C(1) << 14)
#define TSR_OPT_SECOND_FILE \
    (UINT64_C(1) << 15) /* no word of its own: the subcommand takes two files */
#define TSR_OPT_MAX        (UINT64_C(1) << 16)
#define TSR_OPT_EXHAUSTIVE (UINT64_C(1) << 17)
#define TSR_OPT_OUT_FILE   (UINT64_C(1) << 18) /* the words of TSR_OPT_OUT, for one file */
#define TSR_OPT_EXECUTOR   (UINT64_C(1) << 19)
#define TSR_OPT_RANKS      (UINT64_C(1) << 20)
#define TSR_OPT_NPROC      (UINT64_C(1) << 21)
#define TSR_OPT_RESUME     (UINT64_C(1) << 22)
#define TSR_OPT_PROFILE    (UINT64_C(1) << 23)
#define TSR_OPT_CHECK      (UINT64_C(1) << 24)
#define TSR_OPT_SERIAL     (UINT64_C(1) << 25)
#define TSR_OPT_VERIFY     (UINT64_C(1) << 26)
#define TSR_OPT_TRANSPORT  (UINT64_C(1) << 27)
#define TSR_OPT_TIMEOUT    (UINT64_C(1) << 28)
#define TSR_OPT_SHUFFLE    (UINT64_C(1) << 29)
#define TSR_OPT_DTYPE      (UINT64_C(1) << 30)
#define TSR_OPT_MEASURED   (UINT64_C(1) << 31)
#define TSR_OPT_PART       (UINT64_C(1) << 50)
#define TSR_OPT_MERGE      (UINT64_C(1) << 51)
#define TSR_OPT_EMIT       (UINT64_C(1) << 53)
#define TSR_OPT_CONDITIONS (UINT64_C(1) << 40)
#define TSR_OPT_NCCL_LOG   (UINT64_C(1) << 41)
#define TSR_OPT_STRICT     (UINT64_C(1) << 44)
#define TSR_OPT_SIZES      (UINT64_C(1) << 47)
#define TSR_OPT_MTBF       (UINT64_C(1) << 56)
#define TSR_OPT_CKPT       (UINT64_C(1) << 57)
#define TSR_OPT_SAMPLES    (UINT64_C(1) << 55)
#define TSR_OPT_LEAVE_OUT  (UINT64_C(1) << 45)
#define TSR_OPT_COMMANDS   (UINT64_C(1) << 52)
#define TSR_OPT_WRITE      (UINT64_C(1) << 54)
#define TSR_OPT_ALLOW      (UINT64_C(1) << 48)
#define TSR_OPT_GPU        (UINT64_C(1) << 58)
#define TSR_OPT_COMM       (UINT64_C(1) << 59)
#define TSR_OPT_FORCE_NCCL (UINT64_C(1) << 60)
#define TSR_OPT_EXACT      (UINT64_C(1) << 61)
#define TSR_OPT_GRAPHS     (UINT64_C(1) << 62) /* --graphs, --allow-slow */
#define TSR_OPT_ASYNC_SAVE (UINT64_C(1) << 63)
#define TSR_OPT_TRACE      (UINT64_C(1) << 46)

enum { TSR_MAX_SETS = 256, TSR_MAX_FILES = 1024 };

/* Options as they were given, checked one by one; which of them a subcommand takes, its table of
 * options says. Texts are borrowed from argv, or from `shorthands`, to which `sets` points: it is
 * not to be copied. */
struct tsr_args {
    char *const *argv;                /* the subcommand and what follows it */
    const char *file;                 /* the positional argument; NULL: none given */
    const char *second_file;          /* of subcommands that take two */
    const char *files[TSR_MAX_FILES]; /* of options that take many (--merge): all of them */
    size_t n_files;
    const char *sets[TSR_MAX_SETS];
    size_t n_sets;
    bool print_config, states, no_what_if, time, deep, exhaustive, go_on, no_traces, traces, wide,
        notes, commands;
    const char *pictures;
    const char *format, *out, *only, *strategy, *iteration, *on, *timeline, *trace;
    uint64_t jobs, rank, top;
    const char *max;      /* plan */
    const char *executor; /* trace */
    /* run on the host */
    uint64_t ranks, nproc, timeout; /* 0: not given */
    const char *resume;             /* "": the run itself; NULL: not asked for */
    const char *transport;
    bool profile, check, serial, verify, async_save;
    /* and on GPUs */
    uint64_t gpu;
    bool has_gpu, has_rank, force_nccl, deterministic;
    const char *comm, *graphs, *allow_slow;
    bool shuffle;            /* corpus */
    const char *dtype;       /* export */
    const char *measured;    /* compare: folder of a run */
    const char *part;        /* compare: "I/N" or "auto" */
    const char *emit[2];     /* compare, plan: format and folder of code; NULL: none */
    const char *write[2];    /* plan: rank and file; NULL: none */
    bool merge;              /* compare: the files are folders of parts */
    const char *conditions;  /* validate */
    bool strict;             /* validate */
    const char *nccl_log;    /* calibrate */
    bool leave_one_out;      /* kernels */
    const char *sizes;       /* collectives */
    char shorthands[4][128]; /* "sim.samples=N", which is among the sets then, ... */
    size_t n_shorthands;
};

/* What a subcommand accepts and says about itself (experiments/cli/commands.c). */
struct tsr_usage {
    const char *name;
    const char *line;     /* one line for the overview */
    const char *synopsis; /* after "tessera NAME" */
    uint64_t options;     /* set of TSR_OPT_... */
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

/* One option as help and completions name it. */
struct tsr_option_words {
    const char *name;   /* "--out" */
    char letter;        /* 'o'; 0: none */
    const char *value;  /* "DIR"; NULL: a flag */
    const char *second; /* of an option with two values; NULL: it has one */
    const char *help;
};
/* The i-th option of a subcommand, in the order of its help; false: it has no more. */
bool tsr_usage_option(const struct tsr_usage *usage, size_t i, struct tsr_option_words *out);

#endif
