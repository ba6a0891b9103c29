/* allocator_device.c: device allocations: segments, expandable segments, what is given back.
 *
 * Where the device puts a segment is not the allocator's choice, yet it decides ties. The modelled
 * device takes the released range of exactly this size that was released first, if there is one,
 * otherwise the end of what was ever used.
 */
#include "engine/allocator/allocator_impl.h"

static void tell(const struct tsr_allocator *a, enum tsr_segment_action action,
                 const struct tsr_alloc_segment *segment, uint64_t address, uint64_t bytes)
{
    if (a->on_segment)
        a->on_segment(a->user, action, segment->id, address, bytes, segment->stream);
}

/* Before memory goes back to the device. */
static void tell_release(struct tsr_allocator *a)
{
    if (a->on_release && !a->told_release)
        a->on_release(a->user);
    a->told_release = true;
}

static void add_reserved(struct tsr_allocator *a, const struct tsr_alloc_segment *segment,
                         uint64_t bytes)
{
    (segment->small ? &a->small : &a->large)->reserved += bytes;
    a->stats.reserved += bytes;
    a->stats.peak_reserved = tsr_max_u64(a->stats.peak_reserved, a->stats.reserved);
}

static void sub_reserved(struct tsr_allocator *a, const struct tsr_alloc_segment *segment,
                         uint64_t bytes)
{
    (segment->small ? &a->small : &a->large)->reserved -= bytes;
    a->stats.reserved -= bytes;
}

static bool device_has_room(const struct tsr_allocator *a, uint64_t bytes)
{
    uint64_t after;
    if (!tsr_add_u64(a->stats.reserved, bytes, &after))
        return false;
    return !a->config.device_bytes || after <= a->config.device_bytes;
}

/* A range of addresses, with a segment number never used before. Expandable ranges are never used
 * again: their addresses stay reserved. */
static struct tsr_alloc_segment *segment_new(struct tsr_allocator *a, uint64_t bytes,
                                             uint16_t stream, bool small, bool expandable)
{
    struct tsr_alloc_segment **at = &a->released;
    while (!expandable && *at && (*at)->bytes != bytes)
        at = &(*at)->next;
    struct tsr_alloc_segment *segment = expandable ? NULL : *at;
    uint64_t address;
    if (segment) {
        address = segment->address;
        *at = segment->next;
        if (!*at)
            a->released_tail = at;
    } else {
        segment = tsr_arena_alloc(&a->arena, sizeof *segment);
        if (!segment)
            return NULL;
        address = a->device_end;
        a->device_end += bytes;
    }
    *segment = (struct tsr_alloc_segment){
        .address = address,
        .bytes = bytes,
        .id = a->n_segments++,
        .stream = stream,
        .small = small,
        .expandable = expandable,
    };
    return segment;
}

static void segment_retire(struct tsr_allocator *a, struct tsr_alloc_segment *segment)
{
    segment->next = NULL;
    *a->released_tail = segment;
    a->released_tail = &segment->next;
}

/* ---- plain segments -------------------------------------------------------------------------- */

uint64_t tsr_alloc_large_segment(const struct tsr_allocator *a)
{
    return a->config.large_segment_bytes ? a->config.large_segment_bytes : TSR_ALLOC_LARGE_SEG;
}

uint64_t tsr_alloc_segment_bytes(const struct tsr_allocator *a, uint64_t bytes)
{
    if (bytes <= TSR_ALLOC_SMALL)
        return TSR_ALLOC_SMALL_SEG;
    uint64_t rounded = tsr_round_up(bytes, TSR_ALLOC_ROUND_LARGE);
    if (bytes >= TSR_ALLOC_MID)
        return rounded;
    return tsr_max_u64(tsr_alloc_large_segment(a), rounded);
}

static struct tsr_alloc_block *from_segment(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                            uint64_t bytes, uint16_t stream, bool *no_memory)
{
    uint64_t size = tsr_alloc_segment_bytes(a, bytes);
    if (!device_has_room(a, size))
        return NULL;
    struct tsr_alloc_segment *segment = segment_new(a, size, stream, pool->small, false);
    if (!segment) {
        *no_memory = true;
        return NULL;
    }
    add_reserved(a, segment, size);
    tell(a, TSR_SEG_ALLOC, segment, segment->address, size);
    return tsr_alloc_block_new(a, segment, segment->address, size);
}

/* Gives an unsplit free block's segment back to the device. */
static void release_segment(struct tsr_allocator *a, struct tsr_alloc_block *block)
{
    struct tsr_alloc_segment *segment = block->segment;
    tell_release(a);
    tsr_alloc_unshelve(a, block);
    sub_reserved(a, segment, segment->bytes);
    tell(a, TSR_SEG_FREE, segment, segment->address, segment->bytes);
    segment_retire(a, segment);
    tsr_alloc_block_recycle(a, block);
}

