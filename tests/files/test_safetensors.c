/* test_safetensors.c: the format, read and written: files of the reference writer, each rule of the
 * header broken in turn, random damage, and a disk that fails.
 */
#include "exec/base/numeric.h"
#include "exec/files/safetensors.h"
#include "exec/files/safetensors_impl.h"
#include "tests/files/disk_testing.h"

/* ---- writing --------------------------------------------------------------------------------- */

static const uint64_t two_by_three[2] = {2, 3}, four[1] = {4}, none[2] = {0, 8};

static struct tsr_safetensors *open_ok(const char *path)
{
    struct tsr_safetensors *f = NULL;
    if (tsr_safetensors_open(path, &f) != TSR_OK)
        fail_msg("%s", tsr_error_text());
    return f;
}

/* Every dtype once, an empty tensor and one without dimensions. */
static void declare_some(struct tsr_safetensors_writer *w)
{
    assert_int_equal(tsr_safetensors_declare(w, "b.f32", TSR_F32, 2, two_by_three, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "a.f32", TSR_F32, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "u8", TSR_U8, 2, two_by_three, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "bf16", TSR_BF16, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "f16", TSR_F16, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "f64", TSR_F64, 0, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "i64", TSR_I64, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "empty", TSR_F32, 2, none, NULL), TSR_OK);
}

static const struct {
    const char *name;
    size_t bytes;
} some[] = {{"u8", 6},   {"i64", 32}, {"a.f32", 16}, {"f16", 8},
            {"bf16", 8}, {"f64", 8},  {"b.f32", 24}};
enum { N_SOME = sizeof some / sizeof *some };

static void fill(char *data, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        data[i] = (char)(i * 7 + (size_t)name[0]);
}

static tsr_status write_some(const char *path, const struct tsr_st_writer_options *options)
{
    struct tsr_safetensors_writer *w = NULL;
    char data[32];
    assert_int_equal(tsr_safetensors_create(path, options, &w), TSR_OK);
    assert_int_equal(tsr_safetensors_add_metadata(w, "format", "pt"), TSR_OK);
    declare_some(w);
    tsr_status status = tsr_safetensors_begin(w);
    for (size_t i = 0; i < N_SOME && status == TSR_OK; i++) {
        fill(data, some[i].bytes, some[i].name);
        status = tsr_safetensors_put(w, some[i].name, data, some[i].bytes);
    }
    if (status == TSR_OK)
        status = tsr_safetensors_finish(w);
    tsr_safetensors_destroy(w);
    return status;
}

/* As the reference writer sorts: by type, then by name; eight bytes each. The text is what
 * safetensors 0.5.3 writes for the same tensors. */
static void the_header_is_that_of_the_reference(void **state)
{
    (void)state;
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"i64\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[0,32]},"
        "\"f64\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[32,40]},"
        "\"a.f32\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[40,56]},"
        "\"b.f32\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[56,80]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,8],\"data_offsets\":[80,80]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[80,88]},"
        "\"f16\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[88,96]},"
        "\"u8\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[96,102]}}";
    size_t n;
    assert_int_equal(write_some(test_path("a"), NULL), TSR_OK);
    char *text = test_read(test_path("a"), &n);
    size_t padded = (sizeof expected - 1 + 7) / 8 * 8;
    assert_int_equal(n, 8 + padded + 102);
    assert_int_equal((unsigned char)text[0] | (unsigned char)text[1] << 8, padded);
    assert_memory_equal(text + 8, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < padded; i++)
        assert_int_equal(text[8 + i], ' ');
    free(text);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    struct tsr_st_writer_options options = {.checksums = true};
    char data[32], found[32];
    assert_int_equal(write_some(test_path("a"), &options), TSR_OK);
    struct tsr_safetensors *f = open_ok(test_path("a"));
    uint64_t total = 0;
    assert_int_equal(tsr_safetensors_count(f), 8);
    assert_string_equal(tsr_safetensors_metadata(f, "format"), "pt");
    assert_null(tsr_safetensors_metadata(f, "nothing"));
    assert_null(tsr_safetensors_find(f, "nothing"));
    for (size_t i = 0; i < N_SOME; i++) {
        const struct tsr_st_tensor *t = tsr_safetensors_find(f, some[i].name);
        assert_non_null(t);
        assert_int_equal(t->bytes, some[i].bytes);
        fill(data, some[i].bytes, some[i].name);
        assert_int_equal(tsr_safetensors_read(f, t, 0, found, t->bytes), TSR_OK);
        assert_memory_equal(found, data, some[i].bytes);
        assert_int_equal(tsr_safetensors_read(f, t, 3, found, 2), TSR_OK);
        assert_memory_equal(found, data + 3, 2);
        assert_int_equal(tsr_safetensors_read(f, t, t->bytes - 1, found, 2), TSR_EVALUE);
        assert_int_equal(tsr_safetensors_verify(f, t), TSR_OK);
        total += t->bytes + 2;
        assert_int_equal(atomic_load(&f->bytes_read), total);
    }
    const struct tsr_st_tensor *empty = tsr_safetensors_find(f, "empty");
    assert_int_equal(empty->shape[1], 8);
    assert_int_equal(tsr_safetensors_read(f, empty, 0, found, 0), TSR_OK);
    assert_int_equal(tsr_safetensors_verify(f, empty), TSR_OK);
    tsr_safetensors_close(f);
}

