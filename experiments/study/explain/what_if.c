/* what_if.c: the table of what-ifs, which of them apply to a strategy, and their
 * measurement: many variants are emitted in a few processes.
 *
 * A row whose value a strategy cannot have is passed over.
 */
#include "experiments/study/explain/what_if.h"
#include "experiments/study/config/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "experiments/study/base/exit_status.h"
#include "experiments/study/base/pool.h"
#include "experiments/study/job/job.h"
#include "experiments/study/simulate/simulate.h"

/* Strategies for which a row means something. GROUPS: fully_shard, replicate and fsdp1; LISTS: the
 * first two; FLAT: fsdp1; GQA: models with fewer key heads than query heads. HEAD: those whose head
 * can make the loss in chunks. */
enum who { ANY, SHARDS, GROUPS, LISTS, FLAT, REPLICATE, DDP, GQA, HEAD };

static const struct choice {
    enum tsr_what_if_effect effect;
    enum who who;
    enum tsr_key_id key;
    const char *value;
} choices[] = {
    {TSR_EFFECT_NONE, SHARDS, TSR_K_RESHARD_AFTER_FORWARD, "null"},
    {TSR_EFFECT_NONE, SHARDS, TSR_K_RESHARD_AFTER_FORWARD, "true"},
    {TSR_EFFECT_NONE, SHARDS, TSR_K_RESHARD_AFTER_FORWARD, "false"},
    {TSR_EFFECT_NONE, GROUPS, TSR_K_WRAP, "block"},
    {TSR_EFFECT_NONE, GROUPS, TSR_K_WRAP, "block_embed_head"},
    {TSR_EFFECT_NONE, GROUPS, TSR_K_WRAP, "root"},
    {TSR_EFFECT_NONE, REPLICATE, TSR_K_API, "fully_shard"},
    {TSR_EFFECT_NONE, DDP, TSR_K_API, "fully_shard"},
    {TSR_EFFECT_NONE, LISTS, TSR_K_FORWARD_PREFETCH, "0"},
    {TSR_EFFECT_NONE, LISTS, TSR_K_FORWARD_PREFETCH, "1"},
    {TSR_EFFECT_NONE, LISTS, TSR_K_FORWARD_PREFETCH, "2"},
    {TSR_EFFECT_NONE, LISTS, TSR_K_BACKWARD_PREFETCH, "0"},
    {TSR_EFFECT_NONE, LISTS, TSR_K_BACKWARD_PREFETCH, "1"},
    {TSR_EFFECT_NONE, LISTS, TSR_K_BACKWARD_PREFETCH, "2"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_RESHARD_AFTER_FORWARD, "null"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_RESHARD_AFTER_FORWARD, "false"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_API, "fully_shard"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_FSDP1_FORWARD_PREFETCH, "false"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_FSDP1_FORWARD_PREFETCH, "true"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_FSDP1_BACKWARD_PREFETCH, "pre"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_FSDP1_BACKWARD_PREFETCH, "post"},
    {TSR_EFFECT_NONE, FLAT, TSR_K_FSDP1_BACKWARD_PREFETCH, "none"},
    {TSR_EFFECT_NONE, ANY, TSR_K_CHECKPOINT_EVERY, "none"},
    {TSR_EFFECT_NONE, ANY, TSR_K_CHECKPOINT_EVERY, "2"},
    {TSR_EFFECT_NONE, ANY, TSR_K_CHECKPOINT_EVERY, "full"},
    {TSR_EFFECT_NONE, ANY, TSR_K_CHECKPOINT_EVERY, "selective_op"},
    {TSR_EFFECT_NONE, HEAD, TSR_K_LOSS_CHUNKS, "8"},
    {TSR_EFFECT_NUMBERS, ANY, TSR_K_PRECISION_PARAM, "bf16"},
    {TSR_EFFECT_NUMBERS, ANY, TSR_K_PRECISION_PARAM, "none"},
    {TSR_EFFECT_NUMBERS, GROUPS, TSR_K_PRECISION_REDUCE, "bf16"},
    {TSR_EFFECT_NUMBERS, GROUPS, TSR_K_PRECISION_REDUCE, "f32"},
    {TSR_EFFECT_NUMBERS, ANY, TSR_K_PRECISION_MASTER, "bf16"},
    {TSR_EFFECT_NONE, ANY, TSR_K_OPTIMIZER_VARIANT, "foreach"},
    {TSR_EFFECT_NONE, ANY, TSR_K_OPTIMIZER_VARIANT, "fused"},
    {TSR_EFFECT_NONE, ANY, TSR_K_OPTIMIZER_VARIANT, "loop"},
    {TSR_EFFECT_NUMBERS, ANY, TSR_K_OPTIMIZER_STATE, "bf16"},
    {TSR_EFFECT_NUMBERS, ANY, TSR_K_OPTIMIZER_NAME, "sgd"},
    {TSR_EFFECT_NONE, GROUPS, TSR_K_ACCUMULATION_MODE, "reduce_each"},
    {TSR_EFFECT_NONE, GROUPS, TSR_K_ACCUMULATION_MODE, "no_reduce"},
    {TSR_EFFECT_NONE, SHARDS, TSR_K_OFFLOAD, "none"},
    {TSR_EFFECT_NONE, SHARDS, TSR_K_OFFLOAD, "cpu_pinned"},
    {TSR_EFFECT_NONE, ANY, TSR_K_ATTENTION, "flash"},
    {TSR_EFFECT_NONE, ANY, TSR_K_ATTENTION, "efficient"},
    {TSR_EFFECT_NONE, ANY, TSR_K_ATTENTION, "math"},
    {TSR_EFFECT_NONE, GQA, TSR_K_GQA_REPEAT, "false"},
    {TSR_EFFECT_NONE, GQA, TSR_K_GQA_REPEAT, "true"},
    {TSR_EFFECT_NONE, DDP, TSR_K_DDP_GRADIENT_AS_BUCKET_VIEW, "true"},
    {TSR_EFFECT_NONE, ANY, TSR_K_ALLOCATOR_EXPANDABLE_SEGMENTS, "true"},
    {TSR_EFFECT_NONE, ANY, TSR_K_ALLOCATOR_EXPANDABLE_SEGMENTS, "false"},
};

