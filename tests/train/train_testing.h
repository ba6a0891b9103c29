/* train_testing.h: whole training jobs in one process: a small Llama, ranks as threads, a strategy
 * for each job; and what a checkpoint of theirs holds.
 */
#ifndef TSR_TRAIN_TESTING_H
#define TSR_TRAIN_TESTING_H

#include "exec/host/host_device.h"
#include "exec/train/train_impl.h"
#include "tests/files/disk_testing.h"

enum { TT_MOST = 8, TT_TEXT = 1024 };

enum tt_strategy { TT_FSDP, TT_HSDP, TT_DDP };

struct tt_job {
    enum tt_strategy strategy; /* TT_HSDP: two replicas */
    uint32_t world, batch;     /* global batch: world * batch */
    struct tsr_train_config config;
    uint64_t layers; /* 0: 2 */
    uint32_t odd;    /* rank that `change` is called for; with it */
    void (*change)(struct tsr_train_config *config, struct tt_job *job);
    bool
        save_at_once; /* when the checkpoint has been read, save it as it is, and do nothing else */
};

struct tt_end {
    tsr_status status;
    char text[TT_TEXT];
    struct tsr_train_result result;
};

struct tt_rank {
    const struct tt_job *job;
    uint32_t rank;
    struct tsr_world *world;
    struct tt_end end;
};

static inline struct tsr_train_config tt_config(const char *dir, uint64_t steps)
{
    return (struct tsr_train_config){.seq = 16,
                                     .n_vocab = 96,
                                     .seed = 11,
                                     .n_micro = 1,
                                     .schedule = {TSR_SCHEDULE_CONSTANT, 0.01, 1, 0, steps},
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1,
                                     .max_norm = 1,
                                     .n_states = 2,
                                     .log_every = 1,
                                     .dir = dir,
                                     .keep = 3};
}

/* ---- an engine ------------------------------------------------------------------------------- */

static inline tsr_status tt_wrap(struct tsr_engine *e, const struct tt_job *job, uint64_t layers)
{
    struct tsr_module *root = tsr_module_root(e);
    const struct tsr_wrap_options options = {.reshard = TSR_RESHARD_DEFAULT};
    if (job->strategy == TT_DDP)
        return tsr_ddp(e, &(struct tsr_ddp_options){.bucket_cap_mb = 0});
    for (uint64_t i = 0; i < layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "model.layers.%llu", (unsigned long long)i);
        struct tsr_module *layer = tsr_module_find(e, name);
        TSR_TRY(tsr_fully_shard(e, &layer, 1, &options));
    }
    return tsr_fully_shard(e, &root, 1, &options);
}

static inline tsr_status tt_set_up(struct tsr_engine *e, const struct tt_job *job,
                                   const struct tsr_train_config *c)
{
    const struct tsr_llama_config model = {.hidden_size = 32,
                                           .intermediate_size = 72,
                                           .n_layers = job->layers ? job->layers : 2,
                                           .n_heads = 2,
                                           .n_kv_heads = 1,
                                           .head_dim = 16,
                                           .max_positions = 64,
                                           .vocab_size = c->n_vocab};
    const struct tsr_step_config step = {.batch = job->batch,
                                         .seq = c->seq,
                                         .n_micro = c->n_micro,
                                         .optimizer = TSR_OPT_ADAMW_FUSED,
                                         .clip = c->max_norm > 0,
                                         .decay_matrices_only = true,
                                         .report = true};
    TSR_TRY(tsr_model_llama(e, &model));
    TSR_TRY(tt_wrap(e, job, model.n_layers));
    return tsr_step_configure(e, &step);
}

