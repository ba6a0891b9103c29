/* test_checkpoint.c: checkpoints of one layout read in another, bit by bit; who reads how much; and
 * what is left when any call of the system fails, or is the last one.
 *
 * Ranks are threads. Element k of a tensor is a hash of (name, part, k, step), so that every byte
 * says where it belongs.
 */
#include "disk_testing.h"
#include "engine/sharded_state.h"
#include "exec/checkpoint.h"
#include "exec/checkpoint_impl.h"

/* ---- values ---------------------------------------------------------------------------------- */

/* A whole tensor; to be freed. */
static char *values(const struct tsr_state_dict *s, size_t entry, int part, tsr_dtype dtype,
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
static char *shard(const struct tsr_state_dict *s, size_t entry, int part, tsr_dtype dtype,
                   uint64_t step, uint32_t rank, uint64_t *bytes)
{
    const struct tsr_dtensor *t = &s->layouts[s->entries[entry].layout];
    size_t n;
    char *whole = values(s, entry, part, dtype, step, &n), *local = malloc(n + 1);
    *bytes = tsr_dtensor_local_numel(t, rank) * tsr_dtype_bytes(dtype);
    assert_int_equal(tsr_dtensor_take(t, rank, tsr_dtype_bytes(dtype), whole, local), TSR_OK);
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
};

static tsr_status exchange(void *user, const void *in, void *out, size_t bytes)
{
    struct rank *r = user;
    uint32_t world = r->job->config.world;
    if (r->rank == 0)
        r->job->board = malloc(world * bytes + 1);
    pthread_barrier_wait(&r->job->barrier);
    memcpy(r->job->board + r->rank * bytes, in, bytes);
    pthread_barrier_wait(&r->job->barrier);
    memcpy(out, r->job->board, world * bytes);
    pthread_barrier_wait(&r->job->barrier);
    if (r->rank == 0)
        free(r->job->board);
    return TSR_OK;
}

static tsr_status put_all(struct tsr_checkpoint_writer *w, const struct rank *r)
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

static void *run_rank(void *user)
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
    return NULL;
}

enum { MAX_WORLD = 16 };

