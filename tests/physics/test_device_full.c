/* test_device_full.c: a step that must give cached segments back takes longer: the host waits for
 * every stream before it, so nothing that comes after can have been launched ahead.
 */
#include "tests/physics/physics.h"

static const char text[] = "model: llama-3.2-1b\ncluster: dgx-h100-1\nseq: 2048\niterations: 3\n";

struct outcome {
    double step_s;
    size_t n_releases, n_waits;
    struct tsr_allocator_stats memory;
};

static struct outcome run(uint64_t device_bytes)
{
    struct study study;
    study_open_limited(&study, text, device_bytes);
    struct tsr_sim_options options = tsr_sim_options_default();
    struct outcome out = {.step_s = study_step(&study, &options)};
    const struct tsr_program *program = study_program(&study, 0);
    for (size_t i = 0; i < program->n_instrs; i++) {
        out.n_releases += program->instrs[i].kind == TSR_SEGMENT_FREE;
        out.n_waits += program->instrs[i].kind == TSR_HOST_WAIT &&
                       program->instrs[i].origin.phase != TSR_PHASE_INPUTS;
    }
    out.memory = tsr_engine_memory(study.emission.classes[0].engine);
    study_close(&study);
    return out;
}

static void a_full_device_costs_time(void **state)
{
    (void)state;
    struct outcome roomy = run(0);
    assert_int_equal(roomy.n_releases, 0);
    assert_int_equal(roomy.n_waits, 0);
    /* The tightest device on which every step retries, and no request fails. */
    uint64_t low = roomy.memory.peak_allocated, high = roomy.memory.peak_reserved;
    assert_true(high > low + (64 << 20));
    struct outcome tight = run(high - (high - low) / 2);
    assert_true(tight.memory.n_alloc_retries > 0);
    assert_int_equal(tight.memory.n_ooms, 0);
    assert_true(tight.n_releases > 0 && tight.n_waits >= 2);
    print_message("step %.3f ms with room, %.3f ms with %llu retries (%zu waits, %zu releases)\n",
                  1e3 * roomy.step_s, 1e3 * tight.step_s,
                  (unsigned long long)tight.memory.n_alloc_retries, tight.n_waits,
                  tight.n_releases);
    assert_true(tight.step_s > roomy.step_s);
    /* A device that holds everything costs nothing. */
    assert_near(run(high).step_s, roomy.step_s, 1e-12,
                "step on a device that is just large enough");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_device_costs_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
