/* found.c: mixes that were wrong once, smaller than they were found (mix.h). */
#include <stdio.h>
#include <stdlib.h>

#include "tests/mixes/mix.h"

/* Two words wide, so that seven ranks have empty shards of almost everything. */
#define TREE                                                                                    \
    "tokens: 8\nloss: ce\n%smodules:\n  - {name: embed, type: embedding, num: 8, dim: 2}\n"     \
    "  - name: layers\n    type: list\n    children:\n      - name: \"0\"\n        type: seq\n" \
    "        residual: true\n        children:\n"                                               \
    "          - {name: up, type: linear, in: 2, out: 3}\n"                                     \
    "          - {name: act, type: gelu}\n"                                                     \
    "          - {name: down, type: linear, in: 3, out: 2, bias: false}\n"                      \
    "  - {name: head, type: linear, in: 2, out: 8, bias: false}\n"

#define F64  "precision: {master: f64, param: none, reduce: none}\n"
#define BF16 "precision: {param: bf16, reduce: none}\n"

static const struct {
    const char *what, *extra; /* extra: of the model */
    uint32_t world;
    double tolerance;
    const char *both, *strategy;
} found[] = {
    {"copies of empty shards to the host", "", 7, 1e-12, "clip: false\n",
     F64 "offload: cpu_pinned\n"},
    {"the norm of a rank whose shards are all empty, on the host", "", 9, 1e-12, "clip: true\n",
     F64 "offload: cpu\nwrap: root\n"},
    {"an all-gather that is not used reads what the optimizer on the host writes", "", 2, 1e-12, "",
     F64 "offload: cpu_pinned\nwrap: block_embed_head\nreshard_after_forward: false\n"},
    {"the optimizer takes a bucket's view in bf16 for an f32 gradient", "", 2, 6e-2, "",
     BF16 "api: ddp\nddp: {gradient_as_bucket_view: true}\n"},
    {"a frozen parameter beside mixed precision", "frozen: [layers.0.down.weight]\n", 2, 6e-2, "",
     BF16 "api: ddp\n"},
    {"the last of several reduced gradients replaces the sum of those before", "", 2, 6e-2,
     "clip: true\noptimizer: {name: sgd}\n", BF16 "api: ddp\n"},
};

bool mix_found(size_t i, const char *folder, struct mix *out)
{
    if (i >= sizeof found / sizeof *found)
        return false;
    *out = (struct mix){.seed = i + 1,
                        .world = found[i].world,
                        .data_ranks = found[i].world,
                        .vocab = 8,
                        .exact = found[i].tolerance < 1e-9,
                        .tolerance = found[i].tolerance,
                        .model_name = "tree.yaml",
                        .what = found[i].what};
    static const char common[] = "model: {tree: \"%s/tree.yaml\"}\nseq: 3\n"
                                 "train: {lr: 0.01, eps: 1.0e-6, max_norm: 0.5}\n%s";
    char both[1024];
    int n = snprintf(both, sizeof both, common, folder, found[i].both);
    snprintf(out->model, sizeof out->model, TREE, found[i].extra);
    snprintf(out->strategy, sizeof out->strategy,
             "%scluster: dgx-h100-1\nnodes: 2\nworld: %u\nbatch: 1\naccumulation: {steps: 3}\n%s",
             both, found[i].world, found[i].strategy);
    snprintf(out->reference, sizeof out->reference,
             "%s" F64 "world: 1\nbatch: %u\naccumulation: {steps: 3}\n", both, found[i].world);
    if (n < 0 || (size_t)n >= sizeof both)
        abort();
    return true;
}
