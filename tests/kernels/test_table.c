/* test_kernels_table.c: the host has exactly the kernels of engine/ops/KERNELS.md, and no call,
 * however wrong, makes one of them touch what it was not given.
 */
#include "tests/kernels/kernels_testing.h"

enum { MAX_NAMES = 400 };

struct names {
    char text[MAX_NAMES][64];
    int n;
};

/* `a`, `b` of the first column of a row of a table. */
static void names_of_row(const char *line, struct names *names)
{
    const char *end = strchr(line + 1, '|'), *at = line;
    while (end && (at = strchr(at, '`')) && at < end) {
        const char *close = strchr(at + 1, '`');
        assert_true(close && close < end && close - at < 64 && names->n < MAX_NAMES);
        memcpy(names->text[names->n], at + 1, (size_t)(close - at - 1));
        names->text[names->n++][close - at - 1] = 0;
        at = close + 1;
    }
}

static struct names documented(void)
{
    struct names names = {.n = 0};
    char line[2000];
    bool skip = false;
    FILE *file = fopen(TSR_SOURCE_DIR "/engine/ops/KERNELS.md", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "## ", 3) == 0)
            skip = strncmp(line, "## Sources", 10) == 0 || strncmp(line, "## Not given", 12) == 0;
        if (!skip && line[0] == '|')
            names_of_row(line, &names);
    }
    fclose(file);
    assert_true(names.n > 100);
    return names;
}

/* Of the host's table, which is in the order of strcmp(). */
static struct names listed(void)
{
    struct names names = {.n = 0};
    char line[200];
    FILE *file = fopen(TSR_SOURCE_DIR "/exec/kernels/kernels.c", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "    {\"%63[^\"]\", tsr__", names.text[names.n]) == 1) {
            assert_true(names.n == 0 || strcmp(names.text[names.n - 1], names.text[names.n]) < 0);
            names.n++;
            assert_true(names.n < MAX_NAMES);
        }
    fclose(file);
    assert_true(names.n > 100);
    return names;
}

static bool has(const struct names *names, const char *name)
{
    for (int i = 0; i < names->n; i++)
        if (strcmp(names->text[i], name) == 0)
            return true;
    return false;
}