static inline tsr_status tt_engine(struct tsr_executor *executor, const struct tt_rank *r,
                                   const struct tt_job *job, const struct tsr_train_config *config,
                                   struct tsr_engine **out)
{
    struct tsr_engine_config c = {
        .mesh = {.n_dims = 1, .shape = {job->world}}, .rank = r->rank, .executor = executor};
    if (job->strategy == TT_HSDP)
        c.mesh = (struct tsr_mesh){
            .n_dims = 2, .shape = {2, job->world / 2}, .name = {"replicate", "shard"}};
    TSR_TRY(tsr_engine_create(&c, out));
    tsr_status status = tt_set_up(*out, job, config);
    if (status == TSR_OK)
        return TSR_OK;
    tsr_engine_destroy(*out);
    *out = NULL;
    return status;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static inline tsr_status tt_train(struct tt_rank *r, const struct tt_job *job,
                                  const struct tsr_train_config *c, struct tsr_train *train,
                                  struct tsr_executor *executor)
{
    struct tsr_engine *engine = NULL;
    TSR_TRY(tt_engine(executor, r, job, c, &engine));
    tsr_status status = tsr_train_run(train, engine, executor, &r->end.result);
    if (status == TSR_OK && job->save_at_once)
        status = tsr_train_save(train);
    if (status != TSR_OK) {
        snprintf(r->end.text, TT_TEXT, "%s", tsr_error_text());
        r->world->ops->abort(r->world, status, r->end.text);
    }
    (void)!executor->ops->drain(executor);
    executor->ops->destroy(executor);
    tsr_engine_destroy(engine);
    return status;
}

static inline tsr_status tt_run_rank(struct tt_rank *r)
{
    struct tt_job job = *r->job;
    struct tsr_train_config c = job.config;
    struct tsr_train *train = NULL;
    struct tsr_executor *executor = NULL;
    if (job.change && r->rank == job.odd)
        job.change(&c, &job);
    c.world = r->world;
    c.rank = c.data_rank = r->rank;
    c.size = c.data_size = job.world;
    c.micro_batch = job.batch;
    TSR_TRY(tsr_train_create(&c, &train));
    const struct tsr_source source = tsr_train_source(train);
    const struct tsr_host_rank_config host = {.world = r->world, .source = &source, .poison = true};
    tsr_status status = tsr_host_rank_create(&host, &executor);
    if (status == TSR_OK)
        status = tt_train(r, &job, &c, train, executor);
    tsr_train_destroy(train);
    return status;
}

static inline void *tt_main(void *user)
{
    struct tt_rank *r = user;
    r->end.status = tt_run_rank(r);
    if (r->end.status != TSR_OK && !r->end.text[0]) {
        snprintf(r->end.text, TT_TEXT, "%s", tsr_error_text());
        r->world->ops->abort(r->world, r->end.status, r->end.text);
    }
    return NULL;
}

/* Runs all ranks; `ends` has one entry for each. */
static inline void tt_run(const struct tt_job *job, struct tt_end *ends)
{
    struct tsr_world *worlds[TT_MOST];
    struct tt_rank ranks[TT_MOST];
    pthread_t threads[TT_MOST];
    assert_true(job->world <= TT_MOST);
    if (job->config.dir)
        (void)mkdir(job->config.dir, 0777);
    assert_int_equal(tsr_world_threads(job->world, 60, worlds), TSR_OK);
    for (uint32_t r = 0; r < job->world; r++) {
        ranks[r] = (struct tt_rank){.job = job, .rank = r, .world = worlds[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, tt_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < job->world; r++)
        pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < job->world; r++) {
        ends[r] = ranks[r].end;
        worlds[r]->ops->destroy(worlds[r]);
    }
}

/* All is well on all ranks; what rank 0 has done. */
static inline struct tsr_train_result tt_run_well(const struct tt_job *job)
{
    struct tt_end ends[TT_MOST];
    tt_run(job, ends);
    for (uint32_t r = 0; r < job->world; r++)
        if (ends[r].status != TSR_OK)
            fail_msg("rank %u: %s", r, ends[r].text);
    return ends[0].result;
}

/* Every rank ends with this status and exactly this text. */
static inline void tt_run_badly(const struct tt_job *job, tsr_status status, const char *text)
{
    struct tt_end ends[TT_MOST];
    tt_run(job, ends);
    for (uint32_t r = 0; r < job->world; r++) {
        assert_string_equal(ends[r].text, text);
        assert_int_equal(ends[r].status, status);
    }
}

#endif
