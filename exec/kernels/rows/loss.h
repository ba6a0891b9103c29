/* loss.h: what the losses take. A label below 0 is ignored; a loss without any label is NaN, as in
 * PyTorch, and its gradient is 0. */
#ifndef TSR_EXEC_LOSS_H
#define TSR_EXEC_LOSS_H

#include "exec/kernels/tensor/rows.h"

/* loss = sum of -p[label] / count; weight = how many labels count. data NULL: absent. */
struct tsr_nll {
    uint64_t columns; /* of p */
    bool gathered;    /* p has one column, that of the label */
    struct tsr_elems p, labels;
    struct tsr_elems count; /* absent: the number of labels that count */
    struct tsr_elems loss, weight;
};

/* out[row] = p[label] if that is one of the columns from `first` on, else 0. */
struct tsr_nll_gather {
    struct tsr_rows shape;
    uint64_t first;
    struct tsr_elems p, labels, out;
};

/* Gradients of logits or of log-probabilities, (exp(p) - onehot) g / count; the columns begin at
 * `first` of the vocabulary. data NULL: absent. */
struct tsr_cross_entropy {
    struct tsr_rows shape;
    uint64_t first;
    struct tsr_elems x, labels, count;
    struct tsr_elems g;   /* absent: 1 */
    struct tsr_elems out; /* may be x */
    /* from logits */
    struct tsr_elems loss;
    void *row_loss; /* the GPU's: a real for each row; NULL: it finds a place itself */
};

/* out = 2 (x - target) g / n. */
struct tsr_mse {
    struct tsr_elems x, g, target, out; /* target: data NULL if there is none */
};

/* The column of a label among n from `first` on, or n if it is elsewhere. */
TSR_ANYWHERE uint64_t tsr_label_column(int64_t label, uint64_t first, uint64_t n)
{
    uint64_t l = (uint64_t)label;
    return label >= 0 && l >= first && l - first < n ? l - first : n;
}

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_loss_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_loss_real.h"
#undef TSR_REAL_F64

#endif
