/* checkpoint_testing.h: ranks as threads that save together, small models in several layouts, and
 * values that say where they belong: element k of a tensor is a hash of (name, part, k, step).
 */
#ifndef TSR_CHECKPOINT_TESTING_H
#define TSR_CHECKPOINT_TESTING_H

#include "engine/layout/sharded_state.h"
#include "exec/files/checkpoint_impl.h"
#include "tests/engine/parts_testing.h"
#include "tests/files/disk_testing.h"

/* ---- values ---------------------------------------------------------------------------------- */

/* A whole tensor; to be freed. */
static inline char *values(const struct tsr_state_dict *s, size_t entry, int part, tsr_dtype dtype,
                           uint64_t step, size_t *bytes)
{
    const struct tsr_state_entry *e = &s->entries[s->entries[entry].alias_of];
    unsigned size = tsr_dtype_bytes(dtype);
    uint64_t numel = tsr_dtensor_numel(&s->layouts[e->layout]);
    uint64_t seed = tsr_hash_bytes(TSR_HASH_INIT, e->fqn, strlen(e->fqn));
    char *out = malloc((size_t)numel * size + 1);
    assert_non_null(out);
    seed = tsr_hash_u64(tsr_hash_u64(seed, (uint64_t)part), step);
    for (uint64_t k = 0; k < numel; k++) {
        uint64_t value = tsr_hash_u64(seed, k);
        memcpy(out + k * size, &value, size);
    }
    *bytes = (size_t)numel * size;
    return out;
}

/* What a rank holds of it; to be freed. */
static inline char *shard(const struct tsr_state_dict *s, size_t entry, int part, tsr_dtype dtype,
                          uint64_t step, uint32_t rank, uint64_t *bytes)
{
    const struct tsr_dtensor *t = &s->layouts[s->entries[entry].layout];
    size_t n;
    char *whole = values(s, entry, part, dtype, step, &n), *local = malloc(n + 1);
    *bytes = tsr_dtensor_local_numel(t, rank) * tsr_dtype_bytes(dtype);
    assert_int_equal(test_take(t, rank, tsr_dtype_bytes(dtype), whole, local), TSR_OK);
    free(whole);
    return local;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct job {
    struct tsr_checkpoint_config config; /* rank: of each thread */
    struct tsr_checkpoint_layout layout;
    uint64_t step;
    bool backwards; /* puts in the other order */
    bool silent;    /* rank 1 does not put anything */
    struct tsr_checkpoint_info info;
    pthread_barrier_t barrier;
    char *board; /* what the ranks exchange */
};

struct rank {
    struct job *job;
    uint32_t rank;
    tsr_status status;
    char text[512];
    char trouble[512];
    atomic_uint n_exchanges; /* that it has begun */
    atomic_bool has_left;    /* after status was set */
};

/* Rank 0 is slow: rank 1 goes on before it. A world whose rank has left with a failure is gone, and
 * rank 0 must not need it then. */
static inline tsr_status wait_for_next(const struct rank *rank_0)
{
    const struct rank *next = rank_0 + 1;
    while (!atomic_load(&next->has_left) &&
           atomic_load(&next->n_exchanges) <= atomic_load(&rank_0->n_exchanges))
        (void)sched_yield();
    if (!atomic_load(&next->has_left) || next->status == TSR_OK)
        return TSR_OK;
    return tsr_fail(TSR_EPEER, "rank 1 left before rank 0 had heard of the failure");
}

static inline tsr_status exchange(void *user, const void *in, void *out, size_t bytes)
{
    struct rank *r = user;
    uint32_t world = r->job->config.world;
    atomic_fetch_add(&r->n_exchanges, 1);
    if (r->rank == 0)
        r->job->board = malloc(world * bytes + 1);
    pthread_barrier_wait(&r->job->barrier);
    memcpy(r->job->board + r->rank * bytes, in, bytes);
    pthread_barrier_wait(&r->job->barrier);
    memcpy(out, r->job->board, world * bytes);
    pthread_barrier_wait(&r->job->barrier);
    if (r->rank > 0)
        return TSR_OK;
    free(r->job->board);
    return wait_for_next(r);
}

static inline tsr_status put_all(struct tsr_checkpoint_writer *w, const struct rank *r)
{
    const struct tsr_checkpoint_layout *l = &r->job->layout;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < l->params->n * TSR_N_PARTS && status == TSR_OK; i++) {
        size_t k = r->job->backwards ? l->params->n * TSR_N_PARTS - 1 - i : i;
        size_t entry = k / TSR_N_PARTS;
        enum tsr_checkpoint_part part = (enum tsr_checkpoint_part)(k % TSR_N_PARTS);
        tsr_dtype dtype = tsr_checkpoint_dtype(l, part, entry);
        if (l->params->entries[entry].alias_of != entry || dtype == TSR_DTYPE_NONE ||
            (r->job->silent && r->rank == 1))
            continue;
        uint64_t bytes;
        char *local = shard(l->params, entry, (int)part, dtype, r->job->step, r->rank, &bytes);
        if (bytes || i % 2) /* those without elements: now and then */
            status = tsr_checkpoint_put(w, part, entry, local, bytes);
        free(local);
    }
    return status;
}

