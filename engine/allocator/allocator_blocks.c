/* allocator_blocks.c: blocks, their ordered sets and their chains. See allocator_impl.h.
 *
 * A set is a treap: a search tree by key that is a heap by a pseudo-random priority, hence balanced
 * in expectation. Priorities come from the allocator's own counter: runs are reproducible.
 */
#include "engine/allocator/allocator_impl.h"

/* ---- sets ------------------------------------------------------------------------------------ */

static struct tsr_alloc_key key_of(const struct tsr_alloc_block *block)
{
    /* The size of an unmapped range does not take part in its order. */
    uint64_t bytes = block->unmapped ? 0 : block->bytes;
    return (struct tsr_alloc_key){block->stream_key, bytes, block->address};
}

static bool key_less(struct tsr_alloc_key a, struct tsr_alloc_key b)
{
    if (a.stream_key != b.stream_key)
        return a.stream_key < b.stream_key;
    if (a.bytes != b.bytes)
        return a.bytes < b.bytes;
    return a.address < b.address;
}

static void hang(struct tsr_alloc_block **at, struct tsr_alloc_block *block)
{
    *at = block;
    if (block)
        block->link = at;
}

void tsr_alloc_set_insert(struct tsr_alloc_set *set, struct tsr_alloc_block *block)
{
    struct tsr_alloc_key key = key_of(block);
    struct tsr_alloc_block **at = &set->root;
    while (*at && (*at)->priority >= block->priority)
        at = key_less(key, key_of(*at)) ? &(*at)->left : &(*at)->right;
    /* `block` takes this place; the tree below is cut along the key into its two children. */
    struct tsr_alloc_block *rest = *at, **left = &block->left, **right = &block->right;
    hang(at, block);
    while (rest) {
        if (key_less(key, key_of(rest))) {
            hang(right, rest);
            right = &rest->left;
            rest = rest->left;
        } else {
            hang(left, rest);
            left = &rest->right;
            rest = rest->right;
        }
    }
    *left = *right = NULL;
}

void tsr_alloc_set_remove(struct tsr_alloc_block *block)
{
    struct tsr_alloc_block **at = block->link;
    TSR_CHECK(at && *at == block);
    struct tsr_alloc_block *left = block->left, *right = block->right;
    while (left && right) {
        if (left->priority >= right->priority) {
            hang(at, left);
            at = &left->right;
            left = left->right;
        } else {
            hang(at, right);
            at = &right->left;
            right = right->left;
        }
    }
    hang(at, left ? left : right);
    block->left = block->right = NULL;
    block->link = NULL;
}

struct tsr_alloc_block *tsr_alloc_set_at_least(const struct tsr_alloc_set *set,
                                               struct tsr_alloc_key key)
{
    struct tsr_alloc_block *found = NULL;
    for (struct tsr_alloc_block *at = set->root; at;) {
        bool less = key_less(key_of(at), key);
        found = less ? found : at;
        at = less ? at->right : at->left;
    }
    return found;
}

struct tsr_alloc_block *tsr_alloc_set_before(const struct tsr_alloc_set *set,
                                             struct tsr_alloc_key key)
{
    struct tsr_alloc_block *found = NULL;
    for (struct tsr_alloc_block *at = set->root; at;) {
        bool less = key_less(key_of(at), key);
        found = less ? at : found;
        at = less ? at->right : at->left;
    }
    return found;
}

struct tsr_alloc_block *tsr_alloc_set_after(const struct tsr_alloc_set *set,
                                            const struct tsr_alloc_block *block)
{
    struct tsr_alloc_key key = key_of(block);
    key.address++;
    return tsr_alloc_set_at_least(set, key);
}

struct tsr_alloc_block *tsr_alloc_set_first(const struct tsr_alloc_set *set)
{
    return tsr_alloc_set_at_least(set, (struct tsr_alloc_key){0, 0, 0});
}

/* ---- structs --------------------------------------------------------------------------------- */

