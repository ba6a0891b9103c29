/* test_mpt.c: MPT has the published numbers of parameters; what a Composer step launches beside the
 * model; padding that is taken away with reads on the host.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/recording_testing.h"

/* ---- counts ---------------------------------------------------------------------------------- */

/* llm-foundry, scripts/train/benchmarking/README.md: width, layers, heads, positions, parameters;
 * vocabulary 50,368, MLP four times as wide. */
static const uint64_t published[][5] = {
    {768, 12, 12, 512, 124131840},      {768, 12, 12, 1024, 124525056},
    {768, 12, 12, 2048, 125311488},     {768, 12, 12, 4096, 126884352},
    {768, 12, 12, 8192, 130030080},     {768, 12, 12, 16384, 136321536},
    {768, 12, 12, 32768, 148904448},    {768, 12, 12, 65536, 174070272},
    {1024, 24, 16, 512, 354412544},     {1024, 24, 16, 1024, 354936832},
    {1024, 24, 16, 2048, 355985408},    {1024, 24, 16, 4096, 358082560},
    {1024, 24, 16, 8192, 362276864},    {1024, 24, 16, 16384, 370665472},
    {1024, 24, 16, 32768, 387442688},   {1024, 24, 16, 65536, 420997120},
    {1536, 24, 12, 512, 758111232},     {1536, 24, 12, 1024, 758897664},
    {1536, 24, 12, 2048, 760470528},    {1536, 24, 12, 4096, 763616256},
    {1536, 24, 12, 8192, 769907712},    {1536, 24, 12, 16384, 782490624},
    {1536, 24, 12, 32768, 807656448},   {1536, 24, 12, 65536, 857988096},
    {2048, 24, 16, 512, 1312804864},    {2048, 24, 16, 1024, 1313853440},
    {2048, 24, 16, 2048, 1315950592},   {2048, 24, 16, 4096, 1320144896},
    {2048, 24, 16, 8192, 1328533504},   {2048, 24, 16, 16384, 1345310720},
    {2048, 24, 16, 32768, 1378865152},  {2048, 24, 16, 65536, 1445974016},
    {2560, 32, 20, 512, 2647905280},    {2560, 32, 20, 1024, 2649216000},
    {2560, 32, 20, 2048, 2651837440},   {2560, 32, 20, 4096, 2657080320},
    {2560, 32, 20, 8192, 2667566080},   {2560, 32, 20, 16384, 2688537600},
    {2560, 32, 20, 32768, 2730480640},  {2560, 32, 20, 65536, 2814366720},
    {4096, 32, 32, 512, 6652567552},    {4096, 32, 32, 1024, 6654664704},
    {4096, 32, 32, 2048, 6658859008},   {4096, 32, 32, 4096, 6667247616},
    {4096, 32, 32, 8192, 6684024832},   {4096, 32, 32, 16384, 6717579264},
    {4096, 32, 32, 32768, 6784688128},  {4096, 32, 32, 65536, 6918905856},
    {5120, 40, 40, 512, 12846090240},   {5120, 40, 40, 1024, 12848711680},
    {5120, 40, 40, 2048, 12853954560},  {5120, 40, 40, 4096, 12864440320},
    {5120, 40, 40, 8192, 12885411840},  {5120, 40, 40, 16384, 12927354880},
    {5120, 40, 40, 32768, 13011240960}, {7168, 48, 56, 512, 29964204032},
    {7168, 48, 56, 1024, 29967874048},  {7168, 48, 56, 2048, 29975214080},
    {7168, 48, 56, 4096, 29989894144},  {7168, 48, 56, 8192, 30019254272},
    {8192, 80, 64, 2048, 64862437376}};

static struct tsr_engine *engine(struct tsr_recorder *recorder, struct tsr_program *program)
{
    struct tsr_engine *e = NULL;
    tsr_recorder_init(recorder, program);
    const struct tsr_engine_config c = {.mesh = {.n_dims = 1, .shape = {2}},
                                        .executor = &recorder->base};
    ok(tsr_engine_create(&c, &e));
    tsr_program_init(program, tsr_engine_tables(e));
    return e;
}

static void counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const uint64_t *row = published[i];
        struct tsr_program program;
        struct tsr_recorder recorder;
        struct tsr_engine *e = engine(&recorder, &program);
        const struct tsr_mpt_config c = {.d_model = row[0],
                                         .n_layers = row[1],
                                         .n_heads = row[2],
                                         .max_seq_len = row[3],
                                         .vocab_size = 50368};
        ok(tsr_model_mpt(e, &c));
        assert_int_equal(tsr_model_n_params(e), row[4]);
        tsr_program_fini(&program);
        tsr_engine_destroy(e);
    }
}

