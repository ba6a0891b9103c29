/* host_memory.h: memory of the host that a program holds, pageable and page-locked (pinned).
 *
 * HOST_ALLOC and HOST_FREE give and take buffers in host memory; the device allocator is not
 * involved. Pinned buffers come from a cache with PyTorch's rules (ATen/core/CachingHostAllocator):
 * sizes are rounded up to a power of two, a freed block serves later requests of the same size, and
 * page-locked memory is never given back. PIN is the cache's growth.
 *
 * PyTorch asks events whether a copy from or to a freed block is over. Here, where nothing depends
 * on timing, it counts as over when the host has since waited for the device, or an iteration (or
 * another section of the run: load, eval, save) has begun.
 */
#ifndef TSR_ENGINE_HOST_MEMORY_H
#define TSR_ENGINE_HOST_MEMORY_H

#include "engine/program/program.h"

/* Levels, bytes. Pageable buffers count as requested, pinned ones as their block. */
struct tsr_host_level {
    uint64_t host;   /* pageable buffers that are alive */
    uint64_t pinned; /* blocks of pinned buffers that are alive */
    uint64_t held;   /* page-locked memory of the process, with what lies in the cache */
};

struct tsr_host_peak {
    struct tsr_host_level most; /* maxima of each; the level at the start counts */
    struct tsr_host_level end;
    uint64_t process; /* maximum of what the process holds at a time: host + held */
    size_t instr;     /* the first instruction after which it holds that; 0 also: at the start */
};

/* Applies one instruction. Errors: TSR_EASSERT if more is freed than is there. */
tsr_status tsr_host_apply(struct tsr_host_level *level, const struct tsr_instr *instr) TSR_MUST_USE;
/* Replays a program from `level`, which becomes the level at its end. */
tsr_status tsr_host_replay(struct tsr_host_level *level, const struct tsr_program *program,
                           struct tsr_host_peak *peak) TSR_MUST_USE;

#endif
