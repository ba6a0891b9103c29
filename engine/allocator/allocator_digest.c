/* allocator_digest.c: what an allocator has cached, as one number (allocator.h).
 *
 * Blocks in use are not in it: who asks knows them. A segment has no memory of its own beside its
 * blocks, and the shape of the trees does not matter, since they are searched by order.
 */
#include "engine/allocator/allocator_impl.h"

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