/* All ranks end alike; rank 0's text becomes this thread's. */
static tsr_status save_with(struct job *job, struct rank ranks[MAX_WORLD])
{
    pthread_t threads[MAX_WORLD];
    uint32_t world = job->config.world;
    assert_true(world <= MAX_WORLD);
    assert_int_equal(pthread_barrier_init(&job->barrier, NULL, world), 0);
    memset(ranks, 0, MAX_WORLD * sizeof *ranks);
    for (uint32_t r = 0; r < world; r++) {
        ranks[r] = (struct rank){.job = job, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < world; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&job->barrier);
    for (uint32_t r = 1; r < world; r++)
        assert_int_equal(ranks[r].status, ranks[0].status);
    return ranks[0].status == TSR_OK ? TSR_OK : tsr_fail(ranks[0].status, "%s", ranks[0].text);
}

static tsr_status save(struct job *job)
{
    struct rank ranks[MAX_WORLD];
    return save_with(job, ranks);
}

static struct job job_of(const struct tsr_state_dict *params, const char *dir, uint64_t step)
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

static struct tsr_checkpoint *open_ok(const char *path, bool verify)
{
    struct tsr_checkpoint *c = NULL;
    if (tsr_checkpoint_open(path, verify, &c) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return c;
}

/* Every rank of `to` gets its values, and reads just as many bytes as it holds. */
static void check_as(struct tsr_checkpoint *c, const struct tsr_checkpoint_layout *to)
{
    uint64_t step = tsr_checkpoint_step(c);
    for (uint32_t rank = 0; rank < to->params->world; rank++) {
        uint64_t before = tsr_checkpoint_bytes_read(c), expected = 0;
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
        assert_int_equal(tsr_checkpoint_bytes_read(c) - before, expected);
    }
}

static void check_dir_as(const char *dir, const struct tsr_checkpoint_layout *to, uint64_t step)
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
    {.name = "norm", .type = TSR_TREE_RMSNORM, .in = 3}, /* fewer rows than ranks */
    {.name = "b", .type = TSR_TREE_SEQ, .n_children = 2, .children = block},
    {.name = "out", .type = TSR_TREE_LINEAR, .in = 6, .out = 9}};

enum wrapping { ONE_GROUP, TWO_GROUPS, COLUMNS, DDP };

/* The state of a small model, tied, wrapped in one of several ways. */
static struct tsr_state_dict model_state(const struct tsr_mesh *mesh, enum wrapping how)
{
    struct tsr_tree_config config = {
        .root = {.name = "", .type = TSR_TREE_SEQ, .n_children = 5, .children = tree}, .tokens = 9};
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

/* From every layout to every other one and back. */
static void any_layout_reads_any_other(void **state)
{
    (void)state;
    const struct tsr_mesh *meshes[] = {&eight, &three, &hsdp, &four, &wide, &one, &four, &eight};
    const enum wrapping how[] = {ONE_GROUP, TWO_GROUPS, ONE_GROUP, COLUMNS,
                                 COLUMNS,   ONE_GROUP,  DDP,       COLUMNS};
    enum { N = sizeof how / sizeof *how };
    struct tsr_state_dict states[N];
    for (int i = 0; i < N; i++)
        states[i] = model_state(meshes[i], how[i]);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "any%d", i);
        const char *dir = test_path(name);
        struct job job = job_of(&states[i], dir, 3);
        job.layout.state_dtype = i % 2 ? TSR_BF16 : TSR_DTYPE_NONE;
        job.backwards = i % 3 == 0;
        assert_int_equal(save(&job), TSR_OK);
        for (int k = 0; k < N; k++) {
            struct tsr_checkpoint_layout to = job.layout;
            to.params = &states[k];
            check_dir_as(dir, &to, 3);
        }
    }
    for (int i = 0; i < N; i++)
        tsr_state_dict_fini(&states[i]);
}

/* Read in another layout, written in it, read in the first one: the same bits. */
static void there_and_back_is_the_same(void **state)
{
    (void)state;
    const struct tsr_mesh *pairs[][2] = {{&eight, &three}, {&hsdp, &four}};
    for (int p = 0; p < 2; p++) {
        struct tsr_state_dict a = model_state(pairs[p][0], ONE_GROUP);
        struct tsr_state_dict b = model_state(pairs[p][1], COLUMNS);
        struct job there = job_of(&a, test_path("there"), 5), back = job_of(&b, "", 5);
        back.config.dir = test_path("back");
        assert_int_equal(save(&there), TSR_OK);
        check_dir_as(there.config.dir, &back.layout, 5);
        assert_int_equal(save(&back), TSR_OK); /* of what check_dir_as() found equal */
        check_dir_as(back.config.dir, &there.layout, 5);
        tsr_state_dict_fini(&a);
        tsr_state_dict_fini(&b);
    }
}

/* Random shapes, meshes and placements, strided and uneven ones, of all dtypes. */
static struct tsr_state_dict random_state(uint64_t shapes[8][4], const int *n_dims)
{
    struct tsr_state_dict s;
    tsr_state_dict_init(&s, MAX_WORLD);
    for (int i = 0; i < 8; i++) {
        struct tsr_dtensor t;
        char name[16];
        do
            t = test_random_layout(n_dims[i], shapes[i]);
        while (tsr_dtensor_world(&t) > MAX_WORLD);
        snprintf(name, sizeof name, "p%d", i);
        assert_int_equal(tsr_state_dict_add(&s, name, NULL, (tsr_dtype)(1 + i % 6), &t), TSR_OK);
    }
    return s;
}