static inline void *run_rank(void *user)
{
    struct rank *r = user;
    struct tsr_checkpoint_config config = r->job->config;
    struct tsr_checkpoint_writer *w = NULL;
    config.rank = r->rank;
    config.exchange = config.world > 1 ? exchange : NULL;
    config.user = r;
    r->status = tsr_checkpoint_begin(&config, r->job->step, &r->job->layout, &w);
    if (r->status == TSR_OK) {
        (void)!put_all(w, r);
        r->status = tsr_checkpoint_commit(w, &r->job->info);
    }
    if (r->status != TSR_OK)
        snprintf(r->text, sizeof r->text, "%s", tsr_error_text());
    if (w && r->status == TSR_OK && tsr_checkpoint_trouble(w))
        snprintf(r->trouble, sizeof r->trouble, "%s", tsr_checkpoint_trouble(w));
    tsr_checkpoint_writer_destroy(w);
    atomic_store(&r->has_left, true);
    return NULL;
}

enum { MAX_WORLD = 16 };

/* All ranks end alike; rank 0's text becomes this thread's. */
static inline tsr_status save_with(struct job *job, struct rank ranks[MAX_WORLD])
{
    pthread_t threads[MAX_WORLD];
    uint32_t world = job->config.world;
    assert_true(world <= MAX_WORLD);
    assert_int_equal(pthread_barrier_init(&job->barrier, NULL, world), 0);
    memset(ranks, 0, MAX_WORLD * sizeof *ranks);
    for (uint32_t r = world; r-- > 0;) { /* rank 0 is this thread */
        ranks[r].job = job;
        ranks[r].rank = r;
        if (r)
            assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
        else
            run_rank(&ranks[0]);
    }
    for (uint32_t r = 1; r < world; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&job->barrier);
    for (uint32_t r = 1; r < world; r++)
        assert_int_equal(ranks[r].status, ranks[0].status);
    return ranks[0].status == TSR_OK ? TSR_OK : tsr_fail(ranks[0].status, "%s", ranks[0].text);
}

static inline tsr_status save(struct job *job)
{
    struct rank ranks[MAX_WORLD];
    return save_with(job, ranks);
}

static inline struct job job_of(const struct tsr_state_dict *params, const char *dir, uint64_t step)
{
    static const struct tsr_checkpoint_scalar scalars[] = {{"optimizer_step", 17},
                                                           {"loss_scale", 0.1}};
    return (struct job){.config = {.dir = dir, .world = params->world},
                        .layout = {.params = params, .n_states = 2},
                        .step = step,
                        .info = {.model_hash = UINT64_C(0xfedcba9876543210),
                                 .seed = UINT64_MAX,
                                 .data_position = 123456789012345,
                                 .n_scalars = 2,
                                 .scalars = scalars,
                                 .extra = "{\"mesh\":[\"replicate\",\"shard\"]}"}};
}

/* ---- reading --------------------------------------------------------------------------------- */

