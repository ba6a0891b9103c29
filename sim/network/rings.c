/* rings.c: rings over rails: which member sends to which, and how much of a collective. */
#include "sim/network/rings.h"

/* Members of one domain: [first, first+n) of the member list. */
struct block {
    uint32_t first, n;
};

static uint32_t next_block(const struct tsr__fabric *f, const uint32_t *members, uint32_t n,
                           uint32_t at, struct block *block)
{
    uint32_t domain = members[at] / f->domain_gpus, end = at;
    while (end < n && members[end] / f->domain_gpus == domain)
        end++;
    *block = (struct block){at, end - at};
    return end;
}

static uint32_t smallest_block(const struct tsr__fabric *f, const uint32_t *members, uint32_t n)
{
    uint32_t least = n;
    struct block block;
    for (uint32_t at = 0; at < n;) {
        at = next_block(f, members, n, at, &block);
        least = block.n < least ? block.n : least;
    }
    return least;
}

/* Where ring j of `rings` enters and leaves the block at position `index`. Even blocks are walked
 * upwards, odd ones downwards: a ring then leaves a node on the rail on which it enters the next.
 */
static uint32_t ring_door(const struct block *block, uint32_t index, uint32_t j, uint32_t rings,
                          bool entry)
{
    uint32_t at = (uint32_t)((uint64_t)j * block->n / rings);
    uint32_t before = (at + block->n - 1) % block->n;
    return block->first + (entry == (index % 2 == 0) ? at : before);
}

/* Flows inside a block: each member sends to its neighbour for every ring that does not leave the
 * node at it. */
static size_t inside_edges(const uint32_t *members, const struct block *block, uint32_t index,
                           uint32_t rings, struct tsr__edge *edges)
{
    size_t n = 0;
    for (uint32_t i = 0; i < block->n && block->n > 1; i++) {
        uint32_t leaving = 0;
        for (uint32_t j = 0; j < rings; j++)
            leaving += ring_door(block, index, j, rings, false) == block->first + i;
        uint32_t step = index % 2 == 0 ? 1 : block->n - 1;
        uint32_t to = (i + step) % block->n;
        if (leaving < rings)
            edges[n++] = (struct tsr__edge){members[block->first + i], members[block->first + to],
                                            (double)(rings - leaving) / rings};
    }
    return n;
}

size_t tsr__ring_max_edges(uint32_t n)
{
    return 2 * (size_t)n;
}

size_t tsr__ring_edges(const struct tsr__fabric *f, const uint32_t *members, uint32_t n,
                       struct tsr__edge *edges)
{
    size_t n_edges = 0;
    uint32_t rings = smallest_block(f, members, n), index = 0;
    struct block first, block, next;
    uint32_t at = next_block(f, members, n, 0, &first);
    if (at == n) { /* one domain: every ring takes the same way */
        for (uint32_t i = 0; i < n; i++)
            edges[n_edges++] = (struct tsr__edge){members[i], members[(i + 1) % n], 1.0};
        return n_edges;
    }
    for (block = first;; block = next, index++) {
        bool last = at == n;
        if (last)
            next = first;
        else
            at = next_block(f, members, n, at, &next);
        n_edges += inside_edges(members, &block, index, rings, edges + n_edges);
        for (uint32_t j = 0; j < rings; j++) {
            uint32_t out = ring_door(&block, index, j, rings, false);
            uint32_t in = ring_door(&next, last ? 0 : index + 1, j, rings, true);
            edges[n_edges++] = (struct tsr__edge){members[out], members[in], 1.0 / rings};
        }
        if (last)
            return n_edges;
    }
}
