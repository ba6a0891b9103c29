/* scratch.c: how much device memory library kernels take for themselves: column sums, attention,
 * sorting.
 */
#include "engine/ops/ops_common.h"

/* ---- column sums ----------------------------------------------------------------------------- */

static uint64_t last_power_of_2(uint64_t x)
{
    uint64_t p = 1;
    while (p <= x / 2)
        p *= 2;
    return p;
}

static uint64_t at_least_1(uint64_t x)
{
    return x ? x : 1;
}

/* Threads of a block: `wide` along the columns, `high` along the rows. */
struct block {
    uint64_t vector, wide, high;
};

static struct block block_of(uint64_t n_in, uint64_t out)
{
    struct block b = {.vector = out % 4 == 0 ? 4 : out % 2 == 0 ? 2 : 1};
    uint64_t most = 512 / b.vector;
    uint64_t p0 = tsr_min_u64(last_power_of_2(at_least_1(out / b.vector)), most);
    uint64_t p1 = tsr_min_u64(last_power_of_2(at_least_1(n_in)), most);
    b.wide = tsr_min_u64(p0, 32);
    b.high = tsr_min_u64(p1, most / b.wide);
    b.wide = tsr_min_u64(p0, most / b.high);
    return b;
}

struct tsr_column_sum tsr__column_sum_scratch(uint64_t n_in, uint64_t out)
{
    struct tsr_column_sum none = {0, 0};
    struct block b = block_of(n_in, out);
    uint64_t per_thread = n_in;
    if (per_thread < tsr_min_u64(16 * b.high, 256))
        return none;
    per_thread = tsr_ceil_div(n_in, b.high);
    uint64_t grid = tsr_ceil_div(at_least_1(out / b.vector), b.wide);
    uint64_t target = TSR_MULTIPROCESSORS * (2048 / (b.wide * b.high));
    if (per_thread < 256 || grid > target)
        return none;
    uint64_t by_grid = tsr_ceil_div(target, grid), by_work = tsr_ceil_div(per_thread, 16);
    uint64_t blocks = tsr_max_u64(tsr_min_u64(by_grid, by_work), tsr_ceil_div(per_thread, 256));
    if (blocks <= 1)
        return none;
    return (struct tsr_column_sum){4 * out * blocks * b.wide * b.vector, 4 * grid};
}

/* ---- attention ------------------------------------------------------------------------------- */

static uint64_t keys_per_block(uint64_t head_dim)
{
    return head_dim <= 64 ? 256 : head_dim <= 128 ? 128 : 64;
}

uint64_t tsr__flash_splits(uint64_t batch, uint64_t heads, uint64_t seq, uint64_t head_dim)
{
    enum { SLOTS = 2 * TSR_MULTIPROCESSORS, MOST = 128 };
    uint64_t blocks = batch * heads * tsr_ceil_div(seq, 64);
    if ((double)blocks >= 0.8 * SLOTS)
        return 1;
    uint64_t n = tsr_ceil_div(seq, keys_per_block(head_dim));
    uint64_t most = tsr_min_u64(tsr_min_u64(MOST, SLOTS), n);
    float efficiency[MOST + 1], best = 0;
    for (uint64_t k = 1; k <= most; k++) {
        efficiency[k] = 0; /* as many key blocks per piece as with one piece fewer: not eligible */
        if (k > 1 && tsr_ceil_div(n, k) == tsr_ceil_div(n, k - 1))
            continue;
        float waves = (float)(blocks * k) / SLOTS;
        float whole = (float)tsr_ceil_div(blocks * k, SLOTS);
        efficiency[k] = waves / whole;
        if (efficiency[k] > best)
            best = efficiency[k];
    }
    for (uint64_t k = 1; k <= most; k++)
        if (efficiency[k] > 0 && efficiency[k] >= 0.85F * best)
            return k;
    return 1;
}

uint64_t tsr__flash_head_dim(uint64_t head_dim)
{
    return tsr_round_up(head_dim, head_dim <= 128 ? 32 : 64);
}

/* Into how many pieces the kernel cuts the keys where it needs room for dK and dV of each. */
static uint64_t key_splits(uint64_t batch_heads, uint64_t seq)
{
    uint64_t blocks = tsr_ceil_div(seq, 64);
    if (batch_heads >= 256 && seq <= 128)
        blocks = 1;
    return tsr_max_u64(tsr_min_u64(blocks, 200 / batch_heads), 1);
}

uint64_t tsr__efficient_accumulator(uint64_t batch, uint64_t heads, uint64_t seq, uint64_t head_dim,
                                    bool wide)
{
    uint64_t rows = 64, columns = 64, extra = 0;
    if (head_dim > 64)
        rows = 128;
    if (head_dim > 64 && head_dim <= 128 && !wide)
        columns = 128;
    if (head_dim > 128 && !wide) /* dK and dV are accumulated in fp32 as well */
        extra = 8 * 64 * key_splits(batch * heads, seq) * tsr_round_up(head_dim, 128);
    uint64_t tiles = tsr_ceil_div(seq, rows) * tsr_ceil_div(head_dim, columns);
    return batch * heads * (tiles * (4 * rows * columns + 16) + extra);
}

/* ---- embedding backward ---------------------------------------------------------------------- */

uint64_t tsr__sort_scratch(uint64_t tokens)
{
    return 2 * tsr_round_up(8 * tokens, 256) + 256 * (66 + 4 * tsr_ceil_div(tokens, 4608)) - 1;
}

uint64_t tsr__scan_scratch(uint64_t n)
{
    return 256 * (4 + tsr_ceil_div(tsr_ceil_div(n, 896), 16)) - 1;
}

uint64_t tsr__unique_scratch(uint64_t tokens)
{
    return 256 * (4 + tsr_ceil_div(tsr_ceil_div(tokens, 4480), 16)) - 1;
}

/* ---- backward of a norm ---------------------------------------------------------------------- */

uint64_t tsr__norm_row_blocks(uint64_t rows, uint64_t columns)
{
    if (rows <= 65536 || columns / 32 >= TSR_MULTIPROCESSORS / 2)
        return 0;
    return tsr_min_u64(32768 / at_least_1(tsr_ceil_div(columns, 32)), tsr_ceil_div(rows, 32));
}
