/* reduce_order.h: the sum over the members of a communicator, as every world computes it: in the
 * order of the members, in f32 (f64 for f64, 64-bit integers for i64 and u8), rounded once at the
 * end. The order does not depend on who computes which part, so results are the same bits on all
 * ranks and in all worlds.
 */
#ifndef TSR_EXEC_REDUCE_ORDER_H
#define TSR_EXEC_REDUCE_ORDER_H

#include "engine/program/program.h"

struct tsr_reduction {
    uint8_t dtype;
    uint8_t op;    /* SUM; AVG: sum / n_parts; PREMUL_SUM: each part times factor first; MAX: a NaN
                      stays one. Integers wrap; their AVG is cut off, their factor, too */
    double factor; /* PREMUL_SUM; rounded to the type of the sum */
};

/* out[i] = parts[0][i] op parts[1][i] ... for n elements. `out` may be one of the parts. dtype and
 * op must be known ones; n_parts > 0. */
void tsr__reduce(const struct tsr_reduction *how, const void *const *parts, uint32_t n_parts,
                 void *out, uint64_t n);

#endif
