/* softmax_team_real.h: template of softmax.cu. */
#include "exec/kernels/tensor/real.h"

TSR_DEVICE void TSR_R(softmax)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(TSR_R(tsr_kept_bytes)(&k->x, whole));
    TSR_REAL part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        uint64_t seen = row.columns ? tsr_softmax_seen(k, row.number) : 0;
        struct TSR_R(exponentials) e = TSR_R(exponentials_of)(&k->x, &t, &row, seen, stays);
        TSR_REAL factor = 1 / e.sum;
        if (e.sum == 0)
            seen = 0;
        for (unsigned turn = row.turns; turn-- > 0;) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            if (column < seen)
                TSR_R(exponentials_again)
            (&k->x, &t, stays, turn, row.first + column, n, part);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                part[i] = column + i < seen ? TSR_R(exp_of)(part[i] - e.max) * factor : 0;
            TSR_R(tsr_pack_store)(&k->out, row.first + column, n, part);
        }
    }
}

/* out = x - max - log_sum. */
TSR_DEVICE void TSR_R(log_softmax_row)(const struct tsr_softmax *k, const struct tsr_team *t,
                                       const struct tsr_team_row *row, unsigned stays, TSR_REAL max,
                                       TSR_REAL log_sum)
{
    TSR_REAL part[TSR_BLOCK];
    for (unsigned turn = row->turns; turn-- > 0;) {
        uint64_t column = tsr_pack_column(t, row, turn);
        unsigned n = tsr_pack_elements(t, row, column);
        TSR_R(exponentials_again)(&k->x, t, stays, turn, row->first + column, n, part);
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            part[i] = part[i] - max - log_sum;
        TSR_R(tsr_pack_store)(&k->out, row->first + column, n, part);
    }
}

TSR_DEVICE void TSR_R(log_softmax)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(TSR_R(tsr_kept_bytes)(&k->x, whole));
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        struct TSR_R(exponentials) e = TSR_R(exponentials_of)(&k->x, &t, &row, row.columns, stays);
        TSR_R(log_softmax_row)(k, &t, &row, stays, e.max, TSR_M(log)(e.sum));
    }
}

TSR_DEVICE void TSR_R(log_softmax_tp)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        if (row.turns == 0)
            continue;
        TSR_REAL max = TSR_R(tsr_load_one)(&k->max, row.number);
        TSR_REAL log_sum = TSR_M(log)(TSR_R(tsr_load_one)(&k->sum, row.number));
        TSR_R(log_softmax_row)(k, &t, &row, 0, max, log_sum);
    }
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* p (g - sum(g p)). */
TSR_DEVICE void TSR_R(softmax_backward)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(2 * TSR_BLOCK * (unsigned)sizeof(TSR_REAL));
    TSR_REAL g[TSR_BLOCK], p[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        TSR_REAL sum = 0;
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            TSR_R(tsr_pack_load_two)(&k->x, &k->y, row.first + column, n, g, p);
            if (turn < stays) {
                TSR_R(tsr_pack_keep)(2 * turn, g);
                TSR_R(tsr_pack_keep)(2 * turn + 1, p);
            }
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum += g[i] * p[i];
        }
        sum = TSR_R(tsr_team_sum)(&t, sum);
        for (unsigned turn = row.turns; turn-- > 0;) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            if (turn < stays) {
                TSR_R(tsr_pack_kept)(2 * turn, g);
                TSR_R(tsr_pack_kept)(2 * turn + 1, p);
            } else {
                TSR_R(tsr_pack_load_two)(&k->x, &k->y, row.first + column, n, g, p);
            }
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                g[i] = p[i] * (g[i] - sum);
            TSR_R(tsr_pack_store)(&k->out, row.first + column, n, g);
        }
    }
}

/* g - exp(y) sum(g). */
TSR_DEVICE void TSR_R(log_softmax_backward)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(TSR_BLOCK * (unsigned)sizeof(TSR_REAL));
    TSR_REAL g[TSR_BLOCK], y[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        TSR_REAL sum = 0;
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            TSR_R(tsr_pack_load)(&k->x, row.first + column, n, g);
            if (turn < stays)
                TSR_R(tsr_pack_keep)(turn, g);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum += g[i];
        }
        sum = TSR_R(tsr_team_sum)(&t, sum);
        for (unsigned turn = row.turns; turn-- > 0;) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            if (turn < stays)
                TSR_R(tsr_pack_kept)(turn, g);
            else
                TSR_R(tsr_pack_load)(&k->x, row.first + column, n, g);
            TSR_R(tsr_pack_load)(&k->y, row.first + column, n, y);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                g[i] -= TSR_R(tsr_exp)(y[i]) * sum;
            TSR_R(tsr_pack_store)(&k->out, row.first + column, n, g);
        }
    }
}

/* ---- a vocabulary that is cut -----------------------------------------------------------------
 */

TSR_DEVICE void TSR_R(row_max)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    TSR_REAL part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        TSR_REAL max = -(TSR_REAL)INFINITY;
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            TSR_R(tsr_pack_load)(&k->x, row.first + column, n, part);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                max = i < n && !(part[i] <= max) && max == max ? part[i] : max;
        }
        max = TSR_R(tsr_team_max)(&t, max);
        if (row.leads)
            TSR_R(tsr_store)(&k->out, row.number, 1, &max);
    }
}

TSR_DEVICE void TSR_R(row_exp_sum)(const struct tsr_softmax *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    TSR_REAL part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        TSR_REAL sum = 0, max = row.turns ? TSR_R(tsr_load_one)(&k->max, row.number) : 0;
        for (unsigned turn = 0; turn < row.turns && max != -(TSR_REAL)INFINITY; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            TSR_R(tsr_pack_load)(&k->x, row.first + column, n, part);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum += i < n ? TSR_R(tsr_exp)(part[i] - max) : 0;
        }
        sum = TSR_R(tsr_team_sum)(&t, sum);
        if (row.leads)
            TSR_R(tsr_store)(&k->out, row.number, 1, &sum);
    }
}