static void random_layouts(void **state)
{
    (void)state;
    test_seed("random_layouts");
    for (int round = 0; round < 6; round++) {
        uint64_t shapes[8][4];
        int n_dims[8];
        for (int i = 0; i < 8; i++)
            n_dims[i] = test_random_shape(shapes[i]);
        struct tsr_state_dict a = random_state(shapes, n_dims), b = random_state(shapes, n_dims);
        struct job job = job_of(&a, test_path("random"), (uint64_t)round + 1);
        bool stateless[8] = {false, true, false, true};
        job.layout.n_states = round % 3;
        job.layout.stateless = stateless;
        job.config.keep = 1;
        assert_int_equal(save(&job), TSR_OK);
        struct tsr_checkpoint_layout to = job.layout;
        to.params = &b;
        check_dir_as(job.config.dir, &to, job.step);
        tsr_state_dict_fini(&a);
        tsr_state_dict_fini(&b);
    }
}

/* ---- what is in it --------------------------------------------------------------------------- */

static void where_training_was_is_kept(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&hsdp, TWO_GROUPS);
    struct job job = job_of(&s, test_path("meta"), 1000);
    bool stateless[32] = {[2] = true};
    double value = 0;
    job.layout.stateless = stateless;
    assert_int_equal(save(&job), TSR_OK);
    struct tsr_checkpoint *c = open_ok(test_path("meta/step_00001000"), false);
    const struct tsr_checkpoint_info *info = tsr_checkpoint_info(c);
    const struct tsr_checkpoint_layout *l = tsr_checkpoint_layout(c);
    assert_int_equal(tsr_checkpoint_step(c), 1000);
    assert_true(info->model_hash == job.info.model_hash);
    assert_true(info->seed == UINT64_MAX);
    assert_true(info->data_position == 123456789012345);
    assert_string_equal(info->extra, job.info.extra);
    assert_true(tsr_checkpoint_scalar(c, "loss_scale", &value));
    assert_true(value == 0.1); /* every bit of it */
    assert_true(tsr_checkpoint_scalar(c, "optimizer_step", &value) && value == 17);
    assert_false(tsr_checkpoint_scalar(c, "nothing", &value));
    assert_int_equal(l->params->n, s.n);
    assert_int_equal(l->params->world, 4);
    for (size_t i = 0; i < s.n; i++) {
        const struct tsr_state_entry *a = &s.entries[i], *b = &l->params->entries[i];
        assert_string_equal(a->fqn, b->fqn);
        assert_string_equal(a->group, b->group);
        assert_int_equal(a->alias_of, b->alias_of);
        assert_int_equal(a->dtype, b->dtype);
        assert_true(tsr_dtensor_equal(&s.layouts[a->layout], &l->params->layouts[b->layout]));
        assert_int_equal(tsr_checkpoint_dtype(l, TSR_PART_STATE0, i),
                         i == 2 ? TSR_DTYPE_NONE : TSR_F32);
    }
    tsr_checkpoint_close(c);
    tsr_state_dict_fini(&s);
}

static uint64_t bytes_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

/* With HSDP the first row of the mesh writes, with DDP rank 0: the others write a header. */
static void replicas_are_written_once(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&hsdp, ONE_GROUP), d = model_state(&four, DDP);
    struct job job = job_of(&s, test_path("once"), 1), ddp = job_of(&d, test_path("once"), 2);
    assert_int_equal(save(&job), TSR_OK);
    assert_int_equal(save(&ddp), TSR_OK);
    assert_true(bytes_of(test_path("once/step_00000001/rank_00000-of-00004.safetensors")) >
                3 * tsr_state_dict_rank_bytes(&s, 0));
    assert_true(bytes_of(test_path("once/step_00000001/rank_00001-of-00004.safetensors")) >
                3 * tsr_state_dict_rank_bytes(&s, 1));
    for (int r = 2; r < 4; r++) {
        char name[64];
        snprintf(name, sizeof name, "once/step_00000001/rank_%05d-of-00004.safetensors", r);
        assert_int_equal(bytes_of(test_path(name)), 16);
    }
    assert_int_equal(bytes_of(test_path("once/step_00000002/rank_00001-of-00004.safetensors")), 16);
    tsr_state_dict_fini(&s);
    tsr_state_dict_fini(&d);
}

