/* test_reduce_order.c: sums over members by hand-computed cases: order, one rounding, NaN, integers
 * that wrap. Random data is compared in test_world_threads.c.
 */
#include "exec/world/reduce_order.h"

#include "exec/base/numeric.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

static void reduce(uint8_t dtype, uint8_t op, double factor, const void *const *parts, uint32_t n,
                   void *out, uint64_t count)
{
    const struct tsr_reduction how = {dtype, op, factor};
    tsr__reduce(&how, parts, n, out, count);
}

static void test_sum__order_of_members__not_another(void **state)
{
    (void)state;
    /* 2^24 + 1 is 2^24 in f32: from the left the ones are lost, from the right they are not. */
    float large[] = {16777216.0f}, one[] = {1.0f}, out[1];
    reduce(TSR_F32, TSR_REDUCE_SUM, 0, (const void *[]){large, one, one}, 3, out, 1);
    assert_true(out[0] == 16777216.0f);
    reduce(TSR_F32, TSR_REDUCE_SUM, 0, (const void *[]){one, one, large}, 3, out, 1);
    assert_true(out[0] == 16777218.0f);
    double far[] = {16777216.0}, near[] = {1.0}, wide[1];
    reduce(TSR_F64, TSR_REDUCE_SUM, 0, (const void *[]){far, near, near}, 3, wide, 1);
    assert_true(wide[0] == 16777218.0);
}

static void test_sum__half_precision__rounded_once(void **state)
{
    (void)state;
    /* 256 + 1 + 1: rounded after each step bf16 stays at 256; rounded once it is 258. */
    uint16_t large[] = {tsr_to_bf16(256)}, one[] = {tsr_to_bf16(1)}, out[1];
    reduce(TSR_BF16, TSR_REDUCE_SUM, 0, (const void *[]){large, one, one}, 3, out, 1);
    assert_int_equal(out[0], tsr_to_bf16(258));
    uint16_t big[] = {tsr_to_f16(60000)}, minus[] = {tsr_to_f16(-60000)};
    reduce(TSR_F16, TSR_REDUCE_SUM, 0, (const void *[]){big, big, minus}, 3, out, 1);
    assert_int_equal(out[0], tsr_to_f16(60000)); /* past the range of f16 in between */
    reduce(TSR_F16, TSR_REDUCE_SUM, 0, (const void *[]){big, big}, 2, out, 1);
    assert_int_equal(out[0], 0x7c00); /* infinity */
}

static void test_avg_and_factor__one_member_or_three__as_documented(void **state)
{
    (void)state;
    float a[] = {1, -0.0f}, b[] = {2, -0.0f}, c[] = {4, -0.0f}, out[2];
    reduce(TSR_F32, TSR_REDUCE_AVG, 0, (const void *[]){a, b, c}, 3, out, 2);
    assert_true(out[0] == 7.0f / 3.0f && signbit(out[1]));
    reduce(TSR_F32, TSR_REDUCE_PREMUL_SUM, 0.1, (const void *[]){a, b, c}, 3, out, 2);
    assert_true(out[0] == (1 * 0.1f + 2 * 0.1f) + 4 * 0.1f);
    reduce(TSR_F32, TSR_REDUCE_AVG, 0, (const void *[]){a}, 1, out, 2);
    assert_true(out[0] == 1 && signbit(out[1]));
}

static void test_max__a_nan_anywhere__stays(void **state)
{
    (void)state;
    float a[] = {1, NAN, -1}, b[] = {3, 2, NAN}, c[] = {2, 5, -4}, out[3];
    reduce(TSR_F32, TSR_REDUCE_MAX, 0, (const void *[]){a, b, c}, 3, out, 3);
    assert_true(out[0] == 3 && isnan(out[1]) && isnan(out[2]));
}

static void test_integers__large_ones__wrap_and_are_exact(void **state)
{
    (void)state;
    int64_t a[] = {INT64_MAX, -7, (INT64_C(1) << 53) + 1}, b[] = {1, 2, 2}, out[3];
    reduce(TSR_I64, TSR_REDUCE_SUM, 0, (const void *[]){a, b}, 2, out, 3);
    assert_true(out[0] == INT64_MIN && out[1] == -5 && out[2] == (INT64_C(1) << 53) + 3);
    reduce(TSR_I64, TSR_REDUCE_AVG, 0, (const void *[]){a, b}, 2, out, 3);
    assert_true(out[1] == -2);
    reduce(TSR_I64, TSR_REDUCE_MAX, 0, (const void *[]){a, b}, 2, out, 3);
    assert_true(out[0] == INT64_MAX && out[1] == 2);
    reduce(TSR_I64, TSR_REDUCE_PREMUL_SUM, -3.9, (const void *[]){b, b}, 2, out, 3);
    assert_true(out[1] == -12);
    uint8_t x[] = {200, 1}, y[] = {100, 254}, byte[2];
    reduce(TSR_U8, TSR_REDUCE_SUM, 0, (const void *[]){x, y}, 2, byte, 2);
    assert_true(byte[0] == 44 && byte[1] == 255);
    reduce(TSR_U8, TSR_REDUCE_AVG, 0, (const void *[]){x, y}, 2, byte, 2);
    assert_true(byte[0] == 150 && byte[1] == 127);
}

static void test_reduce__output_is_an_input__any_of_them(void **state)
{
    (void)state;
    enum { N = 1500 }; /* more than one block, and a part of one */
    for (int which = 0; which < 3; which++) {
        float parts[3][N];
        for (int p = 0; p < 3; p++)
            for (int i = 0; i < N; i++)
                parts[p][i] = (float)(i * (p + 1));
        reduce(TSR_F32, TSR_REDUCE_SUM, 0, (const void *[]){parts[0], parts[1], parts[2]}, 3,
               parts[which], N);
        for (int i = 0; i < N; i++)
            assert_true(parts[which][i] == (float)(6 * i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum__order_of_members__not_another),
        cmocka_unit_test(test_sum__half_precision__rounded_once),
        cmocka_unit_test(test_avg_and_factor__one_member_or_three__as_documented),
        cmocka_unit_test(test_max__a_nan_anywhere__stays),
        cmocka_unit_test(test_integers__large_ones__wrap_and_are_exact),
        cmocka_unit_test(test_reduce__output_is_an_input__any_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
