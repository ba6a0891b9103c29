/* test_memory.c: engine/program/memory.c: what is alive at an instruction, and in which segments.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/program/memory.h"

static const struct tsr_tables no_tables;

static void add(struct tsr_program *program, struct tsr_instr instr)
{
    instr.comm = UINT16_MAX;
    assert_int_equal(tsr_program_append(program, &instr), TSR_OK);
}

static void add_segment(struct tsr_program *program, uint8_t kind, uint32_t segment,
                        uint16_t stream, uint64_t bytes)
{
    add(program,
        (struct tsr_instr){.kind = kind, .segment = segment, .stream = stream, .bytes = bytes});
}

static void add_buffer(struct tsr_program *program, uint8_t kind, uint32_t buffer, uint32_t segment,
                       uint64_t bytes, uint32_t module)
{
    struct tsr_instr instr = {.kind = kind,
                              .category = TSR_CAT_ACTIVATION,
                              .buffer = buffer,
                              .segment = segment,
                              .bytes = bytes,
                              .block_bytes = tsr_round_up(bytes, 512)};
    instr.origin.module = module;
    add(program, instr);
}

/* Two segments on two streams, three buffers, one of which is freed. */
static void make_program(struct tsr_program *program)
{
    tsr_program_init(program, &no_tables);
    add_segment(program, TSR_SEGMENT_ALLOC, 3, 0, 4096);
    add_buffer(program, TSR_ALLOC, 7, 3, 1000, 70);
    add_segment(program, TSR_SEGMENT_ALLOC, 5, 1, 8192);
    add_buffer(program, TSR_ALLOC, 9, 5, 512, 90);
    add_buffer(program, TSR_ALLOC, 8, 3, 100, 80);
    add_buffer(program, TSR_FREE, 9, 5, 512, 1);
}

static struct tsr_memory *replay(const struct tsr_program *program, size_t to)
{
    struct tsr_memory *memory = NULL;
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay_part(memory, program, 0, to), TSR_OK);
    return memory;
}

static void test_live__is_in_order_of_ids_with_origins(void **state)
{
    (void)state;
    struct tsr_program program;
    make_program(&program);
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    struct tsr_memory *memory = replay(&program, 5);
    assert_int_equal(tsr_memory_live(memory, &live, &n), TSR_OK);
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(live[i]->buffer, 7 + i);
        assert_int_equal(live[i]->origin.module, 70 + 10 * i);
    }
    assert_int_equal(live[0]->bytes, 1000);
    assert_int_equal(live[0]->block_bytes, 1024);
    free(live);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

