/* grid_rotary.h: rotary embedding as a loop over blocks of pairs within a head.
 */
#ifndef TSR_KERNELS_GRID_ROTARY_H
#define TSR_KERNELS_GRID_ROTARY_H

#include "grid_elementwise.h"

struct tsr_rotary {
    struct tsr_elems x, table, out; /* table: f32, (cos, sin) of seq x d / 2 pairs */
    uint64_t tokens, heads, seq, d;
    bool halves;  /* pairs are (i, i + d / 2), else (2 i, 2 i + 1) */
    bool inverse; /* by the opposite angles */
};

enum { TSR_PAIRS = TSR_BLOCK / 2 };

TSR_ANYWHERE uint64_t tsr_rotary_blocks(const struct tsr_rotary *r)
{
    uint64_t pairs = r->d / 2;
    return r->tokens * r->heads * (pairs / TSR_PAIRS + (pairs % TSR_PAIRS != 0));
}

#define TSR_REAL_F64 0
#include "grid_rotary_real.h"
#undef TSR_REAL_F64
#define TSR_REAL_F64 1
#include "grid_rotary_real.h"
#undef TSR_REAL_F64

#endif