struct list {
    const struct tsr_job *job;
    struct tsr_experiment *experiment;
    struct tsr_what_if *out;
    size_t n;
};

/* ---- one candidate --------------------------------------------------------------------------- */

static struct tsr_what_if *begin(struct list *list, enum tsr_key_id dimension,
                                 enum tsr_what_if_effect effect)
{
    TSR_CHECK(list->n < TSR_MAX_WHAT_IFS);
    struct tsr_what_if *what = &list->out[list->n];
    memset(what, 0, sizeof(*what));
    what->dimension = dimension;
    what->effect = effect;
    return what;
}

void tsr_variant_add(struct tsr_variant *variant, char (*values)[TSR_WHAT_IF_VALUE], size_t room,
                     const char *key, const char *value)
{
    size_t i = variant->n++;
    TSR_CHECK(i < room);
    snprintf(values[i], sizeof values[i], "%s", value);
    variant->set[i].key = key;
    variant->set[i].value = values[i];
}

static void set(struct tsr_what_if *what, enum tsr_key_id key, const char *value)
{
    tsr_variant_add(&what->variant, what->values, TSR_WHAT_IF_KEYS, tsr_keys[key].name, value);
}

static void set_number(struct tsr_what_if *what, enum tsr_key_id key, uint64_t value)
{
    char text[TSR_WHAT_IF_VALUE];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    set(what, key, text);
}

/* The key itself, or one below it where it is a prefix: cluster, cluster.gpus. */
static bool belongs(const char *name, const char *key)
{
    size_t n = strlen(key);
    return !strncmp(name, key, n) && (name[n] == '\0' || name[n] == '.');
}

