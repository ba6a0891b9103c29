/* kernels_testing.h: what the tests of kernels share: random numbers from a fixed seed, operands in
 * guarded memory, calls, and comparison with numbers computed in double.
 *
 * Elements are written and read with code of its own, not with exec/base/numeric.h. Results are
 * full of NaN before a call; after it, what an operand does not cover and what is only read is
 * unchanged.
 */
#ifndef TSR_KERNELS_TESTING_H
#define TSR_KERNELS_TESTING_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/executor/verify.h"
#include "exec/kernels/call/kernel.h"

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t test_state = UINT64_C(0x9e3779b97f4a7c15);

static inline uint64_t test_random(void)
{
    test_state ^= test_state << 13;
    test_state ^= test_state >> 7;
    test_state ^= test_state << 17;
    return test_state;
}

static inline uint64_t test_below(uint64_t n)
{
    return n ? (test_random() >> 11) % n : 0;
}

static inline double test_between(double low, double high)
{
    return low + (high - low) * (double)(test_random() >> 11) / 9007199254740992.0;
}

/* ---- formats --------------------------------------------------------------------------------- */

/* The nearest number with `digits` binary digits and exponents of at most `high`, to even. */
static inline double test_round(double x, int digits, int low, int high)
{
    if (x == 0 || !isfinite(x))
        return x;
    int e = ilogb(x);
    double step = ldexp(1, (e > low ? e : low) - digits + 1);
    double y = nearbyint(x / step) * step;
    return fabs(y) >= ldexp(1, high + 1) ? copysign(INFINITY, x) : y;
}

static inline double test_quantize(double x, uint8_t dtype)
{
    switch (dtype) {
    case TSR_F32:
        return (double)(float)x;
    case TSR_BF16:
        return test_round(x, 8, -126, 127);
    case TSR_F16:
        return test_round(x, 11, -14, 15);
    default:
        return x;
    }
}

/* Bits of a number that has them exactly: `digits` with the hidden one, smallest exponent `low`. */
static inline uint16_t test_encode(double x, int digits, int low)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int fraction = digits - 1;
    if (isnan(x))
        return (uint16_t)(sign | 0x7fff);
    if (isinf(x))
        return (uint16_t)(sign | (0x7fff >> fraction << fraction));
    if (fabs(x) < ldexp(1, low))
        return (uint16_t)(sign | (uint16_t)ldexp(fabs(x), fraction - low));
    int e = ilogb(x);
    unsigned mantissa = (unsigned)ldexp(fabs(x), fraction - e) - (1u << fraction);
    return (uint16_t)(sign | (unsigned)(e - low + 1) << fraction | mantissa);
}

static inline double test_decode(uint16_t bits, int digits, int low)
{
    int fraction = digits - 1, most = 0x7fff >> fraction;
    int e = (bits & 0x7fff) >> fraction;
    double mantissa = bits & ((1 << fraction) - 1), sign = bits & 0x8000 ? -1 : 1;
    if (e == most)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (e == 0)
        return sign * ldexp(mantissa, low - fraction);
    return sign * ldexp(mantissa + (1 << fraction), low + e - 1 - fraction);
}

static inline void test_write(void *at, uint8_t dtype, double x)
{
    float f = (float)x;
    int64_t i = (int64_t)x;
    uint16_t half;
    switch (dtype) {
    case TSR_F32:
        memcpy(at, &f, 4);
        break;
    case TSR_F64:
        memcpy(at, &x, 8);
        break;
    case TSR_I64:
        memcpy(at, &i, 8);
        break;
    case TSR_U8:
        *(uint8_t *)at = (uint8_t)x;
        break;
    default:
        x = test_quantize(x, dtype);
        half = dtype == TSR_BF16 ? test_encode(x, 8, -126) : test_encode(x, 11, -14);
        memcpy(at, &half, 2);
    }
}

static inline double test_read(const void *at, uint8_t dtype)
{
    float f;
    double d;
    int64_t i;
    uint16_t half;
    switch (dtype) {
    case TSR_F32:
        memcpy(&f, at, 4);
        return (double)f;
    case TSR_F64:
        memcpy(&d, at, 8);
        return d;
    case TSR_I64:
        memcpy(&i, at, 8);
        return (double)i;
    case TSR_U8:
        return *(const uint8_t *)at;
    default:
        memcpy(&half, at, 2);
        return dtype == TSR_BF16 ? test_decode(half, 8, -126) : test_decode(half, 11, -14);
    }
}

/* ---- operands -------------------------------------------------------------------------------- */

enum { TEST_GUARD = 64, TEST_OPERANDS = 64, TEST_POISON = 0xa5 };

