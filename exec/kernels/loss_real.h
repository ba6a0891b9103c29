/* loss_real.h: template of loss.c. */
#include "real.h"

static void TSR_R(store_one)(const struct tsr_elems *out, double value)
{
    TSR_REAL x = (TSR_REAL)value;
    TSR_R(tsr_store)(out, 0, 1, &x);
}

/* x / n, 0 if there is nothing to divide by. */
static double TSR_R(share)(double x, double n)
{
    return n > 0 ? x / n : 0;
}

/* Sum of -p[label]; p has `columns` a row, the label is the column, or the only one. */
static double TSR_R(nll_sum)(const struct tsr_elems *p, const struct tsr_elems *labels,
                             uint64_t columns)
{
    double sum = 0;
    for (uint64_t row = 0; row < labels->n; row++) {
        int64_t label = tsr_elems_i64(labels, row);
        uint64_t column = columns > 1 ? (uint64_t)label : 0;
        if (label >= 0)
            sum -= (double)TSR_R(tsr_load_one)(p, row * columns + column);
    }
    return sum;
}

/* Log-probabilities in slot 0, a row for each of the labels in slot 1. */
static tsr_status TSR_R(take_nll)(const struct tsr_kernel_call *call, struct tsr_elems *p,
                                  struct tsr_elems *labels, uint64_t *columns)
{
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, p));
    return labels_of(call, 1, p->n, labels, columns);
}

static tsr_status TSR_R(nll_loss)(const struct tsr_kernel_call *call)
{
    struct tsr_elems p, labels, loss, weight;
    uint64_t columns;
    TSR_TRY(TSR_R(take_nll)(call, &p, &labels, &columns));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, 1, &loss));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, 1, &weight));
    double n = (double)counted(&labels);
    TSR_R(store_one)(&loss, TSR_R(share)(TSR_R(nll_sum)(&p, &labels, columns), n));
    TSR_R(store_one)(&weight, n);
    return TSR_OK;
}

static tsr_status TSR_R(nll_loss_part)(const struct tsr_kernel_call *call)
{
    struct tsr_elems p, labels, count, loss;
    uint64_t columns;
    TSR_TRY(TSR_R(take_nll)(call, &p, &labels, &columns));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, 1, &count));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, 1, &loss));
    double n = (double)TSR_R(tsr_load_one)(&count, 0);
    TSR_R(store_one)(&loss, TSR_R(share)(TSR_R(nll_sum)(&p, &labels, columns), n));
    return TSR_OK;
}

static tsr_status TSR_R(count_labels)(const struct tsr_kernel_call *call)
{
    struct tsr_elems labels, out;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &labels));
    TSR_TRY(tsr__out(call, 1, TSR_OPERAND_FLOAT, 1, &out));
    TSR_R(store_one)(&out, (double)counted(&labels));
    return TSR_OK;
}

static tsr_status TSR_R(nll_loss_backward)(const struct tsr_kernel_call *call)
{
    struct tsr_elems g, labels, weight, out;
    uint64_t columns;
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, 1, &g));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, 1, &weight));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &out));
    TSR_TRY(labels_of(call, 1, out.n, &labels, &columns));
    TSR_REAL each = -TSR_R(tsr_load_one)(&g, 0) / TSR_R(tsr_load_one)(&weight, 0);
    TSR_R(tsr_store_same)(&out, 0, out.n, 0);
    for (uint64_t row = 0; row < labels.n; row++)
        if (tsr_elems_i64(&labels, row) >= 0)
            TSR_R(tsr_store)(&out, row * columns + (uint64_t)tsr_elems_i64(&labels, row), 1, &each);
    return TSR_OK;
}

/* ---- straight from log-probabilities --------------------------------------------------------- */

/* Columns of a row of (exp(p) - onehot) factor; label: the column, or one that is not there. */
static void TSR_R(cross_entropy_row)(const struct tsr_elems *p, const struct tsr_elems *out,
                                     uint64_t first, const struct columns *c, uint64_t label,
                                     TSR_REAL factor)
{
    TSR_REAL part[TSR_BLOCK];
    TSR_EACH_BLOCK(at, n, first, c->n)
    {
        TSR_R(tsr_load)(p, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = TSR_R(tsr_cross_entropy_slope)(part[i], at - first + i == label, factor);
        TSR_R(tsr_store)(out, at, n, part);
    }
}

static void TSR_R(cross_entropy_rows)(const struct tsr_elems *p, const struct tsr_elems *labels,
                                      const struct tsr_elems *out, const struct columns *c,
                                      TSR_REAL factor)
{
    for (uint64_t row = 0; row < labels->n; row++) {
        int64_t label = tsr_elems_i64(labels, row);
        if (label < 0)
            TSR_R(tsr_store_same)(out, row * c->n, c->n, 0);
        else
            TSR_R(cross_entropy_row)(p, out, row * c->n, c, own_column(c, label), factor);
    }
}

static tsr_status TSR_R(cross_entropy_backward)(const struct tsr_kernel_call *call)
{
    struct tsr_elems p, labels, count, out;
    struct columns c = {0, 0};
    TSR_TRY(TSR_R(take_nll)(call, &p, &labels, &c.n));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, 1, &count));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, p.n, &out));
    TSR_R(cross_entropy_rows)(&p, &labels, &out, &c, 1 / TSR_R(tsr_load_one)(&count, 0));
    return TSR_OK;
}

/* ---- straight from logits -------------------------------------------------------------------- */

