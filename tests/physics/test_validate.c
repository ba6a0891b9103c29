/* Published tables: the reader, quantiles and ranks, and that two short steps tell a long one. */
/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "experiments/study/validate/validate.h"

/* ---- the reader --------------------------------------------------------------------------- */

static tsr_status load_text(const char *text, struct tsr_csv *out)
{
    char path[] = "/tmp/tessera-csv-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    tsr_status status = tsr_csv_load(path, out);
    unlink(path);
    return status;
}

static void test_csv_reads_quotes_and_line_ends(void **state)
{
    (void)state;
    struct tsr_csv csv;
    assert_int_equal(load_text("\xEF\xBB\xBF"
                               "a,b,c\r\n# a remark\r\n\r\n"
                               "1,\"x, \"\"y\"\"\nz\",\r\n\"\",2.5,last",
                               &csv),
                     TSR_OK);
    assert_int_equal(csv.n_columns, 3);
    assert_int_equal(csv.n_rows, 2);
    assert_string_equal(csv.columns[0], "a");
    assert_string_equal(tsr_csv_cell(&csv, &csv.rows[0], "b"), "x, \"y\"\nz");
    assert_string_equal(tsr_csv_cell(&csv, &csv.rows[0], "c"), "");
    assert_string_equal(tsr_csv_cell(&csv, &csv.rows[1], "a"), "");
    assert_string_equal(tsr_csv_cell(&csv, &csv.rows[1], "c"), "last");
    assert_string_equal(tsr_csv_cell(&csv, &csv.rows[1], "d"), "");
    assert_int_equal(csv.rows[0].line, 4);
    assert_int_equal(csv.rows[1].line, 6); /* the quoted line end counts */
    double value;
    bool found;
    assert_int_equal(tsr_csv_number(&csv, &csv.rows[1], "b", &value, &found), TSR_OK);
    assert_true(found);
    assert_float_equal(value, 2.5, 0);
    assert_int_equal(tsr_csv_number(&csv, &csv.rows[1], "a", &value, &found), TSR_OK);
    assert_false(found);
    assert_int_equal(tsr_csv_number(&csv, &csv.rows[1], "c", &value, &found), TSR_ECONFIG);
    assert_non_null(strstr(tsr_error_text(), ":6: column c: found \"last\""));
    tsr_csv_fini(&csv);
}

static void test_csv_refuses_what_is_no_table(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {{"", "found no line"},
                 {"a,b\n1\n", ":2: found 1 fields; allowed: 2"},
                 {"a,b\n1,2,3\n", ":2: found 3 fields"},
                 {"a,b,a\n", "found column \"a\" twice"},
                 {"a,b\n1,2\n3,\"x\n", ":3: found a quote that does not end"}};
    struct tsr_csv csv;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(load_text(cases[i].text, &csv), TSR_ECONFIG);
        assert_non_null(strstr(tsr_error_text(), cases[i].said));
    }
}

/* ---- statistics --------------------------------------------------------------------------- */

static struct tsr_point point(double predicted, double measured, const char *gpu, uint32_t gpus)
{
    struct tsr_point p = {.status = TSR_POINT_PREDICTED,
                          .quantity = "q",
                          .gpus = gpus,
                          .counts = true,
                          .has_measured = true,
                          .measured = measured,
                          .predicted = predicted,
                          .error = fabs(predicted / measured - 1),
                          .mfu_measured = measured / 100,
                          .mfu_predicted = predicted / 100};
    snprintf(p.gpu, sizeof p.gpu, "%s", gpu);
    return p;
}

