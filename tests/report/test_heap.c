/* test_heap.c: what is where on the device (report_heap.c) and what is in use (report_view.c), on
 * programs made by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "experiments/study/detail/report_view.h"
#include "experiments/study/snapshot/report_heap.h"

enum { MIB = 1 << 20, MAX_INSTRS = 32 };

struct made {
    struct tsr_program program;
    const struct tsr_program *list[1];
    struct tsr_sim_span spans[MAX_INSTRS];
};

static struct tsr_stream_info stream = {"default", TSR_ROLE_COMPUTE, 0};
static const struct tsr_tables tables = {.n_streams = 1, .streams = &stream};

static void make(struct made *made)
{
    tsr_program_init(&made->program, &tables);
    made->list[0] = &made->program;
}

static void segment(struct made *made, enum tsr_instr_kind kind, uint32_t id, uint64_t address,
                    uint64_t bytes)
{
    struct tsr_instr instr = {.kind = (uint8_t)kind,
                              .segment = id,
                              .address = address,
                              .bytes = bytes,
                              .comm = UINT16_MAX};
    assert_int_equal(tsr_program_append(&made->program, &instr), TSR_OK);
}

static void block(struct made *made, enum tsr_instr_kind kind, uint32_t buffer, uint64_t address,
                  uint64_t bytes)
{
    struct tsr_instr instr = {.kind = (uint8_t)kind,
                              .buffer = buffer,
                              .address = address,
                              .bytes = bytes - 1,
                              .block_bytes = bytes,
                              .comm = UINT16_MAX};
    assert_int_equal(tsr_program_append(&made->program, &instr), TSR_OK);
}

/* A kernel on `buffer` from `start` to `end`. */
static void use(struct made *made, uint32_t buffer, double start, double end)
{
    struct tsr_operand operand = {.buffer = buffer, .access = TSR_READ, .bytes = 1};
    struct tsr_work work = {.op = TSR_OP_POINTWISE, .name = "add"};
    struct tsr_instr instr = {
        .kind = TSR_OP, .operands = &operand, .n_operands = 1, .work = &work, .comm = UINT16_MAX};
    made->spans[made->program.n_instrs] = (struct tsr_sim_span){start, start, end};
    assert_int_equal(tsr_program_append(&made->program, &instr), TSR_OK);
}

static void replay(const struct made *made, struct tsr__heap *heap)
{
    assert_int_equal(tsr__heap_init(heap), TSR_OK);
    for (size_t i = 0; i < made->program.n_instrs; i++)
        assert_int_equal(tsr__heap_apply(heap, &made->program, i), TSR_OK);
}

