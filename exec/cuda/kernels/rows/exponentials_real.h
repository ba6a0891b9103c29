/* exponentials_real.h: template of softmax.cu and loss.cu: the largest element of a row and the sum
 * of exp(x - max), in one pass. Exponentials are powers of 2, of which a GPU has an instruction.
 */
#include "exec/kernels/tensor/real.h"

struct TSR_R(exponentials) {
    TSR_REAL max, sum; /* so far; masked elements are -infinity and count as 0 */
};

/* exp(x) of what is not much above 0. */
TSR_DEVICE TSR_REAL TSR_R(exp_of)(TSR_REAL x)
{
    return TSR_R(tsr_exp2)(x * (TSR_REAL)1.4426950408889634);
}

/* Adds the first n elements. */
TSR_DEVICE void TSR_R(exponentials_add)(struct TSR_R(exponentials) * e, TSR_REAL *x, unsigned n)
{
    TSR_REAL max = e->max, none = -(TSR_REAL)INFINITY;
    if (n < TSR_BLOCK) /* the end of a row */
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            x[i] = i < n ? x[i] : none;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        max = TSR_M(fmax)(max, x[i]);
    TSR_REAL shift = max == none ? 0 : max, sum = 0;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        sum += TSR_R(exp_of)(x[i] - shift);
    e->sum = e->max == none ? sum : e->sum * TSR_R(exp_of)(e->max - max) + sum;
    e->max = max;
}

/* Of all threads of the team. A NaN makes the sum one. */
TSR_DEVICE struct TSR_R(exponentials)
    TSR_R(exponentials_fold)(const struct tsr_team *t, struct TSR_R(exponentials) e)
{
    TSR_REAL none = -(TSR_REAL)INFINITY, max = TSR_R(tsr_team_max)(t, e.max);
    if (e.max != none)
        e.sum *= TSR_R(exp_of)(e.max - max);
    e.sum = TSR_R(tsr_team_sum)(t, e.sum);
    e.max = max;
    return e;
}

#if !TSR_REAL_F64
/* Packs of 16 bits, several on their way at once: a multiprocessor that has one long row needs as
 * many to keep the memory busy. They stay as they came. */
TSR_DEVICE void exponentials_narrow(struct exponentials_f32 *e, const struct tsr_elems *x,
                                    const struct tsr_team *t, const struct tsr_team_row *row,
                                    uint64_t seen, unsigned turns, unsigned stays)
{
    uint32_t came[TSR_AHEAD][4];
    float part[TSR_BLOCK];
    uint64_t column = tsr_pack_column(t, row, 0),
             last = (uint64_t)(turns - 1) * t->size * TSR_BLOCK;
    unsigned step = 2 * TSR_BLOCK * t->size; /* only the last pack may be seen in part */
    unsigned rest = seen - column - last < TSR_BLOCK ? (unsigned)(seen - column - last) : TSR_BLOCK;
    const unsigned char *from = x->data + 2 * (row->first + column);
    TSR_NO_UNROLL
    for (unsigned turn = 0; turn < turns; turn += TSR_AHEAD, from += TSR_AHEAD * step) {
        TSR_UNROLL
        for (unsigned a = 0; a < TSR_AHEAD; a++)
            if (turn + a < turns)
                tsr_get_words(from + a * step, came[a]);
        TSR_UNROLL
        for (unsigned a = 0; a < TSR_AHEAD; a++) {
            if (turn + a >= turns)
                continue;
            if (turn + a < stays)
                tsr_put_words(tsr_narrow_place(turn + a), came[a]);
            tsr_narrow_open(came[a], x->dtype, part);
            exponentials_add_f32(e, part, turn + a + 1 < turns ? TSR_BLOCK : rest);
        }
    }
}
#endif

/* Of the first `seen` columns of a row. The first `stays` packs stay in shared memory. */
TSR_DEVICE struct TSR_R(exponentials)
    TSR_R(exponentials_of)(const struct tsr_elems *x, const struct tsr_team *t,
                           const struct tsr_team_row *row, uint64_t seen, unsigned stays)
{
    struct TSR_R(exponentials) e = {-(TSR_REAL)INFINITY, 0};
    TSR_REAL part[TSR_BLOCK];
    unsigned turns = seen == row->columns ? row->turns : tsr_turns_to(t, row->before, seen);
#if !TSR_REAL_F64
    if (tsr_is_narrow(x, t->whole) && turns > 0) {
        exponentials_narrow(&e, x, t, row, seen, turns, stays);
        turns = 0;
    }
#endif
    for (unsigned turn = 0; turn < turns; turn++) {
        uint64_t column = tsr_pack_column(t, row, turn);
        unsigned n = tsr_pack_elements(t, row, column);
        TSR_R(tsr_pack_load)(x, row->first + column, n, part);
        if (turn < stays)
            TSR_R(tsr_pack_keep)(turn, part);
        TSR_R(exponentials_add)(&e, part, seen - column < n ? (unsigned)(seen - column) : n);
    }
    return TSR_R(exponentials_fold)(t, e);
}

/* A pack of the second pass. */
TSR_DEVICE void TSR_R(exponentials_again)(const struct tsr_elems *x, const struct tsr_team *t,
                                          unsigned stays, unsigned turn, uint64_t at, unsigned n,
                                          TSR_REAL *part)
{
#if !TSR_REAL_F64
    if (tsr_is_narrow(x, t->whole) && turn < stays) {
        uint32_t words[4];
        tsr_get_words(tsr_narrow_place(turn), words);
        tsr_narrow_open(words, x->dtype, part);
        return;
    }
#else
    (void)t;
#endif
    if (turn < stays)
        TSR_R(tsr_pack_kept)(turn, part);
    else
        TSR_R(tsr_pack_load)(x, at, n, part);
}
