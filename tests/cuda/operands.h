/* operands.h: memory for the operands of a kernel under test, which host and GPU reach at the same
 * address. With the stand-ins it is the host's (tests/standin/operands.c), on a GPU pinned memory
 * (tests/gpu/operands.c): the same objects of a test are linked with either.
 */
#ifndef TSR_TEST_OPERANDS_H
#define TSR_TEST_OPERANDS_H

#include <stddef.h>

#include "engine/program/base.h"

void *tsr_operands_new(size_t bytes); /* NULL: out of memory */
void tsr_operands_free(void *memory);
/* Returns when all that was launched has run: the host may look at it. TSR_EBACKEND: it failed. */
tsr_status tsr_operands_finish(void) TSR_MUST_USE;

#endif
