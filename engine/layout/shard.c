/* shard.c: how a dimension is cut (section 2.2). The only place with this arithmetic. */
#include "engine/graph/engine.h"

struct tsr_chunk tsr__chunk(uint64_t n, uint32_t world, uint32_t rank)
{
    struct tsr_chunk c = {.rows = tsr_ceil_div(n, world)};
    c.begin = tsr_min_u64(n, c.rows * rank);
    c.count = tsr_min_u64(c.rows, n - c.begin);
    return c;
}
