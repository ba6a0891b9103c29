/* loss.c: negative log-likelihood, whole, in parts and with a vocabulary cut over ranks, and the
 * gradient of the mean of squares.
 */
#include "exec/kernels/rows/loss.h"

#include "exec/kernels/call/call.h"
#include "exec/kernels/call/table.h"

/* How many labels count. */
static uint64_t counted(const struct tsr_elems *labels)
{
    uint64_t n = 0;
    for (uint64_t row = 0; row < labels->n; row++)
        n += tsr_elems_i64(labels, row) >= 0;
    return n;
}

#define TSR_REAL_F64 0
#include "exec/kernels/rows/loss_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/rows/loss_real.h"
#undef TSR_REAL_F64

TSR_CODE(nll, nll, struct tsr_nll);
TSR_CODE(nll_backward, nll_backward, struct tsr_cross_entropy);
TSR_CODE(nll_gather, tsr_nll_gather, struct tsr_nll_gather);
TSR_CODE(log_p_backward, log_p_backward, struct tsr_cross_entropy);
TSR_CODE(cross_entropy, cross_entropy, struct tsr_cross_entropy);
TSR_CODE(mse_backward, tsr_mse_backward, struct tsr_mse);

/* The labels of n elements: as many rows of `columns`, every label below that. Labels that a GPU
 * has are not seen here: those that are too large make its loss a NaN. */
static tsr_status labels_of(const struct tsr_kernel_call *call, unsigned slot, uint64_t n,
                            struct tsr_elems *labels, uint64_t *columns)
{
    TSR_TRY(tsr__in(call, slot, TSR_OPERAND_IDS, TSR_ANY_NUMBER, labels));
    if (labels->n == 0 ? n != 0 : n % labels->n != 0)
        return tsr__defect(call, "slot %u: %llu labels for %llu elements", slot,
                           (unsigned long long)labels->n, (unsigned long long)n);
    *columns = labels->n ? n / labels->n : 0;
    for (uint64_t row = 0; row < labels->n && !call->launch; row++) {
        int64_t label = tsr_elems_i64(labels, row);
        if (label >= 0 && (uint64_t)label >= *columns)
            return tsr__defect(call, "slot %u: label %lld of row %llu is not below %llu", slot,
                               (long long)label, (unsigned long long)row,
                               (unsigned long long)*columns);
    }
    return TSR_OK;
}

static tsr_status take_one(const struct tsr_kernel_call *call, unsigned slot, struct tsr_elems *out)
{
    return tsr__in(call, slot, TSR_OPERAND_FLOAT, 1, out);
}

static tsr_status give_one(const struct tsr_kernel_call *call, unsigned slot, struct tsr_elems *out)
{
    return tsr__out(call, slot, TSR_OPERAND_FLOAT, 1, out);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Log-probabilities in slot 0, a row for each of the labels in slot 1. */
static tsr_status take_nll(const struct tsr_kernel_call *call, struct tsr_nll *k)
{
    *k = (struct tsr_nll){.columns = 0};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k->p));
    return labels_of(call, 1, k->p.n, &k->labels, &k->columns);
}

tsr_status tsr__nll_loss(const struct tsr_kernel_call *call)
{
    struct tsr_nll k;
    TSR_TRY(take_nll(call, &k));
    TSR_TRY(give_one(call, 2, &k.loss));
    TSR_TRY(give_one(call, 3, &k.weight));
    return tsr__run(call, &code_nll, &k, k.labels.n);
}

tsr_status tsr__nll_loss_part(const struct tsr_kernel_call *call)
{
    struct tsr_nll k;
    TSR_TRY(take_nll(call, &k));
    TSR_TRY(take_one(call, 2, &k.count));
    TSR_TRY(give_one(call, 3, &k.loss));
    return tsr__run(call, &code_nll, &k, k.labels.n);
}

tsr_status tsr__nll_rows(const struct tsr_kernel_call *call)
{
    struct tsr_nll k = {.columns = 1, .gathered = true};
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &k.labels));
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, k.labels.n, &k.p));
    TSR_TRY(give_one(call, 2, &k.loss));
    TSR_TRY(give_one(call, 3, &k.weight));
    return tsr__run(call, &code_nll, &k, k.labels.n);
}

tsr_status tsr__count_labels(const struct tsr_kernel_call *call)
{
    struct tsr_nll k = {.columns = 1, .gathered = true};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &k.labels));
    TSR_TRY(give_one(call, 1, &k.weight));
    return tsr__run(call, &code_nll, &k, k.labels.n);
}

