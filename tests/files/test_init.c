/* test_init.c: initial values: known answers, independence of the sharding, and statistics. */
#include "tests/files/data_testing.h"

#include <math.h>

#include "exec/base/numeric.h"
#include "exec/files/init.h"
#include "exec/kernels/grid/grid_initial.h"

/* kat_vectors of the Random123 distribution, philox4x32 10. */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t got[4];
        tsr_philox(cases[i].counter, cases[i].key, got);
        assert_memory_equal(got, cases[i].answer, sizeof got);
    }
}

static struct tsr_piece whole(int n_dims, const uint64_t *shape, tsr_dtype dtype,
                              enum tsr_init_kind init, double constant)
{
    struct tsr_piece piece = {.name = tsr_hash_bytes(TSR_HASH_INIT, "layers.0.weight", 15),
                              .dtype = (uint8_t)dtype,
                              .n_dims = n_dims,
                              .init = init,
                              .constant = constant};
    for (int d = 0; d < n_dims; d++)
        piece.shape[d] = piece.size[d] = shape[d];
    return piece;
}

/* The definition of the header, element by element. */
static float defined(uint64_t seed, const struct tsr_piece *piece, uint64_t i)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, w[4];
    uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), (uint32_t)piece->name,
                           (uint32_t)(piece->name >> 32)};
    tsr_philox(counter, key, w);
    uint64_t lane = i % 4, pair = lane / 2 * 2;
    double u = (w[pair] + 0.5) / 4294967296.0, v = (w[pair + 1] + 0.5) / 4294967296.0;
    if (piece->init == TSR_INIT_UNIFORM)
        return (float)(piece->constant * (2 * ((w[lane] + 0.5) / 4294967296.0) - 1));
    double radius = piece->constant * sqrt(-2 * log(u)), angle = 2 * acos(-1.0) * v;
    return (float)(radius * (lane % 2 ? sin(angle) : cos(angle)));
}

static void values_are_the_definition(void **state)
{
    (void)state;
    static const uint64_t shape[] = {7, 13};
    for (int kind = TSR_INIT_NORMAL; kind <= TSR_INIT_UNIFORM; kind++) {
        struct tsr_piece piece = whole(2, shape, TSR_F32, (enum tsr_init_kind)kind, 0.02);
        float got[91];
        uint64_t seed = UINT64_C(0x123456789abcdef0);
        assert_int_equal(tsr_init_piece(seed, &piece, 1, got), TSR_OK);
        for (uint64_t i = 0; i < 91; i++) {
            float want = defined(seed, &piece, i);
            assert_true(fabsf(got[i] - want) <= 1e-6f * fabsf(want));
        }
    }
}

/* Logarithm, sine and cosine are the generator's own, so that GPUs have the same bits: they are as
 * exact as the C library's, of whose values no more than a few in a million may be rounded to
 * another float. */
static void normals_are_those_of_libm(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static const uint64_t shape[] = {N};
    static float got[N];
    struct tsr_piece piece = whole(1, shape, TSR_F32, TSR_INIT_NORMAL, 0.02);
    unsigned differ = 0;
    assert_int_equal(tsr_init_piece(7, &piece, 1, got), TSR_OK);
    for (uint64_t i = 0; i < N; i++) {
        float want = defined(7, &piece, i);
        differ += got[i] != want;
        assert_true(got[i] == want || got[i] == nextafterf(want, got[i]));
    }
    assert_true(differ <= 4);
}

/* A parameter beyond 2^34 elements: blocks past 32 bits. */
static void far_elements_have_their_own_values(void **state)
{
    (void)state;
    static const uint64_t shape[] = {UINT64_C(1) << 36};
    struct tsr_piece piece = whole(1, shape, TSR_F32, TSR_INIT_NORMAL, 1);
    float near_start[8], far[8];
    piece.size[0] = 8;
    assert_int_equal(tsr_init_piece(9, &piece, 1, near_start), TSR_OK);
    piece.start[0] = (UINT64_C(1) << 34) + 2;
    assert_int_equal(tsr_init_piece(9, &piece, 1, far), TSR_OK);
    for (uint64_t i = 0; i < 8; i++) {
        assert_true(fabsf(far[i] - defined(9, &piece, piece.start[0] + i)) <= 1e-5f);
        assert_true(far[i] != near_start[(i + 2) % 8]);
    }
}

