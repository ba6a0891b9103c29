/* test_kernels_numeric.c: formats of 16 bits against rounding in double, e^x, and doubles that are
 * rounded once.
 */
#include "tests/kernels/kernels_testing.h"

#include "exec/kernels/tensor/elements.h"

struct format {
    int digits, low, high;
    uint16_t (*to)(float x);
    float (*from)(uint16_t bits);
};

static uint16_t to_bf16(float x)
{
    return tsr_to_bf16(x);
}
static float from_bf16(uint16_t bits)
{
    return tsr_from_bf16(bits);
}
static uint16_t to_f16(float x)
{
    return tsr_to_f16(x);
}
static float from_f16(uint16_t bits)
{
    return tsr_from_f16(bits);
}

static const struct format formats[] = {{8, -126, 127, to_bf16, from_bf16},
                                        {11, -14, 15, to_f16, from_f16}};

/* Every pattern is the number that it says, and comes back. */
static void every_pattern(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct format *f = &formats[k];
        for (uint32_t bits = 0; bits < 65536; bits++) {
            double want = test_decode((uint16_t)bits, f->digits, f->low);
            float got = f->from((uint16_t)bits);
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_true(isnan(f->from(f->to(got))));
                continue;
            }
            assert_true((double)got == want && !signbit(got) == !signbit(want));
            assert_int_equal(f->to(got), bits);
        }
    }
}

static void check_rounding(const struct format *f, float x)
{
    uint16_t got = f->to(x);
    if (isnan(x)) {
        assert_true(isnan(test_decode(got, f->digits, f->low)));
        return;
    }
    double want = test_round((double)x, f->digits, f->low, f->high);
    if (got != test_encode(want, f->digits, f->low))
        fail_msg("%.9g became %.9g instead of %.9g", (double)x, test_decode(got, f->digits, f->low),
                 want);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Random patterns; the neighbourhood of every number of the format and of the middle between it and
 * the next, which is where rounding goes wrong: ties, subnormals, overflow. */
static void rounding(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct format *f = &formats[k];
        for (int i = 0; i < 3000000; i++)
            check_rounding(f, float_of((uint32_t)(test_random() >> 32)));
        for (uint32_t bits = 0; bits < 65535; bits++) {
            double a = test_decode((uint16_t)bits, f->digits, f->low);
            double b = test_decode((uint16_t)(bits + 1), f->digits, f->low);
            if (!isfinite(a))
                continue;
            b = isfinite(b) ? b : a + copysign(ldexp(1, f->high - f->digits + 1), a);
            float middle = (float)((a + b) / 2);
            check_rounding(f, middle);
            check_rounding(f, nextafterf(middle, INFINITY));
            check_rounding(f, nextafterf(middle, -INFINITY));
            check_rounding(f, nextafterf((float)a, INFINITY));
            check_rounding(f, nextafterf((float)a, -INFINITY));
        }
    }
}

/* Doubles: near the middle of two numbers a float in between would round twice. */
static void doubles_are_rounded_once(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct format *f = &formats[k];
        for (int i = 0; i < 500000; i++) {
            uint16_t bits = (uint16_t)test_random();
            double a = test_decode(bits, f->digits, f->low);
            double b = test_decode((uint16_t)(bits + 1), f->digits, f->low);
            if (!isfinite(a) || !isfinite(b))
                continue;
            double x = (a + b) / 2, tiny = ldexp(fabs(x), -(int)(20 + test_below(33)));
            x += test_below(3) == 0 ? 0 : test_below(2) ? tiny : -tiny;
            double want = test_round(x, f->digits, f->low, f->high);
            uint16_t got = f->to(tsr_odd_float(x));
            assert_int_equal(got, test_encode(want, f->digits, f->low));
        }
    }
    assert_true(isnan(tsr_odd_float(NAN)));
    assert_int_equal(tsr_to_bf16(tsr_odd_float(1e300)), 0x7f80);
    assert_int_equal(tsr_to_bf16(tsr_odd_float(-1e-300)), 0x8000);
}

static void exponential(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 2000000; i++) {
        float x = (float)test_between(-87.3, 88.7);
        double want = exp((double)x), got = (double)tsr_exp_f32(x);
        double off = fabs(got - want) / want;
        worst = off > worst ? off : worst;
    }
    assert_true(worst < 2.5 * ldexp(1, -23) / 2);
    for (int i = -104000; i < -87300; i++) {
        float x = (float)i / 1000;
        assert_true(fabs((double)tsr_exp_f32(x) - exp((double)x)) <= ldexp(1.5, -149));
    }
    assert_true(tsr_exp_f32(0) == 1);
    assert_true(isinf(tsr_exp_f32(88.8f)) && isinf(tsr_exp_f32(INFINITY)));
    assert_true(tsr_exp_f32(-110) == 0 && tsr_exp_f32(-INFINITY) == 0);
    assert_true(isnan(tsr_exp_f32(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pattern), cmocka_unit_test(rounding),
                                       cmocka_unit_test(doubles_are_rounded_once),
                                       cmocka_unit_test(exponential)};
    return cmocka_run_group_tests_name("kernels: numbers", tests, NULL, NULL);
}
