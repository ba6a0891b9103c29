/* init.c: counter-based initial values. */
#include "exec/files/init.h"
#include "exec/base/numeric.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

void tsr_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c0 * UINT32_C(0xd2511f53), b = (uint64_t)c2 * UINT32_C(0xcd9e8d57);
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += UINT32_C(0x9e3779b9);
        k1 += UINT32_C(0xbb67ae85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* (0, 1), symmetric about 1/2; never an end. */
static double unit(uint32_t x)
{
    return ((double)x + 0.5) * 0x1p-32;
}

static void normals(const uint32_t words[4], double deviation, float out[4])
{
    static const double two_pi = 6.28318530717958647692;
    for (int i = 0; i < 4; i += 2) {
        double radius = deviation * sqrt(-2 * log(unit(words[i])));
        double angle = two_pi * unit(words[i + 1]);
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

/* Elements 4 block ... 4 block + 3 of the parameter. */
static void block_values(uint64_t seed, const struct tsr_piece *piece, uint64_t block, float out[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)piece->name,
                                 (uint32_t)(piece->name >> 32)};
    uint32_t words[4];
    tsr_philox(counter, key, words);
    if (piece->init == TSR_INIT_NORMAL) {
        normals(words, piece->constant, out);
        return;
    }
    for (int i = 0; i < 4; i++)
        out[i] = (float)(piece->constant * (2 * unit(words[i]) - 1));
}

static void store(tsr_dtype dtype, void *out, uint64_t at, float value)
{
    switch (dtype) {
    case TSR_F32:
        ((float *)out)[at] = value;
        break;
    case TSR_BF16:
        ((uint16_t *)out)[at] = tsr_to_bf16(value);
        break;
    case TSR_F16:
        ((uint16_t *)out)[at] = tsr_to_f16(value);
        break;
    case TSR_F64:
        ((double *)out)[at] = (double)value;
        break;
    case TSR_I64:
        ((int64_t *)out)[at] = (int64_t)value;
        break;
    case TSR_U8:
        ((uint8_t *)out)[at] = (uint8_t)value;
        break;
    default:
        TSR_CHECK(!"a dtype");
    }
}

/* Elements first ... first + n - 1 of the parameter to out[at] and behind. */
static void fill_run(uint64_t seed, const struct tsr_piece *piece, uint64_t first, uint64_t n,
                     void *out, uint64_t at)
{
    float values[4] = {(float)piece->constant, (float)piece->constant, (float)piece->constant,
                       (float)piece->constant};
    bool random = piece->init != TSR_INIT_CONSTANT;
    for (uint64_t i = 0; i < n;) {
        if (random)
            block_values(seed, piece, (first + i) / 4, values);
        for (uint64_t lane = (first + i) % 4; lane < 4 && i < n; lane++, i++)
            store((tsr_dtype)piece->dtype, out, at + i, values[lane]);
    }
}

static tsr_status check_piece(const struct tsr_piece *piece)
{
    if (piece->n_dims < 0 || piece->n_dims > TSR_PIECE_DIMS)
        return tsr_fail(TSR_EDEFECT, "initial values: %d dimensions; allowed: 0 to %d",
                        piece->n_dims, TSR_PIECE_DIMS);
    for (int d = 0; d < piece->n_dims; d++)
        if (piece->start[d] > piece->shape[d] || piece->size[d] > piece->shape[d] - piece->start[d])
            return tsr_fail(TSR_EDEFECT,
                            "initial values: dimension %d has %" PRIu64 " from %" PRIu64
                            " on, but is %" PRIu64 " long",
                            d, piece->size[d], piece->start[d], piece->shape[d]);
    if (piece->dtype == TSR_DTYPE_NONE || piece->dtype >= TSR_N_DTYPES)
        return tsr_fail(TSR_EDEFECT, "initial values: dtype %d is none", piece->dtype);
    if (piece->init < TSR_INIT_CONSTANT || piece->init > TSR_INIT_UNIFORM)
        return tsr_fail(TSR_EDEFECT, "initial values: kind %d is none", piece->init);
    if (piece->init != TSR_INIT_CONSTANT && !tsr_dtype_is_float((tsr_dtype)piece->dtype))
        return tsr_fail(TSR_EUNSUPPORTED, "initial values: random values of %s",
                        tsr_dtype_name((tsr_dtype)piece->dtype));
    return TSR_OK;
}

/* Boxes are brought to the full number of dimensions by leading ones of length 1. */
struct box {
    uint64_t shape[TSR_PIECE_DIMS], start[TSR_PIECE_DIMS], size[TSR_PIECE_DIMS];
};

static struct box box_of(const struct tsr_piece *piece)
{
    struct box box;
    int lead = TSR_PIECE_DIMS - piece->n_dims;
    for (int d = 0; d < TSR_PIECE_DIMS; d++) {
        box.shape[d] = d < lead ? 1 : piece->shape[d - lead];
        box.start[d] = d < lead ? 0 : piece->start[d - lead];
        box.size[d] = d < lead ? 1 : piece->size[d - lead];
    }
    return box;
}

/* Where a row of the box begins in the parameter. */
static uint64_t row_start(const struct box *box, uint64_t row)
{
    uint64_t k2 = row % box->size[2], k1 = row / box->size[2] % box->size[1];
    uint64_t k0 = row / box->size[2] / box->size[1];
    uint64_t first = box->start[0] + k0;
    first = first * box->shape[1] + box->start[1] + k1;
    first = first * box->shape[2] + box->start[2] + k2;
    return first * box->shape[3] + box->start[3];
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Elements [begin, end) of a box: what one thread makes. A value depends on its place only. */
struct share {
    uint64_t seed;
    const struct tsr_piece *piece;
    const struct box *box;
    void *out;
    uint64_t begin, end;
};

static void *fill_share(void *user)
{
    const struct share *s = user;
    uint64_t columns = s->box->size[3], at = s->begin;
    while (columns > 0 && at < s->end) {
        uint64_t row = at / columns, column = at - row * columns;
        uint64_t n = tsr_min_u64(columns - column, s->end - at);
        fill_run(s->seed, s->piece, row_start(s->box, row) + column, n, s->out, at);
        at += n;
    }
    return NULL;
}

enum { MOST_THREADS = 16, FEWEST_ELEMENTS = 1 << 16 }; /* of a thread: some milliseconds */

/* The first share is the caller's, and those for which there is no thread. */
static void fill_shares(struct share *shares, unsigned n)
{
    pthread_t threads[MOST_THREADS];
    bool is_running[MOST_THREADS] = {false};
    for (unsigned i = 1; i < n; i++)
        is_running[i] = pthread_create(&threads[i], NULL, fill_share, &shares[i]) == 0;
    for (unsigned i = 0; i < n; i++)
        if (!is_running[i])
            fill_share(&shares[i]);
    for (unsigned i = 1; i < n; i++)
        if (is_running[i])
            pthread_join(threads[i], NULL);
}

unsigned tsr_init_threads(uint32_t n_ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t each = cores > 0 && n_ranks > 0 ? (uint64_t)cores / n_ranks : 1;
    return (unsigned)tsr_max_u64(1, tsr_min_u64(each, MOST_THREADS));
}

tsr_status tsr_init_piece(uint64_t seed, const struct tsr_piece *piece, unsigned n_threads,
                          void *out)
{
    struct share shares[MOST_THREADS];
    TSR_TRY(check_piece(piece));
    struct box box = box_of(piece);
    uint64_t total = box.size[0] * box.size[1] * box.size[2] * box.size[3];
    uint64_t most = tsr_min_u64(n_threads, MOST_THREADS);
    unsigned n = (unsigned)tsr_max_u64(1, tsr_min_u64(most, total / FEWEST_ELEMENTS));
    uint64_t each = tsr_ceil_div(total, n);
    for (unsigned i = 0; i < n; i++)
        shares[i] = (struct share){.seed = seed,
                                   .piece = piece,
                                   .box = &box,
                                   .out = out,
                                   .begin = tsr_min_u64(i * each, total),
                                   .end = tsr_min_u64((i + 1) * each, total)};
    fill_shares(shares, n);
    return TSR_OK;
}
