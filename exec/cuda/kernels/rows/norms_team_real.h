/* norms_team_real.h: template of norms.cu. */
#include "exec/kernels/tensor/real.h"

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Makes x = a + delta of what has come of a, n elements from `at` on, and writes it. */
TSR_DEVICE void TSR_R(norm_add)(const struct tsr_norm *k, uint64_t at, unsigned n,
                                const struct TSR_R(tsr_fetched) * a, TSR_REAL *x)
{
    TSR_REAL delta[TSR_BLOCK];
    TSR_R(tsr_pack_load)(&k->delta, at, n, delta);
    TSR_R(tsr_pack_open)(a, x);
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        x[i] += delta[i];
    TSR_R(tsr_pack_store)(&k->x, at, n, x);
    TSR_R(tsr_pack_round)(&k->x, x);
}

/* A pack of the second pass. */
TSR_DEVICE void TSR_R(norm_again)(const struct tsr_norm *k, unsigned stays, unsigned turn,
                                  uint64_t at, unsigned n, TSR_REAL *x)
{
    if (turn < stays)
        TSR_R(tsr_pack_kept)(turn, x);
    else
        TSR_R(tsr_pack_load)(&k->x, at, n, x);
}

/* Mean and 1 / sqrt(mean of squares of what is left). */
TSR_DEVICE void TSR_R(norm_statistics)(const struct tsr_norm *k, const struct tsr_team *t,
                                       const struct tsr_team_row *row, unsigned stays,
                                       TSR_REAL *mean, TSR_REAL *rstd)
{
    TSR_REAL x[TSR_BLOCK], sum = 0, squares = 0, columns = (TSR_REAL)k->shape.columns;
    const struct tsr_elems *from = k->a.data ? &k->a : &k->x;
    struct TSR_R(tsr_fetched) next;
    uint64_t after = tsr_pack_column(t, row, 0);
    if (row->turns > 0)
        next = TSR_R(tsr_pack_fetch)(from, row->first + after, tsr_pack_elements(t, row, after));
    for (unsigned turn = 0; turn < row->turns; turn++) { /* the next pack is on its way */
        struct TSR_R(tsr_fetched) now = next;
        uint64_t column = after;
        after = tsr_pack_column(t, row, turn + 1);
        if (turn + 1 < row->turns)
            next =
                TSR_R(tsr_pack_fetch)(from, row->first + after, tsr_pack_elements(t, row, after));
        if (k->a.data)
            TSR_R(norm_add)(k, row->first + column, tsr_pack_elements(t, row, column), &now, x);
        else
            TSR_R(tsr_pack_open)(&now, x);
        if (turn < stays)
            TSR_R(tsr_pack_keep)(turn, x);
        for (unsigned i = 0; i < TSR_BLOCK; i++) {
            sum += x[i];
            squares += x[i] * x[i];
        }
    }
    *mean = 0;
    if (k->centered) {
        *mean = TSR_R(tsr_team_sum)(t, sum) / columns;
        squares = 0;
        for (unsigned turn = 0; turn < row->turns; turn++) {
            uint64_t column = tsr_pack_column(t, row, turn);
            unsigned n = tsr_pack_elements(t, row, column);
            TSR_R(norm_again)(k, stays, turn, row->first + column, n, x);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                squares += i < n ? (x[i] - *mean) * (x[i] - *mean) : 0;
        }
    }
    *rstd = 1 / TSR_M(sqrt)(TSR_R(tsr_team_sum)(t, squares) / columns + (TSR_REAL)k->eps);
}

