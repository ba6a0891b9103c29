/* test_csv.c: what is written as a field is read back as it was, whole and line by line; no field
 * is one that a spreadsheet computes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "experiments/study/base/csv.h"
#include "experiments/study/base/files.h"
#include "experiments/study/report/report_text.h"
#include "tests/engine/layout_testing.h"
#include "tests/report/scratch.h"

static const char *const hard[] = {"",
                                   "plain",
                                   "a,b",
                                   "a\"b",
                                   "\"",
                                   "\n",
                                   "a\nb",
                                   "\n\n",
                                   "=1+1",
                                   "+1+1",
                                   "-1.5",
                                   "-1+1",
                                   "@SUM(A1)",
                                   "\t=x",
                                   "'=x",
                                   "''=x",
                                   "'",
                                   "''",
                                   "'''",
                                   "'a",
                                   "#not a comment",
                                   "a\tb",
                                   "\xc3\xa9\xe6\xbc\xa2",
                                   " x ",
                                   "+1e5",
                                   "-inf?",
                                   "-",
                                   "=",
                                   "\",\"",
                                   "a\"\n\",b",
                                   "'+",
                                   "'\t",
                                   "'-1.5"};
enum { N_HARD = sizeof hard / sizeof *hard };

/* Of what the writer keeps: all but carriage returns and what is escaped. */
static void make(char *text)
{
    static const char pieces[] = ",\"\n\t=+-@'#ab .1";
    size_t n = test_random(12);
    for (size_t i = 0; i < n; i++)
        text[i] = pieces[test_random(sizeof pieces - 1)];
    text[n] = '\0';
}

enum { COLUMNS = 5, ROWS = 40 };

/* The field as it is in the file: a spreadsheet takes what begins with a mark for a formula. */
static void check_harmless(const char *text)
{
    char *put = NULL, *end;
    size_t n = 0;
    FILE *stream = open_memstream(&put, &n);
    assert_non_null(stream);
    tsr__put_csv(stream, text);
    fclose(stream);
    const char *content = put + (put[0] == '"');
    if (content[0] && strchr("=+-@\t\r", content[0])) {
        (void)strtod(content, &end);
        assert_true(end > content && (*end == '\0' || *end == '"'));
    }
    free(put);
}

static void write_table(const char *path, char cells[ROWS][COLUMNS][16], const char *line_end)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fprintf(out, "# a comment%sa,b,c,d,e%s", line_end, line_end);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < COLUMNS; c++) {
            tsr__put_csv(out, cells[r][c]);
            fputs(c + 1 < COLUMNS ? "," : line_end, out);
        }
    assert_int_equal(fclose(out), 0);
}

static void check_table(const char *path, char cells[ROWS][COLUMNS][16])
{
    struct tsr_csv csv;
    struct tsr_csv_reader lines;
    assert_int_equal(tsr_csv_load(path, &csv), TSR_OK);
    assert_int_equal(csv.n_rows, ROWS);
    assert_int_equal(tsr_csv_open(path, &lines), TSR_OK);
    assert_true(tsr_csv_next(&lines));
    for (size_t r = 0; r < ROWS; r++) {
        assert_true(tsr_csv_next(&lines));
        assert_int_equal(lines.n, COLUMNS);
        for (size_t c = 0; c < COLUMNS; c++) {
            assert_string_equal(csv.rows[r].cells[c], cells[r][c]);
            assert_string_equal(lines.fields[c], cells[r][c]);
        }
    }
    assert_false(tsr_csv_next(&lines));
    tsr_csv_close(&lines);
    tsr_csv_fini(&csv);
}

static void fields_come_back(void **state)
{
    static char cells[ROWS][COLUMNS][16];
    struct scratch scratch = scratch_create();
    char *path = tsr_path_join(scratch.path, "table.csv");
    (void)state;
    for (int round = 0; round < 200; round++) {
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < COLUMNS; c++) {
                if (round == 0)
                    snprintf(cells[r][c], 16, "%s", hard[(r * COLUMNS + c) % N_HARD]);
                else
                    make(cells[r][c]);
                check_harmless(cells[r][c]);
            }
        write_table(path, cells, round % 2 ? "\r\n" : "\n");
        check_table(path, cells);
    }
    free(path);
    scratch_destroy(&scratch);
}

/* What a terminal must not get is escaped, and stays so. */
static void controls_are_escaped(void **state)
{
    static const char *const pairs[][2] = {{"a\x1b[2J", "a\\x1b[2J"},
                                           {"a\rb", "\"a\\rb\""},
                                           {"=\x7f\xe2\x80\xae", "\"'=\\x7f\\u202e\""},
                                           {"\rx", "\"'\\rx\""}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *put = NULL;
        size_t n = 0;
        FILE *stream = open_memstream(&put, &n);
        assert_non_null(stream);
        tsr__put_csv(stream, pairs[i][0]);
        fclose(stream);
        assert_string_equal(put, pairs[i][1]);
        free(put);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields_come_back),
                                       cmocka_unit_test(controls_are_escaped)};
    test_seed("test_csv");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
