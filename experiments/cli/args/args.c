/* args.c: parses the command line of a subcommand, driven by one table. */
#include "experiments/cli/args/args.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/yaml.h"
#include "experiments/study/config/settings.h"

#define AT(member) offsetof(struct tsr_args, member)

static const struct option {
    uint64_t id;
    const char *name;
    char letter;
    const char *value; /* NULL: a flag */
    const char *help;
    size_t at;         /* in struct tsr_args: bool of a flag, const char * of a text, ... */
    uint64_t min, max; /* ... uint64_t of a number; 0, 0: a text */
} options[] = {
    {TSR_OPT_OUT, "--out", 'o', "DIR", "write tables, timelines, traces and pictures to DIR",
     AT(out), 0, 0},
    {TSR_OPT_OUT_FILE, "--out", 'o', "FILE", "write the result to FILE instead of stdout", AT(out),
     0, 0},
    {TSR_OPT_FORMAT, "--format", 'f', "FORMAT", "how stdout is written", AT(format), 0, 0},
    {TSR_OPT_WIDE, "--wide", 'w', NULL,
     "all columns, and no line is broken (default: the terminal's width, 100 in a pipe)", AT(wide),
     0, 0},
    {TSR_OPT_NOTES, "--notes", 0, NULL,
     "also the notes: columns, marks, where figures come from, conditions", AT(notes), 0, 0},
    {TSR_OPT_STRATEGY, "--strategy", 's', "NAME", "the strategy of the file", AT(strategy), 0, 0},
    {TSR_OPT_ONLY, "--only", 0, "NAME,...", "only these strategies (or collectives)", AT(only), 0,
     0},
    {TSR_OPT_JOBS, "--jobs", 'j', "N", "strategies at a time, 1 to 256 (default 2)", AT(jobs), 1,
     256},
    {TSR_OPT_ON, "--on", 0, "TARGET", "sim, host or cuda (default sim)", AT(on), 0, 0},
    {TSR_OPT_ITERATION, "--iteration", 'i', "I",
     "init, load, eval, save, or 0, 1, ...; default: the first one that is like the one before",
     AT(iteration), 0, 0},
    {TSR_OPT_RANK, "--rank", 'r', "R", "the rank that is shown (default 0; overlap: the slowest)",
     AT(rank), 0, 1048575},
    {TSR_OPT_SET, "--set", 0, "KEY=VALUE",
     "override a key: batch=2, precision.reduce=bf16, strategies.NAME.wrap=root", AT(sets), 0, 0},
    {TSR_OPT_MAX, "--max", 0, "WHAT", "solve for the largest batch, seq or layers that fits",
     AT(max), 0, 0},
    {TSR_OPT_TOP, "--top", 'n', "N", "rows of each table, 1 to 1000 (default 5)", AT(top), 1, 1000},
    {TSR_OPT_TIME, "--time", 0, NULL, "simulate the single what-ifs, too: step time (slower)",
     AT(time), 0, 0},
    {TSR_OPT_NO_WHAT_IF, "--no-what-if", 0, NULL, "only what is, not what if", AT(no_what_if), 0,
     0},
    {TSR_OPT_DEEP, "--deep", 0, NULL, "also the best pair and triple of what-ifs (slower)",
     AT(deep), 0, 0},
    {TSR_OPT_FILES, "--no-traces", 0, NULL,
     "no traces and memory snapshots (default: of up to 2 strategies)", AT(no_traces), 0, 0},
    {TSR_OPT_FILES, "--traces", 0, NULL, "traces and memory snapshots of every strategy",
     AT(traces), 0, 0},
    {TSR_OPT_FILES, "--pictures", 0, "WHICH", "none, svg or all (default all: svg and png)",
     AT(pictures), 0, 0},
    {TSR_OPT_GO_ON, "--resume", 0, NULL, "go on with the search that was interrupted in --out DIR",
     AT(go_on), 0, 0},
    {TSR_OPT_EXHAUSTIVE, "--exhaustive", 0, NULL,
     "emit and simulate every configuration; the result is the same", AT(exhaustive), 0, 0},
    {TSR_OPT_RANKS, "--ranks", 0, "N", "ranks: of a run, as threads of this process", AT(ranks), 1,
     1024},
    {TSR_OPT_NPROC, "--nproc", 0, "N", "ranks as processes of this machine", AT(nproc), 1, 1024},
    {TSR_OPT_TRANSPORT, "--transport", 0, "HOW", "processes: auto, shm, tcp or mpi (default auto)",
     AT(transport), 0, 0},
    {TSR_OPT_TIMEOUT, "--timeout", 0, "S", "seconds that a rank waits for another (default 300)",
     AT(timeout), 1, 86400},
    {TSR_OPT_RESUME, "--resume", 0, "DIR", "go on from the latest checkpoint of a run", AT(resume),
     0, 0},
    {TSR_OPT_PROFILE, "--profile", 0, NULL,
     "time every instruction of the first steps (key iterations)", AT(profile), 0, 0},
    {TSR_OPT_CHECK, "--check", 0, NULL,
     "check the schedule as it is issued, and that what ran is the program", AT(check), 0, 0},
    {TSR_OPT_ASYNC_SAVE, "--async-save", 0, NULL,
     "copy and write checkpoints while training goes on (key save: sharded_async)", AT(async_save),
     0, 0},
    {TSR_OPT_SERIAL, "--serial", 0, NULL, "one instruction after the other", AT(serial), 0, 0},
    {TSR_OPT_VERIFY, "--verify-operands", 0, NULL,
     "with --serial: prove that kernels touch what they declare", AT(verify), 0, 0},
    {TSR_OPT_GPU, "--gpu", 0, "I", "cuda: the GPU (default: of each rank the local one)", AT(gpu),
     0, 1023},
    {TSR_OPT_COMM, "--comm", 0, "HOW",
     "cuda: nccl (nccl:zero-cta,windows,reduce-ctas=N), or loopback: ranks share a GPU", AT(comm),
     0, 0},
    {TSR_OPT_FORCE_NCCL, "--force-nccl", 0, NULL, "cuda: NCCL also where a rank is alone",
     AT(force_nccl), 0, 0},
    {TSR_OPT_EXACT, "--deterministic", 0, NULL, "cuda: the same bits in every run",
     AT(deterministic), 0, 0},
    {TSR_OPT_GRAPHS, "--graphs", 0, "on|off", "cuda: steps as CUDA graphs (default on)", AT(graphs),
     0, 0},
    {TSR_OPT_GRAPHS, "--allow-slow", 0, "WAY,...",
     "cuda: in 16 bits, too: product, attention, graph, copy, scratch", AT(allow_slow), 0, 0},
    {TSR_OPT_SIZES, "--sizes", 0, "BYTES,...", "sizes instead of powers of two", AT(sizes), 0, 0},
    {TSR_OPT_SHUFFLE, "--shuffle", 0, NULL, "permute the bytes: nothing is left to learn",
     AT(shuffle), 0, 0},
    {TSR_OPT_DTYPE, "--dtype", 0, "DTYPE", "of the weights: f32 (default), bf16 or f16", AT(dtype),
     0, 0},
    {TSR_OPT_SAMPLES, "--samples", 0, "N", "short for --set sim.samples=N: percentiles under noise",
     0, 0, 0},
    {TSR_OPT_MTBF, "--mtbf-hours", 0, "H", "short for --set goodput.node_mtbf_hours=H", 0, 0, 0},
    {TSR_OPT_CKPT, "--checkpoint-minutes", 0, "M", "short for --set goodput.checkpoint_minutes=M",
     0, 0, 0},
    {TSR_OPT_ALLOW, "--allow", 0, "WHAT,...",
     "short for --set plan.allow=[WHAT,...]: all, or compile, loss.chunks, ...", 0, 0, 0},
    {TSR_OPT_COMMANDS, "--commands", 0, NULL, "also the command that simulates each row again",
     AT(commands), 0, 0},
    {TSR_OPT_WRITE, "--write", 0, "N",
     "leave row N in FILE, an experiment for compare, explain and run", AT(write), 0, 0},
    {TSR_OPT_EMIT, "--emit", 0, "torch|torchtitan|accelerate",
     "each strategy as code for PyTorch into DIR", AT(emit), 0, 0},
    {TSR_OPT_MEASURED, "--measured", 0, "RUN", "show a run (run --profile --out RUN) beside",
     AT(measured), 0, 0},
    {TSR_OPT_PART, "--part", 0, "I/N",
     "only every N-th strategy, and of these those that DIR has not yet; auto: from Slurm or "
     "mpirun",
     AT(part), 0, 0},
    {TSR_OPT_MERGE, "--merge", 0, NULL, "instead of FILE: the folders of all parts", AT(merge), 0,
     0},
    {TSR_OPT_LEAVE_OUT, "--leave-one-out", 0, NULL,
     "predict each point without its own entry in the tables", AT(leave_one_out), 0, 0},
    {TSR_OPT_NCCL_LOG, "--nccl-log", 0, "LOG", "what all_reduce_perf, ... of nccl-tests printed",
     AT(nccl_log), 0, 0},
    {TSR_OPT_CONDITIONS, "--conditions", 0, "FILE",
     "what the table does not say of its runs (default: experiments/validation/conditions.yaml)",
     AT(conditions), 0, 0},
    {TSR_OPT_STRICT, "--strict", 0, NULL,
     "a cell that cannot be read is an error of the table, not a row that is not modelled",
     AT(strict), 0, 0},
    {TSR_OPT_EXECUTOR, "--executor", 0, "WHAT", "record (default); host or cuda: compute as well",
     AT(executor), 0, 0},
    {TSR_OPT_STATES, "--states", 0, NULL,
     "print the engine's state machines as Graphviz dot; takes no file", AT(states), 0, 0},
    {TSR_OPT_TRACE, "--trace", 0, "FILE", "the traced model of a scenario that names a Python file",
     AT(trace), 0, 0},
    {TSR_OPT_TIMELINE, "--timeline", 't', "FILE", "write every allocation and free to FILE",
     AT(timeline), 0, 0},
    {TSR_OPT_PRINT_CONFIG, "--print-config", 0, NULL, "print the resolved file, complete, and stop",
     AT(print_config), 0, 0},
};
enum { N_OPTIONS = sizeof options / sizeof options[0] };