bool tsr_what_if_equal(const struct tsr_variant *variant, const struct tsr_settings *a,
                       const struct tsr_settings *b)
{
    for (size_t i = 0; i < variant->n; i++)
        for (size_t key = 0; key < TSR_N_KEYS; key++) {
            char x[512], y[512];
            if (!belongs(tsr_keys[key].name, variant->set[i].key))
                continue;
            if (tsr_key_format(&tsr_keys[key], a, x, sizeof x) != TSR_OK ||
                tsr_key_format(&tsr_keys[key], b, y, sizeof y) != TSR_OK || strcmp(x, y) != 0)
                return false;
        }
    return true;
}

/* Keeps the candidate if every key takes its value. */
static void end(struct list *list)
{
    struct tsr_what_if *what = &list->out[list->n];
    struct tsr_strategy changed;
    if (tsr_variant_apply(list->experiment, list->job->strategy, &what->variant, &changed) !=
        TSR_OK)
        return;
    what->is_set = tsr_what_if_equal(&what->variant, list->job->settings, &changed.settings);
    what->needs = tsr_needs_beyond(&changed.settings, list->job->settings);
    list->n++;
}

/* ---- the table ------------------------------------------------------------------------------- */

static bool applies(const struct list *list, const struct choice *choice)
{
    const struct tsr_settings *s = list->job->settings;
    bool many = s->accum_steps > 1;
    if (!tsr_job_reads(list->job, choice->key))
        return false;
    if (choice->key == TSR_K_ACCUMULATION_MODE && !many)
        return false;
    if (choice->key == TSR_K_OPTIMIZER_VARIANT && s->optimizer == TSR_OPTIM_NONE)
        return false;
    if (!strcmp(choice->value, "selective_op") &&
        (s->ckpt_hooks == TSR_HOOKS_OUTSIDE || !s->ckpt_early_stop))
        return false;
    switch (choice->who) {
    case ANY:
        return true;
    case SHARDS:
        return s->api == TSR_API_FULLY_SHARD;
    case GROUPS:
        return s->api != TSR_API_DDP;
    case LISTS:
        return s->api == TSR_API_FULLY_SHARD || s->api == TSR_API_REPLICATE;
    case FLAT:
        return s->api == TSR_API_FSDP1;
    case REPLICATE:
        return s->api == TSR_API_REPLICATE;
    case DDP:
        return s->api == TSR_API_DDP;
    case GQA:
        return list->job->model.family == TSR_FAMILY_LLAMA &&
               list->job->model.llama.n_kv_heads < list->job->model.llama.n_heads;
    case HEAD:
        return list->job->model.family != TSR_FAMILY_TREE && !list->job->model.trace &&
               s->tp == 1 && s->batch * s->seq >= 8; /* as many tokens as chunks */
    }
    return false;
}

static void add_choices(struct list *list)
{
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (!applies(list, &choices[i]))
            continue;
        struct tsr_what_if *what = begin(list, choices[i].key, choices[i].effect);
        set(what, choices[i].key, choices[i].value);
        end(list);
    }
}

/* ---- what depends on sizes ------------------------------------------------------------------- */

static bool shards(const struct tsr_settings *s)
{
    return s->api == TSR_API_FULLY_SHARD || s->api == TSR_API_FSDP1;
}

static uint32_t shard_ranks(const struct tsr_job *job)
{
    for (int i = 0; i < job->mesh.n_dims; i++)
        if (!strcmp(job->mesh.name[i], "shard"))
            return job->mesh.shape[i];
    return 1;
}

