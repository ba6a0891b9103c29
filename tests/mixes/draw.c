/* draw.c: what a mix is made of (mix.h). A value is drawn so that the keys go together; what the
 * program refuses all the same is a finding of the test.
 */
#include "tests/mixes/mix.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct draw {
    struct mix *m;
    uint64_t random;
    bool llama, tree, gpt2, titan, ties, one_group;
    bool plain, half; /* f32; f16 */
    uint32_t inner;   /* columns of the Llama family's MLP */
    uint32_t layers, heads, kv_heads;
    uint32_t tp, shards, replicas;
    uint32_t micros, batch, seq;
    bool api_shard, api_replicate, api_ddp, api_fsdp1, fused, compiled;
    bool offload, clip, mirror, frozen, dampens;
};

/* splitmix64 */
static uint64_t next(struct draw *d)
{
    uint64_t x = d->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* from .. to */
static uint32_t in(struct draw *d, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(next(d) % (to - from + 1));
}

static bool chance(struct draw *d, uint32_t percent)
{
    return next(d) % 100 < percent;
}

static uint32_t divisor(struct draw *d, uint32_t of)
{
    uint32_t n;
    do
        n = in(d, 1, of);
    while (of % n);
    return n;
}

static void append(char *text, const char *fmt, va_list args)
{
    size_t n = strlen(text);
    int more = vsnprintf(text + n, MIX_TEXT - n, fmt, args);
    if (more < 0 || (size_t)more >= MIX_TEXT - n)
        abort();
}

__attribute__((format(printf, 2, 3))) static void say(char *text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append(text, fmt, args);
    va_end(args);
}

#define ONE_OF(d, ...)      \
    ((const char *const[]){ \
        __VA_ARGS__})[in((d), 0, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *) - 1)]

static const char *truth(bool is)
{
    return is ? "true" : "false";
}

/* ---- models ---------------------------------------------------------------------------------- */

static void llama(struct draw *d)
{
    struct mix *m = d->m;
    d->heads = in(d, 1, 7);
    d->kv_heads = divisor(d, d->heads);
    d->inner = chance(d, 40) ? 6 * in(d, 1, 3) : in(d, 1, 19);
    d->ties = chance(d, 25);
    snprintf(m->model_name, sizeof m->model_name, "model.json");
    say(m->model,
        "{\"model_type\": \"llama\", \"hidden_size\": %u, \"intermediate_size\": %u, "
        "\"num_hidden_layers\": %u, \"num_attention_heads\": %u, \"num_key_value_heads\": %u, "
        "\"head_dim\": %u, \"vocab_size\": %u, \"max_position_embeddings\": 32, "
        "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": %s, "
        "\"hidden_act\": \"silu\"}\n",
        in(d, 1, 17), d->inner, d->layers, d->heads, d->kv_heads, 2 * in(d, 1, 4), m->vocab,
        truth(d->ties));
}

static void gpt2(struct draw *d)
{
    struct mix *m = d->m;
    d->heads = d->kv_heads = in(d, 1, 7);
    d->ties = true;
    snprintf(m->model_name, sizeof m->model_name, "model.json");
    say(m->model,
        "{\"model_type\": \"gpt2\", \"n_embd\": %u, \"n_layer\": %u, \"n_head\": %u, "
        "\"n_positions\": %u, \"vocab_size\": %u, \"activation_function\": \"gelu_new\", "
        "\"layer_norm_epsilon\": 1e-05}\n",
        d->heads * in(d, 1, 5), d->layers, d->heads, in(d, 8, 16), m->vocab);
}

