/* families.c: the families of programs that are mutated (families.h). */
#include "tests/check/study/families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layout/tensor_parallel.h"

static void ok(tsr_status status)
{
    if (status == TSR_OK)
        return;
    fprintf(stderr, "%s: %s\n", tsr_status_class(status), tsr_error_text());
    abort();
}

enum api { API_SHARD, API_REPLICATE, API_DDP };

struct family {
    const char *name;
    uint32_t shape[2]; /* of the mesh; [1] 0: one dimension */
    const char *dims[2];
    enum api api;
    bool llama, no_root; /* no_root: layers are roots of their own */
    enum tsr_version version;
    struct tsr_wrap_options options, root; /* of layers and root */
    struct tsr_step_config step;
    void (*before)(struct tsr_engine *e);                         /* wrapping */
    void (*after)(struct recorded_rank *r, struct tsr_engine *e); /* wrapping */
    void (*iterate)(struct tsr_engine *e, uint32_t iteration);    /* NULL: a step */
};

/* ---- models ---------------------------------------------------------------------------------- */

enum { LAYERS = 3, WIDTH = 8, WORDS = 16 };

static struct tsr_module *module(struct tsr_engine *e, const char *fqn)
{
    struct tsr_module *m = tsr_module_find(e, fqn);
    if (!m)
        abort();
    return m;
}

static struct tsr_module *layer(struct tsr_engine *e, const char *prefix, unsigned i)
{
    char fqn[48];
    snprintf(fqn, sizeof fqn, "%slayers.%u", prefix, i);
    return module(e, fqn);
}

/* emb, layers.I = x + down(silu(up(norm(x)))), out */
static void tree(struct tsr_engine *e)
{
    static const char *const digits[LAYERS] = {"0", "1", "2"};
    struct tsr_tree_node body[4] = {
        {.name = "norm", .type = TSR_TREE_RMSNORM, .in = WIDTH},
        {.name = "up", .type = TSR_TREE_LINEAR, .in = WIDTH, .out = 12, .bias = true},
        {.name = "act", .type = TSR_TREE_SILU},
        {.name = "down", .type = TSR_TREE_LINEAR, .in = 12, .out = WIDTH}};
    struct tsr_tree_node layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (struct tsr_tree_node){.name = digits[i],
                                           .type = TSR_TREE_SEQ,
                                           .residual = true,
                                           .n_children = 4,
                                           .children = body};
    struct tsr_tree_node top[] = {
        {.name = "emb", .type = TSR_TREE_EMBEDDING, .in = WORDS, .out = WIDTH},
        {.name = "layers", .type = TSR_TREE_SEQ, .n_children = LAYERS, .children = layers},
        {.name = "out", .type = TSR_TREE_LINEAR, .in = WIDTH, .out = WORDS}};
    struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 3, .children = top},
        .tokens = WORDS};
    ok(tsr_model_tree(e, &config));
}

static void llama(struct tsr_engine *e)
{
    const struct tsr_llama_config config = {.hidden_size = 32,
                                            .intermediate_size = 64,
                                            .n_layers = LAYERS - 1,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .head_dim = 8,
                                            .vocab_size = 64,
                                            .max_positions = 16};
    ok(tsr_model_llama(e, &config));
}

static void wrap(const struct family *f, struct tsr_engine *e)
{
    struct tsr_module *root = tsr_module_root(e);
    const char *prefix = f->llama ? "model." : "";
    unsigned n = f->llama ? LAYERS - 1 : LAYERS;
    if (f->api == API_DDP) {
        ok(tsr_ddp(e, &(struct tsr_ddp_options){.bucket_cap_mb = 0.0005, .mp = f->options.mp}));
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        struct tsr_module *m = layer(e, prefix, i);
        if (f->api == API_REPLICATE)
            ok(tsr_replicate(e, &m, 1, &f->options));
        else
            ok(tsr_fully_shard(e, &m, 1, &f->options));
    }
    if (f->no_root)
        return;
    if (f->api == API_REPLICATE)
        ok(tsr_replicate(e, &root, 1, &f->root));
    else
        ok(tsr_fully_shard(e, &root, 1, &f->root));
}

/* ---- what families do besides wrapping ------------------------------------------------------- */

