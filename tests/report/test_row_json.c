/* test_row_json.c: a row that is written and read is the same row, byte by byte; what no row can
 * have is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "experiments/study/job/result.h"
#include "experiments/study/simulate/row_json.h"

static bool read_line(const char *line, struct tsr_row *row)
{
    json_t *value = json_loads(line, 0, NULL);
    memset(row, 0, sizeof *row);
    bool good = tsr_members_unpack(tsr_row_members, value, row);
    json_decref(value);
    return good;
}

/* False: what was written is refused. */
static bool write_and_read(const struct tsr_row *row, struct tsr_row *back)
{
    char *line = tsr_members_line(tsr_row_members, row);
    assert_non_null(line);
    assert_true(strchr(line, '\n') == line + strlen(line) - 1);
    bool good = read_line(line, back);
    free(line);
    return good;
}

/* All texts fill their rooms. */
static void fill(struct tsr_row *row)
{
    memset(row, 0, sizeof *row);
    for (const struct tsr_member *m = tsr_row_members; m->name; m++)
        if (m->kind == TSR_MEMBER_TEXT)
            memset((char *)row + m->at, 'x', m->bytes - 1);
    for (int s = 0; s < TSR_N_SECTIONS; s++) {
        memset(row->sections[s].module, 'x', sizeof row->sections[s].module - 1);
        memset(row->sections[s].phase, 'x', sizeof row->sections[s].phase - 1);
    }
}

/* A member that the table lacks is lost; padding, which is lost, too, is shorter than 8 bytes. */
static void every_byte(void **state)
{
    (void)state;
    size_t lost = 0;
    struct tsr_row row, back;
    for (size_t i = 0; i < sizeof row; i++) {
        fill(&row);
        char *at = (char *)&row + i;
        if (i && !*at && at[-1] == 'x') /* the end of a text */
            continue;
        *at ^= 1;
        bool kept = !write_and_read(&row, &back) || memcmp(&row, &back, sizeof row) == 0;
        lost = kept ? 0 : lost + 1;
        if (lost >= 8)
            fail_msg("no member has bytes %zu to %zu of a row", i - 7, i);
    }
}

static void extremes(void **state)
{
    (void)state;
    struct tsr_row row = {.world = UINT32_MAX,
                          .mfu = 0.1,
                          .failure_status = 255,
                          .tokens_per_rank = UINT64_MAX,
                          .nccl_bytes = INT64_MIN,
                          .fits = TSR_FITS_UNKNOWN,
                          .retry_s = -0.0,
                          .steady.step_s = 5e-324,
                          .first.step_s = INFINITY,
                          .oom_phase = TSR_N_PHASES,
                          .trains = true};
    struct tsr_row back;
    memset(row.strategy, 0xff, sizeof row.strategy - 1);
    strcpy(row.failure, "\x80\x7f\x1b[1m\"\\\n/");
    row.sections[TSR_N_SECTIONS - 1].module[0] = 'x';
    row.peak_by_category[TSR_N_CATEGORIES - 1] = 7;
    assert_true(write_and_read(&row, &back));
    assert_memory_equal(&row, &back, sizeof row);
    row.unknown_s = NAN;
    assert_true(write_and_read(&row, &back));
    assert_true(isnan(back.unknown_s));
}

static void refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "[]",
        "{\"strategie\": \"a\"}",
        "{\"strategy\": 1}",
        "{\"strategy\": \"\\u0100\"}",
        "{\"remedy\": "
        "\"12345678901234567890123456789012345678901234567890123456789012345678901234567"
        "8901234567890123456\"}",
        "{\"trains\": 2}",
        "{\"trains\": true}",
        "{\"fits\": 3}",
        "{\"fits\": -2}",
        "{\"failure_status\": 256}",
        "{\"oom_phase\": 200}",
        "{\"world\": -1}",
        "{\"world\": 4294967296}",
        "{\"mfu\": 0.5}",
        "{\"mfu\": \"0.5x\"}",
        "{\"mfu\": \"\"}",
        "{\"steady\": {}}",
        "{\"steady\": [{}, {}]}",
        "{\"sections\": [{}]}",
        "{\"steady\": [{\"step\": \"1\"}]}",
    };
    struct tsr_row row;
    assert_true(read_line("{}", &row));
    assert_true(
        read_line("{\"mfu\": \"0.5\", \"steady\": [{}], \"fits\": -1, \"trains\": 1}", &row));
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (read_line(lines[i], &row))
            fail_msg("taken: %s", lines[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte), cmocka_unit_test(extremes),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
