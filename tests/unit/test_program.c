/* test_program.c: recording, program hash, offsets hash, executed hash, dump.
 *
 * The hash tests start from one small program and change one thing at a time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/program/executor.h"

static const char *const modules[] = {"", "layers.0.mlp"};
static const char *const groups[] = {"layers.0"};
static const struct tsr_stream_info streams[] = {
    {"default", TSR_ROLE_COMPUTE, 0},
    {"all_gather", TSR_ROLE_ALL_GATHER, -1},
};
static const struct tsr_comm comms[] = {{"shard", 8, 1, false, 0}, {"replicate", 2, 8, false, 0}};
static const struct tsr_tables tables = {
    .world = 16,
    .n_modules = 2,
    .n_groups = 1,
    .n_streams = 2,
    .n_comms = 2,
    .modules = modules,
    .groups = groups,
    .streams = streams,
    .comms = comms,
};

enum { N_INSTRS = 8, I_ALLOC = 1, I_GATHER = 2, I_RECORD = 3, I_WAIT = 4, I_OP = 5 };

/* A program as data that a test may change before it is recorded. */
struct sample {
    struct tsr_operand gather[2], op[2];
    struct tsr_work work;
    struct tsr_instr instrs[N_INSTRS];
};

static void sample_init(struct sample *s, uint32_t first_buffer, uint32_t first_event)
{
    uint32_t in = first_buffer, out = first_buffer + 7;
    const struct tsr_origin origin = {
        .module = 1, .group = 0, .phase = TSR_PHASE_FORWARD, .hook = TSR_HOOK_PRE_FORWARD};
    *s = (struct sample){
        .gather = {{in, TSR_READ, TSR_SPACE_DEVICE, 0, 0, 0, 128, 0, 0},
                   {out, TSR_WRITE, TSR_SPACE_DEVICE, 0, 0, 0, 1024, 0, 0}},
        .op = {{out, TSR_READ, TSR_SPACE_DEVICE, 0, 0, 256, 512, 0, 0},
               {in, TSR_READ_WRITE, TSR_SPACE_DEVICE, 0, 0, 0, 128, 0, 0}},
        .work = {.op = TSR_OP_GEMM,
                 .dtype = TSR_BF16,
                 .name = "mm",
                 .flops = 2e9,
                 .model_flops = 2e9,
                 .bytes_read = 4096,
                 .bytes_written = 2048,
                 .dims = {100, 200, 50, 1}},
    };
    struct tsr_instr instrs[N_INSTRS] = {
        {.kind = TSR_MARK, .mark = TSR_MARK_ITERATION, .value = 4},
        {.kind = TSR_ALLOC, .buffer = out, .bytes = 1000, .block_bytes = 1024, .address = 4096},
        {.kind = TSR_ALL_GATHER, .stream = 1, .comm = 0, .dtype = TSR_BF16, .bytes = 1024},
        {.kind = TSR_RECORD, .stream = 1, .event = first_event},
        {.kind = TSR_WAIT, .stream = 0, .event = first_event},
        {.kind = TSR_OP, .stream = 0, .scalar = 1},
        {.kind = TSR_FREE, .buffer = out, .bytes = 1000, .block_bytes = 1024, .address = 4096},
        {.kind = TSR_MARK, .mark = TSR_MARK_ITERATION_END, .value = 4},
    };
    memcpy(s->instrs, instrs, sizeof instrs);
    for (int i = 0; i < N_INSTRS; i++)
        s->instrs[i].origin = origin;
    s->instrs[I_GATHER].operands = s->gather;
    s->instrs[I_GATHER].n_operands = 2;
    s->instrs[I_OP].operands = s->op;
    s->instrs[I_OP].n_operands = 2;
    s->instrs[I_OP].work = &s->work;
}

static void record(const struct sample *s, struct tsr_program *program)
{
    tsr_program_init(program, &tables);
    struct tsr_recorder recorder;
    tsr_recorder_init(&recorder, program);
    for (int i = 0; i < N_INSTRS; i++)
        assert_int_equal(recorder.base.ops->submit(&recorder.base, &s->instrs[i]), TSR_OK);
    assert_int_equal(recorder.base.ops->drain(&recorder.base), TSR_OK);
}

