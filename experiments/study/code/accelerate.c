/* accelerate.c: a strategy as the YAML that `accelerate launch --config_file` reads, as far as that
 * can say it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/code/code.h"

/* One call per block and the root, all with the same reshard_after_forward. */
static bool is_per_block(const struct tsr_code_job *c, const struct tsr_modules *blocks)
{
    const struct tsr_wrapping *w = &c->wrapping;
    if (w->n_calls != blocks->n + 1 || !tsr_code_wraps_root(w))
        return false;
    for (size_t i = 0; i < blocks->n; i++)
        if (w->calls[i].modules.n != 1 || w->calls[i].modules.items[0] != blocks->items[i])
            return false;
    return true;
}

static const struct tsr_wrap_call *find_call(const struct tsr_wrapping *w,
                                             const struct tsr_modules *modules)
{
    for (size_t i = 0; i < w->n_calls; i++) {
        const struct tsr_modules *of = &w->calls[i].modules;
        if (of->n == modules->n && !memcmp(of->items, modules->items, of->n * sizeof *of->items))
            return &w->calls[i];
    }
    return NULL;
}

/* One call per block, one of the embedding, one of norm and head, which stay after forward, and one
 * of the root: the groups of Accelerate since 1.15 (huggingface/accelerate, PR 4015). */
static bool has_tail(const struct tsr_code_job *c, const struct tsr_modules *blocks)
{
    const struct tsr_wrapping *w = &c->wrapping;
    struct tsr_modules before, after;
    if (w->n_calls != blocks->n + 3 || !tsr_code_wraps_root(w) ||
        tsr_find_sides(c->job, c->engine, blocks, &before, &after) != TSR_OK)
        return false;
    const struct tsr_wrap_call *tail = find_call(w, &after);
    bool has = before.n == 1 && after.n == 2 && find_call(w, &before) && tail &&
               tail->reshard.kind == TSR_RESHARD_FALSE;
    for (size_t i = 0; i < blocks->n && has; i++)
        has = find_call(w, &(struct tsr_modules){.items = &blocks->items[i], .n = 1}) != NULL;
    free(before.items);
    free(after.items);
    return has;
}

/* "true" or "false"; *exact: as the strategy has it for all modules but the last group of
 * has_tail().
 */
static const char *reshard_of(const struct tsr_code_job *c, bool tail, bool *exact)
{
    const struct tsr_wrapping *w = &c->wrapping;
    enum tsr_reshard_kind kind = w->n_calls ? w->calls[0].reshard.kind : TSR_RESHARD_TRUE;
    bool older = c->settings->api == TSR_API_FSDP1; /* whose root is as the others */
    *exact = older || kind == TSR_RESHARD_TRUE || kind == TSR_RESHARD_FALSE;
    for (size_t i = 0; i < w->n_calls; i++)
        *exact =
            *exact && (w->calls[i].reshard.kind == kind || (tail && w->calls[i].modules.n == 2));
    return kind == TSR_RESHARD_FALSE ? "false" : "true";
}

static void put_fsdp1(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    static const char *const prefetch[] = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
    bool exact, keeps = !strcmp(reshard_of(c, false, &exact), "false"),
                hybrid = c->job->mesh.n_dims == 2;
    tsr_code_add(to, "  fsdp_backward_prefetch: %s\n",
                 prefetch[c->settings->fsdp1_backward_prefetch]);
    tsr_code_add(to, "  fsdp_forward_prefetch: %s\n",
                 c->settings->fsdp1_forward_prefetch ? "true" : "false");
    tsr_code_add(to, "  fsdp_sharding_strategy: %s\n",
                 hybrid  ? (keeps ? "HYBRID_SHARD_ZERO2" : "HYBRID_SHARD")
                 : keeps ? "SHARD_GRAD_OP"
                         : "FULL_SHARD");
    tsr_code_add(to, "  fsdp_use_orig_params: true\n");
}

