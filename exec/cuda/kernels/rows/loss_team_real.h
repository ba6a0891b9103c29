/* loss_team_real.h: template of loss.cu. */
#include "exec/kernels/tensor/real.h"

/* Stores sum / n in `out`, from one block. */
TSR_DEVICE void TSR_R(store_share)(const struct tsr_elems *out, double sum, double n)
{
    TSR_REAL share = (TSR_REAL)(sum / n);
    if (tsr_thread() == 0)
        TSR_R(tsr_store)(out, 0, 1, &share);
}

/* One block. */
TSR_DEVICE void TSR_R(nll)(const struct tsr_nll *k)
{
    double sum = 0, n = 0;
    for (uint64_t row = tsr_thread(); row < k->labels.n; row += tsr_threads()) {
        int64_t label = tsr_elems_i64(&k->labels, row);
        uint64_t column = k->gathered ? 0 : (uint64_t)label;
        n += label >= 0 ? 1 : 0;
        if (label < 0 || !k->loss.data)
            continue;
        if (column < k->columns)
            sum -= (double)TSR_R(tsr_load_one)(&k->p, row * k->columns + column);
        else
            sum += (double)NAN;
    }
    n = tsr_block_sum_f64(n);
    if (k->weight.data) {
        TSR_REAL weight = (TSR_REAL)n;
        if (tsr_thread() == 0)
            TSR_R(tsr_store)(&k->weight, 0, 1, &weight);
    }
    if (k->loss.data) {
        sum = tsr_block_sum_f64(sum);
        n = k->count.data ? (double)TSR_R(tsr_load_one)(&k->count, 0) : n;
        TSR_R(store_share)(&k->loss, sum, n);
    }
}

/* ---- gradients --------------------------------------------------------------------------------
 */

/* g / count. */
TSR_DEVICE TSR_REAL TSR_R(loss_factor)(const struct tsr_cross_entropy *k)
{
    TSR_REAL g = k->g.data ? TSR_R(tsr_load_one)(&k->g, 0) : 1;
    return g / TSR_R(tsr_load_one)(&k->count, 0);
}

TSR_DEVICE void TSR_R(nll_backward)(const struct tsr_cross_entropy *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    TSR_REAL each = -TSR_R(loss_factor)(k), part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        uint64_t columns = row.columns;
        uint64_t label =
            row.turns ? tsr_label_column(tsr_elems_i64(&k->labels, row.number), 0, columns) : 0;
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                part[i] = column + i == label ? each : 0;
            TSR_R(tsr_pack_store)
            (&k->out, row.first + column, tsr_pack_elements(&t, &row, column), part);
        }
    }
}

/* x - factor at the label, if it is one of the columns from `column` on: of one pack in a row. */
TSR_DEVICE void TSR_R(slope_at_label)(TSR_REAL *x, uint64_t column, uint64_t label, TSR_REAL factor)
{
    uint64_t place = label - column; /* very large for a label that is before */
    if (place >= TSR_BLOCK)
        return;
    for (unsigned i = 0; i < TSR_BLOCK; i++)
        x[i] -= i == place ? factor : 0;
}

TSR_DEVICE void TSR_R(log_p_backward)(const struct tsr_cross_entropy *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    TSR_REAL factor = TSR_R(loss_factor)(k), part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        int64_t label = row.turns ? tsr_elems_i64(&k->labels, row.number) : -1;
        uint64_t at = tsr_label_column(label, k->first, row.columns);
        for (unsigned turn = 0; turn < row.turns; turn++) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            TSR_R(tsr_pack_load)(&k->x, row.first + column, n, part);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                part[i] = label < 0 ? 0 : TSR_R(exp_of)(part[i]) * factor;
            if (label >= 0)
                TSR_R(slope_at_label)(part, column, at, factor);
            TSR_R(tsr_pack_store)(&k->out, row.first + column, n, part);
        }
    }
}

/* ---- straight from logits ---------------------------------------------------------------------
 */

/* Returns the label of the row; -1 if there is no row for this team. */
TSR_DEVICE int64_t TSR_R(label_of)(const struct tsr_cross_entropy *k,
                                   const struct tsr_team_row *row)
{
    return row->columns ? tsr_elems_i64(&k->labels, row->number) : -1;
}

/* The last rows first: they are what is in the cache. The logit of the label has been read by all
 * of the team before anything of the row is written. The label and the factor are read again where
 * they are needed: a register that keeps them through the first pass is one too many. */
TSR_DEVICE void TSR_R(cross_entropy_rows)(const struct tsr_cross_entropy *k, bool whole)
{
    struct tsr_team t = tsr_team_of(k->shape.columns, whole);
    unsigned stays = tsr_packs_stay(TSR_R(tsr_kept_bytes)(&k->x, whole));
    TSR_REAL part[TSR_BLOCK];
    TSR_TEAM_ROWS(&t, &k->shape, row)
    {
        if (row.columns > 0)
            row = tsr_row_of(&t, &k->shape, k->shape.rows - 1 - row.number);
        bool ignored = TSR_R(label_of)(k, &row) < 0;
        struct TSR_R(exponentials) e =
            TSR_R(exponentials_of)(&k->x, &t, &row, ignored ? 0 : row.columns, stays);
        TSR_REAL log_sum = TSR_M(log)(e.sum), factor = TSR_R(loss_factor)(k);
        int64_t label = TSR_R(label_of)(k, &row);
        bool there = !ignored && (uint64_t)label < row.columns;
        TSR_REAL own =
            there ? TSR_R(tsr_load_one)(&k->x, row.first + (uint64_t)label) : (TSR_REAL)NAN;
        if (row.leads)
            ((TSR_REAL *)k->row_loss)[row.number] = ignored ? 0 : -(own - e.max - log_sum);
        tsr_team_sync(&t);
        for (unsigned turn = k->out.data ? row.turns : 0; turn-- > 0;) {
            uint64_t column = tsr_pack_column(&t, &row, turn);
            unsigned n = tsr_pack_elements(&t, &row, column);
            if (!ignored)
                TSR_R(exponentials_again)
            (&k->x, &t, stays, turn, row.first + column, n, part);
            for (unsigned i = 0; i < TSR_BLOCK; i++)
                part[i] = ignored ? 0 : TSR_R(exp_of)(part[i] - e.max - log_sum) * factor;
            if (!ignored)
                TSR_R(slope_at_label)(part, column, (uint64_t)label, factor);
            TSR_R(tsr_pack_store)(&k->out, row.first + column, n, part);
        }
    }
}

/* One block: the sum of the rows' losses. */
TSR_DEVICE void TSR_R(cross_entropy_loss)(const struct tsr_cross_entropy *k)
{
    double sum = 0;
    for (uint64_t row = tsr_thread(); row < k->shape.rows; row += tsr_threads())
        sum += (double)((const TSR_REAL *)k->row_loss)[row];
    sum = tsr_block_sum_f64(sum);
    TSR_R(store_share)(&k->loss, sum, (double)TSR_R(tsr_load_one)(&k->count, 0));
}
