/* sums_team_real.h: template of sums.cu. */
#include "exec/kernels/tensor/real.h"

/* Carried in f64. */
TSR_DEVICE void TSR_R(row_sums)(const struct tsr_row_sums *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    TSR_REAL part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        double sum = 0;
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            TSR_R(tsr_pack_load)
            (&k->x, row.first + column, tsr_pack_elements(&t, &row, column), part);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum += (double)part[i];
        }
        TSR_REAL value = (TSR_REAL)(tsr_team_sum_f64(&t, sum) / k->divisor);
        if (row.leads)
            TSR_R(tsr_store)(&k->out, row.number, 1, &value);
    }
}

/* ---- over all elements ------------------------------------------------------------------------
 */

/* What n elements of a and b from `at` on are added as. */
TSR_DEVICE void TSR_R(fold_terms)(const struct tsr_fold_parts *k, const struct tsr_elems *a,
                                  uint64_t at, unsigned n, TSR_REAL *x)
{
    TSR_REAL y[TSR_BLOCK] = {0};
    TSR_R(tsr_pack_load)(a, at, n, x);
    if (k->b.data)
        TSR_R(tsr_pack_load)(&k->b, at, n, y);
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        if (k->op == TSR_FOLD_PRODUCTS)
            x[i] *= y[i];
        else if (k->op == TSR_FOLD_SQUARES)
            x[i] = (x[i] - y[i]) * (x[i] - y[i]);
}

/* Sums in hand go into a double before they are much larger than what is added. */
TSR_DEVICE double TSR_R(fold_total)(TSR_REAL *sum)
{
    double total = 0;
    for (unsigned i = 0; i < TSR_BLOCK; i++) {
        total += (double)sum[i];
        sum[i] = 0;
    }
    return total;
}

#if !TSR_REAL_F64
/* This thread's part of the squares of elements [begin, end) of a tensor whose eights are all whole
 * words: norms of gradients. Words of 16 bytes, four of them on their way at once; the first thread
 * has what is left behind the last one. */
TSR_DEVICE double fold_squares(const struct tsr_elems *a, uint64_t begin, uint64_t end)
{
    float sum[TSR_BLOCK] = {0}, x[TSR_BLOCK];
    uint32_t came[TSR_AHEAD][4];
    double total = 0;
    unsigned threads = tsr_threads(), in_word = 16u / a->item, turns = 0;
    uint64_t words = (end - begin) / in_word;
    const unsigned char *from = a->data + a->item * begin;
    TSR_NO_UNROLL
    for (uint64_t word = tsr_thread(); word < words; word += TSR_AHEAD * (uint64_t)threads) {
        TSR_UNROLL
        for (unsigned u = 0; u < TSR_AHEAD; u++)
            if (word + u * threads < words)
                tsr_get_words(from + 16 * (word + u * threads), came[u]);
        TSR_UNROLL
        for (unsigned u = 0; u < TSR_AHEAD; u++) {
            if (word + u * threads >= words)
                continue;
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                x[i] = i < 4 ? tsr_bits_float(came[u][i % 4]) : 0;
            if (in_word == TSR_BLOCK)
                tsr_narrow_open(came[u], a->dtype, x);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                sum[i] += x[i] * x[i];
        }
        if (++turns % 16 == 0)
            total += fold_total_f32(sum);
    }
    for (uint64_t at = begin + words * in_word; at < end && tsr_thread() == 0; at++)
        sum[0] += tsr_load_one_f32(a, at) * tsr_load_one_f32(a, at);
    return total + fold_total_f32(sum);
}
#endif

/* The same of any elements. */
TSR_DEVICE double TSR_R(fold_any)(const struct tsr_fold_parts *k, const struct tsr_elems *a,
                                  uint64_t begin, uint64_t end)
{
    TSR_REAL sum[TSR_BLOCK] = {0}, x[TSR_BLOCK];
    double total = 0;
    unsigned turns = 0;
    TSR_NO_UNROLL
    for (uint64_t at = begin + (uint64_t)tsr_thread() * TSR_BLOCK; at < end;
         at += (uint64_t)tsr_threads() * TSR_BLOCK) {
        TSR_R(fold_terms)(k, a, at, end - at < TSR_BLOCK ? (unsigned)(end - at) : TSR_BLOCK, x);
        for (unsigned i = 0; i < TSR_BLOCK; i++)
            sum[i] += x[i];
        if (++turns % 32 == 0)
            total += TSR_R(fold_total)(sum);
    }
    return total + TSR_R(fold_total)(sum);
}

TSR_DEVICE void TSR_R(fold_parts)(const struct tsr_fold_parts *k)
{
    uint32_t block = (uint32_t)tsr_block_x(), low = 0, high = k->n;
    while (high - low > 1) { /* the last tensor that begins at this chunk or before */
        uint32_t middle = (low + high) / 2;
        if (k->first[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    const struct tsr_elems *a = &k->a[low];
    uint64_t begin = (block - k->first[low]) * k->chunk, end = begin + k->chunk;
    double total;
    end = end < a->n ? end : a->n;
#if !TSR_REAL_F64
    if (k->op == TSR_FOLD_SQUARES && !k->b.data && tsr_rows_are_words(a, TSR_BLOCK))
        total = fold_squares(a, begin, end);
    else
#endif
        total = TSR_R(fold_any)(k, a, begin, end);
    total = tsr_block_sum_f64(total);
    if (tsr_thread() == 0)
        k->parts[block] = total;
}
