/* plan_default.c: the space of `tessera plan` where the file has none: the knobs that people turn
 * first, none that changes the model, the optimizer or the numbers. experiments/guide/plan.md
 * documents it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/config/experiment.h"
#include "experiments/study/config/settings.h"
#include "experiments/study/job/build.h"
#include "experiments/study/model/trace_file.h"
#include "experiments/study/plan/plan.h"

enum { MAX_TEXTS = 40 };

/* Does the strategy accept the value, all else as it is? GPT-2 has no tensor parallelism. */
static bool accepts(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                    const char *key, const char *text)
{
    struct tsr_variant variant = {.n = 1, .set = {{key, text}}};
    struct tsr_strategy changed;
    struct tsr_job job;
    if (tsr_variant_apply(experiment, base, &variant, &changed) != TSR_OK ||
        tsr_job_open(experiment, &changed, TSR_NEEDS_ALL, &job) != TSR_OK)
        return false;
    bool accepted = tsr_build_check(&job) == TSR_OK;
    tsr_job_close(&job);
    return accepted;
}

/* One axis, of a job's settings; the strategy's own value comes first if the list lacks it.
 * `tries`: leaves out what the strategy refuses; with no value of its own but one there is no axis.
 */
static tsr_status add(struct tsr_experiment *experiment, const struct tsr_strategy *base,
                      const struct tsr_settings *settings, enum tsr_key_id key,
                      const char *const *texts, bool tries, struct tsr_plan_space *out)
{
    const struct tsr_key *row = &tsr_keys[key];
    struct tsr_arena *arena = &experiment->doc.arena;
    const char **all = tsr_arena_alloc(arena, (MAX_TEXTS + 1) * sizeof(*all));
    char own[256];
    size_t n = 1;
    if (!all)
        return tsr_no_memory(NULL);
    TSR_TRY(tsr_key_format(row, settings, own, sizeof own));
    all[0] = tsr_arena_strdup(arena, own);
    if (!all[0])
        return tsr_no_memory(NULL);
    for (size_t i = 0; texts[i] && n <= MAX_TEXTS; i++)
        if (strcmp(texts[i], own) != 0 &&
            (!tries || accepts(experiment, base, row->name, texts[i])))
            all[n++] = texts[i];
    return tries && n == 1 ? TSR_OK : tsr_plan_add_axis(experiment, base, row->name, all, n, out);
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
    for (uint32_t copies = 2; copies <= ranks / 2 && n < MAX_TEXTS; copies++) {
        if (ranks % copies != 0)
            continue;
        texts[n++] =
            given ? tsr_arena_printf(arena, "[%" PRIu32 ", %" PRIu32 "]", copies, ranks / copies)
                  : tsr_arena_printf(arena, "{replicate: %" PRIu32 "}", copies);
    }
    for (size_t i = 0; i < n; i++)
        if (!texts[i])
            return tsr_no_memory(NULL);
    return tsr_plan_add_axis(experiment, job->strategy, "mesh", texts, n, out);
}

/* Tensor parallelism inside a node, where the mesh is not given as sizes that count on one. */
static tsr_status add_tp(struct tsr_experiment *experiment, const struct tsr_job *job,
                         struct tsr_plan_space *out)
{
    static const char *const sizes[] = {"1", "2", "4", "8", NULL};
    const struct tsr_settings *s = job->settings;
    const char *fitting[5] = {NULL};
    size_t n = 0;
    if (s->mesh.n || s->mesh_replicate || s->mesh_shard)
        return TSR_OK;
    for (size_t i = 0; sizes[i]; i++) {
        uint32_t size = (uint32_t)strtoul(sizes[i], NULL, 10);
        if (size <= job->cluster.gpus_per_node && size <= job->world / 2)
            fitting[n++] = sizes[i];
    }
    return n > 1 ? add(experiment, job->strategy, s, TSR_K_TP, fitting, true, out) : TSR_OK;
}

/* fully_shard: what is cut, when it is gathered, where it is kept. */
static tsr_status add_fully_shard(struct tsr_experiment *experiment, const struct tsr_job *job,
                                  struct tsr_plan_space *out)
{
    static const char *const reshards[] = {"null", "false", NULL};
    static const char *const chunks[] = {"1", "8", NULL};
    static const char *const dialects[] = {"eager", "compile", NULL};
    static const char *const places[] = {"none", "cpu_pinned", NULL};
    const struct tsr_strategy *base = job->strategy;
    TSR_TRY(
        add(experiment, base, job->settings, TSR_K_RESHARD_AFTER_FORWARD, reshards, false, out));
    TSR_TRY(add_tp(experiment, job, out));
    TSR_TRY(add(experiment, base, job->settings, TSR_K_LOSS_CHUNKS, chunks, true, out));
    TSR_TRY(add(experiment, base, job->settings, TSR_K_DIALECT, dialects, true, out));
    return add(experiment, base, job->settings, TSR_K_OFFLOAD, places, true, out);
}

static bool is_in(const char *const *texts, const char *text)
{
    for (; *texts; texts++)
        if (!strcmp(*texts, text))
            return true;
    return false;
}

