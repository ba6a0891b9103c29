/* torch_older.c: the APIs before fully_shard, which wrap a module in another: DDP and FSDP1; and
 * the dtypes of all.
 */
#include <stdio.h>
#include <stdlib.h>

#include "experiments/study/code/torch_parts.h"

static const char *torch_dtype(unsigned dtype)
{
    static const char *const names[] = {
        [TSR_F32] = "torch.float32", [TSR_BF16] = "torch.bfloat16", [TSR_F16] = "torch.float16"};
    return names[dtype];
}

/* "param_dtype=torch.bfloat16, reduce_dtype=torch.float32" */
void tsr__code_add_policy(struct tsr_code_text *to, const struct tsr_settings *s)
{
    const char *comma = "";
    if (s->param)
        tsr_code_add(to, "param_dtype=%s", torch_dtype(s->param));
    comma = to->n ? ", " : "";
    if (s->reduce)
        tsr_code_add(to, "%sreduce_dtype=%s", comma, torch_dtype(s->reduce));
    comma = to->n ? ", " : "";
    if (s->output && s->api != TSR_API_DDP)
        tsr_code_add(to, "%soutput_dtype=%s", comma, torch_dtype(s->output));
    comma = to->n ? ", " : "";
    if (!s->cast_inputs && s->api != TSR_API_DDP)
        tsr_code_add(to, "%scast_forward_inputs=False%s", comma,
                     s->api == TSR_API_FSDP1 ? ", cast_root_forward_inputs=False" : "");
}

/* ---- DDP, FSDP1 ------------------------------------------------------------------------------ */

/* f32 sums of f32 gradients are no mixed precision, and the reducer refuses them as one. */
bool tsr__code_ddp_is_mixed(const struct tsr_settings *s)
{
    return s->param || (s->reduce && s->reduce != TSR_F32);
}

void tsr__code_put_ddp(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    struct tsr_code_text args = {.s = NULL}, policy = {.s = NULL};
    if (tsr__code_ddp_is_mixed(s))
        tsr__code_add_policy(&policy, s);
    if (s->ddp_bucket_mb > 0)
        tsr_code_add(&args, ", bucket_cap_mb=%g", s->ddp_bucket_mb);
    if (s->ddp_find_unused)
        tsr_code_add(&args, ", find_unused_parameters=True");
    if (s->ddp_view)
        tsr_code_add(&args, ", gradient_as_bucket_view=True");
    if (s->ddp_static_graph)
        tsr_code_add(&args, ", static_graph=True");
    if (policy.n)
        tsr_code_add(&args, ", mixed_precision=_MixedPrecision(%s)", policy.s);
    tsr_code_statement(to, 4, "return DistributedDataParallel(model, device_mesh=mesh%s)",
                       tsr_code_str(&args));
    to->failed |= args.failed || policy.failed;
    tsr_code_text_fini(&args);
    tsr_code_text_fini(&policy);
}

static void put_fsdp1_options(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    static const char *const prefetch[] = {"BackwardPrefetch.BACKWARD_PRE",
                                           "BackwardPrefetch.BACKWARD_POST", "None"};
    const struct tsr_settings *s = c->settings;
    struct tsr_code_text policy = {.s = NULL};
    tsr__code_add_policy(&policy, s);
    tsr_code_statement(to, 4, "policy = MixedPrecision(%s)", tsr_code_str(&policy));
    tsr_code_add(to, "    shard = partial(\n        FullyShardedDataParallel,\n"
                     "        device_mesh=mesh,\n        mixed_precision=policy,\n");
    tsr_code_add(to, "        backward_prefetch=%s,\n", prefetch[s->fsdp1_backward_prefetch]);
    tsr_code_add(to, "        forward_prefetch=%s,\n",
                 s->fsdp1_forward_prefetch ? "True" : "False");
    tsr_code_add(to, "        limit_all_gathers=%s,\n",
                 s->fsdp1_limit_all_gathers ? "True" : "False");
    tsr_code_add(to, "        use_orig_params=True,\n    )\n");
    to->failed |= policy.failed;
    tsr_code_text_fini(&policy);
}
/* The mesh and whether parameters are freed after forward. */
static const char *fsdp1_strategy(const struct tsr_code_job *c, size_t call)
{
    const struct tsr_mesh *mesh = &c->job->mesh;
    bool keeps = c->wrapping.calls[call].reshard.kind == TSR_RESHARD_FALSE;
    if (mesh->n_dims == 2)
        return keeps ? "_HYBRID_SHARD_ZERO2" : "HYBRID_SHARD";
    if (mesh->shape[0] == 1)
        return "NO_SHARD";
    return keeps ? "SHARD_GRAD_OP" : "FULL_SHARD";
}

/* Calls [i, j) with one strategy. */
static size_t same_strategy(const struct tsr_code_job *c, size_t i, size_t n)
{
    size_t j = i;
    while (j < n && fsdp1_strategy(c, j) == fsdp1_strategy(c, i))
        j++;
    return j;
}

/* Every module of the calls [i, j): FSDP1 wraps them one by one. `out` has room for all. */
static void modules_of(const struct tsr_wrapping *w, size_t i, size_t j, struct tsr_modules *out)
{
    out->n = 0;
    for (size_t k = i; k < j; k++)
        for (size_t m = 0; m < w->calls[k].modules.n; m++)
            out->items[out->n++] = w->calls[k].modules.items[m];
}

void tsr__code_put_fsdp1(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_wrapping *w = &c->wrapping;
    struct tsr_module *root = tsr_module_root(c->engine);
    size_t n = w->n_calls, room = 1;
    bool wraps_root = n && w->calls[n - 1].modules.items[0] == root;
    for (size_t i = 0; i < n; i++)
        room += w->calls[i].modules.n;
    struct tsr_modules modules = {calloc(room, sizeof *modules.items), 0};
    to->failed |= !modules.items;
    put_fsdp1_options(c, to);
    n -= wraps_root;
    for (size_t i = 0, j = 0; modules.items && i < n; i = j) {
        char options[96];
        j = same_strategy(c, i, n);
        modules_of(w, i, j, &modules);
        snprintf(options, sizeof options, ", sharding_strategy=ShardingStrategy.%s",
                 fsdp1_strategy(c, i));
        tsr__code_put_replaced(c, &modules, "shard", options, to);
    }
    free(modules.items);
    if (wraps_root)
        tsr_code_statement(to, 4, "return shard(model, sharding_strategy=ShardingStrategy.%s)",
                           fsdp1_strategy(c, n));
    else
        tsr_code_add(to, "    return model\n");
}
