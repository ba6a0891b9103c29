/* wrap.c: makes the calls of a wrapping (wrapping.h) on an engine, and sets prefetch lists.
 */
#include <stdio.h>
#include <string.h>

#include "experiments/study/job/wrapping.h"

static tsr_status apply_checkpoint(const struct tsr_job *job, struct tsr_engine *engine,
                                   const struct tsr_modules *blocks)
{
    const struct tsr_settings *s = job->settings;
    tsr_status status = TSR_OK;
    if (job->model.trace) /* in which recomputation is */
        return TSR_OK;
    for (size_t i = 0; i < blocks->n && status == TSR_OK; i++)
        status = s->ckpt_every == TSR_CKPT_SELECTIVE_OP
                     ? tsr_checkpoint_selective(engine, blocks->items[i])
                     : tsr_checkpoint(engine, blocks->items[i], s->ckpt_hooks == TSR_HOOKS_OUTSIDE,
                                      s->ckpt_early_stop);
    if (status != TSR_OK)
        return tsr_node_wrap_error(tsr_job_at(job, TSR_K_CHECKPOINT_EVERY), status, "checkpoint");
    return TSR_OK;
}

/* ---- one call ---------------------------------------------------------------------------- */

/* The engine's complaint about an int is worded like PyTorch's; the user's key goes before it. */
static tsr_status explain(const struct tsr_job *job, const struct tsr_wrap_call *call,
                          tsr_status status)
{
    const struct tsr_wrap_entry *entry = call->entry;
    bool is_int =
        call->reshard.kind == TSR_RESHARD_INT && job->settings->api == TSR_API_FULLY_SHARD;
    const struct tsr_yaml_node *at =
        tsr_job_at(job, is_int ? TSR_K_RESHARD_AFTER_FORWARD : TSR_K_WRAP);
    if (entry && (!is_int || entry->has_reshard))
        at = entry->at;
    if (is_int) {
        char what[160];
        uint32_t ranks = job->mesh.shape[job->mesh.n_dims - 1];
        snprintf(what, sizeof what,
                 "strategy %.64s: reshard_after_forward: found %lld; allowed: null, true, false, "
                 "or a divisor of %u",
                 job->strategy->name, (long long)call->reshard.value, ranks);
        return tsr_node_wrap_error(at, status, what);
    }
    char what[128];
    snprintf(what, sizeof what, "strategy %.96s", job->strategy->name);
    return tsr_node_wrap_error(at, status, what);
}

static void fill_options(const struct tsr_settings *s, const struct tsr_reshard_value *reshard,
                         struct tsr_wrap_options *out)
{
    memset(out, 0, sizeof(*out));
    out->reshard = reshard->kind;
    out->reshard_int = reshard->value;
    out->mp.param = (tsr_dtype)s->param;
    out->mp.reduce = (tsr_dtype)s->reduce;
    out->mp.output = (tsr_dtype)s->output;
    out->mp.no_cast_inputs = !s->cast_inputs;
    out->offload = (enum tsr_offload)s->offload;
    out->mirror = s->mirror;
    out->direct = s->direct_gather;
    out->folds = s->folded_scale;
}

/* FSDP1 wraps modules one by one. */
static tsr_status wrap_fsdp1(const struct tsr_job *job, struct tsr_engine *engine,
                             const struct tsr_wrap_call *call)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_fsdp1_options options = {
        .keep_after_forward = call->reshard.kind == TSR_RESHARD_FALSE,
        .mp = {.param = (tsr_dtype)s->param,
               .reduce = (tsr_dtype)s->reduce,
               .no_cast_inputs = !s->cast_inputs},
        .backward_prefetch = (enum tsr_fsdp1_prefetch)s->fsdp1_backward_prefetch,
        .forward_prefetch = s->fsdp1_forward_prefetch,
        .no_limit = !s->fsdp1_limit_all_gathers};
    const struct tsr_wrap_entry *entry = call->entry;
    if (entry && (entry->group || call->reshard.kind == TSR_RESHARD_INT))
        return tsr_node_error(entry->at,
                              "wrap: found %s beside api: fsdp1; allowed: modules that are "
                              "wrapped one by one, resharded or not",
                              entry->group ? "group: true" : "an integer to reshard to");
    for (size_t i = 0; i < call->modules.n; i++) {
        tsr_status status = tsr_fsdp1(engine, call->modules.items[i], &options);
        if (status != TSR_OK)
            return explain(job, call, status);
    }
    return TSR_OK;
}

