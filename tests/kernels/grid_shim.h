/* grid_shim.h: runs the body of a grid kernel as a launch of CUDA would: one call a thread with its
 * number and how many there are, in any order, with CUDA's few elements in hand instead of the
 * host's many. Include it before headers of exec/kernels.
 */
#ifndef TSR_GRID_SHIM_H
#define TSR_GRID_SHIM_H

#define TSR_BLOCK 8

#include "tests/kernels/kernels_testing.h"

#include "exec/kernels/tensor/tensor.h"

enum { GRID_MAX_THREADS = 512 };

/* Numbers of the threads in a random order. */
static inline void grid_order(unsigned threads, uint64_t *order)
{
    for (unsigned i = 0; i < threads; i++) {
        uint64_t k = test_below(i + 1);
        order[i] = order[k];
        order[k] = i;
    }
}

/* body(arguments ..., thread, threads) of every thread. */
#define GRID_LAUNCH(threads, body, ...)                         \
    do {                                                        \
        uint64_t grid_threads[GRID_MAX_THREADS];                \
        grid_order(threads, grid_threads);                      \
        for (unsigned grid_i = 0; grid_i < (threads); grid_i++) \
            body(__VA_ARGS__, grid_threads[grid_i], threads);   \
    } while (0)

/* The elements of an operand as a kernel gets them. */
static inline struct tsr_elems grid_elems(const struct test_call *t, int operand)
{
    const struct test_operand *o = &t->operands[operand];
    return (struct tsr_elems){.data = o->block + TEST_GUARD,
                              .n = o->n,
                              .width = o->width,
                              .pitch = o->pitch,
                              .dtype = o->dtype,
                              .item = (uint8_t)o->item};
}

/* All memory of a call, one operand behind the other. The caller frees. */
static inline unsigned char *grid_memory(const struct test_call *t)
{
    size_t at = 0, n = 1;
    for (int i = 0; i < t->n; i++)
        n += t->operands[i].bytes + 2 * TEST_GUARD;
    unsigned char *all = malloc(n);
    assert_non_null(all);
    for (int i = 0; i < t->n; at += t->operands[i++].bytes + 2 * TEST_GUARD)
        memcpy(all + at, t->operands[i].block, t->operands[i].bytes + 2 * TEST_GUARD);
    return all;
}

/* Runs the host's kernel and puts the memory back as it was before; the caller frees what it made.
 */
static inline unsigned char *grid_host(struct test_call *t)
{
    size_t at = 0;
    unsigned char *before = grid_memory(t);
    test_run(t);
    unsigned char *after = grid_memory(t);
    for (int i = 0; i < t->n; at += t->operands[i++].bytes + 2 * TEST_GUARD)
        memcpy(t->operands[i].block, before + at, t->operands[i].bytes + 2 * TEST_GUARD);
    free(before);
    return after;
}

/* The memory is what the host made, bit for bit; frees it. */
static inline void grid_same(const struct test_call *t, unsigned char *after)
{
    size_t at = 0;
    for (int i = 0; i < t->n; at += t->operands[i++].bytes + 2 * TEST_GUARD)
        if (memcmp(t->operands[i].block, after + at, t->operands[i].bytes + 2 * TEST_GUARD) != 0)
            fail_msg("%s: slot %u is another on the grid", t->work.name, t->operands[i].slot);
    free(after);
}

#endif