static void test_live__forgets_what_is_freed__keeps_the_rest(void **state)
{
    (void)state;
    struct tsr_program program;
    make_program(&program);
    const struct tsr_instr **live = NULL;
    size_t n = 0;
    struct tsr_memory *memory = replay(&program, SIZE_MAX);
    struct tsr_memory_level level = tsr_memory_level_of(memory);
    assert_int_equal(tsr_memory_live(memory, &live, &n), TSR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(level.n_live, 2);
    assert_int_equal(live[0]->buffer, 7);
    assert_int_equal(live[1]->buffer, 8);
    assert_int_equal(level.total, 1024 + 512);
    assert_int_equal(level.by_category[TSR_CAT_ACTIVATION], level.total);
    assert_int_equal(level.reserved, 4096 + 8192);
    free(live);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

static void test_segments__used_and_cached(void **state)
{
    (void)state;
    struct tsr_program program;
    make_program(&program);
    struct tsr_memory_segment *segments = NULL;
    size_t n = 0;
    struct tsr_memory *memory = replay(&program, SIZE_MAX);
    assert_int_equal(tsr_memory_segments(memory, &segments, &n), TSR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(segments[0].segment, 3);
    assert_int_equal(segments[0].stream, 0);
    assert_int_equal(segments[0].used, 1536);
    assert_int_equal(segments[1].segment, 5);
    assert_int_equal(segments[1].stream, 1);
    assert_int_equal(segments[1].bytes, 8192);
    assert_int_equal(segments[1].used, 0);
    free(segments);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

/* Expandable segments grow and shrink under one number; a number that is gone is not listed. */
static void test_segments__grow_shrink_and_go(void **state)
{
    (void)state;
    struct tsr_program program;
    struct tsr_memory_segment *segments = NULL;
    size_t n = 0;
    tsr_program_init(&program, &no_tables);
    add_segment(&program, TSR_SEGMENT_ALLOC, 4, 2, 2048);
    add_segment(&program, TSR_SEGMENT_ALLOC, 1, 0, 512); /* a lower number later */
    add_segment(&program, TSR_SEGMENT_ALLOC, 4, 2, 4096);
    add_segment(&program, TSR_SEGMENT_FREE, 4, 2, 1024);
    add_segment(&program, TSR_SEGMENT_FREE, 1, 0, 512);
    struct tsr_memory *memory = replay(&program, 4);
    assert_int_equal(tsr_memory_segments(memory, &segments, &n), TSR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(segments[0].segment, 1);
    assert_int_equal(segments[1].segment, 4);
    assert_int_equal(segments[1].bytes, 2048 + 4096 - 1024);
    free(segments);
    assert_int_equal(tsr_memory_replay_part(memory, &program, 4, 5), TSR_OK);
    assert_int_equal(tsr_memory_segments(memory, &segments, &n), TSR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(segments[0].segment, 4);
    assert_int_equal(tsr_memory_level_of(memory).reserved, segments[0].bytes);
    free(segments);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

static void test_segment_free__is_an_error__of_more_than_the_segment_has(void **state)
{
    (void)state;
    struct tsr_program program;
    struct tsr_memory *memory = NULL;
    tsr_program_init(&program, &no_tables);
    add_segment(&program, TSR_SEGMENT_ALLOC, 1, 0, 4096);
    add_segment(&program, TSR_SEGMENT_ALLOC, 2, 0, 512);
    add_segment(&program, TSR_SEGMENT_FREE, 2, 0, 1024);
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay_part(memory, &program, 0, SIZE_MAX), TSR_EASSERT);
    assert_string_equal(tsr_error_text(), "instruction 2: 1024 bytes of segment 2 are released, "
                                          "512 are reserved");
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

/* Many buffers that come and go in a fixed pseudo-random order: the parts of a program add up to
 * tsr_memory_replay(), and the live list to the level, wherever one stops. */
static void test_parts__add_up_to_a_replay(void **state)
{
    (void)state;
    enum { N = 4000 };
    struct tsr_program program;
    uint32_t random = 1, alive[N], n_alive = 0, next = 0;
    tsr_program_init(&program, &no_tables);
    add_segment(&program, TSR_SEGMENT_ALLOC, 0, 0, UINT64_C(1) << 30);
    for (int i = 0; i < N; i++) {
        random = random * 1664525 + 1013904223;
        if (n_alive && random >> 31) {
            uint32_t k = (random >> 8) % n_alive;
            add_buffer(&program, TSR_FREE, alive[k], 0, 0, 0);
            alive[k] = alive[--n_alive];
        } else {
            add_buffer(&program, TSR_ALLOC, next, 0, 1 + (random >> 12), next);
            alive[n_alive++] = next++;
        }
    }
    struct tsr_memory *whole = NULL, *parts = NULL;
    struct tsr_memory_peak peak;
    assert_int_equal(tsr_memory_create(&whole), TSR_OK);
    assert_int_equal(tsr_memory_create(&parts), TSR_OK);
    assert_int_equal(tsr_memory_replay(whole, &program, NULL, NULL, &peak), TSR_OK);
    uint64_t highest = 0;
    for (size_t i = 0; i < program.n_instrs; i++) {
        assert_int_equal(tsr_memory_replay_part(parts, &program, i, i + 1), TSR_OK);
        highest = tsr_max_u64(highest, tsr_memory_level_of(parts).total);
        if (i % 97 != 0 && i + 1 != program.n_instrs)
            continue;
        const struct tsr_instr **live = NULL;
        size_t n = 0;
        uint64_t sum = 0;
        assert_int_equal(tsr_memory_live(parts, &live, &n), TSR_OK);
        for (size_t k = 0; k < n; k++)
            sum += live[k]->block_bytes;
        assert_int_equal(sum, tsr_memory_level_of(parts).total);
        free(live);
    }
    assert_int_equal(highest, peak.allocated);
    assert_int_equal(tsr_memory_level_of(parts).total, peak.end_allocated);
    assert_int_equal(tsr_memory_level_of(parts).n_live, n_alive);
    tsr_memory_destroy(whole);
    tsr_memory_destroy(parts);
    tsr_program_fini(&program);
}

static uint64_t workspace(uint8_t op, uint8_t dtype, bool deterministic)
{
    const struct tsr_work work = {.op = op, .dims = {2, 32, 8, 4096, 8192, 128}};
    const struct tsr_operand operand = {.dtype = dtype};
    const struct tsr_instr instr = {
        .kind = TSR_OP, .work = &work, .operands = &operand, .n_operands = 1};
    return tsr_workspace_of(&instr, deterministic);
}

static void test_workspaces__are_what_a_stream_needs_most(void **state)
{
    (void)state;
    const uint64_t usual = UINT64_C(32) << 20, sums = UINT64_C(4) * 2 * 32 * 4096 * 128,
                   pairs = UINT64_C(2) * 2 * 32 * 4096 * 8192;
    assert_int_equal(workspace(TSR_OP_GEMM, TSR_BF16, false), usual);
    assert_int_equal(workspace(TSR_OP_ATTENTION, TSR_BF16, true), usual);
    assert_int_equal(workspace(TSR_OP_ATTENTION_BWD, TSR_F32, true), usual); /* not cuDNN's */
    assert_int_equal(workspace(TSR_OP_ATTENTION_BWD, TSR_BF16, false), sums);
    assert_int_equal(workspace(TSR_OP_ATTENTION_BWD, TSR_F16, true), pairs);
    assert_int_equal(workspace(TSR_OP_POINTWISE, TSR_BF16, false), 0);

    const struct tsr_work product = {.op = TSR_OP_GEMM},
                          small = {.op = TSR_OP_ATTENTION_BWD, .dims = {1, 1, 1, 64, 64, 64}},
                          large = {.op = TSR_OP_ATTENTION_BWD, .dims = {2, 32, 8, 4096, 8192, 128}};
    const struct tsr_operand half = {.dtype = TSR_BF16};
    const struct {
        const struct tsr_work *work;
        uint16_t stream;
        uint64_t bytes; /* of all streams after it */
    } steps[] = {{&product, 0, usual},
                 {NULL, 1, usual},
                 {&large, 0, sums},
                 {&small, 0, sums},
                 {&product, 3, sums + usual},
                 {&small, TSR_WORKSPACE_STREAMS, sums + usual}}; /* no device has such a stream */
    struct tsr_workspaces all = {.bytes = 0};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct tsr_instr instr = {
            .work = steps[i].work, .stream = steps[i].stream, .operands = &half, .n_operands = 1};
        tsr_workspaces_take(&all, &instr, false);
        assert_int_equal(all.bytes, steps[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_live__is_in_order_of_ids_with_origins),
        cmocka_unit_test(test_live__forgets_what_is_freed__keeps_the_rest),
        cmocka_unit_test(test_segments__used_and_cached),
        cmocka_unit_test(test_segments__grow_shrink_and_go),
        cmocka_unit_test(test_segment_free__is_an_error__of_more_than_the_segment_has),
        cmocka_unit_test(test_parts__add_up_to_a_replay),
        cmocka_unit_test(test_workspaces__are_what_a_stream_needs_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
