/* torch.c: a strategy as a Python module of plain PyTorch: build_mesh(), apply(model, mesh), and
 * where they are needed tie(model) and before_micro_batch(model, last).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/code/code.h"
#include "experiments/study/code/runs.h"
#include "experiments/study/code/torch_parts.h"

static bool uses_fsdp1(const struct tsr_settings *s)
{
    return s->api == TSR_API_FSDP1;
}

static bool wraps(const struct tsr_settings *s)
{
    return s->api == TSR_API_FULLY_SHARD || s->api == TSR_API_REPLICATE;
}

bool tsr_code_wraps_root(const struct tsr_wrapping *wrapping)
{
    for (size_t i = 0; i < wrapping->n_calls; i++)
        for (size_t k = 0; k < wrapping->calls[i].modules.n; k++)
            if (!*tsr_module_fqn(wrapping->calls[i].modules.items[k]))
                return true;
    return false;
}

static bool prefetches(const struct tsr_code_job *c)
{
    return wraps(c->settings) && c->wrapping.units.n > 1 &&
           (c->settings->forward_prefetch || c->settings->backward_prefetch);
}

/* Micro-batches before the last do something else; methods of the root say so. */
static bool accumulates(const struct tsr_code_job *c)
{
    bool asked = c->settings->accum_steps > 1 && c->settings->accum_mode != TSR_ACCUM_REDUCE_EACH;
    return asked && (!wraps(c->settings) || tsr_code_wraps_root(&c->wrapping));
}

static bool has_policy(const struct tsr_settings *s)
{
    return s->param || s->reduce || s->output || !s->cast_inputs;
}

/* ---- imports --------------------------------------------------------------------------------- */

static void put_fsdp_imports(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    bool shards = s->api == TSR_API_FULLY_SHARD;
    struct tsr_code_text names = {.s = NULL};
    if (s->offload)
        tsr_code_add(&names, "CPUOffloadPolicy, ");
    if (has_policy(s))
        tsr_code_add(&names, "MixedPrecisionPolicy, ");
    if (shards)
        tsr_code_add(&names, "fully_shard, ");
    if (names.n)
        tsr_code_statement(to, 0, "from torch.distributed.fsdp import %.*s", (int)(names.n - 2),
                           names.s);
    to->failed |= names.failed;
    tsr_code_text_fini(&names);
}

static void put_imports(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    bool selective = s->ckpt_every == TSR_CKPT_SELECTIVE_OP;
    bool partial = wraps(s) || uses_fsdp1(s), context = accumulates(c) && !wraps(s);
    if (selective)
        tsr_code_add(to, "from collections import Counter\n");
    if (context)
        tsr_code_add(to, "from contextlib import nullcontext\n");
    if (partial)
        tsr_code_add(to, "from functools import partial\n");
    if (selective || partial || context)
        tsr_code_add(to, "\n");
    if (has_policy(s) || selective || tsr_settings_compile(s, TSR_COMPILE_MODEL))
        tsr_code_add(to, "import torch\n");
    if (s->api == TSR_API_REPLICATE)
        tsr_code_statement(to, 0,
                           "from torch.distributed._composable.replicate_with_fsdp import "
                           "replicate");
    if (c->wrapping.checkpointed.n)
        tsr_code_statement(to, 0,
                           "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper "
                           "import checkpoint_wrapper");
    tsr_code_add(to, "from torch.distributed.device_mesh import init_device_mesh\n");
    if (wraps(s))
        put_fsdp_imports(c, to);
    if (uses_fsdp1(s))
        tsr_code_statement(to, 0,
                           "from torch.distributed.fsdp import BackwardPrefetch, "
                           "FullyShardedDataParallel, MixedPrecision, ShardingStrategy");
    if (s->api == TSR_API_DDP)
        tsr_code_statement(to, 0, "from torch.nn.parallel import DistributedDataParallel");
    if (s->api == TSR_API_DDP && tsr__code_ddp_is_mixed(s))
        tsr_code_statement(to, 0, "from torch.nn.parallel.distributed import _MixedPrecision");
    if (selective)
        tsr_code_statement(to, 0,
                           "from torch.utils.checkpoint import CheckpointPolicy, "
                           "create_selective_checkpoint_contexts");
    tsr_code_add(to, "\n\n");
}

/* ---- mesh ------------------------------------------------------------------------------------ */

