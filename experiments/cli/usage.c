/* usage.c: what the subcommands say about themselves. */
#include <string.h>

#include "args.h"

const struct tsr_usage tsr_usages[] = {
    {"compare", "simulate every strategy of an experiment and compare them",
     "FILE [--out DIR] [options]",
     TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_OUT | TSR_OPT_ONLY |
         TSR_OPT_JOBS,
     "md, csv or json (default md)",
     "Simulates each strategy of the experiment file until its step repeats itself, and prints a\n"
     "row each: step time, tokens per second, MFU, peak memory against the card, exposed\n"
     "communication, bytes sent. With --out: summary.csv and summary.json, and per strategy a\n"
     "memory timeline, a stream timeline, a Perfetto trace and pictures.\n"
     "\n"
     "Exit status: 0 also when strategies do not fit (the table says so), 1 the machine failed,\n"
     "2 a mistake in the file or the options.\n"
     "\n"
     "Examples\n"
     "  tessera compare experiments/flagship/dgx-h100-8.yaml --out out/dgx\n"
     "  tessera compare FILE --only fsdp,ddp --set batch=2 --format csv\n"
     "  tessera compare FILE --set model=qwen2.5-7b --set cluster=dgx-a100-16 --print-config"},
    {"sim", "simulate one strategy", "FILE --strategy NAME [--out DIR] [options]",
     TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_OUT | TSR_OPT_STRATEGY,
     "md, csv or json (default md)",
     "As compare, for one strategy. Exit status 3 if it does not fit on the card.\n"
     "\n"
     "Examples\n"
     "  tessera sim experiments/flagship/dgx-h100-8.yaml --strategy fsdp\n"
     "  tessera sim FILE --strategy fsdp --set seq=8192 --out out/long"},
    {"run", "run one strategy: simulated, on the host, or on GPUs",
     "FILE --strategy NAME --on sim|host|cuda [options]",
     TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_OUT | TSR_OPT_STRATEGY |
         TSR_OPT_ON,
     "md, csv or json (default md)",
     "The same file and strategy on another executor. --on sim is `tessera sim`; host and cuda\n"
     "come with a later version.\n"
     "\n"
     "Example\n"
     "  tessera run experiments/flagship/dgx-h100-8.yaml --strategy fsdp --on sim"},
    {"inspect", "show model, groups, layout and cluster", "FILE [options]",
     TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_ONLY | TSR_OPT_STATES,
     "text or json (default text)",
     "Shows what an experiment stands for, without simulating: exact parameter counts, the groups\n"
     "and shard sizes of each strategy, the cluster and its links (? where a value is unknown).\n"
     "FILE may also be a Hugging Face config.json (mixture-of-experts models are counted too), a\n"
     "module tree, or a cluster or node file. With --states: the engine's state machines.\n"
     "\n"
     "Examples\n"
     "  tessera inspect --states | dot -Tsvg -o states.svg\n"
     "  tessera inspect experiments/flagship/dgx-h100-8.yaml --only fsdp\n"
     "  tessera inspect experiments/models/deepseek-v3.json"},
    {"program", "print the step program of one rank",
     "FILE --strategy NAME [--iteration I] [--rank R]",
     TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_STRATEGY | TSR_OPT_ITERATION | TSR_OPT_RANK, "",
     "Prints every instruction that an iteration of one rank gives to an executor, in the order\n"
     "of issue, and the two hashes: of the program, and of the addresses.\n"
     "\n"
     "Example\n"
     "  tessera program experiments/flagship/dgx-h100-8.yaml --strategy fsdp --iteration 0"},
    {"trace", "what the engine decides in a golden scenario", "SCENARIO.json [-o RESULT.json]",
     TSR_OPT_OUT, "",
     "Runs a recorded scenario (tests/golden/scenarios) through the engine and writes what came "
     "out\n"
     "in the format of tests/golden/results: layout, events, stream events and process groups\n"
     "(train), the error (error), the layout (layout, tp_layout), buckets (ddp, bucket), or the\n"
     "chunks of the older tensor-parallel extension (chunk).\n"
     "\n"
     "Example\n"
     "  tessera trace tests/golden/scenarios/raf-default-w2.json -o out.json"},
    {"plan", "find the fastest strategies that fit, or the largest batch, seq or model",
     "FILE [--strategy NAME] [--max batch|seq|layers] [options]",
     TSR_OPT_SET | TSR_OPT_FORMAT | TSR_OPT_OUT | TSR_OPT_STRATEGY | TSR_OPT_JOBS | TSR_OPT_TOP |
         TSR_OPT_MAX | TSR_OPT_EXHAUSTIVE,
     "md, csv or json (default md)",
     "Tries every combination of some settings on top of one strategy. Prints the N fastest that\n"
     "fit the memory budget (--top) and the Pareto front of time per token and peak memory, each\n"
     "with the command that repeats it. `plan: {budget_gib: N, space: {KEY: [values]}}` in the "
     "file\n"
     "says what is tried and what may be used; without it: a default space, and the card's usable\n"
     "memory.\n"
     "What cannot fit is not emitted and what cannot win is not simulated; nothing is lost by "
     "that\n"
     "(--exhaustive does without). With --max: the largest value that fits. With --out: plan.csv,\n"
     "summary.json and a picture. experiments/PLAN.md tells more.\n"
     "\n"
     "Exit status: 3 if nothing fits.\n"
     "\n"
     "Examples\n"
     "  tessera plan experiments/flagship/dgx-h100-8.yaml --out out/plan\n"
     "  tessera plan FILE --strategy fsdp --set 'plan.space={batch: [1, 2], wrap: [block, root]}'\n"
     "  tessera plan FILE --strategy fsdp --set plan.budget_gib=60 --top 3\n"
     "  tessera plan FILE --strategy fsdp --max seq"},
    {NULL, NULL, NULL, 0, NULL, NULL}};

const struct tsr_usage *tsr_usage_find(const char *name)
{
    for (const struct tsr_usage *u = tsr_usages; u->name; u++)
        if (!strcmp(u->name, name))
            return u;
    return NULL;
}
