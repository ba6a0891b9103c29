/* test_memory_replay.c: engine/program/memory.c on programs made by hand and on a made-up job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/report/synthetic.h"

static const struct tsr_tables no_tables;

struct check {
    const struct tsr_program *program;
    size_t n, last_instr;
    uint64_t highest, highest_reserved;
};

/* Called for every sample: the owners sum to the total, and instructions come in order. */
static void check_sample(void *user, const struct tsr_memory_sample *sample)
{
    struct check *check = user;
    uint64_t sum = 0;
    for (int c = 0; c < TSR_N_CATEGORIES; c++)
        sum += sample->by_category[c];
    assert_int_equal(sum, sample->total);
    assert_true(check->n == 0 || sample->instr > check->last_instr);
    uint8_t kind = check->program->instrs[sample->instr].kind;
    assert_true(kind == TSR_ALLOC || kind == TSR_FREE);
    check->n++;
    check->last_instr = sample->instr;
    check->highest = tsr_max_u64(check->highest, sample->total);
}

static void add(struct tsr_program *program, enum tsr_instr_kind kind, uint32_t buffer,
                enum tsr_category category, uint64_t bytes)
{
    struct tsr_instr instr = {.kind = (uint8_t)kind,
                              .category = (uint8_t)category,
                              .buffer = buffer,
                              .segment = buffer,
                              .bytes = bytes,
                              .block_bytes = bytes,
                              .comm = UINT16_MAX};
    instr.origin.module = (uint32_t)program->n_instrs;
    assert_int_equal(tsr_program_append(program, &instr), TSR_OK);
}

static void test_peak__is_first_moment_of_the_maximum(void **state)
{
    (void)state;
    struct tsr_program program;
    tsr_program_init(&program, &no_tables);
    add(&program, TSR_SEGMENT_ALLOC, 0, 0, 4096);
    add(&program, TSR_ALLOC, 1, TSR_CAT_ACTIVATION, 1024);
    add(&program, TSR_ALLOC, 2, TSR_CAT_TEMP, 512); /* 1536: the peak */
    add(&program, TSR_FREE, 2, TSR_CAT_TEMP, 512);
    add(&program, TSR_ALLOC, 3, TSR_CAT_INPUTS, 512); /* 1536 again */
    add(&program, TSR_FREE, 1, TSR_CAT_ACTIVATION, 1024);
    add(&program, TSR_SEGMENT_FREE, 0, 0, 1024);
    struct tsr_memory *memory;
    struct tsr_memory_peak peak;
    struct check check = {.program = &program};
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &program, check_sample, &check, &peak), TSR_OK);
    assert_int_equal(check.n, 5);
    assert_int_equal(peak.allocated, 1536);
    assert_int_equal(peak.instr, 2);
    assert_int_equal(peak.origin.module, 2);
    assert_int_equal(peak.by_category[TSR_CAT_TEMP], 512);
    assert_int_equal(peak.by_category[TSR_CAT_INPUTS], 0);
    assert_int_equal(peak.reserved, 4096);
    assert_int_equal(peak.end_allocated, 512);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

static void test_iterations__carry_live_buffers(void **state)
{
    (void)state;
    struct tsr_program first, second;
    tsr_program_init(&first, &no_tables);
    tsr_program_init(&second, &no_tables);
    add(&first, TSR_SEGMENT_ALLOC, 0, 0, 8192);
    add(&first, TSR_ALLOC, 1, TSR_CAT_OPT_STATE, 4096);
    add(&second, TSR_FREE, 1, TSR_CAT_OPT_STATE, 4096);
    add(&second, TSR_ALLOC, 2, TSR_CAT_TEMP, 512);
    struct tsr_memory *memory;
    struct tsr_memory_peak peak;
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &first, NULL, NULL, &peak), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &second, NULL, NULL, &peak), TSR_OK);
    /* The level at the start of the iteration counts. */
    assert_int_equal(peak.allocated, 4096);
    assert_int_equal(peak.by_category[TSR_CAT_OPT_STATE], 4096);
    assert_int_equal(peak.instr, 0);
    assert_int_equal(peak.reserved, 8192);
    assert_int_equal(peak.end_allocated, 512);
    tsr_memory_destroy(memory);
    tsr_program_fini(&first);
    tsr_program_fini(&second);
}

