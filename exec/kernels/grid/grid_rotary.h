/* grid_rotary.h: rotary embedding as a loop over blocks of pairs within a head.
 */
#ifndef TSR_KERNELS_GRID_ROTARY_H
#define TSR_KERNELS_GRID_ROTARY_H

#include "exec/kernels/grid/grid_elementwise.h"

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

#endif
