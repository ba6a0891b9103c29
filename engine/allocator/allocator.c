/* allocator.c: allocation and free by the rules of PyTorch's native caching allocator
 * (c10/cuda/CUDACachingAllocator.cpp, torch 2.11), as arithmetic on addresses. Blocks and sets are
 * in allocator_blocks.c, segments and what is given back in allocator_device.c.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "engine/allocator/allocator_impl.h"

/* ---- life ------------------------------------------------------------------------------------ */

static tsr_status refuse(const char *option, uint64_t found, const char *allowed, uint64_t least)
{
    return tsr_fail(TSR_ECONFIG, "allocator: %s is %" PRIu64 ", allowed: %s %" PRIu64, option,
                    found, allowed, least);
}

static bool is_power_of_2(unsigned value)
{
    return (value & (value - 1)) == 0;
}

/* The limits are PyTorch's. */
static tsr_status check_config(const struct tsr_allocator_config *c)
{
    uint64_t large = c->large_segment_bytes ? c->large_segment_bytes : TSR_ALLOC_LARGE_SEG;
    if (!(c->gc_threshold >= 0.0 && c->gc_threshold < 1.0))
        return tsr_fail(TSR_ECONFIG, "allocator: gc_threshold is %g, allowed: 0 (off) to below 1",
                        c->gc_threshold);
    if (large <= TSR_ALLOC_MID)
        return refuse("large_segment_bytes", large, "0 (the default) or more than", TSR_ALLOC_MID);
    if (large > TSR_ALLOC_MAX_OPTION)
        return refuse("large_segment_bytes", large, "at most", TSR_ALLOC_MAX_OPTION);
    if (c->max_split_bytes && c->max_split_bytes < large)
        return refuse("max_split_bytes", c->max_split_bytes,
                      "0 (unlimited) or at least large_segment_bytes,", large);
    if (c->max_non_split_rounding_bytes && c->max_non_split_rounding_bytes < large)
        return refuse("max_non_split_rounding_bytes", c->max_non_split_rounding_bytes,
                      "0 (the default) or at least large_segment_bytes,", large);
    if (c->max_non_split_rounding_bytes > TSR_ALLOC_MAX_OPTION)
        return refuse("max_non_split_rounding_bytes", c->max_non_split_rounding_bytes, "at most",
                      TSR_ALLOC_MAX_OPTION);
    bool powers = is_power_of_2(c->roundup_power2_divisions);
    for (int i = 0; i < TSR_ALLOC_N_ROUNDUP_CLASSES; i++)
        powers &= is_power_of_2(c->roundup_classes[i]);
    if (!powers)
        return tsr_fail(TSR_ECONFIG,
                        "allocator: roundup_power2_divisions is %u, allowed: powers of 2",
                        c->roundup_power2_divisions);
    return TSR_OK;
}

tsr_status tsr_allocator_create(const struct tsr_allocator_config *config,
                                tsr_segment_fn on_segment, tsr_release_fn on_release, void *user,
                                struct tsr_allocator **out)
{
    *out = NULL;
    TSR_TRY(check_config(config));
    struct tsr_allocator *a = calloc(1, sizeof *a);
    if (!a)
        return tsr_no_memory("the allocator");
    a->config = *config;
    a->on_segment = on_segment;
    a->on_release = on_release;
    a->user = user;
    a->small.small = true;
    a->random = 2463534242; /* any number but 0 */
    a->released_tail = &a->released;
    for (int stream = 0; stream < TSR_ALLOC_N_STREAM_ORDERS; stream++)
        a->order[stream] = (uint16_t)stream;
    tsr_arena_init(&a->arena);
    *out = a;
    return TSR_OK;
}

void tsr_allocator_destroy(struct tsr_allocator *allocator)
{
    if (!allocator)
        return;
    tsr_arena_fini(&allocator->arena);
    free(allocator);
}

/* ---- size of a request (section 2) ----------------------------------------------------------- */

static uint64_t highest_bit(uint64_t value)
{
    while (value & (value - 1))
        value &= value - 1;
    return value;
}