static void misuse_of_the_writer_is_refused(void **state)
{
    (void)state;
    struct tsr_safetensors_writer *w = NULL;
    static const uint64_t huge[3] = {UINT64_C(1) << 40, UINT64_C(1) << 40, 2};
    float x[4] = {0};
    assert_int_equal(tsr_safetensors_create(test_path("w"), NULL, &w), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "x", TSR_DTYPE_NONE, 1, four, NULL), TSR_EVALUE);
    assert_int_equal(tsr_safetensors_declare(w, "x", TSR_F32, 9, huge, NULL), TSR_EVALUE);
    assert_int_equal(tsr_safetensors_declare(w, "__metadata__", TSR_F32, 1, four, NULL),
                     TSR_EVALUE);
    assert_int_equal(tsr_safetensors_declare(w, "x", TSR_F32, 3, huge, NULL), TSR_EVALUE);
    assert_int_equal(tsr_safetensors_declare(w, "x", TSR_F32, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_put(w, "x", x, 16), TSR_EVALUE); /* not begun */
    assert_int_equal(tsr_safetensors_begin(w), TSR_OK);
    assert_int_equal(tsr_safetensors_finish(w), TSR_EVALUE);
    test_error_names("\"x\"", "not written");
    assert_int_equal(tsr_safetensors_put(w, "y", x, 16), TSR_EVALUE);
    assert_int_equal(tsr_safetensors_put(w, "x", x, 12), TSR_EVALUE);
    assert_int_equal(tsr_safetensors_put(w, "x", x, 16), TSR_OK);
    assert_int_equal(tsr_safetensors_put(w, "x", x, 16), TSR_EVALUE);
    tsr_safetensors_destroy(w);
    assert_false(test_exists(test_path("w")));
    assert_int_equal(tsr_safetensors_create(test_path("w"), NULL, &w), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "x", TSR_F32, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_declare(w, "x", TSR_F32, 1, four, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_begin(w), TSR_EVALUE);
    test_error_names("\"x\"", "twice");
    tsr_safetensors_destroy(w);
}

/* Whichever call fails: one line, and no file. */
static void a_file_that_cannot_be_written_is_removed(void **state)
{
    (void)state;
    long calls = 1;
    for (long k = 0; k < calls; k++) {
        struct test_disk disk;
        test_disk_init(&disk, TEST_FAIL_ONCE, k, ENOSPC);
        struct tsr_st_writer_options options = {.disk = &disk.ops};
        assert_int_equal(write_some(test_path("full"), &options), TSR_EIO);
        test_error_names("full", strerror(ENOSPC));
        assert_false(test_exists(test_path("full")));
        calls = k == 0 ? 11 : calls; /* create, seven tensors, header, fsync, close */
        assert_true(disk.calls <= calls + 2);
        test_disk_fini(&disk);
    }
    struct test_disk disk;
    test_disk_init(&disk, TEST_FAIL_ONCE, -1, 0);
    struct tsr_st_writer_options options = {.disk = &disk.ops};
    assert_int_equal(write_some(test_path("full"), &options), TSR_OK);
    assert_int_equal(disk.calls, calls);
    test_disk_fini(&disk);
}

/* ---- files of the reference ------------------------------------------------------------------ */

static void write_again(struct tsr_safetensors *f, const char *path)
{
    struct tsr_safetensors_writer *w = NULL;
    struct test_disk disk; /* never fails, and does not wait for the real one */
    test_disk_init(&disk, TEST_FAIL_ONCE, -1, 0);
    struct tsr_st_writer_options options = {.disk = &disk.ops};
    assert_int_equal(tsr_safetensors_create(path, &options, &w), TSR_OK);
    for (size_t i = 0; i < tsr_safetensors_count(f); i++) {
        const struct tsr_st_tensor *t = tsr_safetensors_tensor(f, i);
        assert_int_equal(tsr_safetensors_declare(w, t->name, t->dtype, t->n_dims, t->shape, NULL),
                         TSR_OK);
    }
    assert_int_equal(tsr_safetensors_begin(w), TSR_OK);
    for (size_t i = tsr_safetensors_count(f); i-- > 0;) {
        const struct tsr_st_tensor *t = tsr_safetensors_tensor(f, i);
        char *data = malloc(t->bytes + 1);
        assert_int_equal(tsr_safetensors_read(f, t, 0, data, t->bytes), TSR_OK);
        assert_int_equal(tsr_safetensors_put(w, t->name, data, t->bytes), TSR_OK);
        free(data);
    }
    assert_int_equal(tsr_safetensors_finish(w), TSR_OK);
    tsr_safetensors_destroy(w);
    test_disk_fini(&disk);
}

/* All recorded tensors, which PyTorch's side wrote: read, and written again byte by byte. */
static void recorded_files_are_written_again(void **state)
{
    (void)state;
    static const char folder[] = TSR_SOURCE_DIR "/tests/golden/tensors";
    DIR *dir = opendir(folder);
    size_t n_files = 0;
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char path[2048];
        size_t n = 0, m = 0;
        if (!strstr(d->d_name, ".safetensors"))
            continue;
        assert_true(snprintf(path, sizeof path, "%s/%s", folder, d->d_name) < 2048);
        struct tsr_safetensors *f = open_ok(path);
        write_again(f, test_path("again"));
        tsr_safetensors_close(f);
        char *a = test_read(path, &n), *b = test_read(test_path("again"), &m);
        assert_int_equal(n, m);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
        n_files++;
    }
    closedir(dir);
    assert_true(n_files > 300);
}

