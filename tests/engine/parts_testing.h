/* parts_testing.h: what tests of layouts and of checkpoints ask beside the engine: how many ranks
 * a mesh has, a rank's part of a tensor, and its bytes of a state dict.
 */
#ifndef TSR_PARTS_TESTING_H
#define TSR_PARTS_TESTING_H

#include <string.h>

#include "engine/layout/sharded_state.h"

/* The product of the mesh's sizes. */
static inline uint64_t test_world(const struct tsr_dtensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < t->n_mesh; i++)
        n *= t->mesh[i].size;
    return n;
}

/* Takes the rank's part out of the global tensor; tsr_dtensor_put() puts it back. */
static inline tsr_status test_take(const struct tsr_dtensor *t, uint64_t rank, size_t bytes,
                                   const void *global, void *local)
{
    struct tsr_runs runs;
    size_t at = 0;
    TSR_TRY(tsr_dtensor_runs(t, rank, &runs));
    for (size_t i = 0; i < runs.n; i++) {
        size_t n = (size_t)runs.items[i].length * bytes;
        memcpy((char *)local + at, (const char *)global + (size_t)runs.items[i].start * bytes, n);
        at += n;
    }
    tsr_runs_fini(&runs);
    return TSR_OK;
}

/* Bytes of all entries on a rank, aliases once, padding not counted. */
static inline uint64_t test_rank_bytes(const struct tsr_state_dict *s, uint32_t rank)
{
    uint64_t total = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->entries[i].alias_of == i)
            total += tsr_dtensor_local_numel(&s->layouts[s->entries[i].layout], rank) *
                     tsr_dtype_bytes(s->entries[i].dtype);
    return total;
}

#endif