static uint64_t roundup_divisions(const struct tsr_allocator_config *config, uint64_t bytes)
{
    if (config->roundup_classes[0] == 0)
        return config->roundup_power2_divisions;
    int i = 0;
    for (bytes >>= 21; bytes && i < TSR_ALLOC_N_ROUNDUP_CLASSES - 1; bytes >>= 1)
        i++;
    return config->roundup_classes[i];
}

static uint64_t round_request(const struct tsr_allocator *a, uint64_t bytes)
{
    uint64_t divisions = roundup_divisions(&a->config, bytes);
    if (divisions > 1 && bytes > TSR_ALLOC_ROUND * divisions)
        return tsr_round_up(bytes, highest_bit(bytes) / highest_bit(divisions));
    return tsr_round_up(bytes, TSR_ALLOC_ROUND);
}

/* ---- allocation (section 4) ------------------------------------------------------------------ */

/* What a free block could grow to: the one at the unmapped end of a range is not a tight fit. */
static uint64_t reachable_bytes(const struct tsr_alloc_block *block)
{
    return block->bytes + (block->next && block->next->unmapped ? block->next->bytes : 0);
}

/* How much larger than its request a block may be that is too large to be split. */
static uint64_t non_split_slack(const struct tsr_allocator *a)
{
    uint64_t slack = a->config.max_non_split_rounding_bytes;
    return slack ? slack : tsr_alloc_large_segment(a);
}

static struct tsr_alloc_block *best_fit(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                        uint64_t bytes, uint16_t stream)
{
    uint64_t max_split = a->config.max_split_bytes ? a->config.max_split_bytes : UINT64_MAX;
    struct tsr_alloc_key key = {tsr_alloc_stream_key(a, stream), bytes, 0};
    pool->n_lookups++;
    struct tsr_alloc_block *block = tsr_alloc_set_at_least(&pool->blocks, key);
    if (!block || block->stream_key != key.stream_key)
        return NULL;
    while (block->segment->expandable) {
        struct tsr_alloc_block *next = tsr_alloc_set_after(&pool->blocks, block);
        if (!next || next->stream_key != key.stream_key ||
            reachable_bytes(next) >= reachable_bytes(block))
            break;
        block = next;
    }
    if (bytes < max_split && block->bytes >= max_split)
        return NULL;
    if (bytes >= max_split && block->bytes >= bytes + non_split_slack(a))
        return NULL;
    tsr_alloc_unshelve(a, block);
    return block;
}

/* A block from the device; the order of the attempts is that of section 4.4. */
static struct tsr_alloc_block *new_block(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                         uint64_t bytes, uint16_t stream, bool *no_memory)
{
    if (a->config.gc_threshold > 0.0 && a->config.device_bytes)
        tsr_alloc_collect_garbage(a);
    struct tsr_alloc_block *block = tsr_alloc_from_device(a, pool, bytes, stream, no_memory);
    if (!block && !*no_memory && tsr_alloc_release_oversize(a, pool, bytes, stream))
        block = tsr_alloc_from_device(a, pool, bytes, stream, no_memory);
    if (block || *no_memory)
        return block;
    tsr_alloc_release_all(a);
    a->stats.n_alloc_retries++;
    if (!tsr_alloc_reserve(a, 3)) {
        *no_memory = true;
        return NULL;
    }
    return tsr_alloc_from_device(a, pool, bytes, stream, no_memory);
}

static bool should_split(const struct tsr_allocator *a, const struct tsr_alloc_block *block,
                         uint64_t bytes)
{
    uint64_t rest = block->bytes - bytes;
    if (block->segment->small || block->segment->expandable)
        return rest >= TSR_ALLOC_ROUND;
    return rest > TSR_ALLOC_SMALL &&
           (!a->config.max_split_bytes || bytes < a->config.max_split_bytes);
}

/* The front of `block` is handed out, the rest is a free block. */
static struct tsr_alloc_block *split(struct tsr_allocator *a, struct tsr_alloc_block *block,
                                     uint64_t bytes)
{
    struct tsr_alloc_block *front = tsr_alloc_block_new(a, block->segment, block->address, bytes);
    tsr_alloc_block_link(front, block->prev, block);
    block->address += bytes;
    block->bytes -= bytes;
    tsr_alloc_shelve(a, block);
    return front;
}

