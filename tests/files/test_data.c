/* test_data.c: files of tokens, the order of samples, and how a batch is split. */
#include "tests/files/data_testing.h"

#include <pthread.h>

#include "exec/data/data.h"
#include "exec/data/token_file.h"

/* ---- files ----------------------------------------------------------------------------------- */

static void write_tokens(const char *path, enum tsr_token_kind kind, uint32_t first, size_t n)
{
    struct tsr_token_writer *writer;
    assert_int_equal(tsr_token_writer_open(path, kind, &writer), TSR_OK);
    for (size_t i = 0; i < n; i++) {
        uint32_t token = first + (uint32_t)i;
        assert_int_equal(tsr_token_writer_add(writer, &token, 1), TSR_OK);
    }
    assert_int_equal(tsr_token_writer_commit(writer), TSR_OK);
}

static void put_i32(unsigned char *p, int32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)((uint32_t)value >> 8 * i);
}

/* The bytes on the disk are llm.c's. */
static void written_files_have_the_format(void **state)
{
    (void)state;
    static const struct {
        enum tsr_token_kind kind;
        int32_t magic, version;
        size_t token_bytes;
    } cases[] = {{TSR_TOKENS_GPT2, 20240520, 1, 2}, {TSR_TOKENS_LLAMA3, 20240801, 7, 4}};
    for (size_t c = 0; c < 2; c++) {
        const char *path = test_path("format.bin");
        write_tokens(path, cases[c].kind, 513, 3);
        unsigned char want[1024 + 12] = {0};
        put_i32(want, cases[c].magic);
        put_i32(want + 4, cases[c].version);
        put_i32(want + 8, 3);
        for (size_t i = 0; i < 3; i++) {
            want[1024 + i * cases[c].token_bytes] = (unsigned char)(1 + i);
            want[1024 + i * cases[c].token_bytes + 1] = 2;
        }
        size_t n;
        char *got = test_read(path, &n);
        assert_int_equal(n, 1024 + 3 * cases[c].token_bytes);
        assert_memory_equal(got, want, n);
        free(got);
    }
}

/* More than the writer's buffer; values up to the type's greatest. */
static void what_is_written_is_read(void **state)
{
    (void)state;
    enum { N = 100000 };
    uint32_t *tokens = malloc(N * sizeof *tokens);
    int64_t *got = malloc(N * sizeof *got);
    assert_true(tokens && got);
    for (int kind = 0; kind < 2; kind++) {
        uint32_t greatest = kind == TSR_TOKENS_GPT2 ? UINT16_MAX : UINT32_MAX;
        for (uint32_t i = 0; i < N; i++)
            tokens[i] = (i * UINT32_C(2654435761)) & greatest;
        tokens[7] = greatest;
        struct tsr_token_writer *writer;
        const char *path = test_path("round.bin");
        assert_int_equal(tsr_token_writer_open(path, (enum tsr_token_kind)kind, &writer), TSR_OK);
        assert_int_equal(tsr_token_writer_add(writer, tokens, 12345), TSR_OK);
        assert_int_equal(tsr_token_writer_add(writer, tokens + 12345, N - 12345), TSR_OK);
        assert_int_equal(tsr_token_writer_commit(writer), TSR_OK);
        struct tsr_token_file file;
        assert_int_equal(tsr_token_file_open(path, true, &file), TSR_OK);
        assert_int_equal(file.n_tokens, N);
        assert_int_equal(tsr_token_file_read(&file, 0, N, UINT64_C(1) << 32, got), TSR_OK);
        for (size_t i = 0; i < N; i++)
            assert_true(got[i] == tokens[i]);
        tsr_token_file_close(&file);
    }
    free(tokens);
    free(got);
}

static void refused_header(const unsigned char *bytes, size_t n, const char *what,
                           const char *value)
{
    const char *path = test_path("bad.bin");
    test_write(path, bytes, n);
    struct tsr_token_file file;
    assert_int_equal(tsr_token_file_open(path, false, &file), TSR_ECONFIG);
    test_error_names("bad.bin", what, value, NULL);
    assert_null(file.path);
}