static void put_mesh(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_mesh *mesh = &c->job->mesh;
    struct tsr_code_text shape = {.s = NULL}, names = {.s = NULL};
    bool one = mesh->n_dims == 1;
    for (int i = 0; i < mesh->n_dims; i++) {
        tsr_code_add(&shape, "%s%u", i ? ", " : "", mesh->shape[i]);
        tsr_code_add(&names, "%s\"%s\"", i ? ", " : "", mesh->name[i]);
    }
    tsr_code_add(to, "def build_mesh(device=\"cuda\"):\n");
    tsr_code_statement(to, 4, "return init_device_mesh(device, (%s%s), mesh_dim_names=(%s%s))",
                       tsr_code_str(&shape), one ? "," : "", tsr_code_str(&names), one ? "," : "");
    tsr_code_add(to, "\n\n");
    to->failed |= shape.failed || names.failed;
    tsr_code_text_fini(&shape);
    tsr_code_text_fini(&names);
}

/* The dimensions of data parallelism. */
static const char *data_mesh(const struct tsr_code_job *c)
{
    if (c->settings->tp == 1)
        return "mesh";
    if (c->settings->api == TSR_API_REPLICATE)
        return "mesh[\"replicate\"]";
    return c->job->mesh.n_dims == 3 ? "mesh[\"replicate\", \"shard\"]" : "mesh[\"shard\"]";
}

/* ---- fully_shard, replicate ------------------------------------------------------------------ */

static void put_options(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    const char *function = s->api == TSR_API_REPLICATE ? "replicate" : "fully_shard";
    struct tsr_code_text policy = {.s = NULL};
    tsr__code_add_policy(&policy, s);
    if (has_policy(s))
        tsr_code_statement(to, 4, "policy = MixedPrecisionPolicy(%s)", tsr_code_str(&policy));
    tsr_code_statement(to, 4, "shard = partial(%s, mesh=%s%s%s)", function, data_mesh(c),
                       has_policy(s) ? ", mp_policy=policy" : "",
                       s->offload == TSR_OFFLOAD_NONE  ? ""
                       : s->offload == TSR_OFFLOAD_CPU ? ", offload_policy=CPUOffloadPolicy("
                                                         "pin_memory=False)"
                                                       : ", offload_policy=CPUOffloadPolicy()");
    to->failed |= policy.failed;
    tsr_code_text_fini(&policy);
}

enum { MORE_BYTES = 64 };

static void reshard_text(const struct tsr_code_job *c, const struct tsr_reshard_value *reshard,
                         char out[MORE_BYTES])
{
    out[0] = '\0';
    if (c->settings->api == TSR_API_REPLICATE || reshard->kind == TSR_RESHARD_DEFAULT)
        return;
    if (reshard->kind == TSR_RESHARD_INT)
        snprintf(out, MORE_BYTES, ", reshard_after_forward=%" PRId64, reshard->value);
    else
        snprintf(out, MORE_BYTES, ", reshard_after_forward=%s",
                 reshard->kind == TSR_RESHARD_TRUE ? "True" : "False");
}

static tsr_status put_calls(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_wrapping *w = &c->wrapping;
    struct tsr_code_call *calls = calloc(w->n_calls + 1, sizeof *calls);
    char(*more)[MORE_BYTES] = calloc(w->n_calls + 1, sizeof *more);
    tsr_status status = calls && more ? TSR_OK : tsr_no_memory(NULL);
    for (size_t i = 0; status == TSR_OK && i < w->n_calls; i++) {
        reshard_text(c, &w->calls[i].reshard, more[i]);
        calls[i] = (struct tsr_code_call){w->calls[i].modules, more[i]};
    }
    if (status == TSR_OK)
        tsr_code_calls(to, 4, c->engine, "shard", calls, w->n_calls);
    free(calls);
    free(more);
    return status;
}

static tsr_status put_prefetch(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_modules *units = &c->wrapping.units;
    uint64_t ahead = c->settings->forward_prefetch, back = c->settings->backward_prefetch;
    struct tsr_code_text list = {.s = NULL};
    if (!prefetches(c))
        return TSR_OK;
    struct tsr_code_call *calls = calloc(units->n, sizeof *calls);
    if (!calls)
        return tsr_no_memory(NULL);
    for (size_t i = 0; i < units->n; i++)
        calls[i] = (struct tsr_code_call){{&units->items[i], 1}, ""};
    tsr_code_add_list(&list, c->engine, calls, units->n);
    tsr_code_statement(to, 4, "units = %s", tsr_code_str(&list));
    tsr_code_add(to, "    for i, unit in enumerate(units):\n");
    if (ahead)
        tsr_code_statement(to, 8,
                           "unit.set_modules_to_forward_prefetch(units[i + 1 : i + %" PRIu64 "])",
                           ahead + 1);
    if (back)
        tsr_code_statement(to, 8,
                           "unit.set_modules_to_backward_prefetch(units[max(i - %" PRIu64
                           ", 0) : i][::-1])",
                           back);
    to->failed |= list.failed;
    tsr_code_text_fini(&list);
    free(calls);
    return TSR_OK;
}