static void tree_block(struct draw *d, uint32_t width, uint32_t i)
{
    char *text = d->m->model;
    uint32_t inner = in(d, 1, 13);
    const char *norm = ONE_OF(d, "rmsnorm", "layernorm"), *act = ONE_OF(d, "silu", "gelu", "relu");
    bool attends = chance(d, 40);
    say(text, "      - name: \"%u\"\n        type: seq\n        children:\n", i);
    if (attends) {
        uint32_t heads = in(d, 1, 5), kv = divisor(d, heads), dim = in(d, 1, 5);
        say(text,
            "          - name: attention\n            type: seq\n            residual: true\n"
            "            children:\n"
            "              - {name: qkv, type: linear, in: %u, out: %u, bias: %s}\n"
            "              - {name: core, type: attention, heads: %u, kv_heads: %u, head_dim: %u}\n"
            "              - {name: out, type: linear, in: %u, out: %u, bias: %s}\n",
            width, (heads + 2 * kv) * dim, truth(chance(d, 50)), heads, kv, dim, heads * dim, width,
            truth(chance(d, 50)));
    }
    say(text,
        "          - name: mlp\n            type: seq\n            residual: %s\n"
        "            children:\n",
        truth(chance(d, 80)));
    if (chance(d, 70))
        say(text, "              - {name: norm, type: %s, dim: %u}\n", norm, width);
    if (chance(d, 20))
        say(text, "              - {name: scale, type: scale, shape: [%u, %u]}\n", in(d, 1, 3),
            in(d, 1, 3));
    say(text,
        "              - {name: up, type: linear, in: %u, out: %u, bias: %s}\n"
        "              - {name: act, type: %s}\n"
        "              - {name: down, type: linear, in: %u, out: %u, bias: %s}\n",
        width, inner, truth(chance(d, 60)), act, inner, width, truth(chance(d, 60)));
}

static void tree(struct draw *d)
{
    struct mix *m = d->m;
    uint32_t width = in(d, 1, 13);
    d->ties = chance(d, 25);
    d->frozen = !d->api_fsdp1 && chance(d, 20);
    snprintf(m->model_name, sizeof m->model_name, "tree.yaml");
    say(m->model, "tokens: %u\nloss: ce\n", m->vocab);
    if (d->ties)
        say(m->model, "tie: [[head.weight, embed.weight]]\n");
    if (d->frozen)
        say(m->model, "frozen: [\"%s\"]\n",
            ONE_OF(d, "**.up.weight", "layers.0.mlp.down.weight", "norm.weight"));
    say(m->model,
        "modules:\n  - {name: embed, type: embedding, num: %u, dim: %u}\n"
        "  - name: layers\n    type: list\n    children:\n",
        m->vocab, width);
    for (uint32_t i = 0; i < d->layers; i++)
        tree_block(d, width, i);
    say(m->model,
        "  - {name: norm, type: rmsnorm, dim: %u}\n"
        "  - {name: head, type: linear, in: %u, out: %u, bias: false}\n",
        width, width, m->vocab);
}

static void draw_model(struct draw *d)
{
    uint32_t k = in(d, 0, 9);
    d->layers = in(d, 1, 3);
    d->m->vocab = chance(d, 40) ? 6 * in(d, 1, 5) : in(d, 2, 30);
    d->llama = k < 4;
    d->gpt2 = k >= 4 && k < 6;
    d->tree = k >= 6;
    if (d->llama)
        llama(d);
    else if (d->gpt2)
        gpt2(d);
    else
        tree(d);
}

/* ---- precision ------------------------------------------------------------------------------- */

/* Of ten mixes six are in f64: there a difference is a defect. */
static void draw_precision(struct draw *d)
{
    uint32_t k = in(d, 0, 99);
    struct mix *m = d->m;
    m->exact = k < 60 && !d->compiled && !d->api_fsdp1;
    d->plain = k < 75;
    d->half = !d->compiled && k >= 92;
    d->one_group = chance(d, 25);
    m->tolerance = m->exact ? 1e-12 : d->plain ? 1e-4 : d->half ? 1e-2 : 6e-2;
}

/* ---- what both have -------------------------------------------------------------------------- */

static void draw_steps(struct draw *d)
{
    d->batch = in(d, 1, 3);
    d->seq = chance(d, 30) ? 6 : in(d, 1, 8);
    d->micros = chance(d, 60) ? 1 : in(d, 2, 3);
    d->clip = chance(d, 50);
}

