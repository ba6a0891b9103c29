/* test_symmetry.c: a folded simulation of the engine's programs equals the whole one. */
#include "tests/physics/physics.h"

static double difference(const struct study *study, const struct tsr_sim_result *folded,
                         const struct tsr_sim_result *whole)
{
    double worst = 0.0;
    uint32_t weight = 0;
    for (uint32_t i = 0; i < folded->n_ranks; i++) {
        const struct tsr_sim_rank *rep = &folded->ranks[i], *rank = &whole->ranks[rep->rank];
        weight += rep->weight;
        assert_int_equal(rank->rank, rep->rank);
        for (uint32_t it = 0; it < folded->n_iterations; it++) {
            const struct tsr_program *program = study->programs[rep->layout][it];
            assert_int_equal(rep->exec_hash[it], rank->exec_hash[it]);
            assert_int_equal(rep->exec_hash[it], tsr_program_expected_exec_hash(program));
            assert_int_equal(rep->sent_intra[it], rank->sent_intra[it]);
            assert_int_equal(rep->sent_inter[it], rank->sent_inter[it]);
            for (size_t k = 0; k < program->n_instrs; k++) {
                double a = rep->spans[it][k].end, b = rank->spans[it][k].end;
                double d = fabs(a - b) / (b > 0.0 ? b : 1.0);
                worst = d > worst ? d : worst;
            }
        }
    }
    assert_int_equal(weight, study->sim.world);
    for (uint32_t it = 0; it < folded->n_iterations; it++)
        assert_near(folded->iteration_end[it], whole->iteration_end[it], 1e-9, "iteration");
    return worst;
}

static void folded_equals_unfolded(void **state)
{
    static const struct {
        const char *text;
        double slow;
        uint32_t most_ranks; /* simulated, folded */
    } cases[] = {
        {"model: llama-3.2-1b\ncluster: dgx-h100-2\nseq: 2048\n", 0.0, 1},
        {"model: llama-3.2-1b\ncluster: dgx-h100-2\nseq: 2048\n", 1.3, 16},
        {"model: llama-3.2-1b\ncluster: dgx-h100-2\nseq: 2048\nmesh: {replicate: 2, shard: 8}\n",
         0.0, 1},
        {"model: llama-3.2-1b\ncluster: dgx-h100-2\nseq: 2048\nmesh: {replicate: 2, shard: 8}\n",
         1.3, 16},
        {"model: gpt2\ncluster: dgx-a100-16\nworld: 16\nbatch: 2\nmesh: {replicate: 4, shard: 4}\n",
         1.3, 16},
        {"model: gpt2\ncluster: dgx-a100-16\nworld: 16\nbatch: 2\napi: ddp\n", 0.0, 1},
        {"model: gpt2\ncluster: dgx-a100-16\nworld: 16\nreshard_after_forward: 4\n", 0.0, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct study study;
        struct tsr_sim_options o = tsr_sim_options_default();
        struct tsr_sim_result *folded, *whole;
        study_open(&study, cases[i].text);
        o.slow_rank = 5;
        o.slow_factor = cases[i].slow;
        study_ok(tsr_sim_run(&study.job.cluster, &study.sim, &o, &folded));
        o.fold = false;
        study_ok(tsr_sim_run(&study.job.cluster, &study.sim, &o, &whole));
        double worst = difference(&study, folded, whole);
        if (worst > 1e-9)
            fail_msg("case %zu: %g", i, worst);
        assert_int_equal(whole->n_ranks, 16);
        assert_true(folded->n_ranks <= cases[i].most_ranks);
        tsr_sim_result_destroy(folded);
        tsr_sim_result_destroy(whole);
        study_close(&study);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folded_equals_unfolded),
    };
    return cmocka_run_group_tests_name("symmetry", tests, NULL, NULL);
}