struct hashes {
    uint64_t program, offsets, executed;
};

static struct hashes hashes_of(const struct sample *s)
{
    struct tsr_program program;
    record(s, &program);
    struct hashes h = {tsr_program_hash(&program), tsr_program_offsets_hash(&program),
                       tsr_program_expected_exec_hash(&program)};
    tsr_program_fini(&program);
    return h;
}

static struct hashes base_hashes(void)
{
    struct sample s;
    sample_init(&s, 10, 3);
    return hashes_of(&s);
}

static void test_program__append__is_a_deep_copy(void **state)
{
    (void)state;
    struct sample s;
    struct tsr_program program;
    sample_init(&s, 10, 3);
    record(&s, &program);
    s.op[0].bytes = 1;
    s.work.flops = 1;
    assert_int_equal(program.n_instrs, N_INSTRS);
    assert_int_equal(program.instrs[I_OP].operands[0].bytes, 512);
    assert_true(program.instrs[I_OP].work->flops == 2e9);
    assert_null(program.instrs[I_WAIT].operands);
    assert_null(program.instrs[I_WAIT].work);
    tsr_program_fini(&program);
    assert_int_equal(program.n_instrs, 0);
}

static void test_program__hash__equal_when_ids_are_renumbered(void **state)
{
    (void)state;
    struct sample s;
    struct hashes base = base_hashes();
    sample_init(&s, 3000000, 77);
    assert_true(hashes_of(&s).program == base.program);
    assert_true(base.program != 0);
    /* Buffers that change places are another program. */
    sample_init(&s, 10, 3);
    s.op[0].buffer = 10;
    s.op[1].buffer = 17;
    assert_true(hashes_of(&s).program != base.program);
    /* So is a wait for an event that nobody recorded. */
    sample_init(&s, 10, 3);
    s.instrs[I_WAIT].event = 4;
    assert_true(hashes_of(&s).program != base.program);
}

static void test_program__hash__ignores_places_iterations_and_origins(void **state)
{
    (void)state;
    struct sample s;
    struct hashes base = base_hashes();
    sample_init(&s, 10, 3);
    s.instrs[0].value = s.instrs[N_INSTRS - 1].value = 5;
    s.instrs[I_ALLOC].segment = 9;
    s.instrs[I_OP].origin.iteration = 5;
    assert_true(hashes_of(&s).program == base.program);
    assert_true(hashes_of(&s).offsets == base.offsets);
    s.instrs[I_ALLOC].address = 8192;
    assert_true(hashes_of(&s).program == base.program);
    assert_true(hashes_of(&s).offsets != base.offsets);
    sample_init(&s, 10, 3);
    s.instrs[I_ALLOC].block_bytes = 2048;
    assert_true(hashes_of(&s).offsets != base.offsets);
}

/* One change per case; each must change the program hash. */
static void change(struct sample *s, int what)
{
    struct tsr_instr *gather = &s->instrs[I_GATHER], *op = &s->instrs[I_OP];
    switch (what) {
    case 0:
        gather->kind = TSR_REDUCE_SCATTER;
        break;
    case 1:
        gather->stream = 0;
        break;
    case 2:
        gather->comm = 1;
        break;
    case 3:
        gather->dtype = TSR_F32;
        break;
    case 4:
        gather->bytes = 2048;
        break;
    case 5:
        gather->reduce_op = TSR_REDUCE_AVG;
        break;
    case 6:
        gather->factor = 0.5;
        break;
    case 7:
        gather->peer = 1;
        break;
    case 8:
        gather->n_operands = 1;
        break;
    case 9:
        s->gather[0].offset = 64;
        break;
    case 10:
        s->gather[0].bytes = 64;
        break;
    case 11:
        s->gather[0].access = TSR_READ_WRITE;
        break;
    case 12:
        s->gather[0].space = TSR_SPACE_HOST;
        break;
    case 13:
        s->work.op = TSR_OP_POINTWISE;
        break;
    case 14:
        s->work.name = "bmm";
        break;
    case 15:
        s->work.flops = 3e9;
        break;
    case 16:
        s->work.model_flops = 0;
        break;
    case 17:
        s->work.bytes_read = 1;
        break;
    case 18:
        s->work.bytes_written = 1;
        break;
    case 19:
        s->work.dims[2] = 51;
        break;
    case 20:
        s->work.dtype = TSR_F32;
        break;
    case 21:
        s->work.causal = 1;
        break;
    case 22:
        s->work.recompute = 1;
        break;
    case 23:
        op->scalar = 2;
        break;
    case 24:
        op->work = NULL;
        break;
    case 25:
        s->instrs[I_ALLOC].bytes = 1001;
        break;
    case 26:
        s->instrs[0].mark = TSR_MARK_PHASE;
        break;
    default:
        s->instrs[I_RECORD].stream = 0;
        break;
    }
}
enum { N_CHANGES = 28 };

