/* test_step_bound.c: what a search relies on, for real models: no step is shorter than its bound,
 * and where kernels decide the bound is near.
 */
#include "tests/physics/physics.h"

#define LLAMA "model: llama-3.2-1b\nseq: 2048\n"
#define NODE  LLAMA "cluster: dgx-h100-1\n"
#define TWO   LLAMA "cluster: dgx-h100-2\n"

/* The bound as a share of the simulated step. */
static double share(const char *text)
{
    struct study study;
    struct tsr_step_bound of;
    study_open(&study, text);
    study_ok(tsr_sim_step_bound(&study.job.cluster, &study.sim, &study.job.settings->sim, &of));
    double step = study_step(&study, &study.job.settings->sim);
    study_close(&study);
    assert_at_least(step, of.step_s, text);
    assert_at_least(of.step_s, of.model_s + of.optimizer_s, text);
    return of.step_s / step;
}

static void steps_are_not_shorter(void **state)
{
    static const char *const texts[] = {
        NODE,
        NODE "api: ddp\n",
        NODE "api: replicate\n",
        NODE "reshard_after_forward: false\n",
        NODE "wrap: block_embed_head\nbackward_prefetch: 2\n",
        NODE "checkpoint: full\nclip: true\n",
        NODE "offload: cpu_pinned\n",
        NODE "accumulation: {steps: 2, mode: no_reduce}\n",
        NODE "sim: {slow_rank: 3, slow_factor: 1.5}\n",
        NODE "sim: {slow_rank: 3, slow_factor: 0.5}\n",
        NODE "sim: {host_scale: 20}\n",
        "model: llama-3.1-8b\nseq: 2048\ncluster: dgx-h100-1\ntp: 2\n",
        NODE "world: 3\n", /* uneven shards: several classes */
        TWO "mesh: [2, 8]\n",
        TWO "mesh: [4, 4]\nwrap: block_embed_head\n",
        TWO "reshard_after_forward: 8\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        share(texts[i]);
}

static void the_bound_is_near_where_kernels_decide(void **state)
{
    (void)state;
    assert_true(share(NODE "batch: 8\n") > 0.9);
    assert_true(share(TWO "batch: 8\nmesh: [2, 8]\n") > 0.8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_not_shorter),
        cmocka_unit_test(the_bound_is_near_where_kernels_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
