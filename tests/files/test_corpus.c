/* test_corpus.c: which texts make a corpus, how it is divided, and its entropies. */
#include "tests/files/data_testing.h"

#include <math.h>
#include <sys/stat.h>

#include "exec/data/corpus.h"
#include "exec/data/data.h"
#include "exec/data/token_file.h"

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

/* Lines of random words of 200; every seed is a text of its own. */
static char *random_text(uint64_t seed, size_t n)
{
    char *text = malloc(n + 1);
    assert_non_null(text);
    random_state = seed * 2 + 1;
    for (int i = 0; i < 20; i++)
        (void)below(2);
    for (size_t i = 0; i < n;) {
        uint64_t word = below(200);
        for (uint64_t k = 0; k < 2 + word % 6 && i < n; k++)
            text[i++] = (char)('a' + (word * 7 + k * k * 3) % 26);
        if (i < n)
            text[i++] = below(10) ? ' ' : '\n';
    }
    text[n] = '\0';
    return text;
}

static void write_text(const char *name, uint64_t seed, size_t n)
{
    char *text = random_text(seed, n);
    test_write(test_path(name), text, n);
    free(text);
}

static const struct tsr_corpus_text *find(const struct tsr_corpus *corpus, const char *name)
{
    for (size_t i = 0; i < corpus->n_texts; i++) {
        const char *at = strstr(corpus->texts[i].path, name);
        if (at && strlen(at) == strlen(name))
            return &corpus->texts[i];
    }
    return NULL;
}

/* Links, copies and hidden files; near-duplicates; folders. */
static void texts_are_found_once(void **state)
{
    (void)state;
    assert_int_equal(mkdir(test_path("texts"), 0777), 0);
    assert_int_equal(mkdir(test_path("texts/sub"), 0777), 0);
    write_text("texts/large", 1, 20000);
    write_text("texts/other", 2, 9000);
    write_text("texts/sub/deep", 3, 5000);
    write_text("texts/copy-of-other", 2, 9000);
    write_text("texts/.hidden", 4, 5000);
    write_text("texts/part", 1, 6000); /* the beginning of large */
    char *mixed = random_text(5, 8000), *from = random_text(1, 20000);
    memcpy(mixed, from + 4000, 1000); /* an eighth of it: not enough to be left out */
    test_write(test_path("texts/mixed"), mixed, 8000);
    free(mixed);
    free(from);
    assert_int_equal(symlink("large", test_path("texts/a-link")), 0);
    assert_int_equal(symlink("nowhere", test_path("texts/broken")), 0);
    assert_int_equal(symlink(".", test_path("texts/circle")), 0);

    struct tsr_corpus corpus = {0};
    assert_int_equal(tsr_corpus_add(&corpus, test_path("texts")), TSR_OK);
    assert_int_equal(tsr_corpus_select(&corpus), TSR_OK);
    assert_int_equal(corpus.n_texts, 5);
    assert_int_equal(corpus.n_duplicates, 2);
    for (size_t i = 1; i < corpus.n_texts; i++)
        assert_true(strcmp(corpus.texts[i - 1].path, corpus.texts[i].path) < 0);
    assert_null(find(&corpus, "a-link"));
    assert_null(find(&corpus, ".hidden"));
    const struct tsr_corpus_text *part = find(&corpus, "part"), *some = find(&corpus, "mixed");
    assert_true(part && some && find(&corpus, "deep"));
    assert_true(part->left_out && part->seen > 0.99);
    assert_ptr_equal(part->like, find(&corpus, "large")->path);
    assert_true(!some->left_out && some->seen > 0.08 && some->seen < 0.15);
    assert_ptr_equal(some->like, find(&corpus, "large")->path);
    assert_true(!find(&corpus, "large")->left_out && find(&corpus, "large")->seen == 0);
    tsr_corpus_fini(&corpus);
    assert_int_equal(tsr_corpus_add(&corpus, test_path("absent")), TSR_ECONFIG);
    test_error_names("absent", "No such file", NULL);
    tsr_corpus_fini(&corpus);
}

static uint8_t *read_tokens(const char *path, uint64_t *n)
{
    struct tsr_token_file file;
    assert_int_equal(tsr_token_file_open(path, true, &file), TSR_OK);
    assert_int_equal(file.kind, TSR_TOKENS_GPT2);
    *n = file.n_tokens;
    int64_t *tokens = malloc(*n * sizeof *tokens);
    uint8_t *bytes = malloc(*n + 1);
    assert_true(tokens && bytes);
    assert_int_equal(tsr_token_file_read(&file, 0, *n, TSR_CORPUS_VOCAB, tokens), TSR_OK);
    for (uint64_t i = 0; i < *n; i++)
        bytes[i] = (uint8_t)tokens[i];
    bytes[*n] = 0;
    free(tokens);
    tsr_token_file_close(&file);
    return bytes;
}