static void test_statistics(void **state)
{
    (void)state;
    struct tsr_point points[] = {point(11, 10, "a", 8),  point(24, 20, "a", 16),
                                 point(27, 30, "a", 16), point(40, 40, "b", 16),
                                 point(99, 10, "a", 16), point(50, 50, "a", 16)};
    points[4].counts = false; /* twice in the table */
    points[5].status = TSR_POINT_NOT_MODELLED;
    points[5].error = 1;
    points[5].mfu_measured = 0;
    struct tsr_validation v = {.n_points = 6, .points = points};
    struct tsr_error_stats s;
    struct tsr_point_class all = {0}, many = {"q", "a", 9, 0};
    assert_int_equal(tsr_error_stats_of(&v, &all, &s), TSR_OK);
    assert_int_equal(s.n, 5);
    assert_int_equal(s.not_modelled, 1);
    assert_float_equal(s.median, 0.1, 1e-12); /* of 0, 0.1, 0.1, 0.2, 1 */
    assert_float_equal(s.p90, 0.68, 1e-12);   /* 0.2 + 0.6 (1 - 0.2) */
    assert_float_equal(s.max, 1, 1e-12);
    assert_float_equal(s.mean, 0.28, 1e-12);
    assert_float_equal(s.bias, 0.05, 1e-12); /* of -0.1, 0, 0.1, 0.2 */
    assert_int_equal(tsr_error_stats_of(&v, &many, &s), TSR_OK);
    assert_int_equal(s.n, 3);
    double rank;
    assert_int_equal(tsr_rank_correlation(&v, &all, &rank), TSR_OK);
    assert_float_equal(rank, 1, 1e-12); /* 11, 24, 27, 40 against 10, 20, 30, 40 */
    points[3].mfu_predicted = 0.1;      /* now 2, 3, 4, 1 against 1, 2, 3, 4: 1 - 6 * 12 / 60 */
    assert_int_equal(tsr_rank_correlation(&v, &all, &rank), TSR_OK);
    assert_float_equal(rank, -0.2, 1e-12);
    assert_int_equal(tsr_rank_correlation(&v, &many, &rank), TSR_OK);
    assert_true(isnan(rank)); /* two points */
}

/* ---- long steps --------------------------------------------------------------------------- */

static void test_two_short_steps_tell_a_long_one(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2", "gpt2-large", "llama-3.1-8b"};
    static const char *const gpus[] = {"world=8", "world=64", "world=16"};
    enum { N = 12 };
    struct tsr_rules rules;
    assert_int_equal(tsr_rules_open(NULL, &rules), TSR_OK);
    for (size_t i = 0; i < 3; i++) {
        char model[64], steps[64];
        snprintf(model, sizeof model, "model.name=%s", models[i]);
        snprintf(steps, sizeof steps, "accumulation.steps=%d", N);
        const char *sets[] = {model,
                              gpus[i],
                              "cluster=dgx-a100-80g-128",
                              "seq=1024",
                              "batch=2",
                              "clip=true",
                              i == 1 ? "checkpoint=full" : "checkpoint=none"};
        const char *more[] = {steps};
        struct tsr_recipe recipe = {.n_sets = 7, .sets = sets, .accumulation = N};
        struct tsr_outcome told, whole;
        tsr_outcome_of(&rules, &recipe, NULL, 0, &told);
        recipe.accumulation = 1;
        tsr_outcome_of(&rules, &recipe, more, 1, &whole);
        assert_string_equal(told.failure, "");
        assert_string_equal(whole.failure, "");
        assert_float_equal(told.tokens, N * 2 * 1024, 0);
        assert_float_equal(whole.tokens, N * 2 * 1024, 0);
        assert_true(fabs(told.step_s / whole.step_s - 1) < 1e-3);
        assert_true(fabs(told.model_flops / whole.model_flops - 1) < 1e-9);
        assert_true(fabs(told.flops / whole.flops - 1) < 1e-9);
        assert_true(fabs(told.mfu / whole.mfu - 1) < 1e-3);
        /* fragments differ a little */
        assert_true(fabs(told.reserved_bytes / whole.reserved_bytes - 1) < 0.01);
    }
    tsr_rules_close(&rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv_reads_quotes_and_line_ends),
        cmocka_unit_test(test_csv_refuses_what_is_no_table),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_two_short_steps_tell_a_long_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
