/* test_weights.c: weights of Hugging Face, read piece by piece, under both sets of names. */
#include "exec/files/safetensors_impl.h"
#include "exec/files/weights.h"
#include "tests/files/weights_testing.h"

/* Of tensors, so far. */
static uint64_t bytes_read(const struct tsr_weights *w)
{
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_files; i++)
        total += atomic_load(&w->files[i]->bytes_read);
    return total;
}

/* ---- what a model expects -------------------------------------------------------------------- */

/* How entry i of a plain model lies in the file: the entry of the Hugging Face model that it is. */
struct expected {
    const struct tsr_state_dict *hf;
    const size_t *same_as; /* [n]: entry there; NULL: its own */
    uint64_t interleaved;  /* head size */
};

/* Written from the formats' descriptions, not with the code under test. */
static float expected_value(const struct expected *x, const struct tsr_state_dict *s, size_t i,
                            const uint64_t *at)
{
    const struct tsr_dtensor *t = layout(s, i);
    size_t other = x->hf->entries[x->same_as ? x->same_as[i] : i].alias_of;
    const char *name = x->hf->entries[other].fqn;
    const struct tsr_dtensor *u = layout(x->hf, other);
    uint64_t row = at[0], column = t->n_dims > 1 ? at[1] : 0;
    bool turned = strstr(name, "c_attn.weight") || strstr(name, "c_proj.weight") ||
                  strstr(name, "c_fc.weight");
    if (x->same_as && turned)
        return value_of(name, column * u->shape[1] + row);
    if (x->interleaved && (strstr(name, "q_") || strstr(name, "k_"))) {
        /* neighbours 2i, 2i + 1 of a head of 4 are i and i + 2 in the file */
        static const uint64_t from[4] = {0, 2, 1, 3};
        assert_int_equal(x->interleaved, 4);
        row = row / 4 * 4 + from[row % 4];
    }
    return value_of(name, row * (t->n_dims > 1 ? u->shape[1] : 1) + column);
}

