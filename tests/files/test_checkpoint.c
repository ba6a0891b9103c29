/* test_checkpoint.c: checkpoints of one layout read in another, bit by bit; who reads and writes
 * how much; what is kept, and what is found when files are damaged.
 */
#include "exec/files/checkpoint_impl.h"
#include "tests/files/checkpoint_testing.h"

/* ---- layouts --------------------------------------------------------------------------------- */

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
        while (test_world(&t) > MAX_WORLD);
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

/* Each parameter's number of optimizer steps; checkpoints of before have none. */
static void steps_of_parameters_are_kept(void **state)
{
    (void)state;
    struct tsr_state_dict s = model_state(&hsdp, TWO_GROUPS);
    uint64_t steps[32];
    bool stateless[32] = {[1] = true};
    for (uint64_t i = 0; i < 32; i++)
        steps[i] = 990 - i;
    for (int known = 0; known < 2; known++) {
        struct job job = job_of(&s, test_path(known ? "steps" : "no-steps"), 1000);
        job.layout.stateless = stateless;
        job.layout.steps = known ? steps : NULL;
        assert_int_equal(save(&job), TSR_OK);
        struct tsr_checkpoint *c = open_ok(job.config.dir, false);
        const struct tsr_checkpoint_layout *l = tsr_checkpoint_layout(c);
        for (size_t i = 0; i < s.n; i++) {
            assert_int_equal(l->stateless[i], i == 1);
            if (i != 1)
                assert_true(l->steps[i] == (known ? steps[i] : TSR_STEPS_UNKNOWN));
        }
        tsr_checkpoint_close(c);
    }
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
                3 * test_rank_bytes(&s, 0));
    assert_true(bytes_of(test_path("once/step_00000001/rank_00001-of-00004.safetensors")) >
                3 * test_rank_bytes(&s, 1));
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

/* Each layout is compared with all before it: more than any model has are refused at once. */
static void layouts_without_end(void **state)
{
    enum { MOST = 16384, ROOM = 64 };
    static const char head[] =
        "{\"format\": \"tessera checkpoint\", \"version\": 1, \"step\": 1, \"world\": 1, "
        "\"model_hash\": \"0000000000000000\", \"seed\": \"0000000000000000\", "
        "\"data_position\": 0, \"scalars\": {}, \"extra\": null, \"n_states\": 0, "
        "\"state_dtype\": \"none\", \"entries\": [], \"layouts\": [";
    char *text = malloc(sizeof head + (size_t)(MOST + 1) * ROOM);
    struct tsr_meta meta;
    (void)state;
    assert_non_null(text);
    size_t n = (size_t)sprintf(text, "%s", head);
    for (int i = 0; i <= MOST; i++)
        n += (size_t)sprintf(text + n, "%s{\"shape\": [%d], \"mesh\": [], \"place\": []}",
                             i ? "," : "", i + 1);
    n += (size_t)sprintf(text + n, "]}");
    assert_int_equal(tsr__meta_read("meta.json", text, n, &meta), TSR_ECONFIG);
    test_error_names("meta.json", "layouts: 16385; allowed: up to 16384");
    free(text);
}

/* Time grows with the file, not with its square: this took minutes. */
static void commit_of_a_large_world(void **state)
{
    enum { WORLD = 200000 };
    struct tsr_commit commit = {.step = 1, .world = WORLD}, found;
    char *text;
    (void)state;
    commit.files = calloc(WORLD + 1, sizeof *commit.files);
    assert_non_null(commit.files);
    commit.files[WORLD] = (struct tsr_commit_file){7, 8};
    assert_int_equal(tsr__commit_write(&commit, &text), TSR_OK);
    assert_int_equal(tsr__commit_read("COMMIT", text, strlen(text), &found), TSR_OK);
    assert_int_equal(found.world, WORLD);
    assert_memory_equal(found.files, commit.files, (WORLD + 1) * sizeof *commit.files);
    tsr__commit_fini(&found);
    free(text);
    free(commit.files);
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
                                       cmocka_unit_test(steps_of_parameters_are_kept),
                                       cmocka_unit_test(replicas_are_written_once),
                                       cmocka_unit_test(pieces_are_shards),
                                       cmocka_unit_test(what_does_not_fit_is_refused),
                                       cmocka_unit_test(the_newest_complete_ones_are_kept),
                                       cmocka_unit_test(damage_is_found),
                                       cmocka_unit_test(damaged_shards_do_not_verify),
                                       cmocka_unit_test(commit_of_a_large_world),
                                       cmocka_unit_test(layouts_without_end),
                                       cmocka_unit_test(random_damage_of_the_texts),
                                       cmocka_unit_test(threads_read_one_checkpoint)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
