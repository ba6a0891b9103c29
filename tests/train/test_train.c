/* test_train.c: the training loop: stopping, going on in another world and strategy, ranks that
 * differ, numbers that are none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/train/train_testing.h"

#include <math.h>

/* ---- checkpoints ----------------------------------------------------------------------------- */

static struct tsr_checkpoint *open_latest(const char *dir)
{
    struct tsr_checkpoint *c = NULL;
    char path[2048];
    snprintf(path, sizeof path, "%s/checkpoints", dir);
    if (tsr_checkpoint_open(path, true, &c) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return c;
}

/* A whole tensor; to be freed. */
static char *whole(struct tsr_checkpoint *c, int part, const struct tsr_state_entry *e,
                   uint64_t *bytes)
{
    const struct tsr_state_dict *params = tsr_checkpoint_layout(c)->params;
    struct tsr_dtensor one = {.n_dims = params->layouts[e->layout].n_dims};
    memcpy(one.shape, params->layouts[e->layout].shape, sizeof one.shape);
    *bytes = tsr_dtensor_numel(&one) * tsr_dtype_bytes(e->dtype);
    char *out = malloc((size_t)*bytes + 1);
    assert_non_null(out);
    if (tsr_checkpoint_read(c, (enum tsr_checkpoint_part)part, e->fqn, e->dtype, &one, 0, out,
                            *bytes) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return out;
}

/* Parameters and optimizer states of two runs are the same bits. How many tensors differ. */
static size_t n_different(const char *dir_a, const char *dir_b)
{
    struct tsr_checkpoint *a = open_latest(dir_a), *b = open_latest(dir_b);
    const struct tsr_state_dict *params = tsr_checkpoint_layout(a)->params;
    size_t n = 0;
    assert_int_equal(tsr_checkpoint_step(a), tsr_checkpoint_step(b));
    assert_int_equal(tsr_checkpoint_info(a)->data_position, tsr_checkpoint_info(b)->data_position);
    assert_int_equal(params->n, 21);
    for (size_t i = 0; i < params->n; i++)
        for (int part = 0; part <= tsr_checkpoint_layout(a)->n_states; part++) {
            uint64_t x, y;
            char *p = whole(a, part, &params->entries[i], &x);
            char *q = whole(b, part, &params->entries[i], &y);
            n += x != y || memcmp(p, q, (size_t)x) != 0;
            free(p);
            free(q);
        }
    tsr_checkpoint_close(a);
    tsr_checkpoint_close(b);
    return n;
}

static size_t losses_of(const char *dir, double *losses, size_t most)
{
    char path[2048], line[4096];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (n < most && fgets(line, sizeof line, file)) {
        unsigned step;
        assert_int_equal(sscanf(line, "{\"step\": %u, \"loss\": %lf", &step, &losses[n]), 2);
        assert_int_equal(step, ++n);
    }
    fclose(file);
    return n;
}

/* ---- going on elsewhere ---------------------------------------------------------------------- */

static void test_resume__other_worlds_and_strategies__the_same_bits_are_loaded(void **state)
{
    (void)state;
    static const struct tt_job homes[] = {
        {.strategy = TT_DDP, .world = 2},  {.strategy = TT_HSDP, .world = 4},
        {.strategy = TT_FSDP, .world = 3}, {.strategy = TT_FSDP, .world = 1},
        {.strategy = TT_HSDP, .world = 8}, {.strategy = TT_FSDP, .world = 4}};
    const char *from = test_path("first"), *first = from;
    struct tt_job job = {.world = 4, .batch = 3, .config = tt_config(from, 5)};
    tt_run_well(&job);
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        char name[16];
        snprintf(name, sizeof name, "home%zu", i);
        job = homes[i];
        job.batch = 24 / job.world; /* 12 would not go into 8 */
        job.save_at_once = true;
        job.config = tt_config(test_path(name), 5);
        job.config.resume_from = from;
        struct tsr_train_result result = tt_run_well(&job);
        assert_true(result.had_ended);
        assert_int_equal(result.last_step, 5);
        assert_int_equal(n_different(first, job.config.dir), 0);
        from = job.config.dir;
    }
    /* the comparison sees a difference: one step further all tensors are others */
    job.save_at_once = false;
    job.batch = 3;
    job.config = tt_config(test_path("further"), 6);
    job.config.resume_from = from;
    tt_run_well(&job);
    struct tt_job whole_job = {.world = 4, .batch = 3, .config = tt_config(test_path("whole"), 6)};
    tt_run_well(&whole_job);
    assert_int_equal(n_different(job.config.dir, whole_job.config.dir), 0);
    whole_job.config.schedule.base = 0.02;
    whole_job.config.dir = test_path("other");
    tt_run_well(&whole_job);
    assert_true(n_different(job.config.dir, whole_job.config.dir) > 40);
}

static void test_resume__other_worlds_and_strategies__the_same_losses(void **state)
{
    (void)state;
    static const struct tt_job parts[] = {{.strategy = TT_FSDP, .world = 4, .batch = 1},
                                          {.strategy = TT_DDP, .world = 2, .batch = 2},
                                          {.strategy = TT_HSDP, .world = 4, .batch = 1},
                                          {.strategy = TT_FSDP, .world = 1, .batch = 4}};
    enum { PARTS = sizeof parts / sizeof *parts, EACH = 4 };
    const char *dir = test_path("moved"), *still = test_path("still");
    double a[64], b[64];
    struct tt_job job = {.world = 4, .batch = 1, .config = tt_config(still, PARTS * EACH)};
    tt_run_well(&job);
    for (size_t i = 0; i < PARTS; i++) {
        job = parts[i];
        job.config = tt_config(dir, (i + 1) * EACH);
        job.config.resume_from = i ? dir : NULL;
        struct tsr_train_result result = tt_run_well(&job);
        assert_int_equal(result.first_step, i * EACH);
    }
    assert_int_equal(losses_of(still, a, 64), PARTS * EACH);
    assert_int_equal(losses_of(dir, b, 64), PARTS * EACH);
    for (size_t i = 0; i < PARTS * EACH; i++) {
        if (i < EACH)
            assert_true(a[i] == b[i]);
        if (fabs(a[i] - b[i]) > 2e-6 * a[i])
            fail_msg("step %zu: loss %.9g, and %.9g without moving", i + 1, b[i], a[i]);
    }
    assert_true(a[PARTS * EACH - 1] != a[0]);
}

/* ---- stopping -------------------------------------------------------------------------------- */

static volatile sig_atomic_t asked = 1;

static void ask_rank_2(struct tsr_train_config *c, struct tt_job *job)
{
    (void)job;
    c->stop = &asked;
}

static void test_stop__one_rank_is_asked__all_stop_after_the_step_and_save(void **state)
{
    (void)state;
    struct tt_end ends[TT_MOST];
    struct tt_job job = {.world = 3,
                         .batch = 1,
                         .config = tt_config(test_path("stopped"), 50),
                         .odd = 2,
                         .change = ask_rank_2};
    tt_run(&job, ends);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ends[r].status, TSR_OK);
        assert_true(ends[r].result.stopped);
        assert_int_equal(ends[r].result.last_step, 1);
    }
    struct tsr_checkpoint *c = open_latest(job.config.dir);
    assert_int_equal(tsr_checkpoint_step(c), 1);
    tsr_checkpoint_close(c);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

