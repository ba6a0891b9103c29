/* device_memory.h: the memory of the device as an engine uses it, and the request that it could
 * not serve. Memory of the host: host_memory.h.
 */
#ifndef TSR_ENGINE_DEVICE_MEMORY_H
#define TSR_ENGINE_DEVICE_MEMORY_H

#include "engine/allocator/allocator.h"
#include "engine/program/program.h"

struct tsr_engine;

/* What the engine's allocator holds after what was emitted so far, and its peaks; bytes. */
struct tsr_allocator_stats tsr_engine_memory(const struct tsr_engine *engine);

/* The request that ended a step with TSR_EOOM. */
struct tsr_oom {
    uint8_t category;                /* enum tsr_category */
    struct tsr_origin origin;        /* who asked: module, group, phase, micro-batch */
    struct tsr_allocator_oom memory; /* its size and stream, and what there was after the retry */
};
/* False, and *out untouched: no step ran out of memory. */
bool tsr_engine_oom(const struct tsr_engine *engine, struct tsr_oom *out);

#endif
