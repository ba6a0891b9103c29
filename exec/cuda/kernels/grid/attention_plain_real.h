/* attention_plain_real.h: template of attention.cu. */
#include "exec/kernels/tensor/real.h"

/* A head, and where its tiles lie. */
struct TSR_R(attention_block) {
    const struct tsr_attention_operands *a;
    unsigned side, dim, pitch; /* pitch: of rows in shared memory, odd for even dims */
    uint64_t b, h, kv;
    TSR_REAL *tiles[6], *p, *s; /* scores have rows of side + 1 */
    TSR_REAL *of_row[3];        /* side numbers each */
};

TSR_DEVICE struct TSR_R(attention_block) TSR_R(attention_open)(const struct tsr_plain_attention *k)
{
    struct TSR_R(attention_block) x;
    TSR_REAL *at = (TSR_REAL *)tsr_dynamic_shared();
    x.a = &k->a;
    x.side = k->side;
    x.dim = (unsigned)k->a.dim;
    x.pitch = x.dim + 1;
    for (unsigned i = 0; i < 6; i++, at += x.side * x.pitch)
        x.tiles[i] = at;
    x.p = at;
    x.s = at + x.side * (x.side + 1);
    for (unsigned i = 0; i < 3; i++)
        x.of_row[i] = at + 2 * x.side * (x.side + 1) + i * x.side;
    x.b = x.h = x.kv = 0;
    return x;
}

/* Rows [t, t + side) of a head; zeros beyond the last. */
TSR_DEVICE void TSR_R(attention_load)(const struct TSR_R(attention_block) * x,
                                      const struct tsr_elems *e, uint64_t heads, uint64_t head,
                                      uint64_t rows, uint64_t t, TSR_REAL *tile)
{
    unsigned parts = (x->dim + TSR_CUDA_ITEMS - 1) / TSR_CUDA_ITEMS;
    for (unsigned c = tsr_thread(); c < x->side * parts; c += tsr_threads()) {
        unsigned r = c / parts, d = c % parts * TSR_CUDA_ITEMS;
        unsigned n = x->dim - d < TSR_CUDA_ITEMS ? x->dim - d : TSR_CUDA_ITEMS;
        TSR_REAL items[TSR_CUDA_ITEMS] = {0};
        if (t + r < rows)
            TSR_R(tsr_load)
        (e, tsr_attention_row(x->a, heads, rows, x->b, head, t + r) + d, n, items);
        TSR_UNROLL
        for (unsigned i = 0; i < TSR_CUDA_ITEMS; i++)
            if (i < n)
                tile[r * x->pitch + d + i] = items[i];
    }
}

/* The reverse, times a factor. */
TSR_DEVICE void TSR_R(attention_store)(const struct TSR_R(attention_block) * x,
                                       const struct tsr_elems *e, uint64_t heads, uint64_t head,
                                       uint64_t rows, uint64_t t, const TSR_REAL *tile,
                                       TSR_REAL factor)
{
    unsigned parts = (x->dim + TSR_CUDA_ITEMS - 1) / TSR_CUDA_ITEMS;
    for (unsigned c = tsr_thread(); c < x->side * parts; c += tsr_threads()) {
        unsigned r = c / parts, d = c % parts * TSR_CUDA_ITEMS;
        unsigned n = x->dim - d < TSR_CUDA_ITEMS ? x->dim - d : TSR_CUDA_ITEMS;
        TSR_REAL items[TSR_CUDA_ITEMS];
        TSR_UNROLL
        for (unsigned i = 0; i < TSR_CUDA_ITEMS; i++)
            items[i] = i < n ? factor * tile[r * x->pitch + d + i] : 0;
        if (t + r < rows)
            TSR_R(tsr_store)
        (e, tsr_attention_row(x->a, heads, rows, x->b, head, t + r) + d, n, items);
    }
}

TSR_DEVICE void TSR_R(attention_zero)(const struct TSR_R(attention_block) * x, TSR_REAL *tile)
{
    for (unsigned e = tsr_thread(); e < x->side * x->pitch; e += tsr_threads())
        tile[e] = 0;
}

/* A matrix in shared memory: element (i, p) at i * i_step + p * p_step. */
struct TSR_R(attention_factor) {
    const TSR_REAL *at;
    unsigned i_step, p_step;
};