/* ---- any box is that part of the whole ------------------------------------------------------- */

static uint64_t random_state = 88172645463325252;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static void random_box(struct tsr_piece *piece)
{
    for (int d = 0; d < piece->n_dims; d++) {
        piece->start[d] = below(piece->shape[d] + 1);
        piece->size[d] = below(piece->shape[d] - piece->start[d] + 1);
    }
}

static void check_box(const struct tsr_piece *box, const unsigned char *part,
                      const unsigned char *all)
{
    unsigned item = tsr_dtype_bytes((tsr_dtype)box->dtype);
    uint64_t n = 1, k[TSR_PIECE_DIMS];
    for (int d = 0; d < box->n_dims; d++)
        n *= box->size[d];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t rest = i, at = 0;
        for (int d = box->n_dims - 1; d >= 0; d--) {
            k[d] = rest % box->size[d];
            rest /= box->size[d];
        }
        for (int d = 0; d < box->n_dims; d++)
            at = at * box->shape[d] + box->start[d] + k[d];
        assert_memory_equal(part + i * item, all + at * item, item);
    }
    assert_int_equal(part[n * item], 0xa5); /* nothing behind it */
}

static void boxes_are_parts_of_the_whole(void **state)
{
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    for (int round = 0; round < 400; round++) {
        uint64_t shape[TSR_PIECE_DIMS], n = 1;
        int n_dims = 1 + (int)below(TSR_PIECE_DIMS);
        for (int d = 0; d < n_dims; d++)
            n *= shape[d] = 1 + below(d == n_dims - 1 ? 17 : 6);
        struct tsr_piece piece = whole(n_dims, shape, dtypes[below(4)],
                                       below(2) ? TSR_INIT_NORMAL : TSR_INIT_UNIFORM, 0.5);
        unsigned char *all = malloc(n * 8 + 1), *part = malloc(n * 8 + 1);
        assert_true(all && part);
        assert_int_equal(tsr_init_piece(3, &piece, 1, all), TSR_OK);
        for (int i = 0; i < 8; i++) {
            random_box(&piece);
            memset(part, 0xa5, n * 8 + 1);
            assert_int_equal(tsr_init_piece(3, &piece, 1, part), TSR_OK);
            check_box(&piece, part, all);
        }
        free(all);
        free(part);
    }
}

/* A low-precision parameter is the f32 one, rounded. */
static void dtypes_are_roundings_of_f32(void **state)
{
    (void)state;
    enum { N = 1000 };
    static const uint64_t shape[] = {N};
    static float f32[N];
    static uint16_t bf16[N], f16[N];
    static double f64[N];
    struct tsr_piece piece = whole(1, shape, TSR_F32, TSR_INIT_NORMAL, 0.02);
    assert_int_equal(tsr_init_piece(1, &piece, 1, f32), TSR_OK);
    piece.dtype = TSR_BF16;
    assert_int_equal(tsr_init_piece(1, &piece, 1, bf16), TSR_OK);
    piece.dtype = TSR_F16;
    assert_int_equal(tsr_init_piece(1, &piece, 1, f16), TSR_OK);
    piece.dtype = TSR_F64;
    assert_int_equal(tsr_init_piece(1, &piece, 1, f64), TSR_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(bf16[i], tsr_to_bf16(f32[i]));
        assert_int_equal(f16[i], tsr_to_f16(f32[i]));
        assert_true(f64[i] == (double)f32[i]);
    }
}

