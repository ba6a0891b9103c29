/* kernels_forget.c: tables without one measured point, to tell how well the others predict it. */
#include "sim/card/cost.h"

static bool is_place(float axis, uint64_t value)
{
    return (uint64_t)axis == value;
}

/* Index of a value on an axis; n if it is not there. */
static uint32_t index_on(const float *axis, uint32_t n, uint64_t value)
{
    uint32_t i = 0;
    while (i < n && !is_place(axis[i], value))
        i++;
    return i;
}

static bool forget_matmul(struct tsr_kernels *k, uint8_t peak, const uint64_t dims[4])
{
    for (uint32_t i = 0; i < k->n_matmul; i++) {
        struct tsr_matmul_table *t = &k->matmul[i];
        size_t at = 0;
        bool there = t->peak == peak;
        for (int axis = 0; axis < 4; axis++) {
            uint32_t place = index_on(t->axis[axis], t->n[axis], dims[axis]);
            there = there && place < t->n[axis];
            at = at * t->n[axis] + place;
        }
        if (!there || !t->measured[at])
            continue;
        t->measured[at] = false;
        tsr_matmul_fill(t);
        return true;
    }
    return false;
}

static bool forget_attention(struct tsr_kernels *k, uint8_t kernel, const struct tsr_work *work)
{
    bool backward = work->op == TSR_OP_ATTENTION_BWD;
    for (uint32_t i = 0; i < k->n_attention; i++) {
        struct tsr_attention_curve *c = &k->attention[i];
        uint32_t at = index_on(c->length, c->n, work->dims[4]);
        if (c->kernel != kernel || c->backward != backward || c->causal != work->causal ||
            c->head_size != work->dims[5] || at == c->n || c->n == 1)
            continue;
        c->n--;
        memmove(c->length + at, c->length + at + 1, (c->n - at) * sizeof *c->length);
        memmove(c->flops + at, c->flops + at + 1, (c->n - at) * sizeof *c->flops);
        return true;
    }
    return false;
}

static bool forget_norm(struct tsr_kernels *k, uint8_t kernel, const struct tsr_work *work)
{
    for (uint32_t i = 0; i < k->n_norms; i++) {
        struct tsr_norm_table *t = &k->norms[i];
        if (t->kernel != kernel || t->backward != (work->op == TSR_OP_NORM_BWD))
            continue;
        for (uint32_t at = 0; at < t->n; at++) {
            if (!is_place(t->rows[at], work->dims[0]) || !is_place(t->columns[at], work->dims[1]))
                continue;
            t->n--;
            t->rows[at] = t->rows[t->n];
            t->columns[at] = t->columns[t->n];
            t->log_ratio[at] = t->log_ratio[t->n];
            return true;
        }
    }
    return false;
}

bool tsr_kernels_forget(struct tsr_kernels *kernels, const struct tsr_kernel_choice *choice,
                        const struct tsr_work *work)
{
    uint8_t attention =
        (uint8_t)(choice->attention == TSR_ATTN_AUTO ? TSR_ATTN_FLASH2 : choice->attention);
    switch (work->op) {
    case TSR_OP_GEMM:
        if (work->dtype == TSR_F8)
            return false;
        return forget_matmul(kernels, choice->tf32 ? TSR_PEAK_TF32 : TSR_PEAK_BF16, work->dims);
    case TSR_OP_ATTENTION:
    case TSR_OP_ATTENTION_BWD:
        return forget_attention(kernels, attention, work);
    case TSR_OP_NORM:
    case TSR_OP_NORM_BWD:
        return forget_norm(
            kernels, (uint8_t)(choice->norm == TSR_NORMS_AUTO ? TSR_NORMS_EAGER : choice->norm),
            work);
    default:
        return false;
    }
}
