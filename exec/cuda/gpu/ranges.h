/* ranges.h: what the host submits, as NVTX ranges for a profiler (Nsight Systems): the phase, and
 * in it the module. Compiled in with TESSERA_NVTX; otherwise it costs nothing.
 */
#ifndef TSR_CUDA_RANGES_H
#define TSR_CUDA_RANGES_H

#include "engine/program/program.h"

/* Of the thread that submits. */
struct tsr_cuda_ranges {
    bool has_phase, has_module;
    uint8_t phase;
    uint32_t module;
};

#if TSR_NVTX
/* The instruction is submitted next. tables: NULL: modules have no names. */
void tsr_cuda_ranges_next(struct tsr_cuda_ranges *ranges, const struct tsr_tables *tables,
                          const struct tsr_origin *origin);
/* A whole graph is. */
void tsr_cuda_ranges_graph(struct tsr_cuda_ranges *ranges);
void tsr_cuda_ranges_end(struct tsr_cuda_ranges *ranges);
#else
static inline void tsr_cuda_ranges_next(struct tsr_cuda_ranges *ranges,
                                        const struct tsr_tables *tables,
                                        const struct tsr_origin *origin)
{
    (void)ranges;
    (void)tables;
    (void)origin;
}
static inline void tsr_cuda_ranges_graph(struct tsr_cuda_ranges *ranges)
{
    (void)ranges;
}
static inline void tsr_cuda_ranges_end(struct tsr_cuda_ranges *ranges)
{
    (void)ranges;
}
#endif

#endif