static tsr_status put_sharded(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    put_options(c, to);
    TSR_TRY(put_calls(c, to));
    TSR_TRY(put_prefetch(c, to));
    if (!s->reshard_after_backward)
        tsr_code_add(to, "    model.set_reshard_after_backward(False)\n");
    if (s->separate_reduce)
        tsr_code_add(
            to, "    model.set_separate_reduce_scatter_group(True)  # newer than torch 2.11\n");
    return TSR_OK;
}

/* ---- the functions --------------------------------------------------------------------------- */

static tsr_status put_apply(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    const struct tsr_settings *s = c->settings;
    tsr_code_add(to, "def apply(model, mesh):\n");
    if (s->ckpt_hooks == TSR_HOOKS_INSIDE)
        tsr__code_put_checkpointed(c, to);
    TSR_TRY(tsr__code_put_compiled(c, to));
    if (wraps(s))
        TSR_TRY(put_sharded(c, to));
    if (s->ckpt_hooks == TSR_HOOKS_OUTSIDE)
        tsr__code_put_checkpointed(c, to);
    if (wraps(s))
        tsr_code_add(to, "    return model\n");
    else if (s->api == TSR_API_DDP)
        tsr__code_put_ddp(c, to);
    else
        tsr__code_put_fsdp1(c, to);
    return TSR_OK;
}

/* Other places of a parameter are told its first one again. */
static void put_ties_below(const struct tsr_module *module, bool *any, struct tsr_code_text *to)
{
    for (size_t i = 0; i < tsr_module_n_params(module); i++) {
        struct tsr_param_info info = tsr_param_info(tsr_module_param(module, i), module);
        if (!info.is_alias)
            continue;
        if (!*any)
            tsr_code_add(to, "\n\ndef tie(model):\n"
                             "    \"\"\"After to_empty(): what was one parameter is two.\"\"\"\n");
        *any = true;
        tsr_code_put_tie(to, 4, tsr_module_fqn(module), tsr_module_param_name(module, i), info.fqn);
    }
    for (size_t i = 0; i < tsr_module_n_children(module); i++)
        put_ties_below(tsr_module_child(module, i), any, to);
}

static void put_flag(const char *method, struct tsr_code_text *to)
{
    tsr_code_add(to, "    model.%s(last)\n", method);
}

static void put_accumulation(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    unsigned mode = c->settings->accum_mode;
    if (!accumulates(c))
        return;
    tsr_code_add(to, "\n\n");
    if (c->settings->api == TSR_API_DDP || uses_fsdp1(c->settings)) {
        tsr_code_add(to, "def micro_batch(model, last):\n"
                         "    \"\"\"with micro_batch(model, i == n - 1): forward, backward\"\"\"\n"
                         "    return nullcontext() if last else model.no_sync()\n");
        return;
    }
    tsr_code_add(to, "def before_micro_batch(model, last):\n"
                     "    \"\"\"Before each forward. last: it is the last of its step.\"\"\"\n");
    put_flag(mode == TSR_ACCUM_NO_ALL_REDUCE ? "set_requires_all_reduce"
                                             : "set_requires_gradient_sync",
             to);
    if (mode == TSR_ACCUM_NO_REDUCE_NO_RESHARD)
        put_flag("set_reshard_after_backward", to);
    put_flag("set_is_last_backward", to);
}

tsr_status tsr_code_put_torch(const struct tsr_code_job *c, struct tsr_code_text *to)
{
    put_imports(c, to);
    put_mesh(c, to);
    if (c->settings->ckpt_every == TSR_CKPT_SELECTIVE_OP)
        tsr__code_put_selective(to);
    TSR_TRY(put_apply(c, to));
    if (wraps(c->settings)) /* older APIs take a model that is on its device */
        put_ties_below(tsr_module_root(c->engine), &(bool){false}, to);
    put_accumulation(c, to);
    return TSR_OK;
}