static void other_hash(struct tsr_train_config *c, struct tt_job *job)
{
    (void)job;
    c->config_hash = 1;
}

static void other_model(struct tsr_train_config *c, struct tt_job *job)
{
    (void)c;
    job->layers = 3;
}

static void other_data(struct tsr_train_config *c, struct tt_job *job)
{
    (void)job;
    c->seed = 12;
}

static void no_file(struct tsr_train_config *c, struct tt_job *job)
{
    static const char *const files[] = {"/proc/no-such-file.bin"};
    (void)job;
    c->train_files = files;
    c->n_train_files = 1;
}

static void test_run__a_rank_differs__all_name_it_before_the_first_step(void **state)
{
    (void)state;
    static const struct {
        void (*change)(struct tsr_train_config *c, struct tt_job *job);
        const char *text;
    } cases[] = {
        {other_hash, "rank 2 runs another configuration than rank 0 (what: the job)"},
        {other_model, "rank 2 runs another configuration than rank 0 (what: the model)"},
        {other_data, "rank 2 runs another configuration than rank 0 (what: the training data)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct tt_job job = {.world = 4,
                                   .batch = 1,
                                   .config = tt_config(NULL, 2),
                                   .odd = 2,
                                   .change = cases[i].change};
        tt_run_badly(&job, TSR_ECONFIG, cases[i].text);
    }
}

static void test_create__a_rank_lacks_a_file__all_say_so(void **state)
{
    (void)state;
    const struct tt_job job = {
        .world = 3, .batch = 1, .config = tt_config(NULL, 2), .odd = 1, .change = no_file};
    struct tt_end ends[TT_MOST];
    tt_run(&job, ends);
    for (int r = 0; r < 3; r++) {
        assert_true(ends[r].status == TSR_ECONFIG || ends[r].status == TSR_EIO);
        assert_int_equal(ends[r].status, ends[0].status);
        assert_string_equal(ends[r].text, ends[0].text);
        assert_non_null(strstr(ends[r].text, "/proc/no-such-file.bin"));
    }
}

/* ---- resuming -------------------------------------------------------------------------------- */

static void overwrite(const char *dir, const char *file, long offset)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/checkpoints/%s", dir, file);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fputs("??", f) >= 0, 1);
    fclose(f);
}

