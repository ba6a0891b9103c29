/* exponentials_real.h: template of softmax.cu and loss.cu: the largest element of a row and the sum
 * of exp(x - max), in one pass.
 */
#include "exec/kernels/real.h"

struct TSR_R(exponentials) {
    TSR_REAL max, sum; /* so far; masked elements are -infinity and count as 0 */
};

/* Adds n elements. */
TSR_DEVICE void TSR_R(exponentials_add)(struct TSR_R(exponentials) * e, const TSR_REAL *x,
                                        unsigned n)
{
    TSR_REAL max = e->max, none = -(TSR_REAL)INFINITY;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        max = i < n && x[i] > max ? x[i] : max;
    TSR_REAL shift = max == none ? 0 : max, sum = 0;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        sum += i < n ? TSR_R(tsr_exp)(x[i] - shift) : 0;
    e->sum = e->max == none ? sum : e->sum * TSR_R(tsr_exp)(e->max - max) + sum;
    e->max = max;
}

/* Of all threads of the team. A NaN makes the sum one. */
TSR_DEVICE struct TSR_R(exponentials)
    TSR_R(exponentials_fold)(const struct tsr_team *t, struct TSR_R(exponentials) e)
{
    TSR_REAL none = -(TSR_REAL)INFINITY, max = TSR_R(tsr_team_max)(t, e.max);
    if (e.max != none)
        e.sum *= TSR_R(tsr_exp)(e.max - max);
    e.sum = TSR_R(tsr_team_sum)(t, e.sum);
    e.max = max;
    return e;
}

/* Of the first `seen` columns of a row; the next pack is on its way while one is added. kept: packs
 * stay in shared memory. */
TSR_DEVICE struct TSR_R(exponentials)
    TSR_R(exponentials_of)(const struct tsr_elems *x, const struct tsr_team *t,
                           const struct tsr_row *row, uint64_t seen, bool kept)
{
    struct TSR_R(exponentials) e = {-(TSR_REAL)INFINITY, 0};
    struct TSR_R(tsr_fetched) next;
    TSR_REAL part[TSR_BLOCK];
    uint64_t column = tsr_pack_column(t, row, 0);
    unsigned turn = 0, n = tsr_pack_elements(t, row, column);
    bool more = row->turns > 0 && column < seen;
    if (more)
        next = TSR_R(tsr_pack_fetch)(x, row->first + column, n);
    while (more) {
        struct TSR_R(tsr_fetched) now = next;
        unsigned counted = seen - column < n ? (unsigned)(seen - column) : n;
        uint64_t after = tsr_pack_column(t, row, turn + 1);
        n = tsr_pack_elements(t, row, after);
        more = turn + 1 < row->turns && after < seen;
        if (more)
            next = TSR_R(tsr_pack_fetch)(x, row->first + after, n);
        TSR_R(tsr_pack_open)(&now, part);
        if (kept)
            TSR_R(tsr_pack_keep)(turn, part);
        TSR_R(exponentials_add)(&e, part, counted);
        column = after;
        turn++;
    }
    return TSR_R(exponentials_fold)(t, e);
}

/* A pack of the second pass. */
TSR_DEVICE void TSR_R(pack_again)(const struct tsr_elems *x, bool kept, unsigned turn, uint64_t at,
                                  unsigned n, TSR_REAL *part)
{
    if (kept)
        TSR_R(tsr_pack_kept)(turn, part);
    else
        TSR_R(tsr_pack_load)(x, at, n, part);
}