static tsr_status make_call(const struct tsr_job *job, struct tsr_engine *engine,
                            const struct tsr_wrap_call *call)
{
    struct tsr_wrap_options options;
    if (job->settings->api == TSR_API_FSDP1)
        return wrap_fsdp1(job, engine, call);
    fill_options(job->settings, &call->reshard, &options);
    tsr_status status =
        job->settings->api == TSR_API_REPLICATE
            ? tsr_replicate(engine, call->modules.items, call->modules.n, &options)
            : tsr_fully_shard(engine, call->modules.items, call->modules.n, &options);
    return status == TSR_OK ? TSR_OK : explain(job, call, status);
}

/* ---- prefetch ---------------------------------------------------------------------------- */

static tsr_status set_prefetch(const struct tsr_job *job, struct tsr_engine *engine,
                               const struct tsr_wrapping *w)
{
    struct tsr_module *list[TSR_MAX_AHEAD];
    for (size_t i = 0; i < w->units.n; i++) {
        size_t n = tsr_units_ahead(w, job->settings, i, false, list);
        if (n)
            TSR_TRY(tsr_set_forward_prefetch(engine, w->units.items[i], list, n));
        n = tsr_units_ahead(w, job->settings, i, true, list);
        if (n)
            TSR_TRY(tsr_set_backward_prefetch(engine, w->units.items[i], list, n));
    }
    return TSR_OK;
}

static tsr_status set_methods(const struct tsr_job *job, struct tsr_engine *engine,
                              const struct tsr_wrapping *w)
{
    tsr_status status;
    TSR_GOTO(failed, set_prefetch(job, engine, w));
    if (!job->settings->reshard_after_backward)
        TSR_GOTO(failed,
                 tsr_set_reshard_after_backward(engine, tsr_module_root(engine), false, true));
    return TSR_OK;
failed:
    return tsr_node_wrap_error(job->strategy->at, status, job->strategy->name);
}

static tsr_status apply_ddp(const struct tsr_job *job, struct tsr_engine *engine)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_ddp_options options = {.bucket_cap_mb = s->ddp_bucket_mb,
                                      .find_unused = s->ddp_find_unused,
                                      .static_graph = s->ddp_static_graph,
                                      .gradient_as_bucket_view = s->ddp_view,
                                      .broadcast_buffers = true};
    options.mp.param = (tsr_dtype)s->param;
    options.mp.reduce = (tsr_dtype)s->reduce;
    options.mp.output = (tsr_dtype)s->output;
    options.mp.no_cast_inputs = !s->cast_inputs;
    tsr_status status = tsr_ddp(engine, &options);
    return status == TSR_OK ? TSR_OK
                            : tsr_node_wrap_error(job->strategy->at, status, job->strategy->name);
}

static tsr_status apply(const struct tsr_job *job, struct tsr_engine *engine,
                        const struct tsr_wrapping *w)
{
    TSR_TRY(apply_checkpoint(job, engine, &w->checkpointed));
    if (job->settings->api == TSR_API_DDP)
        return apply_ddp(job, engine);
    for (size_t i = 0; i < w->n_calls; i++)
        TSR_TRY(make_call(job, engine, &w->calls[i]));
    return job->settings->api == TSR_API_FSDP1 ? TSR_OK : set_methods(job, engine, w);
}

tsr_status tsr_apply_wrap(const struct tsr_job *job, struct tsr_engine *engine)
{
    struct tsr_wrapping wrapping;
    TSR_TRY(tsr_wrapping_of(job, engine, &wrapping));
    tsr_status status = apply(job, engine, &wrapping);
    tsr_wrapping_fini(&wrapping);
    return status;
}