/* The second value of an option that has two: it lies behind the first in struct tsr_args. */
static const char *second_of(const struct option *o)
{
    return o->id == TSR_OPT_EMIT ? "DIR" : o->id == TSR_OPT_WRITE ? "FILE" : NULL;
}

static tsr_status unknown_option(const struct tsr_usage *usage, const char *arg)
{
    const char *names[N_OPTIONS + 2];
    char words[256];
    size_t n = 0;
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (usage->options & options[i].id)
            names[n++] = options[i].name;
    names[n++] = "--help";
    names[n] = NULL;
    const char *near = tsr_nearest(arg, names);
    tsr_join_words(names, words, sizeof words);
    return tsr_fail(TSR_ECONFIG, "%s: unknown option %s%s%s; allowed: %s", usage->name, arg,
                    near ? "; nearest: " : "", near ? near : "", words);
}

static tsr_status number(const char *option, const char *text, uint64_t min, uint64_t max,
                         uint64_t *out)
{
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 12 || value < min ||
        value > max)
        return tsr_fail(TSR_ECONFIG, "%s: found %s; allowed: an integer from %llu to %llu", option,
                        text, (unsigned long long)min, (unsigned long long)max);
    *out = value;
    return TSR_OK;
}

static tsr_status add_set(const char *value, struct tsr_args *out)
{
    if (out->n_sets == TSR_MAX_SETS)
        return tsr_fail(TSR_ECONFIG, "--set: found more than %d; allowed: up to %d", TSR_MAX_SETS,
                        TSR_MAX_SETS);
    out->sets[out->n_sets++] = value;
    return TSR_OK;
}