static void checkpoint_layers(struct tsr_engine *e)
{
    for (unsigned i = 0; i < LAYERS; i++)
        ok(tsr_checkpoint(e, layer(e, "", i), true, true));
}

static void checkpoint_inside(struct tsr_engine *e)
{
    for (unsigned i = 0; i < LAYERS; i++)
        ok(tsr_checkpoint(e, layer(e, "", i), false, true));
}

static void cut_tensors(struct tsr_engine *e)
{
    ok(tsr_tensor_parallel_model(e, "tp", true));
}

static void prefetch(struct recorded_rank *r, struct tsr_engine *e)
{
    (void)r;
    struct tsr_module *l[LAYERS] = {layer(e, "", 0), layer(e, "", 1), layer(e, "", 2)};
    struct tsr_module *last[] = {l[2], l[1]};
    ok(tsr_set_forward_prefetch(e, tsr_module_root(e), l, 2));
    ok(tsr_set_forward_prefetch(e, l[0], &l[1], 2));
    ok(tsr_set_backward_prefetch(e, tsr_module_root(e), last, 2));
    ok(tsr_set_backward_prefetch(e, l[2], &l[1], 1));
    ok(tsr_set_backward_prefetch(e, l[1], &l[0], 1));
}

/* Layer 0 fetches layer 2 in vain at the end of every backward. */
static void prefetch_wrong(struct recorded_rank *r, struct tsr_engine *e)
{
    (void)r;
    struct tsr_module *wrong = layer(e, "", 2);
    ok(tsr_set_backward_prefetch(e, layer(e, "", 0), &wrong, 1));
}

static void two_level(struct recorded_rank *r, struct tsr_engine *e)
{
    tsr_two_level_init(&r->two_level, 2);
    for (unsigned i = 0; i < LAYERS; i++)
        ok(tsr_set_custom_all_gather(e, layer(e, "", i), &r->two_level.comm));
}

static void scale(struct tsr_engine *e, struct tsr_tensor *buffer, void *user)
{
    (void)user;
    tsr_emit_user_op(e, buffer, "hook", 1);
}

static void hook_own_stream(struct recorded_rank *r, struct tsr_engine *e)
{
    (void)r;
    for (unsigned i = 0; i < LAYERS; i++)
        ok(tsr_set_all_reduce_hook(e, layer(e, "", i), scale, NULL, true));
}

static void unshard_async(struct recorded_rank *r, struct tsr_engine *e)
{
    (void)r;
    ok(tsr_set_unshard_async_op(e, tsr_module_root(e), true));
}

static void several_inputs(struct recorded_rank *r, struct tsr_engine *e)
{
    (void)r;
    ok(tsr_set_reduce_scatter_max_input_buffers(e, tsr_module_root(e), 2, true));
    ok(tsr_set_separate_reduce_scatter_group(e, tsr_module_root(e), true, true));
}

/* Layers are roots with one context; the last layer's backward is never the last: nothing waits for
 * its reduction but the slot of reduction inputs that it shares. */
static void share(struct recorded_rank *r, struct tsr_engine *e)
{
    (void)r;
    struct tsr_module *l[LAYERS] = {layer(e, "", 0), layer(e, "", 1), layer(e, "", 2)};
    ok(tsr_share_comm_ctx(e, l, LAYERS));
    ok(tsr_set_is_last_backward(e, l[0], false));
}

static void post_optim_event(struct tsr_engine *e, uint32_t iteration)
{
    ok(tsr_step_run(e, iteration));
    ok(tsr_set_post_optim_event(e, tsr_module_root(e)));
}

/* ---- the list -------------------------------------------------------------------------------- */

#define HALF                                          \
    {                                                 \
        .mp = {.param = TSR_BF16, .reduce = TSR_F32 } \
    }
#define SHARD       \
    {               \
        "shard", "" \
    }
#define HYBRID               \
    {                        \
        "replicate", "shard" \
    }