static void every_field_of_the_header_is_checked(void **state)
{
    (void)state;
    unsigned char good[1024 + 20] = {0}, bytes[sizeof good];
    put_i32(good, 20240520);
    put_i32(good + 4, 1);
    put_i32(good + 8, 10);
    struct tsr_token_file file;
    test_write(test_path("good.bin"), good, sizeof good);
    assert_int_equal(tsr_token_file_open(test_path("good.bin"), false, &file), TSR_OK);
    tsr_token_file_close(&file);

    static const struct {
        size_t at;
        int32_t value;
        const char *what, *shown;
    } cases[] = {{0, 20240521, "magic number is 20240521", "20240520"},
                 {0, 0x20405020, "magic number", "20240801"},
                 {0, 20240801, "version is 1", "20240801: 7"},
                 {4, 2, "version is 2", "20240520: 1"},
                 {4, -1, "version", "4294967295"},
                 {8, 0, "token count is 0", "1 to 2147483647"},
                 {8, -10, "token count is -10", "1 to 2147483647"},
                 {8, 11, "cut short", "1046"},
                 {8, INT32_MAX, "cut short", "1044"},
                 {8, 9, "bytes left over", "1042"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bytes, good, sizeof good);
        put_i32(bytes + cases[i].at, cases[i].value);
        refused_header(bytes, sizeof bytes, cases[i].what, cases[i].shown);
    }
    for (size_t n = 0; n < sizeof good; n += n < 1000 ? 100 : 1) /* cut anywhere */
        refused_header(good, n, n < 1024 ? "begins with 1024" : "cut short", "bytes");
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    struct tsr_token_file file;
    assert_int_equal(tsr_token_file_open(test_path("absent.bin"), false, &file), TSR_EIO);
    test_error_names("absent.bin", "No such file", NULL);
    assert_int_equal(tsr_token_file_open(test_folder, false, &file), TSR_ECONFIG);
    test_error_names(test_folder, "not a regular file", NULL);
}

/* An unfinished file never has its name; a failed one leaves what was there. */
static void writing_is_atomic(void **state)
{
    (void)state;
    const char *path = test_path("atomic.bin");
    write_tokens(path, TSR_TOKENS_GPT2, 5, 4);
    size_t n, m;
    char *before = test_read(path, &n);
    uint32_t tokens[2] = {1, 65536};
    struct tsr_token_writer *writer;

    assert_int_equal(tsr_token_writer_open(path, TSR_TOKENS_GPT2, &writer), TSR_OK);
    assert_int_equal(tsr_token_writer_add(writer, tokens, 2), TSR_EVALUE);
    test_error_names("atomic.bin", "token 1 is 65536", "65535", NULL);
    tsr_token_writer_abort(writer);
    assert_int_equal(tsr_token_writer_open(path, TSR_TOKENS_GPT2, &writer), TSR_OK);
    assert_int_equal(tsr_token_writer_commit(writer), TSR_EVALUE); /* no tokens */
    tsr_token_writer_abort(NULL);

    char *after = test_read(path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    free(before);
    free(after);
    char command[2 * TEST_PATH_BYTES];
    (void)snprintf(command, sizeof command, "ls '%s' | grep -q tmp", test_folder);
    assert_int_not_equal(system(command), 0); /* nothing under a temporary name */
    assert_int_equal(tsr_token_writer_open(test_path("no/x.bin"), TSR_TOKENS_GPT2, &writer),
                     TSR_EIO);
    test_error_names("no/x.bin", NULL);
    assert_null(writer);
}

/* ---- permutations ---------------------------------------------------------------------------- */

static void check_bijection(uint64_t n, uint64_t seed, uint64_t epoch)
{
    struct tsr_permutation p;
    tsr_permutation_init(&p, n, seed, epoch);
    unsigned char *hit = calloc((size_t)n, 1);
    assert_non_null(hit);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = tsr_permutation_at(&p, i);
        assert_true(at < n);
        assert_int_equal(hit[at]++, 0);
    }
    free(hit);
}

static void permutations_are_bijections(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        for (uint64_t seed = 0; seed < 5; seed++)
            check_bijection(n, seed, seed * 3);
    static const uint64_t sizes[] = {1021, 1024,  1025,  4095,  4096,
                                     4097, 65521, 65536, 65537, 99991};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_bijection(sizes[i], 42, i);
}