static void a_recorded_file_has_its_shapes(void **state)
{
    (void)state;
    struct tsr_safetensors *f =
        open_ok(TSR_SOURCE_DIR "/tests/golden/tensors/ac-inside-noearly-w2.final.safetensors");
    assert_int_equal(tsr_safetensors_count(f), 15);
    const struct tsr_st_tensor *t = tsr_safetensors_find(f, "layers.1.down.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, TSR_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 8);
    assert_int_equal(t->shape[1], 12);
    assert_int_equal(t->offset, 1360);
    tsr_safetensors_close(f);
}

/* ---- broken files ---------------------------------------------------------------------------- */

static void write_header(const char *path, const char *header, uint64_t length, size_t data)
{
    char bytes[2048] = {0};
    size_t n = strlen(header);
    assert_true(8 + n + data <= sizeof bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> 8 * i & 255);
    strcpy(bytes + 8, header);
    test_write(path, bytes, 8 + n + data);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static const struct broken {
    const char *header;
    size_t data;
    const char *a, *b; /* words of the error */
} all_broken[] = {
    {"", 4, "header", "'{'"},
    {" {}", 0, "header", "'{'"},
    {"[]", 0, "header", "'{'"},
    {"{", 0, "header", NULL},
    {"{} x", 0, "header", NULL},
    {"{\"x\":1}", 0, "\"x\"", "entry"},
    {"{" T("x", "F32", "[1]", 0, 4) "," T("x", "F32", "[1]", 4, 8) "}", 8, "header", "duplicate"},
    {"{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "header", "duplicate"},
    {"{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"x\"", "dtype: missing"},
    {"{\"x\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"x\"", "dtype"},
    {"{" T("x", "F33", "[1]", 0, 4) "}", 4, "\"x\"", "F33"},
    {"{" T("x", "f32", "[1]", 0, 4) "}", 4, "\"x\"", "f32"},
    {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"x\"", "shape: missing"},
    {"{" T("x", "F32", "1", 0, 4) "}", 4, "\"x\"", "shape"},
    {"{" T("x", "F32", "[-1]", 0, 4) "}", 4, "\"x\"", "shape"},
    {"{" T("x", "F32", "[1.0]", 0, 4) "}", 4, "\"x\"", "shape"},
    {"{" T("x", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "\"x\"", "9 dimensions"},
    {"{" T("x", "F32", "[4294967296,4294967296]", 0, 4) "}", 4, "\"x\"", "too large"},
    {"{" T("x", "F32", "[99999999999999999999]", 0, 4) "}", 4, "header", NULL},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"x\"", "data_offsets: missing"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "\"x\"", "data_offsets"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]}}", 4, "\"x\"",
     "data_offsets"},
    {"{" T("x", "F32", "[1]", 4, 0) "}", 4, "\"x\"", "data_offsets"},
    {"{" T("x", "F32", "[2]", 0, 8) "}", 4, "\"x\"", "[0, 8]"},
    {"{" T("x", "F32", "[1]", 0, 3) "}", 3, "\"x\"", "make 4"},
    {"{" T("x", "F4", "[3]", 0, 1) "}", 1, "\"x\"", "F4"},
    {"{" T("x", "F32", "[1]", 0, 4) "," T("y", "F32", "[1]", 2, 6) "}", 6, "\"y\"", "\"x\""},
    {"{" T("x", "F32", "[1]", 0, 4) "," T("y", "F32", "[1]", 6, 10) "}", 10, "\"y\"", "4 to 6"},
    {"{" T("x", "F32", "[1]", 2, 6) "}", 6, "\"x\"", "0 to 2"},
    {"{" T("x", "F32", "[1]", 0, 4) "}", 5, "header", "5"},
    {"{}", 1, "header", "1"},
    {"{\"__metadata__\":1}", 0, "__metadata__", NULL},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__", "\"a\""},
    {"{\"a\\nb\":1}", 0, "\"a\\nb\"", NULL}};