/* Keys of the model and the optimizer, which one rank and many have alike. */
static void say_common(struct draw *d, const char *folder, char *both)
{
    static const char *const rates[] = {"0.001", "0.01", "0.05"};
    say(both, "model: {%s: \"%s/%s\"", d->tree ? "tree" : "name", folder, d->m->model_name);
    if (d->tree)
        say(both, ", blocks: \"layers.*\"");
    if (d->llama && chance(d, 20))
        say(both, ", norm: hand");
    d->titan = !d->tree && chance(d, 20);
    if (d->titan)
        say(both, ", names: torchtitan");
    say(both, "}\nseq: %u\nclip: %s\n", d->seq, truth(d->clip));
    d->dampens = chance(d, 30);
    say(both,
        "train: {lr: %s, weight_decay: %s, eps: 1.0e-6, max_norm: %s, momentum: 0.8, decay: %s, "
        "dampening: %s}\n",
        rates[d->m->exact ? in(d, 0, 2) : 0], ONE_OF(d, "0", "0.1"), ONE_OF(d, "0.05", "1", "1000"),
        ONE_OF(d, "all", "matrices"), d->dampens ? "0.3" : "0");
}

/* ---- the strategy ---------------------------------------------------------------------------- */

static void draw_world(struct draw *d)
{
    struct mix *m = d->m;
    m->world = in(d, 1, MIX_RANKS);
    d->tp = 1;
    bool can_cut = d->llama && !d->api_ddp && !d->api_fsdp1;
    if (can_cut && chance(d, 25) && !d->ties) /* it would untie them */
        for (uint32_t n = 3; n >= 2; n--)
            if (m->world % n == 0 && d->kv_heads % n == 0 && d->inner % n == 0 &&
                m->vocab % n == 0 && d->seq % n == 0)
                d->tp = n;
    m->data_ranks = m->world / d->tp;
    d->replicas = 1;
    d->shards = m->data_ranks;
    if (d->api_shard && chance(d, 35)) {
        d->replicas = divisor(d, m->data_ranks);
        d->shards = m->data_ranks / d->replicas;
    }
    if (d->api_replicate || d->api_ddp)
        d->shards = 1;
}

/* Nodes of eight GPUs, or of so few that most worlds cross them. */
static void say_cluster(struct draw *d, char *s)
{
    if (chance(d, 50))
        say(s, "cluster: dgx-h100-1\nnodes: 2\n");
    else
        say(s,
            "cluster: \"%s/experiments/clusters/platform-leaf-spine.xml\"\n"
            "gpu: h100-sxm5-80g\ngpus_per_node: %u\n",
            TSR_SOURCE_DIR, in(d, 2, 4));
}

static void say_api(struct draw *d, char *s)
{
    say(s, "world: %u\napi: %s\n", d->m->world,
        d->api_shard       ? "fully_shard"
        : d->api_replicate ? "replicate"
        : d->api_ddp       ? "ddp"
                           : "fsdp1");
    if (d->tp > 1)
        say(s, "tp: %u\nsequence_parallel: %s\n", d->tp, truth(chance(d, 50)));
    if (d->api_shard && d->replicas > 1)
        say(s, "mesh: {replicate: %u, shard: %u}\n", d->replicas, d->shards);
}

static void say_precision(struct draw *d, char *s)
{
    if (d->m->exact) {
        say(s, "precision: {master: f64, param: none, reduce: none}\n");
    } else if (d->plain) {
        say(s, "precision: {param: none, reduce: none}\n");
    } else {
        bool half = d->half;
        say(s, "precision: {param: %s, reduce: %s, output: %s, cast_inputs: %s}\n",
            half ? "f16" : "bf16", ONE_OF(d, "f32", half ? "f16" : "bf16"),
            d->api_fsdp1 || d->api_ddp || !d->one_group || chance(d, 50) ? "none" : "f32",
            truth(d->api_ddp || d->api_fsdp1 || chance(d, 80)));
    }
}

