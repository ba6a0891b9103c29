/* convert.h: arrays of one dtype as another one. */
#ifndef TSR_EXEC_CONVERT_H
#define TSR_EXEC_CONVERT_H

#include "engine/program/base.h"

/* Both are floating point, or they are the same. */
bool tsr_can_convert(tsr_dtype from, tsr_dtype to);
/* n elements, rounded to nearest even; f64 to 16 bits by way of f32. The arrays do not overlap, and
 * need no alignment. Only for what tsr_can_convert() allows. */
void tsr_convert(tsr_dtype from, const void *in, tsr_dtype to, void *out, uint64_t n);

/* out[c][r] = in[r][c] for a matrix of rows x columns elements of `bytes` each. */
void tsr_transpose(const void *in, uint64_t rows, uint64_t columns, unsigned bytes, void *out);

#endif
