/* test_labels.c: names of points do not overlap, wherever the points are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "experiments/study/report/report_labels.h"

enum { N = 12 };

static struct tsr__box box_of(const struct tsr__label *label)
{
    double width = (double)label->length * TSR__LETTER_WIDTH;
    double left = label->text_x - width * (label->align + 1) / 2;
    return (struct tsr__box){left, left + width, label->text_y - TSR__LINE_HEIGHT / 2,
                             label->text_y + TSR__LINE_HEIGHT / 2};
}

static int overlaps(const struct tsr__label *labels, size_t n)
{
    int found = 0;
    for (size_t i = 0; i < n; i++) {
        struct tsr__box a = box_of(&labels[i]);
        found +=
            a.left < 0 || a.right > TSR__PLOT_WIDTH || a.bottom < 0 || a.top > TSR__PLOT_HEIGHT;
        for (size_t j = 0; j < n; j++) {
            struct tsr__box b = box_of(&labels[j]);
            found += j < i && a.left < b.right && b.left < a.right && a.bottom < b.top &&
                     b.bottom < a.top;
            found += labels[j].x > a.left && labels[j].x < a.right && labels[j].y > a.bottom &&
                     labels[j].y < a.top;
        }
    }
    return found;
}

/* A small generator of our own, so that a failure can be repeated anywhere. */
static double uniform(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) / 9007199254740992.0;
}

static void test_places__random_points(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct tsr__label labels[N] = {0};
        uint64_t random = seed;
        double spread = seed % 2 ? 1.0 : 0.3; /* half of them crowded in a corner */
        for (int i = 0; i < N; i++) {
            labels[i].x = (0.05 + 0.9 * uniform(&random) * spread) * TSR__PLOT_WIDTH;
            labels[i].y = (0.05 + 0.9 * uniform(&random) * spread) * TSR__PLOT_HEIGHT;
            labels[i].length = 4 + (size_t)(16 * uniform(&random));
        }
        tsr__place_labels(labels, N, NULL, 0);
        if (overlaps(labels, N))
            fail_msg("seed %d: names overlap", (int)seed);
    }
}

static void test_places__equal_points(void **state)
{
    (void)state;
    struct tsr__label labels[6] = {0};
    for (int i = 0; i < 6; i++)
        labels[i] = (struct tsr__label){.x = 400, .y = 200, .length = 15};
    tsr__place_labels(labels, 6, NULL, 0);
    assert_int_equal(overlaps(labels, 6), 0);
}

static void test_places__lines_are_avoided(void **state)
{
    (void)state;
    struct tsr__label label = {.x = 400, .y = 200, .length = 15};
    struct tsr__box line = {405, 408, 0, TSR__PLOT_HEIGHT};
    tsr__place_labels(&label, 1, &line, 1);
    struct tsr__box box = box_of(&label);
    assert_true(box.right <= line.left || box.left >= line.right);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places__random_points),
        cmocka_unit_test(test_places__equal_points),
        cmocka_unit_test(test_places__lines_are_avoided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