/* Batches and checkpointing: what the trace of a model has. */
static tsr_status add_traced(struct tsr_experiment *experiment, const struct tsr_job *job,
                             struct tsr_plan_space *out)
{
    static const char *const choices[][2] = {
        {"none", "none"}, {"selective", "selective_op"}, {"full", "full"}, {"every2", "2"}};
    const struct tsr_traced_file *t = job->model.trace;
    const char *batches[MAX_TEXTS + 1] = {NULL}, *checkpoints[5] = {NULL};
    size_t n_batches = 0, n_checkpoints = 0;
    for (size_t i = 0; i < t->n_variants && n_batches < MAX_TEXTS; i++) {
        const char *text =
            tsr_arena_printf(&experiment->doc.arena, "%" PRIu64, t->variants[i].batch);
        if (!text)
            return tsr_no_memory(NULL);
        if (!is_in(batches, text))
            batches[n_batches++] = text;
    }
    for (size_t k = 0; k < sizeof choices / sizeof choices[0]; k++)
        for (size_t i = 0; i < t->n_variants; i++)
            if (!strcmp(t->variants[i].checkpoint, choices[k][0]) &&
                !is_in(checkpoints, choices[k][1]))
                checkpoints[n_checkpoints++] = choices[k][1];
    TSR_TRY(add(experiment, job->strategy, job->settings, TSR_K_BATCH, batches, false, out));
    return add(experiment, job->strategy, job->settings, TSR_K_CHECKPOINT_EVERY, checkpoints, false,
               out);
}

tsr_status tsr_plan_space_default(struct tsr_experiment *experiment, const struct tsr_job *job,
                                  struct tsr_plan_space *out)
{
    static const char *const batches[] = {"1", "2", "4", "8", "16", "32", NULL};
    static const char *const checkpoints[] = {"none", "selective_op", "full", "2", NULL};
    static const char *const wraps[] = {"block", "block_embed_head", NULL};
    static const char *const views[] = {"false", "true", NULL};
    static const char *const keeps[] = {"null", "false", NULL};
    static const char *const when[] = {"pre", "post", NULL};
    const struct tsr_strategy *base = job->strategy;
    enum tsr_api api = (enum tsr_api)job->settings->api;
    if (job->model.trace) {
        TSR_TRY(add_traced(experiment, job, out));
    } else {
        TSR_TRY(add(experiment, base, job->settings, TSR_K_BATCH, batches, false, out));
        TSR_TRY(
            add(experiment, base, job->settings, TSR_K_CHECKPOINT_EVERY, checkpoints, false, out));
    }
    if (api == TSR_API_DDP)
        return add(experiment, base, job->settings, TSR_K_DDP_GRADIENT_AS_BUCKET_VIEW, views, false,
                   out);
    if (job->settings->wrap.kind != TSR_WRAP_LIST)
        TSR_TRY(
            add(experiment, base, job->settings, TSR_K_WRAP, wraps, job->model.trace != NULL, out));
    if (api == TSR_API_REPLICATE)
        return TSR_OK;
    TSR_TRY(add_meshes(experiment, job, out));
    if (api == TSR_API_FULLY_SHARD)
        return add_fully_shard(experiment, job, out);
    TSR_TRY(add(experiment, base, job->settings, TSR_K_RESHARD_AFTER_FORWARD, keeps, false, out));
    TSR_TRY(add(experiment, base, job->settings, TSR_K_FSDP1_FORWARD_PREFETCH, views, false, out));
    return add(experiment, base, job->settings, TSR_K_FSDP1_BACKWARD_PREFETCH, when, false, out);
}

/* ---- combinations that refuse each other --------------------------------------------------- */

static const char *text_of(const struct tsr_plan_space *space, size_t i, const char *key)
{
    for (size_t k = 0; k < space->n_axes; k++)
        if (!strcmp(space->axes[k].key, key))
            return space->axes[k].values[tsr_plan_pick(space, i, k)].text;
    return "";
}

const char *tsr_plan_excludes(const struct tsr_plan *plan, size_t i)
{
    static const char copies[] = "{replicate: ";
    const struct tsr_plan_space *space = &plan->space;
    const char *tp = text_of(space, i, tsr_keys[TSR_K_TP].name), *mesh = text_of(space, i, "mesh");
    uint32_t size = (uint32_t)strtoul(tp, NULL, 10);
    if (!space->is_default || size <= 1)
        return NULL;
    if (strtoul(text_of(space, i, tsr_keys[TSR_K_LOSS_CHUNKS].name), NULL, 10) > 1)
        return "tp beside loss.chunks";
    if (plan->job.settings->linear == TSR_LINEAR_FP8_TENSORWISE)
        return "tp beside precision.linear: fp8_tensorwise";
    uint32_t ranks = plan->job.world / size, replicas = 1;
    if (!strncmp(mesh, copies, strlen(copies)))
        replicas = (uint32_t)strtoul(mesh + strlen(copies), NULL, 10);
    return replicas > 1 && (ranks % replicas != 0 || ranks / replicas < 2)
               ? "a mesh that does not divide what tp leaves"
               : NULL;
}