static void test_program__hash__differs_in_every_field(void **state)
{
    (void)state;
    uint64_t seen[N_CHANGES + 1] = {base_hashes().program};
    for (int what = 0; what < N_CHANGES; what++) {
        struct sample s;
        sample_init(&s, 10, 3);
        change(&s, what);
        seen[what + 1] = hashes_of(&s).program;
        for (int i = 0; i <= what; i++)
            if (seen[i] == seen[what + 1])
                fail_msg("change %d has the hash of change %d", what, i - 1);
    }
}

static void test_program__hash__sees_the_shape_of_a_communicator(void **state)
{
    (void)state;
    struct sample s;
    struct tsr_program program;
    struct tsr_comm other_comms[] = {{"shard", 4, 1, false, 0}, {"replicate", 4, 4, false, 0}};
    struct tsr_tables other = tables;
    other.comms = other_comms;
    sample_init(&s, 10, 3);
    record(&s, &program);
    uint64_t hash = tsr_program_hash(&program);
    program.tables = &other;
    assert_true(tsr_program_hash(&program) != hash);
    tsr_program_fini(&program);
}

static void test_program__hash__many_buffers(void **state)
{
    (void)state;
    uint64_t hash[2];
    for (uint32_t run = 0; run < 2; run++) {
        struct tsr_program program;
        tsr_program_init(&program, &tables);
        for (uint32_t i = 0; i < 20000; i++) {
            struct tsr_instr alloc = {.kind = TSR_ALLOC, .bytes = 8};
            alloc.buffer = run ? i * 1009u : i;
            assert_int_equal(tsr_program_append(&program, &alloc), TSR_OK);
        }
        hash[run] = tsr_program_hash(&program);
        tsr_program_fini(&program);
    }
    assert_true(hash[0] == hash[1]);
}

/* ---- executed hash ----------------------------------------------------------------------- */

/* An executor that runs the streams in some order and spoils one thing. */
enum spoil { HONEST, OTHER_INTERLEAVING, DROP, SWAP, SHORTEN, OTHER_EVENT };

static uint64_t execute(const struct tsr_program *program, enum spoil spoil)
{
    struct tsr_exec_hash hash;
    tsr_exec_hash_init(&hash);
    for (uint16_t turn = 0; turn < 2; turn++) {
        uint16_t stream = spoil == OTHER_INTERLEAVING ? (uint16_t)(1 - turn) : turn;
        size_t order[N_INSTRS], n = 0;
        for (size_t i = 0; i < program->n_instrs; i++)
            if (tsr_instr_is_work(&program->instrs[i]) && program->instrs[i].stream == stream)
                order[n++] = i;
        if (spoil == SWAP && n > 1) {
            size_t first = order[0];
            order[0] = order[1];
            order[1] = first;
        }
        for (size_t i = 0; i < n; i++) {
            struct tsr_exec_record r = tsr_exec_record_of(&program->instrs[order[i]]);
            if (spoil == DROP && r.kind == TSR_WAIT)
                continue;
            if (spoil == SHORTEN && r.kind == TSR_ALL_GATHER) {
                struct tsr_operand shorter[2];
                memcpy(shorter, program->instrs[order[i]].operands, sizeof shorter);
                shorter[1].bytes -= 4;
                r.operands = tsr_operands_hash(shorter, 2);
            }
            if (spoil == OTHER_EVENT && r.kind == TSR_WAIT)
                r.bytes++;
            tsr_exec_record_done(&hash, &r);
        }
    }
    return tsr_exec_hash_value(&hash);
}