static void test_resume__damage_that_one_rank_sees__all_go_on_from_the_same_older_one(void **state)
{
    (void)state;
    const char *dir = test_path("damaged");
    struct tt_job job = {.world = 4, .batch = 1, .config = tt_config(dir, 6)};
    struct tt_end ends[TT_MOST];
    char *text = NULL;
    size_t bytes = 0;
    job.config.save_every = 2;
    tt_run_well(&job);
    overwrite(dir, "step_00000006/rank_00003-of-00004.safetensors", -2);
    overwrite(dir, "step_00000004/meta.json", 20);
    job.config.resume_from = dir;
    job.config.notes = open_memstream(&text, &bytes);
    tt_run(&job, ends);
    fclose(job.config.notes);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(ends[r].status, TSR_OK);
        assert_int_equal(ends[r].result.first_step, 2);
        assert_int_equal(ends[r].result.last_step, 6);
    }
    assert_non_null(strstr(text, "passed over damaged checkpoints: "));
    assert_non_null(strstr(text, "step_00000006/rank_00003-of-00004.safetensors: tensor"));
    assert_non_null(strstr(text, "step_00000004/meta.json"));
    assert_non_null(strstr(text, "going on behind step 2: "));
    free(text);
}

static void test_resume__of_what_is_no_run__one_line(void **state)
{
    (void)state;
    char text[2300];
    struct tt_job job = {.world = 2, .batch = 1, .config = tt_config(test_path("new"), 6)};
    job.config.resume_from = test_path("nothing");
    snprintf(text, sizeof text,
             "%s: found no checkpoint to resume from; allowed: the folder of a run that saved one",
             job.config.resume_from);
    tt_run_badly(&job, TSR_ECONFIG, text);
}

/* ---- numbers that are none ------------------------------------------------------------------- */

static void test_vote__finite_or_not__the_first_bad_rank_is_named(void **state)
{
    (void)state;
    static const struct {
        double loss, norm;
        uint32_t has_norm;
        const char *text; /* NULL: all is well */
    } cases[] = {
        {1, NAN, 0, NULL},
        {1, 2, 1, NULL},
        {NAN, 2, 1, "step 7: the loss of rank 0 is nan"},
        {INFINITY, 2, 1, "step 7: the loss of rank 0 is inf"},
        {-INFINITY, NAN, 0, "step 7: the loss of rank 0 is -inf"},
        {1, NAN, 1, "step 7: the norm of the gradients on rank 0 is nan"},
        {1, INFINITY, 1, "step 7: the norm of the gradients on rank 0 is inf"},
    };
    struct tsr_train t = {.step = 7};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tsr_train_vote vote = {
            .loss = cases[i].loss, .norm = cases[i].norm, .has_norm = cases[i].has_norm};
        assert_int_equal(tsr_train_agree(&t, &vote), TSR_OK);
        tsr_status status = tsr_train_check(&t, &vote);
        assert_int_equal(status, cases[i].text ? TSR_EBACKEND : TSR_OK);
        if (cases[i].text)
            assert_string_equal(tsr_error_text(), cases[i].text);
    }
}

static void test_run__a_parameter_is_lost__nothing_is_saved_over_what_is_good(void **state)
{
    (void)state;
    const char *dir = test_path("lost");
    char text[2600];
    struct tt_job job = {.world = 2, .batch = 1, .config = tt_config(dir, 3)};
    tt_run_well(&job);
    job.config.resume_from = dir;
    job.config.schedule.total_steps = 9;
    job.config.save_every = 1;
    job.config.eps = 0; /* 0 / 0 for tokens that no batch had */
    job.config.max_norm = 0;
    snprintf(text, sizeof text,
             "rank 0: step 4: parameter model.embed_tokens.weight or its optimizer state is not "
             "finite, so that nothing is saved; the last checkpoint is "
             "%s/checkpoints/step_00000003",
             dir);
    tt_run_badly(&job, TSR_EBACKEND, text);
    struct tsr_checkpoint *c = open_latest(dir);
    assert_int_equal(tsr_checkpoint_step(c), 3);
    tsr_checkpoint_close(c);
}

int main(void)
{
#define WITH_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, test_folder_make, test_folder_remove)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_resume__other_worlds_and_strategies__the_same_bits_are_loaded),
        WITH_FOLDER(test_resume__other_worlds_and_strategies__the_same_losses),
        WITH_FOLDER(test_stop__one_rank_is_asked__all_stop_after_the_step_and_save),
        WITH_FOLDER(test_run__a_rank_differs__all_name_it_before_the_first_step),
        WITH_FOLDER(test_create__a_rank_lacks_a_file__all_say_so),
        WITH_FOLDER(test_resume__damage_that_one_rank_sees__all_go_on_from_the_same_older_one),
        WITH_FOLDER(test_resume__of_what_is_no_run__one_line),
        WITH_FOLDER(test_vote__finite_or_not__the_first_bad_rank_is_named),
        WITH_FOLDER(test_run__a_parameter_is_lost__nothing_is_saved_over_what_is_good),
    };
    return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