/* A tensor of n elements, or of rows of `width` elements `pitch` apart. */
struct test_operand {
    unsigned char *block, *before; /* whole allocation; as it was before a call */
    size_t bytes, item;            /* of the view */
    uint64_t n, width, pitch;
    uint8_t dtype, access, slot;
    int shares;   /* the operand whose memory it is, or -1 */
    bool scratch; /* may be left alone */
};

struct test_call {
    struct tsr_work work;
    struct tsr_kernel_call call;
    struct tsr_view views[TEST_OPERANDS];
    struct test_operand operands[TEST_OPERANDS];
    double scalars[TSR_N_SCALARS];
    uint64_t args[256];
    int n;
};

/* The kernel under test, memory for its operands, and the end of a call: the host's, or with
 * TSR_TEST_CUDA the GPU's. */
#ifdef TSR_TEST_CUDA
#include "tests/cuda/kernels_on_cuda.h"
#else
static inline tsr_kernel_fn test_kernel(struct test_call *t)
{
    return tsr_host_kernel(t->work.name);
}

static inline void *test_memory(size_t bytes)
{
    return malloc(bytes);
}

static inline void test_give_back(void *memory)
{
    free(memory);
}

static inline tsr_status test_finish(tsr_status launched)
{
    return launched;
}
#endif

static inline void test_open(struct test_call *t, const char *name)
{
    memset(t, 0, sizeof *t);
    t->work.name = name;
    t->work.args = t->args;
}

static inline void test_close(struct test_call *t)
{
    for (int i = 0; i < t->n; i++) {
        if (t->operands[i].shares < 0)
            test_give_back(t->operands[i].block);
        free(t->operands[i].before);
    }
}

static inline void test_dims(struct test_call *t, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    t->work.dims[0] = a;
    t->work.dims[1] = b;
    t->work.dims[2] = c;
    t->work.dims[3] = d;
}

static inline void test_arg(struct test_call *t, uint64_t value)
{
    assert_true(t->work.n_args < 256);
    t->args[t->work.n_args++] = value;
}

/* An argument of a parameter that says with which scale its gradient is read. */
static inline uint64_t test_scale_bits(float scale)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return (uint64_t)bits << 32;
}

/* Where element i of an operand lies. */
static inline unsigned char *test_place(const struct test_operand *o, uint64_t i)
{
    uint64_t at = i;
    if (o->width) {
        uint64_t column = i % o->width;
        at = i / o->width * o->pitch + (o->pitch < o->width ? column % o->pitch : column);
    }
    return o->block + TEST_GUARD + at * o->item;
}

/* Adds an operand; its number. pitch 0: dense. A result is full of NaN, what is read of zeros. */
static inline int test_view(struct test_call *t, unsigned slot, unsigned access, uint8_t dtype,
                            uint64_t rows, uint64_t width, uint64_t pitch)
{
    assert_true(t->n < TEST_OPERANDS);
    struct test_operand *o = &t->operands[t->n];
    uint64_t last = pitch < width ? pitch : width;
    *o = (struct test_operand){.n = rows * width, .dtype = dtype, .shares = -1};
    o->access = (uint8_t)access;
    o->slot = (uint8_t)slot;
    o->item = tsr_dtype_bytes((tsr_dtype)dtype);
    o->width = pitch ? width : 0;
    o->pitch = pitch;
    o->bytes = o->item * (pitch ? (rows ? (rows - 1) * pitch + last : 0) : o->n);
    o->block = test_memory(o->bytes + 2 * TEST_GUARD);
    assert_non_null(o->block);
    memset(o->block, TEST_POISON, o->bytes + 2 * TEST_GUARD);
    for (uint64_t i = 0; i < o->n; i++)
        memset(test_place(o, i), access & TSR_READ ? 0 : 0xff, o->item);
    return t->n++;
}

static inline int test_tensor(struct test_call *t, unsigned slot, unsigned access, uint8_t dtype,
                              uint64_t n)
{
    return test_view(t, slot, access, dtype, 1, n, 0);
}

/* Another argument in the memory of operand `of`. */
static inline int test_same(struct test_call *t, unsigned slot, unsigned access, int of)
{
    t->operands[t->n] = t->operands[of];
    t->operands[t->n].slot = (uint8_t)slot;
    t->operands[t->n].access = (uint8_t)access;
    t->operands[t->n].shares = of;
    return t->n++;
}

static inline void test_set(struct test_call *t, int operand, uint64_t i, double x)
{
    test_write(test_place(&t->operands[operand], i), t->operands[operand].dtype, x);
}

static inline double test_get(const struct test_call *t, int operand, uint64_t i)
{
    return test_read(test_place(&t->operands[operand], i), t->operands[operand].dtype);
}