/* The order of llm-foundry's modules decides the layout of every flat buffer. */
static void order(void **state)
{
    (void)state;
    static const char *const names[] = {"transformer.wte.weight",
                                        "transformer.wpe.weight",
                                        "transformer.blocks.0.norm_1.weight",
                                        "transformer.blocks.0.norm_1.bias",
                                        "transformer.blocks.0.attn.Wqkv.weight",
                                        "transformer.blocks.0.attn.Wqkv.bias",
                                        "transformer.blocks.0.attn.out_proj.weight",
                                        "transformer.blocks.0.attn.out_proj.bias",
                                        "transformer.blocks.0.norm_2.weight",
                                        "transformer.blocks.0.norm_2.bias",
                                        "transformer.blocks.0.ffn.up_proj.weight",
                                        "transformer.blocks.0.ffn.up_proj.bias",
                                        "transformer.blocks.0.ffn.down_proj.weight",
                                        "transformer.blocks.0.ffn.down_proj.bias",
                                        "transformer.norm_f.weight",
                                        "transformer.norm_f.bias"};
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_engine *e = engine(&recorder, &program);
    const struct tsr_mpt_config c = {
        .d_model = 8, .n_layers = 1, .n_heads = 2, .max_seq_len = 4, .vocab_size = 16};
    ok(tsr_model_mpt(e, &c));
    assert_int_equal(tsr_n_param_layouts(e), sizeof names / sizeof *names);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_string_equal(tsr_param_layout(e, i).fqn, names[i]);
    struct tsr_module *head = tsr_module_find(e, "lm_head");
    assert_non_null(head);
    assert_true(tsr_param_info(tsr_module_param(head, 0), head).is_alias);
    tsr_program_fini(&program);
    tsr_engine_destroy(e);
}

/* ---- steps ----------------------------------------------------------------------------------- */

enum { LAYERS = 3, PARAMS = 2 + 12 * LAYERS + 2, MICRO = 2 };

struct rig {
    struct tsr_recorder recorder;
    struct tsr_program init, step;
    struct tsr_engine *e;
};

static void wrap(struct tsr_engine *e, bool checkpoint)
{
    for (int i = 0; i < LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "transformer.blocks.%d", i);
        struct tsr_module *block = tsr_module_find(e, name);
        assert_non_null(block);
        if (checkpoint)
            ok(tsr_checkpoint(e, block, false, true));
        ok(tsr_fully_shard(e, &block, 1, NULL));
    }
    struct tsr_module *root = tsr_module_root(e);
    ok(tsr_fully_shard(e, &root, 1, NULL));
}

static void run(struct rig *r, bool unpad, bool checkpoint, struct tsr_step_config step)
{
    const struct tsr_mpt_config c = {.d_model = 32,
                                     .n_layers = LAYERS,
                                     .n_heads = 4,
                                     .max_seq_len = 16,
                                     .vocab_size = 64,
                                     .unpad = unpad};
    r->e = engine(&r->recorder, &r->init);
    tsr_program_init(&r->step, tsr_engine_tables(r->e));
    ok(tsr_model_mpt(r->e, &c));
    ok(tsr_param_set_dtype(r->e, "**", TSR_BF16)); /* what flash attention takes */
    wrap(r->e, checkpoint);
    step.batch = 2;
    step.seq = 16;
    step.n_micro = MICRO;
    ok(tsr_step_configure(r->e, &step));
    ok(tsr_engine_init_params(r->e));
    r->recorder.into = &r->step;
    ok(tsr_step_run(r->e, 0));
}

static void end(struct rig *r)
{
    tsr_program_fini(&r->init);
    tsr_program_fini(&r->step);
    tsr_engine_destroy(r->e);
}

static int kernels(const struct rig *r, int phase, const char *name)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++) {
        const struct tsr_instr *in = &r->step.instrs[i];
        n += in->kind == TSR_OP && in->origin.phase == phase &&
             (!name || !strcmp(in->work->name, name));
    }
    return n;
}

static int of_kind(const struct rig *r, int phase, int kind)
{
    int n = 0;
    for (size_t i = 0; i < r->step.n_instrs; i++)
        n += r->step.instrs[i].kind == kind && r->step.instrs[i].origin.phase == phase;
    return n;
}

static void eight_kernels_for_each_parameter(void **state)
{
    (void)state;
    struct rig r;
    run(&r, false, false, (struct tsr_step_config){.optimizer = TSR_OPT_DECOUPLED});
    assert_int_equal(kernels(&r, TSR_PHASE_OPTIMIZER, NULL), 8 * PARAMS);
    assert_int_equal(kernels(&r, TSR_PHASE_OPTIMIZER, "addcdiv"), PARAMS);
    assert_int_equal(of_kind(&r, TSR_PHASE_OPTIMIZER, TSR_HOST_READ), 0);
    end(&r);
    run(&r, false, false, (struct tsr_step_config){.optimizer = TSR_OPT_DECOUPLED_READ});
    assert_int_equal(kernels(&r, TSR_PHASE_OPTIMIZER, NULL), 9 * PARAMS);
    assert_int_equal(of_kind(&r, TSR_PHASE_OPTIMIZER, TSR_HOST_READ), PARAMS);
    end(&r);
}

