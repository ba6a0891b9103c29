/* grid_swiglu_real.h: template of grid_swiglu.h. */
#include "exec/kernels/tensor/real.h"

/* Over tsr_grid_blocks(gate.n). */
TSR_ANYWHERE void TSR_R(tsr_grid_swiglu)(const struct tsr_swiglu *k, uint64_t begin, uint64_t step)
{
    const struct tsr_elems *const from[2] = {&k->gate, &k->up};
    TSR_REAL x[2][TSR_BLOCK], *gate = x[0], *up = x[1];
    for (uint64_t block = begin; block < tsr_grid_blocks(k->gate.n); block += step) {
        uint64_t at = block * TSR_BLOCK, left = k->gate.n - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        const uint64_t all[2] = {at, at};
        TSR_R(tsr_load_several)(from, all, 2, n, x);
        TSR_LANES (i, n)
            up[i] *= TSR_R(tsr_silu)(gate[i]);
        TSR_R(tsr_store)(&k->out, at, n, up);
    }
}

/* All of a block is read before anything of it is written. */
TSR_ANYWHERE void TSR_R(tsr_grid_swiglu_backward)(const struct tsr_swiglu *k, uint64_t begin,
                                                  uint64_t step)
{
    const struct tsr_elems *const from[3] = {&k->g, &k->gate, &k->up};
    TSR_REAL x[3][TSR_BLOCK], *g = x[0], *gate = x[1], *up = x[2];
    for (uint64_t block = begin; block < tsr_grid_blocks(k->gate.n); block += step) {
        uint64_t at = block * TSR_BLOCK, left = k->gate.n - at;
        unsigned n = left < TSR_BLOCK ? (unsigned)left : TSR_BLOCK;
        const uint64_t all[3] = {at, at, at};
        TSR_R(tsr_load_several)(from, all, 3, n, x);
        TSR_LANES (i, n) {
            TSR_REAL of_gate = g[i] * up[i] * TSR_R(tsr_silu_slope)(gate[i]);
            up[i] = g[i] * TSR_R(tsr_silu)(gate[i]);
            gate[i] = of_gate;
        }
        if (k->grad_gate.data)
            TSR_R(tsr_store)(&k->grad_gate, at, n, gate);
        if (k->grad_up.data)
            TSR_R(tsr_store)(&k->grad_up, at, n, up);
    }
}