/* A rank's piece of every parameter, in every dtype; bytes read are those of the piece. */
static void check_model(struct tsr_weights *w, const struct tsr_hf_model *model,
                        const struct tsr_state_dict *s, const struct expected *x,
                        unsigned file_bytes)
{
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    assert_int_equal(tsr_weights_check(w, model, s), TSR_OK);
    for (uint32_t rank = 0; rank < s->world; rank++)
        for (size_t i = 0; i < s->n; i++) {
            const struct tsr_dtensor *t = layout(s, i);
            struct tsr_piece piece = {.dtype = (uint8_t)dtypes[(i + rank) % 4],
                                      .n_dims = t->n_dims};
            char out[8 * MOST];
            float found[MOST];
            uint64_t before = bytes_read(w), k = 0;
            memcpy(piece.shape, t->shape, sizeof piece.shape);
            assert_true(tsr_dtensor_box(t, rank, piece.start, piece.size));
            uint64_t rows = piece.size[0], columns = t->n_dims > 1 ? piece.size[1] : 1;
            assert_true(rows * columns <= MOST);
            const char *fqn = s->entries[i].fqn;
            piece.name = tsr_hash_bytes(TSR_HASH_INIT, fqn, strlen(fqn));
            if ((i % 2 ? tsr_weights_read_piece(w, model, s, &piece, out)
                       : tsr_weights_read(w, model, fqn, &piece, out)) != TSR_OK)
                fail_msg("%s", tsr_error_text());
            assert_int_equal(bytes_read(w) - before, rows * columns * file_bytes);
            tsr_convert((tsr_dtype)piece.dtype, out, TSR_F32, found, rows * columns);
            for (uint64_t r = 0; r < rows; r++)
                for (uint64_t c = 0; c < columns; c++, k++) {
                    const uint64_t at[2] = {piece.start[0] + r, piece.start[1] + c};
                    float expected = expected_value(x, s, i, at);
                    if (found[k] != expected)
                        fail_msg("%s[%u][%u]: %g, not %g", s->entries[i].fqn, (unsigned)at[0],
                                 (unsigned)at[1], (double)found[k], (double)expected);
                }
        }
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The plain model's parameters are those of the other one, each once, of the same or turned shape.
 */
static void match_names(const struct tsr_state_dict *plain, const struct tsr_state_dict *hf,
                        const struct tsr_hf_model *model, size_t *same_as)
{
    bool seen[64] = {false};
    assert_int_equal(plain->n, hf->n);
    for (size_t i = 0; i < plain->n; i++) {
        struct tsr_hf_name name;
        assert_int_equal(tsr_hf_name(model, plain->entries[i].fqn, &name), TSR_OK);
        const struct tsr_state_entry *e = tsr_state_dict_find(hf, name.name);
        if (!e)
            fail_msg("%s is not a parameter of the model", name.name);
        same_as[i] = (size_t)(e - hf->entries);
        assert_false(seen[same_as[i]]);
        seen[same_as[i]] = true;
        const struct tsr_dtensor *t = layout(plain, i), *u = layout(hf, same_as[i]);
        assert_int_equal(t->n_dims, u->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            assert_int_equal(t->shape[name.transposed ? 1 - d : d], u->shape[d]);
        assert_int_equal(tsr_hf_name(model, e->fqn, &name), TSR_OK); /* its own name, too */
        assert_string_equal(name.name, e->fqn);
        assert_false(name.transposed);
    }
}

static void unknown_names_are_refused(void **state)
{
    (void)state;
    static const char *const unknown[] = {"",
                                          "layers.0.attention.wz.weight",
                                          "layers.x.ffn_norm",
                                          "layers.0",
                                          "tok_embeddings",
                                          "transformer.wte.weight"};
    struct tsr_hf_model model = {.family = TSR_HF_LLAMA};
    struct tsr_hf_name name;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_int_equal(tsr_hf_name(&model, unknown[i], &name), TSR_ECONFIG);
        test_error_names(unknown[i], "Llama");
    }
    model.family = TSR_HF_GPT2;
    assert_int_equal(tsr_hf_name(&model, "model.norm.weight", &name), TSR_ECONFIG);
    test_error_names("model.norm.weight", "GPT-2");
}

/* ---- reading --------------------------------------------------------------------------------- */

static void llama_of_both_names(void **state)
{
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    for (int qwen = 0; qwen < 2; qwen++)
        for (size_t d = 0; d < 4; d++) {
            struct tsr_hf_model model = {.family = TSR_HF_LLAMA};
            struct tsr_state_dict hf = llama(&three, TSR_NAMES_HF, false, qwen);
            struct tsr_state_dict plain = llama(&three, TSR_NAMES_PLAIN, false, qwen);
            struct file f = {.path = test_path("m.safetensors"), .dtype = dtypes[d]};
            size_t same_as[64];
            f.extra = d ? "model.layers.1.self_attn.rotary_emb.inv_freq" : NULL;
            write_model(&hf, &f);
            struct tsr_weights *w = open_ok(f.path);
            struct expected x = {.hf = &hf};
            check_model(w, &model, &hf, &x, tsr_dtype_bytes(f.dtype));
            match_names(&plain, &hf, &model, same_as);
            x.same_as = same_as;
            check_model(w, &model, &plain, &x, tsr_dtype_bytes(f.dtype));
            x.interleaved = model.interleaved_head_dim = 4;
            check_model(w, &model, &plain, &x, tsr_dtype_bytes(f.dtype));
            tsr_weights_close(w);
            tsr_state_dict_fini(&hf);
            tsr_state_dict_fini(&plain);
        }
}

static void gpt2_of_both_names(void **state)
{
    (void)state;
    struct tsr_hf_model model = {.family = TSR_HF_GPT2, .tied = true};
    struct tsr_state_dict hf = gpt2(&three, TSR_NAMES_HF), plain = gpt2(&three, TSR_NAMES_PLAIN);
    size_t same_as[64];
    match_names(&plain, &hf, &model, same_as);
    for (int prefix = 0; prefix < 2; prefix++) {
        struct file f = {.path = test_path("m.safetensors"),
                         .dtype = TSR_F32,
                         .drop = prefix ? NULL : "transformer.",
                         .extra = prefix ? "transformer.h.1.attn.bias" : "h.0.attn.masked_bias"};
        write_model(&hf, &f);
        struct tsr_weights *w = open_ok(f.path);
        struct expected x = {.hf = &hf};
        check_model(w, &model, &hf, &x, 4);
        x.same_as = same_as;
        check_model(w, &model, &plain, &x, 4);
        tsr_weights_close(w);
    }
    tsr_state_dict_fini(&hf);
    tsr_state_dict_fini(&plain);
}

/* The head of a tied model: absent, or there and equal, or another one. */
static void tied_heads(void **state)
{
    (void)state;
    struct tsr_hf_model tied = {.family = TSR_HF_LLAMA, .tied = true}, loose = tied;
    struct tsr_state_dict hf = llama(&one, TSR_NAMES_HF, true, false);
    struct tsr_state_dict untied = llama(&one, TSR_NAMES_HF, false, false);
    struct tsr_piece piece = all_of(layout(&hf, 0));
    float out[11 * 8];
    loose.tied = false;
    struct file f = {.path = test_path("absent"), .dtype = TSR_BF16};
    write_model(&hf, &f);
    struct tsr_weights *w = open_ok(f.path);
    assert_int_equal(tsr_weights_read(w, &tied, "lm_head.weight", &piece, out), TSR_OK);
    assert_true(out[9] == value_of("model.embed_tokens.weight", 9));
    assert_int_equal(tsr_weights_check(w, &loose, &untied), TSR_ECONFIG);
    test_error_names("lm_head.weight", "absent");
    assert_int_equal(tsr_weights_read(w, &loose, "lm_head.weight", &piece, out), TSR_ECONFIG);
    tsr_weights_close(w);

    f.path = test_path("equal");
    f.extra = "lm_head.weight";
    write_model(&hf, &f);
    w = open_ok(f.path);
    assert_int_equal(tsr_weights_check(w, &tied, &hf), TSR_OK);
    assert_int_equal(tsr_weights_read(w, &tied, "model.embed_tokens.weight", &piece, out), TSR_OK);
    tsr_weights_close(w);

    f.path = test_path("other");
    f.extra = NULL;
    write_model(&untied, &f);
    w = open_ok(f.path);
    assert_int_equal(tsr_weights_read(w, &tied, "model.embed_tokens.weight", &piece, out),
                     TSR_ECONFIG);
    test_error_names("lm_head.weight", "model.embed_tokens.weight");
    tsr_weights_close(w);
    tsr_state_dict_fini(&hf);
    tsr_state_dict_fini(&untied);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct tsr_hf_model model = {.family = TSR_HF_LLAMA};
    struct tsr_state_dict hf = llama(&one, TSR_NAMES_HF, false, false);
    struct tsr_state_dict plain = llama(&one, TSR_NAMES_PLAIN, false, false);
    struct tsr_state_dict biased = llama(&one, TSR_NAMES_HF, false, true);
    struct file f = {.path = test_path("fit"), .dtype = TSR_F32, .skip = "model.norm.weight"};
    char out[4096];
    write_model(&hf, &f);
    struct tsr_weights *w = open_ok(f.path);
    struct tsr_piece piece = all_of(layout(&hf, 0));
    assert_int_equal(tsr_weights_check(w, &model, &plain), TSR_ECONFIG);
    test_error_names("\"model.norm.weight\"", "norm.weight)");
    piece.shape[0] = 12;
    assert_int_equal(tsr_weights_read(w, &model, "tok_embeddings.weight", &piece, out),
                     TSR_ECONFIG);
    test_error_names("[11, 8]", "[12, 8]");
    piece = all_of(layout(&hf, 0));
    piece.size[0] = 12;
    assert_int_equal(tsr_weights_read(w, &model, "tok_embeddings.weight", &piece, out),
                     TSR_EDEFECT);
    piece = all_of(layout(&hf, 0));
    piece.name = 17;
    assert_int_equal(tsr_weights_read_piece(w, &model, &hf, &piece, out), TSR_EDEFECT);
    piece.dtype = TSR_I64;
    assert_int_equal(tsr_weights_read(w, &model, "tok_embeddings.weight", &piece, out),
                     TSR_ECONFIG);
    test_error_names("F32", "i64");
    model.interleaved_head_dim = 6;
    assert_int_equal(tsr_weights_check(w, &model, &hf), TSR_ECONFIG);
    test_error_names("q_proj", "heads of 6");
    tsr_weights_close(w);

    model.interleaved_head_dim = 0;
    f.skip = NULL;
    write_model(&biased, &f); /* more than the model has */
    w = open_ok(f.path);
    assert_int_equal(tsr_weights_check(w, &model, &hf), TSR_ECONFIG);
    test_error_names("no place in the model", "model.layers.0.self_attn.");
    tsr_weights_close(w);
    tsr_state_dict_fini(&hf);
    tsr_state_dict_fini(&plain);
    tsr_state_dict_fini(&biased);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void write_text(const char *path, const char *text)
{
    test_write(path, text, strlen(text));
}

/* {"weight_map": ...} of a model in two files. */
static void write_index(const struct tsr_state_dict *hf, const char *path, const char *second)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (size_t i = 0; i < hf->n; i++)
        fprintf(out, "%s\"%s\": \"%s\"", i ? ", " : "", hf->entries[i].fqn,
                i % 2 ? second : "a.safetensors");
    fprintf(out, "}}");
    assert_int_equal(fclose(out), 0);
}

static void several_files_with_an_index(void **state)
{
    (void)state;
    struct tsr_hf_model model = {.family = TSR_HF_LLAMA};
    struct tsr_state_dict hf = llama(&three, TSR_NAMES_HF, false, false);
    const char *index = test_path("many/model.safetensors.index.json");
    struct tsr_weights *w = NULL;
    assert_int_equal(mkdir(test_path("many"), 0777), 0);
    assert_int_equal(tsr_weights_open(test_path("many"), &w), TSR_ECONFIG);
    test_error_names("model.safetensors", "index.json");
    struct file f = {.path = test_path("many/a.safetensors"), .dtype = TSR_F16, .n_parts = 2};
    write_model(&hf, &f);
    f.path = test_path("many/b.safetensors");
    f.part = 1;
    write_model(&hf, &f);
    write_index(&hf, index, "b.safetensors");
    const char *const paths[] = {test_path("many"), index};
    for (int i = 0; i < 2; i++) {
        w = open_ok(paths[i]);
        struct expected x = {.hf = &hf};
        check_model(w, &model, &hf, &x, 2);
        tsr_weights_close(w);
    }
    write_index(&hf, index, "c.safetensors");
    assert_int_equal(tsr_weights_open(index, &w), TSR_ECONFIG);
    test_error_names("index.json", "c.safetensors");
    f.skip = "model.layers.0.self_attn.q_proj.weight"; /* its second file lacks one */
    write_model(&hf, &f);
    write_index(&hf, index, "b.safetensors");
    tsr_status status = tsr_weights_open(index, &w);
    if (status == TSR_OK) { /* it was in the first file */
        tsr_weights_close(w);
        f = (struct file){.path = test_path("many/a.safetensors"),
                          .dtype = TSR_F16,
                          .n_parts = 2,
                          .skip = f.skip};
        write_model(&hf, &f);
        status = tsr_weights_open(index, &w);
    }
    assert_int_equal(status, TSR_ECONFIG);
    test_error_names("not in their files", f.skip);
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"weight_map\": 1}",
                                      "{\"weight_map\": {\"x\": 1}}",
                                      "{\"weight_map\": {\"x\": \"../a.safetensors\"}}",
                                      "{\"weight_map\": {\"x\": \"a\", \"x\": \"a\"}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(index, bad[i]);
        assert_int_equal(tsr_weights_open(index, &w), TSR_ECONFIG);
        test_error_names("index.json", NULL);
    }
    tsr_state_dict_fini(&hf);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* All 16-bit numbers to f32 and back; f64 and f32 round as one. */
static void conversions_are_exact_where_they_can_be(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tsr_dtype dtype = kind ? TSR_BF16 : TSR_F16;
        for (unsigned i = 0; i < 65536; i += 1000) {
            uint16_t in[1000], back[1000];
            double wide[1000];
            unsigned n = i + 1000 > 65536 ? 65536 - i : 1000;
            for (unsigned k = 0; k < n; k++)
                in[k] = (uint16_t)(i + k);
            tsr_convert(dtype, in, TSR_F64, wide, n);
            tsr_convert(TSR_F64, wide, dtype, back, n);
            for (unsigned k = 0; k < n; k++)
                assert_true(back[k] == in[k] || wide[k] != wide[k]);
        }
    }
    assert_true(tsr_can_convert(TSR_I64, TSR_I64));
    assert_false(tsr_can_convert(TSR_I64, TSR_F32));
    assert_false(tsr_can_convert(TSR_DTYPE_NONE, TSR_DTYPE_NONE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(unknown_names_are_refused),
                                       cmocka_unit_test(llama_of_both_names),
                                       cmocka_unit_test(gpt2_of_both_names),
                                       cmocka_unit_test(tied_heads),
                                       cmocka_unit_test(what_does_not_fit_is_refused),
                                       cmocka_unit_test(several_files_with_an_index),
                                       cmocka_unit_test(conversions_are_exact_where_they_can_be)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
