/* plan_default.c: the space that `tessera plan` searches where the file has no `plan.space`: the
 * knobs that people turn first, none that changes the model, the optimizer or the kept precision.
 * experiments/guide/plan.md documents it.
 */
#include "experiments/study/plan/plan_space.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TEXTS = 40 };

/* One axis; the strategy's own value comes first if the list lacks it. */
static tsr_status add(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                      const char *key, const char *const *texts, struct tsr_plan_space *out)
{
    const struct tsr_key *row = &tsr_keys[tsr_key_find(key)];
    struct tsr_arena *arena = &experiment->doc.arena;
    const char **all = tsr_arena_alloc(arena, (MAX_TEXTS + 1) * sizeof(*all));
    char own[256];
    size_t n = 1;
    if (!all)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr_key_format(row, &base->settings, own, sizeof own));
    all[0] = tsr_arena_strdup(arena, own);
    if (!all[0])
        return tsr_no_memory(NULL);
    for (size_t i = 0; texts[i] && n <= MAX_TEXTS; i++)
        if (strcmp(texts[i], own) != 0)
            all[n++] = texts[i];
    return tsr_plan_add_axis(experiment, base, key, all, n, out);
}

/* How the ranks of data parallelism are cut: one dimension, and every HSDP that divides them. */
static tsr_status add_meshes(struct tsr_experiment *experiment, const struct tsr_job *job,
                             struct tsr_plan_space *out)
{
    const struct tsr_settings *s = job->settings;
    struct tsr_arena *arena = &experiment->doc.arena;
    const char **texts = tsr_arena_alloc(arena, (MAX_TEXTS + 2) * sizeof(*texts));
    uint32_t ranks = job->world / (uint32_t)s->tp;
    bool given = s->mesh.n || s->mesh_replicate || s->mesh_shard;
    size_t n = 0;
    if (!texts)
        return tsr_no_memory(NULL);
    if (ranks < 4)
        return TSR_OK;
    texts[n++] = given ? tsr_arena_printf(arena, "[%" PRIu32 "]", ranks) : "null";
    for (uint32_t copies = 2; copies <= ranks / 2 && n < MAX_TEXTS; copies++)
        if (ranks % copies == 0)
            texts[n++] =
                tsr_arena_printf(arena, "[%" PRIu32 ", %" PRIu32 "]", copies, ranks / copies);
    for (size_t i = 0; i < n; i++)
        if (!texts[i])
            return tsr_no_memory(NULL);
    return tsr_plan_add_axis(experiment, job->strategy, "mesh", texts, n, out);
}

tsr_status tsr_plan_space_default(struct tsr_experiment *experiment, const struct tsr_job *job,
                                  struct tsr_plan_space *out)
{
    static const char *const batches[] = {"1", "2", "4", "8", "16", "32", NULL};
    static const char *const checkpoints[] = {"none", "selective_op", "full", "2", NULL};
    static const char *const reductions[] = {"f32", "bf16", NULL};
    static const char *const reshards[] = {"null", "true", "false", NULL};
    static const char *const wraps[] = {"block", "block_embed_head", NULL};
    static const char *const ahead_forward[] = {"0", "1", NULL};
    static const char *const ahead_backward[] = {"0", "2", NULL};
    static const char *const views[] = {"false", "true", NULL};
    static const char *const keeps[] = {"null", "false", NULL};
    static const char *const when[] = {"pre", "post", NULL};
    const struct tsr_strategy *base = job->strategy;
    enum tsr_api api = (enum tsr_api)job->settings->api;
    TSR_TRY(add(experiment, base, "batch", batches, out));
    TSR_TRY(add(experiment, base, "checkpoint.every", checkpoints, out));
    if (api == TSR_API_DDP)
        return add(experiment, base, "ddp.gradient_as_bucket_view", views, out);
    if (job->settings->master != TSR_F64) /* which has one form */
        TSR_TRY(add(experiment, base, "precision.reduce", reductions, out));
    if (job->settings->wrap.kind != TSR_WRAP_LIST)
        TSR_TRY(add(experiment, base, "wrap", wraps, out));
    if (api == TSR_API_REPLICATE)
        return TSR_OK;
    TSR_TRY(add_meshes(experiment, job, out));
    if (api == TSR_API_FSDP1) {
        TSR_TRY(add(experiment, base, "reshard_after_forward", keeps, out));
        TSR_TRY(add(experiment, base, "fsdp1.forward_prefetch", views, out));
        return add(experiment, base, "fsdp1.backward_prefetch", when, out);
    }
    TSR_TRY(add(experiment, base, "reshard_after_forward", reshards, out));
    TSR_TRY(add(experiment, base, "forward_prefetch", ahead_forward, out));
    return add(experiment, base, "backward_prefetch", ahead_backward, out);
}
