/* executor_testing.h: what tests want of an executor's accounts, and nobody else does. */
#ifndef TSR_EXECUTOR_TESTING_H
#define TSR_EXECUTOR_TESTING_H

#include "exec/executor/executor_impl.h"

static inline struct tsr_exec *test_exec_of(struct tsr_executor *x)
{
    return (struct tsr_exec *)x;
}

/* The hash begins again; so do the peaks, at what is there now. After a drain. */
static inline void test_exec_reset(struct tsr_executor *x, bool hash)
{
    struct tsr_exec_memory *m = &test_exec_of(x)->memory;
    if (hash)
        tsr_exec_hash_init(&test_exec_of(x)->hash);
    m->peak_allocated = m->allocated;
    m->peak_mapped = m->mapped;
}

/* Tasks of all streams that were submitted and are not done. */
static inline uint64_t test_exec_under_way(struct tsr_executor *x)
{
    const struct tsr_exec *e = test_exec_of(x);
    uint64_t n = 0;
    for (uint16_t s = 0; s < TSR_EXEC_STREAMS; s++)
        n += e->submitted[s] - tsr_exec_done_of(e, s);
    return n;
}

#endif