static void build(const char *text, const char *out, double held_out, bool shuffle,
                  struct tsr_corpus_stats *stats)
{
    struct tsr_corpus corpus = {0};
    struct tsr_corpus_options options = {out, held_out, shuffle, 1};
    assert_int_equal(tsr_corpus_add(&corpus, text), TSR_OK);
    assert_int_equal(tsr_corpus_select(&corpus), TSR_OK);
    assert_int_equal(tsr_corpus_build(&corpus, &options, stats), TSR_OK);
    tsr_corpus_fini(&corpus);
}

/* Both parts together are the text, in order, in pieces that end with a line. */
static void parts_are_pieces_of_the_text(void **state)
{
    (void)state;
    enum { N = 200000 };
    write_text("book", 9, N);
    struct tsr_corpus_stats stats;
    build(test_path("book"), test_path("plain"), 0.1, false, &stats);
    uint64_t n_train, n_val, at = 0, train_at = 0, val_at = 0, pieces = 0;
    uint8_t *train = read_tokens(test_path("plain/train.bin"), &n_train);
    uint8_t *val = read_tokens(test_path("plain/val.bin"), &n_val);
    char *text = random_text(9, N);
    assert_true(n_train == stats.train_bytes && n_val == stats.val_bytes);
    assert_int_equal(n_train + n_val, N);
    assert_in_range(n_val, N / 10 - 3000, N / 10 + 3000);
    while (at < N) { /* a run of one part, then one of the other */
        uint64_t begin = at;
        while (at < N && train_at < n_train && train[train_at] == (uint8_t)text[at] &&
               !(val_at < n_val && n_val - val_at >= 64 && N - at >= 64 &&
                 memcmp(val + val_at, text + at, 64) == 0)) {
            at++;
            train_at++;
        }
        uint64_t held = at;
        while (val_at < n_val && at < N && val[val_at] == (uint8_t)text[at] &&
               !(n_train - train_at >= 64 && N - at >= 64 && at > held &&
                 memcmp(train + train_at, text + at, 64) == 0)) {
            at++;
            val_at++;
        }
        pieces += at > held;
        assert_true(at > begin);
        assert_true(at == N || text[at - 1] == '\n');
        assert_true(at - held == 0 || at - held >= TSR_CORPUS_PIECE_BYTES || at == N);
    }
    assert_true(train_at == n_train && val_at == n_val);
    assert_in_range(pieces, 8, 12); /* 200000 * 0.1 / 2048 = 9.8, one by one */
    assert_true(stats.seen < 0.01);
    free(train);
    free(val);
    free(text);
}

/* The figures again, from the files, by other means. */
static void check_entropies(const char *folder, const struct tsr_corpus_stats *stats)
{
    char path[2 * TEST_PATH_BYTES];
    uint64_t n, m;
    (void)snprintf(path, sizeof path, "%s/train.bin", folder);
    uint8_t *train = read_tokens(path, &n);
    (void)snprintf(path, sizeof path, "%s/val.bin", folder);
    uint8_t *val = read_tokens(path, &m);
    static double one[256], two[256][256];
    for (int a = 0; a < 256; a++) {
        double hits = 1, follow[256], of = 256;
        for (int b = 0; b < 256; b++)
            follow[b] = 1;
        for (uint64_t i = 0; i < n; i++) {
            hits += train[i] == a;
            if (train[i] == a && i + 1 < n) {
                follow[train[i + 1]]++;
                of++;
            }
        }
        one[a] = hits / ((double)n + 256);
        for (int b = 0; b < 256; b++)
            two[a][b] = follow[b] / of;
    }
    double unigram = 0, bigram = 0;
    for (uint64_t i = 0; i < m; i++) {
        unigram -= log(one[val[i]]);
        bigram -= i > 0 ? log(two[val[i - 1]][val[i]]) : 0;
    }
    assert_true(fabs(stats->unigram - unigram / (double)m) < 1e-9);
    assert_true(fabs(stats->bigram - bigram / (double)(m - 1)) < 1e-9);
    assert_true(stats->val_entropy <= stats->unigram);
    free(train);
    free(val);
}

static void entropies_are_those_of_the_files(void **state)
{
    (void)state;
    write_text("prose", 21, 120000);
    struct tsr_corpus_stats plain, shuffled;
    build(test_path("prose"), test_path("e-plain"), 0.2, false, &plain);
    check_entropies(test_path("e-plain"), &plain);
    build(test_path("prose"), test_path("e-shuffled"), 0.2, true, &shuffled);
    check_entropies(test_path("e-shuffled"), &shuffled);
    /* The same bytes, so the same frequencies; but what follows a byte is of no more use. */
    assert_true(fabs(plain.unigram - shuffled.unigram) < 1e-12);
    assert_true(fabs(plain.val_entropy - shuffled.val_entropy) < 1e-12);
    assert_true(plain.bigram < plain.val_entropy - 0.5);
    assert_true(shuffled.bigram > shuffled.val_entropy);
    assert_true(plain.seen == shuffled.seen);
}