/* out (side, n) = a (side, k) b (n, k)^T, or added to it. A thread has four rows of a column. */
TSR_DEVICE void TSR_R(attention_product)(unsigned side, unsigned n, unsigned k,
                                         struct TSR_R(attention_factor) a,
                                         struct TSR_R(attention_factor) b, TSR_REAL *out,
                                         unsigned pitch, bool add)
{
    for (unsigned e = tsr_thread(); e < side / 4 * n; e += tsr_threads()) {
        unsigned i = e / n * 4, j = e % n;
        const TSR_REAL *of_a = a.at + i * a.i_step, *of_b = b.at + j * b.i_step;
        TSR_REAL sum[4] = {0};
        for (unsigned p = 0; p < k; p++, of_a += a.p_step, of_b += b.p_step)
            for (unsigned r = 0; r < 4; r++)
                sum[r] += of_a[r * a.i_step] * *of_b;
        for (unsigned r = 0; r < 4; r++)
            out[(i + r) * pitch + j] = sum[r] + (add ? out[(i + r) * pitch + j] : 0);
    }
}

/* x y^T of two tiles of rows: scores. */
TSR_DEVICE void TSR_R(attention_scores)(const struct TSR_R(attention_block) * x,
                                        const TSR_REAL *of_i, const TSR_REAL *of_j, TSR_REAL *out)
{
    const struct TSR_R(attention_factor) a = {of_i, x->pitch, 1}, b = {of_j, x->pitch, 1};
    TSR_R(attention_product)(x->side, x->side, x->dim, a, b, out, x->side + 1, false);
}

/* out += w y, or w^T y: rows weighed by scores. */
TSR_DEVICE void TSR_R(attention_weigh)(const struct TSR_R(attention_block) * x, const TSR_REAL *w,
                                       bool transposed, const TSR_REAL *y, TSR_REAL *out)
{
    unsigned row = x->side + 1;
    const struct TSR_R(attention_factor) a = {w, transposed ? 1 : row, transposed ? row : 1},
                                         b = {y, 1, x->pitch};
    TSR_R(attention_product)(x->side, x->dim, x->side, a, b, out, x->pitch, true);
}

