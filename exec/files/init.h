/* init.h: initial values of parameters, the same whatever the number of ranks and the sharding.
 *
 * The value of element i (row-major in the whole parameter) of the parameter with FQN hash h is a
 * function of (seed, h, i): Philox4x32-10 with key = seed and counter = (i / 4, h), whose four
 * words belong to the elements 4 (i / 4) ... + 3. Two elements share no counter
 * unless their FQNs have the same hash.
 *
 *   normal    words 0, 1 give elements 0, 1, words 2, 3 give 2, 3, by Box-Muller:
 *             s sqrt(-2 ln u) cos(2 pi v), s sqrt(-2 ln u) sin(2 pi v), u = (x + 1/2) / 2^32.
 *             The greatest possible value is 6.76 s.
 *   uniform   c (2 u - 1), u of the element's own word: between -c and c
 *   constant  c
 *
 * computed in double, rounded to f32, then to the dtype: a bf16 parameter is the f32 one, rounded.
 * The code is exec/kernels/grid/grid_initial.h, which GPUs run, too.
 */
#ifndef TSR_EXEC_INIT_H
#define TSR_EXEC_INIT_H

#include "exec/base/source.h"

/* The initial values of a box, row-major: what `init` of struct tsr_source must write. `out` has
 * room for all elements of piece->size; n_dims = 0 is one element. piece->what does not matter:
 * states of an optimizer are asked for as constants. Large ones are made by up to n_threads (16)
 * threads, which changes no bit. Errors: TSR_EDEFECT when the box is not inside
 * the shape, or dtype or kind are none; TSR_EUNSUPPORTED for random integers. */
tsr_status tsr_init_piece(uint64_t seed, const struct tsr_piece *piece, unsigned n_threads,
                          void *out) TSR_MUST_USE;
/* For one of n_ranks that share the cores of a machine: 1 to 16. */
unsigned tsr_init_threads(uint32_t n_ranks);

#endif
