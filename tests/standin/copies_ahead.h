/* copies_ahead.h: what a thread of a kernel asks for ahead (tsr_copy_ahead() of kernels/code.h)
 * comes as late as CUDA allows, when the thread waits for it: code that does not wait, or not for
 * enough, reads what was there before. Or at once, which CUDA allows as well: code that asks
 * before the last reader is done is seen.
 */
#ifndef TSR_STANDIN_COPIES_AHEAD_H
#define TSR_STANDIN_COPIES_AHEAD_H

#include <stdbool.h>

/* A block begins on this OS thread. */
void tsr_copies_begin(bool late);
/* After the last one: what nobody has waited for is dropped. */
void tsr_copies_end(void);

#endif