/* ---- expandable segments --------------------------------------------------------------------- */

static uint64_t map_unit(const struct tsr_allocator *a, bool small)
{
    return small ? TSR_ALLOC_SMALL_SEG : tsr_alloc_large_segment(a);
}

/* Maps the first `bytes` (rounded up to units) of an unmapped block and merges it with its mapped
 * neighbours. The block stays on the shelf of free blocks. False when the device is full. */
static bool map_block(struct tsr_allocator *a, struct tsr_alloc_block *block, uint64_t bytes)
{
    bytes = tsr_min_u64(tsr_round_up(bytes, map_unit(a, block->segment->small)), block->bytes);
    if (!device_has_room(a, bytes))
        return false;
    tsr_alloc_unshelve(a, block);
    if (bytes < block->bytes) {
        struct tsr_alloc_block *rest =
            tsr_alloc_block_new(a, block->segment, block->address + bytes, block->bytes - bytes);
        rest->unmapped = true;
        tsr_alloc_block_link(rest, block, block->next);
        tsr_alloc_shelve(a, rest);
        block->bytes = bytes;
    }
    block->unmapped = false;
    add_reserved(a, block->segment, bytes);
    tell(a, TSR_SEG_MAP, block->segment, block->address, bytes);
    tsr_alloc_merge(a, block);
    tsr_alloc_shelve(a, block);
    return true;
}

static bool has_room_from(const struct tsr_alloc_block *block, uint64_t bytes)
{
    uint64_t room = 0;
    for (; block && !block->in_use && room < bytes; block = block->next)
        room += block->bytes;
    return room >= bytes;
}

/* Size of an expandable segment's range: 9/8 of the device. */
static uint64_t range_bytes(const struct tsr_allocator *a, const struct tsr_alloc_pool *pool)
{
    /* Without a limit the range must outlast any model: 1 PiB. */
    uint64_t device = a->config.device_bytes ? a->config.device_bytes : UINT64_C(1) << 50;
    return tsr_round_up(device + device / 8, map_unit(a, pool->small));
}

/* The range of a new expandable segment, wholly unmapped. */
static struct tsr_alloc_block *range_new(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                         uint16_t stream, bool *no_memory)
{
    uint64_t bytes = range_bytes(a, pool);
    struct tsr_alloc_segment *segment = segment_new(a, bytes, stream, pool->small, true);
    if (!segment) {
        *no_memory = true;
        return NULL;
    }
    struct tsr_alloc_block *block = tsr_alloc_block_new(a, segment, segment->address, bytes);
    block->unmapped = true;
    tsr_alloc_shelve(a, block);
    return block;
}

/* Where a request can be mapped: a free or unmapped block that is followed by enough of both. */
static struct tsr_alloc_block *find_expandable(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                               uint64_t bytes, uint16_t stream, bool *no_memory)
{
    uint32_t stream_key = tsr_alloc_stream_key(a, stream);
    struct tsr_alloc_block *hole =
        tsr_alloc_set_at_least(&pool->unmapped, (struct tsr_alloc_key){stream_key, 0, 0});
    for (; hole && hole->stream_key == stream_key;
         hole = tsr_alloc_set_after(&pool->unmapped, hole)) {
        struct tsr_alloc_block *from = hole->prev && !hole->prev->in_use ? hole->prev : hole;
        if (has_room_from(from, bytes))
            return from;
    }
    return bytes <= range_bytes(a, pool) ? range_new(a, pool, stream, no_memory) : NULL;
}

static struct tsr_alloc_block *from_expandable(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                               uint64_t bytes, uint16_t stream, bool *no_memory)
{
    struct tsr_alloc_block *block = find_expandable(a, pool, bytes, stream, no_memory);
    if (!block)
        return NULL;
    if (block->unmapped && !map_block(a, block, tsr_min_u64(block->bytes, bytes)))
        return NULL;
    while (block->bytes < bytes) {
        /* free, unmapped, ...: what is mapped merges with the free block before it */
        struct tsr_alloc_block *next = block->next;
        if (!next || !map_block(a, next, tsr_min_u64(next->bytes, bytes - block->bytes)))
            return NULL;
        block = next;
    }
    tsr_alloc_unshelve(a, block);
    return block;
}

