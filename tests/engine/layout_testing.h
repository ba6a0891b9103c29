/* layout_testing.h: what the tests of layouts share: random numbers from a printed seed, random
 * layouts, and a model on an engine that forgets its instructions.
 *
 * TSR_SEED=N repeats a run.
 */
#ifndef TSR_LAYOUT_TESTING_H
#define TSR_LAYOUT_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/layout/tensor_parallel.h"
#include "engine/tessera.h"
#include "tests/engine/parts_testing.h"

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t test_random_state;

static inline void test_seed(const char *what)
{
    const char *given = getenv("TSR_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed =
        given ? strtoull(given, NULL, 10) : (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec;
    printf("%s: TSR_SEED=%llu\n", what, (unsigned long long)seed);
    test_random_state = seed * 2 + 1;
}

static inline uint64_t test_random(uint64_t below)
{
    test_random_state ^= test_random_state << 13;
    test_random_state ^= test_random_state >> 7;
    test_random_state ^= test_random_state << 17;
    return (test_random_state >> 11) % below;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static inline struct tsr_dtensor test_layout(int n_dims, const uint64_t *shape, int n_mesh,
                                             const uint32_t *mesh,
                                             const struct tsr_placement *place)
{
    struct tsr_dtensor t = {.n_dims = n_dims};
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    memcpy(t.place, place, (size_t)n_mesh * sizeof *place);
    tsr_dtensor_mesh(&t, n_mesh, mesh);
    assert_int_equal(tsr_dtensor_check(&t), TSR_OK);
    return t;
}

/* Shards on the right of mesh dimension i multiply to the split factor of FSDP. */
static inline struct tsr_placement test_random_placement(const struct tsr_dtensor *t, int i)
{
    uint32_t split = 1;
    int dim = (int)test_random((uint64_t)t->n_dims);
    for (int k = i + 1; k < t->n_mesh; k++)
        if (t->place[k].kind != TSR_PLACE_REPLICATE && t->place[k].dim == dim)
            split *= t->mesh[k].size;
    switch (test_random(6)) {
    case 0:
        return tsr_replicate_placement();
    case 1:
        return tsr_shard_placement(dim, 2 + (uint32_t)test_random(3));
    case 2:
    case 3:
        return tsr_shard_placement(dim, split);
    default:
        return tsr_shard_placement(dim, 1);
    }
}

static inline struct tsr_dtensor test_random_layout(int n_dims, const uint64_t *shape)
{
    struct tsr_dtensor t = {.n_dims = n_dims};
    uint32_t mesh[TSR_DT_MAX_MESH];
    int n_mesh = 1 + (int)test_random(4);
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    for (int i = 0; i < n_mesh; i++)
        mesh[i] = 1 + (uint32_t)test_random(4);
    tsr_dtensor_mesh(&t, n_mesh, mesh);
    for (int i = n_mesh - 1; i >= 0; i--)
        t.place[i] = test_random_placement(&t, i);
    assert_int_equal(tsr_dtensor_check(&t), TSR_OK);
    return t;
}

static inline int test_random_shape(uint64_t *shape)
{
    int n_dims = 1 + (int)test_random(4);
    for (int i = 0; i < n_dims; i++)
        shape[i] = test_random(12) ? 1 + test_random(11) : 0;
    return n_dims;
}

static inline void test_print_layout(const struct tsr_dtensor *t)
{
    printf("  shape");
    for (int i = 0; i < t->n_dims; i++)
        printf(" %llu", (unsigned long long)t->shape[i]);
    for (int i = 0; i < t->n_mesh; i++)
        printf("; mesh %u: kind %d dim %d split %u", t->mesh[i].size, (int)t->place[i].kind,
               t->place[i].dim, t->place[i].split);
    printf("\n");
}

/* ---- engines --------------------------------------------------------------------------------- */

static inline tsr_status test_forget(struct tsr_executor *x, const struct tsr_instr *instr)
{
    (void)x;
    (void)instr;
    return TSR_OK;
}

static inline struct tsr_engine *test_engine_of(const struct tsr_mesh *mesh, uint32_t rank,
                                                enum tsr_version version)
{
    static const struct tsr_executor_ops ops = {.size = sizeof ops,
                                                .version = TSR_EXECUTOR_VERSION,
                                                .name = "forget",
                                                .submit = test_forget};
    static struct tsr_executor executor = {.ops = &ops};
    struct tsr_engine_config config = {
        .mesh = *mesh, .rank = rank, .executor = &executor, .version = version};
    struct tsr_engine *e = NULL;
    assert_int_equal(tsr_engine_create(&config, &e), TSR_OK);
    return e;
}

static inline struct tsr_engine *test_engine(const struct tsr_mesh *mesh, uint32_t rank)
{
    return test_engine_of(mesh, rank, TSR_TORCH_2_11);
}

static inline double test_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* The layout of the parameter of that name, which there must be. */
static inline struct tsr_param_dtensor test_param(struct tsr_engine *e, const char *fqn)
{
    struct tsr_param_dtensor p = {0};
    for (size_t i = 0; i < tsr_n_param_layouts(e); i++) {
        assert_int_equal(tsr_param_dtensor(e, i, &p), TSR_OK);
        if (!strcmp(p.fqn, fqn))
            return p;
    }
    fail_msg("no parameter %s", fqn);
    return p;
}

#endif