static void as_documented(void **state)
{
    (void)state;
    struct names names = documented(), entries = listed();
    for (int i = 0; i < names.n; i++)
        if (!tsr_host_kernel(names.text[i]))
            fail_msg("the host has no kernel %s", names.text[i]);
    for (int i = 0; i < entries.n; i++) {
        if (!has(&names, entries.text[i]))
            fail_msg("KERNELS.md has no kernel %s", entries.text[i]);
        if (!tsr_host_kernel(entries.text[i]))
            fail_msg("the host's table has %s where it is not found", entries.text[i]);
    }
    assert_true(tsr_host_kernel("h2d_shard") == tsr_host_kernel("d2h_grad"));
    assert_null(tsr_host_kernel("h2"));
    assert_null(tsr_host_kernel(""));
    assert_null(tsr_host_kernel("mm_"));
    assert_null(tsr_host_kernel("zeros"));
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void without_operands(void **state)
{
    (void)state;
    struct names entries = listed();
    for (int i = 0; i < entries.n; i++) {
        struct test_call t;
        test_open(&t, entries.text[i]);
        /* an empty list is one: no gradients to sum */
        if (strcmp(entries.text[i], "accumulate_sharded_grad") == 0 ||
            strcmp(entries.text[i], "foreach_norm") == 0)
            assert_int_equal(test_try(&t), TSR_OK);
        else
            test_refused(&t);
        test_close(&t);
    }
}

static void random_operand(struct test_call *t, const uint64_t *sizes)
{
    static const uint8_t dtypes[] = {TSR_F32, TSR_F32, TSR_F32, TSR_BF16,
                                     TSR_F16, TSR_F64, TSR_I64, TSR_U8};
    uint8_t dtype = dtypes[test_below(8)];
    unsigned slot = (unsigned)test_below(9), access = 1 + (unsigned)test_below(3);
    uint64_t rows = sizes[test_below(6)], width = 1 + sizes[test_below(6)];
    int o = test_view(t, slot, access, dtype, rows, width, test_below(2) ? 1 + test_below(9) : 0);
    for (uint64_t i = 0; i < t->operands[o].n; i++)
        test_set(t, o, i, dtype == TSR_U8 ? 1 : dtype == TSR_I64 ? (double)test_below(5) - 1 : 0.5);
    if (test_below(20) == 0) /* no whole number of elements */
        t->operands[o].bytes -= t->operands[o].bytes ? 1 : 0;
}

/* Random operands, sizes and arguments, many of which nearly fit. */
static void at_random(void **state)
{
    (void)state;
    size_t done = 0;
    struct names entries = listed();
    for (int i = 0; i < 300 * entries.n; i++) {
        struct test_call t;
        uint64_t sizes[6];
        test_open(&t, entries.text[i % entries.n]);
        for (int k = 0; k < 6; k++)
            sizes[k] = test_below(2) ? test_below(5) : 1 + test_below(2);
        for (int k = 0; k < TSR_MAX_DIMS; k++)
            t.work.dims[k] = test_below(15) ? sizes[k] : test_random();
        t.work.causal = (uint8_t)test_below(2);
        t.work.constants[0] = 0.5;
        for (int k = 0; k < TSR_N_SCALARS; k++)
            t.scalars[k] = 0.5;
        for (uint64_t k = test_below(10); k > 0; k--)
            test_arg(&t, test_below(15) ? sizes[test_below(6)] : test_random());
        for (uint64_t k = test_below(10); k > 0; k--)
            random_operand(&t, sizes);
        tsr_status status = test_try(&t);
        assert_true(status == TSR_OK || status == TSR_EDEFECT);
        done += status == TSR_OK;
        test_close(&t);
    }
    assert_true(done > 0);
}

/* Every defect of one operand of a call that is right otherwise. */
static void one_thing_wrong(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 8; wrong++) {
        struct test_call t;
        test_open(&t, "mm");
        test_dims(&t, 2, 3, 4, 1);
        test_arg(&t, 0);
        int x = test_input(&t, 0, wrong == 1 ? TSR_I64 : TSR_F32, 8);
        int w = test_input(&t, 1, TSR_F32, wrong == 2 ? 11 : 12);
        int y = test_output(&t, 3, TSR_F32, 6);
        if (wrong == 3)
            t.operands[y].slot = 2;
        if (wrong == 4)
            t.operands[y].access = TSR_READ;
        if (wrong == 5)
            t.operands[x].access = TSR_WRITE;
        if (wrong == 6)
            t.operands[w].bytes -= 2;
        if (wrong == 7)
            t.operands[w].dtype = TSR_N_DTYPES;
        if (wrong)
            test_refused(&t);
        else
            test_run(&t);
        if (wrong == 3 || wrong == 2)
            assert_non_null(strstr(tsr_error_text(), wrong == 3 ? "slot 3" : "slot 1"));
        test_close(&t);
    }
}

/* An address that is none of the type. */
static void misaligned(void **state)
{
    (void)state;
    struct test_call t;
    test_open(&t, "neg");
    test_input(&t, 0, TSR_F32, 4);
    test_output(&t, 1, TSR_F32, 4);
    test_make_views(&t);
    t.views[0].data = (unsigned char *)t.views[0].data + 2;
    assert_int_equal(tsr_host_kernel("neg")(&t.call), TSR_EDEFECT);
    assert_non_null(strstr(tsr_error_text(), "kernel neg: slot 0"));
    test_check_memory(&t);
    test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_documented), cmocka_unit_test(without_operands),
        cmocka_unit_test(at_random), cmocka_unit_test(one_thing_wrong),
        cmocka_unit_test(misaligned)};
    return cmocka_run_group_tests_name("kernels: table", tests, NULL, NULL);
}
