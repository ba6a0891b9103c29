/* loss.c: negative log-likelihood, whole, in parts and with a vocabulary cut over ranks, and the
 * mean of squares. A label below 0 is ignored.
 */
#include "call.h"
#include "rows.h"
#include "table.h"

/* The labels of n log-probabilities: as many rows of `columns`, every label below that. */
static tsr_status labels_of(const struct tsr_kernel_call *call, unsigned slot, uint64_t n,
                            struct tsr_elems *labels, uint64_t *columns)
{
    TSR_TRY(tsr__in(call, slot, TSR_OPERAND_IDS, TSR_ANY_NUMBER, labels));
    if (labels->n == 0 ? n != 0 : n % labels->n != 0)
        return tsr__defect(call, "slot %u: %llu labels for %llu elements", slot,
                           (unsigned long long)labels->n, (unsigned long long)n);
    *columns = labels->n ? n / labels->n : 0;
    for (uint64_t row = 0; row < labels->n; row++) {
        int64_t label = tsr_elems_i64(labels, row);
        if (label >= 0 && (uint64_t)label >= *columns)
            return tsr__defect(call, "slot %u: label %lld of row %llu is not below %llu", slot,
                               (long long)label, (unsigned long long)row,
                               (unsigned long long)*columns);
    }
    return TSR_OK;
}

/* How many labels count. */
static uint64_t counted(const struct tsr_elems *labels)
{
    uint64_t n = 0;
    for (uint64_t row = 0; row < labels->n; row++)
        n += tsr_elems_i64(labels, row) >= 0;
    return n;
}

/* args: the first column that this rank has, and how many. */
struct columns {
    uint64_t first, n;
};

/* The column of a label here, or n if it is elsewhere. */
static uint64_t own_column(const struct columns *c, int64_t label)
{
    uint64_t l = (uint64_t)label;
    return label >= 0 && l >= c->first && l - c->first < c->n ? l - c->first : c->n;
}

#define TSR_REAL_F64 0
#include "loss_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "loss_real.h"
#undef TSR_REAL_F64

TSR_KERNEL_OF_REALS(nll_loss)
TSR_KERNEL_OF_REALS(nll_loss_part)
TSR_KERNEL_OF_REALS(nll_loss_backward)
TSR_KERNEL_OF_REALS(cross_entropy_backward)
TSR_KERNEL_OF_REALS(fused_cross_entropy)
TSR_KERNEL_OF_REALS(count_labels)
TSR_KERNEL_OF_REALS(nll_gather)
TSR_KERNEL_OF_REALS(nll_rows)
TSR_KERNEL_OF_REALS(nll_backward_tp)
TSR_KERNEL_OF_REALS(mse)
TSR_KERNEL_OF_REALS(mse_backward)
