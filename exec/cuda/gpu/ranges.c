/* ranges.c: ranges for a profiler, by NVTX, which is in headers only: it looks for one when it is
 * first used.
 */
#include "exec/cuda/gpu/ranges.h"

#if TSR_NVTX

#include <nvtx3/nvToolsExt.h>

static void end_module(struct tsr_cuda_ranges *r)
{
    if (r->has_module)
        (void)nvtxRangePop();
    r->has_module = false;
}

void tsr_cuda_ranges_end(struct tsr_cuda_ranges *r)
{
    end_module(r);
    if (r->has_phase)
        (void)nvtxRangePop();
    r->has_phase = false;
}

void tsr_cuda_ranges_next(struct tsr_cuda_ranges *r, const struct tsr_tables *tables,
                          const struct tsr_origin *origin)
{
    if (!r->has_phase || r->phase != origin->phase) {
        tsr_cuda_ranges_end(r);
        (void)nvtxRangePushA(tsr_phase_name(origin->phase));
        r->has_phase = true;
        r->phase = origin->phase;
    }
    if (r->has_module && r->module == origin->module)
        return;
    end_module(r);
    if (!tables || origin->module >= tables->n_modules)
        return;
    (void)nvtxRangePushA(*tables->modules[origin->module] ? tables->modules[origin->module]
                                                          : "(root)");
    r->has_module = true;
    r->module = origin->module;
}

void tsr_cuda_ranges_graph(struct tsr_cuda_ranges *r)
{
    tsr_cuda_ranges_end(r);
    (void)nvtxRangePushA("graph");
    r->has_phase = true;
    r->phase = TSR_N_PHASES;
}

#endif
