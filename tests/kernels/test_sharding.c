/* test_kernels_sharding.c: copies and casts, tensors joined, and tensors to pieces and back. */
#include "tests/kernels/kernels_testing.h"

/* ---- copies ---------------------------------------------------------------------------------- */

static void casts(void **state)
{
    (void)state;
    static const char *const names[] = {
        "param_cast", "param_copy",     "grad_cast", "grad_upcast", "compress",
        "decompress", "bucket_to_grad", "cast",      "clone",       "grad_to_bucket"};
    for (int k = 0; k < 10 * TEST_FLOATS * TEST_FLOATS; k++) {
        uint64_t rows = 1 + test_below(4), width = 1 + test_below(300);
        bool scaled = k % 10 == 9;
        struct test_call t;
        test_open(&t, names[k % 10]);
        t.work.constants[0] = 0.3;
        int x = test_view(&t, 0, TSR_READ, test_floats[k / 10 % 4], rows, width,
                          k % 3 == 0   ? width + 1
                          : k % 3 == 1 ? 1 + width / 2
                                       : 0);
        test_fill(&t, x, -2, 2);
        int y =
            test_view(&t, 1, TSR_WRITE, test_floats[k / 40], rows, width, k % 2 ? width + 7 : 0);
        test_run(&t);
        for (uint64_t i = 0; i < rows * width; i++)
            if (scaled)
                test_near(&t, y, i, 0.3 * test_get(&t, x, i), 1);
            else
                assert_true(test_get(&t, y, i) ==
                            test_quantize(test_get(&t, x, i), test_floats[k / 40]));
        test_close(&t);
    }
}

/* Integers, and elements that no float has, pass unchanged; so do bytes. */
static void as_they_are(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "clone");
    int x = test_tensor(&t, 0, TSR_READ, TSR_I64, 5), y = test_output(&t, 1, TSR_I64, 5);
    const int64_t large = INT64_C(0x7ffffffffffffffd);
    memcpy(test_place(&t.operands[x], 2), &large, 8);
    test_run(&t);
    assert_memory_equal(test_place(&t.operands[y], 2), &large, 8);
    test_close(&t);
    test_open(&t, "param_copy");
    x = test_tensor(&t, 0, TSR_READ, TSR_U8, 33);
    y = test_output(&t, 1, TSR_U8, 33);
    test_fill(&t, x, 0, 256);
    test_make_views(&t);
    t.views[0].dtype = t.views[1].dtype = TSR_DTYPE_NONE;
    assert_int_equal(tsr_host_kernel("param_copy")(&t.call), TSR_OK);
    assert_memory_equal(test_place(&t.operands[x], 0), test_place(&t.operands[y], 0), 33);
    test_close(&t);
    test_open(&t, "grad_to_bucket");
    y = test_output(&t, 1, TSR_BF16, 33);
    test_run(&t);
    for (uint64_t i = 0; i < 33; i++)
        assert_true(test_get(&t, y, i) == 0);
    test_close(&t);
}