/* The key that an option is short for; NULL: none. */
static const char *key_of(uint64_t id)
{
    return id == TSR_OPT_SAMPLES ? tsr_keys[TSR_K_SIM_SAMPLES].name
           : id == TSR_OPT_MTBF  ? tsr_keys[TSR_K_GOODPUT_NODE_MTBF_HOURS].name
           : id == TSR_OPT_CKPT  ? tsr_keys[TSR_K_GOODPUT_CHECKPOINT_MINUTES].name
           : id == TSR_OPT_ALLOW ? "plan.allow"
                                 : NULL;
}

static tsr_status take_shorthand(const struct option *o, const char *value, struct tsr_args *out)
{
    size_t n = sizeof out->shorthands / sizeof out->shorthands[0];
    bool is_list = o->id == TSR_OPT_ALLOW, is_second = false;
    const char *key = key_of(o->id);
    for (size_t i = 0; i < out->n_shorthands; i++)
        is_second = is_second || (!strncmp(out->shorthands[i], key, strlen(key)) &&
                                  out->shorthands[i][strlen(key)] == '=');
    if (is_second || out->n_shorthands == n || strlen(value) > (is_list ? 96 : 24))
        return tsr_fail(TSR_ECONFIG, "%s: found %s; allowed: a %s, once", o->name, value,
                        is_list ? "list" : "number");
    char *set = out->shorthands[out->n_shorthands++];
    snprintf(set, sizeof out->shorthands[0], is_list ? "%s=[%s]" : "%s=%s", key, value);
    return add_set(set, out);
}