/* What f16 and bf16 round is no matter of ranks: the one rank computes in them, too, and reduces
 * in f32. */
static void say_reference_precision(struct draw *d, char *s)
{
    if (d->m->exact || d->plain)
        say(s, "precision: {master: f64, param: none, reduce: none}\n");
    else
        say(s, "precision: {param: %s, reduce: f32}\n", d->half ? "f16" : "bf16");
}

static void say_wrap(struct draw *d, char *s)
{
    static const char *const reshards[] = {"null", "true", "false"};
    if (d->api_ddp) {
        say(s, "ddp: {bucket_cap_mb: %s, find_unused: %s, gradient_as_bucket_view: %s}\n",
            ONE_OF(d, "0", "0.0001", "0.001"), truth(chance(d, 30)), truth(chance(d, 50)));
        return;
    }
    uint32_t k = d->one_group ? 2 : in(d, 0, 3);
    if (k == 1 && d->ties && d->api_fsdp1)
        k = 0;
    if (k == 3 && d->llama && !d->api_fsdp1 && !d->compiled)
        say(s, "wrap: [{modules: [\"**.%s\"], reshard_after_forward: %s}, {modules: [\"\"]}]\n",
            d->titan ? "feed_forward" : "mlp", reshards[in(d, 0, 2)]);
    else
        say(s, "wrap: %s\n", k == 0 ? "block" : k == 1 ? "block_embed_head" : "root");
    if (!d->api_replicate && chance(d, 70)) {
        uint32_t of = in(d, 0, 3);
        if (of == 3 && !d->api_fsdp1 && d->shards > 1)
            say(s, "reshard_after_forward: %u\n", divisor(d, d->shards));
        else
            say(s, "reshard_after_forward: %s\n", reshards[of % 3]);
    }
    if (d->api_fsdp1) {
        say(s, "fsdp1: {backward_prefetch: %s, forward_prefetch: %s, limit_all_gathers: %s}\n",
            ONE_OF(d, "pre", "post", "none"), truth(chance(d, 50)), truth(chance(d, 50)));
        return;
    }
    if (!chance(d, 40))
        return;
    uint32_t backward = in(d, 0, 3), forward = in(d, 0, 3);
    say(s, "forward_prefetch: %u\n", forward);
    if (d->api_shard)
        say(s, "backward_prefetch: %u\n", backward);
}

static void say_options(struct draw *d, char *s)
{
    bool shards = d->api_shard || d->api_replicate;
    if (shards && chance(d, 35)) {
        d->offload = true;
        say(s, "offload: %s\n", ONE_OF(d, "cpu", "cpu_pinned"));
    }
    if (d->api_shard && chance(d, 15))
        say(s, "separate_reduce_scatter_group: true\n");
    if (shards && !d->offload && chance(d, 25)) {
        d->mirror = true;
        say(s, "mirror: true\n");
    }
    if (shards && !d->offload && d->tp == 1 && chance(d, 25) && d->api_shard)
        say(s, "direct_gather: true\n");
    if (d->api_shard && chance(d, 15) && d->tp == 1 && !d->mirror)
        say(s, "two_level_gather: true\n");
}

static void say_optimizer(struct draw *d, char *s, char *reference)
{
    bool adam = chance(d, 60), momentum = chance(d, 70), maximize = chance(d, 20);
    bool nesterov = !adam && momentum && !d->dampens && chance(d, 50);
    const char *variant = ONE_OF(d, "foreach", "fused", "loop");
    bool folds =
        !d->m->exact && !d->offload && !d->api_ddp && !d->api_fsdp1 && adam && chance(d, 20);
    if (folds)
        variant = "fused";
    struct draw beside = *d; /* what is drawn after this stays as it was before AMSGrad */
    bool amsgrad = adam && chance(&beside, 20);
    say(s, "optimizer: {variant: %s, ", variant);
    for (int i = 0; i < 2; i++)
        say(i ? reference : s, "%sname: %s, nesterov: %s, maximize: %s}\n", i ? "optimizer: {" : "",
            amsgrad    ? "adamw, amsgrad: true"
            : adam     ? "adamw"
            : momentum ? "sgd, momentum: true"
                       : "sgd, momentum: false",
            truth(nesterov), truth(maximize));
    if (folds)
        say(s, "folded_scale: true\n");
}

