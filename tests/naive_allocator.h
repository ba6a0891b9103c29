/* naive_allocator.h: the caching allocator once more, as simply as its rules can be written: one
 * list of all blocks, looked through from end to end. Section numbers are those of
 * tests/golden-memory/caching-allocator.md.
 *
 * The property test holds engine/allocator/allocator.c against it, the benchmark measures what
 * trees gain.
 */
#ifndef TSR_NAIVE_ALLOCATOR_H
#define TSR_NAIVE_ALLOCATOR_H

#include <stdlib.h>

#include "engine/allocator/allocator.h"

#define NAIVE_MIB (UINT64_C(1) << 20)

struct naive_segment {
    struct naive_segment *next; /* among the released ranges */
    uint64_t address, bytes;
    uint16_t stream;
    bool small, expandable;
};

struct naive_block {
    struct naive_block *prev, *next; /* in the list of all; blocks of a segment lie side by side */
    struct naive_segment *segment;
    uint64_t address, bytes, requested, free_since;
    bool used, unmapped;
};

struct naive {
    struct tsr_allocator_config config;
    struct naive_block *first, *last, *spare;
    struct naive_segment *released, *dead; /* ranges to use again, ranges that are not */
    struct tsr_allocator_stats stats;
    uint64_t device_end, n_lookups[2]; /* [small] */
    tsr_segment_fn on_segment;
    void *user;
};

static inline void *naive_memory(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        abort();
    return memory;
}

static inline void naive_init(struct naive *n, const struct tsr_allocator_config *config,
                              tsr_segment_fn on_segment, void *user)
{
    *n = (struct naive){.config = *config, .on_segment = on_segment, .user = user};
    if (!n->config.large_segment_bytes)
        n->config.large_segment_bytes = 20 * NAIVE_MIB;
    if (!n->config.max_non_split_rounding_bytes)
        n->config.max_non_split_rounding_bytes = n->config.large_segment_bytes;
    if (!n->config.max_split_bytes)
        n->config.max_split_bytes = UINT64_MAX;
}