static void bytes(void **state)
{
    (void)state;
    static const char *const names[] = {
        "post_forward_slice", "reduce_scatter_copy", "device_copy", "h2d_shard",
        "d2h_grad",           "load_shard",          "save_shard",  "pad_shard"};
    for (int k = 0; k < 8 * 6; k++) {
        uint64_t from = test_below(500), to = k % 3 ? from : test_below(500);
        struct test_call t;
        test_open(&t, names[k % 8]);
        int x = test_tensor(&t, 0, TSR_READ, TSR_U8, from);
        test_fill(&t, x, 0, 256);
        int y = test_scratch(&t, 1, TSR_U8, to);
        test_run(&t);
        for (uint64_t i = 0; i < to; i++)
            assert_true(test_get(&t, y, i) == (i < from ? test_get(&t, x, i) : 255));
        test_close(&t);
    }
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void joined(void **state)
{
    (void)state;
    static const char *const names[] = {"all_gather_cast", "all_gather_copy_in", "stack"};
    for (int k = 0; k < 30; k++) {
        bool casts_them = k % 3 != 1;
        struct test_call t;
        test_open(&t, names[k % 3]);
        uint64_t n = test_below(6), all = 0;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t size = k % 3 == 2 ? 1 : test_below(300);
            test_input(&t, 0, casts_them && i % 2 ? TSR_F32 : TSR_BF16, size);
            all += size;
        }
        int y = test_output(&t, 1, TSR_BF16, all);
        test_run(&t);
        uint64_t at = 0;
        for (int i = 0; i < y; i++)
            for (uint64_t e = 0; e < t.operands[i].n; e++)
                assert_true(test_get(&t, y, at++) == test_quantize(test_get(&t, i, e), TSR_BF16));
        test_input(&t, 0, TSR_BF16, 1);
        test_refused(&t);
        test_close(&t);
    }
}

static void used_map(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "used_map");
    for (uint64_t i = 0; i < 9; i++)
        test_arg(&t, i % 3 == 1);
    int y = test_output(&t, 0, TSR_U8, 36);
    test_run(&t);
    for (uint64_t i = 0; i < 36; i++)
        assert_true(test_get(&t, y, i) == (i % 4 == 0 && i / 4 % 3 == 1));
    test_close(&t);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

struct cut {
    uint64_t outer, dim, inner, chunk;
};

static struct cut random_cut(uint64_t ranks, bool even)
{
    struct cut c = {1 + test_below(3), 1 + test_below(12), 1 + test_below(40), 0};
    if (even)
        c.dim = ranks * (1 + test_below(3));
    c.chunk = (c.dim + ranks - 1) / ranks;
    return c;
}

static uint64_t numel(const struct cut *c)
{
    return c->outer * c->dim * c->inner;
}

static uint64_t padded(const struct cut *c)
{
    return c->outer * c->chunk * c->inner;
}

static void add_cut(struct test_call *t, const struct cut *c)
{
    test_arg(t, c->outer);
    test_arg(t, c->dim);
    test_arg(t, c->inner);
    test_arg(t, c->chunk);
}

/* Piece r of a tensor: its element i comes from element *from of the whole; false: padding. */
static bool source(const struct cut *c, uint64_t r, uint64_t i, uint64_t *from)
{
    uint64_t begin = r * c->chunk < c->dim ? r * c->chunk : c->dim;
    uint64_t end = begin + c->chunk < c->dim ? begin + c->chunk : c->dim, rows = end - begin;
    if (i >= c->outer * rows * c->inner)
        return false;
    uint64_t o = i / (rows * c->inner), row = i / c->inner % rows, k = i % c->inner;
    *from = (o * c->dim + begin + row) * c->inner + k;
    return true;
}

enum { TENSORS = 3 };

static void cut_up(void **state)
{
    (void)state;
    for (int k = 0; k < 60; k++) {
        uint64_t ranks = 1 + test_below(5), row = 0, at = 0;
        uint8_t in = test_floats[k % 4], to = test_floats[k / 4 % 4];
        struct cut cuts[TENSORS];
        struct test_call t;
        test_open(&t, "chunk_cat");
        test_arg(&t, ranks);
        for (int i = 0; i < TENSORS; i++) {
            cuts[i] = random_cut(ranks, k % 2);
            add_cut(&t, &cuts[i]);
            test_input(&t, 0, in, numel(&cuts[i]));
            row += padded(&cuts[i]);
        }
        test_scratch(&t, 1, TSR_U8, 9); /* left alone */
        int out = test_output(&t, 2, to, ranks * row);
        test_run(&t);
        for (int i = 0; i < TENSORS; at += padded(&cuts[i++]))
            for (uint64_t e = 0; e < ranks * padded(&cuts[i]); e++) {
                uint64_t r = e / padded(&cuts[i]), from, place = e % padded(&cuts[i]);
                double want = source(&cuts[i], r, place, &from) ? test_get(&t, i, from) : 0;
                assert_true(test_get(&t, out, r * row + at + place) == test_quantize(want, to));
            }
        test_close(&t);
    }
}