/* Resharding to the GPUs of a node, else to half of the ranks. */
static void add_partial_reshard(struct list *list)
{
    uint32_t ranks = shard_ranks(list->job), node = list->job->cluster.gpus_per_node;
    uint32_t to = node > 1 && node < ranks && ranks % node == 0 ? node : ranks / 2;
    if (list->job->settings->api != TSR_API_FULLY_SHARD || to < 2 || ranks % to != 0)
        return;
    struct tsr_what_if *what = begin(list, TSR_K_RESHARD_AFTER_FORWARD, TSR_EFFECT_NONE);
    set_number(what, TSR_K_RESHARD_AFTER_FORWARD, to);
    end(list);
}

static void add_batch(struct list *list, uint64_t batch)
{
    const struct tsr_settings *s = list->job->settings;
    if (batch == 0 || batch == s->batch || s->batch % batch != 0)
        return;
    struct tsr_what_if *what = begin(list, TSR_K_BATCH, TSR_EFFECT_NONE);
    set_number(what, TSR_K_BATCH, batch);
    set_number(what, TSR_K_ACCUMULATION_STEPS, s->accum_steps * (s->batch / batch));
    end(list);
}

/* The same tokens per iteration in more, smaller micro-batches. */
static void add_batches(struct list *list)
{
    uint64_t batch = list->job->settings->batch;
    add_batch(list, batch / 2);
    if (batch > 3)
        add_batch(list, 1);
}

/* `copies` x `shards` ranks, in the words in which the strategy gives its mesh: the other ones
 * would stand beside them. */
static void set_mesh(const struct tsr_job *job, uint32_t copies, uint32_t shards,
                     struct tsr_what_if *what)
{
    const struct tsr_settings *s = job->settings;
    char shape[TSR_WHAT_IF_VALUE];
    if (s->mesh_replicate || s->mesh_shard) {
        if (s->mesh_replicate && copies == 1)
            set(what, TSR_K_MESH_REPLICATE, "null");
        set_number(what, TSR_K_MESH_SHARD, shards);
        return;
    }
    if (copies > 1)
        snprintf(shape, sizeof shape, "[%u, %u]", copies, shards);
    else
        snprintf(shape, sizeof shape, "[%u]", shards);
    set(what, TSR_K_MESH_SHAPE, shape);
}

static uint32_t copies(const struct tsr_job *job)
{
    return !strcmp(job->mesh.name[0], "replicate") ? job->mesh.shape[0] : 1;
}

/* Twice the ranks, all in the shard dimension; beyond the cluster if that is full. */
static void add_ranks(struct list *list)
{
    const struct tsr_job *job = list->job;
    const struct tsr_settings *s = job->settings;
    uint64_t have = (uint64_t)job->cluster.nodes * job->cluster.gpus_per_node;
    uint64_t world = 2 * (uint64_t)job->world;
    if (!shards(s))
        return; /* copies stay as large as they are */
    struct tsr_what_if *what = begin(list, TSR_K_WORLD, TSR_EFFECT_GPUS);
    set_number(what, TSR_K_WORLD, world);
    if (s->mesh.n || s->mesh_replicate || s->mesh_shard)
        set_mesh(job, copies(job), 2 * shard_ranks(job), what);
    if (*job->cluster.name && world > have && s->alloc_limit != TSR_LIMIT_CARD)
        tsr_variant_add(&what->variant, what->values, TSR_WHAT_IF_KEYS, "cluster", "null");
    end(list);
}

bool tsr_what_if_other_mesh(const struct tsr_job *job, struct tsr_what_if *what)
{
    uint32_t ranks = copies(job) * shard_ranks(job), node = job->cluster.gpus_per_node;
    uint32_t per_copy = node > 1 && node < ranks && ranks % node == 0 ? node : ranks / 2;
    if (!shards(job->settings) || ranks == 1)
        return false;
    if (copies(job) == 1 && (per_copy < 2 || ranks % per_copy != 0 || job->settings->mesh_shard))
        return false;
    if (copies(job) > 1)
        set_mesh(job, 1, ranks, what);
    else
        set_mesh(job, ranks / per_copy, per_copy, what);
    return true;
}