static tsr_status take(const struct option *o, const char *value, struct tsr_args *out)
{
    void *at = (char *)out + o->at;
    out->has_gpu |= o->id == TSR_OPT_GPU;
    out->has_rank |= o->id == TSR_OPT_RANK;
    if (o->id == TSR_OPT_SET)
        return add_set(value, out);
    if (key_of(o->id))
        return take_shorthand(o, value, out);
    if (o->max)
        return number(o->name, value, o->min, o->max, at);
    if (o->value)
        *(const char **)at = value;
    else
        *(bool *)at = true;
    return TSR_OK;
}

/* "--jobs=3", "--jobs", "-j": the option and the value that stands in the same word, if any. */
static const struct option *match(const struct tsr_usage *usage, const char *arg,
                                  const char **value)
{
    *value = NULL;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const struct option *o = &options[i];
        size_t n = strlen(o->name);
        if (!(usage->options & o->id))
            continue;
        if (!strcmp(arg, o->name))
            return o;
        if (o->value && !strncmp(arg, o->name, n) && arg[n] == '=') {
            *value = arg + n + 1;
            return o;
        }
        if (o->letter && arg[0] == '-' && arg[1] == o->letter) {
            *value = arg[2] ? arg + 2 : NULL;
            return o;
        }
    }
    return NULL;
}

static void take_file(const char *arg, struct tsr_args *out)
{
    if (out->n_files < TSR_MAX_FILES)
        out->files[out->n_files] = arg;
    out->n_files++;
}

/* Whether there may be many is known when all options are. */
static tsr_status check_files(const struct tsr_usage *usage, struct tsr_args *out)
{
    bool two = usage->options & TSR_OPT_SECOND_FILE;
    size_t most = out->merge ? TSR_MAX_FILES : two ? 2 : 1;
    if (out->n_files > TSR_MAX_FILES)
        return tsr_fail(TSR_ECONFIG, "%s: found %zu files; allowed: up to %d", usage->name,
                        out->n_files, TSR_MAX_FILES);
    if (out->n_files > most)
        return tsr_fail(TSR_ECONFIG, "%s: found a %s file, %s; allowed: %s", usage->name,
                        two ? "third" : "second", out->files[most], two ? "two" : "one");
    out->file = out->n_files ? out->files[0] : NULL;
    out->second_file = two && out->n_files > 1 ? out->files[1] : NULL;
    return TSR_OK;
}