/* Two bytes, one after the other: one bit without a look back, nothing with one. */
static void entropies_of_a_known_text(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t i = 0; i < N; i++)
        text[i] = i % 2 ? '\n' : 'a';
    test_write(test_path("known"), text, N);
    free(text);
    struct tsr_corpus_stats stats;
    build(test_path("known"), test_path("k"), 0.25, false, &stats);
    assert_true(fabs(stats.val_entropy - log(2)) < 1e-9);
    assert_true(fabs(stats.unigram - log(2)) < 1e-3);
    assert_true(stats.bigram > 0 && stats.bigram < 1e-3);
    assert_true(stats.seen == 1);
}

static void shuffled_parts_have_the_same_bytes(void **state)
{
    (void)state;
    static const char *const names[2] = {"train.bin", "val.bin"};
    write_text("essay", 33, 50000);
    struct tsr_corpus_stats stats;
    build(test_path("essay"), test_path("s-plain"), 0.2, false, &stats);
    build(test_path("essay"), test_path("s-one"), 0.2, true, &stats);
    build(test_path("essay"), test_path("s-two"), 0.2, true, &stats);
    for (int f = 0; f < 2; f++) {
        char path[64];
        uint64_t n[3];
        uint8_t *data[3];
        static const char *const folders[3] = {"s-plain", "s-one", "s-two"};
        for (int i = 0; i < 3; i++) {
            (void)snprintf(path, sizeof path, "%s/%s", folders[i], names[f]);
            data[i] = read_tokens(test_path(path), &n[i]);
        }
        assert_true(n[0] == n[1] && n[1] == n[2]);
        assert_memory_equal(data[1], data[2], n[1]); /* the same seed */
        assert_memory_not_equal(data[0], data[1], n[0]);
        uint64_t hits[2][256] = {{0}};
        for (uint64_t i = 0; i < n[0]; i++) {
            hits[0][data[0][i]]++;
            hits[1][data[1][i]]++;
        }
        assert_memory_equal(hits[0], hits[1], sizeof hits[0]);
        for (int i = 0; i < 3; i++)
            free(data[i]);
    }
}

/* What comes out is what training reads. */
static void built_files_are_data(void **state)
{
    (void)state;
    write_text("novel", 55, 50000);
    struct tsr_corpus_stats stats;
    build(test_path("novel"), test_path("n"), 0.1, false, &stats);
    const char *files[1] = {test_path("n/train.bin")};
    struct tsr_data_config config = {files, 1, 64, TSR_CORPUS_VOCAB, 1, false};
    struct tsr_data *data;
    assert_int_equal(tsr_data_open(&config, &data), TSR_OK);
    struct tsr_token_file tokens;
    assert_int_equal(tsr_token_file_open(files[0], false, &tokens), TSR_OK);
    assert_true(tokens.n_tokens == stats.train_bytes);
    tsr_token_file_close(&tokens);
    int64_t inputs[64], labels[64];
    for (uint64_t p = 0; p < tsr_data_samples(data); p++)
        assert_int_equal(tsr_data_sample(data, p, inputs, labels), TSR_OK);
    tsr_data_close(data);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    write_text("short", 77, 100);
    struct tsr_corpus corpus = {0};
    struct tsr_corpus_stats stats;
    struct tsr_corpus_options options = {test_path("m"), 0.1, false, 1};
    assert_int_equal(tsr_corpus_select(&corpus), TSR_OK);
    assert_int_equal(tsr_corpus_build(&corpus, &options, &stats), TSR_ECONFIG); /* no texts */
    assert_int_equal(tsr_corpus_add(&corpus, test_path("short")), TSR_OK);
    assert_int_equal(tsr_corpus_select(&corpus), TSR_OK);
    assert_int_equal(tsr_corpus_build(&corpus, &options, &stats), TSR_ECONFIG);
    test_error_names("100 bytes", "more text", NULL);
    static const double fractions[] = {0, 1, -0.5, NAN};
    for (size_t i = 0; i < 4; i++) {
        options.held_out = fractions[i];
        assert_int_equal(tsr_corpus_build(&corpus, &options, &stats), TSR_ECONFIG);
        test_error_names("held-out fraction", "less than 1", NULL);
    }
    tsr_corpus_fini(&corpus);
    write_text("enough", 78, 50000);
    options = (struct tsr_corpus_options){test_path("enough"), 0.1, false, 1}; /* a file */
    assert_int_equal(tsr_corpus_add(&corpus, test_path("enough")), TSR_OK);
    assert_int_equal(tsr_corpus_select(&corpus), TSR_OK);
    assert_int_equal(tsr_corpus_build(&corpus, &options, &stats), TSR_EIO);
    test_error_names("enough", NULL);
    tsr_corpus_fini(&corpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_are_found_once),
                                       cmocka_unit_test(parts_are_pieces_of_the_text),
                                       cmocka_unit_test(entropies_are_those_of_the_files),
                                       cmocka_unit_test(entropies_of_a_known_text),
                                       cmocka_unit_test(shuffled_parts_have_the_same_bytes),
                                       cmocka_unit_test(built_files_are_data),
                                       cmocka_unit_test(mistakes_are_named)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