static void add_meshes(struct list *list)
{
    if (tsr_what_if_other_mesh(list->job, begin(list, TSR_K_WORLD, TSR_EFFECT_NONE)))
        end(list);
}

size_t tsr_what_if_list(const struct tsr_job *job, struct tsr_experiment *experiment,
                        struct tsr_what_if out[TSR_MAX_WHAT_IFS])
{
    struct list list = {job, experiment, out, 0};
    add_choices(&list);
    add_partial_reshard(&list);
    add_batches(&list);
    add_meshes(&list);
    add_ranks(&list);
    return list.n;
}

/* ---- measuring, in a child ------------------------------------------------------------------- */

struct task {
    struct tsr_experiment *experiment;
    const struct tsr_strategy *from;
    const struct tsr_variant *const *variants;
    bool simulate;
    struct tsr_what_if_result *results;
};

static tsr_status measure(const struct task *task, const struct tsr_variant *variant,
                          struct tsr_row *row, bool *timed)
{
    struct tsr_strategy changed;
    struct tsr_job job;
    TSR_TRY(tsr_variant_apply(task->experiment, task->from, variant, &changed));
    TSR_TRY(tsr_job_open(task->experiment, &changed, TSR_MAY_LACK_CLUSTER, &job));
    *timed = task->simulate && *job.cluster.name;
    tsr_status status = *timed ? tsr_simulate(&job, NULL, NULL, row) : tsr_peak_measure(&job, row);
    tsr_job_close(&job);
    return status;
}

static void run_one(void *user, size_t i, void *result)
{
    const struct task *task = user;
    struct tsr_what_if_result *out = result;
    struct tsr_row row = {0};
    bool timed = false;
    memset(out, 0, sizeof(*out));
    out->step_s = out->exposed_s = -1;
    tsr_status status = measure(task, task->variants[i], &row, &timed);
    if (status != TSR_OK) {
        snprintf(out->failure, sizeof out->failure, "%s", tsr_error_text());
        out->status = tsr_exit_status(status);
        return;
    }
    out->allocated = row.peak_allocated;
    out->reserved = row.peak_reserved;
    out->needed = row.needed;
    out->fits = row.fits;
    out->host = row.host_bytes;
    out->pinned = row.pinned_bytes;
    out->node_host = row.node_host.required;
    out->host_verdict = row.node_host.verdict;
    out->tokens_per_rank = row.tokens_per_rank;
    if (timed) {
        out->step_s = row.steady.step_s;
        out->exposed_s = row.steady.exposed_s;
    }
}

/* ---- measuring, in the parent ---------------------------------------------------------------- */

static tsr_status take(void *user, size_t i, const void *result, const char *end)
{
    struct tsr_what_if_result *out = &((const struct task *)user)->results[i];
    if (!end) {
        memcpy(out, result, sizeof *out);
        return TSR_OK;
    }
    *out = (struct tsr_what_if_result){.status = TSR_EXIT_MACHINE, .step_s = -1, .exposed_s = -1};
    snprintf(out->failure, sizeof out->failure, "its emission ended by %s", end);
    return TSR_OK;
}

static const char *name(void *user, size_t i)
{
    (void)user;
    (void)i;
    return "what-ifs";
}

tsr_status tsr_what_if_run(struct tsr_experiment *experiment, const struct tsr_strategy *from,
                           const struct tsr_variant *const *variants, size_t n, uint64_t jobs,
                           bool simulate, struct tsr_what_if_result *results)
{
    struct task task = {experiment, from, variants, simulate, results};
    /* Emissions are short: the memory of one is there for the next. */
    struct tsr_pool_work work = {.n = n,
                                 .result_bytes = sizeof *results,
                                 .many = true,
                                 .quiet = true,
                                 .user = &task,
                                 .run = run_one,
                                 .take = take,
                                 .name = name};
    return tsr_pool_each(&work, jobs);
}