/* -log-probability of the label in the row that begins at `first`; the gradient, which may be x. */
static double TSR_R(logits_row)(const struct tsr_elems *x, const struct tsr_elems *out,
                                uint64_t first, uint64_t columns, uint64_t label, TSR_REAL factor)
{
    TSR_REAL part[TSR_BLOCK], max = TSR_R(tsr_row_max)(x, first, columns);
    TSR_REAL log_sum = (TSR_REAL)log(TSR_R(tsr_row_exp_sum)(x, first, columns, max));
    TSR_REAL log_p = TSR_R(tsr_load_one)(x, first + label) - max - log_sum;
    if (!out->data)
        return -(double)log_p;
    TSR_EACH_BLOCK(at, n, first, columns)
    {
        TSR_R(tsr_load)(x, at, n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] = TSR_R(tsr_cross_entropy_slope)(part[i] - max - log_sum,
                                                     at - first + i == label, factor);
        TSR_R(tsr_store)(out, at, n, part);
    }
    return -(double)log_p;
}

static tsr_status TSR_R(fused_cross_entropy)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, labels, count, loss, out = {.data = NULL};
    uint64_t columns;
    double sum = 0;
    TSR_TRY(TSR_R(take_nll)(call, &x, &labels, &columns));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, 1, &count));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, 1, &loss));
    if (tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, x.n, &out));
    TSR_REAL n = TSR_R(tsr_load_one)(&count, 0);
    for (uint64_t row = 0; row < labels.n; row++) {
        int64_t label = tsr_elems_i64(&labels, row);
        if (label >= 0)
            sum += TSR_R(logits_row)(&x, &out, row * columns, columns, (uint64_t)label, 1 / n);
        else if (out.data)
            TSR_R(tsr_store_same)(&out, row * columns, columns, 0);
    }
    TSR_R(store_one)(&loss, TSR_R(share)(sum, (double)n));
    return TSR_OK;
}

/* ---- a vocabulary that is cut ---------------------------------------------------------------- */

static tsr_status TSR_R(nll_gather)(const struct tsr_kernel_call *call)
{
    struct tsr_elems p, labels, out;
    struct columns c = {tsr__arg(call, 0), tsr__arg(call, 1)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &labels));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, tsr__product3(labels.n, c.n, 1), &p));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, labels.n, &out));
    for (uint64_t row = 0; row < labels.n; row++) {
        uint64_t column = own_column(&c, tsr_elems_i64(&labels, row));
        TSR_REAL value = column < c.n ? TSR_R(tsr_load_one)(&p, row * c.n + column) : 0;
        TSR_R(tsr_store)(&out, row, 1, &value);
    }
    return TSR_OK;
}

static tsr_status TSR_R(nll_rows)(const struct tsr_kernel_call *call)
{
    struct tsr_elems row, labels, loss, weight;
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &labels));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, labels.n, &row));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, 1, &loss));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, 1, &weight));
    double n = (double)counted(&labels);
    TSR_R(store_one)(&loss, TSR_R(share)(TSR_R(nll_sum)(&row, &labels, 1), n));
    TSR_R(store_one)(&weight, n);
    return TSR_OK;
}

static tsr_status TSR_R(nll_backward_tp)(const struct tsr_kernel_call *call)
{
    struct tsr_elems g, labels, weight, p, out;
    struct columns c = {tsr__arg(call, 0), tsr__arg(call, 1)};
    TSR_TRY(tsr__need_args(call, 2));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, 1, &g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &labels));
    TSR_TRY(tsr__in(call, 2, TSR_OPERAND_FLOAT, 1, &weight));
    TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, tsr__product3(labels.n, c.n, 1), &p));
    TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, p.n, &out));
    TSR_REAL factor = TSR_R(tsr_load_one)(&g, 0) / TSR_R(tsr_load_one)(&weight, 0);
    TSR_R(cross_entropy_rows)(&p, &labels, &out, &c, factor);
    return TSR_OK;
}

/* ---- mean of squares ------------------------------------------------------------------------- */

/* x - target; without a target x. */
static void TSR_R(difference)(const struct tsr_elems *x, const struct tsr_elems *target,
                              uint64_t at, unsigned n, TSR_REAL *out)
{
    TSR_REAL t[TSR_BLOCK];
    TSR_R(tsr_load)(x, at, n, out);
    if (!target->data)
        return;
    TSR_R(tsr_load)(target, at, n, t);
    for (unsigned i = 0; i < n; i++)
        out[i] -= t[i];
}

static tsr_status TSR_R(mse)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, target = {.data = NULL}, loss;
    struct TSR_R(tsr_sum) sum = {{0}};
    TSR_REAL part[TSR_BLOCK];
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &x));
    if (strcmp(call->work->name, "mse_target") == 0)
        TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, x.n, &target));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, 1, &loss));
    TSR_EACH_BLOCK(at, n, 0, x.n)
    {
        TSR_R(difference)(&x, &target, at, (unsigned)n, part);
        TSR_R(tsr_sum_add_product)(&sum, part, part, (unsigned)n);
    }
    TSR_R(store_one)(&loss, TSR_R(tsr_sum_total)(&sum) / (double)x.n);
    return TSR_OK;
}

static tsr_status TSR_R(mse_backward)(const struct tsr_kernel_call *call)
{
    struct tsr_elems x, g, out, target = {.data = NULL};
    TSR_REAL part[TSR_BLOCK];
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &x));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_FLOAT, 1, &g));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, x.n, &out));
    if (tsr_slot(call, 3))
        TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, x.n, &target));
    TSR_REAL factor = 2 * TSR_R(tsr_load_one)(&g, 0) / (TSR_REAL)x.n;
    TSR_EACH_BLOCK(at, n, 0, x.n)
    {
        TSR_R(difference)(&x, &target, at, (unsigned)n, part);
        for (unsigned i = 0; i < n; i++)
            part[i] *= factor;
        TSR_R(tsr_store)(&out, at, n, part);
    }
    return TSR_OK;
}