static void each_rule_of_the_header_has_its_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_broken / sizeof *all_broken; i++) {
        const struct broken *b = &all_broken[i];
        struct tsr_safetensors *f = NULL;
        write_header(test_path("broken"), b->header, strlen(b->header), b->data);
        if (tsr_safetensors_open(test_path("broken"), &f) != TSR_ECONFIG)
            fail_msg("accepted: %s", b->header);
        assert_null(f);
        test_error_names(test_path("broken"), b->a);
        test_error_names(b->a, b->b);
    }
}

static void lengths_are_checked(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 100000001, UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63};
    struct tsr_safetensors *f = NULL;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_header(test_path("broken"), "{}", lengths[i], 0);
        assert_int_equal(tsr_safetensors_open(test_path("broken"), &f), TSR_ECONFIG);
        test_error_names(test_path("broken"), "header length");
    }
    for (size_t n = 0; n < 8; n++) {
        test_write(test_path("broken"), "\2\0\0\0\0\0\0\0", n);
        assert_int_equal(tsr_safetensors_open(test_path("broken"), &f), TSR_ECONFIG);
    }
    assert_int_equal(tsr_safetensors_open(test_path("not there"), &f), TSR_EIO);
    test_error_names("not there", "No such file");
    assert_int_equal(tsr_safetensors_open(test_folder, &f), TSR_ECONFIG);
}

static void odd_but_valid_headers_are_read(void **state)
{
    (void)state;
    static const char *const fine[] = {
        "{}",
        "{}        ",
        "{" T("x", "F32", "[0,99999999999]", 0, 0) "," T("y", "U8", "[4]", 0, 4) "}",
        "{" T("b", "I32", "[1]", 0, 4) "," T("a", "BOOL", "[0]", 4, 4) "}",
        "{" T("x", "F4", "[2,4]", 0, 4) "}",
        "{" T("x", "F8_E4M3", "[4]", 0, 4) "}",
        "{\"__metadata__\":{}," T("x", "F32", "[]", 0, 4) "}"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        write_header(test_path("fine"), fine[i], strlen(fine[i]), i < 2 ? 0 : 4);
        tsr_safetensors_close(open_ok(test_path("fine")));
    }
}