static uint64_t hash_of(const char *text)
{
    return tsr_hash_bytes(TSR_HASH_INIT, text, strlen(text));
}

/* As a step program names them: by hash and box. */
static void pieces_are_shards(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&one, ONE_GROUP), to = model_state(&four, ONE_GROUP);
    struct job job = job_of(&s, test_path("pieces"), 1);
    assert_int_equal(save(&job), TSR_OK);
    struct tsr_checkpoint *c = open_ok(job.config.dir, false);
    struct tsr_piece piece = {.name = hash_of("out.weight"), /* tied to emb.weight */
                              .what = TSR_PART_STATE1,
                              .dtype = TSR_F32,
                              .n_dims = 2,
                              .shape = {9, 6},
                              .start = {3, 0},
                              .size = {3, 6}};
    char out[3 * 6 * 4];
    uint64_t bytes;
    char *expected = shard(&to, 0, TSR_PART_STATE1, TSR_F32, 1, 1, &bytes);
    assert_int_equal(bytes, sizeof out);
    assert_int_equal(tsr_checkpoint_read_piece(c, &to, 1, &piece, out), TSR_OK);
    assert_memory_equal(out, expected, sizeof out);
    free(expected);
    assert_int_equal(tsr_checkpoint_read_piece(c, &to, 2, &piece, out), TSR_EDEFECT);
    piece.name++;
    assert_int_equal(tsr_checkpoint_read_piece(c, &to, 1, &piece, out), TSR_EDEFECT);
    tsr_checkpoint_close(c);

    struct tsr_checkpoint_writer *w = NULL;
    struct tsr_state_dict small;
    struct tsr_dtensor t = {.n_dims = 1, .shape = {2}};
    tsr_state_dict_init(&small, 1);
    assert_int_equal(tsr_state_dict_add(&small, "w", NULL, TSR_F32, &t), TSR_OK);
    struct tsr_checkpoint_layout layout = {.params = &small};
    struct tsr_checkpoint_config config = {.dir = test_path("put"), .world = 1};
    struct tsr_piece whole = {
        .name = hash_of("w"), .dtype = TSR_F32, .n_dims = 1, .shape = {2}, .size = {2}};
    float x[2] = {1.5f, -2}, y[2];
    assert_int_equal(tsr_checkpoint_begin(&config, 7, &layout, &w), TSR_OK);
    assert_int_equal(tsr_checkpoint_put_piece(w, &whole, x), TSR_OK);
    assert_int_equal(tsr_checkpoint_commit(w, &job.info), TSR_OK);
    whole.what = TSR_PART_STATE0;
    assert_int_equal(tsr_checkpoint_put_piece(w, &whole, x), TSR_EDEFECT);
    tsr_checkpoint_writer_destroy(w);
    whole.what = TSR_PART_PARAM;
    c = open_ok(config.dir, true);
    assert_int_equal(tsr_checkpoint_read_piece(c, &small, 0, &whole, y), TSR_OK);
    assert_memory_equal(x, y, sizeof x);
    tsr_checkpoint_close(c);
    tsr_state_dict_fini(&small);
    tsr_state_dict_fini(&s);
    tsr_state_dict_fini(&to);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&three, ONE_GROUP);
    struct job job = job_of(&s, test_path("fit"), 1);
    job.layout.n_states = 1;
    assert_int_equal(save(&job), TSR_OK);
    struct tsr_checkpoint *c = open_ok(job.config.dir, false);
    struct tsr_dtensor t = s.layouts[s.entries[0].layout], bad = t;
    char out[9 * 6 * 4];
    assert_int_equal(tsr_checkpoint_read(c, TSR_PART_PARAM, "nothing", TSR_F32, &t, 0, out, 72),
                     TSR_ECONFIG);
    test_error_names("nothing", "fit/step_00000001");
    bad.shape[0] = 10;
    assert_int_equal(tsr_checkpoint_read(c, TSR_PART_PARAM, "emb.weight", TSR_F32, &bad, 0, out, 8),
                     TSR_ECONFIG);
    test_error_names("[9, 6]", "[10, 6]");
    assert_int_equal(tsr_checkpoint_read(c, TSR_PART_PARAM, "emb.weight", TSR_BF16, &t, 0, out, 36),
                     TSR_ECONFIG);
    test_error_names("f32", "bf16");
    assert_int_equal(tsr_checkpoint_read(c, TSR_PART_STATE1, "emb.weight", TSR_F32, &t, 0, out, 72),
                     TSR_ECONFIG);
    assert_int_equal(tsr_checkpoint_read(c, TSR_PART_PARAM, "emb.weight", TSR_F32, &t, 0, out, 71),
                     TSR_EVALUE);
    tsr_checkpoint_close(c);
    job.info.scalars = &(struct tsr_checkpoint_scalar){"loss", 1.0 / 0.0};
    job.info.n_scalars = 1;
    assert_int_equal(save(&job), TSR_EVALUE);
    test_error_names("loss", "finite");
    job.info.n_scalars = 0;
    job.info.extra = "[1]";
    assert_int_equal(save(&job), TSR_EVALUE);
    test_error_names("extra", NULL);
    job.silent = true; /* a rank that does not deliver */
    job.info.extra = NULL;
    assert_int_equal(save(&job), TSR_EVALUE);
    test_error_names("rank 1", "not written");
    check_dir_as(job.config.dir, &job.layout, 1);
    assert_false(test_exists(test_path("fit/step_00000001.tmp")));
    tsr_state_dict_fini(&s);
}