bool tsr_alloc_reserve(struct tsr_allocator *a, uint32_t n)
{
    while (a->n_spare < n) {
        struct tsr_alloc_block *block = tsr_arena_alloc(&a->arena, sizeof *block);
        if (!block)
            return false;
        tsr_alloc_block_recycle(a, block);
    }
    return true;
}

void tsr_alloc_block_recycle(struct tsr_allocator *a, struct tsr_alloc_block *block)
{
    block->left = a->spare;
    a->spare = block;
    a->n_spare++;
}

static uint32_t next_priority(struct tsr_allocator *a)
{
    /* xorshift32 (Marsaglia 2003). */
    a->random ^= a->random << 13;
    a->random ^= a->random >> 17;
    a->random ^= a->random << 5;
    return a->random;
}

struct tsr_alloc_block *tsr_alloc_block_new(struct tsr_allocator *a,
                                            struct tsr_alloc_segment *segment, uint64_t address,
                                            uint64_t bytes)
{
    struct tsr_alloc_block *block = a->spare;
    TSR_CHECK(block);
    a->spare = block->left;
    a->n_spare--;
    *block = (struct tsr_alloc_block){
        .segment = segment,
        .address = address,
        .bytes = bytes,
        .priority = next_priority(a),
    };
    return block;
}

void tsr_alloc_block_link(struct tsr_alloc_block *block, struct tsr_alloc_block *prev,
                          struct tsr_alloc_block *next)
{
    block->prev = prev;
    block->next = next;
    if (prev)
        prev->next = block;
    if (next)
        next->prev = block;
}

uint32_t tsr_alloc_stream_key(const struct tsr_allocator *a, uint16_t stream)
{
    uint32_t order = stream < TSR_ALLOC_N_STREAM_ORDERS ? a->order[stream] : stream;
    return order << 16 | stream;
}

static struct tsr_alloc_pool *pool_of(struct tsr_allocator *a, const struct tsr_alloc_block *block)
{
    return block->segment->small ? &a->small : &a->large;
}

bool tsr_alloc_is_unsplit(const struct tsr_alloc_block *block)
{
    return !block->prev && !block->next;
}

/* ---- free and merge -------------------------------------------------------------------------- */

static bool counts_as_inactive_split(const struct tsr_alloc_block *block)
{
    return !block->segment->expandable && block->bytes != block->segment->bytes;
}

void tsr_alloc_shelve(struct tsr_allocator *a, struct tsr_alloc_block *block)
{
    struct tsr_alloc_pool *pool = pool_of(a, block);
    block->stream_key = tsr_alloc_stream_key(a, block->segment->stream);
    block->free_since = pool->n_lookups;
    tsr_alloc_set_insert(block->unmapped ? &pool->unmapped : &pool->blocks, block);
    if (counts_as_inactive_split(block))
        a->stats.inactive_split += block->bytes;
}

void tsr_alloc_unshelve(struct tsr_allocator *a, struct tsr_alloc_block *block)
{
    tsr_alloc_set_remove(block);
    if (counts_as_inactive_split(block))
        a->stats.inactive_split -= block->bytes;
}

static bool can_merge(const struct tsr_alloc_block *block, const struct tsr_alloc_block *neighbour)
{
    return neighbour && !neighbour->in_use && neighbour->unmapped == block->unmapped;
}

void tsr_alloc_merge(struct tsr_allocator *a, struct tsr_alloc_block *block)
{
    struct tsr_alloc_block *prev = block->prev, *next = block->next;
    if (can_merge(block, prev)) {
        tsr_alloc_unshelve(a, prev);
        block->address = prev->address;
        block->bytes += prev->bytes;
        tsr_alloc_block_link(block, prev->prev, next);
        tsr_alloc_block_recycle(a, prev);
    }
    if (can_merge(block, next)) {
        tsr_alloc_unshelve(a, next);
        block->bytes += next->bytes;
        tsr_alloc_block_link(block, block->prev, next->next);
        tsr_alloc_block_recycle(a, next);
    }
}