/* Replays one program of two instructions after `prefix` and expects an error that names `word`. */
static void expect_refused(enum tsr_instr_kind a, enum tsr_instr_kind b, const char *word)
{
    struct tsr_program program;
    tsr_program_init(&program, &no_tables);
    add(&program, TSR_ALLOC, 7, TSR_CAT_TEMP, 512);
    add(&program, a, 7, TSR_CAT_TEMP, 512);
    add(&program, b, 7, TSR_CAT_TEMP, 512);
    struct tsr_memory *memory;
    struct tsr_memory_peak peak;
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &program, NULL, NULL, &peak), TSR_EASSERT);
    assert_non_null(strstr(tsr_error_text(), word));
    assert_non_null(strstr(tsr_error_text(), "7"));
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

static void test_misuse__is_refused(void **state)
{
    (void)state;
    expect_refused(TSR_FREE, TSR_FREE, "freed twice");
    expect_refused(TSR_ALLOC, TSR_FREE, "allocated twice");
    expect_refused(TSR_SEGMENT_FREE, TSR_FREE, "released");
}

/* Thousands of buffers, freed in another order than they were made: the map grows and shrinks. */
static void test_map__keeps_every_buffer(void **state)
{
    enum { N = 20000 };
    (void)state;
    struct tsr_program program;
    tsr_program_init(&program, &no_tables);
    for (uint32_t i = 0; i < N; i++)
        add(&program, TSR_ALLOC, i, (enum tsr_category)(i % TSR_N_CATEGORIES), 512 * (i % 7 + 1));
    for (uint32_t i = 0; i < N; i++) { /* 7919 is coprime to N */
        uint32_t buffer = (uint32_t)((uint64_t)i * 7919 % N);
        add(&program, TSR_FREE, buffer, TSR_CAT_TEMP, 1); /* FREE's own size does not matter */
    }
    struct tsr_memory *memory;
    struct tsr_memory_peak peak;
    struct check check = {.program = &program};
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &program, check_sample, &check, &peak), TSR_OK);
    assert_int_equal(check.n, 2 * N);
    assert_int_equal(peak.allocated, check.highest);
    assert_int_equal(peak.instr, N - 1);
    assert_int_equal(peak.end_allocated, 0);
    tsr_memory_destroy(memory);
    tsr_program_fini(&program);
}

static void test_job__steady_iterations_are_alike(void **state)
{
    (void)state;
    struct synth_options options = {.n_blocks = 6, .world = 8, .tokens = 4096, .comm_slow = 1};
    struct synth *s = synth_create("fsdp", &options);
    struct tsr_memory *memory;
    struct tsr_memory_peak peaks[SYNTH_ITERATIONS];
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    for (int i = 0; i < SYNTH_ITERATIONS; i++) {
        struct check check = {.program = &s->programs[i]};
        assert_int_equal(
            tsr_memory_replay(memory, &s->programs[i], check_sample, &check, &peaks[i]), TSR_OK);
        assert_true(check.highest <= peaks[i].allocated);
    }
    assert_int_equal(peaks[2].allocated, peaks[3].allocated);
    assert_int_equal(peaks[2].end_allocated, peaks[3].end_allocated);
    tsr_memory_destroy(memory);
    synth_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak__is_first_moment_of_the_maximum),
        cmocka_unit_test(test_iterations__carry_live_buffers),
        cmocka_unit_test(test_misuse__is_refused),
        cmocka_unit_test(test_map__keeps_every_buffer),
        cmocka_unit_test(test_job__steady_iterations_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