/* Any byte of length and header changed: refused with a line, or a file that can be read. */
static void random_damage_never_crashes(void **state)
{
    (void)state;
    struct tsr_st_writer_options options = {.checksums = true};
    size_t n = 0, refused = 0;
    test_seed("random_damage_never_crashes");
    assert_int_equal(write_some(test_path("a"), &options), TSR_OK);
    char *good = test_read(test_path("a"), &n), *bad = malloc(n);
    for (int round = 0; round < 3000; round++) {
        struct tsr_safetensors *f = NULL;
        size_t length = round % 10 ? n : test_random(n);
        memcpy(bad, good, n);
        for (uint64_t k = 1 + test_random(3); k-- > 0;)
            bad[test_random(n - 102)] = (char)test_random(256);
        test_write(test_path("b"), bad, length);
        tsr_status status = tsr_safetensors_open(test_path("b"), &f);
        assert_true(status == TSR_OK || status == TSR_ECONFIG);
        assert_true((status == TSR_OK) == (f != NULL));
        refused += status != TSR_OK;
        assert_true(status == TSR_OK || !strchr(tsr_error_text(), '\n'));
        for (size_t i = 0; f && i < tsr_safetensors_count(f); i++) {
            const struct tsr_st_tensor *t = tsr_safetensors_tensor(f, i);
            assert_true(t->bytes <= 102);
            assert_int_equal(tsr_safetensors_read(f, t, 0, bad, t->bytes), TSR_OK);
            (void)!tsr_safetensors_verify(f, t);
        }
        tsr_safetensors_close(f);
    }
    assert_true(refused > 1000);
    free(good);
    free(bad);
}

static void damaged_data_do_not_verify(void **state)
{
    (void)state;
    struct tsr_st_writer_options options = {.checksums = true};
    assert_int_equal(write_some(test_path("a"), &options), TSR_OK);
    struct tsr_safetensors *f = open_ok(test_path("a"));
    uint64_t data = tsr_safetensors_bytes(f) - 102;
    tsr_safetensors_close(f);
    test_flip(test_path("a"), data + 45); /* in a.f32 */
    f = open_ok(test_path("a"));
    assert_int_equal(tsr_safetensors_verify(f, tsr_safetensors_find(f, "a.f32")), TSR_EIO);
    test_error_names("a.f32", "damaged");
    assert_int_equal(tsr_safetensors_verify(f, tsr_safetensors_find(f, "b.f32")), TSR_OK);
    tsr_safetensors_close(f);
    assert_int_equal(write_some(test_path("a"), NULL), TSR_OK);
    f = open_ok(test_path("a"));
    assert_int_equal(tsr_safetensors_verify(f, tsr_safetensors_find(f, "a.f32")), TSR_ECONFIG);
    tsr_safetensors_close(f);
}

/* Cut off behind our back: a line, where a mapped file would have ended the process. */
static void a_file_that_shrinks_is_an_error(void **state)
{
    (void)state;
    char data[32];
    assert_int_equal(write_some(test_path("a"), NULL), TSR_OK);
    struct tsr_safetensors *f = open_ok(test_path("a"));
    assert_int_equal(truncate(test_path("a"), (off_t)tsr_safetensors_bytes(f) - 3), 0);
    assert_int_equal(tsr_safetensors_read(f, tsr_safetensors_find(f, "u8"), 0, data, 6), TSR_EIO);
    test_error_names(test_path("a"), "ends");
    assert_int_equal(tsr_safetensors_read(f, tsr_safetensors_find(f, "i64"), 0, data, 32), TSR_OK);
    tsr_safetensors_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_header_is_that_of_the_reference),
                                       cmocka_unit_test(what_is_written_is_read_back),
                                       cmocka_unit_test(misuse_of_the_writer_is_refused),
                                       cmocka_unit_test(a_file_that_cannot_be_written_is_removed),
                                       cmocka_unit_test(recorded_files_are_written_again),
                                       cmocka_unit_test(a_recorded_file_has_its_shapes),
                                       cmocka_unit_test(each_rule_of_the_header_has_its_line),
                                       cmocka_unit_test(lengths_are_checked),
                                       cmocka_unit_test(odd_but_valid_headers_are_read),
                                       cmocka_unit_test(random_damage_never_crashes),
                                       cmocka_unit_test(damaged_data_do_not_verify),
                                       cmocka_unit_test(a_file_that_shrinks_is_an_error)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
