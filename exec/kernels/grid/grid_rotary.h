/* grid_rotary.h: rotary embedding as a loop over blocks of pairs within a head, and its tables. */
#ifndef TSR_EXEC_GRID_ROTARY_H
#define TSR_EXEC_GRID_ROTARY_H

#include "exec/kernels/grid/grid_elementwise.h"
#include "exec/kernels/tensor/tensor.h"

/* Turns the pairs of x, (tokens, heads, d), by the angles of their place in the sequence: token t
 * has row t % seq of the table. */
struct tsr_rotary {
    struct tsr_elems x, table, out; /* table: f32, (cos, sin) of seq x d / 2 pairs */
    uint64_t tokens, heads, seq, d;
    bool halves;  /* pairs are (i, i + d / 2), else (2 i, 2 i + 1) */
    bool inverse; /* by the opposite angles */
};

/* Tensors that are turned by one launch. */
enum { TSR_MAX_ROTARIES = 4 };
struct tsr_rotaries {
    uint32_t n;
    struct tsr_rotary of[TSR_MAX_ROTARIES];
};

/* Blocks of TSR_BLOCK pairs. */
TSR_ANYWHERE uint64_t tsr_rotary_blocks(const struct tsr_rotary *r)
{
    return r->tokens * r->heads * tsr_grid_blocks(r->d / 2);
}

#define TSR_REAL_F64 0
#include "exec/kernels/grid/grid_rotary_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "exec/kernels/grid/grid_rotary_real.h"
#undef TSR_REAL_F64

/* ---- tables ---------------------------------------------------------------------------------- */

/* Tables of rotary embedding: pairs (cos, sin) of f32, a row of d / 2 pairs
 * for every position. */

enum { TSR_SCALING_NONE, TSR_SCALING_LLAMA3, TSR_SCALING_LINEAR };

struct tsr_rotary_table {
    struct tsr_elems out;
    uint64_t positions, half;
    double theta;
    double stretch[4]; /* factor, low, high, original positions */
    uint8_t scaling;
};

struct tsr_conjugate {
    struct tsr_elems table, out;
    uint64_t pairs;
};

/* Frequencies as Llama 3.1 stretches them: long waves by `factor`, short ones not, and those
 * between the two in between. */
TSR_ANYWHERE double tsr_stretched(double frequency, const double *a)
{
    double length = 6.283185307179586 / frequency;
    if (length < a[3] / a[2])
        return frequency;
    if (length > a[3] / a[1])
        return frequency / a[0];
    double smooth = (a[3] / length - a[1]) / (a[2] - a[1]);
    return (1 - smooth) * frequency / a[0] + smooth * frequency;
}

/* Over positions x half pairs. Frequencies and angles are rounded to f32, as PyTorch's modules have
 * them. */
TSR_ANYWHERE void tsr_grid_rotary_table(const struct tsr_rotary_table *k, uint64_t begin,
                                        uint64_t step)
{
    for (uint64_t at = begin; at < k->positions * k->half; at += step) {
        uint64_t t = at / k->half, i = at % k->half;
        double frequency = 1 / pow(k->theta, (double)i / (double)k->half);
        if (k->scaling == TSR_SCALING_LLAMA3)
            frequency = tsr_stretched(frequency, k->stretch);
        if (k->scaling == TSR_SCALING_LINEAR)
            frequency /= k->stretch[0];
        double angle = (double)((float)t * (float)frequency);
        float *pair = (float *)(void *)k->out.data + 2 * at;
        pair[0] = (float)cos(angle);
        pair[1] = (float)sin(angle);
    }
}

/* Over pairs. */
TSR_ANYWHERE void tsr_grid_conjugate(const struct tsr_conjugate *k, uint64_t begin, uint64_t step)
{
    for (uint64_t i = begin; i < k->pairs; i += step) {
        const float *from = (const float *)(const void *)k->table.data + 2 * i;
        float *to = (float *)(void *)k->out.data + 2 * i;
        to[0] = from[0];
        to[1] = -from[1];
    }
}

#endif