/* Far beyond what can be stored: values stay in range, and neighbours do not stay together. */
static void permutations_of_huge_ranges(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {UINT64_C(1) << 32, (UINT64_C(1) << 32) + 1, UINT64_MAX,
                                     (UINT64_C(1) << 62) + 1};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct tsr_permutation p;
        tsr_permutation_init(&p, sizes[s], 1, 0);
        int near = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t a = tsr_permutation_at(&p, i), b = tsr_permutation_at(&p, sizes[s] - 1 - i);
            assert_true(a < sizes[s] && b < sizes[s] && a != b);
            near += a < sizes[s] / 2;
        }
        assert_in_range(near, 420, 580); /* 5 standard deviations */
    }
}

/* Each of the 120 orders of 5 things comes up about as often as any other. */
static void permutations_are_evenly_spread(void **state)
{
    (void)state;
    enum { ROUNDS = 24000 };
    unsigned hits[3125] = {0};
    for (uint64_t epoch = 0; epoch < ROUNDS; epoch++) {
        struct tsr_permutation p;
        tsr_permutation_init(&p, 5, 7, epoch);
        unsigned code = 0;
        for (uint64_t i = 0; i < 5; i++)
            code = code * 5 + (unsigned)tsr_permutation_at(&p, i);
        hits[code]++;
    }
    double chi = 0, expected = ROUNDS / 120.0;
    unsigned orders = 0;
    for (size_t i = 0; i < 3125; i++)
        if (hits[i] > 0) {
            orders++;
            chi += (hits[i] - expected) * (hits[i] - expected) / expected;
        }
    assert_int_equal(orders, 120);
    assert_true(chi < 119 + 5 * 15.5); /* 119 degrees of freedom: deviation sqrt(238) */
}

static void epochs_and_seeds_differ(void **state)
{
    (void)state;
    struct tsr_permutation a, b, c;
    tsr_permutation_init(&a, 1000, 1, 0);
    tsr_permutation_init(&b, 1000, 1, 1);
    tsr_permutation_init(&c, 1000, 2, 0);
    unsigned ab = 0, ac = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        ab += tsr_permutation_at(&a, i) == tsr_permutation_at(&b, i);
        ac += tsr_permutation_at(&a, i) == tsr_permutation_at(&c, i);
    }
    assert_true(ab < 10 && ac < 10); /* one is expected */
}

/* ---- samples --------------------------------------------------------------------------------- */

enum { SEQ = 8 };

/* Three files: 80, 5 (too short for a window) and 49 tokens: 9 + 0 + 6 samples. Token t of file f
 * is 100 f + t. */
static struct tsr_data *open_three(uint64_t seed, bool sequential)
{
    const char *files[3] = {test_path("a.bin"), test_path("b.bin"), test_path("c.bin")};
    write_tokens(files[0], TSR_TOKENS_GPT2, 0, 80);
    write_tokens(files[1], TSR_TOKENS_GPT2, 100, 5);
    write_tokens(files[2], TSR_TOKENS_GPT2, 200, 49);
    struct tsr_data_config config = {files, 3, SEQ, 300, seed, sequential};
    struct tsr_data *data;
    assert_int_equal(tsr_data_open(&config, &data), TSR_OK);
    return data;
}

static void windows_follow_the_files(void **state)
{
    (void)state;
    struct tsr_data *data = open_three(0, true);
    assert_int_equal(tsr_data_samples(data), 15);
    for (uint64_t p = 0; p < 40; p++) {
        uint64_t sample = p % 15;
        int64_t first = sample < 9 ? (int64_t)sample * SEQ : 200 + ((int64_t)sample - 9) * SEQ;
        int64_t inputs[SEQ], labels[SEQ];
        assert_int_equal(tsr_data_sample(data, p, inputs, labels), TSR_OK);
        for (int64_t i = 0; i < SEQ; i++) {
            assert_int_equal(inputs[i], first + i);
            assert_int_equal(labels[i], first + i + 1);
        }
    }
    tsr_data_close(data);
}

