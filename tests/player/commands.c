/* commands.c: what a build with tests adds to the program: recorded scenarios as files of `trace`,
 * `memory` and `check`. Texts stand as they are printed.
 */
#include "experiments/cli/more.h"

#include "tests/player/player.h"

/* clang-format off */
const struct tsr_command tsr_more_commands[] = {
    {.run = tsr_player_trace, .place = 16, .group = TSR_GROUP_MORE, .usage = {
         .name = "trace",
         .line = "what the engine decides in a golden scenario",
         .synopsis = "SCENARIO.json [-o RESULT.json]",
         .options = TSR_OPT_OUT_FILE | TSR_OPT_EXECUTOR,
         .formats = "",
         .text =
         "Runs a recorded scenario (tests/golden/scenarios) through the engine and writes what came out\n"
         "in the format of tests/golden/results: layout, events, stream events and process groups\n"
         "(train), the error (error), the layout (layout, tp_layout), buckets (ddp, bucket), or the\n"
         "chunks of the older tensor-parallel extension (chunk).\n"
         "\n"
         "With --executor host every rank is a thread that computes: the result also has losses,\n"
         "norms of gradients and, in a file beside it, the parameters after the last step.\n"
         "\n"
         "Example\n"
         "  tessera trace tests/golden/scenarios/raf-default-w2.json -o out.json"}},

    {.run = tsr_player_memory, .place = 15, .group = TSR_GROUP_MORE, .usage = {
         .name = "memory",
         .line = "what a recorded memory scenario takes",
         .synopsis = "SCENARIO.json [-o RESULT.json]",
         .options = TSR_OPT_OUT_FILE | TSR_OPT_TIMELINE | TSR_OPT_TRACE | TSR_OPT_STRATEGY |
                    TSR_OPT_RANK | TSR_OPT_SET,
         .formats = "",
         .text =
         "Predicts what PyTorch's allocator holds in a memory scenario (tests/golden-memory): its\n"
         "figures by phase, live bytes by category at every hook, and with --timeline every allocation\n"
         "and free with its address, in the format of the recordings. SCENARIO.json is a scenario, or a\n"
         "recording that has one. Of a scenario whose model is a Python file (tests/golden-bridge)\n"
         "--trace names the trace of that model.\n"
         "\n"
         "With --strategy the file is an experiment: the figures by phase of a rank (--rank) of that\n"
         "strategy in iterations 0 and 1, and what a run beside it has to bring.\n"
         "\n"
         "Exit status: 3 if the scenario's device is too small; the line says what asked for how much,\n"
         "what was free, and what would have fitted.\n"
         "\n"
         "Example\n"
         "  tessera memory tests/golden-memory/tiny-base.json -o out.json --timeline events.json"}},

    {.run = tsr_player_check, .place = 10, .group = TSR_GROUP_TRUST, .usage = {
         .name = "check",
         .line = "look for races, leaks, deadlocks and ranks that differ",
         .synopsis = "FILE|SCENARIO.json [--strategy NAME] [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_STRATEGY,
         .formats = "",
         .text =
         TSR_HELP_CHECK
         "collectives that differ between ranks, deadlocks. SCENARIO.json is a scenario as trace and\n"
         "memory take it. engine/check/CHECKER.md has the rules, and what mutated programs showed.\n"
         "\n"
         TSR_HELP_CHECK_STATUS
         "Examples\n"
         "  tessera check experiments/flagship/dgx-h100-8.yaml\n"
         "  tessera check FILE --strategy fsdp --set accumulation.steps=4\n"
         "  tessera check tests/golden/scenarios/raf-default-w2.json"}},

    {.run = NULL}};