/* split_with_sizes_copy undoes chunk_cat; outputs may have different dtypes. */
static void there_and_back(void **state)
{
    (void)state;
    for (int k = 0; k < 60; k++) {
        uint64_t ranks = 1 + test_below(5), block = 0;
        uint8_t dtype = test_floats[k % 4];
        struct cut cuts[TENSORS];
        struct test_call t, u;
        test_open(&t, "chunk_cat");
        test_arg(&t, ranks);
        for (int i = 0; i < TENSORS; i++) {
            cuts[i] = random_cut(ranks, k % 2);
            add_cut(&t, &cuts[i]);
            test_input(&t, 0, dtype, numel(&cuts[i]));
            block += padded(&cuts[i]);
        }
        int pieces = test_output(&t, 2, dtype, ranks * block);
        test_run(&t);
        test_open(&u, "split_with_sizes_copy");
        memcpy(u.args, t.args, sizeof t.args);
        u.work.n_args = t.work.n_args;
        int in = test_tensor(&u, 0, TSR_READ, dtype, ranks * block);
        memcpy(test_place(&u.operands[in], 0), test_place(&t.operands[pieces], 0),
               t.operands[pieces].bytes);
        for (int i = 0; i < TENSORS; i++)
            test_output(&u, 2, dtype, numel(&cuts[i]));
        test_run(&u);
        for (int i = 0; i < TENSORS; i++)
            assert_memory_equal(test_place(&u.operands[1 + i], 0), test_place(&t.operands[i], 0),
                                t.operands[i].bytes);
        u.args[0]++;
        test_refused(&u);
        test_close(&t);
        test_close(&u);
    }
}

/* Pieces of 2 and 8 bytes an element, so that the wide ones begin anywhere. */
static void different_dtypes(void **state)
{
    (void)state;
    for (int k = 0; k < 20; k++) {
        uint64_t ranks = 1 + test_below(4), block = 0;
        struct cut cuts[2];
        struct test_call t;
        test_open(&t, "split_with_sizes_copy");
        test_arg(&t, ranks);
        for (int i = 0; i < 2; i++) {
            cuts[i] = random_cut(ranks, false);
            add_cut(&t, &cuts[i]);
            block += padded(&cuts[i]) * (i ? 8 : 2);
        }
        int in = test_tensor(&t, 0, TSR_READ, TSR_U8, ranks * block);
        for (uint64_t i = 0; i < ranks * block; i++)
            test_set(&t, in, i, (double)test_below(127));
        test_output(&t, 2, TSR_BF16, numel(&cuts[0]));
        test_output(&t, 2, TSR_F64, numel(&cuts[1]));
        test_run(&t);
        for (uint64_t first = 0, i = 0; i < 2; first += padded(&cuts[0]) * 2, i++)
            for (uint64_t e = 0; e < ranks * padded(&cuts[i]); e++) {
                uint64_t r = e / padded(&cuts[i]), from, place = e % padded(&cuts[i]);
                size_t item = i ? 8 : 2;
                if (source(&cuts[i], r, place, &from))
                    assert_memory_equal(
                        test_place(&t.operands[1 + i], from),
                        test_place(&t.operands[in], r * block + first + place * item), item);
            }
        test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts),          cmocka_unit_test(as_they_are),
        cmocka_unit_test(bytes),          cmocka_unit_test(joined),
        cmocka_unit_test(used_map),       cmocka_unit_test(cut_up),
        cmocka_unit_test(there_and_back), cmocka_unit_test(different_dtypes)};
    return cmocka_run_group_tests_name("kernels: sharding", tests, NULL, NULL);
}