/* Every epoch has each sample once, in an order of its own. */
static void epochs_are_complete(void **state)
{
    (void)state;
    struct tsr_data *data = open_three(3, false);
    uint64_t orders[4][15];
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        unsigned seen = 0;
        for (uint64_t i = 0; i < 15; i++) {
            int64_t inputs[SEQ];
            assert_int_equal(tsr_data_sample(data, epoch * 15 + i, inputs, NULL), TSR_OK);
            orders[epoch][i] = tsr_data_index(data, epoch * 15 + i);
            uint64_t sample = orders[epoch][i];
            int64_t first = sample < 9 ? (int64_t)sample * SEQ : 200 + ((int64_t)sample - 9) * SEQ;
            assert_int_equal(inputs[0], first);
            seen |= 1U << sample;
        }
        assert_int_equal(seen, (1U << 15) - 1);
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    assert_memory_not_equal(orders[1], orders[2], sizeof orders[0]);
    tsr_data_close(data);
}

/* One batch after another as every rank gets it, put together as [Note: split] says. */
static void collect(const struct tsr_data *data, struct tsr_batch_split split, uint64_t from,
                    uint64_t n_steps, int64_t (*out)[2][SEQ])
{
    uint64_t global = tsr_global_batch(&split);
    int64_t inputs[64][SEQ], labels[64][SEQ];
    for (uint64_t step = 0; step < n_steps; step++)
        for (split.rank = 0; split.rank < split.world; split.rank++)
            for (uint32_t micro = 0; micro < split.n_micro; micro++) {
                assert_int_equal(
                    tsr_data_batch(data, from + step * global, &split, micro, inputs[0], labels[0]),
                    TSR_OK);
                for (uint32_t row = 0; row < split.micro_batch; row++) {
                    uint64_t j = (split.rank * split.n_micro + micro) * split.micro_batch + row;
                    assert_int_equal(split.rank, j / (split.n_micro * split.micro_batch));
                    assert_int_equal(micro, j / split.micro_batch % split.n_micro);
                    memcpy(out[step * global + j][0], inputs[row], sizeof inputs[row]);
                    memcpy(out[step * global + j][1], labels[row], sizeof labels[row]);
                }
            }
}

/* 64 samples (more than 4 epochs) as 1 x 8, 2 x 4, ... ranks x rows, with and without
 * micro-batches. */
static void splits_give_the_same_sequence(void **state)
{
    (void)state;
    static const struct tsr_batch_split splits[] = {{0, 1, 1, 8}, {0, 2, 1, 4}, {0, 4, 1, 2},
                                                    {0, 8, 1, 1}, {0, 1, 8, 1}, {0, 1, 2, 4},
                                                    {0, 2, 2, 2}, {0, 2, 4, 1}, {0, 4, 2, 1}};
    struct tsr_data *data = open_three(11, false);
    int64_t want[64][2][SEQ], got[64][2][SEQ];
    for (uint64_t p = 0; p < 64; p++)
        assert_int_equal(tsr_data_sample(data, p, want[p][0], want[p][1]), TSR_OK);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        memset(got, 0xff, sizeof got);
        collect(data, splits[i], 0, 8, got);
        assert_memory_equal(got, want, sizeof want);
    }
    tsr_data_close(data);
}

/* A run that stops after 3 steps and goes on elsewhere, at another world and global batch. */
static void resuming_is_exact(void **state)
{
    (void)state;
    struct tsr_data *data = open_three(12, false);
    int64_t want[48][2][SEQ], got[48][2][SEQ];
    collect(data, (struct tsr_batch_split){0, 2, 2, 2}, 0, 6, want);
    collect(data, (struct tsr_batch_split){0, 2, 2, 2}, 0, 3, got);
    tsr_data_close(data);
    data = open_three(12, false);
    collect(data, (struct tsr_batch_split){0, 3, 1, 4}, 24, 2, got + 24);
    assert_memory_equal(got, want, sizeof want);
    tsr_data_close(data);
}