/* The largest free block of `set`, of one stream or of any; the free bytes are added to *sum. */
static uint64_t largest_free(const struct tsr_alloc_set *set, const uint16_t *stream, uint64_t *sum)
{
    uint64_t largest = 0;
    for (const struct tsr_alloc_block *b = tsr_alloc_set_first(set); b;
         b = tsr_alloc_set_after(set, b)) {
        if (!stream || b->segment->stream == *stream)
            largest = tsr_max_u64(largest, b->bytes);
        *sum += b->bytes;
    }
    return largest;
}

static void note_oom(struct tsr_allocator *a, const struct tsr_alloc_pool *pool, uint64_t bytes,
                     uint64_t rounded, uint16_t stream)
{
    uint64_t cached = 0, ignored = 0, device = a->config.device_bytes;
    uint64_t small = largest_free(&a->small.blocks, NULL, &cached);
    uint64_t large = largest_free(&a->large.blocks, NULL, &cached);
    a->stats.n_ooms++;
    a->oom = (struct tsr_allocator_oom){
        .requested = bytes,
        .rounded = rounded,
        .device = a->config.expandable_segments ? rounded : tsr_alloc_segment_bytes(a, rounded),
        .limit = device,
        .free = device > a->stats.reserved ? device - a->stats.reserved : 0,
        .allocated = a->stats.allocated,
        .reserved = a->stats.reserved,
        .reserved_small = a->small.reserved,
        .reserved_large = a->large.reserved,
        .cached = cached,
        .largest_cached = tsr_max_u64(small, large),
        .largest_usable = largest_free(&pool->blocks, &stream, &ignored),
        .stream = stream,
    };
}

static tsr_status out_of_memory(const struct tsr_allocator *a)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    const struct tsr_allocator_oom *o = &a->oom;
    return tsr_fail(TSR_EOOM,
                    "device out of memory: tried to allocate %.2f GiB (%" PRIu64
                    " bytes); the device has %.2f GiB (%" PRIu64
                    " bytes), free are %.2f GiB (%" PRIu64 " bytes), reserved %.2f GiB (%" PRIu64
                    " bytes), of them allocated %.2f GiB (%" PRIu64
                    " bytes); the largest free block has %.2f GiB (%" PRIu64 " bytes)",
                    (double)o->requested / gib, o->requested, (double)o->limit / gib, o->limit,
                    (double)o->free / gib, o->free, (double)o->reserved / gib, o->reserved,
                    (double)o->allocated / gib, o->allocated, (double)o->largest_cached / gib,
                    o->largest_cached);
}

static void count_alloc(struct tsr_allocator_stats *s, const struct tsr_alloc_block *block)
{
    s->allocated += block->bytes;
    s->requested += block->requested;
    s->peak_allocated = tsr_max_u64(s->peak_allocated, s->allocated);
    s->peak_requested = tsr_max_u64(s->peak_requested, s->requested);
}

/* A block for a request, in no set and not yet cut to size; NULL: no room, or no memory. */
static struct tsr_alloc_block *find_block(struct tsr_allocator *a, struct tsr_alloc_pool *pool,
                                          uint64_t rounded, uint16_t stream, bool *no_memory)
{
    /* At most: a new range, the rest of what is mapped, the front of the split. */
    *no_memory = !tsr_alloc_reserve(a, 3);
    if (*no_memory)
        return NULL;
    struct tsr_alloc_block *block = best_fit(a, pool, rounded, stream);
    return block ? block : new_block(a, pool, rounded, stream, no_memory);
}

tsr_status tsr_allocator_alloc(struct tsr_allocator *allocator, uint64_t bytes, uint16_t stream,
                               struct tsr_block *out)
{
    struct tsr_allocator *a = allocator;
    *out = (struct tsr_block){0};
    TSR_CHECK(bytes > 0);
    a->told_release = false;
    if (bytes > UINT64_MAX / 4) { /* rounding and ranges stay far from overflow */
        note_oom(a, &a->large, bytes, bytes, stream);
        return out_of_memory(a);
    }
    bool no_memory;
    uint64_t rounded = round_request(a, bytes);
    struct tsr_alloc_pool *pool = rounded <= TSR_ALLOC_SMALL ? &a->small : &a->large;
    struct tsr_alloc_block *block = find_block(a, pool, rounded, stream, &no_memory);
    if (no_memory)
        return tsr_no_memory("the allocator's blocks");
    if (!block) {
        note_oom(a, pool, bytes, rounded, stream);
        return out_of_memory(a);
    }
    if (should_split(a, block, rounded))
        block = split(a, block, rounded);
    block->in_use = true;
    block->requested = bytes;
    count_alloc(&a->stats, block);
    *out = (struct tsr_block){block->segment->id, block->address, block->bytes, block};
    return TSR_OK;
}