static inline void test_fill(struct test_call *t, int operand, double low, double high)
{
    for (uint64_t i = 0; i < t->operands[operand].n; i++)
        test_set(t, operand, i, test_between(low, high));
}

/* A new input full of random numbers. */
static inline int test_input(struct test_call *t, unsigned slot, uint8_t dtype, uint64_t n)
{
    int operand = test_tensor(t, slot, TSR_READ, dtype, n);
    test_fill(t, operand, -2, 2);
    return operand;
}

static inline int test_output(struct test_call *t, unsigned slot, uint8_t dtype, uint64_t n)
{
    return test_tensor(t, slot, TSR_WRITE, dtype, n);
}

/* What an operand holds, as doubles; the caller frees. */
/* An output that the kernel may leave alone, all or in part. */
static inline int test_scratch(struct test_call *t, unsigned slot, uint8_t dtype, uint64_t n)
{
    int operand = test_output(t, slot, dtype, n);
    t->operands[operand].scratch = true;
    return operand;
}

static inline double *test_values(const struct test_call *t, int operand)
{
    uint64_t n = t->operands[operand].n;
    double *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = test_get(t, operand, i);
    return x;
}

static inline void test_set_all(struct test_call *t, int operand, const double *x)
{
    for (uint64_t i = 0; i < t->operands[operand].n; i++)
        test_set(t, operand, i, x[i]);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* True if another operand writes this one's memory. */
static inline bool test_is_written(const struct test_call *t, int operand)
{
    const unsigned char *block = t->operands[operand].block;
    for (int i = 0; i < t->n; i++)
        if (t->operands[i].block == block && t->operands[i].access & TSR_WRITE)
            return true;
    return false;
}

/* The first operand in the same memory. */
static inline uint32_t test_buffer(const struct test_call *t, int operand)
{
    int i = 0;
    while (t->operands[i].block != t->operands[operand].block)
        i++;
    return (uint32_t)i;
}

static inline void test_make_views(struct test_call *t)
{
    for (int i = 0; i < t->n; i++) {
        struct test_operand *o = &t->operands[i];
        t->views[i] = (struct tsr_view){.data = o->block + TEST_GUARD,
                                        .bytes = o->bytes,
                                        .width = (uint32_t)(o->width * o->item),
                                        .pitch = (uint32_t)(o->pitch * o->item),
                                        .dtype = o->dtype,
                                        .slot = o->slot,
                                        .access = o->access,
                                        .base = o->block,
                                        .buffer = test_buffer(t, i)};
        if (o->pitch == 0)
            t->views[i].width = 0;
        free(o->before);
        o->before = malloc(o->bytes + 2 * TEST_GUARD);
        assert_non_null(o->before);
        memcpy(o->before, o->block, o->bytes + 2 * TEST_GUARD);
    }
    t->call = (struct tsr_kernel_call){.work = &t->work,
                                       .n_views = (uint32_t)t->n,
                                       .views = t->views,
                                       .scalars = t->scalars,
                                       .factor = t->call.factor,
                                       .launch = t->call.launch,
                                       .context = t->call.context};
}

/* Everything outside of elements that are written is as before. */
static inline void test_check_memory(struct test_call *t)
{
    for (int i = 0; i < t->n; i++) {
        struct test_operand *o = &t->operands[i];
        if (test_is_written(t, i))
            for (uint64_t k = 0; k < o->n; k++) {
                size_t at = (size_t)(test_place(o, k) - o->block);
                memcpy(o->before + at, o->block + at, o->item);
            }
        assert_memory_equal(o->block, o->before, o->bytes + 2 * TEST_GUARD);
    }
}

static inline tsr_status test_try(struct test_call *t)
{
    test_make_views(t);
    tsr_kernel_fn fn = test_kernel(t);
    assert_non_null(fn);
    tsr_status status = test_finish(fn(&t->call));
    test_check_memory(t);
    return status;
}

/* Adds the operands' memory as it is, guards included. */
static inline tsr_status test_verify_add(struct test_call *t, struct tsr_verify *v)
{
    for (int i = 0; i < t->n; i++) {
        const struct test_operand *o = &t->operands[i];
        if (test_buffer(t, i) != (uint32_t)i)
            continue;
        TSR_TRY(tsr_verify_add(v, (uint32_t)i, false, o->block, o->bytes + 2 * TEST_GUARD));
        memcpy(tsr_verify_contents(v, (uint32_t)i), o->before, o->bytes + 2 * TEST_GUARD);
    }
    return TSR_OK;
}

static inline tsr_status test_verify_twice(struct test_call *t, struct tsr_verify *v)
{
    const struct tsr_instr instr = {
        .kind = TSR_OP, .work = &t->work, .origin = {.module = TSR_NO_ID}};
    const struct tsr_verify_who who = {.instr = &instr};
    tsr_kernel_fn fn = test_kernel(t);
    struct tsr_view views[TEST_OPERANDS];
    bool twice;
    for (int i = 0; i < t->n; i++) {
        views[i] = t->views[i];
        if (t->operands[i].scratch)
            views[i].dtype = TSR_DTYPE_NONE;
    }
    TSR_TRY(test_verify_add(t, v));
    TSR_TRY(tsr_verify_enter(v, &who, views, (uint32_t)t->n, &twice));
    TSR_TRY(test_finish(fn(&t->call)));
    if (twice) {
        TSR_TRY(tsr_verify_again(v));
        TSR_TRY(test_finish(fn(&t->call)));
    }
    return tsr_verify_leave(v);
}

/* The kernel keeps to its operands (exec/executor/verify.h). Memory is afterwards as it was. */
static inline void test_verify(struct test_call *t)
{
    struct tsr_verify *v;
    test_make_views(t);
    assert_int_equal(tsr_verify_create(&v), TSR_OK);
    tsr_status status = test_verify_twice(t, v);
    tsr_verify_destroy(v);
    for (int i = 0; i < t->n; i++)
        memcpy(t->operands[i].block, t->operands[i].before, t->operands[i].bytes + 2 * TEST_GUARD);
    if (status != TSR_OK)
        fail_msg("%s: %s", t->work.name, tsr_error_text());
}

static inline void test_run(struct test_call *t)
{
    test_verify(t);
    tsr_status status = test_try(t);
    if (status != TSR_OK)
        fail_msg("%s: %s", t->work.name, tsr_error_text());
}

/* The call is refused, and the text has the kernel's name. */
static inline void test_refused(struct test_call *t)
{
    assert_int_equal(test_try(t), TSR_EDEFECT);
    assert_non_null(strstr(tsr_error_text(), t->work.name));
}

/* A label that is no column: refused where it is seen, else the loss is no number. */
static inline void test_bad_label(struct test_call *t, int loss)
{
    assert_non_null(test_kernel(t));
    if (!t->call.launch) {
        test_refused(t);
        return;
    }
    assert_int_equal(test_try(t), TSR_OK);
    assert_true(isnan(test_get(t, loss, 0)));
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Half of a unit in the last place, relative. */
static inline double test_precision(uint8_t dtype)
{
    switch (dtype) {
    case TSR_BF16:
        return ldexp(1, -8);
    case TSR_F16:
        return ldexp(1, -11);
    case TSR_F32:
        return ldexp(1, -24);
    case TSR_F64:
        return ldexp(1, -53);
    default:
        return 0;
    }
}

static inline bool test_is_wide(const struct test_call *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->operands[i].dtype == TSR_F64)
            return true;
    return false;
}

/* Sums of many in f32, one after the other: the GPU's blocks have one thread under sanitizers. */
#if defined(TSR_TEST_CUDA) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define TEST_ROUNDING 5e-6
#else
#define TEST_ROUNDING 1e-6
#endif

/* Element i of an operand is `want`, rounded once; `scale`: size of the terms that went into it, in
 * which the arithmetic is a few units of its type off. */
static inline void test_near(const struct test_call *t, int operand, uint64_t i, double want,
                             double scale)
{
    const struct test_operand *o = &t->operands[operand];
    double got = test_get(t, operand, i);
    double tolerance = 1.02 * test_precision(o->dtype) * fabs(want);
    tolerance += (test_is_wide(t) ? 1e-13 : TEST_ROUNDING) * scale;
    if (o->dtype == TSR_F16)
        tolerance += ldexp(1, -25);
    if (!(fabs(got - want) <= tolerance) && !(isnan(got) && isnan(want)) && got != want)
        fail_msg("%s: slot %u[%llu] of %s is %.9g, should be %.9g (+- %.2g)", t->work.name, o->slot,
                 (unsigned long long)i, tsr_dtype_name((tsr_dtype)o->dtype), got, want, tolerance);
}

/* All elements. */
static inline void test_near_all(const struct test_call *t, int operand, const double *want,
                                 double scale)
{
    for (uint64_t i = 0; i < t->operands[operand].n; i++)
        test_near(t, operand, i, want[i], scale);
}

/* A central difference of f at x along element i: the slope of sum(f g) is compared with it. */
#define TEST_STEP 1e-5

/* The float dtypes. */
static const uint8_t test_floats[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
enum { TEST_FLOATS = 4 };

#endif
