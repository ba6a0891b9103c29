/* codes.c: the kernels of the GPU that compute what code of the host computes (exec/kernel.h), by
 * name, and how they are launched.
 */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "kernels/code.h"
#include "kernels/declare.h"

/* How work is dealt out to blocks of threads. */
enum spread {
    ELEMENTS, /* n elements, TSR_CUDA_ITEMS in a thread at a time */
    ROWS      /* a block has a row at a time */
};

struct entry {
    const char *name;
    enum spread spread;
    tsr_cuda_kernel f32, f64;
};

#define ENTRY(name, spread)                                         \
    {                                                               \
#name, spread, tsr_cuda_##name##_f32, tsr_cuda_##name##_f64 \
    }

/* In the order of strcmp(). */
static const struct entry entries[] = {
    ENTRY(swiglu, ELEMENTS),
    ENTRY(swiglu_backward, ELEMENTS),
};

static int compare(const void *name, const void *entry)
{
    return strcmp((const char *)name, ((const struct entry *)entry)->name);
}

/* Work for every thread, but no more blocks than fill the GPU a few times. */
static unsigned blocks_for(const struct tsr_kernel_call *call, uint64_t n)
{
    uint64_t most = (uint64_t)tsr_cuda_context(call)->n_sms * 16;
    return (unsigned)tsr_max_u64(tsr_min_u64(n, most), 1);
}

tsr_status tsr_cuda_launch_code(const struct tsr_kernel_call *call, const struct tsr_code *code,
                                bool wide, const void *params, uint64_t n)
{
    const struct entry *e =
        bsearch(code->name, entries, sizeof entries / sizeof *entries, sizeof *entries, compare);
    if (!e)
        return tsr_fail(TSR_EUNSUPPORTED, "the GPU has no code '%s'", code->name);
    uint64_t per_block = e->spread == ROWS ? 1 : (uint64_t)TSR_CUDA_THREADS * TSR_CUDA_ITEMS;
    const struct tsr_cuda_grid grid = {.blocks =
                                           blocks_for(call, n / per_block + (n % per_block != 0)),
                                       .threads = TSR_CUDA_THREADS};
    return tsr_cuda_launch(call, wide ? e->f64 : e->f32, grid, params);
}
