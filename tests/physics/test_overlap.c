/* test_overlap.c: what overlaps with what, on real models: one group overlaps nothing, a slow host
 * exposes the all-gathers of forward, more bandwidth is never slower. */
#include "tests/physics/physics.h"

/* ---- one group ---------------------------------------------------------------------------- */

static void one_group_overlaps_nothing(void **state)
{
    static const char *const texts[] = {
        "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\nwrap: root\n",
        "model: gpt2-xl\ncluster: dgx-a100-16\nworld: 16\nbatch: 4\nwrap: root\n",
        "model: llama-3.2-1b\ncluster: dgx-h100-2\nseq: 4096\nwrap: root\n"
        "mesh: {replicate: 2, shard: 8}\n",
    };
    (void)state;
    for (size_t s = 0; s < sizeof texts / sizeof texts[0]; s++) {
        struct study study;
        struct tsr_sim_options o = tsr_sim_options_default();
        study_open(&study, texts[s]);
        study_simulate(&study, &o);
        struct tsr_metrics m = study_metrics(&study);
        const struct tsr_program *program = study_program(&study, 0);
        const struct tsr_sim_span *spans = study_spans(&study, 0);
        double gather_end = -1.0, first_op = INFINITY, gathers = 0.0;
        for (size_t i = 0; i < program->n_instrs; i++) {
            const struct tsr_instr *instr = &program->instrs[i];
            if (instr->kind == TSR_ALL_GATHER) {
                gathers += spans[i].end - spans[i].start;
                gather_end = gather_end < 0.0 ? spans[i].end : gather_end;
            }
            bool of_model = instr->origin.phase == TSR_PHASE_FORWARD &&
                            instr->origin.hook == TSR_HOOK_NONE && instr->kind == TSR_OP;
            if (of_model && spans[i].start < first_op)
                first_op = spans[i].start;
        }
        assert_true(gathers > 0.0);
        assert_true(first_op >= gather_end);
        assert_near(m.exposed_gather_s, gathers, 1e-9, "exposed all-gathers");
        assert_near(m.exposed_s, m.comm_s, 1e-9, "exposed communication");
        study_close(&study);
    }
}

/* Against it: a group per block hides nearly all of it. */
static void groups_per_block_overlap(void **state)
{
    struct study study;
    struct tsr_sim_options o = tsr_sim_options_default();
    (void)state;
    study_open(&study, "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 8192\n");
    study_simulate(&study, &o);
    struct tsr_metrics m = study_metrics(&study);
    assert_true(m.exposed_s < 0.2 * m.comm_s);
    study_close(&study);
}

/* ---- the host ------------------------------------------------------------------------------ */

/* Seconds of all-gathers of forward that nothing hides, without the first (the root's). */
static double exposed_in_forward(const struct study *study)
{
    const struct tsr_program *program = study_program(study, 0);
    double *exposed = calloc(program->n_instrs, sizeof *exposed), sum = 0.0;
    bool first = true;
    assert_non_null(exposed);
    study_ok(tsr_exposed_per_instr(program, study_spans(study, 0), exposed));
    for (size_t i = 0; i < program->n_instrs; i++) {
        const struct tsr_instr *instr = &program->instrs[i];
        if (instr->kind != TSR_ALL_GATHER || instr->origin.phase != TSR_PHASE_FORWARD)
            continue;
        sum += first ? 0.0 : exposed[i];
        first = false;
    }
    free(exposed);
    return sum;
}

/* In forward a group is gathered when the host comes to it: what hides the gather is the host's
 * lead over the GPU. A host that is slower than the GPU has none. */
static void a_slow_host_exposes_forward_gathers(void **state)
{
    struct study study;
    struct tsr_sim_options o = tsr_sim_options_default();
    (void)state;
    study_open(&study, "model: llama-3.1-8b\ncluster: dgx-h100-1\nseq: 2048\n");
    study_uncalibrated(&study);
    double step = study_step(&study, &o), normal = exposed_in_forward(&study);
    double waiting = study_metrics(&study).host_bound_s;
    o.host_scale = 15.0;
    double slow_step = study_step(&study, &o), slow = exposed_in_forward(&study);
    assert_true(slow_step > 1.5 * step);
    assert_true(normal < 1e-6 && slow > 1e-3);
    assert_true(study_metrics(&study).host_bound_s > 10.0 * waiting);
    study_close(&study);
}

/* ---- bandwidth ----------------------------------------------------------------------------- */

static const char *const swept[] = {
    "api: ddp\n",
    "api: replicate\n",
    "wrap: block\n",
    "wrap: root\n",
    "reshard_after_forward: false\n",
    "reshard_after_forward: 8\n",
    "forward_prefetch: 2\nbackward_prefetch: 2\n",
    "mesh: {replicate: 2, shard: 8}\n",
    "mesh: {replicate: 2, shard: 8}\nprecision: {reduce: bf16}\n",
};

/* Steps over 6 rates, each three times the one before. */
static void sweep(struct study *study, bool nic, const char *what)
{
    const enum tsr_protocol protocols[] = {TSR_PROTO_SIMPLE, TSR_PROTO_LL128, TSR_PROTO_LL};
    for (size_t p = 0; p < 3; p++) {
        struct tsr_sim_options o = tsr_sim_options_default();
        double before = INFINITY, slowest = 0.0, rate = nic ? 2e9 : 16e9;
        o.protocol = protocols[p];
        for (int i = 0; i < 6; i++, rate *= 3.0) {
            *(nic ? &o.nic_bw : &o.intra_bw) = rate;
            double step = study_step(study, &o);
            if (step > before * (1.0 + 1e-9))
                fail_msg("%s, %s %g: step %.17g after %.17g", what, nic ? "nic_bw" : "intra_bw",
                         rate, step, before);
            slowest = i == 0 ? step : slowest;
            before = step;
        }
        assert_true(before < 0.95 * slowest);
    }
}

static void more_bandwidth_is_never_slower(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof swept / sizeof swept[0]; s++) {
        struct study study;
        char text[256];
        snprintf(text, sizeof text, "model: llama-3.2-1b\ncluster: dgx-h100-2\nseq: 2048\n%s",
                 swept[s]);
        study_open(&study, text);
        sweep(&study, true, swept[s]);
        sweep(&study, false, swept[s]);
        study_close(&study);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group_overlaps_nothing),
        cmocka_unit_test(groups_per_block_overlap),
        cmocka_unit_test(a_slow_host_exposes_forward_gathers),
        cmocka_unit_test(more_bandwidth_is_never_slower),
    };
    return cmocka_run_group_tests_name("overlap", tests, NULL, NULL);
}
