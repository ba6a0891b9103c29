/* test_out_of_memory.c: the n-th allocation of the host fails, for every n. Each scenario must say
 * so with TSR_ENOMEM, release everything (AddressSanitizer looks for leaks), and work when memory
 * is there. The linker redirects the allocation functions to those below (tests/CMakeLists.txt).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/program/executor.h"
#include "engine/program/memory.h"
#include "tests/empty_cache.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static long n_left = -1; /* allocations before the one that fails; negative: none fails */

static bool fails_now(void)
{
    return n_left >= 0 && n_left-- == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(old, bytes);
}

/* Runs `scenario` with its n-th allocation failing until none is left to fail. */
static void fail_each_in_turn(tsr_status (*scenario)(void), long at_least)
{
    for (long n = 0;; n++) {
        n_left = n;
        tsr_status status = scenario();
        bool failed = n_left < 0;
        n_left = -1;
        if (!failed) {
            assert_int_equal(status, TSR_OK);
            assert_true(n >= at_least);
            return;
        }
        assert_int_equal(status, TSR_ENOMEM);
        assert_true(tsr_error_text()[0] != '\0');
    }
}

/* ---- scenarios --------------------------------------------------------------------------- */

static tsr_status emit(struct tsr_executor *executor)
{
    const struct tsr_work work = {.op = TSR_OP_POINTWISE, .name = "add", .flops = 1};
    for (uint32_t i = 0; i < 3000; i++) {
        const struct tsr_operand operands[] = {
            {i / 2, TSR_READ, TSR_SPACE_DEVICE, 0, 0, 0, 512, 0, 0},
            {i, TSR_WRITE, TSR_SPACE_DEVICE, 0, 0, 0, 512, 0, 0}};
        struct tsr_instr instrs[] = {
            {.kind = TSR_ALLOC, .buffer = i, .bytes = 512, .block_bytes = 512},
            {.kind = TSR_OP, .n_operands = 2, .operands = operands, .work = &work},
        };
        for (int k = 0; k < 2; k++)
            TSR_TRY(executor->ops->submit(executor, &instrs[k]));
    }
    return TSR_OK;
}

static void ignore_text(void *user, const char *text)
{
    (void)user;
    (void)text;
}

static tsr_status record_scenario(void)
{
    struct tsr_program program;
    struct tsr_recorder recorder;
    tsr_program_init(&program, NULL);
    tsr_recorder_init(&recorder, &program);
    tsr_status status = emit(&recorder.base);
    if (status == TSR_OK && tsr_program_hash(&program) == 0)
        status = tsr_fail(TSR_ENOMEM, "no program hash");
    tsr_program_fini(&program);
    return status;
}

static tsr_status replay_scenario(void)
{
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_memory *memory = NULL;
    struct tsr_memory_peak peak;
    const struct tsr_instr **live = NULL;
    struct tsr_memory_segment *segments = NULL;
    const struct tsr_instr segment = {.kind = TSR_SEGMENT_ALLOC, .bytes = 1 << 20};
    size_t n;
    tsr_program_init(&program, NULL);
    tsr_recorder_init(&recorder, &program);
    tsr_status status = recorder.base.ops->submit(&recorder.base, &segment);
    if (status == TSR_OK)
        status = emit(&recorder.base);
    if (status == TSR_OK)
        status = tsr_memory_create(&memory);
    if (status == TSR_OK)
        status = tsr_memory_replay(memory, &program, NULL, NULL, &peak);
    if (status == TSR_OK)
        status = tsr_memory_live(memory, &live, &n);
    if (status == TSR_OK)
        status = tsr_memory_segments(memory, &segments, &n);
    free(live);
    free(segments);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
    return status;
}

static tsr_status allocator_scenario(void)
{
    static struct tsr_block blocks[2000];
    const struct tsr_allocator_config config = {.device_bytes = UINT64_C(1) << 30,
                                                .expandable_segments = true};
    struct tsr_allocator *a;
    TSR_TRY(tsr_allocator_create(&config, NULL, NULL, NULL, &a));
    tsr_status status = TSR_OK;
    for (int round = 0; round < 2 && status == TSR_OK; round++) {
        for (uint32_t i = 0; i < 2000 && status == TSR_OK; i++)
            status = tsr_allocator_alloc(a, 1 + i * 997 % 300000, (uint16_t)(i % 2), &blocks[i]);
        for (uint32_t i = 0; i < 2000; i += 2)
            if (blocks[i].handle)
                tsr_allocator_free(a, blocks[i].handle);
        for (uint32_t i = 1; i < 2000; i += 2)
            if (blocks[i].handle)
                tsr_allocator_free(a, blocks[i].handle);
        for (uint32_t i = 0; i < 2000; i++)
            blocks[i].handle = NULL;
        empty_cache(a);
    }
    tsr_allocator_destroy(a);
    return status;
}

/* ---- tests ------------------------------------------------------------------------------- */

static void test_out_of_memory__recorder_and_hash(void **state)
{
    (void)state;
    fail_each_in_turn(record_scenario, 10);
}

static void test_out_of_memory__memory_replay(void **state)
{
    (void)state;
    fail_each_in_turn(replay_scenario, 10);
}

static void test_out_of_memory__allocator(void **state)
{
    (void)state;
    fail_each_in_turn(allocator_scenario, 4);
}

static void test_out_of_memory__dump_says_so(void **state)
{
    (void)state;
    struct tsr_program program;
    struct tsr_recorder recorder;
    tsr_program_init(&program, NULL);
    tsr_recorder_init(&recorder, &program);
    assert_int_equal(emit(&recorder.base), TSR_OK);
    for (long n = 0; n < 4; n++) {
        n_left = n;
        tsr_program_dump(&program, ignore_text, NULL);
        n_left = -1;
    }
    tsr_program_fini(&program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out_of_memory__recorder_and_hash),
        cmocka_unit_test(test_out_of_memory__memory_replay),
        cmocka_unit_test(test_out_of_memory__allocator),
        cmocka_unit_test(test_out_of_memory__dump_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
