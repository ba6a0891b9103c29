/* test_mutation.c: programs of every family with a planted defect. The checker must find each one
 * that a second opinion (study/reach.h) calls a hazard, and nothing else; each of the waits W1 ...
 * W15 must be missed at least once; and engine/check/CHECKER.md says what came out.
 *
 *   check_test_mutation --print    prints the tables for that page
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/check/study/verdict.h"
#include "tests/thorough.h"

/* A sanitizer takes ten times as long and is interested in the code: it takes every 17th mutant.
 * The short form takes every eleventh; the tables of the page and the count of each wait need all
 * of them. */
static size_t stride(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 17;
#else
    return tests_stride(11);
#endif
}

static struct report report;

static int run_study(void **state)
{
    (void)state;
    study(&report, stride());
    return 0;
}

static void both_opinions_agree(void **state)
{
    (void)state;
    assert_int_equal(report.undecided, 0);
    assert_true(report.n_families > 20);
    for (int k = 0; k < N_STUDIED_KINDS && stride() == 1; k++) {
        if (report.kinds[k].mutants == 0)
            fail_msg("no mutant: %s", mutation_name(k));
        if (report.kinds[k].caught == 0)
            fail_msg("never caught: %s", mutation_name(k));
    }
}

/* Copies of one event by two waits: W5 is the work handle of an all-gather for whose event W4 has
 * waited on the same stream, so no program of ours can miss it. */
static void every_wait_is_missed(void **state)
{
    (void)state;
    if (stride() > 1)
        skip();
    for (int k = 1; k < N_WAITS; k++) {
        if (report.waits[k].mutants == 0)
            fail_msg("no program has W%d", k);
        if ((report.waits[k].caught == 0) != (k == 5))
            fail_msg("W%d dropped: caught %zu times of %zu", k, report.waits[k].caught,
                     report.waits[k].mutants);
    }
}

static char *read_all(FILE *in)
{
    size_t n = 0, cap = 0;
    char *text = NULL;
    for (int c = fgetc(in); c != EOF; c = fgetc(in)) {
        char one = (char)c;
        assert_true(TSR_PUSH(text, n, cap, one));
    }
    char end = '\0';
    assert_true(TSR_PUSH(text, n, cap, end));
    return text;
}

static void page_has_the_tables(void **state)
{
    (void)state;
    if (stride() > 1)
        skip();
    FILE *page = fopen(TSR_SOURCE_DIR "/engine/check/CHECKER.md", "r"), *fresh = tmpfile();
    assert_non_null(page);
    assert_non_null(fresh);
    report_print(&report, fresh);
    rewind(fresh);
    char *says = read_all(page), *is = read_all(fresh);
    fclose(page);
    fclose(fresh);
    if (!strstr(says, is))
        fail_msg(
            "engine/check/CHECKER.md has other tables than `check_test_mutation --print` gives");
    free(says);
    free(is);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_opinions_agree),
                                       cmocka_unit_test(every_wait_is_missed),
                                       cmocka_unit_test(page_has_the_tables)};
    if (argc > 1 && !strcmp(argv[1], "--print")) {
        study(&report, 1);
        report_print(&report, stdout);
        return report.undecided > 0;
    }
    return cmocka_run_group_tests(tests, run_study, NULL);
}
