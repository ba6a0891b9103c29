/* test_oom.c: a step that the modelled device cannot hold: what was asked for, how things stood,
 * and that the recorded program leads to exactly that state.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/program/memory.h"
#include "engine/tessera.h"

enum { MIB = 1 << 20 };

struct job {
    struct tsr_recorder recorder;
    struct tsr_program init, step;
    struct tsr_engine *engine;
};

static const struct tsr_llama_config model = {.vocab_size = 1024,
                                              .hidden_size = 256,
                                              .intermediate_size = 1024,
                                              .n_layers = 2,
                                              .n_heads = 4,
                                              .n_kv_heads = 4,
                                              .head_dim = 64};

/* device_bytes 0: unlimited. Returns what the first step said. */
static tsr_status run(struct job *job, uint64_t device_bytes, uint64_t batch)
{
    tsr_program_init(&job->init, NULL);
    tsr_program_init(&job->step, NULL);
    tsr_recorder_init(&job->recorder, &job->init);
    const struct tsr_engine_config config = {.mesh = {.n_dims = 1, .shape = {2}},
                                             .executor = &job->recorder.base,
                                             .allocator = {.device_bytes = device_bytes}};
    assert_int_equal(tsr_engine_create(&config, &job->engine), TSR_OK);
    assert_int_equal(tsr_model_llama(job->engine, &model), TSR_OK);
    struct tsr_module *root = tsr_module_root(job->engine);
    const struct tsr_wrap_options options = {.mp = {.param = TSR_BF16}};
    assert_int_equal(tsr_fully_shard(job->engine, &root, 1, &options), TSR_OK);
    const struct tsr_step_config step = {.batch = batch, .seq = 512, .n_micro = 1};
    assert_int_equal(tsr_step_configure(job->engine, &step), TSR_OK);
    tsr_status status = tsr_engine_init_params(job->engine);
    if (status != TSR_OK)
        return status;
    job->recorder.into = &job->step;
    return tsr_step_run(job->engine, 0);
}

static void close_job(struct job *job)
{
    tsr_engine_destroy(job->engine);
    tsr_program_fini(&job->init);
    tsr_program_fini(&job->step);
}

static void test_oom__nothing_when_it_fits(void **state)
{
    (void)state;
    struct job job;
    struct tsr_oom oom;
    assert_int_equal(run(&job, 0, 4), TSR_OK);
    assert_false(tsr_engine_oom(job.engine, &oom));
    close_job(&job);
}

/* The state at the request: some prefix of the recorded programs has these allocated and reserved
 * bytes, and behind it there is nothing but what the failed step gave back. */
struct find {
    const struct tsr_oom *oom;
    const struct tsr_program *program;
    size_t at; /* of the latest fitting sample */
    bool found;
};

static void look(void *user, const struct tsr_memory_sample *sample)
{
    struct find *find = user;
    if (sample->total != find->oom->memory.allocated ||
        sample->reserved != find->oom->memory.reserved)
        return;
    find->found = true;
    find->at = sample->instr;
}

static void test_oom__says_who_asked_and_how_things_stood(void **state)
{
    (void)state;
    const uint64_t device = UINT64_C(60) * MIB;
    struct job job;
    struct tsr_oom oom;
    assert_int_equal(run(&job, device, 16), TSR_EOOM);
    assert_true(tsr_engine_oom(job.engine, &oom));
    assert_true(oom.memory.requested > 0 && oom.category < TSR_N_CATEGORIES);
    assert_int_equal(oom.memory.limit, device);
    assert_true(oom.memory.reserved <= device && oom.memory.allocated <= oom.memory.reserved);
    assert_true(oom.memory.reserved + oom.memory.requested > device);
    assert_int_equal(tsr_engine_memory(job.engine).n_alloc_retries > 0, true);
    assert_int_equal(oom.origin.phase, TSR_PHASE_FORWARD);
    assert_true(oom.origin.module < tsr_engine_tables(job.engine)->n_modules);

    struct tsr_memory *memory;
    struct tsr_memory_peak peak;
    struct find find = {.oom = &oom, .program = &job.step};
    assert_int_equal(tsr_memory_create(&memory), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &job.init, NULL, NULL, &peak), TSR_OK);
    assert_int_equal(tsr_memory_replay(memory, &job.step, look, &find, &peak), TSR_OK);
    tsr_memory_destroy(memory);
    assert_true(find.found);
    for (size_t i = find.at + 1; i < job.step.n_instrs; i++) {
        uint8_t kind = job.step.instrs[i].kind;
        assert_true(kind == TSR_FREE || kind == TSR_RECORD || kind == TSR_HOST_WAIT ||
                    kind == TSR_SEGMENT_FREE || kind == TSR_MARK || kind == TSR_OP);
    }
    close_job(&job);
}

static void test_oom__in_the_initialisation(void **state)
{
    (void)state;
    struct job job;
    struct tsr_oom oom;
    assert_int_equal(run(&job, UINT64_C(2) * MIB, 1), TSR_EOOM);
    assert_true(tsr_engine_oom(job.engine, &oom));
    assert_int_equal(oom.origin.phase, TSR_PHASE_INIT);
    assert_int_equal(oom.category, TSR_CAT_SHARDED_PARAM);
    close_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oom__nothing_when_it_fits),
        cmocka_unit_test(test_oom__says_who_asked_and_how_things_stood),
        cmocka_unit_test(test_oom__in_the_initialisation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