static void say_activations(struct draw *d, char *s)
{
    uint32_t k = in(d, 0, 9);
    bool plain = !d->tree;
    if (plain && chance(d, 20) && !d->compiled) {
        d->fused = true;
        say(s, "dialect: fused\n");
    }
    if (d->compiled)
        say(s, "dialect: compile\n");
    if (k < 2) {
        const char *hooks = d->compiled ? "inside" : ONE_OF(d, "inside", "outside");
        bool has_hooks = d->api_shard || d->api_replicate;
        say(s, "checkpoint: {every: full, %s%s%searly_stop: %s}\n", has_hooks ? "hooks: " : "",
            has_hooks ? hooks : "", has_hooks ? ", " : "", truth(chance(d, 60)));
    }
    if (k == 2)
        say(s, "checkpoint: %u\n", in(d, 1, 3));
    else if (k == 3)
        say(s, "checkpoint: selective_op\n");
    if (plain && !d->compiled)
        say(s, "attention: %s\n", ONE_OF(d, "flash", "efficient", "math", "eager"));
    if (d->llama && chance(d, 15))
        say(s, "gqa_repeat: true\n");
    if (plain && d->tp == 1 && !d->compiled && chance(d, 15))
        say(s, "loss: {chunks: %u}\n", in(d, 1, d->batch * d->seq > 4 ? 4 : d->batch * d->seq));
}

static void say_steps(struct draw *d, char *s, char *reference)
{
    const char *mode = ONE_OF(d, "reduce_each", "no_reduce");
    if (d->api_shard && chance(d, 50))
        mode = d->replicas > 1 && chance(d, 50) ? "no_all_reduce" : "no_reduce_no_reshard";
    say(s, "batch: %u\naccumulation: {steps: %u", d->batch, d->micros);
    if (d->micros > 1)
        say(s, ", mode: %s", mode);
    say(s, "}\n");
    say(reference, "world: 1\nbatch: %u\naccumulation: {steps: %u}\n", d->batch * d->m->data_ranks,
        d->micros);
    say(s, "save: %s\n", ONE_OF(d, "sharded", "sharded_async"));
    if (chance(d, 10))
        say(s, "sync_each_step: %s\n", ONE_OF(d, "loss", "step"));
    if (chance(d, 10))
        say(s, "allocator: {expandable_segments: true}\n");
}

void mix_draw(uint64_t seed, const char *folder, struct mix *out)
{
    struct draw d = {.m = out, .random = seed * UINT64_C(0x2545f4914f6cdd1d) + 1};
    *out = (struct mix){.seed = seed};
    uint32_t api = in(&d, 0, 99);
    d.api_fsdp1 = api < 6;
    d.api_ddp = api >= 6 && api < 18;
    d.api_replicate = api >= 18 && api < 30;
    d.api_shard = api >= 30;
    d.compiled = !d.api_fsdp1 && chance(&d, 4);
    draw_model(&d);
    draw_steps(&d);
    out->simulated_only = d.api_fsdp1 || d.compiled;
    draw_precision(&d);
    draw_world(&d);
    if (d.compiled && d.tp > 1)
        d.compiled = out->simulated_only = false;
    say_common(&d, folder, out->strategy);
    say(out->reference, "%s", out->strategy);
    say_reference_precision(&d, out->reference);
    say_cluster(&d, out->strategy);
    say_api(&d, out->strategy);
    say_precision(&d, out->strategy);
    say_wrap(&d, out->strategy);
    say_options(&d, out->strategy);
    say_optimizer(&d, out->strategy, out->reference);
    say_activations(&d, out->strategy);
    say_steps(&d, out->strategy, out->reference);
}