TSR_DEVICE bool TSR_R(attention_sees)(const struct tsr_attention_operands *a, uint64_t i,
                                      uint64_t j)
{
    return i < a->queries && j < a->keys && (!a->causal || j <= i);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Scores of queries from i and keys from j on become exp(score - max); what was summed before is
 * made smaller by exp(old max - max). of_row: max, sum, that factor. */
TSR_DEVICE void TSR_R(attention_soften)(const struct TSR_R(attention_block) * x, uint64_t i,
                                        uint64_t j)
{
    TSR_REAL scale = (TSR_REAL)x->a->scale, *out = x->tiles[3];
    for (unsigned r = tsr_thread(); r < x->side; r += tsr_threads()) {
        TSR_REAL old = x->of_row[0][r], max = old;
        for (unsigned c = 0; c < x->side; c++) {
            TSR_REAL *s = &x->p[r * (x->side + 1) + c];
            *s = TSR_R(attention_sees)(x->a, i + r, j + c) ? *s * scale : -(TSR_REAL)INFINITY;
            max = *s > max ? *s : max;
        }
        x->of_row[0][r] = max;
        x->of_row[2][r] = max == -(TSR_REAL)INFINITY ? 1 : TSR_R(tsr_exp)(old - max);
    }
    tsr_sync();
    for (unsigned e = tsr_thread(); e < x->side * x->side; e += tsr_threads()) {
        unsigned r = e / x->side;
        TSR_REAL *s = &x->p[r * (x->side + 1) + e % x->side];
        *s = *s == -(TSR_REAL)INFINITY ? 0 : TSR_R(tsr_exp)(*s - x->of_row[0][r]);
    }
    for (unsigned e = tsr_thread(); e < x->side * x->pitch; e += tsr_threads())
        out[e] *= x->of_row[2][e / x->pitch];
    tsr_sync();
    for (unsigned r = tsr_thread(); r < x->side; r += tsr_threads()) {
        TSR_REAL sum = 0;
        for (unsigned c = 0; c < x->side; c++)
            sum += x->p[r * (x->side + 1) + c];
        x->of_row[1][r] = x->of_row[1][r] * x->of_row[2][r] + sum;
    }
}

/* Results of queries from i on, and their lse. */
TSR_DEVICE void TSR_R(attention_finish)(const struct TSR_R(attention_block) * x, uint64_t i)
{
    const struct tsr_attention_operands *a = x->a;
    uint64_t head = (x->b * a->heads + x->h) * a->lse_row;
    const TSR_REAL padding = (TSR_REAL)INFINITY;
    for (unsigned e = tsr_thread(); e < x->side * x->pitch; e += tsr_threads())
        if (x->of_row[1][e / x->pitch] > 0)
            x->tiles[3][e] /= x->of_row[1][e / x->pitch];
    for (unsigned r = tsr_thread(); r < x->side; r += tsr_threads()) {
        TSR_REAL lse = x->of_row[0][r] + TSR_M(log)(x->of_row[1][r]);
        if (i + r < a->queries)
            TSR_R(tsr_store)(&a->lse, head + i + r, 1, &lse);
    }
    if (i + x->side >= a->queries)
        for (uint64_t r = a->queries + tsr_thread(); r < a->lse_row; r += tsr_threads())
            TSR_R(tsr_store)(&a->lse, head + r, 1, &padding);
    tsr_sync();
    TSR_R(attention_store)(x, &a->out, a->heads, x->h, a->queries, i, x->tiles[3], 1);
}

/* A block has a tile of queries of a head, the last tiles first: they see the most keys. */
TSR_DEVICE void TSR_R(attention_forward)(const struct tsr_plain_attention *k)
{
    const struct tsr_attention_operands *a = &k->a;
    struct TSR_R(attention_block) x = TSR_R(attention_open)(k);
    uint64_t of_all = a->batch * a->heads, tiles = tsr_attention_tiles(a->queries, k->side);
    uint64_t i = (tiles - 1 - tsr_block_x() / of_all) * k->side, end = i + k->side;
    x.b = tsr_block_x() % of_all / a->heads;
    x.h = tsr_block_x() % a->heads;
    x.kv = x.h * a->kv_heads / a->heads;
    TSR_R(attention_load)(&x, &a->q, a->heads, x.h, a->queries, i, x.tiles[0]);
    TSR_R(attention_zero)(&x, x.tiles[3]);
    for (unsigned r = tsr_thread(); r < k->side; r += tsr_threads()) {
        x.of_row[0][r] = -(TSR_REAL)INFINITY;
        x.of_row[1][r] = 0;
    }
    for (uint64_t j = 0; j < tsr_attention_seen(a, end); j += k->side) {
        tsr_sync();
        TSR_R(attention_load)(&x, &a->k, a->kv_heads, x.kv, a->keys, j, x.tiles[1]);
        TSR_R(attention_load)(&x, &a->v, a->kv_heads, x.kv, a->keys, j, x.tiles[2]);
        tsr_sync();
        TSR_R(attention_scores)(&x, x.tiles[0], x.tiles[1], x.p);
        tsr_sync();
        TSR_R(attention_soften)(&x, i, j);
        TSR_R(attention_weigh)(&x, x.p, false, x.tiles[2], x.tiles[3]);
    }
    tsr_sync();
    TSR_R(attention_finish)(&x, i);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Of queries from i on: lse, and sum(g out). */
TSR_DEVICE void TSR_R(attention_rows)(const struct TSR_R(attention_block) * x, uint64_t i)
{
    const struct tsr_attention_operands *a = x->a;
    for (unsigned r = tsr_thread(); r < x->side && i + r < a->queries; r += tsr_threads()) {
        uint64_t at = tsr_attention_row(a, a->heads, a->queries, x->b, x->h, i + r);
        TSR_REAL g[TSR_CUDA_ITEMS], out[TSR_CUDA_ITEMS], sum = 0;
        for (unsigned d = 0; d < x->dim; d += TSR_CUDA_ITEMS) {
            unsigned n = x->dim - d < TSR_CUDA_ITEMS ? x->dim - d : TSR_CUDA_ITEMS;
            TSR_R(tsr_load)(&a->g, at + d, n, g);
            TSR_R(tsr_load)(&a->out, at + d, n, out);
            for (unsigned e = 0; e < n; e++)
                sum += g[e] * out[e];
        }
        x->of_row[0][r] =
            TSR_R(tsr_load_one)(&a->lse, (x->b * a->heads + x->h) * a->lse_row + i + r);
        x->of_row[1][r] = sum;
    }
}

/* p: weights again, s: gradients of scores (without the scale), of queries from i (q, g: their
 * tiles) and keys from j on. */
TSR_DEVICE void TSR_R(attention_again)(const struct TSR_R(attention_block) * x, uint64_t i,
                                       uint64_t j, const TSR_REAL *q, const TSR_REAL *g,
                                       const TSR_REAL *k, const TSR_REAL *v)
{
    TSR_R(attention_scores)(x, q, k, x->p);
    TSR_R(attention_scores)(x, g, v, x->s);
    tsr_sync();
    for (unsigned e = tsr_thread(); e < x->side * x->side; e += tsr_threads()) {
        unsigned r = e / x->side, c = e % x->side, at = r * (x->side + 1) + c;
        bool sees = TSR_R(attention_sees)(x->a, i + r, j + c);
        TSR_REAL p = 0, s = 0;
        if (sees) {
            p = TSR_R(tsr_exp)(x->p[at] * (TSR_REAL)x->a->scale - x->of_row[0][r]);
            s = p * (x->s[at] - x->of_row[1][r]);
        }
        x->p[at] = p;
        x->s[at] = s;
    }
    tsr_sync();
}

/* The gradient of a tile of queries of a head. */
TSR_DEVICE void TSR_R(attention_queries)(const struct tsr_plain_attention *k)
{
    const struct tsr_attention_operands *a = &k->a;
    struct TSR_R(attention_block) x = TSR_R(attention_open)(k);
    uint64_t of_all = a->batch * a->heads, tiles = tsr_attention_tiles(a->queries, k->side);
    uint64_t i = (tiles - 1 - tsr_block_x() / of_all) * k->side, end = i + k->side;
    x.b = tsr_block_x() % of_all / a->heads;
    x.h = tsr_block_x() % a->heads;
    x.kv = x.h * a->kv_heads / a->heads;
    TSR_R(attention_load)(&x, &a->q, a->heads, x.h, a->queries, i, x.tiles[0]);
    TSR_R(attention_load)(&x, &a->g, a->heads, x.h, a->queries, i, x.tiles[1]);
    TSR_R(attention_zero)(&x, x.tiles[4]);
    TSR_R(attention_rows)(&x, i);
    for (uint64_t j = 0; j < tsr_attention_seen(a, end); j += k->side) {
        tsr_sync();
        TSR_R(attention_load)(&x, &a->k, a->kv_heads, x.kv, a->keys, j, x.tiles[2]);
        TSR_R(attention_load)(&x, &a->v, a->kv_heads, x.kv, a->keys, j, x.tiles[3]);
        tsr_sync();
        TSR_R(attention_again)(&x, i, j, x.tiles[0], x.tiles[1], x.tiles[2], x.tiles[3]);
        TSR_R(attention_weigh)(&x, x.s, false, x.tiles[2], x.tiles[4]);
    }
    tsr_sync();
    TSR_R(attention_store)
    (&x, &a->gq, a->heads, x.h, a->queries, i, x.tiles[4], (TSR_REAL)a->scale);
}

/* What the queries of head h add to the gradients (tiles 2, 3) of keys and values from j on (tiles
 * 0, 1). */
TSR_DEVICE void TSR_R(attention_of_head)(const struct TSR_R(attention_block) * x, uint64_t j)
{
    const struct tsr_attention_operands *a = x->a;
    uint64_t first = a->causal ? j / x->side * x->side : 0;
    for (uint64_t i = first; i < a->queries; i += x->side) {
        tsr_sync();
        TSR_R(attention_load)(x, &a->q, a->heads, x->h, a->queries, i, x->tiles[4]);
        TSR_R(attention_load)(x, &a->g, a->heads, x->h, a->queries, i, x->tiles[5]);
        TSR_R(attention_rows)(x, i);
        tsr_sync();
        TSR_R(attention_again)(x, i, j, x->tiles[4], x->tiles[5], x->tiles[0], x->tiles[1]);
        TSR_R(attention_weigh)(x, x->s, true, x->tiles[4], x->tiles[2]);
        TSR_R(attention_weigh)(x, x->p, true, x->tiles[5], x->tiles[3]);
    }
}

/* The gradients of a tile of keys and values of a key/value head, over its heads in order. */
TSR_DEVICE void TSR_R(attention_keys)(const struct tsr_plain_attention *k)
{
    const struct tsr_attention_operands *a = &k->a;
    struct TSR_R(attention_block) x = TSR_R(attention_open)(k);
    uint64_t of_all = a->batch * a->kv_heads, times = a->heads / a->kv_heads;
    uint64_t j = tsr_block_x() / of_all * k->side; /* the first keys are seen by most queries */
    x.b = tsr_block_x() % of_all / a->kv_heads;
    x.kv = tsr_block_x() % a->kv_heads;
    TSR_R(attention_load)(&x, &a->k, a->kv_heads, x.kv, a->keys, j, x.tiles[0]);
    TSR_R(attention_load)(&x, &a->v, a->kv_heads, x.kv, a->keys, j, x.tiles[1]);
    TSR_R(attention_zero)(&x, x.tiles[2]);
    TSR_R(attention_zero)(&x, x.tiles[3]);
    for (x.h = x.kv * times; x.h < (x.kv + 1) * times; x.h++)
        TSR_R(attention_of_head)(&x, j);
    tsr_sync();
    TSR_R(attention_store)
    (&x, &a->gk, a->kv_heads, x.kv, a->keys, j, x.tiles[2], (TSR_REAL)a->scale);
    TSR_R(attention_store)(&x, &a->gv, a->kv_heads, x.kv, a->keys, j, x.tiles[3], 1);
}