static const struct family families[] = {
    {.name = "fsdp", .shape = {2}, .dims = SHARD},
    {.name = "fsdp, bf16",
     .shape = {2},
     .dims = SHARD,
     .options.mp = {.param = TSR_BF16, .reduce = TSR_BF16},
     .root.mp = {.param = TSR_BF16, .reduce = TSR_BF16},
     .step.clip = true},
    {.name = "fsdp, reshard true",
     .shape = {2},
     .dims = SHARD,
     .options.reshard = TSR_RESHARD_TRUE,
     .root.reshard = TSR_RESHARD_TRUE},
    {.name = "fsdp, reshard false",
     .shape = {2},
     .dims = SHARD,
     .options.reshard = TSR_RESHARD_FALSE,
     .root.reshard = TSR_RESHARD_FALSE},
    {.name = "fsdp, reshard to 2 of 4",
     .shape = {4},
     .dims = SHARD,
     .options = {.reshard = TSR_RESHARD_INT, .reshard_int = 2}},
    {.name = "fsdp, 2.15, 2 inputs",
     .shape = {2},
     .dims = SHARD,
     .version = TSR_TORCH_2_15,
     .after = several_inputs},
    {.name = "hsdp", .shape = {2, 2}, .dims = HYBRID},
    {.name = "hsdp, bf16", .shape = {2, 2}, .dims = HYBRID, .options = HALF, .root = HALF},
    {.name = "hsdp, all-reduce at the end",
     .shape = {2, 2},
     .dims = HYBRID,
     .step = {.n_micro = 2, .accumulate = TSR_ACCUM_NO_ALL_REDUCE}},
    {.name = "replicate", .shape = {2}, .dims = {"replicate", ""}, .api = API_REPLICATE},
    {.name = "ddp", .shape = {2}, .dims = {"replicate", ""}, .api = API_DDP},
    {.name = "ddp, bf16",
     .shape = {2},
     .dims = {"replicate", ""},
     .api = API_DDP,
     .options.mp.param = TSR_BF16},
    {.name = "offload",
     .shape = {2},
     .dims = SHARD,
     .options.offload = TSR_OFFLOAD_CPU,
     .root.offload = TSR_OFFLOAD_CPU},
    {.name = "offload, pinned",
     .shape = {2},
     .dims = SHARD,
     .options.offload = TSR_OFFLOAD_CPU_PINNED,
     .root.offload = TSR_OFFLOAD_CPU_PINNED},
    {.name = "offload, pinned, 2 micro-batches",
     .shape = {2},
     .dims = SHARD,
     .options.offload = TSR_OFFLOAD_CPU_PINNED,
     .root.offload = TSR_OFFLOAD_CPU_PINNED,
     .step.n_micro = 2},
    {.name = "tensor parallel",
     .shape = {2, 2},
     .dims = {"shard", "tp"},
     .llama = true,
     .before = cut_tensors},
    {.name = "checkpoint outside", .shape = {2}, .dims = SHARD, .before = checkpoint_layers},
    {.name = "checkpoint inside", .shape = {2}, .dims = SHARD, .before = checkpoint_inside},
    {.name = "prefetch", .shape = {2}, .dims = SHARD, .after = prefetch},
    {.name = "prefetch of the wrong layer", .shape = {2}, .dims = SHARD, .after = prefetch_wrong},
    {.name = "own all-gather", .shape = {4}, .dims = SHARD, .after = two_level},
    {.name = "hook on its own stream", .shape = {2}, .dims = SHARD, .after = hook_own_stream},
    {.name = "unshard async", .shape = {2}, .dims = SHARD, .after = unshard_async},
    {.name = "event of the optimizer", .shape = {2}, .dims = SHARD, .iterate = post_optim_event},
    {.name = "roots that share a context",
     .shape = {2},
     .dims = SHARD,
     .no_root = true,
     .step.optimizer = TSR_OPT_NONE,
     .after = share},
    {.name = "2 micro-batches, reduced each", .shape = {2}, .dims = SHARD, .step.n_micro = 2},
    {.name = "2 micro-batches, reduced once",
     .shape = {2},
     .dims = SHARD,
     .options = HALF,
     .root = HALF,
     .step = {.n_micro = 2, .accumulate = TSR_ACCUM_NO_REDUCE}},
    {.name = "2 micro-batches, kept",
     .shape = {2},
     .dims = SHARD,
     .step = {.n_micro = 2, .accumulate = TSR_ACCUM_NO_REDUCE_NO_RESHARD}},
    {.name = "mirror, direct gather",
     .shape = {2},
     .dims = SHARD,
     .options = {.mp.param = TSR_BF16, .mirror = true, .direct = true},
     .root = {.mp.param = TSR_BF16, .mirror = true, .direct = true},
     .step.optimizer = TSR_OPT_ADAMW_FUSED},
    {.name = "mirror, one shard rank",
     .shape = {2, 1},
     .dims = {"replicate", "shard"},
     .options = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}, .mirror = true},
     .root = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}, .mirror = true},
     .step.optimizer = TSR_OPT_ADAMW_FUSED},
    {.name = "sums, scaled by the optimizer",
     .shape = {2},
     .dims = SHARD,
     .options.folds = true,
     .root.folds = true,
     .step = {.optimizer = TSR_OPT_ADAMW_FUSED, .clip = true}},
    {.name = "one rank, gradients kept",
     .shape = {1},
     .dims = SHARD,
     .options = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}, .mirror = true},
     .root = {.mp = {.param = TSR_BF16, .reduce = TSR_F32}, .mirror = true},
     .step.optimizer = TSR_OPT_ADAMW_FUSED},
    {.name = "direct gather, smaller groups",
     .shape = {4},
     .dims = SHARD,
     .options = {.direct = true, .reshard = TSR_RESHARD_INT, .reshard_int = 2},
     .root.direct = true},
};