/* ---- several --------------------------------------------------------------------------------- */

static void the_newest_complete_ones_are_kept(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&three, ONE_GROUP);
    const char *dir = test_path("keep");
    struct tsr_checkpoint *c = NULL;
    char path[TSR_PATH_BYTES];
    assert_int_equal(tsr_checkpoint_open(dir, false, &c), TSR_ECONFIG);
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(tsr_checkpoint_open(dir, false, &c), TSR_ECONFIG);
    test_error_names("keep", "no complete checkpoint");
    for (uint64_t step = 10; step <= 60; step += 10) {
        struct job job = job_of(&s, dir, step);
        job.config.keep = 2;
        assert_int_equal(save(&job), TSR_OK);
        if (step == 30) /* does not count as one that is kept */
            test_flip(test_path("keep/step_00000030/COMMIT"), 20);
        if (step == 40)
            assert_true(test_exists(test_path("keep/step_00000020")));
        check_dir_as(dir, &job.layout, step == 30 ? 20 : step);
    }
    assert_true(test_exists(test_path("keep/step_00000060")));
    assert_true(test_exists(test_path("keep/step_00000050")));
    for (int step = 10; step <= 40; step += 10) {
        char name[64];
        snprintf(name, sizeof name, "keep/step_%08d", step);
        assert_false(test_exists(test_path(name)));
    }
    struct job between = job_of(&s, dir, 55); /* those after it are nobody's to remove */
    between.config.keep = 2;
    assert_int_equal(save(&between), TSR_OK);
    check_dir_as(dir, &between.layout, 60);
    assert_true(test_exists(test_path("keep/step_00000050")));
    test_remove(test_path("keep/step_00000055"));
    unsigned skipped = 0;
    assert_int_equal(truncate(test_path("keep/step_00000060/meta.json"), 100), 0);
    assert_int_equal(mkdir(test_path("keep/step_00000070"), 0777), 0);
    assert_int_equal(mkdir(test_path("keep/step_9"), 0777), 0); /* not a name of ours */
    assert_int_equal(tsr_checkpoint_latest(dir, path, &skipped), TSR_OK);
    assert_string_equal(path, test_path("keep/step_00000050"));
    assert_int_equal(skipped, 2);
    test_error_names("step_00000070", "COMMIT");
    tsr_state_dict_fini(&s);
}