TSR_DEVICE void TSR_R(norm)(const struct tsr_norm *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(TSR_BLOCK * (unsigned)sizeof(TSR_REAL));
    TSR_REAL mean, rstd, x[TSR_BLOCK], w[TSR_BLOCK], b[TSR_BLOCK] = {0};
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        TSR_R(norm_statistics)(k, &t, &row, stays, &mean, &rstd);
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            TSR_R(norm_again)(k, stays, turn, row.first + column, n, x);
            TSR_R(tsr_pack_load)(&k->w, column, n, w);
            if (k->centered)
                TSR_R(tsr_pack_load)(&k->b, column, n, b);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                x[i] = (x[i] - mean) * rstd * w[i] + b[i];
            TSR_R(tsr_pack_store)(&k->y, row.first + column, n, x);
        }
        if (row.leads && k->mean.data)
            TSR_R(tsr_store)(&k->mean, row.number, 1, &mean);
        if (row.leads && k->rstd.data)
            TSR_R(tsr_store)(&k->rstd, row.number, 1, &rstd);
    }
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* u = the normalized x, v = g w; of_row: mean and rstd. Behind the n-th element v is 0. */
TSR_DEVICE void TSR_R(norm_slopes)(const struct tsr_norm *k, const struct tsr_team_row *row,
                                   uint64_t column, unsigned n, const TSR_REAL *of_row, TSR_REAL *u,
                                   TSR_REAL *v)
{
    TSR_REAL w[TSR_BLOCK];
    struct TSR_R(tsr_fetched) of_w = TSR_R(tsr_pack_fetch)(&k->w, column, n);
    TSR_R(tsr_pack_load_two)(&k->x, &k->g, row->first + column, n, u, v);
    TSR_R(tsr_pack_open)(&of_w, w);
    for (unsigned i = 0; i < TSR_BLOCK; i++) {
        u[i] = (u[i] - of_row[0]) * of_row[1];
        v[i] *= w[i];
    }
}

/* gx = rstd (v - mean(v) - u mean(u v)) + gh; means: of v and of u v. */
TSR_DEVICE void TSR_R(norm_input_row)(const struct tsr_norm *k, const struct tsr_team *t,
                                      const struct tsr_team_row *row, unsigned stays,
                                      const TSR_REAL *of_row, const TSR_REAL *means)
{
    TSR_REAL u[TSR_BLOCK], v[TSR_BLOCK];
    for (unsigned turn = 0; turn < row->turns; turn++) {
        uint64_t column = tsr_pack_column(t, row, turn);
        unsigned n = tsr_pack_elements(t, row, column);
        struct TSR_R(tsr_fetched) gh;
        if (k->gh.data)
            gh = TSR_R(tsr_pack_fetch)(&k->gh, row->first + column, n);
        if (turn < stays) {
            TSR_R(tsr_pack_kept)(2 * turn, u);
            TSR_R(tsr_pack_kept)(2 * turn + 1, v);
        } else {
            TSR_R(norm_slopes)(k, row, column, n, of_row, u, v);
        }
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            v[i] = of_row[1] * (v[i] - means[0] - u[i] * means[1]);
        if (k->gh.data) {
            TSR_R(tsr_pack_open)(&gh, u);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                v[i] += u[i];
        }
        TSR_R(tsr_pack_store)(&k->gx, row->first + column, n, v);
    }
}

TSR_DEVICE void TSR_R(norm_backward)(const struct tsr_norm *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(2 * TSR_BLOCK * (unsigned)sizeof(TSR_REAL));
    TSR_REAL u[TSR_BLOCK], v[TSR_BLOCK], columns = (TSR_REAL)k->shape.columns;
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        TSR_REAL of_row[2] = {0, 0}, sums[2] = {0, 0};
        if (row.turns && k->centered)
            of_row[0] = TSR_R(tsr_load_one)(&k->mean, row.number);
        if (row.turns)
            of_row[1] = TSR_R(tsr_load_one)(&k->rstd, row.number);
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            TSR_R(norm_slopes)(k, &row, column, tsr_pack_elements(&t, &row, column), of_row, u, v);
            if (turn < stays) {
                TSR_R(tsr_pack_keep)(2 * turn, u);
                TSR_R(tsr_pack_keep)(2 * turn + 1, v);
            }
            for (unsigned i = 0; i < TSR_BLOCK; i++) {
                sums[0] += v[i];
                sums[1] += u[i] * v[i];
            }
        }
        sums[0] = k->centered ? TSR_R(tsr_team_sum)(&t, sums[0]) / columns : 0;
        sums[1] = TSR_R(tsr_team_sum)(&t, sums[1]) / columns;
        TSR_R(norm_input_row)(k, &t, &row, stays, of_row, sums);
    }
}