size_t family_count(void)
{
    return sizeof families / sizeof *families;
}

/* ---- recording ------------------------------------------------------------------------------- */

static void record_rank(const struct family *f, uint32_t rank, struct recorded_rank *r)
{
    struct tsr_engine_config config = {
        .version = f->version,
        .mesh = {.n_dims = f->shape[1] ? 2 : 1, .shape = {f->shape[0], f->shape[1]}},
        .rank = rank,
        .executor = &r->recorder.base};
    struct tsr_step_config step = f->step;
    step.batch = 2;
    step.seq = 4;
    step.n_micro = step.n_micro ? step.n_micro : 1;
    for (int i = 0; i < config.mesh.n_dims; i++)
        snprintf(config.mesh.name[i], sizeof config.mesh.name[i], "%s", f->dims[i]);
    tsr_recorder_init(&r->recorder, &r->program);
    ok(tsr_engine_create(&config, &r->e));
    tsr_program_init(&r->program, tsr_engine_tables(r->e));
    if (f->llama)
        llama(r->e);
    else
        tree(r->e);
    if (f->before)
        f->before(r->e);
    wrap(f, r->e);
    if (f->after)
        f->after(r, r->e);
    ok(tsr_step_configure(r->e, &step));
    ok(tsr_engine_init_params(r->e));
    for (uint32_t i = 0; i < FAMILY_ITERATIONS; i++) {
        if (f->iterate)
            f->iterate(r->e, i);
        else
            ok(tsr_step_run(r->e, i));
    }
}

void family_sequences(struct recorded *r)
{
    const struct sequence *s = &r->sequences[0];
    int marks = 0;
    for (uint32_t rank = 0; rank < r->world; rank++)
        r->sequences[rank] = (struct sequence){.v = r->ranks[rank].program.instrs,
                                               .n = r->ranks[rank].program.n_instrs,
                                               .tables = tsr_engine_tables(r->ranks[rank].e),
                                               .rank = rank};
    for (size_t k = 0; k < s->n; k++)
        if (s->v[k].kind == TSR_MARK && s->v[k].mark == TSR_MARK_ITERATION) {
            marks++;
            if (marks == 3)
                r->begin = k;
            if (marks == 4)
                r->end = k;
        }
}

void family_record(size_t i, struct recorded *out)
{
    const struct family *f = &families[i];
    memset(out, 0, sizeof *out);
    out->name = f->name;
    out->world = f->shape[0] * (f->shape[1] ? f->shape[1] : 1);
    for (uint32_t rank = 0; rank < out->world; rank++)
        record_rank(f, rank, &out->ranks[rank]);
    family_sequences(out);
}

void family_close(struct recorded *r)
{
    for (uint32_t rank = 0; rank < r->world; rank++) {
        tsr_program_fini(&r->ranks[rank].program);
        tsr_engine_destroy(r->ranks[rank].e);
    }
}