/* Whatever is wrong with the newest, the one before is taken; asked for by name it is an error. */
static void damage_is_found(void **state)
{
    (void)state;
    static const char *const files[] = {"COMMIT", "meta.json", "rank_00001-of-00003.safetensors"};
    struct tsr_state_dict s = model_state(&three, ONE_GROUP);
    for (int f = 0; f < 3; f++)
        for (int kind = 0; kind < 3; kind++) {
            char name[128];
            struct tsr_checkpoint *c = NULL;
            const char *dir = test_path("damage");
            struct job a = job_of(&s, dir, 1), b = job_of(&s, dir, 2);
            assert_int_equal(save(&a), TSR_OK);
            assert_int_equal(save(&b), TSR_OK);
            snprintf(name, sizeof name, "damage/step_00000002/%s", files[f]);
            if (kind == 0)
                assert_int_equal(remove(test_path(name)), 0);
            else if (kind == 1)
                assert_int_equal(truncate(test_path(name), (off_t)bytes_of(test_path(name)) - 1),
                                 0);
            else
                test_flip(test_path(name), 30);
            if (f == 2 && kind == 2) { /* in the header: seen when the file is opened */
                char out[9 * 6 * 4];
                struct tsr_dtensor whole = {.n_dims = 2, .shape = {9, 6}};
                c = open_ok(dir, false);
                assert_int_not_equal(tsr_checkpoint_read(c, TSR_PART_PARAM, "emb.weight", TSR_F32,
                                                         &whole, 0, out, sizeof out),
                                     TSR_OK);
                tsr_checkpoint_close(c);
            } else {
                check_dir_as(dir, &a.layout, 1);
                assert_int_not_equal(
                    tsr_checkpoint_open(test_path("damage/step_00000002"), false, &c), TSR_OK);
            }
            test_error_names(files[f], "step_00000002");
            test_remove(dir);
        }
    tsr_state_dict_fini(&s);
}

static void damaged_shards_do_not_verify(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&three, ONE_GROUP);
    struct job job = job_of(&s, test_path("sums"), 1);
    assert_int_equal(save(&job), TSR_OK);
    const char *file = test_path("sums/step_00000001/rank_00002-of-00003.safetensors");
    uint64_t bytes = bytes_of(file);
    char out[9 * 6 * 4];
    struct tsr_dtensor whole = {.n_dims = 2, .shape = {9, 6}};
    test_flip(file, bytes - 1); /* the last of state1.norm.weight: rank 2 has one row */
    for (int verify = 0; verify < 2; verify++) {
        struct tsr_checkpoint *c = open_ok(job.config.dir, verify);
        struct tsr_dtensor norm = {.n_dims = 1, .shape = {3}};
        assert_int_equal(
            tsr_checkpoint_read(c, TSR_PART_STATE1, "norm.weight", TSR_F32, &norm, 0, out, 12),
            verify ? TSR_EIO : TSR_OK);
        if (verify)
            test_error_names("state1.norm.weight", "damaged");
        assert_int_equal(tsr_checkpoint_read(c, TSR_PART_PARAM, "emb.weight", TSR_F32, &whole, 0,
                                             out, sizeof out),
                         TSR_OK);
        tsr_checkpoint_close(c);
    }
    test_flip(file, 40); /* its header */
    struct tsr_checkpoint *c = open_ok(job.config.dir, false);
    assert_int_not_equal(
        tsr_checkpoint_read(c, TSR_PART_PARAM, "emb.weight", TSR_F32, &whole, 0, out, sizeof out),
        TSR_OK);
    test_error_names("rank_00002", NULL);
    tsr_checkpoint_close(c);
    tsr_state_dict_fini(&s);
}