static void constants_and_scalars(void **state)
{
    (void)state;
    static const uint64_t shape[] = {5};
    struct tsr_piece piece = whole(1, shape, TSR_BF16, TSR_INIT_CONSTANT, 1);
    uint16_t ones[6] = {0};
    assert_int_equal(tsr_init_piece(1, &piece, 1, ones), TSR_OK);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(ones[i], 0x3f80);
    assert_int_equal(ones[5], 0);
    piece = whole(1, shape, TSR_I64, TSR_INIT_CONSTANT, -3);
    int64_t integers[5];
    assert_int_equal(tsr_init_piece(1, &piece, 1, integers), TSR_OK);
    assert_int_equal(integers[4], -3);
    piece = whole(0, NULL, TSR_F32, TSR_INIT_CONSTANT, 2.5);
    float scalar[2] = {0, 0};
    assert_int_equal(tsr_init_piece(1, &piece, 1, scalar), TSR_OK);
    assert_true(scalar[0] == 2.5f && scalar[1] == 0);
}

static void seeds_and_names_give_other_values(void **state)
{
    (void)state;
    static const uint64_t shape[] = {64};
    struct tsr_piece piece = whole(1, shape, TSR_F32, TSR_INIT_NORMAL, 1), other = piece;
    other.name++;
    float values[4][64];
    assert_int_equal(tsr_init_piece(1, &piece, 1, values[0]), TSR_OK);
    assert_int_equal(tsr_init_piece(2, &piece, 1, values[1]), TSR_OK);
    assert_int_equal(tsr_init_piece(1, &other, 1, values[2]), TSR_OK);
    assert_int_equal(tsr_init_piece(UINT64_C(1) << 32 | 1, &piece, 1, values[3]), TSR_OK);
    for (size_t a = 0; a < 4; a++)
        for (size_t b = 0; b < a; b++)
            for (size_t i = 0; i < 64; i++)
                assert_true(values[a][i] != values[b][i]);
}

static void wrong_pieces_are_refused(void **state)
{
    (void)state;
    static const uint64_t shape[] = {4, 4};
    float out[16];
    struct tsr_piece good = whole(2, shape, TSR_F32, TSR_INIT_NORMAL, 1), piece = good;
    piece.start[1] = 1;
    assert_int_equal(tsr_init_piece(1, &piece, 1, out), TSR_EDEFECT);
    test_error_names("dimension 1 has 4 from 1", "4 long", NULL);
    piece = good;
    piece.start[0] = UINT64_MAX;
    assert_int_equal(tsr_init_piece(1, &piece, 1, out), TSR_EDEFECT);
    piece = good;
    piece.n_dims = 5;
    assert_int_equal(tsr_init_piece(1, &piece, 1, out), TSR_EDEFECT);
    piece = good;
    piece.dtype = TSR_DTYPE_NONE;
    assert_int_equal(tsr_init_piece(1, &piece, 1, out), TSR_EDEFECT);
    piece = good;
    piece.init = 3;
    assert_int_equal(tsr_init_piece(1, &piece, 1, out), TSR_EDEFECT);
    piece = good;
    piece.dtype = TSR_I64;
    assert_int_equal(tsr_init_piece(1, &piece, 1, out), TSR_EUNSUPPORTED);
}

/* ---- statistics ------------------------------------------------------------------------------ */

enum { N_SAMPLES = 1 << 20 };

static float *samples(enum tsr_init_kind kind, double constant)
{
    static const uint64_t shape[] = {N_SAMPLES};
    struct tsr_piece piece = whole(1, shape, TSR_F32, kind, constant);
    float *x = malloc(N_SAMPLES * sizeof *x);
    assert_non_null(x);
    assert_int_equal(tsr_init_piece(20240520, &piece, 1, x), TSR_OK);
    return x;
}

