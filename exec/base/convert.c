/* convert.c: conversions by way of f32, a block at a time; transposition by tiles. */
#include "exec/base/convert.h"

#include "exec/base/numeric.h"

enum { BLOCK = 1024, TILE = 32 };

/* fp8 is simulated, not executed. */
static bool has_values(tsr_dtype dtype)
{
    return tsr_dtype_is_float(dtype) && dtype != TSR_F8;
}

bool tsr_can_convert(tsr_dtype from, tsr_dtype to)
{
    return from != TSR_DTYPE_NONE && (from == to || (has_values(from) && has_values(to)));
}

static void load(tsr_dtype dtype, const char *in, float *out, size_t n)
{
    uint16_t half;
    double wide;
    switch (dtype) {
    case TSR_BF16:
    case TSR_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, in + 2 * i, 2);
            out[i] = dtype == TSR_BF16 ? tsr_from_bf16(half) : tsr_from_f16(half);
        }
        return;
    case TSR_F64:
        for (size_t i = 0; i < n; i++) {
            memcpy(&wide, in + 8 * i, 8);
            out[i] = (float)wide;
        }
        return;
    default:
        memcpy(out, in, 4 * n);
    }
}

static void store(tsr_dtype dtype, const float *in, char *out, size_t n)
{
    uint16_t half;
    double wide;
    switch (dtype) {
    case TSR_BF16:
    case TSR_F16:
        for (size_t i = 0; i < n; i++) {
            half = dtype == TSR_BF16 ? tsr_to_bf16(in[i]) : tsr_to_f16(in[i]);
            memcpy(out + 2 * i, &half, 2);
        }
        return;
    case TSR_F64:
        for (size_t i = 0; i < n; i++) {
            wide = in[i];
            memcpy(out + 8 * i, &wide, 8);
        }
        return;
    default:
        memcpy(out, in, 4 * n);
    }
}

void tsr_convert(tsr_dtype from, const void *in, tsr_dtype to, void *out, uint64_t n)
{
    float block[BLOCK];
    unsigned a = tsr_dtype_bytes(from), b = tsr_dtype_bytes(to);
    if (from == to) {
        if (n)
            memcpy(out, in, (size_t)n * a);
        return;
    }
    for (uint64_t at = 0; at < n; at += BLOCK) {
        size_t m = (size_t)tsr_min_u64(BLOCK, n - at);
        load(from, (const char *)in + at * a, block, m);
        store(to, block, (char *)out + at * b, m);
    }
}

static void transpose_tile(const char *in, char *out, const uint64_t at[2], const uint64_t size[2],
                           unsigned bytes)
{
    uint64_t r_end = tsr_min_u64(at[0] + TILE, size[0]), c_end = tsr_min_u64(at[1] + TILE, size[1]);
    for (uint64_t c = at[1]; c < c_end; c++)
        for (uint64_t r = at[0]; r < r_end; r++)
            memcpy(out + (c * size[0] + r) * bytes, in + (r * size[1] + c) * bytes, bytes);
}

void tsr_transpose(const void *in, uint64_t rows, uint64_t columns, unsigned bytes, void *out)
{
    const uint64_t size[2] = {rows, columns};
    for (uint64_t r = 0; r < rows; r += TILE)
        for (uint64_t c = 0; c < columns; c += TILE)
            transpose_tile(in, out, (uint64_t[]){r, c}, size, bytes);
}
