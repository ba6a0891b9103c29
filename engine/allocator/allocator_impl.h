/* allocator_impl.h: the parts of the allocator. Private to allocator*.c.
 *
 * A segment is a device allocation (or, expandable, an address range that is mapped in units). Its
 * blocks tile it, chained in order of address by prev/next. Invariants:
 *   - a block is in use, or in exactly one of its pool's two sets: `blocks` (free, mapped) or
 *     `unmapped` (address range without memory behind it; expandable segments only);
 *   - two neighbours are never both free, nor both unmapped: they would have been merged;
 *   - a free block is the whole segment iff its size is the segment's: "unsplit".
 * Structs come from an arena and are recycled, and the sets are intrusive: freeing needs no memory.
 */
#ifndef TSR_ENGINE_ALLOCATOR_IMPL_H
#define TSR_ENGINE_ALLOCATOR_IMPL_H

#include "engine/allocator/allocator.h"

/* Section 1 of caching-allocator.md. */
#define TSR_ALLOC_ROUND       UINT64_C(512)
#define TSR_ALLOC_SMALL       (UINT64_C(1) << 20)
#define TSR_ALLOC_SMALL_SEG   (UINT64_C(2) << 20)
#define TSR_ALLOC_MID         (UINT64_C(10) << 20)
#define TSR_ALLOC_LARGE_SEG   (UINT64_C(20) << 20)
#define TSR_ALLOC_ROUND_LARGE (UINT64_C(2) << 20)
#define TSR_ALLOC_MAX_OPTION  (UINT64_C(1) << 50) /* sums with it stay far from overflow */

enum { TSR_ALLOC_N_STREAM_ORDERS = 256 }; /* streams beyond it are ordered by number */

struct tsr_alloc_segment {
    struct tsr_alloc_segment *next; /* in the list of released ranges */
    uint64_t address, bytes;
    uint32_t id;
    uint16_t stream;
    bool small, expandable;
};

/* A piece of a segment (the invariants above). left, right and link are of the set that it is in,
 * and mean nothing while it is in use; requested counts only then. */
struct tsr_alloc_block {
    /* What a search reads comes first: most often one cache line. */
    struct tsr_alloc_block *left, *right; /* tree of the set; left also chains recycled structs */
    struct tsr_alloc_block **link;        /* what points to this one in the tree */
    uint64_t bytes, address;
    uint32_t stream_key; /* order of the stream, then its number */
    uint32_t priority;   /* heap order of the tree */
    bool in_use, unmapped;
    struct tsr_alloc_segment *segment;
    struct tsr_alloc_block *prev, *next; /* neighbours in the segment */
    uint64_t requested;
    uint64_t free_since; /* look-ups in the pool when it became free (garbage collection) */
};

/* Free blocks in order of (stream, size, address); unmapped ones in order of (stream, address). */
struct tsr_alloc_set {
    struct tsr_alloc_block *root;
};
struct tsr_alloc_key {
    uint32_t stream_key;
    uint64_t bytes, address;
};
void tsr_alloc_set_insert(struct tsr_alloc_set *set, struct tsr_alloc_block *block);
void tsr_alloc_set_remove(struct tsr_alloc_block *block); /* from the set that it is in */
/* First block at or after `key`, last block before it; NULL if none. */
struct tsr_alloc_block *tsr_alloc_set_at_least(const struct tsr_alloc_set *set,
                                               struct tsr_alloc_key key);
struct tsr_alloc_block *tsr_alloc_set_before(const struct tsr_alloc_set *set,
                                             struct tsr_alloc_key key);
struct tsr_alloc_block *tsr_alloc_set_after(const struct tsr_alloc_set *set,
                                            const struct tsr_alloc_block *block);
struct tsr_alloc_block *tsr_alloc_set_first(const struct tsr_alloc_set *set);

struct tsr_alloc_pool {
    struct tsr_alloc_set blocks, unmapped;
    uint64_t reserved;
    uint64_t n_lookups;
    bool small;
};

/* Invariant: stats.allocated is the sum over the blocks in use, pool.reserved that of a pool's
 * segments (of what is mapped of them). `released` chains address ranges that the device has back,
 * oldest first: the next segment of their size gets them again. */
struct tsr_allocator {
    struct tsr_allocator_config config;
    tsr_segment_fn on_segment;
    tsr_release_fn on_release;
    void *user;
    bool told_release; /* on_release was called in this call */
    struct tsr_arena arena;
    struct tsr_alloc_pool large, small;
    struct tsr_alloc_block *spare; /* recycled structs */
    uint32_t n_spare, n_segments, random;
    uint64_t device_end; /* end of the addresses ever used */
    struct tsr_alloc_segment *released, **released_tail;
    struct tsr_allocator_stats stats;
    struct tsr_allocator_oom oom;
    uint16_t order[TSR_ALLOC_N_STREAM_ORDERS];
};

/* allocator_blocks.c */
/* Makes sure that `n` block structs can be taken. */
bool tsr_alloc_reserve(struct tsr_allocator *a, uint32_t n);
/* A new block of `segment`; TSR_CHECKs that it was reserved. */
struct tsr_alloc_block *tsr_alloc_block_new(struct tsr_allocator *a,
                                            struct tsr_alloc_segment *segment, uint64_t address,
                                            uint64_t bytes);
void tsr_alloc_block_recycle(struct tsr_allocator *a, struct tsr_alloc_block *block);
/* Links `block` behind `prev` (NULL: as the first) in its segment's chain. */
void tsr_alloc_block_link(struct tsr_alloc_block *block, struct tsr_alloc_block *prev,
                          struct tsr_alloc_block *next);
uint32_t tsr_alloc_stream_key(const struct tsr_allocator *a, uint16_t stream);
/* Put a block into, or take it out of, the set of its pool that its state says. */
void tsr_alloc_shelve(struct tsr_allocator *a, struct tsr_alloc_block *block);
void tsr_alloc_unshelve(struct tsr_allocator *a, struct tsr_alloc_block *block);
/* Merges `block` (in no set) with its neighbours of the same state. */
void tsr_alloc_merge(struct tsr_allocator *a, struct tsr_alloc_block *block);
bool tsr_alloc_is_unsplit(const struct tsr_alloc_block *block);

/* allocator_device.c */
uint64_t tsr_alloc_large_segment(const struct tsr_allocator *a);
/* Bytes of the device allocation that a (rounded) request needs. */
uint64_t tsr_alloc_segment_bytes(const struct tsr_allocator *a, uint64_t bytes);
/* A new block for a request of `bytes`, in no set, at least that large; NULL if
 * the device is full. Needs 3 reserved structs and, for a new segment, memory for one more:
 * *no_memory tells. */
struct tsr_alloc_block *tsr_alloc_from_device(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                              uint64_t bytes, uint16_t stream, bool *no_memory);
/* All that can be given back, in the order of section 4.4. */
void tsr_alloc_release_all(struct tsr_allocator *a);
/* With max_split_bytes: frees oversize blocks of the stream; true if enough for `bytes`. */
bool tsr_alloc_release_oversize(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                uint64_t bytes, uint16_t stream);
/* Section 8. */
void tsr_alloc_collect_garbage(struct tsr_allocator *a);

#endif
