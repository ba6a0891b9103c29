/* allocator.h: the device allocator, run by the engine at emission, in host issue order.
 *
 * Rules of PyTorch's native caching allocator (sections of caching-allocator.md in brackets):
 * rounding [2], small and large pools [1, 3], best fit per stream, split [4], merge [5],
 * expandable segments [7], garbage collection [8], free-and-retry and out of memory [4.4].
 * The allocator only does arithmetic on addresses: executors back the segments.
 */
#ifndef TSR_ALLOCATOR_H
#define TSR_ALLOCATOR_H

#include "base.h"

struct tsr_allocator;

struct tsr_allocator_config {
    uint64_t device_bytes; /* 0: unlimited */
    bool expandable_segments;
    uint64_t max_split_bytes;          /* 0: unlimited */
    unsigned roundup_power2_divisions; /* 0: off */
    double gc_threshold;               /* 0: off; else fraction of device_bytes */
    uint64_t large_segment_bytes;      /* 0: the default, 20 MiB */
};

enum tsr_segment_action { TSR_SEG_ALLOC, TSR_SEG_FREE, TSR_SEG_MAP, TSR_SEG_UNMAP };

/* Called for every device allocation or release, before the block that needed it is handed out.
 * `segment` is a number that is never used again. */
typedef void (*tsr_segment_fn)(void *user, enum tsr_segment_action action, uint32_t segment,
                               uint64_t address, uint64_t bytes, uint16_t stream);
/* Called once per retry (device full), before the cached segments are released: the real allocator
 * waits for the device here. */
typedef void (*tsr_retry_fn)(void *user);

struct tsr_block {
    uint32_t segment;
    uint64_t address; /* relative to the device's lowest */
    uint64_t bytes;   /* the block's size: what counts as allocated */
    void *handle;     /* for tsr_allocator_free() */
};

struct tsr_allocator_stats {
    uint64_t allocated, requested, reserved;
    uint64_t peak_allocated, peak_requested, peak_reserved; /* since the last reset_peaks */
    uint64_t n_alloc_retries, n_ooms;
    uint64_t inactive_split; /* free bytes inside split segments */
};

/* NULL callbacks are allowed. */
tsr_status tsr_allocator_create(const struct tsr_allocator_config *config,
                                tsr_segment_fn on_segment, tsr_retry_fn on_retry, void *user,
                                struct tsr_allocator **out) TSR_MUST_USE;
void tsr_allocator_destroy(struct tsr_allocator *allocator);
/* The order between streams decides the order of releases in a retry: lower comes first.
 * Default: the stream number. */
void tsr_allocator_set_stream_order(struct tsr_allocator *allocator, uint16_t stream,
                                    uint16_t order);
/* bytes > 0. Errors: TSR_EOOM with a text that gives request, device size, reserved and allocated
 * bytes; TSR_ENOMEM. */
tsr_status tsr_allocator_alloc(struct tsr_allocator *allocator, uint64_t bytes, uint16_t stream,
                               struct tsr_block *out) TSR_MUST_USE;
void tsr_allocator_free(struct tsr_allocator *allocator, void *handle);
/* empty_cache(): gives every unsplit free segment back. */
void tsr_allocator_empty_cache(struct tsr_allocator *allocator);
struct tsr_allocator_stats tsr_allocator_stats(const struct tsr_allocator *allocator);
void tsr_allocator_reset_peaks(struct tsr_allocator *allocator);

#endif
