/* allocator.h: the device allocator, run by the engine at emission, in host issue order.
 *
 * Rules of PyTorch's native caching allocator (sections of caching-allocator.md in brackets):
 * rounding [2], small and large pools [1, 3], best fit per stream, split [4], merge [5],
 * expandable segments [7], garbage collection [8], free-and-retry and out of memory [4.4].
 * The allocator only does arithmetic on addresses: executors back the segments.
 */
#ifndef TSR_ENGINE_ALLOCATOR_H
#define TSR_ENGINE_ALLOCATOR_H

#include "engine/program/base.h"

struct tsr_allocator;

enum { TSR_ALLOC_N_ROUNDUP_CLASSES = 16 };

struct tsr_allocator_config {
    uint64_t device_bytes; /* 0: unlimited */
    bool expandable_segments;
    uint64_t max_split_bytes;              /* 0: unlimited */
    uint64_t max_non_split_rounding_bytes; /* 0: the default, large_segment_bytes */
    unsigned roundup_power2_divisions;     /* 0: off */
    /* Divisions by size class, in place of the one number: [i] is for requests from 2^i MiB to
     * below 2^(i+1) MiB; the first also for smaller ones, the last also for larger. [0] = 0: not
     * used. */
    unsigned roundup_classes[TSR_ALLOC_N_ROUNDUP_CLASSES];
    double gc_threshold; /* 0: off; else fraction of device_bytes. PyTorch collects only if a memory
                            fraction below 1 is set; device_bytes is then that part of the card. */
    uint64_t large_segment_bytes; /* 0: the default, 20 MiB */
};

enum tsr_segment_action { TSR_SEG_ALLOC, TSR_SEG_FREE, TSR_SEG_MAP, TSR_SEG_UNMAP };

/* Called for every device allocation or release, before the block that needed it is handed out.
 * `segment` is a number that is never used again. */
typedef void (*tsr_segment_fn)(void *user, enum tsr_segment_action action, uint32_t segment,
                               uint64_t address, uint64_t bytes, uint16_t stream);
/* Called before segments are given back to the device, once for all that one call gives back: for a
 * retry, oversize blocks, garbage alike. The driver frees or unmaps memory only
 * when the device is idle, so the host waits here. */
typedef void (*tsr_release_fn)(void *user);

struct tsr_block {
    uint32_t segment;
    uint64_t address; /* relative to the device's lowest */
    uint64_t bytes;   /* the block's size: what counts as allocated */
    void *handle;     /* for tsr_allocator_free() */
};

/* Bytes and counts. requested: as asked for; allocated: as blocks; reserved: device allocations. */
struct tsr_allocator_stats {
    uint64_t allocated, requested, reserved;
    uint64_t peak_allocated, peak_requested, peak_reserved; /* so far */
    uint64_t n_alloc_retries, n_ooms;
    uint64_t inactive_split; /* free bytes inside split segments */
};

/* The last request that was refused, and what there was at that moment, in bytes. */
struct tsr_allocator_oom {
    uint64_t requested, rounded; /* as asked for; as a block */
    uint64_t device;             /* needed from the device: the request's segment */
    uint64_t limit, free;        /* the device's size, and what nobody has reserved of it */
    uint64_t allocated, reserved;
    uint64_t reserved_small, reserved_large; /* by pool */
    uint64_t cached;                         /* free inside reserved segments, all streams */
    uint64_t largest_cached;                 /* the largest such block, of any stream and pool */
    uint64_t largest_usable;                 /* the largest of the request's stream and pool */
    uint16_t stream;
};

/* NULL callbacks are allowed; `user` is theirs. *out is given to tsr_allocator_destroy(). Errors:
 * TSR_ECONFIG for options that PyTorch refuses, TSR_ENOMEM. */
tsr_status tsr_allocator_create(const struct tsr_allocator_config *config,
                                tsr_segment_fn on_segment, tsr_release_fn on_release, void *user,
                                struct tsr_allocator **out) TSR_MUST_USE;
/* Calls no callback. NULL is fine. */
void tsr_allocator_destroy(struct tsr_allocator *allocator);
/* The order between streams decides the order of releases in a retry: lower comes first.
 * Default: the stream number. */
void tsr_allocator_set_stream_order(struct tsr_allocator *allocator, uint16_t stream,
                                    uint16_t order);
/* bytes > 0. Errors: TSR_EOOM with a text that gives the request, the device's size and what is
 * free on it, reserved and allocated bytes and the largest free block; TSR_ENOMEM. */
tsr_status tsr_allocator_alloc(struct tsr_allocator *allocator, uint64_t bytes, uint16_t stream,
                               struct tsr_block *out) TSR_MUST_USE;
/* handle: of the block that tsr_allocator_alloc() gave, once. */
void tsr_allocator_free(struct tsr_allocator *allocator, void *handle);
struct tsr_allocator_stats tsr_allocator_stats(const struct tsr_allocator *allocator);
/* Of what it has cached: free blocks, unmapped ranges, released ones. Allocators with equal digests
 * and equal blocks in use hand out the same. 0: garbage is collected by age, which no digest has.
 */
uint64_t tsr_allocator_digest(const struct tsr_allocator *allocator);
/* All 0 before the first TSR_EOOM. */
struct tsr_allocator_oom tsr_allocator_oom_info(const struct tsr_allocator *allocator);

#endif
