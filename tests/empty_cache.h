/* empty_cache.h: torch.cuda.empty_cache(), which recordings of PyTorch's allocator call and
 * training does not: every unsplit free segment goes back to the device.
 */
#ifndef TSR_TESTS_EMPTY_CACHE_H
#define TSR_TESTS_EMPTY_CACHE_H

#include "engine/allocator/allocator_impl.h"

static inline void empty_cache(struct tsr_allocator *allocator)
{
    allocator->told_release = false; /* a call of its own: the host waits once more */
    tsr_alloc_release_all(allocator);
}

#endif
