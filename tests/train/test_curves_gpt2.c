/* test_curves_gpt2.c: a small GPT-2 learns here as it does in transformers, at every world size and
 * with every strategy. With --all, each strategy of tests/oracle/train/gpt2.yaml in 40 and in 200
 * steps.
 */
#include "tests/train/curves_testing.h"

static const struct curve_run runs[] = {
    /* Sums over four ranks' gradients, each reduced once. */
    {"fsdp", 1, true},
    {"true", 1, false},
    {"false", 1, true},
    {"int2", 1, true},
    {"root", 1, false},
    {"embed", 1, false},
    {"prefetch", 1, false},
    {"two-level", 1, false},
    {"expandable", 1, false},
    {"foreach", 1, false},
    {"loop", 1, false},
    {"full", 1, true},
    {"second", 1, false},
    {"outside", 1, false},
    {"selective", 1, false},
    {"math", 8, false},
    {"eager", 8, true},
    {"efficient", 1, false},
    {"hsdp", 0, true},
    {"replicate", 2, false},
    {"ddp", 2, true},
    {"ddp-unused", 2, false},
    {"ddp-static", 2, false},
    {"offload", 1, true},
    {"pinned", 1, false},
    {"accumulate", 0, false},
    {"no-reduce", 4, true},
    {"no-reshard", 4, false},
    {"no-all-reduce", 0, false},
    {"chunked-loss", 0, false},
    {"fused", 0, true},
    {"fused-2", 0, false},
    {"names", 0, true},
    /* Other numbers of ranks */
    {"fsdp-2", 5, true},
    {"false-2", 5, false},
    {"full-2", 5, false},
    {"hsdp-2x1", 0, false},
    {"replicate-2", 6, false},
    {"ddp-2", 6, false},
    {"offload-2", 5, false},
    {"fsdp-1", 7, true},
    {"full-1", 7, false},
    {"accumulate-1", 0, false},
    /* Mixed precision */
    {"bf16", CURVE_BF16, true},
    {"bf16-1", CURVE_BF16, true},
};
enum { N_RUNS = sizeof runs / sizeof *runs };

int main(int argc, char **argv)
{
    return curve_main("gpt2", runs, N_RUNS, argc, argv);
}
