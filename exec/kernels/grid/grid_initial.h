/* grid_initial.h: initial values of parameters as a loop over fours of elements: a value is a
 * function of the seed, the parameter's name and the element's place in the whole parameter
 * (exec/files/init.h). The host and a GPU make the same bits: functions of f64 are made of IEEE's
 * operations here, and no product is joined with a sum.
 */
#ifndef TSR_EXEC_GRID_INITIAL_H
#define TSR_EXEC_GRID_INITIAL_H

#include "engine/program/program.h"
#include "exec/kernels/tensor/tensor.h"

enum { TSR_INITIAL_DIMS = 4 };

/* A box of a parameter, row-major. Fewer dimensions have leading ones of length 1. */
struct tsr_initial {
    struct tsr_elems out;
    uint64_t seed, name;
    uint64_t shape[TSR_INITIAL_DIMS], start[TSR_INITIAL_DIMS], size[TSR_INITIAL_DIMS];
    uint64_t n; /* fours: tsr_initial_fours() */
    double constant;
    uint8_t kind; /* enum tsr_init_kind */
};

/* Philox4x32-10. Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011). */
TSR_ANYWHERE void tsr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c0 * 0xd2511f53u, b = (uint64_t)c2 * 0xcd9e8d57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* (0, 1), symmetric about 1/2; never an end. */
TSR_ANYWHERE double tsr_unit(uint32_t x)
{
    return ((double)x + 0.5) * 0x1p-32;
}

/* a[0] z^(n - 1) + ... + a[n - 1]; arrays whose every place is known stay in registers. */
TSR_ANYWHERE double tsr_initial_sum(const double *a, int n, double z)
{
    double sum = a[0];
    TSR_UNROLL
    for (int i = 1; i < n; i++)
        sum = tsr_rounded_product(sum, z) + a[i];
    return sum;
}

/* The natural logarithm of x, positive and normal: x = 2^e (1 + f), and log(1 + f) is
 * 2 artanh(f / (2 + f)), whose series ends below half of the last bit for 1 + f in
 * [1 / sqrt(2), sqrt(2)]. */
TSR_ANYWHERE double tsr_initial_log(double x)
{
    const double terms[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                            1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1};
    const double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
    uint64_t bits = tsr_double_bits(x);
    double f = tsr_bits_double(((uint64_t)1022 << 52) | (bits & (((uint64_t)1 << 52) - 1)));
    double e = (double)((int)(bits >> 52) - 1022);
    if (f < 0.70710678118654752) {
        f *= 2;
        e -= 1;
    }
    f -= 1;
    double s = f / (2 + f);
    double sum = tsr_initial_sum(terms, 12, tsr_rounded_product(s, s));
    double low = tsr_rounded_product(2 * s, sum) + tsr_rounded_product(e, ln2_low);
    return tsr_rounded_product(e, ln2_high) + low;
}

/* Cosine and sine of the angle that is (x + 1/2) / 2^32 of a turn: of what is left to the next
 * quarter, at most pi / 4, by their series, and then turned by quarters. */
TSR_ANYWHERE void tsr_initial_turn(uint32_t x, double *cosine, double *sine)
{
    const double of_cosine[] = {-1.0 / 6402373705728000.0,
                                1.0 / 20922789888000.0,
                                -1.0 / 87178291200.0,
                                1.0 / 479001600.0,
                                -1.0 / 3628800.0,
                                1.0 / 40320.0,
                                -1.0 / 720.0,
                                1.0 / 24.0,
                                -1.0 / 2.0,
                                1.0 / 1.0};
    const double of_sine[] = {1.0 / 355687428096000.0,
                              -1.0 / 1307674368000.0,
                              1.0 / 6227020800.0,
                              -1.0 / 39916800.0,
                              1.0 / 362880.0,
                              -1.0 / 5040.0,
                              1.0 / 120.0,
                              -1.0 / 6.0,
                              1.0 / 1.0};
    const double two_pi = 6.28318530717958647692;
    uint32_t quarters = ((x >> 29) + 1) / 2;
    double left = ((double)(int32_t)(x - (quarters << 30)) + 0.5) * 0x1p-32;
    double a = tsr_rounded_product(two_pi, left), z = tsr_rounded_product(a, a);
    double c = tsr_initial_sum(of_cosine, 10, z);
    double s = tsr_rounded_product(a, tsr_initial_sum(of_sine, 9, z));
    bool swaps = quarters % 2;
    double across = swaps ? s : c, up = swaps ? c : s;
    *cosine = quarters % 4 == 1 || quarters % 4 == 2 ? -across : across;
    *sine = quarters % 4 >= 2 ? -up : up;
}

/* Elements 4 four ... 4 four + 3 of the parameter. */
TSR_ANYWHERE void tsr_initial_values(const struct tsr_initial *k, uint64_t four, float out[4])
{
    const uint32_t key[2] = {(uint32_t)k->seed, (uint32_t)(k->seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)four, (uint32_t)(four >> 32), (uint32_t)k->name,
                                 (uint32_t)(k->name >> 32)};
    uint32_t words[4];
    tsr_philox(counter, key, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = k->constant * sqrt(-2 * tsr_initial_log(tsr_unit(words[i])));
        double cosine, sine;
        tsr_initial_turn(words[i + 1], &cosine, &sine);
        bool normal = k->kind == TSR_INIT_NORMAL;
        out[i] = (float)(normal ? radius * cosine : k->constant * (2 * tsr_unit(words[i]) - 1));
        out[i + 1] =
            (float)(normal ? radius * sine : k->constant * (2 * tsr_unit(words[i + 1]) - 1));
    }
}

/* Where a row of the box begins in the parameter. */
TSR_ANYWHERE uint64_t tsr_initial_row(const struct tsr_initial *k, uint64_t row)
{
    uint64_t k2 = row % k->size[2], k1 = row / k->size[2] % k->size[1];
    uint64_t place = k->start[0] + row / k->size[2] / k->size[1];
    place = place * k->shape[1] + k->start[1] + k1;
    place = place * k->shape[2] + k->start[2] + k2;
    return place * k->shape[3] + k->start[3];
}

/* Fours that a row of so many columns may touch, wherever it begins. */
TSR_ANYWHERE uint64_t tsr_initial_fours(uint64_t columns)
{
    return (columns + 6) / 4;
}

TSR_ANYWHERE void tsr_grid_initial(const struct tsr_initial *k, uint64_t begin, uint64_t step)
{
    uint64_t columns = k->size[3], fours = tsr_initial_fours(columns);
    for (uint64_t i = begin; i < k->n; i += step) {
        uint64_t row = i / fours, first = tsr_initial_row(k, row);
        uint64_t four = first / 4 + i % fours, end = first + columns;
        float x[4] = {(float)k->constant, (float)k->constant, (float)k->constant,
                      (float)k->constant};
        if (4 * four >= end)
            continue;
        if (k->kind != TSR_INIT_CONSTANT)
            tsr_initial_values(k, four, x);
        for (unsigned lane = 0; lane < 4; lane++) {
            uint64_t place = 4 * four + lane;
            if (place >= first && place < end)
                tsr_store_run_f32(k->out.data + k->out.item * (row * columns + place - first),
                                  k->out.dtype, 1, &x[lane]);
        }
    }
}

#endif
