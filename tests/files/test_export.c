/* test_export.c: models exported for Hugging Face are those that were imported; a failed export
 * leaves the old one.
 */
#include "exec/files/checkpoint.h"
#include "exec/files/export.h"
#include "tests/files/weights_testing.h"

/* The model's parameters as `w` has them, saved by one rank. */
static void save_model(const struct tsr_state_dict *s, struct tsr_weights *w,
                       const struct tsr_hf_model *model, const char *dir)
{
    struct tsr_checkpoint_config config = {.dir = dir, .world = 1};
    struct tsr_checkpoint_layout l = {.params = s};
    struct tsr_checkpoint_info info = {.seed = 1};
    struct tsr_checkpoint_writer *out = NULL;
    char data[4 * MOST];
    assert_int_equal(tsr_checkpoint_begin(&config, 1, &l, &out), TSR_OK);
    for (size_t i = 0; i < s->n; i++) {
        struct tsr_piece piece = all_of(layout(s, i));
        uint64_t bytes = 4 * tsr_dtensor_numel(layout(s, i));
        if (s->entries[i].alias_of != i)
            continue;
        assert_int_equal(tsr_weights_read(w, model, s->entries[i].fqn, &piece, data), TSR_OK);
        assert_int_equal(tsr_checkpoint_put(out, TSR_PART_PARAM, i, data, bytes), TSR_OK);
    }
    assert_int_equal(tsr_checkpoint_commit(out, &info), TSR_OK);
    tsr_checkpoint_writer_destroy(out);
}

/* Exported and original file agree byte for byte where the dtype is the same. */
static void export_is_import(const struct tsr_state_dict *hf, const struct tsr_state_dict *own,
                             const struct tsr_hf_model *model, tsr_dtype dtype)
{
    struct tsr_checkpoint *c = NULL;
    struct file f = {.path = test_path("original"), .dtype = dtype};
    write_model(hf, &f);
    struct tsr_weights *w = open_ok(f.path);
    save_model(own, w, model, test_path("ckpt"));
    tsr_weights_close(w);
    struct tsr_export_options options = {
        .model = *model, .dtype = dtype, .config = "{\"model_type\": \"x\"}\n"};
    assert_int_equal(tsr_checkpoint_open(test_path("ckpt"), true, &c), TSR_OK);
    if (tsr_export(c, test_path("out/deep"), &options) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    tsr_checkpoint_close(c);

    struct tsr_safetensors *a = NULL, *b = NULL;
    assert_int_equal(tsr_safetensors_open(f.path, &a), TSR_OK);
    assert_int_equal(tsr_safetensors_open(test_path("out/deep/model.safetensors"), &b), TSR_OK);
    assert_string_equal(tsr_safetensors_metadata(b, "format"), "pt");
    assert_int_equal(tsr_safetensors_count(a), tsr_safetensors_count(b));
    for (size_t i = 0; i < tsr_safetensors_count(a); i++) {
        const struct tsr_st_tensor *t = tsr_safetensors_tensor(a, i);
        const struct tsr_st_tensor *u = tsr_safetensors_tensor(b, i);
        char x[4 * MOST], y[4 * MOST];
        assert_string_equal(t->name, u->name);
        assert_string_equal(t->type, u->type);
        assert_memory_equal(t->shape, u->shape, sizeof t->shape);
        assert_int_equal(tsr_safetensors_read(a, t, 0, x, t->bytes), TSR_OK);
        assert_int_equal(tsr_safetensors_read(b, u, 0, y, u->bytes), TSR_OK);
        assert_memory_equal(x, y, t->bytes);
    }
    tsr_safetensors_close(a);
    tsr_safetensors_close(b);
    size_t n;
    char *config = test_read(test_path("out/deep/config.json"), &n);
    assert_string_equal(config, options.config);
    free(config);
    test_remove(test_path("out"));
    test_remove(test_path("ckpt"));
}

static void exported_models_are_those_of_the_files(void **state)
{
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (int d = 0; d < 3; d++) {
        struct tsr_hf_model l = {.family = TSR_HF_LLAMA, .tied = d == 1};
        struct tsr_hf_model g = {.family = TSR_HF_GPT2, .tied = true};
        struct tsr_state_dict lh = llama(&one, TSR_NAMES_HF, l.tied, true);
        struct tsr_state_dict lp = llama(&one, TSR_NAMES_PLAIN, l.tied, true);
        struct tsr_state_dict gh = gpt2(&one, TSR_NAMES_HF), gp = gpt2(&one, TSR_NAMES_PLAIN);
        export_is_import(&lh, &lh, &l, dtypes[d]);
        export_is_import(&lh, &lp, &l, dtypes[d]);
        l.interleaved_head_dim = 4;
        export_is_import(&lh, &lp, &l, dtypes[d]);
        export_is_import(&gh, &gh, &g, dtypes[d]);
        export_is_import(&gh, &gp, &g, dtypes[d]);
        tsr_state_dict_fini(&lh);
        tsr_state_dict_fini(&lp);
        tsr_state_dict_fini(&gh);
        tsr_state_dict_fini(&gp);
    }
}

/* Whichever call fails: the model that was there, or the new one; no other file. */
static void exports_that_fail_leave_the_old_model(void **state)
{
    (void)state;
    struct tsr_hf_model model = {.family = TSR_HF_LLAMA};
    struct tsr_state_dict hf = llama(&one, TSR_NAMES_HF, false, false);
    struct file f = {.path = test_path("original"), .dtype = TSR_F32};
    struct tsr_export_options options = {.model = model, .dtype = TSR_F32, .config = "{}"};
    struct tsr_checkpoint *c = NULL;
    write_model(&hf, &f);
    struct tsr_weights *w = open_ok(f.path);
    save_model(&hf, w, &model, test_path("ckpt"));
    tsr_weights_close(w);
    assert_int_equal(tsr_checkpoint_open(test_path("ckpt"), false, &c), TSR_OK);
    tsr_status status = TSR_EIO;
    for (long k = 0; status != TSR_OK; k++) {
        const char *out = test_path("out");
        struct test_disk disk;
        test_disk_init(&disk, TEST_FAIL_ONCE, k, ENOSPC);
        options.disk = &disk.ops;
        assert_int_equal(mkdir(out, 0777), 0);
        test_write(test_path("out/model.safetensors"), "old", 3);
        test_write(test_path("out/config.json"), "old", 3);
        status = tsr_export(c, out, &options);
        if (status != TSR_OK)
            test_error_names(out, strerror(ENOSPC));
        size_t n = 0;
        char *text = test_read(test_path("out/model.safetensors"), &n);
        assert_true(n > 1000 || !strcmp(text, "old"));
        free(text);
        text = test_read(test_path("out/config.json"), &n);
        assert_true(!strcmp(text, "old") || !strcmp(text, "{}"));
        free(text);
        assert_false(test_exists(test_path("out/model.safetensors.tmp")));
        assert_false(test_exists(test_path("out/config.json.tmp")));
        test_remove(out);
        assert_true(status != TSR_OK || k > 20);
        test_disk_fini(&disk);
    }
    options.disk = NULL;
    options.dtype = TSR_F64;
    assert_int_equal(tsr_export(c, test_path("out"), &options), TSR_EVALUE);
    options.dtype = TSR_F32;
    options.config = "{";
    assert_int_equal(tsr_export(c, test_path("out"), &options), TSR_ECONFIG);
    tsr_checkpoint_close(c);
    tsr_state_dict_fini(&hf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exported_models_are_those_of_the_files),
                                       cmocka_unit_test(exports_that_fail_leave_the_old_model)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