static void test_heap__knows_blocks_and_ranges(void **state)
{
    (void)state;
    struct made made;
    struct tsr__heap heap;
    make(&made);
    segment(&made, TSR_SEGMENT_ALLOC, 1, 100 * MIB, 20 * MIB);
    segment(&made, TSR_SEGMENT_ALLOC, 0, 0, 20 * MIB);
    block(&made, TSR_ALLOC, 5, 0, 4 * MIB);
    block(&made, TSR_ALLOC, 3, 4 * MIB, 2 * MIB);
    block(&made, TSR_ALLOC, 4, 100 * MIB, 13 * MIB);
    block(&made, TSR_FREE, 5, 0, 4 * MIB);
    replay(&made, &heap);
    struct tsr_memory_level level = tsr_memory_level_of(heap.memory);
    assert_int_equal(level.total, 15 * MIB);
    assert_int_equal(level.requested, 15 * MIB - 2);
    assert_int_equal(level.reserved, 40 * MIB);
    tsr__heap_tidy(&heap);
    assert_int_equal(heap.n_ranges, 2);
    assert_int_equal(heap.ranges[0].address, 0);
    const struct tsr_instr **live;
    size_t n;
    assert_int_equal(tsr__heap_live(&heap, &live, &n), TSR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(live[0]->buffer, 3);
    assert_int_equal(live[1]->buffer, 4);
    free(live);
    tsr__heap_fini(&heap);
    tsr_program_fini(&made.program);
}

/* Pieces of an expandable segment are mapped one by one, and unmapped from the middle. */
static void test_heap__expandable_segment_grows_and_is_cut(void **state)
{
    (void)state;
    struct made made;
    struct tsr__heap heap;
    make(&made);
    segment(&made, TSR_SEGMENT_ALLOC, 7, 0, 20 * MIB);
    segment(&made, TSR_SEGMENT_ALLOC, 8, 60 * MIB, 20 * MIB); /* touches; another segment */
    segment(&made, TSR_SEGMENT_ALLOC, 7, 20 * MIB, 40 * MIB);
    replay(&made, &heap);
    tsr__heap_tidy(&heap);
    assert_int_equal(heap.n_ranges, 2);
    assert_int_equal(heap.ranges[0].bytes, 60 * MIB);
    assert_int_equal(heap.ranges[0].first_bytes, 20 * MIB);
    tsr__heap_fini(&heap);
    segment(&made, TSR_SEGMENT_FREE, 7, 10 * MIB, 20 * MIB); /* across two pieces */
    replay(&made, &heap);
    tsr__heap_tidy(&heap);
    assert_int_equal(tsr_memory_level_of(heap.memory).reserved, 60 * MIB);
    assert_int_equal(heap.n_ranges, 3);
    assert_int_equal(heap.ranges[0].bytes, 10 * MIB);
    assert_int_equal(heap.ranges[1].address, 30 * MIB);
    assert_int_equal(heap.ranges[1].bytes, 30 * MIB);
    tsr__heap_fini(&heap);
    tsr_program_fini(&made.program);
}

static void test_heap__misuse_is_refused(void **state)
{
    (void)state;
    struct made made;
    struct tsr__heap heap;
    make(&made);
    block(&made, TSR_ALLOC, 0, 0, 512);
    block(&made, TSR_ALLOC, 0, 512, 512);
    block(&made, TSR_FREE, 9, 0, 512);
    assert_int_equal(tsr__heap_init(&heap), TSR_OK);
    assert_int_equal(tsr__heap_apply(&heap, &made.program, 0), TSR_OK);
    assert_int_equal(tsr__heap_apply(&heap, &made.program, 1), TSR_EASSERT);
    assert_int_equal(tsr__heap_apply(&heap, &made.program, 2), TSR_EASSERT);
    tsr__heap_fini(&heap);
    tsr_program_fini(&made.program);
}

/* ---- in use ------------------------------------------------------------------------------- */

static uint64_t level_at(const struct tsr__in_use *in_use, double time)
{
    size_t cursor = 0;
    return tsr__in_use_between(in_use, time, time, &cursor);
}

/* The host allocates all of it at once and frees in between; the device works one after the other.
 */
static void test_in_use__from_first_to_last_work(void **state)
{
    (void)state;
    struct made made;
    make(&made);
    block(&made, TSR_ALLOC, 0, 0, 1000);
    block(&made, TSR_ALLOC, 1, 1024, 200);
    block(&made, TSR_ALLOC, 2, 2048, 30); /* stays */
    block(&made, TSR_ALLOC, 3, 4096, 4);  /* never used */
    use(&made, 0, 1, 2);
    use(&made, 1, 2, 3);
    use(&made, 0, 3, 4);
    block(&made, TSR_FREE, 0, 0, 1000);
    block(&made, TSR_FREE, 1, 1024, 200);
    block(&made, TSR_FREE, 3, 4096, 4);
    use(&made, 2, 6, 7);
    struct tsr_sim_span *spans = made.spans;
    struct tsr_detail detail = {.programs = made.list, .spans = &spans, .n_iterations = 1};
    struct tsr__view view = {.detail = &detail,
                             .program = &made.program,
                             .tables = &tables,
                             .spans = made.spans,
                             .start = 0,
                             .end = 10};
    struct tsr__in_use in_use;
    assert_int_equal(tsr__in_use_init(&in_use, &view), TSR_OK);
    static const uint64_t expected[] = {0, 1000, 1200, 1000, 0, 0, 30, 30, 30, 30};
    for (int t = 0; t < 10; t++)
        assert_int_equal(level_at(&in_use, t), expected[t]);
    assert_int_equal(in_use.peak, 1200);
    size_t cursor = 0;
    assert_int_equal(tsr__in_use_between(&in_use, 1.5, 2.5, &cursor), 1200);
    assert_int_equal(tsr__in_use_between(&in_use, 3.5, 6, &cursor), 1000);
    assert_int_equal(tsr__in_use_between(&in_use, 4.5, 6.5, &cursor), 30);
    tsr__in_use_fini(&in_use);
    tsr_program_fini(&made.program);
}

/* What came with the iteration counts from its start; what stays, to its end; work that ends when
 * other work begins does not share the memory with it. */
static void test_in_use__across_iterations(void **state)
{
    (void)state;
    struct made before, now;
    make(&before);
    make(&now);
    block(&before, TSR_ALLOC, 0, 0, 1000);    /* lives on */
    block(&before, TSR_ALLOC, 1, 1024, 200);  /* freed now, after use */
    block(&before, TSR_ALLOC, 2, 2048, 30);   /* freed now, without use */
    block(&before, TSR_ALLOC, 3, 4096, 4096); /* freed before */
    block(&before, TSR_FREE, 3, 4096, 4096);
    block(&now, TSR_FREE, 2, 2048, 30);
    use(&now, 1, 12, 13);
    block(&now, TSR_FREE, 1, 1024, 200);
    block(&now, TSR_ALLOC, 4, 1024, 100); /* takes its place */
    use(&now, 4, 13, 14);
    block(&now, TSR_FREE, 4, 1024, 100);
    const struct tsr_program *programs[] = {&before.program, &now.program};
    struct tsr_detail detail = {.programs = programs, .n_iterations = 2, .steady = 1};
    struct tsr__view view = {.detail = &detail,
                             .program = &now.program,
                             .tables = &tables,
                             .spans = now.spans,
                             .iteration = 1,
                             .start = 10,
                             .end = 20};
    struct tsr__in_use in_use;
    assert_int_equal(tsr__in_use_init(&in_use, &view), TSR_OK);
    assert_int_equal(level_at(&in_use, 10), 1200);
    assert_int_equal(level_at(&in_use, 13), 1100);
    assert_int_equal(level_at(&in_use, 14), 1000);
    assert_int_equal(level_at(&in_use, 19), 1000);
    assert_int_equal(in_use.peak, 1200);
    tsr__in_use_fini(&in_use);
    tsr_program_fini(&before.program);
    tsr_program_fini(&now.program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap__knows_blocks_and_ranges),
        cmocka_unit_test(test_heap__expandable_segment_grows_and_is_cut),
        cmocka_unit_test(test_heap__misuse_is_refused),
        cmocka_unit_test(test_in_use__from_first_to_last_work),
        cmocka_unit_test(test_in_use__across_iterations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