/* meta.json and COMMIT are read as files from outside, too: never a crash, always one line. */
static void random_damage_of_the_texts(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&hsdp, COLUMNS);
    struct job job = job_of(&s, test_path("texts"), 1);
    struct tsr_commit_file files[5] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {UINT64_MAX, UINT64_MAX}};
    struct tsr_commit commit = {.step = 12, .world = 4, .files = files}, found;
    struct tsr_meta meta;
    char *good[2], bad[8192];
    size_t refused[2] = {0};
    test_seed("random_damage_of_the_texts");
    assert_int_equal(tsr__meta_write(1, &job.layout, &job.info, &good[0]), TSR_OK);
    assert_int_equal(tsr__commit_write(&commit, &good[1]), TSR_OK);
    assert_int_equal(tsr__commit_read("COMMIT", good[1], strlen(good[1]), &found), TSR_OK);
    assert_memory_equal(found.files, files, sizeof files);
    tsr__commit_fini(&found);
    for (int round = 0; round < 10000; round++) {
        int k = round % 2;
        size_t n = strlen(good[k]);
        assert_true(n < sizeof bad);
        memcpy(bad, good[k], n + 1);
        bad[test_random(n)] = k ? (char)test_random(256) : "0123456789[]{}\",:-a"[test_random(20)];
        n = round % 5 ? n : test_random(n);
        bad[n] = '\0';
        tsr_status status = k ? tsr__commit_read("COMMIT", bad, n, &found)
                              : tsr__meta_read("meta.json", bad, n, &meta);
        if (status == TSR_OK && k)
            tsr__commit_fini(&found);
        else if (status == TSR_OK)
            tsr__meta_fini(&meta);
        else
            test_error_names(k ? "COMMIT" : "meta.json", NULL);
        assert_true(status == TSR_OK || status == TSR_ECONFIG);
        refused[k] += status != TSR_OK;
    }
    assert_true(refused[0] > 1000);
    assert_true(refused[1] > 4900); /* all but those that changed nothing */
    free(good[0]);
    free(good[1]);
    tsr_state_dict_fini(&s);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Step 1 is there; step 2 (or step 1 again) meets a fault at call k of the system. */
static bool save_until(const struct tsr_state_dict *s, enum test_fault fault, long k, uint64_t step)
{
    const char *dir = test_path("fault");
    struct test_disk disk;
    struct rank ranks[MAX_WORLD];
    struct job first = job_of(s, dir, 1), second = job_of(s, dir, step);
    test_disk_init(&disk, TEST_FAIL_ONCE, -1, 0);
    first.config.disk = &disk.ops;
    assert_int_equal(save(&first), TSR_OK);
    test_disk_fini(&disk);

    test_disk_init(&disk, fault, k, k % 2 ? ENOSPC : EIO);
    second.config.disk = &disk.ops;
    second.config.keep = 1;
    tsr_status status = save_with(&second, ranks);
    bool is_hit = disk.calls > k;
    if (status != TSR_OK) {
        assert_int_equal(status, TSR_EIO);
        test_error_names(dir, strerror(disk.error));
    } else if (is_hit) { /* behind the commit: older ones stay */
        test_error_names("", NULL);
        assert_true(fault != TEST_FAIL_ONCE || ranks[0].trouble[0]);
    }
    if (fault == TEST_POWER)
        test_disk_lose(&disk);
    test_disk_fini(&disk);

    struct tsr_checkpoint *c = open_ok(dir, true);
    uint64_t found = tsr_checkpoint_step(c);
    assert_true(found == step || (found == 1 && status != TSR_OK));
    struct tsr_checkpoint_layout to = second.layout;
    check_as(c, &to);
    tsr_checkpoint_close(c);
    return is_hit;
}

/* The next save works as if nothing had been, and leaves nothing behind. */
static void save_again(const struct tsr_state_dict *s)
{
    struct job third = job_of(s, test_path("fault"), 3);
    struct test_disk disk;
    size_t n = 0;
    test_disk_init(&disk, TEST_FAIL_ONCE, -1, 0);
    third.config.keep = 1;
    third.config.disk = &disk.ops;
    assert_int_equal(save(&third), TSR_OK);
    test_disk_fini(&disk);
    check_dir_as(test_path("fault"), &third.layout, 3);
    DIR *dir = opendir(test_path("fault"));
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        n += d->d_name[0] != '.';
    closedir(dir);
    assert_int_equal(n, 1);
}