/* Bounds are 5 standard errors of each figure. */
static void normals_are_normal(void **state)
{
    (void)state;
    double s = 0.02, n = N_SAMPLES, sums[5] = {0}, neighbours[4] = {0};
    float *x = samples(TSR_INIT_NORMAL, s);
    unsigned within[3] = {0};
    for (size_t i = 0; i < N_SAMPLES; i++) {
        double z = (double)x[i] / s, power = 1;
        for (int k = 1; k <= 4; k++)
            sums[k] += power *= z;
        for (size_t lag = 1; lag <= 4; lag++)
            neighbours[lag - 1] += i >= lag ? z * (double)x[i - lag] / s : 0;
        for (int k = 0; k < 3; k++)
            within[k] += fabs(z) < k + 1;
    }
    free(x);
    assert_true(fabs(sums[1] / n) < 5 / sqrt(n));
    assert_true(fabs(sums[2] / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(sums[3] / n) < 5 * sqrt(15 / n));
    assert_true(fabs(sums[4] / n - 3) < 5 * sqrt(96 / n));
    for (int lag = 0; lag < 4; lag++)
        assert_true(fabs(neighbours[lag] / n) < 5 / sqrt(n));
    for (int k = 0; k < 3; k++) {
        double p = erf((k + 1) / sqrt(2.0));
        assert_true(fabs(within[k] / n - p) < 5 * sqrt(p * (1 - p) / n));
    }
}

static void uniforms_are_uniform(void **state)
{
    (void)state;
    double c = 0.25, n = N_SAMPLES, expected = n / 64, chi = 0;
    float *x = samples(TSR_INIT_UNIFORM, c);
    unsigned bins[64] = {0};
    for (size_t i = 0; i < N_SAMPLES; i++) {
        assert_true(fabsf(x[i]) <= 0.25f);
        double at = ((double)x[i] / c + 1) * 32;
        bins[at < 64 ? (int)at : 63]++;
    }
    free(x);
    for (int i = 0; i < 64; i++)
        chi += (bins[i] - expected) * (bins[i] - expected) / expected;
    assert_true(chi > 63 - 5 * 11.2 && chi < 63 + 5 * 11.2); /* 63 degrees of freedom */
}

/* ---- threads --------------------------------------------------------------------------------- */

/* A box whose rows begin in the middle of four values, and shares of threads in the middle of rows.
 */
static void any_number_of_threads_makes_the_same_bits(void **state)
{
    (void)state;
    static const uint64_t shape[] = {5, 301, 703};
    struct tsr_piece piece = whole(3, shape, TSR_BF16, TSR_INIT_NORMAL, 0.02);
    piece.start[1] = 1;
    piece.start[2] = 3;
    piece.size[1] = 299;
    piece.size[2] = 699;
    const size_t bytes = (size_t)5 * 299 * 699 * 2;
    unsigned char *one = malloc(bytes + 1), *many = malloc(bytes + 1);
    assert_non_null(one);
    assert_non_null(many);
    assert_int_equal(tsr_init_piece(77, &piece, 1, one), TSR_OK);
    for (unsigned n = 0; n <= 40; n = n < 6 ? n + 1 : 2 * n) {
        memset(many, 0xa5, bytes + 1);
        assert_int_equal(tsr_init_piece(77, &piece, n, many), TSR_OK);
        assert_memory_equal(one, many, bytes);
        assert_int_equal(many[bytes], 0xa5);
    }
    free(one);
    free(many);
}

static void ranks_share_the_cores(void **state)
{
    (void)state;
    unsigned alone = tsr_init_threads(1);
    assert_in_range(alone, 1, 16);
    assert_true(tsr_init_threads(2) <= alone);
    assert_int_equal(tsr_init_threads(100000), 1);
    assert_int_equal(tsr_init_threads(0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(philox_gives_the_known_answers),
                                       cmocka_unit_test(values_are_the_definition),
                                       cmocka_unit_test(normals_are_those_of_libm),
                                       cmocka_unit_test(far_elements_have_their_own_values),
                                       cmocka_unit_test(boxes_are_parts_of_the_whole),
                                       cmocka_unit_test(dtypes_are_roundings_of_f32),
                                       cmocka_unit_test(constants_and_scalars),
                                       cmocka_unit_test(seeds_and_names_give_other_values),
                                       cmocka_unit_test(wrong_pieces_are_refused),
                                       cmocka_unit_test(normals_are_normal),
                                       cmocka_unit_test(uniforms_are_uniform),
                                       cmocka_unit_test(any_number_of_threads_makes_the_same_bits),
                                       cmocka_unit_test(ranks_share_the_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