static void test_program__executed_hash__catches_a_planted_executor(void **state)
{
    (void)state;
    struct sample s;
    struct tsr_program program;
    sample_init(&s, 10, 3);
    record(&s, &program);
    uint64_t expected = tsr_program_expected_exec_hash(&program);
    assert_true(execute(&program, HONEST) == expected);
    assert_true(execute(&program, OTHER_INTERLEAVING) == expected);
    for (enum spoil spoil = DROP; spoil <= OTHER_EVENT; spoil++)
        assert_true(execute(&program, spoil) != expected);
    tsr_program_fini(&program);
}

/* ---- names, dump ------------------------------------------------------------------------- */

static void test_program__names__are_complete(void **state)
{
    (void)state;
    for (int i = 0; i < TSR_N_INSTR_KINDS; i++)
        assert_string_not_equal(tsr_instr_kind_name(i), "?");
    for (int i = 0; i < TSR_N_OP_KINDS; i++)
        assert_string_not_equal(tsr_op_kind_name(i), "?");
    for (int i = 0; i < TSR_N_CATEGORIES; i++)
        assert_string_not_equal(tsr_category_name(i), "?");
    for (int i = 0; i < TSR_N_PHASES; i++)
        assert_string_not_equal(tsr_phase_name(i), "?");
    for (int i = 0; i < TSR_N_HOOKS; i++)
        assert_string_not_equal(tsr_hook_name(i), "?");
    for (int i = 0; i < TSR_N_MARKS; i++)
        assert_string_not_equal(tsr_mark_name(i), "?");
    assert_string_equal(tsr_reduce_op_name(TSR_REDUCE_PREMUL_SUM), "premul_sum");
    assert_string_equal(tsr_instr_kind_name(-1), "?");
    assert_string_equal(tsr_instr_kind_name(TSR_N_INSTR_KINDS), "?");
}

static void collect(void *user, const char *text)
{
    char *all = user;
    assert_true(strlen(all) + strlen(text) < 4096);
    strcat(all, text);
}

static void test_program__dump__one_stable_line_per_instruction(void **state)
{
    (void)state;
    struct sample s;
    struct tsr_program program;
    char text[2][4096] = {"", ""};
    for (uint32_t run = 0; run < 2; run++) {
        sample_init(&s, 10 + run * 500, 3 + run * 20);
        record(&s, &program);
        tsr_program_dump(&program, collect, text[run]);
        tsr_program_fini(&program);
    }
    assert_string_equal(text[0], text[1]);
    const char *line = strstr(text[0], "2 all_gather");
    assert_non_null(line);
    const char expected[] =
        "2 all_gather all_gather bf16 comm=shard/8 bytes=1024 r:b1[0+128] w:b0[0+1024]"
        " | layers.0.mlp group=layers.0 forward hook=pre_forward micro=0\n"
        "3 record all_gather e0 | layers.0.mlp group=layers.0 forward hook=pre_forward micro=0\n";
    assert_memory_equal(line, expected, sizeof expected - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program__append__is_a_deep_copy),
        cmocka_unit_test(test_program__hash__equal_when_ids_are_renumbered),
        cmocka_unit_test(test_program__hash__ignores_places_iterations_and_origins),
        cmocka_unit_test(test_program__hash__differs_in_every_field),
        cmocka_unit_test(test_program__hash__sees_the_shape_of_a_communicator),
        cmocka_unit_test(test_program__hash__many_buffers),
        cmocka_unit_test(test_program__executed_hash__catches_a_planted_executor),
        cmocka_unit_test(test_program__names__are_complete),
        cmocka_unit_test(test_program__dump__one_stable_line_per_instruction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