/* Unmaps the whole units inside a free block. */
static void unmap_block(struct tsr_allocator *a, struct tsr_alloc_block *block)
{
    struct tsr_alloc_segment *segment = block->segment;
    uint64_t unit = map_unit(a, segment->small), end = block->address + block->bytes;
    uint64_t begin = segment->address + tsr_round_up(block->address - segment->address, unit);
    uint64_t stop = segment->address + (end - segment->address) / unit * unit;
    if (begin >= stop || !tsr_alloc_reserve(a, 2))
        return;
    tell_release(a);
    tsr_alloc_unshelve(a, block);
    if (begin > block->address) {
        struct tsr_alloc_block *before =
            tsr_alloc_block_new(a, segment, block->address, begin - block->address);
        tsr_alloc_block_link(before, block->prev, block);
        tsr_alloc_shelve(a, before);
    }
    if (stop < end) {
        struct tsr_alloc_block *after = tsr_alloc_block_new(a, segment, stop, end - stop);
        tsr_alloc_block_link(after, block, block->next);
        tsr_alloc_shelve(a, after);
    }
    block->address = begin;
    block->bytes = stop - begin;
    block->unmapped = true;
    sub_reserved(a, segment, block->bytes);
    tell(a, TSR_SEG_UNMAP, segment, begin, stop - begin);
    tsr_alloc_merge(a, block);
    if (tsr_alloc_is_unsplit(block))
        tsr_alloc_block_recycle(a, block);
    else
        tsr_alloc_shelve(a, block);
}

/* ---- both ------------------------------------------------------------------------------------ */

struct tsr_alloc_block *tsr_alloc_from_device(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                              uint64_t bytes, uint16_t stream, bool *no_memory)
{
    if (a->config.expandable_segments)
        return from_expandable(a, pool, bytes, stream, no_memory);
    return from_segment(a, pool, bytes, stream, no_memory);
}

static void release_pool(struct tsr_allocator *a, struct tsr_alloc_pool *pool)
{
    for (struct tsr_alloc_block *block = tsr_alloc_set_first(&pool->blocks); block;) {
        struct tsr_alloc_key key = {block->stream_key, block->bytes, block->address + 1};
        if (block->segment->expandable)
            unmap_block(a, block);
        else if (tsr_alloc_is_unsplit(block))
            release_segment(a, block);
        block = tsr_alloc_set_at_least(&pool->blocks, key);
    }
}

void tsr_alloc_release_all(struct tsr_allocator *a)
{
    release_pool(a, &a->large);
    release_pool(a, &a->small);
}

bool tsr_alloc_release_oversize(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                uint64_t bytes, uint16_t stream)
{
    if (!a->config.max_split_bytes)
        return false;
    uint32_t stream_key = tsr_alloc_stream_key(a, stream);
    struct tsr_alloc_key key = {stream_key, tsr_max_u64(bytes, a->config.max_split_bytes), 0};
    struct tsr_alloc_block *block = tsr_alloc_set_at_least(&pool->blocks, key);
    if (block && block->stream_key == stream_key) {
        if (block->segment->expandable || !tsr_alloc_is_unsplit(block))
            return false;
        release_segment(a, block);
        return true;
    }
    /* No single one is large enough: several, the largest first. */
    uint64_t released = 0;
    block = tsr_alloc_set_before(&pool->blocks, key);
    while (released < key.bytes && block && block->stream_key == stream_key &&
           block->bytes >= a->config.max_split_bytes) {
        struct tsr_alloc_key here = {stream_key, block->bytes, block->address};
        if (!block->segment->expandable && tsr_alloc_is_unsplit(block)) {
            released += block->bytes;
            release_segment(a, block);
        }
        block = tsr_alloc_set_before(&pool->blocks, here);
    }
    return released >= key.bytes;
}

/* ---- garbage collection ---------------------------------------------------------------------- */

static bool is_collectable(const struct tsr_alloc_block *block)
{
    return tsr_alloc_is_unsplit(block) && !block->segment->expandable;
}

void tsr_alloc_collect_garbage(struct tsr_allocator *a)
{
    struct tsr_alloc_pool *pool = &a->large;
    uint64_t limit = (uint64_t)(a->config.gc_threshold * (double)a->config.device_bytes);
    if (a->stats.reserved <= limit)
        return;
    uint64_t target = a->stats.reserved - limit, reclaimed = 0, ages = 0, n = 0;
    for (struct tsr_alloc_block *block = tsr_alloc_set_first(&pool->blocks); block;
         block = tsr_alloc_set_after(&pool->blocks, block)) {
        if (is_collectable(block)) {
            ages += pool->n_lookups - block->free_since;
            n++;
        }
    }
    /* A round releases what is at least as old as the mean when it began, in order of the set, even
     * if less would do. */
    for (bool progress = true; reclaimed < target && progress && n > 0;) {
        double mean = (double)ages / (double)n;
        progress = false;
        for (struct tsr_alloc_block *block = tsr_alloc_set_first(&pool->blocks); block;) {
            struct tsr_alloc_block *next = tsr_alloc_set_after(&pool->blocks, block);
            uint64_t age = pool->n_lookups - block->free_since;
            if (is_collectable(block) && (double)age >= mean) {
                progress = true;
                reclaimed += block->bytes;
                ages -= age;
                n--;
                release_segment(a, block);
            }
            block = next;
        }
    }
}