tsr_status tsr_args_parse(const struct tsr_usage *usage, int argc, char **argv,
                          struct tsr_args *out, bool *help)
{
    bool only_files = false;
    memset(out, 0, sizeof(*out));
    out->argv = argv;
    out->jobs = 2;
    out->top = 5;
    *help = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = NULL;
        if (!only_files && !strcmp(arg, "--")) {
            only_files = true;
            continue;
        }
        if (only_files || arg[0] != '-' || !arg[1]) {
            take_file(arg, out);
            continue;
        }
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            *help = true;
            return TSR_OK;
        }
        const struct option *option = match(usage, arg, &value);
        if (!option)
            return unknown_option(usage, arg);
        if (option->value && !value) {
            if (i + 1 == argc)
                return tsr_fail(TSR_ECONFIG, "%s: option %s has no value; allowed: %s %s",
                                usage->name, option->name, option->name, option->value);
            value = argv[++i];
        }
        TSR_TRY(take(option, value, out));
        if (!second_of(option))
            continue;
        if (i + 1 == argc)
            return tsr_fail(TSR_ECONFIG, "%s: option %s has no %s; allowed: %s %s %s", usage->name,
                            option->name, second_of(option), option->name, option->value,
                            second_of(option));
        ((const char **)((char *)out + option->at))[1] = argv[++i];
    }
    return check_files(usage, out);
}

tsr_status tsr_args_need_file(const struct tsr_usage *usage, const struct tsr_args *args)
{
    if (args->file)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s: no file given; allowed: tessera %s %s", usage->name,
                    usage->name, usage->synopsis);
}

tsr_status tsr_args_format(struct tsr_args *args, const char *const *allowed)
{
    char words[128];
    if (!args->format)
        args->format = allowed[0];
    for (size_t i = 0; allowed[i]; i++)
        if (!strcmp(args->format, allowed[i]))
            return TSR_OK;
    tsr_join_words(allowed, words, sizeof words);
    return tsr_fail(TSR_ECONFIG, "--format: found %s; allowed: %s", args->format, words);
}

bool tsr_usage_option(const struct tsr_usage *usage, size_t i, struct tsr_option_words *out)
{
    for (size_t k = 0; k < N_OPTIONS; k++) {
        const struct option *o = &options[k];
        if (!(usage->options & o->id) || i-- > 0)
            continue;
        *out = (struct tsr_option_words){o->name, o->letter, o->value, second_of(o), o->help};
        return true;
    }
    return false;
}

/* Writes a text whose paragraphs become lines, which the page breaks where it is as wide as that.
 * Lines that begin with blanks stay lines. */
static void put_paragraphs(FILE *out, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        bool plain = n > 0 && text[0] != ' ';
        (void)fwrite(text, 1, n, out);
        text += n;
        if (*text == '\n')
            text++;
        fputc(plain && *text && !strchr(" \n", *text) ? ' ' : '\n', out);
    }
}

void tsr_usage_print(FILE *out, const struct tsr_usage *usage)
{
    fprintf(out, "tessera %s %s\n\n", usage->name, usage->synopsis);
    put_paragraphs(out, usage->text);
    if (usage->options)
        fprintf(out, "\nOptions\n");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const struct option *o = &options[i];
        char left[64];
        if (!(usage->options & o->id))
            continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", o->name, o->value ? " " : "",
                 o->value ? o->value : "", second_of(o) ? " " : "",
                 second_of(o) ? second_of(o) : "");
        fprintf(out, "  %c%c%c %-22s %s%s%s\n", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                o->letter ? ',' : ' ', left, o->help, o->id == TSR_OPT_FORMAT ? ": " : "",
                o->id == TSR_OPT_FORMAT ? usage->formats : "");
    }
    if (usage->options)
        fprintf(out, "  -h, %-22s %s\n", "--help", "this text");
}