static void parts_are_those_of_the_source(void **state)
{
    (void)state;
    struct tsr_data *data = open_three(5, false);
    struct tsr_batch_split split = {1, 2, 2, 3};
    int64_t inputs[3 * SEQ], labels[3 * SEQ], part[3 * SEQ];
    assert_int_equal(tsr_data_batch(data, 24, &split, 1, inputs, labels), TSR_OK);
    assert_int_equal(
        tsr_data_part(data, 24, &split, 1, TSR_BATCH_INPUT, TSR_I64, part, sizeof part), TSR_OK);
    assert_memory_equal(part, inputs, sizeof part);
    assert_int_equal(
        tsr_data_part(data, 24, &split, 1, TSR_BATCH_LABELS, TSR_I64, part, sizeof part), TSR_OK);
    assert_memory_equal(part, labels, sizeof part);
    assert_int_equal(
        tsr_data_part(data, 24, &split, 1, TSR_BATCH_LABELS, TSR_I64, part, sizeof part - 8),
        TSR_EDEFECT);
    test_error_names("184", "192", NULL);
    assert_int_equal(
        tsr_data_part(data, 24, &split, 1, TSR_BATCH_LABELS, TSR_F32, part, sizeof part),
        TSR_EDEFECT);
    tsr_data_close(data);
}

struct reader {
    const struct tsr_data *data;
    uint64_t from;
    uint64_t sums[64];
};

static void *read_some(void *user)
{
    struct reader *reader = user;
    for (uint64_t p = 0; p < 64; p++) {
        int64_t inputs[SEQ], labels[SEQ];
        if (tsr_data_sample(reader->data, reader->from + p, inputs, labels) != TSR_OK)
            return NULL;
        for (size_t i = 0; i < SEQ; i++)
            reader->sums[p] =
                tsr_hash_u64(reader->sums[p], (uint64_t)(inputs[i] * 1000 + labels[i]));
    }
    return reader;
}

/* Several threads at once read what one alone does. */
static void threads_share_data(void **state)
{
    (void)state;
    struct tsr_data *data = open_three(6, false);
    struct reader readers[4] = {{0}}, alone = {.data = data, .from = 5};
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        readers[i] = (struct reader){.data = data, .from = 5};
        assert_int_equal(pthread_create(&threads[i], NULL, read_some, &readers[i]), 0);
    }
    assert_non_null(read_some(&alone));
    for (size_t i = 0; i < 4; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
        assert_memory_equal(readers[i].sums, alone.sums, sizeof alone.sums);
    }
    tsr_data_close(data);
}

static void tokens_outside_the_vocabulary_are_named(void **state)
{
    (void)state;
    const char *files[1] = {test_path("vocab.bin")};
    write_tokens(files[0], TSR_TOKENS_LLAMA3, 128000, 33);
    struct tsr_data_config config = {files, 1, SEQ, 128011, 0, true};
    struct tsr_data *data;
    int64_t inputs[SEQ], labels[SEQ];
    assert_int_equal(tsr_data_open(&config, &data), TSR_OK);
    assert_int_equal(tsr_data_sample(data, 0, inputs, labels), TSR_OK);
    assert_int_equal(tsr_data_sample(data, 1, inputs, labels), TSR_ECONFIG);
    test_error_names("vocab.bin", "token 11 is 128011", "0 to 128010", "128011)", NULL);
    tsr_data_close(data);
    config.n_vocab = 128008; /* token 8 is the last label of sample 0 */
    assert_int_equal(tsr_data_open(&config, &data), TSR_OK);
    assert_int_equal(tsr_data_sample(data, 0, inputs, NULL), TSR_OK);
    assert_int_equal(tsr_data_sample(data, 0, NULL, labels), TSR_ECONFIG);
    tsr_data_close(data);
}

static void a_file_that_becomes_shorter_is_an_error(void **state)
{
    (void)state;
    const char *files[1] = {test_path("shorter.bin")};
    write_tokens(files[0], TSR_TOKENS_GPT2, 0, 40 * SEQ + 1);
    struct tsr_data_config config = {files, 1, SEQ, 65536, 0, true};
    struct tsr_data *data;
    int64_t inputs[SEQ];
    assert_int_equal(tsr_data_open(&config, &data), TSR_OK);
    assert_int_equal(truncate(files[0], TSR_TOKEN_HEADER_BYTES + 4 * SEQ), 0);
    assert_int_equal(tsr_data_sample(data, 1, inputs, NULL), TSR_OK);
    assert_int_equal(tsr_data_sample(data, 2, inputs, NULL), TSR_EIO);
    test_error_names("shorter.bin", "ends", NULL);
    tsr_data_close(data);
}

