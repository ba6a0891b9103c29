/* operands.c: see cuda/operands.h. What is launched on the NULL stream has run at once. */
#include "tests/cuda/operands.h"

#include <stdlib.h>

void *tsr_operands_new(size_t bytes)
{
    return malloc(bytes);
}

void tsr_operands_free(void *memory)
{
    free(memory);
}

tsr_status tsr_operands_finish(void)
{
    return TSR_OK;
}