/* Accelerate separates names by commas and looks them up as classes: what is no name is none. */
static bool is_new_class(const struct tsr_modules *blocks, size_t i)
{
    const char *name = tsr_module_type_name(blocks->items[i]);
    if (!tsr_code_is_name(name, strlen(name)))
        return false;
    for (size_t k = 0; k < i; k++)
        if (!strcmp(tsr_module_type_name(blocks->items[k]), name))
            return false;
    return true;
}

/* Names the classes of the blocks. Without them Accelerate takes the model's _no_split_modules, and
 * wraps nothing where the model has none. */
static void put_classes(const struct tsr_modules *blocks, struct tsr_code_text *to)
{
    char names[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < blocks->n; i++) {
        const char *name = tsr_module_type_name(blocks->items[i]);
        if (is_new_class(blocks, i) && used + strlen(name) + 2 < sizeof names)
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? "," : "", name);
    }
    if (!used)
        return;
    tsr_code_add(to, "  fsdp_transformer_layer_cls_to_wrap: ");
    tsr_code_add_literal(to, names);
    tsr_code_add(to, "\n");
}

static void put_fsdp(const struct tsr_code_job *c, const struct tsr_modules *blocks,
                     struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    bool exact, whole = c->wrapping.n_calls == 1;
    tsr_code_add(to, "fsdp_config:\n");
    tsr_code_add(to, "  fsdp_activation_checkpointing: %s\n", s->ckpt_every ? "true" : "false");
    tsr_code_add(to, "  fsdp_auto_wrap_policy: %s\n", whole ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP");
    tsr_code_add(to, "  fsdp_cpu_ram_efficient_loading: true\n");
    tsr_code_add(to, "  fsdp_offload_params: %s\n", s->offload ? "true" : "false");
    if (s->api == TSR_API_FSDP1)
        put_fsdp1(c, to);
    else
        tsr_code_add(to, "  fsdp_reshard_after_forward: %s\n",
                     reshard_of(c, has_tail(c, blocks), &exact));
    tsr_code_add(to, "  fsdp_state_dict_type: SHARDED_STATE_DICT\n");
    if (!whole && (c->job->model.trace || s->model_impl == TSR_IMPL_TRANSFORMERS))
        put_classes(blocks, to);
    tsr_code_add(to, "  fsdp_version: %d\n", s->api == TSR_API_FSDP1 ? 1 : 2);
}

static void put_mesh(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_mesh *mesh = &c->job->mesh;
    bool hybrid = mesh->n_dims > 1 && !strcmp(mesh->name[0], "replicate");
    if (!hybrid && c->settings->tp == 1)
        return;
    tsr_code_add(to, "parallelism_config:\n");
    tsr_code_add(to, "  parallelism_config_dp_replicate_size: %u\n", hybrid ? mesh->shape[0] : 1);
    tsr_code_add(to, "  parallelism_config_dp_shard_size: %u\n", mesh->shape[hybrid ? 1 : 0]);
    tsr_code_add(to, "  parallelism_config_tp_size: %" PRIu64 "\n", c->settings->tp);
}

static void put_differences(const struct tsr_code_job *c, const struct tsr_modules *blocks,
                            struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    bool shards = s->api == TSR_API_FULLY_SHARD || s->api == TSR_API_FSDP1, exact;
    bool tail = s->api == TSR_API_FULLY_SHARD && has_tail(c, blocks);
    (void)reshard_of(c, tail, &exact);
    if (s->api == TSR_API_REPLICATE)
        tsr_code_comment(to, "# ", 2,
                         "Not said: api=replicate: Accelerate has DistributedDataParallel.");
    if (tail)
        tsr_code_comment(to, "# ", 2,
                         "Accelerate 1.15 or newer makes these groups: the embedding, each block, "
                         "norm with head, and the rest.");
    if (shards && c->wrapping.n_calls > 1 && !tail && !is_per_block(c, blocks))
        tsr_code_comment(to, "# ", 2,
                         "Not said: wrap: Accelerate makes a group of each block, since 1.15 of "
                         "the embedding, and of norm with head, and one of the rest.");
    if (s->api == TSR_API_FULLY_SHARD && c->wrapping.n_calls > 1 && is_per_block(c, blocks))
        tsr_code_comment(to, "# ", 2,
                         "Accelerate before 1.15 makes these groups; newer releases have groups "
                         "of the embedding, and of norm with head, too.");
    if (shards && !exact)
        tsr_code_comment(to, "# ", 2,
                         "Not said: reshard_after_forward: Accelerate has one value, true or "
                         "false, for all groups, the root's, too.");
    if (s->ckpt_every && s->api == TSR_API_FULLY_SHARD)
        tsr_code_comment(to, "# ", 2,
                         "Not said: checkpoint.every: with fully_shard Accelerate checkpoints the "
                         "children of each block one by one, not the block.");
    if (tsr_code_reduce_dtype(s) != (s->param ? s->param : s->master))
        tsr_code_comment(to, "# ", 2,
                         "Not said: precision.reduce: Accelerate reduces in the dtype of "
                         "mixed_precision; another needs a MixedPrecisionPolicy for "
                         "FullyShardedDataParallelPlugin, in the program.");
    if (s->api == TSR_API_FSDP1 && !s->fsdp1_limit_all_gathers)
        tsr_code_comment(to, "# ", 2,
                         "Not said: fsdp1.limit_all_gathers=false: limit_all_gathers of "
                         "FullyShardedDataParallelPlugin, in the program.");
    if (s->api == TSR_API_DDP && s->param)
        tsr_code_comment(to, "# ", 2,
                         "Not said: precision beside api: ddp: Accelerate computes under autocast, "
                         "in mixed_precision, and keeps weights and gradients in float32.");
    if (!s->ckpt_every || s->api != TSR_API_DDP)
        return;
    tsr_code_comment(to, "# ", 2,
                     "Not said: checkpoint.every beside api: ddp: the model's own "
                     "gradient_checkpointing_enable().");
}

static void put_document(const struct tsr_code_job *c, const struct tsr_modules *blocks,
                         struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    bool copies = s->api == TSR_API_DDP || s->api == TSR_API_REPLICATE;
    uint32_t per_node = c->job->cluster.gpus_per_node ? c->job->cluster.gpus_per_node : 1;
    tsr_code_add(to, "\ncompute_environment: LOCAL_MACHINE\n");
    tsr_code_add(to, "distributed_type: %s\n", copies ? "MULTI_GPU" : "FSDP");
    if (tsr_settings_compile(s, TSR_COMPILE_MODEL))
        tsr_code_add(to, "dynamo_config:\n  dynamo_backend: INDUCTOR\n"
                         "  dynamo_use_regional_compilation: true\n");
    if (!copies)
        put_fsdp(c, blocks, to);
    tsr_code_add(to, "machine_rank: 0\nmain_training_function: main\n");
    tsr_code_add(to, "mixed_precision: \"%s\"\n",
                 s->param == TSR_BF16  ? "bf16"
                 : s->param == TSR_F16 ? "fp16"
                                       : "no");
    tsr_code_add(to, "num_machines: %u\n", (c->job->world + per_node - 1) / per_node);
    tsr_code_add(to, "num_processes: %u\n", c->job->world);
    if (!copies)
        put_mesh(c, to);
    tsr_code_add(to, "use_cpu: false\n");
}

/* A model that is one group need not have blocks. */
static tsr_status find_blocks(const struct tsr_code_job *c, struct tsr_modules *out)
{
    *out = (struct tsr_modules){NULL, 0};
    return c->wrapping.n_calls > 1 ? tsr_find_blocks(c->job, c->engine, out) : TSR_OK;
}

tsr_status tsr_code_put_accelerate_lacks(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    struct tsr_modules blocks;
    TSR_TRY(find_blocks(c, &blocks));
    put_differences(c, &blocks, to);
    free(blocks.items);
    return TSR_OK;
}

tsr_status tsr_code_put_accelerate(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    struct tsr_modules blocks;
    TSR_TRY(find_blocks(c, &blocks));
    put_document(c, &blocks, to);
    free(blocks.items);
    return TSR_OK;
}