static void refused(struct tsr_data_config config, const char *a, const char *b)
{
    struct tsr_data *data;
    assert_int_equal(tsr_data_open(&config, &data), TSR_ECONFIG);
    assert_null(data);
    test_error_names(a, b, NULL);
}

static void data_that_cannot_be_served_is_refused(void **state)
{
    (void)state;
    const char *files[2] = {test_path("p.bin"), test_path("q.bin")};
    write_tokens(files[0], TSR_TOKENS_GPT2, 0, 20);
    write_tokens(files[1], TSR_TOKENS_LLAMA3, 0, 30);
    refused((struct tsr_data_config){NULL, 0, SEQ, 300, 0, false}, "no files", "at least one");
    refused((struct tsr_data_config){files, 1, 0, 300, 0, false}, "sequence length is 0", "1 to");
    refused((struct tsr_data_config){files, 1, 20, 300, 0, false}, "p.bin", "needs 21");
    refused((struct tsr_data_config){files, 2, SEQ, 300, 0, false}, "q.bin", "p.bin");
    struct tsr_data_config all = {files, 1, 19, 300, 0, false}; /* just long enough */
    struct tsr_data *data;
    assert_int_equal(tsr_data_open(&all, &data), TSR_OK);
    assert_int_equal(tsr_data_samples(data), 1);
    tsr_data_close(data);
    tsr_data_close(NULL);
}

/* The hash follows what positions mean, and nothing else. */
static void hashes_tell_data_apart(void **state)
{
    (void)state;
    struct tsr_data *a = open_three(1, false), *same = open_three(1, false);
    struct tsr_data *seed = open_three(2, false), *order = open_three(1, true);
    assert_true(tsr_data_hash(a) == tsr_data_hash(same));
    assert_true(tsr_data_hash(a) != tsr_data_hash(seed));
    assert_true(tsr_data_hash(a) != tsr_data_hash(order));
    const char *one[1] = {test_path("a.bin")};
    struct tsr_data_config config = {one, 1, SEQ, 300, 1, false};
    struct tsr_data *fewer, *longer;
    assert_int_equal(tsr_data_open(&config, &fewer), TSR_OK);
    config.seq = SEQ + 1;
    assert_int_equal(tsr_data_open(&config, &longer), TSR_OK);
    assert_true(tsr_data_hash(a) != tsr_data_hash(fewer));
    assert_true(tsr_data_hash(longer) != tsr_data_hash(fewer));
    struct tsr_data *all[] = {a, same, seed, order, fewer, longer};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tsr_data_close(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(written_files_have_the_format),
                                       cmocka_unit_test(what_is_written_is_read),
                                       cmocka_unit_test(every_field_of_the_header_is_checked),
                                       cmocka_unit_test(what_is_no_file_is_refused),
                                       cmocka_unit_test(writing_is_atomic),
                                       cmocka_unit_test(permutations_are_bijections),
                                       cmocka_unit_test(permutations_of_huge_ranges),
                                       cmocka_unit_test(permutations_are_evenly_spread),
                                       cmocka_unit_test(epochs_and_seeds_differ),
                                       cmocka_unit_test(windows_follow_the_files),
                                       cmocka_unit_test(epochs_are_complete),
                                       cmocka_unit_test(splits_give_the_same_sequence),
                                       cmocka_unit_test(resuming_is_exact),
                                       cmocka_unit_test(parts_are_those_of_the_source),
                                       cmocka_unit_test(threads_share_data),
                                       cmocka_unit_test(tokens_outside_the_vocabulary_are_named),
                                       cmocka_unit_test(a_file_that_becomes_shorter_is_an_error),
                                       cmocka_unit_test(data_that_cannot_be_served_is_refused),
                                       cmocka_unit_test(hashes_tell_data_apart)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