static void every_call(enum test_fault fault, const struct tsr_mesh *mesh, uint64_t step)
{
    struct tsr_state_dict s = model_state(mesh, ONE_GROUP);
    long k = 0;
    while (save_until(&s, fault, k, step)) {
        save_again(&s);
        test_remove(test_path("fault"));
        k++;
    }
    test_remove(test_path("fault"));
    printf("%ld calls\n", k);
    assert_true(k > 20);
    tsr_state_dict_fini(&s);
}

static void every_call_may_fail(void **state)
{
    (void)state;
    every_call(TEST_FAIL_ONCE, &one, 2);
    every_call(TEST_FAIL_ONCE, &three, 2);
}

static void every_call_may_be_the_last(void **state)
{
    (void)state;
    every_call(TEST_KILL, &one, 2);
    every_call(TEST_KILL, &three, 2);
}

static void power_may_fail_at_every_call(void **state)
{
    (void)state;
    every_call(TEST_POWER, &one, 2);
    every_call(TEST_POWER, &hsdp, 2);
}

static void the_same_step_again_may_fail_at_every_call(void **state)
{
    (void)state;
    every_call(TEST_FAIL_ONCE, &one, 1);
    every_call(TEST_KILL, &one, 1);
    every_call(TEST_POWER, &one, 1);
}

/* ---- readers --------------------------------------------------------------------------------- */

struct reading {
    struct tsr_checkpoint *c;
    const struct tsr_checkpoint_layout *to;
    uint32_t rank;
};

static void *read_rank(void *user)
{
    struct reading *r = user;
    const struct tsr_state_dict *s = r->to->params;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t bytes;
        char *local = shard(s, i, TSR_PART_PARAM, TSR_F32, 1, r->rank, &bytes);
        char *found = calloc(1, bytes + 1);
        bool ok = tsr_checkpoint_read(r->c, TSR_PART_PARAM, s->entries[i].fqn, TSR_F32,
                                      &s->layouts[s->entries[i].layout], r->rank, found,
                                      bytes) == TSR_OK &&
                  !memcmp(found, local, bytes);
        free(found);
        free(local);
        if (!ok)
            return r;
    }
    return NULL;
}

static void threads_read_one_checkpoint(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&eight, ONE_GROUP), to = model_state(&three, ONE_GROUP);
    struct job job = job_of(&s, test_path("threads"), 1);
    struct tsr_checkpoint_layout layout = {.params = &to};
    struct reading readings[3];
    pthread_t threads[3];
    assert_int_equal(save(&job), TSR_OK);
    struct tsr_checkpoint *c = open_ok(job.config.dir, true);
    for (uint32_t r = 0; r < 3; r++) {
        readings[r] = (struct reading){c, &layout, r};
        assert_int_equal(pthread_create(&threads[r], NULL, read_rank, &readings[r]), 0);
    }
    for (uint32_t r = 0; r < 3; r++) {
        void *wrong = NULL;
        pthread_join(threads[r], &wrong);
        assert_null(wrong);
    }
    tsr_checkpoint_close(c);
    tsr_state_dict_fini(&s);
    tsr_state_dict_fini(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_layout_reads_any_other),
                                       cmocka_unit_test(there_and_back_is_the_same),
                                       cmocka_unit_test(random_layouts),
                                       cmocka_unit_test(where_training_was_is_kept),
                                       cmocka_unit_test(replicas_are_written_once),
                                       cmocka_unit_test(pieces_are_shards),
                                       cmocka_unit_test(what_does_not_fit_is_refused),
                                       cmocka_unit_test(the_newest_complete_ones_are_kept),
                                       cmocka_unit_test(damage_is_found),
                                       cmocka_unit_test(damaged_shards_do_not_verify),
                                       cmocka_unit_test(random_damage_of_the_texts),
                                       cmocka_unit_test(every_call_may_fail),
                                       cmocka_unit_test(every_call_may_be_the_last),
                                       cmocka_unit_test(power_may_fail_at_every_call),
                                       cmocka_unit_test(the_same_step_again_may_fail_at_every_call),
                                       cmocka_unit_test(threads_read_one_checkpoint)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