tsr_status tsr__nll_gather(const struct tsr_kernel_call *call)
{
    struct tsr_nll_gather k = {.first = tsr__arg(call, 0)};
    TSR_TRY(tsr__need_args(call, 2));
    k.shape.columns = tsr__arg(call, 1);
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &k.labels));
    k.shape.rows = k.labels.n;
    uint64_t n = tsr__product3(k.shape.rows, k.shape.columns, 1);
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, n, &k.p));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.shape.rows, &k.out));
    return tsr__run(call, &code_nll_gather, &k, k.shape.rows);
}

/* ---- gradients ------------------------------------------------------------------------------- */

tsr_status tsr__nll_loss_backward(const struct tsr_kernel_call *call)
{
    struct tsr_cross_entropy k = {.first = 0};
    TSR_TRY(take_one(call, 0, &k.g));
    TSR_TRY(take_one(call, 2, &k.count));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.out));
    TSR_TRY(labels_of(call, 1, k.out.n, &k.labels, &k.shape.columns));
    k.shape.rows = k.labels.n;
    return tsr__run(call, &code_nll_backward, &k, k.shape.rows);
}

/* x or log-probabilities in slot 0, labels in 1, their number in 2. */
static tsr_status take_x(const struct tsr_kernel_call *call, struct tsr_cross_entropy *k)
{
    *k = (struct tsr_cross_entropy){.first = 0};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k->x));
    TSR_TRY(labels_of(call, 1, k->x.n, &k->labels, &k->shape.columns));
    k->shape.rows = k->labels.n;
    return take_one(call, 2, &k->count);
}

tsr_status tsr__cross_entropy_backward(const struct tsr_kernel_call *call)
{
    struct tsr_cross_entropy k;
    TSR_TRY(take_x(call, &k));
    TSR_TRY(tsr__out(call, 3, TSR_OPERAND_FLOAT, k.x.n, &k.out));
    return tsr__run(call, &code_log_p_backward, &k, k.shape.rows);
}

tsr_status tsr__fused_cross_entropy(const struct tsr_kernel_call *call)
{
    struct tsr_cross_entropy k;
    TSR_TRY(take_x(call, &k));
    TSR_TRY(give_one(call, 3, &k.loss));
    if (tsr_slot(call, 4))
        TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, k.x.n, &k.out));
    const struct tsr_view *scratch = tsr_slot(call, 5);
    uint64_t real = tsr__is_wide(call) ? sizeof(double) : sizeof(float);
    if (scratch && scratch->bytes / real >= k.shape.rows && (uintptr_t)scratch->data % real == 0)
        k.row_loss = scratch->data;
    return tsr__run(call, &code_cross_entropy, &k, k.shape.rows);
}

tsr_status tsr__nll_backward_tp(const struct tsr_kernel_call *call)
{
    struct tsr_cross_entropy k = {.first = tsr__arg(call, 0)};
    TSR_TRY(tsr__need_args(call, 2));
    k.shape.columns = tsr__arg(call, 1);
    TSR_TRY(take_one(call, 0, &k.g));
    TSR_TRY(tsr__in(call, 1, TSR_OPERAND_IDS, TSR_ANY_NUMBER, &k.labels));
    k.shape.rows = k.labels.n;
    TSR_TRY(take_one(call, 2, &k.count));
    uint64_t n = tsr__product3(k.shape.rows, k.shape.columns, 1);
    TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, n, &k.x));
    TSR_TRY(tsr__out(call, 4, TSR_OPERAND_FLOAT, n, &k.out));
    return tsr__run(call, &code_log_p_backward, &k, k.shape.rows);
}

tsr_status tsr__mse_backward(const struct tsr_kernel_call *call)
{
    struct tsr_mse k = {.target = {.data = NULL}};
    TSR_TRY(tsr__in(call, 0, TSR_OPERAND_FLOAT, TSR_ANY_NUMBER, &k.x));
    TSR_TRY(take_one(call, 1, &k.g));
    TSR_TRY(tsr__out(call, 2, TSR_OPERAND_FLOAT, k.x.n, &k.out));
    if (tsr_slot(call, 3))
        TSR_TRY(tsr__in(call, 3, TSR_OPERAND_FLOAT, k.x.n, &k.target));
    return tsr__run(call, &code_mse_backward, &k, k.x.n);
}