static void clipping_one_by_one(void **state)
{
    (void)state;
    struct rig r;
    struct tsr_step_config step = {.clip = true, .clip_how = TSR_CLIP_LOOP};
    run(&r, false, false, step);
    assert_int_equal(kernels(&r, TSR_PHASE_CLIP, "norm_of_gradient"), PARAMS);
    assert_int_equal(kernels(&r, TSR_PHASE_CLIP, "mul_clip"), PARAMS);
    assert_int_equal(of_kind(&r, TSR_PHASE_CLIP, TSR_ALL_REDUCE), 1);
    assert_int_equal(of_kind(&r, TSR_PHASE_CLIP, TSR_HOST_READ), 0);
    end(&r);
    step.clip_how = TSR_CLIP_LOOP_READ;
    run(&r, false, false, step);
    assert_int_equal(of_kind(&r, TSR_PHASE_CLIP, TSR_HOST_READ), 1);
    end(&r);
}

static void metrics_after_each_backward(void **state)
{
    (void)state;
    struct rig r;
    run(&r, false, false,
        (struct tsr_step_config){.metrics = 2, .loss_kernel = TSR_LOSS_FLASH, .reads_loss = true});
    assert_int_equal(kernels(&r, TSR_PHASE_METRICS, "log_softmax"), 2 * MICRO);
    assert_int_equal(kernels(&r, TSR_PHASE_METRICS, "nll_loss"), 2 * MICRO);
    assert_int_equal(kernels(&r, TSR_PHASE_LOSS, "log_softmax"), 0);
    assert_int_equal(kernels(&r, TSR_PHASE_LOSS, "flash_cross_entropy"), MICRO);
    assert_int_equal(kernels(&r, TSR_PHASE_BACKWARD, "flash_cross_entropy_backward"), MICRO);
    assert_int_equal(of_kind(&r, TSR_PHASE_END, TSR_HOST_READ), 1);
    end(&r);
}

static void six_reads_for_each_attention(void **state)
{
    (void)state;
    struct rig r;
    run(&r, true, false, (struct tsr_step_config){0});
    assert_int_equal(of_kind(&r, TSR_PHASE_FORWARD, TSR_HOST_READ), 6 * LAYERS * MICRO);
    assert_int_equal(of_kind(&r, TSR_PHASE_BACKWARD, TSR_HOST_READ), 0);
    assert_int_equal(kernels(&r, TSR_PHASE_FORWARD, "gather_rows"), 3 * LAYERS * MICRO);
    assert_int_equal(kernels(&r, TSR_PHASE_FORWARD, "scatter_rows"), LAYERS * MICRO);
    assert_int_equal(kernels(&r, TSR_PHASE_BACKWARD, "gather_rows"), LAYERS * MICRO);
    assert_int_equal(kernels(&r, TSR_PHASE_BACKWARD, "scatter_rows"), 3 * LAYERS * MICRO);
    end(&r);
    run(&r, true, true, (struct tsr_step_config){0});
    assert_int_equal(of_kind(&r, TSR_PHASE_BACKWARD, TSR_HOST_READ), 6 * LAYERS * MICRO);
    end(&r);
}

static void refuse(struct tsr_step_config step)
{
    struct tsr_program program;
    struct tsr_recorder recorder;
    struct tsr_engine *e = engine(&recorder, &program);
    const struct tsr_mpt_config c = {
        .d_model = 8, .n_layers = 1, .n_heads = 2, .max_seq_len = 4, .vocab_size = 16};
    ok(tsr_model_mpt(e, &c));
    step.batch = step.n_micro = 1;
    step.seq = 4;
    assert_int_equal(tsr_step_configure(e, &step), TSR_EUNSUPPORTED);
    tsr_program_fini(&program);
    tsr_engine_destroy(e);
}

static void refusals(void **state)
{
    (void)state;
    refuse((struct tsr_step_config){.metrics = 1, .loss_kernel = TSR_LOSS_FLASH_INPLACE});
    refuse((struct tsr_step_config){.metrics = 1, .loss_chunks = 2});
    refuse((struct tsr_step_config){.loss_kernel = TSR_LOSS_FLASH, .loss_chunks = 2});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts),
                                       cmocka_unit_test(order),
                                       cmocka_unit_test(eight_kernels_for_each_parameter),
                                       cmocka_unit_test(clipping_one_by_one),
                                       cmocka_unit_test(metrics_after_each_backward),
                                       cmocka_unit_test(six_reads_for_each_attention),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("mpt", tests, NULL, NULL);
}