static inline void naive_tell(const struct naive *n, enum tsr_segment_action action,
                              const struct naive_segment *s, uint64_t address, uint64_t bytes)
{
    if (n->on_segment)
        n->on_segment(n->user, action, 0, address, bytes, s->stream);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* A block behind `prev`; NULL: at the end. */
static inline struct naive_block *naive_insert(struct naive *n, struct naive_block *prev,
                                               struct naive_segment *segment, uint64_t address,
                                               uint64_t bytes)
{
    struct naive_block *b = n->spare ? n->spare : naive_memory(sizeof *b);
    n->spare = n->spare ? n->spare->next : NULL;
    prev = prev ? prev : n->last;
    *b = (struct naive_block){.prev = prev,
                              .next = prev ? prev->next : NULL,
                              .segment = segment,
                              .address = address,
                              .bytes = bytes};
    *(b->prev ? &b->prev->next : &n->first) = b;
    *(b->next ? &b->next->prev : &n->last) = b;
    return b;
}

static inline void naive_remove(struct naive *n, struct naive_block *b)
{
    *(b->prev ? &b->prev->next : &n->first) = b->next;
    *(b->next ? &b->next->prev : &n->last) = b->prev;
    b->next = n->spare;
    n->spare = b;
}

/* Neighbours in the segment. */
static inline struct naive_block *naive_left(const struct naive_block *b)
{
    return b->prev && b->prev->segment == b->segment ? b->prev : NULL;
}
static inline struct naive_block *naive_right(const struct naive_block *b)
{
    return b->next && b->next->segment == b->segment ? b->next : NULL;
}
static inline bool naive_whole(const struct naive_block *b)
{
    return !naive_left(b) && !naive_right(b);
}

static inline void naive_merge(struct naive *n, struct naive_block *b)
{
    struct naive_block *side[2] = {naive_left(b), naive_right(b)};
    for (int i = 0; i < 2; i++)
        if (side[i] && !side[i]->used && side[i]->unmapped == b->unmapped) {
            b->address = side[i]->address < b->address ? side[i]->address : b->address;
            b->bytes += side[i]->bytes;
            naive_remove(n, side[i]);
        }
}

/* ---- device (section 4) ---------------------------------------------------------------------- */

static inline bool naive_room(const struct naive *n, uint64_t bytes)
{
    return !n->config.device_bytes || n->stats.reserved + bytes <= n->config.device_bytes;
}

static inline void naive_grow(struct naive *n, uint64_t bytes)
{
    n->stats.reserved += bytes;
    n->stats.peak_reserved = tsr_max_u64(n->stats.peak_reserved, n->stats.reserved);
}

/* The range of exactly this size that was released first, else the end of what was ever used. */
static inline struct naive_segment *naive_range(struct naive *n, uint64_t bytes, uint16_t stream,
                                                bool small, bool expandable)
{
    struct naive_segment **at = &n->released, *s;
    while (*at && (expandable || (*at)->bytes != bytes))
        at = &(*at)->next;
    s = *at;
    if (s)
        *at = s->next;
    else {
        s = naive_memory(sizeof *s);
        s->address = n->device_end;
        n->device_end += bytes;
    }
    s->bytes = bytes;
    s->stream = stream;
    s->small = small;
    s->expandable = expandable;
    return s;
}

static inline void naive_release(struct naive *n, struct naive_block *b)
{
    struct naive_segment *s = b->segment, **end = &n->released;
    naive_tell(n, TSR_SEG_FREE, s, s->address, s->bytes);
    n->stats.reserved -= s->bytes;
    while (*end)
        end = &(*end)->next;
    *end = s;
    s->next = NULL;
    naive_remove(n, b);
}

static inline uint64_t naive_unit(const struct naive *n, bool small)
{
    return small ? 2 * NAIVE_MIB : n->config.large_segment_bytes;
}

/* ---- expandable segments (section 7) --------------------------------------------------------- */

static inline bool naive_map(struct naive *n, struct naive_block *b, uint64_t bytes)
{
    bytes = tsr_round_up(bytes, naive_unit(n, b->segment->small));
    bytes = bytes < b->bytes ? bytes : b->bytes;
    if (!naive_room(n, bytes))
        return false;
    if (bytes < b->bytes)
        naive_insert(n, b, b->segment, b->address + bytes, b->bytes - bytes)->unmapped = true;
    b->bytes = bytes;
    b->unmapped = false;
    naive_grow(n, bytes);
    naive_tell(n, TSR_SEG_MAP, b->segment, b->address, bytes);
    naive_merge(n, b);
    b->free_since = n->n_lookups[b->segment->small];
    return true;
}

static inline bool naive_can_grow_to(const struct naive_block *b, uint64_t bytes)
{
    uint64_t room = 0;
    for (; b && !b->used && room < bytes; b = naive_right(b))
        room += b->bytes;
    return room >= bytes;
}

/* The unmapped block with the lowest address that has enough room with what is free around it. */
static inline struct naive_block *naive_growable(struct naive *n, bool small, uint64_t bytes,
                                                 uint16_t stream)
{
    struct naive_block *best = NULL;
    uint64_t lowest = UINT64_MAX;
    for (struct naive_block *b = n->first; b; b = b->next) {
        if (!b->unmapped || b->segment->small != small || b->segment->stream != stream ||
            b->address >= lowest)
            continue;
        struct naive_block *left = naive_left(b), *from = left && !left->used ? left : b;
        if (!naive_can_grow_to(from, bytes))
            continue;
        best = from;
        lowest = b->address;
    }
    if (best)
        return best;
    uint64_t device = n->config.device_bytes ? n->config.device_bytes : UINT64_C(1) << 50;
    uint64_t size = tsr_round_up(device + device / 8, naive_unit(n, small));
    if (bytes > size)
        return NULL;
    struct naive_segment *s = naive_range(n, size, stream, small, true);
    best = naive_insert(n, NULL, s, s->address, size);
    best->unmapped = true;
    return best;
}

static inline struct naive_block *naive_expand(struct naive *n, bool small, uint64_t bytes,
                                               uint16_t stream)
{
    struct naive_block *b = naive_growable(n, small, bytes, stream);
    if (!b || (b->unmapped && !naive_map(n, b, tsr_min_u64(bytes, b->bytes))))
        return NULL;
    while (b->bytes < bytes) {
        struct naive_block *next = naive_right(b);
        if (!naive_map(n, next, tsr_min_u64(bytes - b->bytes, next->bytes)))
            return NULL;
        b = next; /* has taken b in */
    }
    return b;
}

static inline void naive_unmap(struct naive *n, struct naive_block *b)
{
    struct naive_segment *s = b->segment;
    uint64_t unit = naive_unit(n, s->small), end = b->address + b->bytes;
    uint64_t from = s->address + tsr_round_up(b->address - s->address, unit);
    uint64_t to = s->address + (end - s->address) / unit * unit;
    if (from >= to)
        return;
    if (to < end)
        naive_insert(n, b, s, to, end - to)->free_since = n->n_lookups[s->small];
    if (from > b->address) {
        struct naive_block *front = b;
        b = naive_insert(n, front, s, from, 0);
        front->bytes = from - front->address;
    }
    b->bytes = to - from;
    b->unmapped = true;
    n->stats.reserved -= b->bytes;
    naive_tell(n, TSR_SEG_UNMAP, s, from, to - from);
    naive_merge(n, b);
    if (!naive_whole(b))
        return;
    s->next = n->dead;
    n->dead = s;
    naive_remove(n, b);
}

/* ---- what is given back ---------------------------------------------------------------------- */

/* Order of a pool's set: stream, size, address. */
static inline bool naive_before(const struct naive_block *a, const struct naive_block *b)
{
    if (a->segment->stream != b->segment->stream)
        return a->segment->stream < b->segment->stream;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes;
    return a->address < b->address;
}

/* The free block of a pool that comes next after `key` (NULL: the first) in that order. */
static inline struct naive_block *naive_next(const struct naive *n, bool small,
                                             const struct naive_block *key)
{
    struct naive_block *best = NULL;
    for (struct naive_block *b = n->first; b; b = b->next)
        if (!b->used && !b->unmapped && b->segment->small == small &&
            (!key || naive_before(key, b)) && (!best || naive_before(b, best)))
            best = b;
    return best;
}

static inline void naive_release_all(struct naive *n)
{
    for (int small = 0; small < 2; small++) {
        struct naive_block *b = naive_next(n, small, NULL), key;
        struct naive_segment segment;
        for (; b; b = naive_next(n, small, &key)) {
            key = *b;
            segment = *b->segment; /* both may be gone */
            key.segment = &segment;
            if (b->segment->expandable)
                naive_unmap(n, b);
            else if (naive_whole(b))
                naive_release(n, b);
        }
    }
}

static inline struct naive_block *naive_largest(const struct naive *n, bool small, uint16_t stream,
                                                bool plain)
{
    struct naive_block *best = NULL;
    for (struct naive_block *b = n->first; b; b = b->next)
        if (!b->used && !b->unmapped && b->segment->small == small &&
            b->segment->stream == stream && (!plain || !b->segment->expandable) &&
            (!best || naive_before(best, b)))
            best = b;
    return best;
}

/* Oversize blocks: the smallest that is enough, else the largest ones until they are. */
static inline bool naive_release_oversize(struct naive *n, bool small, uint64_t bytes,
                                          uint16_t stream)
{
    uint64_t max_split = n->config.max_split_bytes, want = tsr_max_u64(bytes, max_split), sum = 0;
    if (max_split == UINT64_MAX || n->config.expandable_segments)
        return false;
    struct naive_block *fit = NULL, *b;
    for (b = n->first; b; b = b->next)
        if (!b->used && b->segment->small == small && b->segment->stream == stream &&
            b->bytes >= want && (!fit || naive_before(b, fit)))
            fit = b;
    if (fit) {
        naive_release(n, fit);
        return true;
    }
    while (sum < want && (b = naive_largest(n, small, stream, true)) && b->bytes >= max_split) {
        sum += b->bytes;
        naive_release(n, b);
    }
    return sum >= want;
}

/* Section 8. */
static inline void naive_collect(struct naive *n)
{
    uint64_t limit = (uint64_t)(n->config.gc_threshold * (double)n->config.device_bytes);
    uint64_t target = n->stats.reserved > limit ? n->stats.reserved - limit : 0, done = 0;
    for (bool progress = true; done < target && progress;) {
        uint64_t ages = 0, count = 0, now = n->n_lookups[0];
        for (struct naive_block *b = n->first; b; b = b->next)
            if (!b->used && !b->segment->small && !b->segment->expandable && naive_whole(b)) {
                ages += now - b->free_since;
                count++;
            }
        progress = false;
        struct naive_block *b = naive_next(n, false, NULL), key;
        struct naive_segment segment;
        for (; b && count; b = naive_next(n, false, &key)) {
            key = *b;
            segment = *b->segment;
            key.segment = &segment;
            if (b->segment->expandable || !naive_whole(b) ||
                (double)(now - b->free_since) < (double)ages / (double)count)
                continue;
            done += b->bytes;
            progress = true;
            naive_release(n, b);
        }
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Section 2. */
static inline uint64_t naive_round(const struct naive *n, uint64_t bytes)
{
    uint64_t divisions = n->config.roundup_power2_divisions, power = 1;
    while (power * 2 <= bytes)
        power *= 2;
    if (n->config.roundup_classes[0]) {
        int i = 0;
        while (i < 15 && (NAIVE_MIB << (i + 1)) <= bytes)
            i++;
        divisions = n->config.roundup_classes[i];
    }
    if (divisions > 1 && bytes > 512 * divisions)
        return tsr_round_up(bytes, power / divisions);
    return tsr_round_up(bytes, 512);
}

static inline uint64_t naive_reach(const struct naive_block *b)
{
    const struct naive_block *right = naive_right(b);
    return b->bytes + (right && right->unmapped ? right->bytes : 0);
}

static inline struct naive_block *naive_best_fit(struct naive *n, bool small, uint64_t bytes,
                                                 uint16_t stream)
{
    struct naive_block *best = NULL;
    n->n_lookups[small]++;
    for (struct naive_block *b = n->first; b; b = b->next)
        if (!b->used && b->bytes >= bytes && b->segment->small == small &&
            b->segment->stream == stream && !b->unmapped && (!best || naive_before(b, best)))
            best = b;
    while (best && best->segment->expandable) {
        struct naive_block *next = naive_next(n, small, best);
        if (!next || next->segment->stream != stream || naive_reach(next) >= naive_reach(best))
            break;
        best = next;
    }
    if (!best || (bytes < n->config.max_split_bytes && best->bytes >= n->config.max_split_bytes))
        return NULL;
    if (bytes >= n->config.max_split_bytes &&
        best->bytes >= bytes + n->config.max_non_split_rounding_bytes)
        return NULL;
    return best;
}

static inline struct naive_block *naive_from_device(struct naive *n, bool small, uint64_t bytes,
                                                    uint16_t stream)
{
    if (n->config.expandable_segments)
        return naive_expand(n, small, bytes, stream);
    uint64_t size = small                    ? 2 * NAIVE_MIB
                    : bytes < 10 * NAIVE_MIB ? n->config.large_segment_bytes
                                             : tsr_round_up(bytes, 2 * NAIVE_MIB);
    if (!naive_room(n, size))
        return NULL;
    struct naive_segment *s = naive_range(n, size, stream, small, false);
    naive_grow(n, size);
    naive_tell(n, TSR_SEG_ALLOC, s, s->address, size);
    return naive_insert(n, NULL, s, s->address, size);
}

/* NULL: out of memory. The block's `address` and `bytes` are what was handed out. */
static inline struct naive_block *naive_alloc(struct naive *n, uint64_t bytes, uint16_t stream)
{
    uint64_t size = naive_round(n, bytes);
    bool small = size <= NAIVE_MIB;
    struct naive_block *b = naive_best_fit(n, small, size, stream);
    if (!b) {
        if (n->config.gc_threshold > 0.0 && n->config.device_bytes)
            naive_collect(n);
        b = naive_from_device(n, small, size, stream);
        if (!b && naive_release_oversize(n, small, size, stream))
            b = naive_from_device(n, small, size, stream);
        if (!b) {
            naive_release_all(n);
            n->stats.n_alloc_retries++;
            b = naive_from_device(n, small, size, stream);
        }
    }
    if (!b) {
        n->stats.n_ooms++;
        return NULL;
    }
    uint64_t rest = b->bytes - size;
    bool split = small || n->config.expandable_segments
                     ? rest >= 512
                     : rest > NAIVE_MIB && size < n->config.max_split_bytes;
    if (split) {
        naive_insert(n, b, b->segment, b->address + size, rest)->free_since = n->n_lookups[small];
        b->bytes = size;
    }
    b->used = true;
    b->requested = bytes;
    n->stats.allocated += b->bytes;
    n->stats.requested += bytes;
    n->stats.peak_allocated = tsr_max_u64(n->stats.peak_allocated, n->stats.allocated);
    n->stats.peak_requested = tsr_max_u64(n->stats.peak_requested, n->stats.requested);
    return b;
}

static inline void naive_free(struct naive *n, struct naive_block *b)
{
    n->stats.allocated -= b->bytes;
    n->stats.requested -= b->requested;
    b->used = false;
    b->free_since = n->n_lookups[b->segment->small];
    naive_merge(n, b);
}

/* Counted on demand: free bytes inside split segments. */
static inline uint64_t naive_inactive_split(const struct naive *n)
{
    uint64_t sum = 0;
    for (const struct naive_block *b = n->first; b; b = b->next)
        if (!b->used && !b->segment->expandable && !naive_whole(b))
            sum += b->bytes;
    return sum;
}

static inline void naive_fini(struct naive *n)
{
    while (n->first) {
        struct naive_segment *s = n->first->segment;
        bool last_of_segment = !naive_right(n->first);
        naive_remove(n, n->first);
        if (last_of_segment)
            free(s);
    }
    for (struct naive_block *b = n->spare; b; b = n->spare) {
        n->spare = b->next;
        free(b);
    }
    struct naive_segment *lists[2] = {n->released, n->dead};
    for (int i = 0; i < 2; i++)
        for (struct naive_segment *s = lists[i]; s; s = lists[i]) {
            lists[i] = s->next;
            free(s);
        }
}

#endif