static inline struct tsr_checkpoint *open_ok(const char *path, bool verify)
{
    struct tsr_checkpoint *c = NULL;
    if (tsr_checkpoint_open(path, verify, &c) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return c;
}

/* Every rank of `to` gets its values, and reads just as many bytes as it holds. */
static inline void check_as(struct tsr_checkpoint *c, const struct tsr_checkpoint_layout *to)
{
    uint64_t step = tsr_checkpoint_step(c);
    for (uint32_t rank = 0; rank < to->params->world; rank++) {
        uint64_t before = atomic_load(&c->bytes_read), expected = 0;
        for (size_t i = 0; i < to->params->n * TSR_N_PARTS; i++) {
            size_t entry = i / TSR_N_PARTS;
            enum tsr_checkpoint_part part = (enum tsr_checkpoint_part)(i % TSR_N_PARTS);
            const struct tsr_state_entry *e = &to->params->entries[entry];
            tsr_dtype dtype = tsr_checkpoint_dtype(to, part, entry);
            uint64_t bytes;
            if (dtype == TSR_DTYPE_NONE)
                continue;
            char *local = shard(to->params, entry, (int)part, dtype, step, rank, &bytes);
            char *found = malloc(bytes + 1);
            if (tsr_checkpoint_read(c, part, e->fqn, dtype, &to->params->layouts[e->layout], rank,
                                    found, bytes) != TSR_OK)
                fail_msg("%s", tsr_error_text());
            if (bytes) /* tensors without elements are no memory at all */
                assert_memory_equal(found, local, bytes);
            expected += bytes;
            free(found);
            free(local);
        }
        assert_int_equal(atomic_load(&c->bytes_read) - before, expected);
    }
}

static inline void check_dir_as(const char *dir, const struct tsr_checkpoint_layout *to,
                                uint64_t step)
{
    struct tsr_checkpoint *c = open_ok(dir, true);
    assert_int_equal(tsr_checkpoint_step(c), step);
    check_as(c, to);
    tsr_checkpoint_close(c);
}

/* ---- layouts --------------------------------------------------------------------------------- */

static const struct tsr_tree_node block[] = {
    {.name = "up", .type = TSR_TREE_LINEAR, .in = 6, .out = 24, .bias = true},
    {.name = "down", .type = TSR_TREE_LINEAR, .in = 24, .out = 6}};
static const struct tsr_tree_node tree[] = {
    {.name = "emb", .type = TSR_TREE_EMBEDDING, .in = 9, .out = 6},
    {.name = "a", .type = TSR_TREE_SEQ, .n_children = 2, .children = block},
    {.name = "cut", .type = TSR_TREE_LINEAR, .in = 6, .out = 3},
    {.name = "norm", .type = TSR_TREE_RMSNORM, .in = 3}, /* fewer rows than ranks */
    {.name = "grow", .type = TSR_TREE_LINEAR, .in = 3, .out = 6},
    {.name = "b", .type = TSR_TREE_SEQ, .n_children = 2, .children = block},
    {.name = "out", .type = TSR_TREE_LINEAR, .in = 6, .out = 9}};

enum wrapping { ONE_GROUP, TWO_GROUPS, COLUMNS, DDP };

/* The state of a small model, tied, wrapped in one of several ways. */
static inline struct tsr_state_dict model_state(const struct tsr_mesh *mesh, enum wrapping how)
{
    struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 7, .children = tree}, .tokens = 9};
    struct tsr_shard_dim columns = {.pattern = "**.down.weight", .dim = 1};
    struct tsr_wrap_options options = {.n_shard_dims = how == COLUMNS, .shard_dims = &columns};
    struct tsr_engine *e = test_engine(mesh, 0);
    struct tsr_state_dict s;
    assert_int_equal(tsr_model_tree(e, &config), TSR_OK);
    assert_int_equal(tsr_param_tie(e, "out.weight", "emb.weight"), TSR_OK);
    struct tsr_module *root = tsr_module_root(e), *a = tsr_module_find(e, "a");
    if (how == TWO_GROUPS)
        assert_int_equal(tsr_fully_shard(e, &a, 1, NULL), TSR_OK);
    if (how == DDP)
        assert_int_equal(tsr_ddp(e, NULL), TSR_OK);
    else
        assert_int_equal(tsr_fully_shard(e, &root, 1, &options), TSR_OK);
    assert_int_equal(tsr_state_dict_of(e, NULL, &s), TSR_OK);
    tsr_engine_destroy(e);
    return s;
}

static const struct tsr_mesh one = {1, {1}, {"shard"}}, three = {1, {3}, {"shard"}},
                             four = {1, {4}, {"shard"}}, eight = {1, {8}, {"shard"}},
                             hsdp = {2, {2, 2}, {"r", "s"}}, wide = {2, {2, 3}, {"r", "s"}};

#endif