/* ---- free (section 5) ------------------------------------------------------------------------ */

void tsr_allocator_free(struct tsr_allocator *allocator, void *handle)
{
    struct tsr_alloc_block *block = handle;
    TSR_CHECK(block->in_use);
    allocator->stats.allocated -= block->bytes;
    allocator->stats.requested -= block->requested;
    block->in_use = false;
    tsr_alloc_merge(allocator, block);
    tsr_alloc_shelve(allocator, block);
}

/* ---- order of streams, statistics ------------------------------------------------------------ */

static void rekey(struct tsr_allocator *a, struct tsr_alloc_set *set)
{
    /* The tree is taken apart from the old root down and built anew: `left` of the block that is
     * taken out chains those that wait. */
    struct tsr_alloc_block *todo = NULL, *block;
    while ((block = tsr_alloc_set_first(set))) {
        tsr_alloc_set_remove(block);
        block->left = todo;
        todo = block;
    }
    while ((block = todo)) {
        todo = block->left;
        block->stream_key = tsr_alloc_stream_key(a, block->segment->stream);
        tsr_alloc_set_insert(set, block);
    }
}

void tsr_allocator_set_stream_order(struct tsr_allocator *allocator, uint16_t stream,
                                    uint16_t order)
{
    struct tsr_allocator *a = allocator;
    if (stream >= TSR_ALLOC_N_STREAM_ORDERS || a->order[stream] == order)
        return;
    a->order[stream] = order;
    rekey(a, &a->small.blocks);
    rekey(a, &a->small.unmapped);
    rekey(a, &a->large.blocks);
    rekey(a, &a->large.unmapped);
}

struct tsr_allocator_stats tsr_allocator_stats(const struct tsr_allocator *allocator)
{
    return allocator->stats;
}

struct tsr_allocator_oom tsr_allocator_oom_info(const struct tsr_allocator *allocator)
{
    return allocator->oom;
}

/* ---- digest -------------------------------------------------------------------------------------
 *
 * Blocks in use are not in it: who asks knows them. A segment has no memory of its own beside its
 * blocks, and the shape of the trees does not matter, since they are searched by order.
 */

static uint64_t digest_set(uint64_t hash, const struct tsr_alloc_set *set)
{
    for (const struct tsr_alloc_block *b = tsr_alloc_set_first(set); b;
         b = tsr_alloc_set_after(set, b)) {
        hash = tsr_hash_u64(hash, b->stream_key);
        hash = tsr_hash_u64(hash, b->bytes);
        hash = tsr_hash_u64(hash, b->address);
        hash = tsr_hash_u64(hash, b->segment->id);
    }
    return tsr_hash_u64(hash, UINT64_MAX);
}

static uint64_t digest_pool(uint64_t hash, const struct tsr_alloc_pool *pool)
{
    hash = tsr_hash_u64(hash, pool->reserved);
    return digest_set(digest_set(hash, &pool->blocks), &pool->unmapped);
}

uint64_t tsr_allocator_digest(const struct tsr_allocator *a)
{
    if (a->config.gc_threshold > 0)
        return 0;
    uint64_t hash = digest_pool(digest_pool(TSR_HASH_INIT, &a->large), &a->small);
    for (const struct tsr_alloc_segment *s = a->released; s; s = s->next) {
        hash = tsr_hash_u64(hash, s->address);
        hash = tsr_hash_u64(hash, s->bytes);
    }
    hash = tsr_hash_u64(hash, a->device_end);
    hash = tsr_hash_u64(hash, a->n_segments);
    return hash ? hash : 1;
}
